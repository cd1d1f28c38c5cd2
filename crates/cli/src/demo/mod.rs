//! `shunt demo`: real programs, plain and accelerated in turn, and a table of both.
//!
//! Each program has a recipe in its own file. The servers of both sides run at the same time and the
//! clients take turns, so that what disturbs the machine disturbs both sides alike.

mod asyncio;
mod haproxy;
mod install;
mod iperf3;
mod java;
mod memcached;
mod nginx;
mod node;
mod postgres;
mod recipe;
mod redis;
mod saves;
mod server;
mod sockperf;
mod stage;
mod table;
mod wrk;

use anyhow::{bail, Result};

use crate::figures::figure;
use crate::{apart, args, interrupt};
use recipe::{Measure, Recipe};
use server::Server;
use stage::{Stage, Theatre};

pub use stage::Mode;
pub use table::{Round, Row};

/// So often the modes of a round are taken, if the host moves the cores meanwhile.
const TRIES_MAX: u32 = 4;

/// In the order in which they are shown.
const RECIPES: [&Recipe; 11] = [
    &sockperf::SOCKPERF,
    &iperf3::IPERF3,
    &redis::REDIS,
    &memcached::MEMCACHED,
    &nginx::NGINX,
    &nginx::WORKERS,
    &haproxy::HAPROXY,
    &postgres::POSTGRES,
    &node::NODE,
    &java::JAVA,
    &asyncio::ASYNCIO,
];

pub fn demo(args: &args::Demo) -> Result<()> {
    interrupt::watch();
    let (rows, left_out) = play(args)?;
    left_out.iter().for_each(|line| eprintln!("{line}"));
    if args.json {
        println!(
            "{}",
            serde_json::to_string_pretty(&rows.iter().map(Row::json).collect::<Vec<_>>())?
        );
    } else {
        print!("{}", table::table(&rows, args.modes()));
    }
    verdict(&rows, args.modes())
}

/// The rows of what is installed, and a line for each of the others.
pub fn play(args: &args::Demo) -> Result<(Vec<Row>, Vec<String>)> {
    let chosen = chosen(args)?;
    let theatre = Theatre::open()?;
    let (mut rows, mut left_out) = (Vec::new(), Vec::new());
    for recipe in chosen {
        match install::missing(recipe) {
            Some(advice) => left_out.push(format!("{}: left out, {advice}", recipe.name)),
            None => rows.extend(show(recipe, &theatre, args)?),
        }
    }
    Ok((rows, left_out))
}

/// Of all measures.
#[cfg(test)]
pub fn names() -> Vec<&'static str> {
    RECIPES.iter().flat_map(|recipe| recipe.measures(true)).map(|measure| measure.name).collect()
}

/// Those that were named; otherwise those with a measure to take.
fn chosen(args: &args::Demo) -> Result<Vec<&'static Recipe>> {
    let known: Vec<&str> = RECIPES.iter().map(|recipe| recipe.name).collect();
    if let Some(name) = args.only.iter().find(|name| !known.contains(&name.as_str())) {
        bail!("there is no demo of {name}; there are {}", known.join(", "));
    }
    let is_named =
        |recipe: &Recipe| args.only.is_empty() || args.only.iter().any(|name| name == recipe.name);
    let is_chosen = |recipe: &Recipe| is_named(recipe) && args.measures_of(recipe).next().is_some();
    Ok(RECIPES.into_iter().filter(|recipe| is_chosen(recipe)).collect())
}

/// The measures of one recipe. What fails makes a row that says so; only an interruption ends the
/// demo.
fn show(recipe: &Recipe, theatre: &Theatre, args: &args::Demo) -> Result<Vec<Row>> {
    let sides = match sides(recipe, theatre, args) {
        Ok(sides) => sides,
        Err(error) => return Ok(vec![failed(recipe.name, &error)?]),
    };
    let row = |measure: &Measure| {
        rounds(measure, &sides, args.rounds).or_else(|error| failed(measure.name, &error))
    };
    args.measures_of(recipe).map(row).collect()
}

fn failed(name: &str, error: &anyhow::Error) -> Result<Row> {
    interrupt::check()?;
    eprintln!("{name}: {error:#}");
    Ok(Row::failed(name, format!("{error:#}")))
}

type Side = (Stage, Vec<Server>);

fn sides(recipe: &Recipe, theatre: &Theatre, args: &args::Demo) -> Result<Vec<Side>> {
    let mut sides = Vec::new();
    for mode in args.modes() {
        eprintln!("{}: starting, {}", recipe.name, mode.name());
        let stage = theatre.stage(recipe.name, *mode, args.seconds)?;
        let servers = (recipe.serve)(&stage)?;
        sides.push((stage, servers));
    }
    Ok(sides)
}

/// In a round all modes take turns, with the cores where they were at the first, if that can be had.
fn rounds(measure: &Measure, sides: &[Side], rounds: u32) -> Result<Row> {
    let mut row = Row::new(measure);
    for round in 1..=rounds {
        let taken = apart::unmoved(sides, TRIES_MAX, apart::ns, |(stage, servers)| {
            // Of what was done before, or failed.
            stage.take_streams();
            let value = (measure.run)(stage)?;
            servers.iter().try_for_each(Server::still_runs)?;
            let (name, mode) = (measure.name, stage.mode.name());
            eprintln!("{name}: round {round} of {rounds}, {mode}: {}", figure(value, measure.unit));
            Ok((stage.mode, value, stage.take_streams()))
        })?;
        for ((mode, value, streams), apart_ns) in taken {
            row.add(mode, value, streams, apart_ns);
        }
    }
    Ok(row)
}

fn verdict(rows: &[Row], modes: &[Mode]) -> Result<()> {
    if rows.is_empty() {
        bail!("nothing could be shown; install what is missing (as root: `make install-deps`)");
    }
    let failed: Vec<&str> =
        rows.iter().filter(|row| row.failure().is_some()).map(Row::name).collect();
    if !failed.is_empty() {
        bail!("failed: {}", failed.join(", "));
    }
    let slow: Vec<&str> =
        rows.iter().filter(|row| row.streams_upgraded() == 0).map(Row::name).collect();
    if modes.contains(&Mode::Accelerated) && !slow.is_empty() {
        bail!("no stream was upgraded: {}", slow.join(", "));
    }
    Ok(())
}

impl args::Demo {
    /// The usual ones, unless something was named.
    fn measures_of(&self, recipe: &Recipe) -> impl Iterator<Item = &'static Measure> + '_ {
        let whole = self.all || !self.only.is_empty() || !self.measure.is_empty();
        recipe.measures(whole).filter(|measure| measure.name.contains(&self.measure))
    }

    fn modes(&self) -> &'static [Mode] {
        if self.plain_only {
            &[Mode::Plain]
        } else if self.one_side {
            &[Mode::Plain, Mode::ServerAlone, Mode::ClientAlone]
        } else {
            &[Mode::Plain, Mode::Accelerated]
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn demo(only: &[&str], all: bool) -> args::Demo {
        let only = only.iter().map(|name| (*name).to_owned()).collect();
        let (one_side, json, plain_only) = (false, false, false);
        let measure = String::new();
        args::Demo { only, all, measure, rounds: 1, seconds: 1, one_side, json, plain_only }
    }

    fn names(args: &args::Demo) -> Vec<&'static str> {
        let recipes = chosen(args).unwrap().into_iter();
        let measures = recipes.flat_map(|recipe| args.measures_of(recipe));
        measures.map(|measure| measure.name).collect()
    }

    #[test]
    fn the_usual_demo_is_short_and_what_is_named_is_played_whole() {
        let (usual, all) = (names(&demo(&[], false)), names(&demo(&[], true)));
        assert_eq!(usual.len(), 6);
        assert!(usual.iter().all(|name| all.contains(name)));
        let one_by_one: Vec<&str> =
            RECIPES.iter().flat_map(|recipe| names(&demo(&[recipe.name], false))).collect();
        assert_eq!(one_by_one, all);
    }

    #[test]
    fn measures_can_be_chosen_by_a_part_of_their_names() {
        let of = |measure: &str| names(&args::Demo { measure: measure.into(), ..demo(&[], false) });
        assert_eq!(of("1 MB"), ["nginx 1 MB file, 8 connections"]);
        assert!(of("no such measure").is_empty());
    }

    /// The rounds of a measure are found by its name.
    #[test]
    fn no_two_measures_have_one_name() {
        let mut all = names(&demo(&[], true));
        let count = all.len();
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), count);
    }
}
