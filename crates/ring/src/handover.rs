//! The words by which a stream enters and leaves the ring.
//!
//! This file knows their orderings, `stream` knows their meaning. After any store here the caller
//! looks for waiters of the other side (`WakeLine::take_data_waiters`, `take_space_waiters`), as
//! after moving a cursor.

use crate::layout::Direction;
use crate::sync::{acquire, release, Point, Relaxed};

impl Direction {
    /// Where the present segment begins; ordered by [`end`](Self::end), which opens it.
    #[inline]
    pub fn up_at(&self) -> u64 {
        self.producer.up_at.load(Relaxed)
    }

    /// Writer, before it opens the segment by [`end_cas`](Self::end_cas).
    #[inline]
    pub fn set_up_at(&self, offset: u64) {
        self.producer.up_at.store(offset, Relaxed)
    }

    /// The published tail, unchecked.
    #[inline]
    pub fn tail(&self) -> u64 {
        // SYNC tail -> Producer::publish: every byte before `tail` is written.
        self.producer.tail.load(acquire(Point::TailObserve))
    }

    /// Writer: the tail, when no [`Producer`](crate::Producer) is at hand to do it.
    #[inline]
    pub fn set_tail(&self, offset: u64) {
        // SYNC tail -> Consumer::refresh: every byte before `tail` is written.
        self.producer.tail.store(offset, release(Point::TailPublish))
    }

    /// The writer is gone, or as good as: its reader gets what it held back, of a ring of so many bytes. By any thread of
    /// the reader's process, or of one that had the writer's end as well, any number of times.
    pub fn show_held(&self, capacity: u64) {
        // SYNC held -> Producer::hold: every byte before `held` is written.
        let held = self.wake.held.load(acquire(Point::HeldObserve));
        let tail = self.producer.tail.load(Relaxed);
        if held <= tail || held - tail > capacity {
            return;
        }
        // The line's words have none of those bytes.
        self.producer.since.store(u64::MAX, Relaxed);
        // SYNC tail -> Consumer::refresh: every byte before `tail` is written. A writer that is there nonetheless
        // may have come further.
        self.producer.tail.fetch_max(held, release(Point::TailPublish));
    }

    /// The published head, unchecked.
    #[inline]
    pub fn head(&self) -> u64 {
        // SYNC head -> Consumer::release_to: every byte before `head` has been copied out.
        self.consumer.head.load(acquire(Point::HeadObserve))
    }

    /// Reader: the head, when no [`Consumer`](crate::Consumer) is at hand to do it.
    #[inline]
    pub fn set_head(&self, offset: u64) {
        // SYNC head -> Producer::refresh: every byte before `head` has been copied out.
        self.consumer.head.store(offset, release(Point::HeadPublish))
    }

    /// Where the byte at `offset` lies in an array of `capacity` bytes (a power of two). For bytes
    /// that were published and not taken yet.
    #[inline]
    pub fn position(&self, offset: u64, capacity: u32) -> usize {
        let origin = self.wake.origin.load(Relaxed);
        (offset.wrapping_sub(origin) & u64::from(capacity).wrapping_sub(1)) as usize
    }

    /// Where the handover stands.
    #[inline]
    pub fn end(&self) -> u64 {
        // SYNC end -> Direction::end_cas: what its setter stored before is seen too: its cursor, and
        // `up_at` of a segment that it opens.
        self.wake.end.load(acquire(Point::EndObserve))
    }

    /// Moves the handover on, unless the other side already did; then `Err` tells how.
    #[inline]
    pub fn end_cas(&self, from: u64, to: u64) -> Result<(), u64> {
        // SYNC end -> Direction::end: the setter's cursor was published before; and the loser of the
        // race sees the winner's.
        let won = release(Point::EndSet);
        let lost = acquire(Point::EndLost);
        self.wake.end.compare_exchange(from, to, won, lost).map(|_| ())
    }
}
