//! Operations are counted and timed, once those that warm up are over.

use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::super::histogram::Histogram;
use crate::child;

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

impl Outcome {
    /// Of several clients at once: what all have done, and the times of the slowest.
    pub fn and(self, other: Outcome) -> Outcome {
        Outcome {
            operations: self.operations + other.operations,
            bytes: self.bytes + other.bytes,
            seconds: self.seconds.max(other.seconds),
            p50_us: self.p50_us.max(other.p50_us),
            p90_us: self.p90_us.max(other.p90_us),
            p99_us: self.p99_us.max(other.p99_us),
            all_operations: self.all_operations + other.all_operations,
            all_bytes: self.all_bytes + other.all_bytes,
            cpu_seconds: self.cpu_seconds + other.cpu_seconds,
        }
    }
}

/// First warms up, then measures.
pub struct Clock {
    measure_from: Instant,
    until: Instant,
}

impl Clock {
    pub fn start(seconds: f64) -> Clock {
        let measure_from = Instant::now() + Duration::from_secs_f64(seconds / 5.0);
        Clock { measure_from, until: measure_from + Duration::from_secs_f64(seconds) }
    }
}

/// Counts operations and their times.
pub struct Tally {
    clock: Clock,
    times: Histogram,
    measured: u64,
    all: u64,
    last: Instant,
    cpu_seconds_before: f64,
    /// CPU time that is not the operations'.
    spun: Duration,
}

impl Tally {
    pub fn new(clock: Clock) -> Tally {
        Tally {
            clock,
            times: Histogram::new(),
            measured: 0,
            all: 0,
            last: Instant::now(),
            cpu_seconds_before: child::cpu_seconds(),
            spun: Duration::ZERO,
        }
    }

    /// One more operation is done, which began when the last one ended. Whether there shall be
    /// another.
    #[inline]
    pub fn operation(&mut self) -> bool {
        self.operation_since(self.last)
    }

    /// One more operation is done. Whether there shall be another.
    #[inline]
    pub fn operation_since(&mut self, began: Instant) -> bool {
        let now = Instant::now();
        if began >= self.clock.measure_from {
            self.times.add((now - began).as_nanos() as u64);
            self.measured += 1;
        }
        self.all += 1;
        self.last = now;
        now < self.clock.until
    }

    /// When the last operation ended.
    pub fn last(&self) -> Instant {
        self.last
    }

    /// The last operation lasts until now, or the next begins only now.
    pub fn until_now(&mut self) {
        self.last = Instant::now();
    }

    /// The next operation begins now. Since the last, the process has used this CPU time for itself.
    pub fn pause_ends(&mut self, spun: Duration) {
        self.until_now();
        self.spun += spun;
    }

    /// `parts` is how many equal parts of an operation are asked for: half a round trip is two.
    pub fn outcome(&self, size: usize, parts: f64) -> Outcome {
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
            cpu_seconds: self.cpu_seconds(),
        }
    }

    /// Of the operations so far, with those that warmed up.
    fn cpu_seconds(&self) -> f64 {
        child::cpu_seconds() - self.cpu_seconds_before - self.spun.as_secs_f64()
    }
}
