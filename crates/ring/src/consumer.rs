//! The reading end: see what is there, copy out, release.
//!
//! One consumer a direction at a time, in one process, under the stream's receive lock. It keeps its
//! own head and the tail it saw last, so that a read which is satisfied by known bytes reads nothing
//! that the peer stores.
// UNSAFETY: holds the mapping's addresses and copies into the program's memory.
#![allow(unsafe_code)]

use core::ptr::NonNull;

use crate::bytes::{Byte, Bytes};
use crate::latest::{self, LATEST_BYTES};
use crate::layout::Direction;
use crate::sync::{acquire, release, Point, Relaxed};
use crate::Corrupt;

pub struct Consumer {
    direction: NonNull<Direction>,
    bytes: Bytes,
    /// The first byte not yet taken; always what the shared head says.
    head: u64,
    /// The highest tail seen so far; bytes before it are ours to read.
    cached_tail: u64,
}

// SAFETY: the addresses are of a shared mapping, valid on every thread, and the one owner of a
// `Consumer` is the only reader wherever it runs.
unsafe impl Send for Consumer {}

impl Consumer {
    /// Takes up reading at the last published head.
    ///
    /// # Safety
    /// `direction` and `data..data + capacity` stay mapped and writable while the result is used;
    /// `capacity` is a power of two; the direction has no other consumer at the same time.
    pub unsafe fn attach(
        direction: NonNull<Direction>,
        data: NonNull<Byte>,
        capacity: u32,
    ) -> Consumer {
        // SAFETY: the caller's promise.
        let bytes = unsafe { Bytes::new(data, capacity) };
        // SAFETY: the caller's promise; only atomics are reached through the reference.
        let head = unsafe { direction.as_ref() }.consumer.head.load(Relaxed);
        Consumer { direction, bytes, head, cached_tail: head }
    }

    #[inline(always)]
    pub fn direction(&self) -> &Direction {
        // SAFETY: mapped for as long as `self` is used (`attach`), and nothing but atomics.
        unsafe { self.direction.as_ref() }
    }

    /// Crosses over to a segment: the next byte to take is number `offset`, where it began.
    pub fn start_at(&mut self, offset: u64) {
        self.cached_tail = offset;
        self.release_to(offset);
    }

    /// Offset of the first byte not yet taken.
    #[inline(always)]
    pub fn head(&self) -> u64 {
        self.head
    }

    pub fn capacity(&self) -> usize {
        self.bytes.capacity() as usize
    }

    /// Bytes that can be taken. Asks for the writer's tail only when none is known.
    #[inline]
    pub fn available(&mut self) -> Result<usize, Corrupt> {
        self.available_at_least(1)
    }

    /// Bytes that can be taken. Asks for the writer's tail only when less than `wanted` is known.
    #[inline]
    pub fn available_at_least(&mut self, wanted: usize) -> Result<usize, Corrupt> {
        let known = self.known();
        if known >= wanted || known == self.capacity() {
            return Ok(known);
        }
        self.available_fresh()
    }

    /// Bytes that can be taken, as of now.
    #[inline]
    pub fn available_fresh(&mut self) -> Result<usize, Corrupt> {
        self.refresh()?;
        Ok(self.known())
    }

    /// Takes up to `len` bytes and says how many; 0 is an empty ring.
    ///
    /// # Safety
    /// `dst..dst + len` is writable and no part of the ring.
    #[inline]
    pub unsafe fn read(&mut self, dst: *mut u8, len: usize) -> Result<usize, Corrupt> {
        let available = self.available_at_least(len)?;
        let count = if len <= available {
            len
        } else {
            // A branch and no minimum: what is predicted can be copied before the tail is here.
            core::hint::cold_path();
            available
        };
        if count != 0 {
            // SAFETY: `count` is at most `len` and at most the known bytes, hence the capacity.
            unsafe { self.copy_out(0, dst, count) };
            self.release_to(self.head.wrapping_add(count as u64));
        }
        Ok(count)
    }

    /// Copies up to `len` bytes from `skip` bytes behind the head on, and leaves them there.
    ///
    /// # Safety
    /// `dst..dst + len` is writable and no part of the ring.
    pub unsafe fn peek(&mut self, skip: usize, dst: *mut u8, len: usize) -> Result<usize, Corrupt> {
        let available = self.available_at_least(skip.saturating_add(len))?;
        let count = available.saturating_sub(skip).min(len);
        if count != 0 {
            // SAFETY: `skip + count` is at most the known bytes, hence the capacity.
            unsafe { self.copy_out(skip, dst, count) };
        }
        Ok(count)
    }

    /// The bytes that lie in one piece behind the head, for a system call to read from; then
    /// [`skip`](Self::skip) what it took.
    #[cfg(not(loom))]
    #[inline]
    pub fn readable(&mut self) -> Result<(NonNull<u8>, usize), Corrupt> {
        let available = self.available()?;
        Ok(self.bytes.piece(self.head, available))
    }

    /// Releases `n` known bytes unread. More than are known counts as all of them.
    #[inline]
    pub fn skip(&mut self, n: usize) {
        debug_assert!(n <= self.known(), "skipped more than is known to be there");
        self.release_to(self.head.wrapping_add(n.min(self.known()) as u64));
    }

    /// Of a ring that is written no more, and that several processes may read: stands where they all do.
    pub fn follow(&mut self) {
        self.head = self.direction().consumer.head.load(Relaxed);
        self.cached_tail = self.head;
    }

    /// Of such a ring: what is before `offset` was taken elsewhere. Whoever comes later, with what he knew before, moves nothing.
    pub fn begin_at(&mut self, offset: u64) {
        self.direction().consumer.head.fetch_max(offset, Relaxed);
        self.follow();
    }

    /// Takes `n` known bytes of such a ring, which were copied before; false if another process was
    /// first. Nobody writes in their place, so that no order is needed.
    pub fn claim(&mut self, n: usize) -> bool {
        let to = self.head.wrapping_add(n.min(self.known()) as u64);
        let shared = &self.direction().consumer.head;
        let claimed = shared.compare_exchange(self.head, to, Relaxed, Relaxed).is_ok();
        if claimed {
            self.head = to;
        }
        claimed
    }

    /// Offset behind the last byte that is known.
    #[inline(always)]
    pub fn seen(&self) -> u64 {
        self.cached_tail
    }

    /// Whether the writer has said that bytes behind those known are about to be shown, in the middle of a send.
    #[inline]
    pub fn is_amid_a_send(&self) -> bool {
        self.direction().wake.going_to.load(Relaxed) > self.cached_tail
    }

    /// After releasing: the ways in which the writer must be woken, 0 if it is awake.
    #[inline(always)]
    pub fn take_space_waiters(&self) -> u32 {
        self.direction().wake.take_space_waiters()
    }

    /// As [`take_space_waiters`](Self::take_space_waiters), unless there is more unread than the writer's
    /// [low water](crate::Producer::set_low_water): then it finds no room that is worth a wake-up, and is woken by a later
    /// release.
    #[inline(always)]
    pub fn take_space_waiters_at_low_water(&mut self) -> Result<u32, Corrupt> {
        if !self.direction().wake.space_is_wanted() {
            return Ok(0);
        }
        self.take_waiters_of_low_water()
    }

    #[cold]
    fn take_waiters_of_low_water(&mut self) -> Result<u32, Corrupt> {
        let unread = self.available_fresh()? as u64;
        if unread > self.direction().wake.low_water.load(Relaxed) {
            return Ok(0);
        }
        Ok(self.take_space_waiters())
    }

    /// Announces a sleep for data; the caller looks again before it sleeps. Returns the wake word.
    #[inline]
    pub fn want_data(&self, bit: u32) -> u32 {
        self.direction().wake.want_data(bit)
    }

    /// Copies from the writer's line what is found there, and from the array what is not.
    ///
    /// # Safety
    /// `dst..dst + count` is writable and no part of the ring; `count` is not 0, and `skip + count`
    /// at most the known bytes.
    #[inline(always)]
    unsafe fn copy_out(&self, skip: usize, dst: *mut u8, count: usize) {
        let from = self.head.wrapping_add(skip as u64);
        // SAFETY: not none, and at most as many as are known behind `from`.
        let done = self.known() - skip <= LATEST_BYTES
            && unsafe { latest::copy_out(&self.direction().producer, from, dst, count) };
        if !done {
            // SAFETY: the caller's promise.
            unsafe { self.bytes.copy_out(from, dst, count) };
        }
    }

    #[inline(always)]
    fn known(&self) -> usize {
        self.cached_tail.wrapping_sub(self.head) as usize
    }

    #[inline(always)]
    fn release_to(&mut self, offset: u64) {
        self.head = offset;
        // SYNC head -> Producer::refresh: every byte before `head` has been copied out.
        self.direction().consumer.head.store(offset, release(Point::HeadPublish));
    }

    /// Looks at the writer's tail and believes it only if it makes sense.
    #[inline]
    fn refresh(&mut self) -> Result<(), Corrupt> {
        // SYNC tail -> Producer::publish: every byte before `tail` is written.
        let tail = self.direction().producer.tail.load(acquire(Point::TailObserve));
        if tail < self.cached_tail || tail.wrapping_sub(self.head) > self.bytes.capacity() {
            return Err(Corrupt);
        }
        if self.head == self.cached_tail {
            // The writer moves the origin only while the ring is empty, and shows it by the tail.
            self.bytes.origin = self.direction().wake.origin.load(Relaxed);
        }
        self.cached_tail = tail;
        Ok(())
    }
}
