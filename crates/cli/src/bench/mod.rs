//! `shunt bench`: kernel TCP, Unix socket, bare ring and Shunt side by side.
//!
//! Two processes carry out a workload, once for each way and round; ways take turns within a round,
//! so that what disturbs the machine disturbs all of them. The two are this executable again, with
//! a hidden command. The bare ring is the upper bound: what Shunt's ring does without sockets.

mod histogram;
mod meeting;
mod pair;
mod ring;
mod summary;
mod workload;

use std::io::IsTerminal;

use anyhow::{bail, Result};

use crate::args::{self, Measure, Way};
use crate::interrupt;
use crate::library::{self, Library};
use pair::Pair;
use summary::Summary;

pub use workload::peer;

pub fn bench(args: &args::Bench) -> Result<()> {
    if !(args.seconds > 0.0 && args.seconds <= 3600.0) {
        bail!("--seconds must be more than 0 and at most 3600");
    }
    interrupt::watch();
    let mut summary = Summary::new(args, size(args));
    let ways = ways(args, &mut summary);
    if ways.is_empty() {
        bail!("nothing to measure: {}", summary.warnings().join("; "));
    }
    let pair = Pair::new(args, size(args))?;
    for round in 1..=args.rounds {
        for way in &ways {
            progress(&format!("round {round} of {}: {}", args.rounds, summary::name(*way)));
            let sample = pair.run(*way);
            interrupt::check()?;
            summary.add(*way, sample?);
        }
    }
    progress("");
    drop(pair);
    summary.finish();
    if args.json {
        println!("{}", serde_json::to_string_pretty(&summary)?);
    } else {
        print!("{}", summary.table());
    }
    Ok(())
}

/// One line on a terminal that replaces the one before.
fn progress(text: &str) {
    if std::io::stderr().is_terminal() {
        eprint!("\r{text:<40}\r");
    }
}

/// The ways that make sense for the measure and can be had.
fn ways(args: &args::Bench, summary: &mut Summary) -> Vec<Way> {
    let all = [Way::Tcp, Way::Unix, Way::Ring, Way::Shunt];
    let mut ways = if args.only.is_empty() { all.to_vec() } else { args.only.clone() };
    if args.measure == Measure::Connect {
        // A bare ring has no connections.
        ways.retain(|way| *way != Way::Ring);
    }
    if ways.contains(&Way::Shunt) {
        let obstacle = match library::find() {
            Ok(Library::At(_)) => return ways,
            Ok(Library::BadSetting(path)) => format!("{} is not readable", path.display()),
            Err(error) => format!("{error:#}"),
        };
        summary.warn(format!("shunt is left out: {obstacle}"));
        ways.retain(|way| *way != Way::Shunt);
    }
    ways
}

fn size(args: &args::Bench) -> usize {
    let usual = if args.measure == Measure::Stream { 128 * 1024 } else { 14 };
    args.size.map_or(usual, |size| size as usize)
}
