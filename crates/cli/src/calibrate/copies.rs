//! How fast messages of each size go from one process to another: copied into shared memory and out of it,
//! and copied once, by `process_vm_readv`. Both are ways of `shunt bench stream`.

use anyhow::Result;

use super::calibration::Copies;
use crate::args::bench::{Measure, Pin, Way};
use crate::bench::{progress, Case, Meeting, Turn};
use crate::figures::median;
use crate::interrupt;

const SIZES: [u32; 8] = [64, 256, 1024, 4096, 16_384, 65_536, 262_144, 1_048_576];
const ROUNDS: u32 = 3;
const SECONDS: f64 = 0.05;

pub fn measure() -> Result<Vec<Copies>> {
    let meeting = Meeting::new()?;
    let mut rates = vec![[Vec::new(), Vec::new()]; SIZES.len()];
    for round in 1..=ROUNDS {
        progress(&format!("copies, round {round} of {ROUNDS}"));
        for (size, [two, one]) in SIZES.into_iter().zip(&mut rates) {
            two.push(rate(&meeting, round, Way::Copy, size)?);
            // It may be forbidden; then there is no figure.
            one.extend(rate(&meeting, round, Way::Single, size));
            interrupt::check()?;
        }
    }
    progress("");
    let of_size = |(bytes, [two, one]): (u32, &[Vec<f64>; 2])| Copies {
        bytes,
        two_copies: median(two).unwrap_or(0.0).round(),
        one_copy: median(one).map(f64::round),
    };
    Ok(SIZES.into_iter().zip(&rates).map(of_size).collect())
}

/// Bytes a second.
fn rate(meeting: &Meeting, round: u32, way: Way, size: u32) -> Result<f64> {
    let case = Case::new(Measure::Stream, Pin::Two, size);
    let record = meeting.run(&Turn { round, way, case, seconds: SECONDS })?;
    Ok(record.bytes as f64 / record.seconds)
}
