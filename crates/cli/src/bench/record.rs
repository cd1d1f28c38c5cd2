//! One way in one round of one case: what two processes found, as it stands in a row of a CSV file.

use serde::{Deserialize, Serialize};

use super::case::Case;
use super::workload::Outcome;
use crate::args::bench::{Measure, Pin, Way};

/// Units are in the names; without one it is a count.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Record {
    pub round: u32,
    pub way: Way,
    pub measure: Measure,
    pub pin: Pin,
    /// Bytes in a message.
    pub size: usize,
    pub streams: u32,
    pub active: u32,
    pub outstanding: u32,
    pub think_us: u32,
    pub per_second: u32,
    /// Pairs of processes that did the same. What stands below is of all together, times of the slowest.
    #[serde(default = "one")]
    pub pairs: u32,
    /// Operations and bytes in `seconds`, that is, without those that warmed up.
    pub operations: u64,
    pub bytes: u64,
    pub seconds: f64,
    /// One operation, where each was timed.
    pub p50_us: f64,
    pub p90_us: f64,
    pub p99_us: f64,
    /// With those that warmed up, as the CPU time is.
    pub all_operations: u64,
    pub all_bytes: u64,
    pub client_cpu_seconds: f64,
    pub server_cpu_seconds: f64,
    /// Streams that left TCP; absent for ways that have none.
    pub streams_upgraded: Option<u64>,
    /// How long a word took from one core to the other after the turn; absent where both processes share a core.
    #[serde(default)]
    pub apart_ns: Option<f64>,
}

impl Record {
    pub fn new(
        (round, way, case): (u32, Way, Case),
        client: &Outcome,
        server_cpu_seconds: f64,
        streams_upgraded: Option<u64>,
    ) -> Record {
        let Case { measure, pin, size, streams, active, outstanding, think_us, per_second, pairs } =
            case;
        Record {
            round,
            way,
            measure,
            pin,
            size,
            streams,
            active,
            outstanding,
            think_us,
            per_second,
            pairs,
            operations: client.operations,
            bytes: client.bytes,
            seconds: to_nanos(client.seconds),
            p50_us: to_nanos(client.p50_us),
            p90_us: to_nanos(client.p90_us),
            p99_us: to_nanos(client.p99_us),
            all_operations: client.all_operations,
            all_bytes: client.all_bytes,
            client_cpu_seconds: to_nanos(client.cpu_seconds),
            server_cpu_seconds: to_nanos(server_cpu_seconds),
            streams_upgraded,
            apart_ns: None,
        }
    }

    pub fn case(&self) -> Case {
        let Record {
            measure,
            pin,
            size,
            streams,
            active,
            outstanding,
            think_us,
            per_second,
            pairs,
            ..
        } = *self;
        Case { measure, pin, size, streams, active, outstanding, think_us, per_second, pairs }
    }

    /// What is compared, in the case's unit.
    pub fn value(&self) -> f64 {
        match self.measure {
            Measure::Latency | Measure::Think => self.p50_us,
            Measure::Stream => self.bytes as f64 / self.seconds / 1e9,
            Measure::Rate | Measure::Connect | Measure::Streams => {
                self.operations as f64 / self.seconds
            }
            Measure::Idle => self.cpu_seconds() * 1e3 / self.seconds,
        }
    }

    /// Of all processes together.
    pub fn cpu_seconds(&self) -> f64 {
        self.client_cpu_seconds + self.server_cpu_seconds
    }
}

/// Of runs that were recorded before there were several.
fn one() -> u32 {
    1
}

/// Nine digits behind the point: no clock here knows more, and the files stay readable.
fn to_nanos(value: f64) -> f64 {
    (value * 1e9).round() / 1e9
}

#[cfg(test)]
pub mod tests {
    use super::*;

    /// A round of `way` that took a second.
    pub fn record(case: Case, way: Way, p50_us: f64, operations: u64) -> Record {
        let client = Outcome {
            operations,
            bytes: operations * case.size as u64,
            seconds: 1.0,
            p50_us,
            p90_us: p50_us * 2.0,
            p99_us: p50_us * 3.0,
            all_operations: operations * 2,
            all_bytes: operations * 2 * case.size as u64,
            cpu_seconds: 0.5,
        };
        let streams_upgraded = (way == Way::Shunt).then_some(1);
        Record::new((1, way, case), &client, 0.25, streams_upgraded)
    }

    #[test]
    fn the_value_is_what_the_measure_asks_for() {
        let value =
            |measure| record(Case::new(measure, Pin::Two, 1000), Way::Tcp, 7.0, 2_000_000).value();
        assert_eq!(value(Measure::Latency), 7.0);
        assert_eq!(value(Measure::Stream), 2.0);
        assert_eq!(value(Measure::Connect), 2_000_000.0);
        assert_eq!(value(Measure::Idle), 750.0);
    }

    #[test]
    fn a_record_knows_its_case() {
        let case = Case::new(Measure::Streams, Pin::One, 14).over(100, 8, Some(2)).by(3);
        assert_eq!(record(case, Way::Unix, 1.0, 1).case(), case);
    }
}
