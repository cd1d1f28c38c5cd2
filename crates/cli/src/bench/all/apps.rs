//! Real programs: the recipes of `shunt demo`.

use anyhow::Result;

use crate::args::Demo;
use crate::bench::against::{Mode, Trial};
use crate::demo::{self, Row};

/// Every round, and a line for each program that is not there or failed. Quickly, only what `shunt
/// demo` usually plays.
pub fn take(rounds: u32, seconds: u32, is_quick: bool) -> Result<(Vec<Trial>, Vec<String>)> {
    let (rows, mut left_out) = demo::play(&Demo {
        only: Vec::new(),
        measure: String::new(),
        all: !is_quick,
        rounds,
        seconds,
        one_side: false,
        json: false,
        plain_only: false,
    })?;
    let failures =
        rows.iter().filter_map(|row| Some(format!("{}: {}", row.name(), row.failure()?)));
    left_out.extend(failures);
    Ok((rows.iter().flat_map(trials).collect(), left_out))
}

fn trials(row: &Row) -> Vec<Trial> {
    let trial = |round: demo::Round| {
        let mode = match round.mode {
            demo::Mode::Plain => Mode::Plain,
            demo::Mode::Accelerated => Mode::Shunt,
            // One end alone is not compared here.
            demo::Mode::ServerAlone | demo::Mode::ClientAlone => return None,
        };
        Some(Trial {
            round: round.number,
            what: row.name().to_owned(),
            mode,
            value: round.value,
            unit: row.unit().to_owned(),
            smaller_is_better: row.smaller_is_better(),
            streams_eligible: round.streams.eligible,
            streams_upgraded: round.streams.upgraded,
            apart_ns: round.apart_ns,
        })
    };
    row.rounds().into_iter().filter_map(trial).collect()
}
