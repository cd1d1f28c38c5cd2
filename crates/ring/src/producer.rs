//! The writing end: find room, copy in, publish.
//!
//! One producer a direction at a time, in one process, under the stream's send lock. It keeps its
//! own tail and the head it saw last, so that a write which fits into known room reads nothing that
//! the peer stores. Bytes that are staged are the producer's own until they are published.
// UNSAFETY: holds the mapping's addresses and copies from the program's memory.
#![allow(unsafe_code)]

use core::ops::Range;
use core::ptr::NonNull;

use crate::bytes::{Byte, Bytes};
use crate::latest::{load_few, Shadow, LATEST_BYTES, WORD_BYTES};
use crate::layout::Direction;
use crate::sync::{acquire, release, Point, Relaxed};
use crate::Corrupt;

/// A ring that is found empty begins again at its array's start, so that a stream of requests and
/// answers uses this much memory and not all of the ring. So often it is looked, in bytes.
const WINDOW: u64 = if cfg!(loom) { u64::MAX } else { 8 * 1024 };
/// So many windows pass after the ring was found in use: a stream in bulk looks less often.
const WINDOWS_IN_USE: u64 = if cfg!(test) { 1 } else { 8 };
/// Where so many of them came since the last look, messages are long: memory that the reader has not had lately takes
/// them faster than what it has just read, for which the two cores would change places line by line.
const WINDOWS_LONG: u64 = 2;
/// Memory of the array's that is worth giving back when the stream rests, in bytes from its start on.
const GROWN: u64 = if cfg!(test) { 4 } else { 32 * 1024 };
/// What of it stays, for the next requests and answers.
const KEPT: u64 = match (cfg!(loom), cfg!(test)) {
    (true, _) => 0,
    (false, true) => 1,
    (false, false) => 8 * 1024,
};

/// Whether the ring uses more memory than requests and answers do.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Growth {
    Small,
    /// It does, and nobody has [taken note](Producer::take_growth).
    New,
    Noted,
}

pub struct Producer {
    direction: NonNull<Direction>,
    bytes: Bytes,
    /// Behind the last byte copied in; the shared tail is this once published.
    tail: u64,
    /// What the shared tail is.
    published: u64,
    /// What the line's `latest` is once the staged bytes are published, unless they went past it.
    shadow: Shadow,
    /// Some of the staged bytes are not in `shadow`.
    past_latest: bool,
    /// The last publication was not in `shadow`, and `since` says so.
    gap: bool,
    /// The highest head seen so far, at least `floor`; bytes before it may be overwritten.
    cached_head: u64,
    /// Where the segment began: until the reader has crossed over, its head is from before.
    floor: u64,
    /// The tail from which on it is looked whether the ring is empty.
    look_at: u64,
    /// The tail at the last look.
    looked: u64,
    window: u64,
    /// So far long messages walk through the array before it begins again.
    walk: u64,
    /// How many bytes may lie unread.
    room: u64,
    /// So many bytes of the array, from its start on, may have been written to since [`rest`](Self::rest),
    /// as of when it began again last.
    touched: u64,
    growth: Growth,
}

// SAFETY: the addresses are of a shared mapping, valid on every thread, and the one owner of a
// `Producer` is the only writer wherever it runs.
unsafe impl Send for Producer {}

impl Producer {
    /// Takes up writing at the last published tail.
    ///
    /// # Safety
    /// `direction` and `data..data + capacity` stay mapped and writable while the result is used;
    /// `capacity` is a power of two; the direction has no other producer at the same time.
    pub unsafe fn attach(
        direction: NonNull<Direction>,
        data: NonNull<Byte>,
        capacity: u32,
    ) -> Producer {
        // SAFETY: the caller's promise.
        let mut bytes = unsafe { Bytes::new(data, capacity) };
        // SAFETY: the caller's promise; only atomics are reached through the reference.
        let words = unsafe { direction.as_ref() };
        let line = &words.producer;
        bytes.origin = words.wake.origin.load(Relaxed);
        let tail = line.tail.load(Relaxed);
        let floor = line.up_at.load(Relaxed).min(tail);
        // Our shadow knows nothing of the bytes before, and will overwrite what is there of them.
        line.since.store(tail, Relaxed);
        words.wake.held.store(tail, Relaxed);
        Producer {
            direction,
            bytes,
            tail,
            published: tail,
            shadow: Shadow::new(),
            past_latest: false,
            gap: false,
            cached_head: floor,
            floor,
            look_at: tail.saturating_add(WINDOW),
            looked: tail,
            window: WINDOW,
            walk: 0,
            room: u64::from(capacity),
            touched: 0,
            growth: Growth::Small,
        }
    }

    #[inline(always)]
    pub fn direction(&self) -> &Direction {
        // SAFETY: mapped for as long as `self` is used (`attach`), and nothing but atomics.
        unsafe { self.direction.as_ref() }
    }

    /// Begins a segment: the ring is empty and the next byte is number `offset`. The reader is done
    /// with the segment before, and learns of this one by the `end` word afterwards.
    pub fn start_at(&mut self, offset: u64) {
        self.look_at_growth();
        self.tail = offset;
        self.floor = offset;
        self.cached_head = offset;
        self.begin_again();
        self.past_latest = true;
        self.direction().wake.held.store(offset, Relaxed);
        self.publish();
    }

    /// Looks more often whether the ring is empty, which small rings of tests would not do.
    #[cfg(test)]
    pub(crate) fn set_window(&mut self, window: u64) {
        self.window = window;
        self.look_later(1);
    }

    /// The ring is empty: the next byte lies at the array's start.
    fn begin_again(&mut self) {
        self.bytes.origin = self.tail;
        self.look_later(1);
        // Shown by the next publication, before which no reader looks at it.
        self.direction().wake.origin.store(self.tail, Relaxed);
    }

    /// Before something is staged: if nothing else is in the ring, it lies at the array's start.
    #[inline(always)]
    fn begin_again_if_empty(&mut self) -> Result<(), Corrupt> {
        if self.tail < self.look_at {
            return Ok(());
        }
        self.look_whether_empty()
    }

    #[cold]
    fn look_whether_empty(&mut self) -> Result<(), Corrupt> {
        if self.staged() != 0 {
            return Ok(());
        }
        self.look_at_growth();
        self.refresh()?;
        if self.cached_head != self.tail {
            self.look_later(WINDOWS_IN_USE);
        } else if self.walks_on() {
            self.look_later(1);
        } else {
            self.begin_again();
        }
        Ok(())
    }

    fn look_later(&mut self, windows: u64) {
        self.looked = self.tail;
        self.look_at = self.tail.saturating_add(self.window.saturating_mul(windows));
    }

    /// Whether the next message, of which it is guessed that it is as long as what came since the last look, lies
    /// behind the last, though the ring is empty.
    fn walks_on(&self) -> bool {
        let came = self.tail.wrapping_sub(self.looked);
        let used = self.tail.wrapping_sub(self.bytes.origin);
        let is_long = came >= self.window.saturating_mul(WINDOWS_LONG);
        is_long && used.saturating_add(came) <= self.walk
    }

    /// Lets long messages walk through so many bytes of the array, from its start on, before it begins again. None at
    /// first, and once the stream has [rested](Self::rest).
    pub fn set_walk(&mut self, bytes: u64) {
        self.walk = bytes.min(self.bytes.capacity());
    }

    fn look_at_growth(&mut self) {
        let used = self.tail.wrapping_sub(self.bytes.origin).min(self.bytes.capacity());
        self.touched = self.touched.max(used);
        if self.touched > GROWN && self.growth == Growth::Small {
            self.growth = Growth::New;
        }
    }

    /// Whether the ring uses so much memory that somebody is to let it [rest](Self::rest) later, and nobody
    /// has taken note.
    #[inline(always)]
    pub fn has_grown(&self) -> bool {
        self.growth == Growth::New
    }

    /// As [`has_grown`](Self::has_grown): the caller takes note.
    #[inline]
    pub fn take_growth(&mut self) -> bool {
        let grown = self.has_grown();
        if grown {
            self.growth = Growth::Noted;
        }
        grown
    }

    /// Who took note does not look after it any more: it is to be noted anew, as soon as the ring is used.
    pub fn forget_growth(&mut self) {
        self.growth = Growth::Small;
        self.walk = 0;
    }

    /// The stream rests. If the ring is empty, it begins again at its array's start, and nobody looks at the
    /// positions of the array that are returned before they are written to: their memory may become zeros.
    /// Nothing is empty while bytes are staged. What grows anew is to be noted anew.
    pub fn rest(&mut self) -> Result<Range<usize>, Corrupt> {
        self.growth = Growth::Small;
        if self.staged() != 0 {
            return Ok(0..0);
        }
        self.refresh()?;
        if self.cached_head != self.tail {
            return Ok(0..0);
        }
        self.look_at_growth();
        self.growth = Growth::Small;
        self.walk = 0;
        self.begin_again();
        let kept = KEPT.min(self.touched);
        let touched = core::mem::replace(&mut self.touched, kept);
        Ok(kept as usize..touched as usize)
    }

    /// No more than so many bytes of the array, from its start on, were written to, but for what was given back.
    pub fn touched(&mut self) -> u64 {
        self.look_at_growth();
        self.touched
    }

    /// Offset behind the last byte copied in, published or not.
    #[inline(always)]
    pub fn tail(&self) -> u64 {
        self.tail
    }

    pub fn capacity(&self) -> usize {
        self.bytes.capacity() as usize
    }

    /// How many bytes may lie unread in the ring.
    pub fn room(&self) -> usize {
        self.room as usize
    }

    /// Lets no more than `bytes` lie unread, where the ring would have room for more.
    pub fn set_room(&mut self, bytes: u64) {
        self.room = bytes.clamp(1, self.bytes.capacity());
    }

    /// A writer that waits for space is woken when no more than `unread` bytes lie in the ring.
    pub fn set_low_water(&mut self, unread: u64) {
        self.direction().wake.low_water.store(unread, Relaxed);
    }

    /// How many bytes the reader has not taken yet, as of now.
    pub fn unread(&mut self) -> Result<u64, Corrupt> {
        self.refresh()?;
        Ok(self.tail.wrapping_sub(self.cached_head))
    }

    /// Room for new bytes. Asks for the reader's head only when none is known.
    #[inline]
    pub fn free(&mut self) -> Result<usize, Corrupt> {
        self.free_at_least(1)
    }

    /// Room for new bytes. Asks for the reader's head only when less than `wanted` is known.
    #[inline]
    pub fn free_at_least(&mut self, wanted: usize) -> Result<usize, Corrupt> {
        let known = self.known_free();
        if known >= wanted || known == self.room() {
            return Ok(known);
        }
        self.free_fresh()
    }

    #[cold]
    fn free_fresh(&mut self) -> Result<usize, Corrupt> {
        self.refresh()?;
        Ok(self.known_free())
    }

    /// Copies in what fits of `len` bytes, publishes it, and says how much; 0 is a full ring.
    ///
    /// # Safety
    /// `src..src + len` is readable and no part of the ring.
    #[inline]
    pub unsafe fn write(&mut self, src: *const u8, len: usize) -> Result<usize, Corrupt> {
        // SAFETY: the caller's promise.
        let copied = unsafe { self.stage_copy(src, len) }?;
        if copied != 0 {
            self.publish();
        }
        Ok(copied)
    }

    /// As [`write`](Self::write) without publishing: several pieces become one publication.
    ///
    /// # Safety
    /// As for [`write`](Self::write).
    #[inline(always)]
    pub unsafe fn stage_copy(&mut self, src: *const u8, len: usize) -> Result<usize, Corrupt> {
        self.begin_again_if_empty()?;
        let free = self.free_at_least(len)?;
        if (1..=WORD_BYTES).contains(&len)
            && len <= free
            && self.staged() + len as u64 <= LATEST_BYTES as u64
        {
            // SAFETY: a word and less, and at most the free room.
            unsafe { self.stage_word(src, len) };
            return Ok(len);
        }
        let count = free.min(len);
        // SAFETY: `count` is at most `len` and at most the free room, hence the capacity.
        unsafe { self.stage_piece(src, count) };
        Ok(count)
    }

    /// # Safety
    /// `src..src + len` is readable; `len` is 1 to 8, at most the free room, and what is staged with
    /// it is at most what `latest` has.
    #[inline(always)]
    unsafe fn stage_word(&mut self, src: *const u8, len: usize) {
        // SAFETY: the caller's promise.
        let value = unsafe { load_few(src, len) };
        self.shadow.put_word(self.tail, value, u64::MAX >> (64 - len * 8));
        // SAFETY: the free room is at most the capacity.
        unsafe { self.bytes.copy_word_in(self.tail, value, len) };
        self.tail = self.tail.wrapping_add(len as u64);
    }

    /// # Safety
    /// `src..src + len` is readable; `len` is at most the free room.
    unsafe fn stage_piece(&mut self, src: *const u8, len: usize) {
        // SAFETY: the free room is at most the capacity.
        unsafe { self.bytes.copy_in(self.tail, src, len) };
        if len >= WORD_BYTES && self.staged() + len as u64 <= LATEST_BYTES as u64 {
            // SAFETY: the caller's bytes, a word or more, and at most as many as `latest` has.
            unsafe { self.shadow.put(self.tail, src, len) };
        } else if len != 0 {
            self.past_latest = true;
        }
        self.tail = self.tail.wrapping_add(len as u64);
    }

    /// The free part that lies in one piece behind the tail, for a system call to write into; then
    /// [`stage`](Self::stage) what it wrote.
    #[cfg(not(loom))]
    #[inline]
    pub fn writable(&mut self) -> Result<(NonNull<u8>, usize), Corrupt> {
        self.begin_again_if_empty()?;
        let free = self.free()?;
        Ok(self.bytes.piece(self.tail, free))
    }

    /// Counts `n` bytes that were put where [`writable`](Self::writable) said. More than there is
    /// room for counts as all of it.
    #[inline]
    pub fn stage(&mut self, n: usize) {
        let free = self.known_free();
        debug_assert!(n <= free, "staged more than there is room for");
        self.tail = self.tail.wrapping_add(n.min(free) as u64);
        self.past_latest = true;
    }

    /// Shows the reader everything staged.
    #[inline(always)]
    pub fn publish(&mut self) {
        let line = &self.direction().producer;
        let gap = self.past_latest;
        if gap != self.gap {
            // Once for any number of publications that leave the words out.
            line.since.store(if gap { u64::MAX } else { self.published }, Relaxed);
        }
        if !gap {
            self.shadow.show(line, self.published, self.tail);
        }
        // SYNC tail -> Consumer::refresh: every byte before `tail` is written, also to `latest` if
        // `since` says so.
        line.tail.store(self.tail, release(Point::TailPublish));
        self.gap = gap;
        self.past_latest = false;
        self.published = self.tail;
    }

    /// Keeps everything staged from the reader until the next publication, or the end of this process.
    #[inline]
    pub fn hold(&mut self) {
        // SYNC held -> Direction::show_held: every byte before `held` is written.
        self.direction().wake.held.store(self.tail, release(Point::HeldPublish));
    }

    /// How many bytes are staged, be they held or about to be shown.
    #[inline]
    pub fn held(&self) -> usize {
        self.staged() as usize
    }

    /// Tells the reader that `more` bytes behind those staged are about to be shown. It is a hint: a reader that is
    /// in the middle of them waits a moment for the rest.
    #[inline]
    pub fn announce(&self, more: usize) {
        self.direction().wake.going_to.store(self.tail.wrapping_add(more as u64), Relaxed);
    }

    /// Copies bytes `from..from + len`, written before, back out of the ring, to send them by
    /// another carrier. `from` is at or after the reader's head; `Corrupt` if it is known not to be,
    /// or if that much was not written.
    ///
    /// # Safety
    /// `dst..dst + len` is writable and no part of the ring.
    pub unsafe fn copy_back(&self, from: u64, dst: *mut u8, len: usize) -> Result<(), Corrupt> {
        let behind = self.tail.wrapping_sub(from);
        if behind > self.bytes.capacity() || len as u64 > behind || from < self.cached_head {
            return Err(Corrupt);
        }
        // SAFETY: `len` is at most `behind`, which is at most the capacity.
        unsafe { self.bytes.copy_out(from, dst, len) };
        Ok(())
    }

    /// After publishing: the ways in which the reader must be woken, 0 if it is awake.
    #[inline(always)]
    pub fn take_data_waiters(&self) -> u32 {
        self.direction().wake.take_data_waiters()
    }

    /// Announces a sleep for space; the caller looks again before it sleeps. Returns the wake word.
    #[inline]
    pub fn want_space(&self, bit: u32) -> u32 {
        self.direction().wake.want_space(bit)
    }

    #[inline(always)]
    fn staged(&self) -> u64 {
        self.tail.wrapping_sub(self.published)
    }

    #[inline(always)]
    fn known_free(&self) -> usize {
        let used = self.tail.wrapping_sub(self.cached_head);
        self.room.saturating_sub(used) as usize
    }

    /// Looks at the reader's head and believes it only if it makes sense.
    #[inline]
    fn refresh(&mut self) -> Result<(), Corrupt> {
        // SYNC head -> Consumer::release_to: every byte before `head` has been copied out.
        let head = self.direction().consumer.head.load(acquire(Point::HeadObserve));
        let head = head.max(self.floor);
        if head < self.cached_head || self.tail.wrapping_sub(head) > self.bytes.capacity() {
            return Err(Corrupt);
        }
        self.cached_head = head;
        Ok(())
    }
}
