//! What Shunt is to reach, beside what a run reached. Ratios, because absolute figures drift; docs/speed.md says
//! what bounds those that are missed.

use super::plan::{LARGE, SMALL};
use super::run::Run;
use super::tables::{bytes, markdown, ABSENT};
use crate::args::bench::{Measure, Pin, Way};
use crate::bench::against::{both, Both};
use crate::bench::case::Case;
use crate::bench::line::{lines, Line};
use crate::figures::figure;

/// One row.
struct Aim {
    what: String,
    asked: Asked,
    unit: &'static str,
    /// `None` if the run has not measured it.
    reached: Option<f64>,
}

#[derive(Clone, Copy)]
enum Asked {
    AtLeast(f64),
    AtMost(f64),
}

impl Aim {
    fn verdict(&self) -> &'static str {
        match (self.reached, self.asked) {
            (None, _) => ABSENT,
            (Some(value), Asked::AtLeast(least)) if value >= least => "yes",
            (Some(value), Asked::AtMost(most)) if value <= most => "yes",
            (Some(_), _) => "no",
        }
    }

    fn cells(&self) -> Vec<String> {
        let show = |value| figure(value, self.unit).trim_end().to_owned();
        let asked = match self.asked {
            Asked::AtLeast(least) => format!("at least {}", show(least)),
            Asked::AtMost(most) => format!("at most {}", show(most)),
        };
        let reached = self.reached.map_or(ABSENT.into(), show);
        vec![self.what.clone(), asked, reached, self.verdict().into()]
    }
}

/// Programs, by the names of the demo's measures, and how many times plain each is to be.
const PROGRAMS: [(&str, f64); 20] = [
    ("sockperf ping-pong 14 B, two cores", 50.0),
    ("redis GET 1 KB, 1 client", 5.0),
    ("redis GET 1 KB, 50 clients", 2.5),
    ("redis GET 1 KB, 500 clients", 2.5),
    ("redis GET 1 KB, 50 clients, pipeline 16", 1.3),
    ("nginx 1 KB file, 1 connection", 3.0),
    ("nginx 1 KB file, 64 connections", 1.8),
    ("nginx 64 KB file, 8 connections", 2.0),
    ("nginx 1 MB file, 8 connections", 2.0),
    ("nginx before nginx, 4 KB file, 64 connections", 2.0),
    ("pgbench -S -M prepared, 1 client", 1.5),
    ("pgbench -S -M prepared, 16 clients", 1.2),
    ("memcached 1 KB, 1 client", 1.0),
    ("memcached 1 KB, 50 clients", 1.0),
    ("Node HTTP 1 KB, 1 connection", 1.0),
    ("Node HTTP 1 KB, 64 connections", 1.0),
    ("Java NIO echo 64 B, 1 client", 1.0),
    ("Python asyncio echo 64 B, 1 client", 1.0),
    ("HAProxy before nginx, 1 KB file, 64 connections", 1.0),
    ("nginx, 4 workers, 1 KB file, 64 connections", 1.0),
];

/// A SET while Redis saves, and without that: the gain of the one is to be so much of the other's.
const SAVING: [&str; 2] =
    ["redis SET 1 KB, 50 clients, BGSAVE under way", "redis SET 1 KB, 50 clients"];

/// All of them, those that were not measured as well.
pub fn table(run: &Run) -> String {
    let head = ["", "asked", "reached", "met"].map(String::from).into();
    let aims = path(run).into_iter().chain(cpu(run)).chain(programs(run));
    markdown(head, aims.map(|aim| aim.cells()))
}

/// Of the data path and set-up.
fn path(run: &Run) -> Vec<Aim> {
    use Asked::{AtLeast, AtMost};
    let aim = |what: &str, asked, unit, reached| Aim { what: what.into(), asked, unit, reached };
    let case = |measure| Case::new(measure, Pin::Two, SMALL);
    let latency = case(Measure::Latency);
    let one_core = Case { pin: Pin::One, ..latency };
    let over = |streams, active, at_a_time| case(Measure::Streams).over(streams, active, at_a_time);
    let of = |case: Case, way| line_of(run, case, way);
    let ratio = |case: Case| of(case, Way::Shunt)?.ratio_to_tcp;
    let value = |case: Case, way| Some(of(case, way)?.value);
    let per = |one: Option<f64>, other: Option<f64>| Some(one? / other?);
    let half = |way| value(latency, way);
    let calls_add = || Some((half(Way::Shunt)? - half(Way::Ring)?) / 2.0 * 1000.0);
    let rate = case(Measure::Rate);
    // Either is enough.
    let rate_asked = value(rate, Way::Ring).map(|ring| (0.85 * ring).min(20e6));
    let many = |active| {
        per(value(over(10_000, active, None), Way::Shunt), value(over(8, active, None), Way::Shunt))
    };
    let start = both(&run.start);
    let adds = |it: &Both| it.shunt - it.plain;
    let mut aims = vec![
        aim(
            "half a round trip of 8 bytes, to the bare ring",
            AtMost(1.3),
            "x",
            per(half(Way::Shunt), half(Way::Ring)),
        ),
        aim("the same, what a call adds to the ring", AtMost(10.0), "ns", calls_add()),
        aim("the same, to kernel TCP", AtLeast(100.0), "x", ratio(latency)),
        aim(
            "through epoll over 8 streams, to kernel TCP",
            AtLeast(40.0),
            "x",
            ratio(over(8, 8, Some(1))),
        ),
        aim("both on one core, to kernel TCP", AtLeast(3.0), "x", ratio(one_core)),
        aim(
            "pauses of 100 us, of kernel TCP's time",
            AtMost(0.9),
            "x",
            ratio(case(Measure::Think).thinking(100)).map(|it| 1.0 / it),
        ),
        aim(
            "messages one way, of 20 million a second or 85 % of the bare ring",
            AtLeast(1.0),
            "x",
            per(value(rate, Way::Shunt), rate_asked),
        ),
        aim("epoll over 10,000 streams, 1 active, to over 8", AtLeast(0.9), "x", many(1)),
    ];
    for size in [1024, 16_384, LARGE, 1_048_576] {
        let stream = Case::new(Measure::Stream, Pin::Two, size);
        let share = per(value(stream, Way::Shunt), value(stream, Way::Copy));
        let what =
            format!("one way, writes of {}, of the limit of two copies", bytes(size as usize));
        aims.push(aim(&what, AtLeast(0.9), "x", share));
    }
    aims.push(aim(
        "connect, one exchange, close, to kernel TCP",
        AtLeast(1.0),
        "x",
        ratio(case(Measure::Connect)),
    ));
    aims.push(aim("start-up of the library", AtMost(150.0), "us", start.first().map(adds)));
    aims
}

fn cpu(run: &Run) -> Vec<Aim> {
    let of = |case: Case, pick: fn(&Line) -> f64| {
        let value = |way| line_of(run, case, way).map(|line| pick(&line));
        Some(value(Way::Shunt)? / value(Way::Tcp)?)
    };
    let paced = Case::new(Measure::Think, Pin::Two, SMALL).paced(1000);
    let large = Case::new(Measure::Stream, Pin::Two, LARGE);
    let idle = Case::new(Measure::Idle, Pin::Two, SMALL).over(1000, 1, None);
    let idle_value = |way| Some(line_of(run, idle, way)?.value);
    let more = || Some(idle_value(Way::Shunt)? - idle_value(Way::Tcp)?);
    let aim = |what: &str, most, unit, reached| Aim {
        what: what.into(),
        asked: Asked::AtMost(most),
        unit,
        reached,
    };
    vec![
        aim(
            "CPU for a message at 1,000 a second, of kernel TCP's",
            1.0,
            "x",
            of(paced, |it| it.cpu_us_per_operation),
        ),
        aim(
            "CPU for a GB, writes of 128 KiB, of kernel TCP's",
            1.0 / 3.0,
            "x",
            of(large, |it| it.cpu_seconds_per_gb),
        ),
        // A ten-thousandth of a core is what such figures differ by.
        aim("CPU of 1,000 idle streams, above kernel TCP's", 0.1, "ms/s", more()),
    ]
}

fn programs(run: &Run) -> Vec<Aim> {
    let all = both(&run.apps);
    let ratio = |name: &str| all.iter().find(|it| it.what == name).map(|it| it.ratio);
    let mut aims: Vec<Aim> = PROGRAMS
        .iter()
        .map(|&(name, least)| Aim {
            what: name.into(),
            asked: Asked::AtLeast(least),
            unit: "x",
            reached: ratio(name),
        })
        .collect();
    let [saving, quiet] = SAVING.map(ratio);
    aims.push(Aim {
        what: format!("{}, of the gain without", SAVING[0]),
        asked: Asked::AtLeast(0.8),
        unit: "x",
        reached: saving.zip(quiet).map(|(saving, quiet)| saving / quiet),
    });
    aims
}

fn line_of(run: &Run, case: Case, way: Way) -> Option<Line> {
    lines(&case, &run.records).into_iter().find(|line| line.way == way)
}

#[cfg(test)]
mod tests {
    use super::super::run::tests::example;
    use super::*;
    use crate::demo;

    #[test]
    fn what_is_reached_stands_beside_what_is_asked() {
        let table = table(&example());
        for row in [
            "| the same, to kernel TCP | at least 100 x | 120 x | yes |",
            "| both on one core, to kernel TCP | at least 3.00 x | 2.50 x | no |",
            "| half a round trip of 8 bytes, to the bare ring | at most 1.30 x | - | - |",
            "| start-up of the library | at most 150 us | 190 us | no |",
        ] {
            assert!(table.contains(row), "{row} is not in\n{table}");
        }
    }

    #[test]
    fn every_program_is_a_measure_of_the_demo() {
        let known = demo::names();
        let asked = PROGRAMS.iter().map(|(name, _)| *name).chain(SAVING);
        asked.for_each(|name| assert!(known.contains(&name), "{name}"));
    }
}
