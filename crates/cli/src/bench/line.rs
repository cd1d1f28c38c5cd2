//! The rounds of one way of a case together: medians, and CPU time for each operation and byte.

use serde::Serialize;

use super::case::Case;
use super::record::Record;
use crate::args::bench::{Measure, Way};
use crate::figures;

#[derive(Serialize)]
pub struct Line {
    pub way: Way,
    /// Median over the rounds of what the measure asks for, in its unit.
    pub value: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub percentiles_us: Option<Percentiles>,
    /// How many times better than kernel TCP.
    pub ratio_to_tcp: Option<f64>,
    /// How much of what the bare ring reaches.
    pub share_of_ring: Option<f64>,
    /// Of both processes together, over all rounds.
    pub cpu_seconds: f64,
    pub cpu_us_per_operation: f64,
    pub cpu_seconds_per_gb: f64,
    pub operations: u64,
    pub bytes: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub streams_upgraded: Option<u64>,
    pub values: Vec<f64>,
}

#[derive(Serialize, Clone, Copy, PartialEq, Debug)]
pub struct Percentiles {
    pub p50: f64,
    pub p90: f64,
    pub p99: f64,
}

/// One for each way that the records have for this case, in the order in which they first stand.
pub fn lines(case: &Case, records: &[Record]) -> Vec<Line> {
    let records: Vec<&Record> = records.iter().filter(|it| it.case() == *case).collect();
    let mut lines: Vec<Line> = Vec::new();
    for record in &records {
        if !lines.iter().any(|line| line.way == record.way) {
            let rounds = records.iter().copied().filter(|it| it.way == record.way);
            lines.push(line(case, record.way, &rounds.collect::<Vec<_>>()));
        }
    }
    let value = |way| lines.iter().find(|line| line.way == way).map(|line| line.value);
    let (tcp, ring) = (value(Way::Tcp), value(Way::Ring));
    for line in &mut lines {
        line.ratio_to_tcp = tcp.and_then(|tcp| times_better(case, line.value, tcp));
        line.share_of_ring = ring.and_then(|ring| times_better(case, line.value, ring));
    }
    lines
}

fn line(case: &Case, way: Way, rounds: &[&Record]) -> Line {
    let values: Vec<f64> = rounds.iter().map(|it| it.value()).collect();
    let cpu_seconds: f64 = rounds.iter().map(|it| it.cpu_seconds()).sum();
    let operations: u64 = rounds.iter().map(|it| it.all_operations).sum();
    let bytes: u64 = rounds.iter().map(|it| it.all_bytes).sum();
    Line {
        way,
        value: median(values.iter().copied()),
        percentiles_us: case.has_percentiles().then(|| percentiles(rounds)),
        ratio_to_tcp: None,
        share_of_ring: None,
        cpu_seconds,
        cpu_us_per_operation: cpu_seconds * 1e6 / operations.max(1) as f64,
        cpu_seconds_per_gb: cpu_seconds * 1e9 / bytes.max(1) as f64,
        operations,
        bytes,
        streams_upgraded: rounds.iter().filter_map(|it| it.streams_upgraded).reduce(|a, b| a + b),
        values,
    }
}

fn percentiles(rounds: &[&Record]) -> Percentiles {
    let of = |pick: fn(&Record) -> f64| median(rounds.iter().map(|it| pick(it)));
    Percentiles { p50: of(|it| it.p50_us), p90: of(|it| it.p90_us), p99: of(|it| it.p99_us) }
}

/// `None` where one of them is too small to be known, as CPU time of nothing always is.
fn times_better(case: &Case, mine: f64, other: f64) -> Option<f64> {
    if case.measure == Measure::Idle {
        return None;
    }
    let ratio = if case.smaller_is_better() { other / mine } else { mine / other };
    Some(ratio).filter(|ratio| ratio.is_finite() && *ratio > 0.0)
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    figures::median(&values.collect::<Vec<_>>()).unwrap_or(0.0)
}

#[cfg(test)]
mod tests {
    use super::super::record::tests::record;
    use super::*;
    use crate::args::bench::Pin;

    #[test]
    fn rounds_become_medians_and_ratios() {
        let case = Case::new(Measure::Latency, Pin::Two, 14);
        let other = Case::new(Measure::Latency, Pin::One, 14);
        let records = [
            record(case, Way::Tcp, 30.0, 10),
            record(case, Way::Shunt, 1.0, 1000),
            record(other, Way::Shunt, 77.0, 1000),
            record(case, Way::Tcp, 20.0, 10),
            record(case, Way::Shunt, 3.0, 1000),
            record(case, Way::Tcp, 40.0, 10),
            record(case, Way::Shunt, 2.0, 1000),
        ];
        let lines = lines(&case, &records);
        assert_eq!(lines.iter().map(|it| it.way).collect::<Vec<_>>(), [Way::Tcp, Way::Shunt]);
        assert_eq!(lines[1].value, 2.0);
        assert_eq!(lines[1].values, [1.0, 3.0, 2.0]);
        assert_eq!(lines[1].percentiles_us, Some(Percentiles { p50: 2.0, p90: 4.0, p99: 6.0 }));
        assert_eq!(lines[1].ratio_to_tcp, Some(15.0));
        assert_eq!(lines[1].share_of_ring, None);
        assert_eq!((lines[0].streams_upgraded, lines[1].streams_upgraded), (None, Some(3)));
        // 0.75 s a round, over the operations with those that warmed up.
        assert_eq!(lines[0].cpu_us_per_operation, 37_500.0);
    }

    #[test]
    fn more_is_better_for_rates() {
        let case = Case::new(Measure::Rate, Pin::Two, 14);
        let records = [
            record(case, Way::Tcp, 0.0, 100),
            record(case, Way::Ring, 0.0, 400),
            record(case, Way::Shunt, 0.0, 300),
        ];
        let lines = lines(&case, &records);
        assert_eq!((lines[2].ratio_to_tcp, lines[2].share_of_ring), (Some(3.0), Some(0.75)));
        assert_eq!(lines[2].percentiles_us, None);
    }

    #[test]
    fn nothing_is_compared_with_nothing() {
        let latency = Case::new(Measure::Latency, Pin::Two, 14);
        assert_eq!(times_better(&latency, 0.0, 1.0), None);
        assert_eq!(times_better(&latency, 1.0, 0.0), None);
        let idle = Case::new(Measure::Idle, Pin::Two, 14);
        assert_eq!(times_better(&idle, 1.0, 2.0), None);
    }
}
