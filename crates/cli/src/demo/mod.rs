//! `shunt demo`: real programs, plain and accelerated in turn, and a table of both.
//!
//! Each program has a recipe in its own file. Both servers of a recipe run at the same time and the
//! clients take turns, so that what disturbs the machine disturbs both sides alike.

mod install;
mod iperf3;
mod nginx;
mod postgres;
mod recipe;
mod redis;
mod server;
mod sockperf;
mod stage;
mod table;

use anyhow::{bail, Result};

use crate::figures::figure;
use crate::{args, interrupt};
use recipe::{Measure, Recipe};
use server::Server;
use stage::{Stage, Theatre};

pub use stage::Mode;
pub use table::{Round, Row};

/// In the order in which they are shown.
const RECIPES: [&Recipe; 5] =
    [&sockperf::SOCKPERF, &iperf3::IPERF3, &redis::REDIS, &nginx::NGINX, &postgres::POSTGRES];

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
    let chosen = chosen(&args.only)?;
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

fn chosen(only: &[String]) -> Result<Vec<&'static Recipe>> {
    let known: Vec<&str> = RECIPES.iter().map(|recipe| recipe.name).collect();
    if let Some(name) = only.iter().find(|name| !known.contains(&name.as_str())) {
        bail!("there is no demo of {name}; there are {}", known.join(", "));
    }
    let is_chosen = |recipe: &Recipe| only.is_empty() || only.iter().any(|it| it == recipe.name);
    Ok(RECIPES.into_iter().filter(|recipe| is_chosen(recipe)).collect())
}

/// All measures of one recipe. A program that fails makes a row that says so; only an interruption
/// ends the demo.
fn show(recipe: &Recipe, theatre: &Theatre, args: &args::Demo) -> Result<Vec<Row>> {
    let outcome = measured(recipe, theatre, args);
    interrupt::check()?;
    Ok(outcome.unwrap_or_else(|error| {
        eprintln!("{}: {error:#}", recipe.name);
        vec![Row::failed(recipe.name, format!("{error:#}"))]
    }))
}

fn measured(recipe: &Recipe, theatre: &Theatre, args: &args::Demo) -> Result<Vec<Row>> {
    let mut sides = Vec::new();
    for mode in args.modes() {
        eprintln!("{}: starting, {}", recipe.name, mode.name());
        let stage = theatre.stage(recipe.name, *mode, args.seconds)?;
        let server = (recipe.serve)(&stage)?;
        sides.push((stage, server));
    }
    (recipe.measures.iter()).map(|measure| rounds(measure, &sides, args.rounds)).collect()
}

fn rounds(measure: &Measure, sides: &[(Stage, Server)], rounds: u32) -> Result<Row> {
    let mut row = Row::new(measure);
    for round in 1..=rounds {
        for (stage, server) in sides {
            let value = (measure.run)(stage)?;
            server.still_runs()?;
            row.add(stage.mode, value, stage.take_streams());
            let (name, mode) = (measure.name, stage.mode.name());
            eprintln!("{name}: round {round} of {rounds}, {mode}: {}", figure(value, measure.unit));
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
