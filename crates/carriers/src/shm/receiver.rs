//! The reading end of a ring, with the bell of its link.
// UNSAFETY: attaches to the link's memory and copies into the program's.
#![allow(unsafe_code)]

use shunt_link::{Link, Side};
use shunt_os::{clock, raw};
use shunt_ring::{Consumer, FUTEX};
use shunt_stream::{End, Words};

use super::piece::part_of;
use super::{incoming, wake, SlotWords};
use crate::carrier::Half;
use crate::parts::up_to;
use crate::{Failure, How, Part, Received, Wait};

/// Copies `len` bytes from stream offset `from` on out of the ring that `writer` writes, for who is not its receiver. They
/// were published, and the receiver has not taken them; what a hostile peer says of that is no matter here.
///
/// # Safety
/// `into` may be written, `len` bytes.
pub unsafe fn copy_published(
    link: &Link,
    slot: u32,
    writer: Side,
    from: u64,
    into: *mut u8,
    len: usize,
) {
    let memory = &link.memory;
    let data = memory.data(slot, writer);
    // SAFETY: a link's memory stays mapped while a stream stands in it.
    let direction = unsafe { memory.direction(slot, writer).as_ref() };
    for step in 0..len {
        let at = direction.position(from + step as u64, memory.ring_bytes());
        // SAFETY: masked into the ring, and within the caller's buffer.
        unsafe { into.add(step).write(data.as_ptr().add(at).read_volatile()) };
    }
}

/// Used under the stream's receive lock.
pub struct Receiver {
    pub(super) ring: Consumer,
    link: &'static Link,
    slot: u32,
}

impl Receiver {
    /// The end that this process reads in `slot`.
    ///
    /// # Safety
    /// The link's memory stays mapped while the result is used, and the direction has no other
    /// receiver at the same time.
    pub unsafe fn attach(link: &'static Link, slot: u32) -> Receiver {
        let (memory, writer) = (&link.memory, link.side.other());
        let (words, data) = (memory.direction(slot, writer), memory.data(slot, writer));
        // SAFETY: the caller's promise; `Memory` checked that the size is a power of two.
        let ring = unsafe { Consumer::attach(words, data, memory.ring_bytes()) };
        Receiver { ring, link, slot }
    }

    /// Takes the next bytes from `offset` on, where the stream stands; nothing if it is there.
    pub fn cross_to(&mut self, offset: u64) {
        if self.ring.head() != offset {
            self.ring.start_at(offset);
        }
    }

    /// What several processes may take from a ring that is written no more begins at `offset`.
    pub fn begin_remains(&mut self, offset: u64) {
        self.ring.begin_at(offset);
    }

    /// Offset of the first byte not yet taken.
    #[inline(always)]
    pub fn head(&self) -> u64 {
        self.ring.head()
    }

    /// Bytes that can be taken, as far as is known.
    #[inline]
    pub fn known(&mut self) -> Result<usize, Failure> {
        Ok(self.ring.available()?)
    }

    /// Whether the writer has shown nothing behind what was taken, by one look.
    #[inline(always)]
    pub fn is_drained(&self) -> bool {
        self.ring.direction().tail() == self.ring.head()
    }

    pub fn words(&self) -> SlotWords {
        incoming(self.link, self.slot)
    }

    /// As [`known`](Self::known). Looks anew only if less than `wanted` is known.
    #[inline]
    pub fn known_at_least(&mut self, wanted: usize) -> Result<usize, Failure> {
        Ok(self.ring.available_at_least(wanted)?)
    }

    /// The `end` word of this direction.
    #[inline(always)]
    pub fn end(&self) -> u64 {
        self.ring.direction().end()
    }

    /// As [`try_receive`](crate::Receiver::try_receive), for one part; 0 if there is nothing, for whatever
    /// reason.
    ///
    /// # Safety
    /// As there.
    #[inline(always)]
    pub unsafe fn try_receive_part(&mut self, part: Part) -> Result<usize, Failure> {
        // SAFETY: the caller's promise.
        let count = unsafe { self.read_in_pieces(part) }?;
        if count > 0 {
            self.released()?;
        }
        Ok(count)
    }

    /// Bytes that can be taken, as of now.
    #[inline]
    pub fn available(&mut self) -> Result<usize, Failure> {
        Ok(self.ring.available_fresh()?)
    }

    /// As [`available`](Self::available), of a send that is under way all of it, up to `wanted` bytes.
    pub fn settled(&mut self, wanted: usize) -> Result<usize, Failure> {
        loop {
            let known = self.ring.available_at_least(wanted)?;
            if known >= wanted || !self.more_comes() {
                return Ok(known);
            }
        }
    }

    /// Takes bytes of what a writer has left, which other processes may take as well: whoever comes first.
    ///
    /// # Safety
    /// As for [`try_receive`](crate::Receiver::try_receive).
    pub unsafe fn take_remains<P: Iterator<Item = Part>>(
        &mut self,
        parts: impl Fn() -> P,
        how: How,
    ) -> Result<usize, Failure> {
        loop {
            self.ring.follow();
            let left = self.ring.available_fresh()?;
            let mut total = 0;
            for part in up_to(parts(), left as u64) {
                if !how.discard {
                    // SAFETY: the caller's promise.
                    unsafe { self.ring.peek(total, part.base, part.len) }?;
                }
                total += part.len;
            }
            if how.peek || self.ring.claim(total) {
                return Ok(total);
            }
        }
    }

    /// Wakes the peer's writer after space or a decision was published for it.
    #[inline]
    pub fn wake_sender(&self) {
        self.wake_sender_by(self.ring.take_space_waiters());
    }

    /// After bytes were taken: a full ring is to have room worth waking for ([`Sender::has_room`]).
    ///
    /// [`Sender::has_room`]: super::Sender::has_room
    #[inline(always)]
    fn released(&mut self) -> Result<(), Failure> {
        let bits = self.ring.take_space_waiters_at_low_water()?;
        self.wake_sender_by(bits);
        Ok(())
    }

    #[inline(always)]
    fn wake_sender_by(&self, bits: u32) {
        if bits != 0 {
            wake(self.link, self.slot, bits, &self.ring.direction().wake.space_wanted);
        }
    }

    /// The end word says that the ring ended where the receiver stands.
    #[cold]
    pub(super) fn ended(&mut self) -> Result<bool, Failure> {
        match End::decode(self.words().end()) {
            Ok(End::Down(at)) if at == self.ring.head() => Ok(true),
            // Published between the look into the ring and this one; or a peer that lies.
            Ok(End::Down(_)) if self.available()? == 0 => Err(Failure::Corrupt),
            Ok(_) => Ok(false),
            Err(_) => Err(Failure::Corrupt),
        }
    }
}

impl Half for Receiver {
    fn ready(&mut self) -> Result<bool, Failure> {
        Ok(self.available()? > 0 || self.ended()?)
    }

    fn announce(&mut self) -> Wait {
        let value = self.ring.want_data(FUTEX);
        let words = self.link.memory.direction(self.slot, self.link.side.other());
        // SAFETY: the link lives for ever, its memory while a stream stands in it (`attach`); the
        // reference is to atomics alone.
        let words: &'static shunt_ring::Direction = unsafe { words.as_ref() };
        Wait::Word { word: &words.wake.data_wanted, value }
    }
}

impl crate::Receiver for Receiver {
    #[inline]
    unsafe fn try_receive(
        &mut self,
        parts: impl Iterator<Item = Part>,
        how: How,
    ) -> Result<Received, Failure> {
        let mut total = 0;
        let mut empty = false;
        for part in parts {
            // SAFETY: the caller's promise, and the program's memory is not the link's.
            let count = unsafe { self.receive_part(total, part, how) }?;
            total += count;
            empty = count < part.len;
            if empty {
                break;
            }
        }
        if total > 0 && !how.peek {
            self.released()?;
        } else if total == 0 && empty {
            return Ok(if self.ended()? { Received::Ended } else { Received::Empty });
        }
        Ok(Received::Bytes(total))
    }
}

impl Receiver {
    /// # Safety
    /// As for `try_receive`.
    #[inline]
    unsafe fn receive_part(
        &mut self,
        already: usize,
        part: Part,
        how: How,
    ) -> Result<usize, Failure> {
        if how.peek {
            self.settled(already.saturating_add(part.len))?;
        }
        let ring = &mut self.ring;
        let count = match (how.peek, how.discard) {
            // SAFETY: the caller's promise.
            (false, false) => unsafe { self.read_in_pieces(part) }?,
            // SAFETY: the caller's promise.
            (true, false) => unsafe { ring.peek(already, part.base, part.len) }?,
            (false, true) => {
                let count = ring.available_at_least(part.len)?.min(part.len);
                ring.skip(count);
                count
            }
            (true, true) => {
                let wanted = already.saturating_add(part.len);
                ring.available_at_least(wanted)?.saturating_sub(already).min(part.len)
            }
        };
        Ok(count)
    }

    /// A long read gives room back piece by piece, so that the writer goes on meanwhile. What the writer is in the
    /// middle of sending is taken together, as TCP mostly has it by the time its reader runs.
    ///
    /// # Safety
    /// As for `try_receive`.
    #[inline(always)]
    unsafe fn read_in_pieces(&mut self, part: Part) -> Result<usize, Failure> {
        let mut total = 0;
        while total < part.len {
            let piece = part_of(part.len - total);
            // SAFETY: within the caller's part.
            let count = unsafe { self.ring.read(part.base.wrapping_add(total), piece) }?;
            total += count;
            if count < piece && (total == 0 || !self.more_comes()) {
                break;
            }
        }
        Ok(total)
    }

    /// Whether bytes come behind those that are known, of a send that is under way. Its writer is copying them; it
    /// may have lost its core, or be gone.
    #[inline(always)]
    fn more_comes(&self) -> bool {
        self.ring.is_amid_a_send() && self.await_more()
    }

    #[cold]
    fn await_more(&self) -> bool {
        /// A piece takes 1 us to copy, or 10 where the cores are far apart; after this the writer may want the core.
        const ALONE_NS: u64 = 3_000;
        const NS_MAX: u64 = 30_000;
        const LOOKS: u32 = 16;
        let known = self.ring.seen();
        let began = clock::now_ns();
        loop {
            for _ in 0..LOOKS {
                if self.ring.direction().tail() != known {
                    return true;
                }
                if !self.ring.is_amid_a_send() {
                    // It has found no room.
                    return false;
                }
                core::hint::spin_loop();
            }
            let waited = clock::now_ns() - began;
            if waited >= NS_MAX {
                return false;
            }
            if waited >= ALONE_NS {
                raw::sched_yield();
            }
        }
    }
}
