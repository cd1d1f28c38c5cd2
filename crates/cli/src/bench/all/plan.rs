//! What `shunt bench all` measures, as a whole and quickly.

use clap::ValueEnum;

use crate::args::bench::{All, Measure, Part, Pin, ALL_SIZES};
use crate::bench::Case;

/// Bytes in a message where size is not what is compared.
pub const SMALL: u32 = 8;
/// Bytes in a write where bandwidth is all that counts.
pub const LARGE: u32 = 131_072;
/// Streams that are active where many are.
pub const MANY_ACTIVE: u32 = 100;
/// Idle streams use so little that it takes a while to show, and to outweigh the messages around it.
const IDLE_SECONDS_MIN: f64 = 5.0;

pub struct Plan {
    pub rounds: u32,
    pub is_quick: bool,
    seconds: f64,
    only: Vec<Part>,
}

impl Plan {
    pub fn new(args: &All) -> Plan {
        let (rounds, seconds) = if args.quick { (1, 0.3) } else { (5, 0.5) };
        Plan {
            rounds: args.rounds.unwrap_or(rounds),
            is_quick: args.quick,
            seconds: args.seconds.unwrap_or(seconds),
            only: args.only.clone(),
        }
    }

    pub fn parts(&self) -> Vec<Part> {
        let is_chosen = |part: &&Part| self.only.is_empty() || self.only.contains(part);
        Part::value_variants().iter().filter(is_chosen).copied().collect()
    }

    /// How long one round of one way takes.
    pub fn seconds(&self, part: Part) -> f64 {
        match part {
            Part::Idle => self.seconds.max(IDLE_SECONDS_MIN),
            _ => self.seconds,
        }
    }

    /// How long one round of one program takes.
    pub fn app_seconds(&self) -> u32 {
        if self.is_quick {
            1
        } else {
            2
        }
    }

    /// What is measured of a part that has cases.
    pub fn cases(&self, part: Part) -> Vec<Case> {
        let case = |measure, size| Case::new(measure, Pin::Two, size);
        let on_one_core = |case: Case| Case { pin: Pin::One, ..case };
        match part {
            Part::Latency => {
                let small = case(Measure::Latency, SMALL);
                let sizes = self.sizes().into_iter().map(|size| case(Measure::Latency, size));
                sizes.chain([on_one_core(small)]).collect()
            }
            Part::Stream => {
                let large = case(Measure::Stream, LARGE);
                let sizes = self.sizes().into_iter().map(|size| case(Measure::Stream, size));
                sizes.chain([on_one_core(large)]).collect()
            }
            Part::Rate => {
                let small = case(Measure::Rate, SMALL);
                vec![small, on_one_core(small)]
            }
            Part::Connect => vec![case(Measure::Connect, SMALL)],
            Part::Streams => self.streams(case(Measure::Streams, SMALL)),
            Part::Think => {
                let pauses = if self.is_quick { &[0, 100][..] } else { &[0, 10, 100, 1000] };
                let thinking = case(Measure::Think, SMALL);
                let paused = pauses.iter().map(|us| thinking.thinking(*us));
                paused.chain([thinking.paced(1000)]).collect()
            }
            Part::Idle => {
                let counts = if self.is_quick { &[1, 1000][..] } else { &[1, 1000, 10_000] };
                let idle = case(Measure::Idle, SMALL);
                counts.iter().map(|streams| idle.over(*streams, 1, None)).collect()
            }
            Part::Passthrough | Part::Start | Part::Apps => Vec::new(),
        }
    }

    fn sizes(&self) -> Vec<u32> {
        if self.is_quick {
            vec![SMALL, 4096, LARGE, 1_048_576]
        } else {
            ALL_SIZES.to_vec()
        }
    }

    /// One message at a time over eight streams; then one active stream of many, and many; then eight
    /// processes on one core.
    fn streams(&self, case: Case) -> Vec<Case> {
        let counts = if self.is_quick { &[8, 1000][..] } else { &[8, 100, 1000, 10_000] };
        let of_many =
            |streams: &u32| [case.over(*streams, 1, None), case.over(*streams, MANY_ACTIVE, None)];
        let eight = case.over(8, 8, Some(1));
        let crowd = Case { pin: Pin::One, ..case }.over(1, 1, None).by(4);
        let many = counts.iter().flat_map(of_many);
        std::iter::once(eight).chain(many).chain([crowd]).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(quick: bool, only: Vec<Part>) -> Plan {
        Plan::new(&All { out: None, rounds: None, seconds: None, only, quick })
    }

    #[test]
    fn a_quick_run_is_a_part_of_a_whole_one() {
        let (quick, whole) = (plan(true, vec![]), plan(false, vec![]));
        assert!(quick.rounds < whole.rounds);
        for part in whole.parts() {
            let (few, all) = (quick.cases(part), whole.cases(part));
            assert!(few.iter().all(|case| all.contains(case)), "{part:?}");
        }
    }

    #[test]
    fn no_case_is_measured_twice() {
        for part in Part::value_variants() {
            let cases = plan(false, vec![]).cases(*part);
            let firsts = cases.iter().enumerate().filter(|(at, case)| !cases[..*at].contains(case));
            assert_eq!(firsts.count(), cases.len(), "{part:?}");
        }
    }

    #[test]
    fn parts_can_be_chosen() {
        assert_eq!(plan(true, vec![Part::Start, Part::Rate]).parts(), [Part::Rate, Part::Start]);
        assert_eq!(plan(true, vec![]).parts().len(), 10);
    }
}
