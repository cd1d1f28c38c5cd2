//! `streams` and `idle`: many streams between two processes, each of which waits in one epoll loop.
//!
//! All streams carry some messages first, so that they are all in the state in which they stay.
//! CPU time counts between two messages that say so: neither set-up nor closing is measured.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{ErrorKind, Read, Write};
use std::time::{Duration, Instant};

use anyhow::{bail, ensure, Context, Result};

use super::super::case::Case;
use super::super::epoll::Epoll;
use super::super::meeting::{open_stream, Host};
use super::tally::{Clock, Outcome, Tally};
use crate::args::bench::Way;
use crate::child;

/// First bytes of messages: an ordinary one, and those after which CPU time starts and ends to count.
const ORDINARY: u8 = b'm';
const START: u8 = b's';
const END: u8 = b'e';
/// Messages on each stream before anything is measured: right after it is connected, then, once all
/// are, in some passes over all of them. What carries many streams grows as they come, so that
/// more of them need more passes.
const FIRST_MESSAGES: usize = 4;
const MESSAGES_IN_A_PASS: usize = 2;
const PASSES_MIN: usize = 6;
const STREAMS_PER_FURTHER_PASS: usize = 50;
const PASSES_MAX: usize = 135;
/// Before each pass and after the last: what set-up leaves to other threads goes on meanwhile.
const SETTLE: Duration = Duration::from_millis(60);
/// Before streams count as idle: memory that they no longer need is given back once, within some two seconds.
const SETTLE_TO_IDLE: Duration = Duration::from_secs(3);
const OUTSTANDING_AT_SET_UP: usize = 32;
const READ_BYTES: usize = 16 * 1024;
/// What the listening descriptor is called.
const LISTENER: usize = usize::MAX;

/// Answers on all streams until all are closed; the CPU seconds between the two messages.
pub fn serve(host: &Host) -> Result<f64> {
    let mut epoll = Epoll::new()?;
    host.add_to(&epoll, LISTENER)?;
    let (mut streams, mut open) = (Vec::new(), 0);
    let (mut cpu_before, mut cpu_seconds) = (0.0, None);
    let (mut ready, mut buffer) = (Vec::new(), vec![0; READ_BYTES]);
    while open > 0 || cpu_seconds.is_none() {
        epoll.wait(&mut ready, None)?;
        for name in ready.iter().copied() {
            if name == LISTENER {
                let stream = host.accept_stream()?;
                epoll.add(&stream, streams.len())?;
                streams.push(Some(stream));
                open += 1;
                continue;
            }
            match echo(&mut streams[name], &mut buffer)? {
                None => open -= 1,
                Some(START) => cpu_before = child::cpu_seconds(),
                Some(END) => cpu_seconds = Some(child::cpu_seconds() - cpu_before),
                Some(_) => {}
            }
        }
    }
    Ok(cpu_seconds.unwrap_or(0.0))
}

/// Sends back what is there, and gives its first byte. `None`: there is nothing more, ever.
fn echo(stream: &mut Option<File>, buffer: &mut [u8]) -> Result<Option<u8>> {
    let file = stream.as_mut().context("a stream was told of after it was closed")?;
    match file.read(buffer) {
        Ok(0) => {
            *stream = None;
            Ok(None)
        }
        Ok(count) => {
            file.write_all(&buffer[..count])?;
            Ok(Some(buffer[0]))
        }
        Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(Some(ORDINARY)),
        Err(error) => Err(error.into()),
    }
}

/// The client of `streams`.
pub fn ask(way: Way, at: &str, case: &Case, clock: impl Fn() -> Clock) -> Result<Outcome> {
    let mut client = Client::new(way, at, case)?;
    client.mark(START)?;
    let mut tally = Tally::new(clock());
    let active: VecDeque<usize> = (0..case.active as usize).collect();
    client.exchange(active, case.outstanding as usize, |sent| tally.operation_since(sent))?;
    let outcome = tally.outcome(case.size, 2.0);
    client.mark(END)?;
    Ok(outcome)
}

/// The client of `idle`.
pub fn rest(way: Way, at: &str, case: &Case, seconds: f64) -> Result<Outcome> {
    let mut client = Client::new(way, at, case)?;
    std::thread::sleep(SETTLE_TO_IDLE);
    client.mark(START)?;
    let (start, cpu_before) = (Instant::now(), child::cpu_seconds());
    let end = start + Duration::from_secs_f64(seconds);
    while let Some(left) = end.checked_duration_since(Instant::now()).filter(|it| !it.is_zero()) {
        // Rounded up: a wait of 0 ms would be a spin.
        let left = left + Duration::from_millis(1);
        client.epoll.wait(&mut client.ready, Some(left))?;
        ensure!(client.ready.is_empty(), "an idle stream had something to read");
    }
    let cpu_seconds = child::cpu_seconds() - cpu_before;
    let seconds = start.elapsed().as_secs_f64();
    client.mark(END)?;
    Ok(Outcome { seconds, cpu_seconds, ..Outcome::default() })
}

struct Client {
    epoll: Epoll,
    ready: Vec<usize>,
    streams: Vec<Asking>,
    message: Vec<u8>,
    buffer: Vec<u8>,
}

struct Asking {
    file: File,
    sent: Instant,
    /// Bytes of the reply that are still to come.
    missing: usize,
}

impl Client {
    /// All streams are connected and have carried messages.
    fn new(way: Way, at: &str, case: &Case) -> Result<Client> {
        let (message, buffer) = (vec![ORDINARY; case.size], vec![0; READ_BYTES]);
        let (ready, streams) = (Vec::new(), Vec::new());
        let mut client = Client { epoll: Epoll::new()?, ready, streams, message, buffer };
        for index in 0..case.streams as usize {
            let stream = open_stream(way, at)
                .with_context(|| format!("no stream after {index} of {}", case.streams))?;
            client.add(stream)?;
        }
        let count = client.streams.len();
        let messages = count * MESSAGES_IN_A_PASS;
        let further = if way == Way::Shunt { count / STREAMS_PER_FURTHER_PASS } else { 0 };
        for _ in 0..(PASSES_MIN + further).min(PASSES_MAX) {
            std::thread::sleep(SETTLE);
            let all = (0..count).collect();
            client.exchange_some(all, OUTSTANDING_AT_SET_UP, messages)?;
        }
        std::thread::sleep(SETTLE);
        Ok(client)
    }

    fn add(&mut self, file: File) -> Result<()> {
        let index = self.streams.len();
        self.epoll.add(&file, index)?;
        self.streams.push(Asking { file, sent: Instant::now(), missing: 0 });
        self.exchange_some(VecDeque::from([index]), 1, FIRST_MESSAGES)
    }

    /// Tells the server by a message that begins with this byte.
    fn mark(&mut self, byte: u8) -> Result<()> {
        let first = std::mem::replace(&mut self.message[0], byte);
        let done = self.exchange(VecDeque::from([0]), 1, |_| false);
        self.message[0] = first;
        done
    }

    fn exchange_some(
        &mut self,
        streams: VecDeque<usize>,
        outstanding: usize,
        mut left: usize,
    ) -> Result<()> {
        self.exchange(streams, outstanding, |_| {
            left = left.saturating_sub(1);
            left > 0
        })
    }

    /// Requests on the waiting streams in turn, so many at a time, while `again` says so of a reply;
    /// it is given the time of the request. All replies have come at the end.
    fn exchange(
        &mut self,
        mut waiting: VecDeque<usize>,
        outstanding: usize,
        mut again: impl FnMut(Instant) -> bool,
    ) -> Result<()> {
        let (mut under_way, mut more) = (0, true);
        loop {
            while more && under_way < outstanding {
                let Some(index) = waiting.pop_front() else { break };
                self.send(index)?;
                under_way += 1;
            }
            if under_way == 0 {
                return Ok(());
            }
            self.epoll.wait(&mut self.ready, None)?;
            for at in 0..self.ready.len() {
                let index = self.ready[at];
                if self.receive(index)? {
                    under_way -= 1;
                    waiting.push_back(index);
                    more &= again(self.streams[index].sent);
                    // At once, as a program does that has its next request at hand.
                    if let Some(next) = waiting.pop_front().filter(|_| more) {
                        self.send(next)?;
                        under_way += 1;
                    }
                }
            }
        }
    }

    fn send(&mut self, index: usize) -> Result<()> {
        let stream = &mut self.streams[index];
        stream.sent = Instant::now();
        stream.missing = self.message.len();
        stream.file.write_all(&self.message)?;
        Ok(())
    }

    /// Whether the reply is complete.
    fn receive(&mut self, index: usize) -> Result<bool> {
        let stream = &mut self.streams[index];
        match stream.file.read(&mut self.buffer) {
            Ok(0) => bail!("the server went away"),
            Ok(count) if count > stream.missing => bail!("more came than was sent"),
            Ok(count) => {
                stream.missing -= count;
                Ok(stream.missing == 0)
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(false),
            Err(error) => Err(error.into()),
        }
    }
}
