//! A reader of many small messages that it never answers.
//!
//! Each look at the writer's line takes it from the writer, who has to have it back for the next message: a
//! reader that keeps up with its writer looks after every message or two, and both do little else. So a
//! receive that comes right after one which left nothing waits a moment before it looks, until there is more
//! to take at once. A message is late by that moment at most, and only right behind another.

use shunt_os::clock;

/// The moment, in the ticks of [`clock::stamp`]: some 0.4 us, in which a writer sends ten messages.
const TICKS: u64 = 1000;
/// After so many receives in a row that left nothing, and nothing sent meanwhile.
const RECEIVES: u32 = 32;
/// A receive of more than this is worth a look of its own.
const SMALL: usize = 4096;

/// What recent receives on a stream found.
pub struct Flow {
    receives: u32,
    /// Messages sent on the stream when they began.
    sent: u64,
    /// Where the last one ended in the stream, and when.
    offset: u64,
    stamp: u64,
}

impl Flow {
    pub const NONE: Flow = Flow { receives: 0, sent: 0, offset: 0, stamp: 0 };

    /// A receive took `count` bytes, up to `offset` in the stream, and left nothing. `sent` is how many
    /// messages were sent on the stream so far.
    pub fn drained(&mut self, count: usize, offset: u64, sent: u64) {
        if count > SMALL || sent != self.sent {
            self.receives = 0;
            self.sent = sent;
            return;
        }
        self.receives = self.receives.saturating_add(1);
        self.offset = offset;
        if self.receives >= RECEIVES {
            self.stamp = clock::stamp();
        }
    }

    /// Whether a receive that begins at `offset` is to [`gather`](Self::gather) first.
    #[inline(always)]
    pub fn gathers(&self, offset: u64) -> bool {
        self.receives >= RECEIVES && self.offset == offset
    }

    /// Waits until the moment after the last receive is over.
    #[cold]
    pub fn gather(&self) {
        while clock::stamp().wrapping_sub(self.stamp) < TICKS {
            core::hint::spin_loop();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(receives: u32) -> Flow {
        let mut flow = Flow::NONE;
        (0..receives).for_each(|at| flow.drained(8, u64::from(at + 1) * 8, 0));
        flow
    }

    #[test]
    fn who_only_receives_gathers() {
        assert!(!after(RECEIVES - 1).gathers(u64::from(RECEIVES - 1) * 8));
        let end = u64::from(RECEIVES) * 8;
        assert!(after(RECEIVES).gathers(end));
        assert!(!after(RECEIVES).gathers(end + 8), "the last receive left something");
    }

    #[test]
    fn an_answer_or_much_at_once_begins_anew() {
        for (count, sent) in [(8, 1), (SMALL + 1, 0)] {
            let mut flow = after(RECEIVES);
            flow.drained(count, 1000, sent);
            assert!(!flow.gathers(1000));
            flow.drained(8, 1008, sent);
            assert!(!flow.gathers(1008));
        }
    }

    #[test]
    fn a_moment_that_is_over_is_not_waited_for() {
        let flow = after(RECEIVES);
        flow.gather();
        assert!(clock::stamp().wrapping_sub(flow.stamp) >= TICKS);
        // A clock that other cores are behind: all of the span is over.
        Flow { stamp: clock::stamp().wrapping_add(TICKS * 1000), ..flow }.gather();
    }
}
