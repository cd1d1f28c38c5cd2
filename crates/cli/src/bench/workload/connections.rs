//! `connect`: many connections, one exchange each.

use anyhow::{bail, Result};

use super::super::meeting::{accept, connect, read_message, End, Host, WithEnd};
use super::tally::{Clock, Outcome, Tally};
use crate::args::bench::Way;

/// First byte of the message after which the server ends.
const LAST: u8 = 0xff;

pub fn serve(host: &Host, size: usize) -> Result<()> {
    while accept(host, EchoOnce(size))? {}
    Ok(())
}

/// The server: one exchange; whether there will be another connection.
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

pub fn ask(way: Way, at: &str, size: usize, clock: Clock) -> Result<Outcome> {
    let mut tally = Tally::new(clock);
    loop {
        connect(way, at, size, Exchange { size, first: b'm' })?;
        if !tally.operation() {
            break;
        }
    }
    let outcome = tally.outcome(size, 1.0);
    connect(way, at, size, Exchange { size, first: LAST })?;
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
