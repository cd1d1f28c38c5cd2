//! Who sleeps and must be woken: announce, fence, look again; publish, fence, look.
//!
//! A waiter sets a bit in its wake word, and sleeps only if there is still nothing after that. The
//! other side looks at the word after each publication and takes the bits. Between "I stored mine"
//! and "I read yours" stands a full fence on both sides, so one of them sees the other: the waiter
//! finds the news, or the publisher finds the waiter. How to wake is the caller's business, and comes
//! after the word was taken.

use crate::layout::WakeLine;
use crate::sync::{fence, AtomicU32, Point, Relaxed};

/// The waiter is in a wait set: mark its slot in the [`ReadyMap`](crate::ReadyMap) of its link.
pub const WAIT_SET: u32 = 1;
/// A thread sleeps in a futex on the wake word itself: wake all of them.
pub const FUTEX: u32 = 2;
const WAYS: u32 = WAIT_SET | FUTEX;
/// Above the ways, a wake word counts how often somebody was woken: a thread that is about to sleep by a
/// word that was taken does not, although another has announced itself by then.
const ONE_WAKE: u32 = WAYS + 1;

impl WakeLine {
    /// Announces that the reader will sleep unless it finds something now; the caller looks again
    /// at `tail` and `end` after this. Returns the word, to compare in the futex.
    #[inline]
    pub fn want_data(&self, bit: u32) -> u32 {
        // SYNC data_wanted -> WakeLine::take_data_waiters: this fence and the one there are ordered
        // one way or the other, so the reader sees the publication or the publisher this bit.
        announce(&self.data_wanted, bit, Point::DataWaiter)
    }

    /// Takes back an announcement whose sleep was not needed, to spare the peer a needless wake.
    /// Only for a caller who knows that no other thread waits by the same bit.
    #[inline]
    pub fn unwant_data(&self, bit: u32) {
        self.data_wanted.fetch_and(!bit, Relaxed);
    }

    /// After publishing for the reader (`tail`, `end`): the ways in which it must be
    /// woken, 0 if it is awake.
    #[inline]
    pub fn take_data_waiters(&self) -> u32 {
        // SYNC data_wanted -> WakeLine::want_data: what was published before this fence is seen by
        // a reader whose bit is not seen here.
        take(&self.data_wanted, Point::DataWaker)
    }

    /// As [`take_data_waiters`](Self::take_data_waiters), by the reader's own side and only for who sleeps
    /// in a futex: something else than the ring is worth a look. True if somebody does.
    pub fn take_data_sleepers(&self) -> bool {
        fence(Point::DataWaker);
        take_ways(&self.data_wanted, FUTEX) != 0
    }

    /// Announces that the writer will sleep unless it finds space now.
    #[inline]
    pub fn want_space(&self, bit: u32) -> u32 {
        // SYNC space_wanted -> WakeLine::take_space_waiters: as for `data_wanted`, the sides swapped.
        announce(&self.space_wanted, bit, Point::SpaceWaiter)
    }

    /// As [`unwant_data`](Self::unwant_data), for the writer.
    #[inline]
    pub fn unwant_space(&self, bit: u32) {
        self.space_wanted.fetch_and(!bit, Relaxed);
    }

    /// After publishing for the writer (`head`, `end`): how it must be woken.
    #[inline]
    pub fn take_space_waiters(&self) -> u32 {
        // SYNC space_wanted -> WakeLine::want_space: as for `data_wanted`, the sides swapped.
        take(&self.space_wanted, Point::SpaceWaker)
    }

    /// After publishing for the writer: whether [`take_space_waiters`](Self::take_space_waiters) has something to
    /// take, which nobody else does.
    #[inline(always)]
    pub fn space_is_wanted(&self) -> bool {
        // SYNC space_wanted -> WakeLine::want_space: as above.
        is_wanted(&self.space_wanted, Point::LowWaterWaker)
    }

    /// As [`take_data_sleepers`](Self::take_data_sleepers), for the writer.
    pub fn take_space_sleepers(&self) -> bool {
        fence(Point::SpaceWaker);
        take_ways(&self.space_wanted, FUTEX) != 0
    }
}

#[inline(always)]
fn announce(word: &AtomicU32, bit: u32, point: Point) -> u32 {
    let before = word.fetch_or(bit, Relaxed);
    fence(point);
    before | bit
}

#[inline(always)]
fn is_wanted(word: &AtomicU32, point: Point) -> bool {
    fence(point);
    word.load(Relaxed) & WAYS != 0
}

#[inline(always)]
fn take(word: &AtomicU32, point: Point) -> u32 {
    if !is_wanted(word, point) {
        return 0;
    }
    take_ways(word, WAYS)
}

/// Without a loop, which the other side could keep from ending. Who sleeps between the two steps is woken
/// by the wake that follows.
#[cold]
fn take_ways(word: &AtomicU32, ways: u32) -> u32 {
    let taken = word.fetch_and(!ways, Relaxed) & ways;
    if taken != 0 {
        word.fetch_add(ONE_WAKE, Relaxed);
    }
    taken
}
