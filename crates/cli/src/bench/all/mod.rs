//! `shunt bench all`: every measure, into a folder with the raw data, tables and plots; and
//! `shunt bench table`: the figures of such a folder again, and what is asked.
//!
//! Tables and plots are made of what the folder's CSV files say, read back, so that they can be
//! made again from a folder alone.

mod aims;
mod apps;
mod bars;
mod curves;
mod peers;
mod plan;
mod plots;
mod readme;
mod run;
mod tables;

use std::path::{Path, PathBuf};

use anyhow::{bail, Result};
use clap::ValueEnum;

use super::case::Case;
use super::{against, machine, possible, ways, Turns};
use crate::args::bench::{All, Part, Table, Way};
use crate::interrupt;
use plan::Plan;
use readme::Readme;
use run::Run;

/// Where run folders are made.
const RUNS: &str = "bench/runs";

pub fn all(args: &All) -> Result<()> {
    let plan = Plan::new(args);
    let folder = args.out.clone().unwrap_or_else(|| Path::new(RUNS).join(machine::run_name()));
    run::create(&folder)?;
    let mut warnings = machine::warnings();
    let (ways, without_shunt) = ways(&[]);
    let mut not_measured = without_shunt;
    for part in plan.parts() {
        eprintln!("{}", name(part));
        let outcome = take(part, &plan, &ways, &folder, &mut not_measured);
        if let Err(error) = interrupt::check() {
            // Removed if it is empty: it would be in the way of the next run.
            let _ = std::fs::remove_dir(&folder);
            return Err(error);
        }
        if let Err(error) = outcome {
            not_measured.push(format!("{}: {error:#}", name(part)));
        }
    }
    not_measured.extend(peers::obstacles());
    let run = Run::read(&folder)?;
    warnings.extend(tables::warnings(&run));
    let plots = plots::draw(&run, &folder)?;
    let readme = Readme { run: &run, plan: &plan, plots: &plots, warnings, not_measured };
    std::fs::write(folder.join("README.md"), readme.text())?;
    println!("{}", folder.display());
    if run.is_empty() {
        bail!("nothing could be measured; {}/README.md says why", folder.display());
    }
    Ok(())
}

pub fn table(args: &Table) -> Result<()> {
    let run = Run::read(&args.run)?;
    if run.is_empty() {
        bail!("{} has no CSV files of `shunt bench all`", args.run.display());
    }
    println!("{}", tables::figures(&run));
    print!("{}", aims::table(&run));
    Ok(())
}

/// Measures one part and writes its file.
fn take(
    part: Part,
    plan: &Plan,
    ways: &[Way],
    folder: &Path,
    not_measured: &mut Vec<String>,
) -> Result<()> {
    let (rounds, seconds) = (plan.rounds, plan.seconds(part));
    let path = file(folder, part);
    match part {
        Part::Passthrough => run::write(&path, &against::take_passthrough(rounds, seconds)?),
        Part::Start => run::write(&path, &against::take_start(rounds, seconds)?),
        Part::Apps => {
            let (trials, left_out) = apps::take(rounds, plan.app_seconds(), plan.is_quick)?;
            not_measured.extend(left_out);
            run::write(&path, &trials)
        }
        _ => {
            let (cases, obstacles): (Vec<Case>, _) = possible(plan.cases(part));
            not_measured.extend(obstacles);
            let (records, failures) = Turns { cases: &cases, ways, rounds, seconds }.take()?;
            not_measured.extend(failures);
            run::write(&path, &records)
        }
    }
}

/// Where the raw data of a part are.
fn file(folder: &Path, part: Part) -> PathBuf {
    folder.join(format!("{}.csv", name(part)))
}

fn name(part: Part) -> String {
    part.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
}
