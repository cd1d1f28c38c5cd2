//! The `shunt` command: start programs accelerated, say what became of their streams, measure.
//!
//! This file is the table of contents. The library that is loaded into programs shares nothing with
//! this command but the layout of the counters (crate `stats`) and a few environment variables
//! (`library.rs`).

mod apart;
mod args;
mod bench;
mod calibrate;
mod child;
mod demo;
mod figures;
mod interrupt;
mod library;
mod report;
mod run;
mod stat;

use std::process::ExitCode;

use clap::Parser;

use args::{Args, Command};

fn main() -> ExitCode {
    let outcome = match Args::parse().command {
        Command::Run(args) => return run::run(&args),
        Command::Stat(args) => stat::stat(&args),
        Command::Bench(args) => bench::bench(&args),
        Command::BenchPeer(args) => bench::peer(&args),
        Command::BenchCalls(args) => bench::calls_alone(&args),
        Command::Demo(args) => demo::demo(&args),
        Command::Calibrate(args) => calibrate::calibrate(&args),
        Command::UpdateReport(args) => run::update_report(&args),
    };
    finish(outcome)
}

/// Prints an error as one line.
fn finish(outcome: anyhow::Result<()>) -> ExitCode {
    let Err(error) = outcome else { return ExitCode::SUCCESS };
    eprintln!("shunt: {error:#}");
    ExitCode::FAILURE
}
