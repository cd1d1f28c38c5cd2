//! What the two processes of a benchmark do. Server and client of each measure stand together.

mod connections;
mod latency;
mod many;
mod pour;
mod tally;

use anyhow::Result;

use super::case::Case;
use super::meeting::{accept, connect, Host};
use crate::args::bench::{Measure, Peer, Side};
use crate::child;
use tally::Clock;

pub use tally::Outcome;

/// Beyond its own duration a benchmark that hangs ends itself, later the more streams it sets up.
const PATIENCE_SECONDS: f64 = 30.0;
const PATIENCE_SECONDS_PER_STREAM: f64 = 0.01;

/// The hidden command: one of the two processes.
pub fn peer(args: &Peer) -> Result<()> {
    let set_up = PATIENCE_SECONDS + PATIENCE_SECONDS_PER_STREAM * f64::from(args.case.streams);
    child::end_after(args.seconds * 2.0 + set_up);
    match args.side {
        Side::Server => serve(args),
        Side::Client => {
            println!("{}", serde_json::to_string(&ask(args)?)?);
            Ok(())
        }
    }
}

/// Says where it is, serves, and says what CPU time it took.
fn serve(args: &Peer) -> Result<()> {
    let Case { measure, size, .. } = args.case;
    let host = Host::new(args.way, &args.at, size)?;
    println!("{}", host.address(&args.at)?);
    let before = child::cpu_seconds();
    match measure {
        Measure::Latency | Measure::Think => accept(&host, latency::Echo(size))?,
        Measure::Stream | Measure::Rate => accept(&host, pour::Drain)?,
        Measure::Connect => connections::serve(&host, size)?,
        Measure::Streams | Measure::Idle => {
            println!("{}", many::serve(&host)?);
            return Ok(());
        }
    }
    println!("{}", child::cpu_seconds() - before);
    Ok(())
}

fn ask(args: &Peer) -> Result<Outcome> {
    let Peer { way, case, seconds, .. } = args;
    let clock = || Clock::start(*seconds);
    match case.measure {
        Measure::Latency | Measure::Think => {
            connect(*way, &args.at, case.size, latency::PingPong { case: *case, clock: clock() })
        }
        Measure::Stream | Measure::Rate => {
            connect(*way, &args.at, case.size, pour::Pour { size: case.size, clock: clock() })
        }
        Measure::Connect => connections::ask(*way, &args.at, case.size, clock()),
        Measure::Streams => many::ask(*way, &args.at, case, clock),
        Measure::Idle => many::rest(*way, &args.at, case, *seconds),
    }
}
