//! Tables in Markdown: one for each part of a run, and the figures that say most.

use std::collections::BTreeMap;

use super::plan::{LARGE, SMALL};
use super::run::Run;
use crate::apart;
use crate::args::bench::{Measure, Part, Pin, Way};
use crate::bench::against::{self, both, Both, Trial};
use crate::bench::case::Case;
use crate::bench::line::{lines, Line};
use crate::bench::record::Record;
use crate::bench::summary::{warning_about_upgrades, wide_spread};
use crate::figures::{count, figure};

/// Those that a table has a column for, in this order, and what they are called there.
const WAYS: [(Way, &str); 5] = [
    (Way::Tcp, "kernel TCP"),
    (Way::Unix, "Unix socket"),
    (Way::Ring, "bare ring"),
    (Way::Copy, "copy limit"),
    (Way::Shunt, "Shunt"),
];
pub const ABSENT: &str = "-";

pub fn title(way: Way) -> &'static str {
    WAYS.iter().find(|(it, _)| *it == way).map_or("", |(_, title)| title)
}

/// What the rounds say against themselves, and where streams stayed on TCP.
pub fn warnings(run: &Run) -> Vec<String> {
    let mut warnings = Vec::new();
    let mut wide: Vec<(f64, String)> = Vec::new();
    let mut figures = 0;
    for case in run.cases() {
        let what = format!("{}, {}", case.what(), case.cores());
        for line in lines(&case, &run.records) {
            figures += 1;
            let spread = wide_spread(&case, &line);
            wide.extend(spread.map(|percent| (percent, format!("{}, {what}", title(line.way)))));
            let upgrades = warning_about_upgrades(&case, &line);
            warnings.extend(upgrades.map(|warning| format!("{what}: {warning}")));
        }
    }
    wide.sort_by(|one, other| other.0.total_cmp(&one.0));
    if let Some((most, what)) = wide.first() {
        let count = wide.len();
        warnings.push(format!(
            "{count} of {figures} figures differed by more than 30 % between rounds, most by {most:.0} % ({what}): the machine is noisy; end other programs, or take more rounds"
        ));
    }
    warnings.extend(warning_about_cores(&run.records, &run.apps));
    warnings.extend(against::warning(&run.passthrough));
    warnings
}

/// How far apart the cores were, if they did not stay where they were.
fn warning_about_cores(records: &[Record], programs: &[Trial]) -> Option<String> {
    let wider = |one: (f64, f64), next: (f64, f64)| (one.0.min(next.0), one.1.max(next.1));
    let span =
        |looks: Vec<Option<f64>>| looks.into_iter().flatten().map(|ns| (ns, ns)).reduce(wider);
    let is_moved = |&(least, most): &(f64, f64)| apart::moved(least, most);
    let cases = records.chunk_by(|one, next| (one.round, one.case()) == (next.round, next.case()));
    let of_cases = cases.map(|round| round.iter().map(|it| it.apart_ns).collect());
    let mut of_programs: BTreeMap<_, Vec<_>> = BTreeMap::new();
    for it in programs {
        of_programs.entry((&it.what, it.round)).or_default().push(it.apart_ns);
    }
    let spans: Vec<_> = of_cases.chain(of_programs.into_values()).map(span).collect();
    let (least, most) = spans.iter().copied().flatten().reduce(wider).filter(is_moved)?;
    let mixed = spans.iter().flatten().filter(|span| is_moved(span)).count();
    let all = spans.len();
    Some(format!(
        "the host moved the cores: a word took {least:.0} to {most:.0} ns from one to the other (`apart_ns` in the CSV files). Ways were compared at one distance, but for {mixed} of {all} rounds of cases and programs; rows may be of different ones"
    ))
}

/// The table of one part; `None` if it was not measured.
pub fn table(part: Part, run: &Run) -> Option<String> {
    let measure = match part {
        Part::Latency => Measure::Latency,
        Part::Stream => Measure::Stream,
        Part::Rate => Measure::Rate,
        Part::Connect => Measure::Connect,
        Part::Streams => Measure::Streams,
        Part::Think => Measure::Think,
        Part::Idle => Measure::Idle,
        Part::Passthrough => return calls(&run.passthrough),
        Part::Start => return calls(&run.start),
        Part::Apps => return apps(&run.apps),
    };
    let cases: Vec<Case> = run.cases().into_iter().filter(|case| case.measure == measure).collect();
    (!cases.is_empty()).then(|| of_cases(&cases, &run.records))
}

/// A row for each case, a column for each way that was taken, and CPU time where it tells.
fn of_cases(cases: &[Case], records: &[Record]) -> String {
    let all: Vec<(&Case, Vec<Line>)> =
        cases.iter().map(|case| (case, lines(case, records))).collect();
    let is_taken = |way| all.iter().any(|(_, lines)| find(lines, way).is_some());
    let ways: Vec<(Way, &str)> = WAYS.into_iter().filter(|(way, _)| is_taken(*way)).collect();
    let cpu = cpu_of(cases[0].measure);
    let mut head = vec![String::new()];
    head.extend(ways.iter().map(|(_, title)| (*title).to_owned()));
    head.push("Shunt to TCP".into());
    let has_limit = is_taken(Way::Copy);
    if has_limit {
        head.push("of the limit".into());
    }
    if let Some(cpu) = &cpu {
        head.extend([format!("{}, kernel TCP", cpu.title), format!("{}, Shunt", cpu.title)]);
    }
    let rows = all.iter().map(|(case, lines)| {
        let mut cells = vec![label(case)];
        cells.extend(ways.iter().map(|(way, _)| value(case, find(lines, *way))));
        cells.push(ratio(find(lines, Way::Shunt)));
        if has_limit {
            cells.push(share(find(lines, Way::Shunt), find(lines, Way::Copy)));
        }
        if let Some(cpu) = &cpu {
            let of = |way| {
                find(lines, way).map_or(ABSENT.into(), |line| figure((cpu.of)(line), cpu.unit))
            };
            cells.extend([of(Way::Tcp), of(Way::Shunt)]);
        }
        cells
    });
    markdown(head, rows)
}

/// What of the CPU time is told of a measure.
struct Cpu {
    title: &'static str,
    unit: &'static str,
    of: fn(&Line) -> f64,
}

fn cpu_of(measure: Measure) -> Option<Cpu> {
    match measure {
        Measure::Stream => {
            Some(Cpu { title: "CPU for a GB", unit: "s", of: |it| it.cpu_seconds_per_gb })
        }
        Measure::Idle => None,
        _ => Some(Cpu { title: "CPU for each", unit: "us", of: |it| it.cpu_us_per_operation }),
    }
}

/// Calls and starts: times, and what the library adds.
fn calls(trials: &[Trial]) -> Option<String> {
    let all = both(trials);
    let row = |it: &Both| {
        let [plain, shunt, more] =
            [it.plain, it.shunt, it.shunt - it.plain].map(|value| figure(value, it.unit));
        vec![it.what.to_owned(), plain, shunt, more, format!("{:.2}", it.shunt / it.plain)]
    };
    let head = ["", "plain", "with the library", "more", "times plain"].map(String::from).into();
    (!all.is_empty()).then(|| markdown(head, all.iter().map(row)))
}

fn apps(trials: &[Trial]) -> Option<String> {
    let all = both(trials);
    let row = |it: &Both| {
        let streams = format!("{} of {}", it.streams_upgraded, it.streams_eligible);
        let [plain, shunt] = [it.plain, it.shunt].map(|value| figure(value, it.unit));
        vec![it.what.to_owned(), plain, shunt, times(it.ratio), streams]
    };
    let head = ["program", "plain", "accelerated", "ratio", "streams upgraded of eligible"];
    (!all.is_empty()).then(|| markdown(head.map(String::from).into(), all.iter().map(row)))
}

/// The cases that say most, and the programs: what the project's README shows.
pub fn figures(run: &Run) -> String {
    let mut tables = Vec::new();
    let cases: Vec<Case> = run.cases().into_iter().filter(says_most).collect();
    if !cases.is_empty() {
        let head = ["", "kernel TCP", "Unix socket", "bare ring", "Shunt", "Shunt to TCP"];
        let rows = cases.iter().map(|case| {
            let lines = lines(case, &run.records);
            let of = |way| value(case, find(&lines, way));
            let what = format!("{}, {}", case.what(), case.cores());
            let ratio = ratio(find(&lines, Way::Shunt));
            vec![what, of(Way::Tcp), of(Way::Unix), of(Way::Ring), of(Way::Shunt), ratio]
        });
        tables.push(markdown(head.map(String::from).into(), rows));
    }
    tables.extend(apps(&run.apps));
    tables.extend(calls(&run.start));
    tables.join("\n")
}

fn says_most(case: &Case) -> bool {
    let size = case.size as u32;
    match case.measure {
        Measure::Latency => size == SMALL,
        Measure::Stream => size == LARGE && case.pin != Pin::One,
        Measure::Rate => case.pin != Pin::One,
        Measure::Connect | Measure::Idle => true,
        Measure::Streams => case.outstanding == 1 && case.streams != 100,
        Measure::Think => case.per_second > 0,
    }
}

/// What tells a case from the others of its measure.
pub fn label(case: &Case) -> String {
    let Case { size, streams, active, outstanding, think_us, per_second, pairs, .. } = *case;
    let label = match case.measure {
        Measure::Latency | Measure::Stream | Measure::Rate | Measure::Connect => bytes(size),
        Measure::Streams if outstanding < active => {
            format!("{}, {active} active, {outstanding} at a time", count(streams, "stream"))
        }
        Measure::Streams => format!("{}, {active} active", count(streams, "stream")),
        Measure::Think if per_second > 0 => format!("{per_second} a second"),
        Measure::Think => format!("pauses of {think_us} us"),
        Measure::Idle => count(streams, "stream"),
    };
    let label = if pairs > 1 { format!("{pairs} pairs: {label}") } else { label };
    match case.pin {
        Pin::Two => label,
        Pin::One | Pin::Free => format!("{label}, {}", case.cores()),
    }
}

/// A number of bytes as people say it.
pub fn bytes(size: usize) -> String {
    const KIB: usize = 1024;
    const MIB: usize = 1024 * KIB;
    match size {
        size if size >= MIB && size.is_multiple_of(MIB) => format!("{} MiB", size / MIB),
        size if size >= KIB && size.is_multiple_of(KIB) => format!("{} KiB", size / KIB),
        size => format!("{size} B"),
    }
}

fn find(lines: &[Line], way: Way) -> Option<&Line> {
    lines.iter().find(|line| line.way == way)
}

/// The median; for times with the 99th percentile.
fn value(case: &Case, line: Option<&Line>) -> String {
    let Some(line) = line else { return ABSENT.into() };
    let value = figure(line.value, case.unit());
    match line.percentiles_us {
        Some(it) if case.unit() == "us" => format!("{value} (p99 {})", figure(it.p99, "us")),
        Some(it) if case.measure == Measure::Streams => {
            format!("{value}, {} (p99 {})", figure(it.p50, "us"), figure(it.p99, "us"))
        }
        _ => value,
    }
}

fn ratio(line: Option<&Line>) -> String {
    line.and_then(|line| line.ratio_to_tcp).map_or(ABSENT.into(), times)
}

/// How much of the limit is reached.
fn share(line: Option<&Line>, limit: Option<&Line>) -> String {
    let share = line.zip(limit).map(|(line, limit)| line.value / limit.value * 100.0);
    share.map_or(ABSENT.into(), |share| format!("{share:.0} %"))
}

fn times(ratio: f64) -> String {
    figure(ratio, "x")
}

/// Figures to the right.
pub fn markdown(head: Vec<String>, rows: impl Iterator<Item = Vec<String>>) -> String {
    let line = |cells: &[String]| format!("| {} |\n", cells.join(" | "));
    let rule: Vec<&str> = (0..head.len()).map(|at| if at == 0 { "---" } else { "---:" }).collect();
    let mut text = line(&head);
    text.push_str(&format!("|{}|\n", rule.join("|")));
    rows.for_each(|row| text.push_str(&line(&row)));
    text
}

#[cfg(test)]
mod tests {
    use super::super::run::tests::example;
    use super::*;
    use crate::bench::record::tests::record;

    #[test]
    fn a_part_is_a_table_with_a_row_for_each_case() {
        let table = table(Part::Latency, &example()).unwrap();
        assert_eq!(
            table.lines().collect::<Vec<_>>(),
            [
                "|  | kernel TCP | Shunt | Shunt to TCP | CPU for each, kernel TCP | CPU for each, Shunt |",
                "|---|---:|---:|---:|---:|---:|",
                "| 8 B | 30.0 us (p99 90.0 us) | 0.25 us (p99 0.75 us) | 120 x | 375 us | 37.5 us |",
                "| 128 KiB | 30.0 us (p99 90.0 us) | 0.25 us (p99 0.75 us) | 120 x | 375 us | 37.5 us |",
                "| 8 B, both on one core | 2.50 us (p99 7.50 us) | 1.00 us (p99 3.00 us) | 2.50 x | 375 us | 37.5 us |",
            ]
        );
        assert_eq!(super::table(Part::Latency, &Run::default()), None);
    }

    #[test]
    fn bandwidth_is_compared_with_the_limit() {
        let mut run = example();
        let case = Case::new(Measure::Stream, Pin::Two, 131_072);
        run.records.push(record(case, Way::Copy, 0.0, 20_000));
        let table = table(Part::Stream, &run).unwrap();
        let row = "| 128 KiB | 0.13 GB/s | 2.62 GB/s | 1.31 GB/s | 10.0 x | 50 % |";
        assert!(table.contains(row), "{table}");
        assert!(table.lines().nth(2).is_some_and(|row| row.contains("| - |")), "{table}");
    }

    #[test]
    fn cores_that_moved_are_told_with_the_rounds_that_it_spoiled() {
        let mut run = example();
        assert!(!warnings(&run).concat().contains("the host moved the cores"));
        for (record, apart_ns) in run.records.iter_mut().zip([25.0, 26.0, 120.0, 25.0]) {
            record.apart_ns = Some(apart_ns);
        }
        let warnings = warnings(&run).concat();
        assert!(warnings.contains("25 to 120 ns"), "{warnings}");
        assert!(warnings.contains("but for 1 of"), "{warnings}");
    }

    #[test]
    fn programs_count_among_the_rounds_of_cores_that_moved() {
        let mut run = example();
        run.apps.iter_mut().for_each(|it| it.apart_ns = Some(25.0));
        assert!(!warnings(&run).concat().contains("the host moved the cores"));
        run.apps[0].apart_ns = Some(120.0);
        let warnings = warnings(&run).concat();
        assert!(warnings.contains("but for 1 of"), "{warnings}");
    }

    #[test]
    fn noise_is_one_line_however_much_there_is() {
        let mut run = example();
        run.records.iter_mut().for_each(|record| record.streams_upgraded = None);
        assert!(warnings(&run).is_empty());
        for pin in [Pin::Two, Pin::One] {
            run.records.push(record(Case::new(Measure::Latency, pin, 8), Way::Tcp, 400.0, 10));
        }
        let warnings = warnings(&run);
        assert_eq!(warnings.len(), 1, "{warnings:?}");
        assert!(warnings[0].starts_with("2 of 30 figures"), "{warnings:?}");
        assert!(
            warnings[0].contains("kernel TCP, half a round trip, 8 bytes, both"),
            "{warnings:?}"
        );
    }

    #[test]
    fn calls_say_what_the_library_adds() {
        let table = table(Part::Passthrough, &example()).unwrap();
        assert!(
            table.contains("| dup and close, pipe | 235 ns | 520 ns | 285 ns | 2.21 |"),
            "{table}"
        );
    }

    #[test]
    fn the_figures_are_those_that_say_most() {
        let figures = figures(&example());
        for row in [
            "| half a round trip, 8 bytes, a core each | 30.0 us (p99 90.0 us) | - | - | 0.25 us (p99 0.75 us) | 120 x |",
            "| redis, \"GET\" | 20,000 ns | 268,000 ns | 13.4 x | 0 of 0 |",
        ] {
            assert!(figures.contains(row), "{row} is not in\n{figures}");
        }
        assert!(figures.contains("10000 streams, 1 active"), "{figures}");
        assert!(!figures.contains("100 active"), "{figures}");
        // All rows of a table are as wide as its head.
        let mut width = 0;
        for line in figures.lines() {
            let cells = line.matches('|').count();
            width = if line.is_empty() || width == 0 { cells } else { width };
            assert!(line.is_empty() || cells == width, "{line}");
        }
    }

    #[test]
    fn sizes_are_said_as_people_do() {
        assert_eq!(
            [8, 1000, 1024, 131_072, 1_048_576].map(bytes),
            ["8 B", "1000 B", "1 KiB", "128 KiB", "1 MiB"]
        );
    }
}
