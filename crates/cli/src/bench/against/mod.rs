//! What the library costs where it has nothing to do: one process plain and with the library, in
//! turn. `passthrough` times calls on descriptors that are no streams, `start` whole programs.

mod calls;
mod start;

use anyhow::{bail, Result};
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::{machine, obstacle_to_shunt, progress};
use crate::figures::{count, figure, median};
use crate::{args, interrupt};

pub use calls::{alone, BESIDE};

/// Something in one round, plain or with the library.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Trial {
    pub round: u32,
    pub what: String,
    pub mode: Mode,
    pub value: f64,
    pub unit: String,
    pub smaller_is_better: bool,
    /// Streams that were counted while this ran; 0 where there are none.
    pub streams_eligible: u64,
    pub streams_upgraded: u64,
    /// How far apart the cores were then, in ns, where it was looked.
    #[serde(default)]
    pub apart_ns: Option<f64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
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
    /// How many times better than plain.
    pub ratio: f64,
    pub streams_eligible: u64,
    pub streams_upgraded: u64,
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
    Some(Both {
        what,
        unit: &first.unit,
        plain,
        shunt,
        ratio: if first.smaller_is_better { plain / shunt } else { shunt / plain },
        streams_eligible: of(Mode::Shunt).map(|it| it.streams_eligible).sum(),
        streams_upgraded: of(Mode::Shunt).map(|it| it.streams_upgraded).sum(),
    })
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
    /// Of this process, while it was timed.
    pub streams_upgraded: u64,
}

pub fn take_passthrough(rounds: u32, seconds: f64) -> Result<Vec<Trial>> {
    rounds_of(calls::take, rounds, seconds)
}

pub fn take_start(rounds: u32, seconds: f64) -> Result<Vec<Trial>> {
    rounds_of(start::take, rounds, seconds)
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
            trials.extend(timings?.into_iter().map(|it| Trial::timed(round, mode, it)));
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
    fn timed(round: u32, mode: Mode, timing: Timing) -> Trial {
        Trial {
            round,
            what: timing.what,
            mode,
            value: (timing.value * 1e3).round() / 1e3,
            unit: timing.unit.to_owned(),
            smaller_is_better: true,
            streams_eligible: 0,
            streams_upgraded: timing.streams_upgraded,
            apart_ns: None,
        }
    }
}

/// Calls that were to be made beside an upgraded stream, and had none.
pub fn warning(trials: &[Trial]) -> Option<String> {
    let has_none = |it: &&Trial| {
        it.mode == Mode::Shunt && it.what.ends_with(BESIDE) && it.streams_upgraded == 0
    };
    let count = trials.iter().filter(has_none).count();
    (count > 0).then(|| "the stream beside which calls were made was not upgraded".into())
}

fn show(args: &args::bench::Against, take: Take) -> Result<()> {
    let mut warnings = machine::warnings();
    let trials = rounds_of(take, args.rounds, args.seconds)?;
    warnings.extend(warning(&trials));
    let all = both(&trials);
    if args.json {
        let rows: Vec<_> = all.iter().map(|it| json(it, &trials)).collect();
        println!("{}", serde_json::to_string_pretty(&rows)?);
        return Ok(());
    }
    println!("medians of {} of {} s", count(args.rounds, "round"), args.seconds);
    println!("{:<48} {:>12} {:>12} {:>12} {:>8}", "", "plain", "shunt", "more", "times");
    for it in all {
        let [plain, shunt, more] =
            [it.plain, it.shunt, it.shunt - it.plain].map(|value| figure(value, it.unit));
        let times = it.shunt / it.plain;
        println!("{:<48} {plain:>12} {shunt:>12} {more:>12} {times:>8.2}", it.what);
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

#[cfg(test)]
pub mod tests {
    use super::*;

    pub fn trial(what: &str, mode: Mode, value: f64, smaller_is_better: bool) -> Trial {
        let timing = Timing { what: what.into(), value, unit: "ns", streams_upgraded: 0 };
        Trial { smaller_is_better, ..Trial::timed(1, mode, timing) }
    }

    #[test]
    fn calls_beside_no_stream_are_told() {
        let beside = trial("dup, beside a stream", Mode::Shunt, 1.0, true);
        assert!(warning(std::slice::from_ref(&beside)).is_some());
        assert_eq!(warning(&[Trial { streams_upgraded: 2, ..beside }]), None);
        assert_eq!(warning(&[trial("dup", Mode::Shunt, 1.0, true)]), None);
    }

    #[test]
    fn medians_of_both_sides_are_compared() {
        let trials = [
            trial("a", Mode::Plain, 10.0, true),
            trial("a", Mode::Shunt, 20.0, true),
            trial("b", Mode::Plain, 100.0, false),
            trial("b", Mode::Shunt, 300.0, false),
            trial("a", Mode::Plain, 12.0, true),
            trial("a", Mode::Shunt, 24.0, true),
            trial("only plain", Mode::Plain, 1.0, true),
        ];
        let all = both(&trials);
        let shown: Vec<_> = all.iter().map(|it| (it.what, it.plain, it.shunt, it.ratio)).collect();
        assert_eq!(shown, [("a", 11.0, 22.0, 0.5), ("b", 100.0, 300.0, 3.0)]);
    }
}
