//! How long a wait spins before it sleeps.
//!
//! A sleep costs the waker 10 us, the sleeper 5 and a delay of 30 across cores; a spin costs its length.
//! The policy keeps, for each wait set, what a spin has gained in recent waits, or would have. Waits
//! that slept are observed as well, so no probing is needed: if events come soon after the sleep began,
//! spinning is taken up again. `tests/arrivals.rs` plays patterns of arrivals against it.

use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, Ordering::Relaxed};

/// A wait spins no longer than this.
pub const SPIN_NS_MAX: u64 = 50_000;
/// How late a sleeper runs that is woken, until a wait has shown it to be less.
const LATE_NS: u32 = 30_000;
/// Of its own accord that rises again, by this share a sleep.
const LATE_RISES: u32 = 64;
/// CPU time that a sleep takes on both sides. The delay counts twice beside it, since who waits for an
/// answer holds up others.
const SLEEP_CPU_NS: i32 = 15_000;
/// A spin that takes no longer is cheap on any machine.
const CHEAP_NS: u64 = 8_000;
/// After so many waits whose spins are longer one sleeps instead, to see how late that is: at first and at
/// most, since the answer is the same for long.
const PROBE_FIRST: u32 = 16;
const PROBE_MAX: u32 = 65_536;
/// What is thought of a wait set that is not known yet.
const GAIN_FIRST: i32 = 20_000;

/// Waits without spinning after a spin lost its core to somebody else, at first and at most: on an
/// overloaded host a sleeper is woken ahead of the others, a spinner that yields comes last.
const BAN_FIRST: u32 = 32;
const BAN_MAX: u32 = 4096;

/// A yield that took this long gave the core to somebody; one that found nobody takes a third.
const SWITCH_NS: u64 = 800;

/// The memory of one wait set.
pub struct Policy {
    /// What a spin gained in the last waits, in ns of CPU time: a moving average, of which a wait weighs 1/8.
    gain: AtomicI32,
    /// How late a sleeper runs, in ns, as far as is known.
    late: AtomicU32,
    /// How long spins took that were long and found something: a moving average, in ns.
    long_ns: AtomicU32,
    /// So many of them to come before one sleeps instead, and how many that were to be at first.
    to_probe: AtomicU32,
    probe_every: AtomicU32,
    /// The next sleep shows how late a sleeper runs.
    probes: AtomicBool,
    /// Waits to come without spinning.
    ban: AtomicU32,
    /// The length of the next ban.
    ban_next: AtomicU32,
    /// The other side was seen to run on this very core.
    beside: AtomicBool,
}

impl Policy {
    pub const fn new() -> Policy {
        Policy {
            gain: AtomicI32::new(GAIN_FIRST),
            late: AtomicU32::new(LATE_NS),
            long_ns: AtomicU32::new(0),
            to_probe: AtomicU32::new(PROBE_FIRST),
            probe_every: AtomicU32::new(PROBE_FIRST),
            probes: AtomicBool::new(false),
            ban: AtomicU32::new(0),
            ban_next: AtomicU32::new(BAN_FIRST),
            beside: AtomicBool::new(false),
        }
    }

    /// How long the next wait may spin, in nanoseconds; 0 is not at all.
    #[inline]
    pub fn spin_ns(&self) -> u64 {
        let ban = self.ban.load(Relaxed);
        if ban > 0 {
            self.ban.store(ban - 1, Relaxed);
            return 0;
        }
        if self.gain.load(Relaxed) > 0 {
            SPIN_NS_MAX
        } else {
            0
        }
    }

    /// Whether to give the core away before looking: nothing can happen while we have it.
    #[inline]
    pub fn yields_first(&self) -> bool {
        self.beside.load(Relaxed)
    }

    /// A yield took `took_ns`, and an event was there after it or not.
    #[inline]
    pub fn yielded(&self, took_ns: u64, found: bool) {
        let switched = took_ns >= SWITCH_NS;
        if self.beside.load(Relaxed) {
            if !switched {
                self.beside.store(false, Relaxed);
            }
        } else if switched && found {
            self.beside.store(true, Relaxed);
        }
    }

    /// A spin lost its core for long: others want it more.
    pub fn overloaded(&self) {
        let ban = self.ban_next.load(Relaxed).max(BAN_FIRST);
        self.ban.store(ban, Relaxed);
        self.ban_next.store((ban * 2).min(BAN_MAX), Relaxed);
    }

    /// A spin found the event that it waited for, after `took_ns`.
    #[inline]
    pub fn caught(&self, took_ns: u64) {
        if self.ban_next.load(Relaxed) > BAN_FIRST {
            let next = self.ban_next.load(Relaxed);
            self.ban_next.store(next - next / 64 - 1, Relaxed);
        }
        self.weigh(self.sleep_worth_ns() - took_ns.min(SPIN_NS_MAX) as i32);
        if took_ns > CHEAP_NS {
            self.took_long(took_ns);
        }
    }

    #[cold]
    fn took_long(&self, took_ns: u64) {
        let took_ns = took_ns.min(SPIN_NS_MAX) as u32;
        let before = match self.long_ns.load(Relaxed) {
            0 => took_ns,
            before => before,
        };
        self.long_ns.store(before - before / 8 + took_ns / 8, Relaxed);
        let left = self.to_probe.load(Relaxed).saturating_sub(1);
        self.to_probe.store(left, Relaxed);
        if left == 0 {
            let every = (self.probe_every.load(Relaxed) * 2).min(PROBE_MAX);
            self.probe_every.store(every, Relaxed);
            self.to_probe.store(every, Relaxed);
            self.probes.store(true, Relaxed);
            self.ban.store(1, Relaxed);
        }
    }

    /// A wait that slept had its event `waited_ns` after it began; `in_vain` if it had spun before.
    pub fn slept(&self, waited_ns: u64, in_vain: bool) {
        let late = self.late.load(Relaxed);
        if self.probes.load(Relaxed) && self.probes.swap(false, Relaxed) && !in_vain {
            let event_ns = u64::from(self.long_ns.load(Relaxed));
            let seen = waited_ns.saturating_sub(event_ns).min(u64::from(LATE_NS)) as u32;
            self.late.store(late / 2 + seen / 2, Relaxed);
        }
        if in_vain {
            // The event came after the spin, so the sleeper was no later than this.
            let seen = waited_ns.saturating_sub(SPIN_NS_MAX).min(u64::from(LATE_NS)) as u32;
            self.late.store((late + late / LATE_RISES + 1).min(seen), Relaxed);
            return self.weigh(-(SPIN_NS_MAX as i32));
        }
        let event_ns = waited_ns.saturating_sub(u64::from(late));
        // One that comes when the spin ends is not caught.
        if event_ns < SPIN_NS_MAX * 9 / 10 {
            self.weigh(self.sleep_worth_ns() - event_ns as i32);
        } else {
            self.weigh(-(SPIN_NS_MAX as i32));
        }
    }

    fn sleep_worth_ns(&self) -> i32 {
        SLEEP_CPU_NS + 2 * self.late.load(Relaxed) as i32
    }

    fn weigh(&self, gain: i32) {
        let before = self.gain.load(Relaxed);
        self.gain.store(before + (gain - before) / 8, Relaxed);
    }
}

impl Default for Policy {
    fn default() -> Policy {
        Policy::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_waits_stop_the_spinning_and_short_ones_bring_it_back() {
        let policy = Policy::new();
        assert!(policy.spin_ns() > 0);
        for _ in 0..4 {
            policy.slept(1_000_000, false);
        }
        assert_eq!(policy.spin_ns(), 0);
        for _ in 0..8 {
            policy.slept(40_000, false);
        }
        assert!(policy.spin_ns() > 0);
    }

    #[test]
    fn a_lost_core_bans_the_spinning_for_longer_each_time() {
        let policy = Policy::new();
        let banned = || (0..10_000).take_while(|_| policy.spin_ns() == 0).count();
        policy.overloaded();
        let first = banned();
        policy.overloaded();
        assert!(first > 0 && banned() > first);
        for _ in 0..10_000 {
            policy.caught(1_000);
        }
        policy.overloaded();
        assert_eq!(banned(), first);
    }

    #[test]
    fn a_peer_on_the_same_core_is_given_way_to() {
        let policy = Policy::new();
        policy.yielded(300, true);
        assert!(!policy.yields_first(), "nobody else ran");
        policy.yielded(1500, false);
        assert!(!policy.yields_first(), "somebody else ran, and it was not the peer");
        policy.yielded(1500, true);
        assert!(policy.yields_first());
        policy.yielded(300, false);
        assert!(!policy.yields_first(), "it has gone elsewhere");
    }

    #[test]
    fn a_machine_that_wakes_fast_is_known_by_a_spin_in_vain() {
        let policy = Policy::new();
        policy.slept(SPIN_NS_MAX + 4_000, true);
        assert!(policy.late.load(Relaxed) <= 4_000);
        for _ in 0..10_000 {
            policy.slept(5_000_000, true);
        }
        assert_eq!(policy.late.load(Relaxed), LATE_NS, "what is not seen again is forgotten");
    }

    #[test]
    fn one_long_wait_among_many_short_ones_does_not_stop_it() {
        let policy = Policy::new();
        for round in 0..1000 {
            if round % 10 == 9 {
                policy.slept(5_000_000, true);
            } else {
                policy.caught(1_000);
            }
        }
        assert!(policy.spin_ns() > 0);
    }
}
