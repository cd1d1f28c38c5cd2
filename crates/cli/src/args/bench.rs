//! What can be typed after `shunt bench`.

use std::path::PathBuf;

use clap::{Subcommand, ValueEnum};
use serde::{Deserialize, Serialize};

use crate::bench::Case;

/// Sizes of a sweep, in bytes.
pub const ALL_SIZES: [u32; 10] =
    [8, 64, 512, 1024, 4096, 16_384, 65_536, 131_072, 262_144, 1_048_576];
const SIZE_MAX: u32 = 1 << 30;

/// Measure kernel TCP, Unix socket, bare ring and Shunt side by side on this machine
///
/// Each runs for some rounds, in turn, between two processes; medians over the rounds are shown.
#[derive(clap::Args)]
#[command(arg_required_else_help = true)]
pub struct Bench {
    #[command(subcommand)]
    pub what: What,
}

#[derive(Subcommand)]
pub enum What {
    /// One message back and forth: half a round trip
    Latency(Sized),
    /// Large messages one way: bytes a second
    Stream(Sized),
    /// Small messages one way: messages a second
    Rate(Sized),
    /// Connect, exchange one message, close: connections a second
    Connect(Sized),
    /// Request and reply through epoll over many streams
    Streams(Streams),
    /// Half a round trip with a pause before each message, and what a message costs then
    Think(Think),
    /// CPU time that streams use while nothing is sent
    Idle(Idle),
    /// What calls cost on descriptors that are no streams, and a fork, plain and with the library
    Passthrough(Against),
    /// How long a program takes that does nothing, plain and with the library
    Start(Against),
    /// Measure everything; write raw data, tables and plots to a folder
    All(All),
    /// Print the figures of such a folder as Markdown
    Table(Table),
}

/// How a measure of two processes is taken.
#[derive(clap::Args)]
pub struct Taking {
    #[arg(long, default_value_t = 5, value_parser = rounds())]
    pub rounds: u32,
    /// How long one round of one way takes, besides a fifth of that to warm up
    #[arg(long, default_value = "0.5", value_parser = seconds)]
    pub seconds: f64,
    /// Both processes on one core, on a core each, or where the kernel puts them
    #[arg(long, default_value = "two")]
    pub pin: Pin,
    /// Which of tcp, unix, ring, shunt, copy, and single, which is not taken otherwise; those that the measure does not have are left out
    #[arg(long, value_name = "WAYS", value_delimiter = ',')]
    pub only: Vec<Way>,
    /// Every round, as JSON; an array if several cases are measured
    #[arg(long)]
    pub json: bool,
}

#[derive(clap::Args)]
pub struct Sized {
    /// Bytes in a message, several with commas, or `all` for 8 to 1048576 (latency, rate, connect:
    /// 14; stream: 131072)
    #[arg(short = 'l', long = "size", value_name = "BYTES", value_delimiter = ',')]
    #[arg(value_parser = sizes)]
    pub sizes: Vec<Sizes>,
    #[command(flatten)]
    pub taking: Taking,
}

#[derive(clap::Args)]
pub struct Streams {
    /// How many streams there are, several with commas
    #[arg(long, value_name = "N", value_delimiter = ',', default_value = "8,100,1000,10000")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub streams: Vec<u32>,
    /// Streams that carry messages; the others are idle. At most N are
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..))]
    pub active: u32,
    /// Requests that wait for their reply at a time, over the active streams in turn [all active]
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
    pub outstanding: Option<u32>,
    /// Pairs of processes that do this at the same time
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub pairs: u32,
    /// Bytes in a message
    #[arg(short = 'l', long, default_value_t = 14)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=16_384))]
    pub size: u32,
    #[command(flatten)]
    pub taking: Taking,
}

#[derive(clap::Args)]
pub struct Think {
    /// Pauses before a message in us, several with commas
    #[arg(long, value_name = "US", value_delimiter = ',', default_value = "0,10,100,1000")]
    #[arg(value_parser = clap::value_parser!(u32).range(0..=1_000_000))]
    pub think_us: Vec<u32>,
    /// Also: messages that start at this rate; 0 for not
    #[arg(long, default_value_t = 1000)]
    #[arg(value_parser = clap::value_parser!(u32).range(0..=1_000_000))]
    pub per_second: u32,
    /// Bytes in a message
    #[arg(short = 'l', long, default_value_t = 14)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=i64::from(SIZE_MAX)))]
    pub size: u32,
    #[command(flatten)]
    pub taking: Taking,
}

#[derive(clap::Args)]
pub struct Idle {
    /// How many streams there are, several with commas
    #[arg(long, value_name = "N", value_delimiter = ',', default_value = "1,1000")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub streams: Vec<u32>,
    #[command(flatten)]
    pub taking: Taking,
}

/// One process, plain and with the library.
#[derive(clap::Args)]
pub struct Against {
    #[arg(long, default_value_t = 5, value_parser = rounds())]
    pub rounds: u32,
    /// How long one round takes, plain or with the library
    #[arg(long, default_value = "0.5", value_parser = seconds)]
    pub seconds: f64,
    #[arg(long)]
    pub json: bool,
}

#[derive(clap::Args)]
pub struct All {
    /// The folder to make [bench/runs/DATE-OS-CPU-Nvcpu]
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
    /// How often all ways take turns [5; quick: 1]
    #[arg(long, value_parser = rounds())]
    pub rounds: Option<u32>,
    /// How long one round of one way takes, besides a fifth of that to warm up [0.5; quick: 0.3]
    #[arg(long, value_parser = seconds)]
    pub seconds: Option<f64>,
    /// Which parts
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    pub only: Vec<Part>,
    /// Fewer cases, one round: about 2 minutes
    #[arg(long)]
    pub quick: bool,
}

#[derive(clap::Args)]
pub struct Table {
    /// A folder that `shunt bench all` wrote
    pub run: PathBuf,
}

/// What `shunt bench all` consists of.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub enum Part {
    Latency,
    Stream,
    Rate,
    Connect,
    Streams,
    Think,
    Idle,
    Passthrough,
    Start,
    Apps,
}

/// What two processes measure together.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize, Debug)]
#[serde(rename_all = "snake_case")]
pub enum Measure {
    Latency,
    Stream,
    Rate,
    Connect,
    Streams,
    Think,
    Idle,
}

/// What carries the bytes of a benchmark.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, Debug)]
#[serde(rename_all = "snake_case")]
pub enum Way {
    Tcp,
    Unix,
    Ring,
    Shunt,
    Copy,
    Single,
}

#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, Debug)]
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
pub struct Peer {
    pub side: Side,
    pub way: Way,
    /// Where to meet: a port, or the path of a socket or of shared memory
    pub at: String,
    /// What to do, as JSON
    #[arg(value_parser = |text: &str| serde_json::from_str::<Case>(text))]
    pub case: Case,
    pub seconds: f64,
}

/// Time calls on descriptors that are no streams
#[derive(clap::Args)]
pub struct CallsAlone {
    pub seconds: f64,
}

/// One size, or the sweep.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Sizes {
    Bytes(u32),
    All,
}

fn sizes(text: &str) -> Result<Sizes, String> {
    if text == "all" {
        return Ok(Sizes::All);
    }
    match text.parse() {
        Ok(bytes @ 1..=SIZE_MAX) => Ok(Sizes::Bytes(bytes)),
        _ => Err(format!("a size is `all` or a number of bytes from 1 to {SIZE_MAX}")),
    }
}

fn seconds(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(seconds) if seconds > 0.0 && seconds <= 3600.0 => Ok(seconds),
        _ => Err("more than 0 and at most 3600 seconds".into()),
    }
}

fn rounds() -> clap::builder::RangedU64ValueParser<u32> {
    clap::builder::RangedU64ValueParser::new().range(1..=1000)
}

impl Sized {
    /// Those that were asked for, in that order; `usual` if none was.
    pub fn bytes(&self, usual: u32) -> Vec<u32> {
        if self.sizes.is_empty() {
            return vec![usual];
        }
        let each = self.sizes.iter().flat_map(|sizes| match sizes {
            Sizes::Bytes(bytes) => vec![*bytes],
            Sizes::All => ALL_SIZES.to_vec(),
        });
        each.collect()
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::args::{Args, Command};

    fn parse(words: &[&str]) -> Result<What, clap::Error> {
        let words = ["shunt", "bench"].iter().chain(words);
        match Args::try_parse_from(words)?.command {
            Command::Bench(bench) => Ok(bench.what),
            _ => panic!("not parsed as bench"),
        }
    }

    fn sizes_of(words: &[&str]) -> Vec<u32> {
        match parse(words) {
            Ok(What::Latency(sized)) => sized.bytes(14),
            _ => panic!("not parsed as latency"),
        }
    }

    #[test]
    fn sizes_are_one_several_or_all() {
        assert_eq!(sizes_of(&["latency"]), [14]);
        assert_eq!(sizes_of(&["latency", "-l", "8,1024"]), [8, 1024]);
        assert_eq!(sizes_of(&["latency", "-l", "8", "--size", "9"]), [8, 9]);
        assert_eq!(sizes_of(&["latency", "-l", "all"]), ALL_SIZES);
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        for words in [
            &["latency", "-l", "0"][..],
            &["latency", "-l", "big"],
            &["latency", "--seconds", "0"],
            &["latency", "--rounds", "0"],
            &["streams", "--active", "0"],
            &["streams", "-l", "1000000"],
            &["all", "--only", "nosuch"],
            &["table"],
        ] {
            assert!(parse(words).is_err(), "{words:?}");
        }
    }

    #[test]
    fn numbers_of_streams_and_pauses_are_lists() {
        let Ok(What::Streams(streams)) = parse(&["streams", "--streams", "8,100"]) else {
            panic!("not parsed as streams");
        };
        assert_eq!((streams.streams, streams.active, streams.outstanding), (vec![8, 100], 8, None));
        let Ok(What::Think(think)) = parse(&["think"]) else { panic!("not parsed as think") };
        assert_eq!((think.think_us, think.per_second), (vec![0, 10, 100, 1000], 1000));
    }
}
