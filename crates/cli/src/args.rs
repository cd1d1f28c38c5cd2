//! What can be typed.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Parser, Subcommand, ValueEnum};
use serde::{Deserialize, Serialize};

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
    Bench(Bench),
    Demo(Demo),
    #[command(hide = true)]
    BenchPeer(BenchPeer),
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

/// Measure kernel TCP, Unix socket, bare ring and Shunt side by side on this machine
///
/// Each runs for some rounds, in turn, between two processes; medians over the rounds are shown.
#[derive(clap::Args)]
pub struct Bench {
    pub measure: Measure,
    /// Bytes in a message (latency, rate, connect: 14; stream: 131072)
    #[arg(short = 'l', long, value_parser = clap::value_parser!(u32).range(1..=1 << 30))]
    pub size: Option<u32>,
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub rounds: u32,
    /// How long one round of one way takes, besides a fifth of that to warm up
    #[arg(long, default_value_t = 0.5)]
    pub seconds: f64,
    /// Both processes on one core, on a core each, or where the kernel puts them
    #[arg(long, default_value = "two")]
    pub pin: Pin,
    /// Which of tcp, unix, ring, shunt
    #[arg(long, value_name = "WAYS", value_delimiter = ',')]
    pub only: Vec<Way>,
    #[arg(long)]
    pub json: bool,
}

#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Measure {
    /// One message back and forth: half a round trip
    Latency,
    /// Large messages one way: bytes a second
    Stream,
    /// Small messages one way: messages a second
    Rate,
    /// Connect, exchange one message, close: connections a second
    Connect,
}

/// What carries the bytes of a benchmark.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Way {
    Tcp,
    Unix,
    Ring,
    Shunt,
}

#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Pin {
    Two,
    One,
    Free,
}

#[derive(ValueEnum, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    Server,
    Client,
}

/// One of the two processes of a benchmark
#[derive(clap::Args)]
pub struct BenchPeer {
    pub side: Side,
    pub way: Way,
    pub measure: Measure,
    /// Where to meet: a port, or the path of a socket or ring
    pub at: String,
    pub size: usize,
    pub seconds: f64,
}

/// Run Redis, nginx, PostgreSQL, iperf3 and sockperf plain and accelerated, and compare
#[derive(clap::Args)]
pub struct Demo {
    /// Which of sockperf, iperf3, redis, nginx, postgres
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    pub only: Vec<String>,
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

/// Wait for the descendants that a program left, then bring its report up to date
#[derive(clap::Args)]
pub struct UpdateReport {
    pub counters: PathBuf,
    pub report: PathBuf,
    pub descendants: Vec<i32>,
}
