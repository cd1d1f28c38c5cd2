//! `stream` and `rate`: bytes one way, as fast as they go.

use anyhow::{ensure, Result};

use super::super::meeting::{read_message, End, WithEnd};
use super::tally::{Clock, Outcome, Tally};

const READ_BYTES: usize = 256 * 1024;

/// Server of `stream` and `rate`: reads all, then says so.
pub struct Drain;

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
pub struct Pour {
    pub size: usize,
    pub clock: Clock,
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
        tally.until_now();
        let outcome = tally.outcome(self.size * batch, 1.0);
        Ok(Outcome {
            operations: outcome.operations * batch as u64,
            all_operations: outcome.all_operations * batch as u64,
            ..outcome
        })
    }
}
