//! `shunt bench`: kernel TCP, Unix socket, bare ring and Shunt side by side.
//!
//! Two processes carry out a workload, once for each way and round; ways take turns within a round,
//! so that what disturbs the machine disturbs all of them. The two are this executable again, with
//! a hidden command. The bare ring is the upper bound: what Shunt's ring does without sockets.
//! `against` compares what one process does, plain and with the library.

mod against;
mod all;
mod case;
mod copy;
mod epoll;
mod histogram;
mod line;
pub mod machine;
mod mapping;
mod meeting;
mod pair;
mod record;
mod ring;
mod single;
mod summary;
mod workload;

use std::io::IsTerminal;

use anyhow::{bail, Result};

use crate::args::bench::{Bench, Idle, Measure, Pin, Sized, Streams, Taking, Think, Way, What};
use crate::library::{self, Library};
use crate::{apart, interrupt};
use case::name;
use record::Record;
use summary::Summary;

pub use against::alone as calls_alone;
pub use case::Case;
pub use pair::{Meeting, Turn};
pub use workload::peer;

pub fn bench(args: &Bench) -> Result<()> {
    interrupt::watch();
    match &args.what {
        What::Latency(args) => sized(Measure::Latency, 14, args),
        What::Stream(args) => sized(Measure::Stream, 128 * 1024, args),
        What::Rate(args) => sized(Measure::Rate, 14, args),
        What::Connect(args) => sized(Measure::Connect, 14, args),
        What::Streams(args) => streams(args),
        What::Think(args) => think(args),
        What::Idle(args) => idle(args),
        What::Passthrough(args) => against::passthrough(args),
        What::Start(args) => against::start(args),
        What::All(args) => all::all(args),
        What::Table(args) => all::table(args),
    }
}

fn sized(measure: Measure, usual: u32, args: &Sized) -> Result<()> {
    let case = |size| Case::new(measure, args.taking.pin, size);
    show(args.bytes(usual).into_iter().map(case).collect(), &args.taking)
}

fn streams(args: &Streams) -> Result<()> {
    let case = Case::new(Measure::Streams, args.taking.pin, args.size).by(args.pairs);
    let over = |streams: &u32| case.over(*streams, args.active, args.outstanding);
    show(args.streams.iter().map(over).collect(), &args.taking)
}

fn think(args: &Think) -> Result<()> {
    let case = Case::new(Measure::Think, args.taking.pin, args.size);
    let paced = Some(args.per_second).filter(|rate| *rate > 0);
    let thinking = args.think_us.iter().map(|us| case.thinking(*us));
    show(thinking.chain(paced.map(|rate| case.paced(rate))).collect(), &args.taking)
}

fn idle(args: &Idle) -> Result<()> {
    let case = Case::new(Measure::Idle, args.taking.pin, 14);
    show(args.streams.iter().map(|streams| case.over(*streams, 1, None)).collect(), &args.taking)
}

/// Measures some cases and prints what they came to.
fn show(cases: Vec<Case>, args: &Taking) -> Result<()> {
    let (ways, mut warnings) = ways(&args.only);
    let (cases, obstacles) = possible(cases);
    warnings.extend(obstacles);
    let is_taken = |way: &Way| cases.iter().any(|case| case.ways().contains(way));
    if !ways.iter().any(is_taken) {
        warnings.push("no way that is left makes sense here".into());
        bail!("nothing to measure: {}", warnings.join("; "));
    }
    warnings.extend(machine::warnings());
    if args.pin == Pin::Two && crate::child::cores().len() < 2 {
        warnings.push("there is one core only, so both processes share it".into());
    }
    let turns = Turns { cases: &cases, ways: &ways, rounds: args.rounds, seconds: args.seconds };
    let (records, failures) = turns.take()?;
    if let Some(failure) = failures.first() {
        bail!("{failure}");
    }
    let summary = |case| Summary::new(case, args.seconds, &warnings, &records);
    print(&cases.iter().map(summary).collect::<Vec<_>>(), args.json)
}

fn print(summaries: &[Summary], as_json: bool) -> Result<()> {
    match summaries {
        [one] if as_json => println!("{}", serde_json::to_string_pretty(one)?),
        several if as_json => println!("{}", serde_json::to_string_pretty(several)?),
        _ => {
            let tables: Vec<String> = summaries.iter().map(Summary::table).collect();
            print!("{}", tables.join("\n"));
        }
    }
    Ok(())
}

/// The ways that can be had of those that were asked for, and why the others cannot.
fn ways(only: &[Way]) -> (Vec<Way>, Vec<String>) {
    // What copies once is no carrier of ours, so only who asks for it gets it.
    let all = [Way::Tcp, Way::Unix, Way::Ring, Way::Shunt, Way::Copy];
    let mut ways = if only.is_empty() { all.to_vec() } else { only.to_vec() };
    let obstacle = match obstacle_to_shunt() {
        Some(obstacle) if ways.contains(&Way::Shunt) => obstacle,
        _ => return (ways, Vec::new()),
    };
    ways.retain(|way| *way != Way::Shunt);
    (ways, vec![format!("shunt is left out: {obstacle}")])
}

/// Why nothing can be measured with the library.
fn obstacle_to_shunt() -> Option<String> {
    match library::find() {
        Ok(Library::At(_)) => None,
        Ok(Library::BadSetting(path)) => Some(format!("{} is not readable", path.display())),
        Err(error) => Some(format!("{error:#}")),
    }
}

/// The cases that this machine allows, and why it does not allow the others.
fn possible(cases: Vec<Case>) -> (Vec<Case>, Vec<String>) {
    let mut obstacles = Vec::new();
    let is_possible = |case: &Case| match machine::obstacle_to(case.streams) {
        None => true,
        Some(obstacle) => {
            obstacles.push(format!("left out: {}: {obstacle}", case.what()));
            false
        }
    };
    (cases.into_iter().filter(is_possible).collect(), obstacles)
}

/// What is taken in turn: in each round every way of every case.
struct Turns<'a> {
    cases: &'a [Case],
    ways: &'a [Way],
    rounds: u32,
    seconds: f64,
}

/// So often the ways of a case are taken in a round, if the host moves the cores meanwhile.
const TRIES_MAX: u32 = 8;

impl Turns<'_> {
    /// What was found, and a line for each turn that failed. Only an interruption ends them.
    fn take(&self) -> Result<(Vec<Record>, Vec<String>)> {
        let meeting = Meeting::new()?;
        let (mut records, mut failures) = (Vec::new(), Vec::new());
        for round in 1..=self.rounds {
            for case in self.cases {
                let (found, failed) = self.take_unmoved(&meeting, round, case)?;
                records.extend(found);
                failures.extend(failed);
            }
        }
        progress("");
        Ok((records, failures))
    }

    /// All ways of a case, with the cores where they were at the first, if that can be had.
    fn take_unmoved(
        &self,
        meeting: &Meeting,
        round: u32,
        case: &Case,
    ) -> Result<(Vec<Record>, Vec<String>)> {
        // Who sends nothing is as far from the other as from anybody.
        let depends = case.pin == Pin::Two && case.measure != Measure::Idle;
        let look = || if depends { apart::ns() } else { None };
        let ways: Vec<Way> =
            case.ways().iter().copied().filter(|way| self.ways.contains(way)).collect();
        let taken = apart::unmoved(&ways, TRIES_MAX, look, |&way| {
            let (rounds, what) = (self.rounds, format!("{}: {}", case.what(), name(way)));
            progress(&format!("round {round} of {rounds}: {what}"));
            let turn = Turn { round, way, case: *case, seconds: self.seconds };
            let outcome = meeting.run(&turn);
            interrupt::check()?;
            Ok(outcome.map_err(|error| format!("{what}, round {round}: {error:#}")))
        })?;
        let (mut records, mut failures) = (Vec::new(), Vec::new());
        for (outcome, apart_ns) in taken {
            match outcome {
                Ok(record) => records.push(Record { apart_ns, ..record }),
                Err(failure) => failures.push(failure),
            }
        }
        Ok((records, failures))
    }
}

/// One line on a terminal that replaces the one before.
pub fn progress(text: &str) {
    if std::io::stderr().is_terminal() {
        eprint!("\r\x1b[K{text}\r");
    }
}
