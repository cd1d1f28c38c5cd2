//! What can be typed.

pub mod bench;

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Parser, Subcommand};

/// Unmodified socket programs at memory speed.
#[derive(Parser)]
#[command(name = "shunt", version, arg_required_else_help = true)]
pub struct Args {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Subcommand)]
pub enum Command {
    Run(Run),
    Stat(Stat),
    Bench(bench::Bench),
    Demo(Demo),
    Calibrate(Calibrate),
    #[command(hide = true)]
    BenchPeer(bench::Peer),
    #[command(hide = true)]
    BenchCalls(bench::CallsAlone),
    #[command(hide = true)]
    UpdateReport(UpdateReport),
}

/// Run a program with its TCP streams accelerated
///
/// Without --report, shunt becomes the program (same process). With it, shunt stays as the parent,
/// passes signals on, and ends as the program ended.
#[derive(clap::Args)]
pub struct Run {
    /// Write totals over the program and all its descendants to this file, as JSON
    ///
    /// The file is written when the program ends. If it left descendants behind (a daemon), the
    /// file is written again when the last of them has ended.
    #[arg(long, value_name = "FILE")]
    pub report: Option<PathBuf>,
    /// The program and its arguments
    #[arg(trailing_var_arg = true, value_name = "PROG")]
    pub command: Vec<OsString>,
}

/// Show the processes that run under Shunt and what carries their streams
#[derive(clap::Args)]
pub struct Stat {
    #[arg(long)]
    pub json: bool,
    /// Processes to look at; all, if none is named
    #[arg(value_name = "PID")]
    pub pids: Vec<i32>,
}

/// Run Redis, nginx, PostgreSQL and other programs plain and accelerated, and compare
#[derive(clap::Args)]
pub struct Demo {
    /// These programs, with all their measures: sockperf, iperf3, redis, memcached, nginx, workers, haproxy,
    /// postgres, node, java, asyncio
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    pub only: Vec<String>,
    /// All programs with all their measures, and not just the usual ones
    #[arg(long, conflicts_with = "only")]
    pub all: bool,
    /// Only measures whose name contains this
    #[arg(long, value_name = "TEXT", default_value = "", hide_default_value = true)]
    pub measure: String,
    /// How often plain and accelerated take turns; medians are shown
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub rounds: u32,
    /// How long one round of one program takes
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=600))]
    pub seconds: u32,
    /// Only one end under Shunt: what the other end's absence costs
    #[arg(long)]
    pub one_side: bool,
    #[arg(long)]
    pub json: bool,
    /// Try the programs without the library
    #[arg(long, hide = true, conflicts_with = "one_side")]
    pub plain_only: bool,
}

/// Measure what a wake-up and a copy cost on this machine, and keep it for `shunt run`
///
/// Takes a few seconds. `shunt run` does the part that it needs by itself, when nothing is kept yet.
#[derive(clap::Args)]
pub struct Calibrate {
    /// Show what is kept, and where
    #[arg(long, group = "what")]
    pub show: bool,
    /// Forget what is kept
    #[arg(long, group = "what")]
    pub delete: bool,
    /// Only wake-ups, in a tenth of a second, as `shunt run` does
    #[arg(long, group = "what")]
    pub quick: bool,
    /// Keep the figures although the machine was busy
    #[arg(long, conflicts_with_all = ["show", "delete"])]
    pub force: bool,
}

/// Wait for the descendants that a program left, then bring its report up to date
#[derive(clap::Args)]
pub struct UpdateReport {
    pub counters: PathBuf,
    pub report: PathBuf,
    pub descendants: Vec<i32>,
}
