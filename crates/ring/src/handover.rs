//! The words by which a stream enters and leaves the ring.
//!
//! This file knows their orderings, `stream` knows their meaning. After any store here the caller
//! looks for waiters of the other side (`WakeLine::take_data_waiters`, `take_space_waiters`), as
//! after moving a cursor.

use crate::layout::Direction;
use crate::sync::{acquire, release, Point, Relaxed};

/// The end word of a segment that has not ended.
pub const OPEN: u64 = 0;

impl Direction {
    /// Reader: the writer's latest segment.
    #[inline]
    pub fn segment(&self) -> u32 {
        // SYNC segment -> Direction::set_segment: `tail`, `up_at` and `end` of that segment are set.
        self.producer.segment.load(acquire(Point::SegmentObserve))
    }

    /// Writer: begins a segment; `tail`, `end` and `up_at` were stored before.
    #[inline]
    pub fn set_segment(&self, segment: u32) {
        // SYNC segment -> Direction::segment: who sees the number sees where the segment begins.
        self.producer.segment.store(segment, release(Point::SegmentPublish))
    }

    /// Where the present segment begins; ordered by [`segment`](Self::segment).
    #[inline]
    pub fn up_at(&self) -> u64 {
        self.producer.up_at.load(Relaxed)
    }

    /// Writer, before [`set_segment`](Self::set_segment).
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

    /// Writer: the segment that the reader lets it begin.
    #[inline]
    pub fn ready(&self) -> u32 {
        // SYNC ready -> Direction::set_ready: what the reader left behind (`finished`) is seen too.
        self.consumer.ready.load(acquire(Point::ReadyObserve))
    }

    /// Reader: lets the writer begin `segment`.
    #[inline]
    pub fn set_ready(&self, segment: u32) {
        // SYNC ready -> Direction::ready: `finished` was stored before.
        self.consumer.ready.store(segment, release(Point::ReadyPublish))
    }

    /// Writer: the last segment that the reader is done with.
    #[inline]
    pub fn finished(&self) -> u32 {
        // SYNC finished -> Direction::set_finished: the reader's last copy out of it has ended.
        self.consumer.finished.load(acquire(Point::FinishedObserve))
    }

    /// Reader: is done with `segment` and touches its bytes no more.
    #[inline]
    pub fn set_finished(&self, segment: u32) {
        // SYNC finished -> Direction::finished: the bytes may be overwritten by the next segment.
        self.consumer.finished.store(segment, release(Point::FinishedPublish))
    }

    /// How the present segment ended.
    #[inline]
    pub fn end(&self) -> u64 {
        // SYNC end -> Direction::end_cas: the cursor that its setter published last is seen too.
        self.wake.end.load(acquire(Point::EndObserve))
    }

    /// Writer, before [`set_segment`](Self::set_segment): the segment to come has not ended.
    #[inline]
    pub fn reopen(&self) {
        self.wake.end.store(OPEN, Relaxed)
    }

    /// Ends the segment, unless the other side already did; then `Err` tells how.
    #[inline]
    pub fn end_cas(&self, from: u64, to: u64) -> Result<(), u64> {
        // SYNC end -> Direction::end: the setter's cursor was published before; and the loser of the
        // race sees the winner's.
        let won = release(Point::EndSet);
        let lost = acquire(Point::EndLost);
        self.wake.end.compare_exchange(from, to, won, lost).map(|_| ())
    }
}
