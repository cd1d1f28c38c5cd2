//! How long a wait spins before it sleeps.
//!
//! A sleep costs the waker 10 us and the sleeper 30 us across cores; a spin costs its length. The
//! policy keeps, for each wait set, the share of recent waits that a spin would have shortened.
//! Waits that slept are observed as well: if events come soon after the sleep began, spinning is taken
//! up again. Where that cannot be told, since the other side sleeps too, it is tried now and then.
//!
//! What a sleep costs differs from machine to machine, so the length of a spin is a setting of the
//! process ([`set_spin_ns`]): `shunt calibrate` measures it.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};

/// A spin where nobody measured, in nanoseconds: 1.5 times the half of a round trip between two
/// sleepers on two cores of the machine that this was written on.
pub const SPIN_NS_USUAL: u32 = 50_000;
/// The longest spin that can be set.
pub const SPIN_NS_MAX: u32 = 1_000_000;
/// A sleep that ended within this time would have been caught by a spin: the spin's length and what
/// waking takes, which the spin was derived from.
const fn soon_ns(spin_ns: u64) -> u64 {
    spin_ns + waking_ns(spin_ns)
}

const fn waking_ns(spin_ns: u64) -> u64 {
    const WAKING_NS_MAX: u64 = 90_000;
    let waking_ns = spin_ns * 9 / 10;
    if waking_ns < WAKING_NS_MAX {
        waking_ns
    } else {
        WAKING_NS_MAX
    }
}

/// A wait of this process spins no longer than this, in nanoseconds.
static SPIN_NS: AtomicU32 = AtomicU32::new(SPIN_NS_USUAL);

/// Sets how long waits of this process spin at most, in nanoseconds: what a spin may cost where a
/// sleep costs about as much. 0: they never do. At most [`SPIN_NS_MAX`].
pub fn set_spin_ns(spin_ns: u32) {
    SPIN_NS.store(spin_ns.min(SPIN_NS_MAX), Relaxed);
}

#[inline]
fn spin_ns_max() -> u64 {
    SPIN_NS.load(Relaxed).into()
}

/// The score is a moving average in 1/1024; a wait weighs 1/8.
const ONE: u32 = 1024;
/// Spinning pays when at least this share of waits is short.
const PAYS: u32 = ONE * 2 / 5;

/// Waits without spinning after a spin lost its core to somebody else, at first and at most: on an
/// overloaded host a sleeper is woken ahead of the others, a spinner that yields comes last.
const BAN_FIRST: u32 = 32;
const BAN_MAX: u32 = 4096;

/// Two that sleep for each other see waits that hold what waking took of both, and cannot tell them from
/// longer ones. After so many waits that may be such, at first and at most, one of them spins for as long as the
/// other is late, and so often in a row that the other sees how soon its answers come.
const HOPE_FIRST: u32 = 8;
const HOPE_MAX: u32 = 1024;
const HOPES: u32 = 8;

/// A yield that took this long gave the core to somebody; one that found nobody takes a third.
const SWITCH_NS: u64 = 800;

/// The memory of one wait set.
pub struct Policy {
    score: AtomicU32,
    /// Waits to come without spinning.
    ban: AtomicU32,
    /// The length of the next ban.
    ban_next: AtomicU32,
    /// Waits that may hold what waking took of both sides, and how many of them are worth a try.
    maybe_soon: AtomicU32,
    hope_next: AtomicU32,
    /// Longer spins to come.
    hopes: AtomicU32,
    /// The wait that goes on has spun and found nothing.
    in_vain: AtomicBool,
    /// The other side was seen to run on this very core.
    beside: AtomicBool,
}

impl Default for Policy {
    fn default() -> Policy {
        Policy::new()
    }
}

impl Policy {
    pub const fn new() -> Policy {
        Policy {
            score: AtomicU32::new(PAYS),
            ban: AtomicU32::new(0),
            ban_next: AtomicU32::new(BAN_FIRST),
            maybe_soon: AtomicU32::new(0),
            hope_next: AtomicU32::new(HOPE_FIRST),
            hopes: AtomicU32::new(0),
            in_vain: AtomicBool::new(false),
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
        if self.hopes.load(Relaxed) > 0 {
            soon_ns(spin_ns_max())
        } else if self.score.load(Relaxed) >= PAYS {
            spin_ns_max()
        } else {
            0
        }
    }

    /// Whether recent waits were so short that the next one is worth some looks before it is counted as a wait.
    #[inline]
    pub fn is_eager(&self) -> bool {
        self.score.load(Relaxed) >= PAYS
            && self.ban.load(Relaxed) == 0
            && !self.beside.load(Relaxed)
            && spin_ns_max() > 0
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

    /// A spin was enough.
    #[inline]
    pub fn caught(&self) {
        let next = self.ban_next.load(Relaxed);
        if next > BAN_FIRST {
            self.ban_next.store(next - next / 64 - 1, Relaxed);
        }
        self.count(true);
        let hopes = self.hopes.load(Relaxed);
        if hopes > 0 {
            self.came_true(hopes);
        }
    }

    /// A spin found nothing, and a sleep follows.
    pub fn in_vain(&self) {
        self.in_vain.store(true, Relaxed);
    }

    /// A wait ended after `waited_ns`, and gave the core up.
    pub fn slept(&self, waited_ns: u64) {
        let (spin_ns, in_vain) = (spin_ns_max(), self.in_vain.swap(false, Relaxed));
        let is_soon = waited_ns < soon_ns(spin_ns);
        self.count(is_soon && !in_vain);
        if self.hopes.swap(0, Relaxed) > 0 {
            let next = self.hope_next.load(Relaxed).max(HOPE_FIRST);
            self.hope_next.store((next * 2).min(HOPE_MAX), Relaxed);
        } else if (in_vain || !is_soon) && waited_ns < soon_ns(spin_ns) + waking_ns(spin_ns) {
            self.may_be_soon();
        }
    }

    fn count(&self, short: bool) {
        let score = self.score.load(Relaxed);
        let target = if short { ONE } else { 0 };
        self.score.store(score - score / 8 + target / 8, Relaxed);
    }

    fn may_be_soon(&self) {
        let count = self.maybe_soon.load(Relaxed) + 1;
        let is_hopeful = count >= self.hope_next.load(Relaxed);
        self.maybe_soon.store(if is_hopeful { 0 } else { count }, Relaxed);
        if is_hopeful {
            self.hopes.store(HOPES, Relaxed);
        }
    }

    #[cold]
    fn came_true(&self, hopes: u32) {
        self.hopes.store(hopes - 1, Relaxed);
        if hopes == 1 {
            self.hope_next.store(HOPE_FIRST, Relaxed);
        }
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
            policy.slept(1_000_000);
        }
        assert_eq!(policy.spin_ns(), 0);
        for _ in 0..8 {
            policy.slept(40_000);
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
            policy.caught();
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
    fn what_comes_soon_is_what_a_spin_would_have_caught() {
        assert_eq!(soon_ns(SPIN_NS_USUAL.into()), 95_000);
        assert_eq!(soon_ns(10_000), 19_000);
        assert_eq!(soon_ns(SPIN_NS_MAX.into()), 1_090_000, "waking never takes that long");
        assert_eq!(soon_ns(0), 0);
    }

    #[test]
    fn one_long_wait_among_many_short_ones_does_not_stop_it() {
        let policy = Policy::new();
        for round in 0..1000 {
            if round % 10 == 9 {
                policy.slept(5_000_000);
            } else {
                policy.caught();
            }
        }
        assert!(policy.spin_ns() > 0);
    }
}
