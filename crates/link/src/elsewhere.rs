//! What this process did that only the kernel tells: a byte through a pipe, a close, a datagram. A
//! waiter that finds a ring's mark made after it is to ask the kernel, too, or it would tell the
//! later of two things alone. When that was goes to the peer with each mark.

use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

use shunt_os::clock;

/// How exactly the time is kept, in its own units (1 to 4 us): who does such things all the time
/// leaves the line of the last one to other threads.
const PRECISION: u64 = 4096;

static LAST: AtomicU64 = AtomicU64::new(0);

/// This process makes a call that may make a descriptor ready somewhere.
#[inline]
pub fn note() {
    note_at(clock::stamp());
}

#[inline]
fn note_at(now: u64) {
    if now.wrapping_sub(LAST.load(Relaxed)) >= PRECISION {
        LAST.store(now, Relaxed);
    }
}

/// When [`note`] was called last ([`clock::stamp`]), to be compared by [`is_since`]; 0 is never.
#[inline]
pub fn last() -> u64 {
    LAST.load(Relaxed)
}

/// Whether something that was done at `done` may have been done after `time`.
#[inline]
pub fn is_since(done: u64, time: u64) -> bool {
    done != 0 && done.saturating_add(PRECISION) > time
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_done_last_is_known_within_the_precision() {
        assert!(!is_since(last(), 0), "nothing was done yet");
        for now in [10_000, 10_100, 14_095, 14_096, 99_999] {
            note_at(now);
            assert!(is_since(last(), now), "done at {now}, kept as {}", last());
            assert!(!is_since(last(), now + PRECISION));
        }
    }
}
