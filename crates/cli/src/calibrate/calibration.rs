//! What one machine was found to be like, and what follows from it. Pure.

use serde::{Deserialize, Serialize};

use super::wake::{Batch, Wakes};
use crate::figures::median;

/// Of the stored file; whoever changes what a field means counts it up.
pub const FORMAT: u32 = 1;
/// The longest spin that the library understands (`SHUNT_SPIN_NS`).
pub const SPIN_NS_MAX: u32 = 1_000_000;
/// A useful spin is within these, whatever was measured: looking once takes almost the shorter one, and
/// a machine that takes longer than the longer one to wake somebody was busy.
const USEFUL_SPIN_NS: (f64, f64) = (10_000.0, 100_000.0);
/// A sleep costs its delay and the work of both sides, which together are about this many times the
/// delay. A spin that lasts no longer loses nothing by being in vain every other time.
const SPIN_PER_HALF_TRIP: f64 = 1.5;
/// Batches whose middle half lies further apart than this were disturbed.
const SPREAD_PERCENT_MAX: u32 = 40;
/// Others that run in more batches than this disturb.
const BUSY_PERCENT_MAX: u32 = 25;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Calibration {
    pub format: u32,
    /// Only what the library uses was measured, and shortly.
    pub quick: bool,
    /// The day, in UTC.
    pub date: String,
    /// The version that measured.
    pub shunt: String,
    pub cpu: String,
    /// Those that the measuring process might use.
    pub cores: usize,
    /// The longest spin of a wait that pays here, in nanoseconds; absent where there is one core.
    pub useful_spin_ns: Option<u32>,
    pub wake: Option<Wake>,
    /// By size.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub copy: Vec<Copies>,
}

/// Medians of batches, in nanoseconds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Wake {
    /// Half of a round trip between two that sleep for each other.
    pub half_trip_two_cores_ns: Option<u32>,
    pub half_trip_one_core_ns: Option<u32>,
    /// What the caller spends in the call that wakes one on another core.
    pub waker_ns: Option<u32>,
    pub batches: usize,
    /// Between the first and the third quartile of the batches on two cores, as a share of their median.
    pub spread_percent: u32,
    /// In how many of a hundred batches on two cores other programs were running.
    pub busy_percent: u32,
}

/// One stream of messages of one size, in bytes a second.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Copies {
    pub bytes: u32,
    /// Into shared memory and out of it.
    pub two_copies: f64,
    /// By `process_vm_readv`; absent where that is not allowed.
    pub one_copy: Option<f64>,
}

/// From which size on one copy is faster than two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Crossover {
    From(u32),
    Never,
    /// One copy is not allowed, or nothing was measured.
    Unknown,
}

impl Wake {
    pub fn new(wakes: &Wakes) -> Wake {
        let Wakes { two_cores, one_core } = wakes;
        let half = |batch: &Batch| batch.half_ns;
        Wake {
            half_trip_two_cores_ns: median_ns(two_cores, half),
            half_trip_one_core_ns: median_ns(one_core, half),
            waker_ns: median_ns(two_cores, |batch| batch.waker_ns),
            batches: two_cores.len().max(one_core.len()),
            spread_percent: spread_percent(two_cores.iter().map(half).collect()),
            busy_percent: percent(
                two_cores.iter().filter(|it| it.is_busy).count(),
                two_cores.len(),
            ),
        }
    }

    /// 1.5 times the half of a round trip on two cores.
    pub fn useful_spin_ns(&self) -> Option<u32> {
        let (least, most) = USEFUL_SPIN_NS;
        let spin_ns = SPIN_PER_HALF_TRIP * f64::from(self.half_trip_two_cores_ns?);
        Some(spin_ns.clamp(least, most) as u32)
    }

    /// Why these figures are not to be relied on.
    pub fn doubt(&self) -> Option<String> {
        let Wake { spread_percent: spread, busy_percent: busy, .. } = self;
        if *busy > BUSY_PERCENT_MAX {
            return Some(format!("other programs were running in {busy} of 100 batches"));
        }
        (*spread > SPREAD_PERCENT_MAX)
            .then(|| format!("the middle half of the batches differs by {spread} %"))
    }
}

impl Calibration {
    pub fn crossover(&self) -> Crossover {
        let wins = |copies: &Copies| Some(copies.one_copy? > copies.two_copies);
        if self.copy.is_empty() || self.copy.iter().any(|copies| wins(copies).is_none()) {
            return Crossover::Unknown;
        }
        let won = self.copy.iter().rev().take_while(|copies| wins(copies) == Some(true));
        won.last().map_or(Crossover::Never, |copies| Crossover::From(copies.bytes))
    }

    /// Whether this command understands it, and it is about a machine with this processor.
    pub fn holds_for(&self, cpu: &str) -> bool {
        self.format == FORMAT
            && self.cpu == cpu
            && self.useful_spin_ns.is_none_or(|spin_ns| spin_ns <= SPIN_NS_MAX)
    }
}

fn median_ns(batches: &[Batch], of: impl Fn(&Batch) -> f64) -> Option<u32> {
    let values: Vec<f64> = batches.iter().map(of).collect();
    median(&values).map(|value| value as u32)
}

fn percent(part: usize, all: usize) -> u32 {
    (part * 100).checked_div(all).unwrap_or(0) as u32
}

fn spread_percent(mut values: Vec<f64>) -> u32 {
    values.sort_by(f64::total_cmp);
    let Some(median) = median(&values) else { return 0 };
    let quartile = |quarter: usize| values[(values.len() - 1) * quarter / 4];
    ((quartile(3) - quartile(1)) / median * 100.0) as u32
}

#[cfg(test)]
pub mod tests {
    use super::*;

    pub fn example() -> Calibration {
        Calibration {
            format: FORMAT,
            quick: false,
            date: "2026-03-14".into(),
            shunt: "0.1.0".into(),
            cpu: "Some CPU".into(),
            cores: 2,
            useful_spin_ns: Some(36_000),
            wake: Some(wake(24_000)),
            copy: vec![copies(64, 1.0, Some(0.1)), copies(4096, 2.0, Some(1.0))],
        }
    }

    fn wake(half_ns: u32) -> Wake {
        Wake {
            half_trip_two_cores_ns: Some(half_ns),
            half_trip_one_core_ns: Some(2_500),
            waker_ns: Some(9_000),
            batches: 10,
            spread_percent: 4,
            busy_percent: 0,
        }
    }

    fn copies(bytes: u32, two_copies: f64, one_copy: Option<f64>) -> Copies {
        Copies { bytes, two_copies, one_copy }
    }

    fn batches(halves: &[f64]) -> Vec<Batch> {
        let batch = |half_ns: &f64| Batch {
            half_ns: *half_ns,
            waker_ns: half_ns / 3.0,
            is_busy: *half_ns > 800e3,
        };
        halves.iter().map(batch).collect()
    }

    #[test]
    fn a_spin_is_half_as_long_again_as_half_a_round_trip_within_bounds() {
        assert_eq!(wake(32_000).useful_spin_ns(), Some(48_000));
        assert_eq!(wake(4_000).useful_spin_ns(), Some(10_000));
        assert_eq!(wake(500_000).useful_spin_ns(), Some(100_000));
        let one_core = Wake { half_trip_two_cores_ns: None, ..wake(0) };
        assert_eq!(one_core.useful_spin_ns(), None);
    }

    #[test]
    fn medians_and_quartiles_are_of_the_batches() {
        let two_cores = batches(&[30e3, 20e3, 24e3, 900e3, 21e3]);
        let wakes = Wakes { two_cores, one_core: batches(&[2e3, 3e3]) };
        let wake = Wake::new(&wakes);
        assert_eq!(wake.half_trip_two_cores_ns, Some(24_000));
        assert_eq!(wake.half_trip_one_core_ns, Some(2_500));
        assert_eq!(wake.waker_ns, Some(8_000));
        assert_eq!((wake.batches, wake.spread_percent, wake.busy_percent), (5, 37, 20));
    }

    #[test]
    fn what_differs_much_or_was_disturbed_is_doubted() {
        assert_eq!(wake(1).doubt(), None);
        let wide = Wake { spread_percent: 60, ..wake(1) };
        assert!(wide.doubt().is_some_and(|why| why.contains("60 %")));
        let busy = Wake { busy_percent: 80, ..wake(1) };
        assert!(busy.doubt().is_some_and(|why| why.contains("80 of 100")));
    }

    #[test]
    fn one_copy_wins_from_where_it_wins_for_good() {
        let crossover = |one_copy: [Option<f64>; 4]| {
            let sizes = [64, 1024, 16_384, 262_144].into_iter().zip(one_copy);
            let copy = sizes.map(|(bytes, one)| copies(bytes, 5.0, one)).collect();
            Calibration { copy, ..example() }.crossover()
        };
        let some = |values: [f64; 4]| values.map(Some);
        assert_eq!(crossover(some([1.0, 2.0, 6.0, 7.0])), Crossover::From(16_384));
        assert_eq!(crossover(some([1.0, 6.0, 4.0, 7.0])), Crossover::From(262_144));
        assert_eq!(crossover(some([6.0, 6.0, 6.0, 6.0])), Crossover::From(64));
        assert_eq!(crossover(some([9.0, 9.0, 9.0, 5.0])), Crossover::Never);
        assert_eq!(crossover([Some(1.0), None, None, None]), Crossover::Unknown);
        assert_eq!(Calibration { copy: vec![], ..example() }.crossover(), Crossover::Unknown);
    }

    #[test]
    fn it_holds_for_its_format_and_processor() {
        assert!(example().holds_for("Some CPU"));
        assert!(!example().holds_for("Other CPU"));
        assert!(!Calibration { format: FORMAT + 1, ..example() }.holds_for("Some CPU"));
        let absurd = Calibration { useful_spin_ns: Some(SPIN_NS_MAX + 1), ..example() };
        assert!(!absurd.holds_for("Some CPU"));
    }
}
