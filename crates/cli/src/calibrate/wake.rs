//! What it costs to wake somebody: two threads pass a turn to and fro, and sleep on a futex in between.
//!
//! Batches on two cores and on one take turns, so that what disturbs the machine disturbs both. Neither
//! thread ever spins.
// UNSAFETY: calls futex, and chooses the cores of threads.
#![allow(unsafe_code)]

use std::any::Any;
use std::fs;
use std::ptr;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::thread::{Builder, Scope, ScopedJoinHandle};
use std::time::{Duration, Instant};

use anyhow::{anyhow, ensure, Error, Result};

use crate::child;

/// Round trips of a batch, besides those that warm up.
const TRIPS: u32 = 24;
const TRIPS_TO_WARM_UP: u32 = 4;
/// Before who was woken passes the turn on: the other one sleeps by then. It counts for no time.
const PAUSE: Duration = Duration::from_micros(5);
/// Fewer batches than this say nothing.
const BATCHES_MIN: u32 = 8;

/// One batch; times in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Batch {
    /// Half of a round trip.
    pub half_ns: f64,
    /// One call that wakes, as the caller sees it.
    pub waker_ns: f64,
    /// Others were running, too.
    pub is_busy: bool,
}

/// What was found.
pub struct Wakes {
    /// Empty where there is one core only.
    pub two_cores: Vec<Batch>,
    /// Empty if it was not asked for.
    pub one_core: Vec<Batch>,
}

/// Which batches are taken.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Places {
    TwoCores,
    Both,
}

/// Takes batches for so long, and some in any case.
pub fn measure(places: Places, time: Duration) -> Result<Wakes> {
    let cores = child::cores();
    // A thread of its own, since it will not run where its maker may.
    std::thread::scope(|scope| {
        thread(scope, || take(&cores, places, time))?.join().map_err(failed)?
    })
}

fn take(cores: &[usize], places: Places, time: Duration) -> Result<Wakes> {
    let first =
        *cores.first().ok_or_else(|| anyhow!("the kernel names no core for this process"))?;
    let mut wakes = Wakes { two_cores: Vec::new(), one_core: Vec::new() };
    let mut batches = 0;
    let started = Instant::now();
    while started.elapsed() < time || batches < BATCHES_MIN {
        batches += 1;
        if let Some(second) = cores.get(1) {
            wakes.two_cores.push(batch(first, *second)?);
        }
        if places == Places::Both {
            wakes.one_core.push(batch(first, first)?);
        }
    }
    Ok(wakes)
}

/// The turn of each of the two: how many round trips have reached it.
#[derive(Default)]
struct Turns {
    first: AtomicU32,
    second: AtomicU32,
}

/// This thread asks on one core, and another answers.
fn batch(asking: usize, answering: usize) -> Result<Batch> {
    let turns = &Turns::default();
    let trips = TRIPS_TO_WARM_UP + TRIPS;
    let answer = move || {
        child::pin_to(answering);
        let answer = |trip| {
            wait_for(&turns.second, trip);
            pause();
            u32::from(pass(&turns.first, trip))
        };
        (1..=trips).map(answer).sum::<u32>()
    };
    child::pin_to(asking);
    std::thread::scope(|scope| {
        let answering = thread(scope, answer)?;
        let mut asker = Asker::default();
        (1..=trips).for_each(|trip| asker.ask(turns, trip));
        asker.woken += answering.join().map_err(failed)?;
        asker.batch()
    })
}

/// The side that looks at the clock, once it is warm.
#[derive(Default)]
struct Asker {
    started: Option<Instant>,
    took: Duration,
    waking: Duration,
    /// How often somebody slept when the turn was passed.
    woken: u32,
    is_busy: bool,
}

impl Asker {
    fn ask(&mut self, turns: &Turns, trip: u32) {
        if trip == TRIPS_TO_WARM_UP + 1 {
            // The other side sleeps now, so whoever runs is a stranger.
            self.is_busy = others_run();
            self.started = Some(Instant::now());
        }
        let before = pause();
        self.woken += u32::from(pass(&turns.second, trip));
        let passed = Instant::now();
        wait_for(&turns.first, trip);
        if let Some(started) = self.started {
            self.waking += passed - before;
            self.took = started.elapsed();
        }
    }

    fn batch(&self) -> Result<Batch> {
        // Where a futex is forbidden, both have looked all the time.
        ensure!(self.woken > 0, "nobody slept, so no wake-up could be timed");
        let each = |time: Duration| time.as_secs_f64() * 1e9 / f64::from(TRIPS);
        let took = self.took.saturating_sub(2 * TRIPS * PAUSE);
        let (half_ns, waker_ns) = (each(took) / 2.0, each(self.waking));
        Ok(Batch { half_ns, waker_ns, is_busy: self.is_busy })
    }
}

fn thread<'scope, T: Send + 'scope>(
    scope: &'scope Scope<'scope, '_>,
    work: impl FnOnce() -> T + Send + 'scope,
) -> Result<ScopedJoinHandle<'scope, T>> {
    Ok(Builder::new().spawn_scoped(scope, work)?)
}

fn failed(_: Box<dyn Any + Send>) -> Error {
    anyhow!("a thread that was timed failed")
}

/// When it is over.
fn pause() -> Instant {
    let began = Instant::now();
    loop {
        let now = Instant::now();
        if now - began >= PAUSE {
            return now;
        }
    }
}

/// Gives the turn; whether the other slept.
fn pass(turn: &AtomicU32, trip: u32) -> bool {
    turn.store(trip, Relaxed);
    // SAFETY: the word lives through the call.
    unsafe { libc::syscall(libc::SYS_futex, turn.as_ptr(), libc::FUTEX_WAKE, 1) > 0 }
}

fn wait_for(turn: &AtomicU32, trip: u32) {
    loop {
        let now = turn.load(Relaxed);
        if now == trip {
            return;
        }
        let for_ever = ptr::null::<libc::timespec>();
        // SAFETY: the word lives through the call, and no time is given.
        unsafe { libc::syscall(libc::SYS_futex, turn.as_ptr(), libc::FUTEX_WAIT, now, for_ever) };
    }
}

/// Whether other programs run at this moment on half of the cores or more, as far as the kernel tells.
fn others_run() -> bool {
    let load = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    others(&load).unwrap_or(0) * 2 >= online_cores()
}

/// From `0.00 0.01 0.05 RUNNING/ALL LAST`, without the one who reads it.
fn others(load: &str) -> Option<usize> {
    let running = load.split(' ').nth(3)?.split('/').next()?;
    running.parse::<usize>().ok()?.checked_sub(1)
}

fn online_cores() -> usize {
    // SAFETY: no memory is involved.
    let cores = unsafe { libc::sysconf(libc::_SC_NPROCESSORS_ONLN) };
    cores.max(1) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_batch_has_times() {
        let cores = child::cores();
        // In a thread of its own, since it stays on that core.
        let here = std::thread::spawn(move || batch(cores[0], cores[0])).join().unwrap().unwrap();
        assert!(here.half_ns > 0.0 && here.waker_ns > 0.0);
    }

    #[test]
    fn who_else_runs_is_the_fourth_figure() {
        assert_eq!(others("0.35 0.31 0.32 3/178 18391\n"), Some(2));
        assert_eq!(others("0.35 0.31 0.32 0/178 18391\n"), None);
        assert_eq!(others(""), None);
    }
}
