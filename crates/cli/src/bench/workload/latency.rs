//! `latency` and `think`: one message back and forth, with or without a pause before it.

use std::time::{Duration, Instant};

use anyhow::{ensure, Result};

use super::super::case::Case;
use super::super::meeting::{read_message, End, WithEnd};
use super::tally::{Clock, Outcome, Tally};
use crate::child;

/// A sleep takes so long in any case, so shorter pauses are spent looking at the clock.
const SLEEP_MIN: Duration = Duration::from_micros(50);

/// The server.
pub struct Echo(pub usize);

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

/// The client.
pub struct PingPong {
    pub case: Case,
    pub clock: Clock,
}

impl WithEnd for PingPong {
    type Output = Outcome;

    fn run(self, end: &mut impl End) -> Result<Outcome> {
        let mut message = vec![b'm'; self.case.size];
        let mut pause = Pause::new(&self.case);
        let mut tally = Tally::new(self.clock);
        loop {
            end.write_all(&message)?;
            ensure!(read_message(end, &mut message)?, "the server went away");
            if !tally.operation() {
                break;
            }
            pause.take(&mut tally);
        }
        let outcome = tally.outcome(self.case.size, 2.0);
        end.finish()?;
        Ok(outcome)
    }
}

/// What the client does before its next message.
enum Pause {
    Nothing,
    /// Lasts so long.
    Of(Duration),
    /// Ends so long after the last one ended.
    Every {
        period: Duration,
        ended: Instant,
    },
}

impl Pause {
    fn new(case: &Case) -> Pause {
        if case.think_us == 0 && case.per_second == 0 {
            return Pause::Nothing;
        }
        child::wake_exactly();
        match case.per_second {
            0 => Pause::Of(Duration::from_micros(case.think_us.into())),
            rate => {
                let period = Duration::from_secs_f64(1.0 / f64::from(rate));
                Pause::Every { period, ended: Instant::now() }
            }
        }
    }

    #[inline]
    fn take(&mut self, tally: &mut Tally) {
        let until = match self {
            Pause::Nothing => return,
            Pause::Of(length) => tally.last() + *length,
            Pause::Every { period, ended } => {
                // What came too late is not made up for by messages without a pause.
                *ended = (*ended + *period).max(tally.last());
                *ended
            }
        };
        tally.pause_ends(wait_until(until));
    }
}

/// How much of the time the core was kept busy.
fn wait_until(end: Instant) -> Duration {
    let start = Instant::now();
    let left = end.saturating_duration_since(start);
    if left >= SLEEP_MIN {
        std::thread::sleep(left);
        return Duration::ZERO;
    }
    while Instant::now() < end {
        std::hint::spin_loop();
    }
    start.elapsed()
}
