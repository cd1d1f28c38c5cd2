//! `start`: how long a program takes that does nothing, from fork to its end.

use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{ensure, Context, Result};

use super::{Mode, Timing};
use crate::bench::pair::preload;
use crate::figures::median;
use crate::library::PRELOAD_VARIABLE;

const PROGRAM: &str = "/bin/true";
/// Of the first runs, which read files that the later ones find in memory.
const NOT_COUNTED: usize = 3;

pub fn take(mode: Mode, seconds: f64) -> Result<Vec<Timing>> {
    let mut command = Command::new(PROGRAM);
    command.stdin(Stdio::null()).env_remove(PRELOAD_VARIABLE);
    if mode == Mode::Shunt {
        command.env(PRELOAD_VARIABLE, preload()?);
    }
    let (start, mut times) = (Instant::now(), Vec::new());
    while start.elapsed().as_secs_f64() < seconds || times.len() <= NOT_COUNTED {
        let before = Instant::now();
        let status = command.status().with_context(|| format!("cannot start {PROGRAM}"))?;
        times.push(before.elapsed().as_secs_f64() * 1e6);
        ensure!(status.success(), "{PROGRAM} failed ({status})");
    }
    let value = median(&times[NOT_COUNTED..]).unwrap_or(0.0);
    let what = format!("start and end of {PROGRAM}");
    Ok(vec![Timing { what, value, unit: "us", streams_upgraded: 0 }])
}
