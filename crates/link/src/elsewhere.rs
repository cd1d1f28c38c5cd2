//! What this process did that only the kernel tells: a byte through a pipe, a close, a datagram. A
//! waiter that finds a ring's mark made after it is to ask the kernel, too, or it would tell the
//! later of two things alone. The count of such doings goes to the peer with each mark.

use core::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};

/// Set by every such call, and by most of them found set: their line stays shared.
static SOME: AtomicBool = AtomicBool::new(false);
static COUNT: AtomicU32 = AtomicU32::new(0);

/// This process made a call that may have made a descriptor ready somewhere.
#[inline]
pub fn note() {
    if !SOME.load(Relaxed) {
        SOME.store(true, Relaxed);
    }
}

/// A number that changes when [`note`] was called since.
#[inline]
pub fn count() -> u32 {
    if SOME.load(Relaxed) && SOME.swap(false, Relaxed) {
        COUNT.fetch_add(1, Relaxed);
    }
    COUNT.load(Relaxed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_count_changes_with_what_was_done_since() {
        note();
        let first = count();
        assert_eq!(count(), first);
        note();
        note();
        assert_eq!(count(), first + 1);
    }
}
