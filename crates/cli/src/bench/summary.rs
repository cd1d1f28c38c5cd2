//! What one case came to, with warnings; as a table or JSON.

use serde::Serialize;

use super::case::{name, Case};
use super::line::{lines, Line, Percentiles};
use super::machine;
use super::record::Record;
use crate::args::bench::{Measure, Way};
use crate::child;
use crate::figures::count;

/// More difference than this between rounds of the same way is not the way's doing.
const SPREAD_MAX: f64 = 0.3;

#[derive(Serialize)]
pub struct Summary {
    schema: u32,
    shunt: &'static str,
    #[serde(flatten)]
    case: Case,
    seconds: f64,
    rounds: u32,
    cores: usize,
    kernel: String,
    unit: &'static str,
    warnings: Vec<String>,
    ways: Vec<Line>,
}

impl Summary {
    /// `warnings`: those that came before there were records.
    pub fn new(case: &Case, seconds: f64, warnings: &[String], records: &[Record]) -> Summary {
        let ways = lines(case, records);
        let mut warnings = warnings.to_vec();
        warnings.extend(warnings_about(case, &ways));
        Summary {
            schema: 1,
            shunt: env!("CARGO_PKG_VERSION"),
            case: *case,
            seconds,
            rounds: records.iter().map(|it| it.round).max().unwrap_or(0),
            cores: child::cores().len(),
            kernel: machine::kernel(),
            unit: case.unit(),
            warnings,
            ways,
        }
    }

    pub fn table(&self) -> String {
        let Summary { case, rounds, seconds, .. } = self;
        let (what, cores) = (case.what(), case.cores());
        let mut text =
            format!("{what}, {cores}; medians of {} of {seconds} s\n", count(*rounds, "round"));
        text.push_str(&self.head());
        self.ways.iter().for_each(|line| text.push_str(&self.line(line)));
        text.push_str("CPU is of both processes together.\n");
        for warning in &self.warnings {
            text.push_str(&format!("warning: {warning}\n"));
        }
        text
    }

    fn head(&self) -> String {
        let percentiles = "p50 us       p90 us       p99 us";
        let value = match self.case.measure {
            Measure::Latency | Measure::Think => percentiles.to_owned(),
            Measure::Connect | Measure::Streams => format!("per second       {percentiles}"),
            _ => self.case.unit().to_owned(),
        };
        let cpu = match self.case.measure {
            Measure::Stream => "CPU s/GB",
            Measure::Idle => "",
            _ => "CPU us each",
        };
        format!("{:<6} {value:>width$} {cpu:>12} {:>8}\n", "", "x tcp", width = self.width())
    }

    fn width(&self) -> usize {
        match self.case.measure {
            Measure::Latency | Measure::Think => 38,
            Measure::Connect | Measure::Streams => 51,
            _ => 12,
        }
    }

    fn line(&self, line: &Line) -> String {
        let mut figures = Vec::new();
        if !matches!(self.case.measure, Measure::Latency | Measure::Think) {
            figures.push(line.value);
        }
        if let Some(Percentiles { p50, p90, p99 }) = line.percentiles_us {
            figures.extend([p50, p90, p99]);
        }
        let figures: Vec<String> =
            figures.into_iter().map(|it| format!("{:>12}", short(it))).collect();
        let cpu = match self.case.measure {
            Measure::Stream => short(line.cpu_seconds_per_gb),
            Measure::Idle => String::new(),
            _ => short(line.cpu_us_per_operation),
        };
        let ratio = line.ratio_to_tcp.map_or("-".into(), |ratio| format!("{ratio:.2}"));
        let (way, figures) = (name(line.way), figures.join(" "));
        format!("{way:<6} {figures} {cpu:>12} {ratio:>8}\n")
    }
}

/// What the rounds say about the machine, and about Shunt's streams.
fn warnings_about(case: &Case, ways: &[Line]) -> Vec<String> {
    let of_line = |line| {
        let spread = wide_spread(case, line).map(|percent| {
            let way = name(line.way);
            format!(
                "{way} differed by {percent:.0} % between rounds: the machine is noisy; end other programs, or take more rounds"
            )
        });
        spread.into_iter().chain(warning_about_upgrades(case, line))
    };
    ways.iter().flat_map(of_line).collect()
}

/// By how many percent the rounds differ, if it is more than they may.
pub fn wide_spread(case: &Case, line: &Line) -> Option<f64> {
    let least = line.values.iter().copied().fold(f64::INFINITY, f64::min);
    let most = line.values.iter().copied().fold(0.0, f64::max);
    let spread = (most - least) / line.value;
    // CPU time of nothing is too little to be compared.
    (spread > SPREAD_MAX && case.measure != Measure::Idle).then_some(spread * 100.0)
}

pub fn warning_about_upgrades(case: &Case, line: &Line) -> Option<String> {
    if line.way != Way::Shunt || case.is_too_short_to_upgrade() {
        return None;
    }
    // Each of the two processes counts its end.
    let ends = u64::from(case.streams) * 2 * line.values.len() as u64;
    match line.streams_upgraded? {
        0 => Some("no stream of shunt was upgraded, so this is kernel TCP".into()),
        some if some < ends => {
            Some(format!("{some} of {ends} ends of shunt's streams were upgraded"))
        }
        _ => None,
    }
}

/// Three digits or so.
pub fn short(value: f64) -> String {
    match value {
        value if value >= 100.0 => format!("{value:.0}"),
        value if value >= 10.0 => format!("{value:.1}"),
        value if value >= 0.1 => format!("{value:.2}"),
        value => format!("{value:.4}"),
    }
}

#[cfg(test)]
mod tests {
    use super::super::record::tests::record;
    use super::*;
    use crate::args::bench::Pin;

    #[test]
    fn rounds_that_differ_and_streams_on_tcp_are_told() {
        let case = Case::new(Measure::Latency, Pin::Two, 14);
        let mut still_tcp = record(case, Way::Shunt, 10.0, 1);
        still_tcp.streams_upgraded = Some(0);
        let records = [record(case, Way::Tcp, 10.0, 1), record(case, Way::Tcp, 20.0, 1), still_tcp];
        let warnings = warnings_about(&case, &lines(&case, &records));
        assert_eq!(warnings.len(), 2, "{warnings:?}");
        assert!(warnings[0].contains("tcp differed by 67 %"), "{warnings:?}");
        assert!(warnings[1].contains("no stream of shunt"), "{warnings:?}");
    }

    #[test]
    fn the_table_has_a_line_for_each_way() {
        let case = Case::new(Measure::Stream, Pin::Two, 1000);
        let records = [record(case, Way::Tcp, 0.0, 1000), record(case, Way::Copy, 0.0, 4000)];
        let table = Summary::new(&case, 1.0, &["mind".into()], &records).table();
        let lines: Vec<&str> = table.lines().collect();
        assert_eq!(lines[0], "one stream, 1000 bytes, a core each; medians of 1 round of 1 s");
        assert!(lines[2].starts_with("tcp ") && lines[2].ends_with("1.00"), "{table}");
        assert!(lines[3].starts_with("copy ") && lines[3].ends_with("4.00"), "{table}");
        assert_eq!(lines.last(), Some(&"warning: mind"));
    }
}
