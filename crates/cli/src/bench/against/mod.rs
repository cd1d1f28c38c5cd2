//! What the library costs where it has nothing to do: one process plain and with the library, in
//! turn. `passthrough` times calls on descriptors that are no streams, `start` whole programs.

mod calls;
mod start;

use anyhow::{bail, Result};
use serde_json::json;

use super::{machine, obstacle_to_shunt, progress};
use crate::figures::{figure, median};
use crate::{args, interrupt};

pub use calls::alone;

/// Something in one round, plain or with the library.
#[derive(Clone, Debug)]
pub struct Trial {
    pub what: String,
    pub mode: Mode,
    pub value: f64,
    pub unit: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    Plain,
    Shunt,
}

pub const MODES: [Mode; 2] = [Mode::Plain, Mode::Shunt];

/// The rounds of one thing together.
pub struct Both<'a> {
    pub what: &'a str,
    pub unit: &'a str,
    /// Medians over the rounds.
    pub plain: f64,
    pub shunt: f64,
}

/// One for each thing that has both sides, in the order in which they first stand.
pub fn both(trials: &[Trial]) -> Vec<Both<'_>> {
    let mut whats: Vec<&str> = Vec::new();
    for trial in trials {
        if !whats.contains(&trial.what.as_str()) {
            whats.push(&trial.what);
        }
    }
    whats.into_iter().filter_map(|what| both_of(what, trials)).collect()
}

fn both_of<'a>(what: &'a str, trials: &'a [Trial]) -> Option<Both<'a>> {
    let of = |mode: Mode| trials.iter().filter(move |it| it.what == what && it.mode == mode);
    let middle = |mode| median(&of(mode).map(|it| it.value).collect::<Vec<_>>());
    let (plain, shunt) = (middle(Mode::Plain)?, middle(Mode::Shunt)?);
    let first = of(Mode::Plain).next()?;
    Some(Both { what, unit: &first.unit, plain, shunt })
}

pub fn passthrough(args: &args::bench::Against) -> Result<()> {
    show(args, calls::take)
}

pub fn start(args: &args::bench::Against) -> Result<()> {
    show(args, start::take)
}

/// What can be measured here, plain or with the library, in this many seconds.
type Take = fn(Mode, f64) -> Result<Vec<Timing>>;

/// How long something took.
pub struct Timing {
    pub what: String,
    pub value: f64,
    pub unit: &'static str,
}

/// Plain and with the library in turn.
fn rounds_of(take: Take, rounds: u32, seconds: f64) -> Result<Vec<Trial>> {
    if let Some(obstacle) = obstacle_to_shunt() {
        bail!("nothing can be measured with the library: {obstacle}");
    }
    let mut trials = Vec::new();
    for round in 1..=rounds {
        for mode in MODES {
            progress(&format!("round {round} of {rounds}: {}", mode.name()));
            let timings = take(mode, seconds);
            interrupt::check()?;
            trials.extend(timings?.into_iter().map(|it| Trial::timed(mode, it)));
        }
    }
    progress("");
    Ok(trials)
}

impl Mode {
    pub fn name(self) -> &'static str {
        match self {
            Mode::Plain => "plain",
            Mode::Shunt => "shunt",
        }
    }
}

impl Trial {
    fn timed(mode: Mode, timing: Timing) -> Trial {
        Trial {
            what: timing.what,
            mode,
            value: (timing.value * 1e3).round() / 1e3,
            unit: timing.unit.to_owned(),
        }
    }
}

fn show(args: &args::bench::Against, take: Take) -> Result<()> {
    let warnings = machine::warnings();
    let trials = rounds_of(take, args.rounds, args.seconds)?;
    let all = both(&trials);
    if args.json {
        let rows: Vec<_> = all.iter().map(|it| json(it, &trials)).collect();
        println!("{}", serde_json::to_string_pretty(&rows)?);
        return Ok(());
    }
    println!("medians of {} rounds of {} s", args.rounds, args.seconds);
    println!("{:<34} {:>12} {:>12} {:>12} {:>8}", "", "plain", "shunt", "more", "times");
    for it in all {
        let [plain, shunt, more] =
            [it.plain, it.shunt, it.shunt - it.plain].map(|value| figure(value, it.unit));
        let times = it.shunt / it.plain;
        println!("{:<34} {plain:>12} {shunt:>12} {more:>12} {times:>8.2}", it.what);
    }
    warnings.iter().for_each(|warning| println!("warning: {warning}"));
    Ok(())
}

fn json(it: &Both, trials: &[Trial]) -> serde_json::Value {
    let rounds = |mode: Mode| {
        let rounds = trials.iter().filter(|trial| trial.what == it.what && trial.mode == mode);
        rounds.map(|trial| trial.value).collect::<Vec<_>>()
    };
    json!({
        "what": it.what,
        "unit": it.unit,
        "plain": it.plain,
        "shunt": it.shunt,
        "difference": it.shunt - it.plain,
        "times": it.shunt / it.plain,
        "plain_rounds": rounds(Mode::Plain),
        "shunt_rounds": rounds(Mode::Shunt),
    })
}
