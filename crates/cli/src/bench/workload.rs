//! What the two processes of a benchmark do. Server and client of each measure stand together.

use std::time::{Duration, Instant};

use anyhow::{bail, ensure, Result};
use serde::{Deserialize, Serialize};

use super::histogram::Histogram;
use super::meeting::{accept, connect, read_message, End, Host, WithEnd};
use crate::args::{BenchPeer, Measure, Side, Way};
use crate::child;

/// Beyond its own duration a benchmark that hangs ends itself.
const PATIENCE_SECONDS: f64 = 30.0;
/// First byte of the message after which the server of `connect` ends.
const LAST: u8 = 0xff;
const READ_BYTES: usize = 256 * 1024;

/// What the client found.
#[derive(Serialize, Deserialize, Default, Clone, Copy)]
pub struct Outcome {
    /// Operations and bytes in `seconds`, that is, without those that warmed up.
    pub operations: u64,
    pub bytes: u64,
    pub seconds: f64,
    /// One operation, where each was timed, in us.
    pub p50_us: f64,
    pub p90_us: f64,
    pub p99_us: f64,
    /// With those that warmed up, as the CPU time is.
    pub all_operations: u64,
    pub all_bytes: u64,
    pub cpu_seconds: f64,
}

/// The hidden command: one of the two processes.
pub fn peer(args: &BenchPeer) -> Result<()> {
    child::end_after(args.seconds * 2.0 + PATIENCE_SECONDS);
    match args.side {
        Side::Server => serve(args),
        Side::Client => {
            let cpu_before = child::cpu_seconds();
            let mut outcome = ask(args)?;
            outcome.cpu_seconds = child::cpu_seconds() - cpu_before;
            println!("{}", serde_json::to_string(&outcome)?);
            Ok(())
        }
    }
}

fn serve(args: &BenchPeer) -> Result<()> {
    let host = Host::new(args.way, &args.at)?;
    println!("{}", host.address(&args.at)?);
    let cpu_before = child::cpu_seconds();
    match args.measure {
        Measure::Latency => accept(&host, Echo(args.size))?,
        Measure::Stream | Measure::Rate => accept(&host, Drain)?,
        Measure::Connect => while accept(&host, EchoOnce(args.size))? {},
    }
    println!("{}", child::cpu_seconds() - cpu_before);
    Ok(())
}

fn ask(args: &BenchPeer) -> Result<Outcome> {
    let clock = Clock::start(args.seconds);
    match args.measure {
        Measure::Latency => connect(args.way, &args.at, PingPong { size: args.size, clock }),
        Measure::Stream | Measure::Rate => {
            connect(args.way, &args.at, Pour { size: args.size, clock })
        }
        Measure::Connect => connections(args.way, &args.at, args.size, clock),
    }
}

/// First warms up, then measures.
struct Clock {
    measure_from: Instant,
    until: Instant,
}

impl Clock {
    fn start(seconds: f64) -> Clock {
        let measure_from = Instant::now() + Duration::from_secs_f64(seconds / 5.0);
        Clock { measure_from, until: measure_from + Duration::from_secs_f64(seconds) }
    }
}

/// Counts operations and their times.
struct Tally {
    clock: Clock,
    times: Histogram,
    measured: u64,
    all: u64,
    last: Instant,
}

impl Tally {
    fn new(clock: Clock) -> Tally {
        Tally { clock, times: Histogram::new(), measured: 0, all: 0, last: Instant::now() }
    }

    /// One more operation is done. Whether there shall be another.
    #[inline]
    fn operation(&mut self) -> bool {
        let now = Instant::now();
        if self.last >= self.clock.measure_from {
            self.times.add((now - self.last).as_nanos() as u64);
            self.measured += 1;
        }
        self.all += 1;
        self.last = now;
        now < self.clock.until
    }

    /// `parts` is how many equal parts of an operation are asked for: half a round trip is two.
    fn outcome(&self, size: usize, parts: f64) -> Outcome {
        let seconds = self.last.saturating_duration_since(self.clock.measure_from).as_secs_f64();
        let percentile = |share| self.times.percentile(share) / parts;
        Outcome {
            operations: self.measured,
            bytes: self.measured * size as u64,
            seconds,
            p50_us: percentile(0.5),
            p90_us: percentile(0.9),
            p99_us: percentile(0.99),
            all_operations: self.all,
            all_bytes: self.all * size as u64,
            cpu_seconds: 0.0,
        }
    }
}

/// Server of `latency`.
struct Echo(usize);

impl WithEnd for Echo {
    type Output = ();

    fn run(self, end: &mut impl End) -> Result<()> {
        let mut message = vec![0; self.0];
        while read_message(end, &mut message)? {
            end.write_all(&message)?;
        }
        Ok(())
    }
}

/// Client of `latency`.
struct PingPong {
    size: usize,
    clock: Clock,
}

impl WithEnd for PingPong {
    type Output = Outcome;

    fn run(self, end: &mut impl End) -> Result<Outcome> {
        let mut message = vec![b'm'; self.size];
        let mut tally = Tally::new(self.clock);
        loop {
            end.write_all(&message)?;
            ensure!(read_message(end, &mut message)?, "the server went away");
            if !tally.operation() {
                break;
            }
        }
        end.finish()?;
        Ok(tally.outcome(self.size, 2.0))
    }
}

/// Server of `stream` and `rate`: reads all, then says so.
struct Drain;

impl WithEnd for Drain {
    type Output = ();

    fn run(self, end: &mut impl End) -> Result<()> {
        let mut buffer = vec![0; READ_BYTES];
        while end.read(&mut buffer)? > 0 {}
        end.write_all(b"e")?;
        end.finish()?;
        Ok(())
    }
}

/// Client of `stream` and `rate`.
struct Pour {
    size: usize,
    clock: Clock,
}

impl WithEnd for Pour {
    type Output = Outcome;

    fn run(self, end: &mut impl End) -> Result<Outcome> {
        /// Looking at the clock for each small message would be most of the work.
        const BYTES_PER_LOOK: usize = 16 * 1024;
        let batch = (BYTES_PER_LOOK / self.size).max(1);
        let message = vec![b'm'; self.size];
        let mut tally = Tally::new(self.clock);
        loop {
            for _ in 0..batch {
                end.write_all(&message)?;
            }
            if !tally.operation() {
                break;
            }
        }
        end.finish()?;
        ensure!(read_message(end, &mut [0])?, "the server went away");
        // The time counts until the server has read the last byte.
        tally.last = Instant::now();
        let outcome = tally.outcome(self.size * batch, 1.0);
        Ok(Outcome {
            operations: outcome.operations * batch as u64,
            all_operations: outcome.all_operations * batch as u64,
            ..outcome
        })
    }
}

/// Server of `connect`: one exchange; whether there will be another connection.
struct EchoOnce(usize);

impl WithEnd for EchoOnce {
    type Output = bool;

    fn run(self, end: &mut impl End) -> Result<bool> {
        let mut message = vec![0; self.0];
        if read_message(end, &mut message)? {
            end.write_all(&message)?;
            // The client closes first, so that its port waits in TIME_WAIT and not the server's.
            let _ = read_message(end, &mut [0])?;
        }
        Ok(message.first() != Some(&LAST))
    }
}

/// Client of `connect`.
fn connections(way: Way, at: &str, size: usize, clock: Clock) -> Result<Outcome> {
    let mut tally = Tally::new(clock);
    loop {
        connect(way, at, Exchange { size, first: b'm' })?;
        if !tally.operation() {
            break;
        }
    }
    let outcome = tally.outcome(size, 1.0);
    connect(way, at, Exchange { size, first: LAST })?;
    Ok(outcome)
}

struct Exchange {
    size: usize,
    first: u8,
}

impl WithEnd for Exchange {
    type Output = ();

    fn run(self, end: &mut impl End) -> Result<()> {
        let mut message = vec![self.first; self.size];
        end.write_all(&message)?;
        if !read_message(end, &mut message)? {
            bail!("the server went away");
        }
        Ok(())
    }
}
