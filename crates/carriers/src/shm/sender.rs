//! The writing end of a ring, with the bell of its link.
// UNSAFETY: attaches to the link's memory and copies the program's.
#![allow(unsafe_code)]

use shunt_link::Link;
use shunt_ring::{Producer, FUTEX};
use shunt_stream::{End, Words};

use super::piece::{piece, FIRST, REST};
use super::{outgoing, wake, worth_telling, SlotWords};
use crate::carrier::Half;
use crate::{Failure, Part, Sent, Shut, Wait};

/// A segment of kernel TCP's over loopback, which it sends though more is to come, has twice as many bytes.
const HELD_MAX: usize = 32 * 1024;

/// Used under the stream's send lock.
pub struct Sender {
    ring: Producer,
    link: &'static Link,
    slot: u32,
}

impl Sender {
    /// The end that this process writes in `slot`.
    ///
    /// # Safety
    /// The link's memory stays mapped while the result is used, and the direction has no other
    /// sender at the same time.
    pub unsafe fn attach(link: &'static Link, slot: u32) -> Sender {
        let (memory, side) = (&link.memory, link.side);
        let (words, data) = (memory.direction(slot, side), memory.data(slot, side));
        // SAFETY: the caller's promise; `Memory` checked that the size is a power of two.
        let ring = unsafe { Producer::attach(words, data, memory.ring_bytes()) };
        memory.note_touched(slot, side, u32::MAX);
        let mut sender = Sender { ring, link, slot };
        sender.set_room(u64::from(memory.ring_bytes()));
        sender
    }

    /// Lets no more than `bytes` lie unread. A writer that waits is woken when a quarter of that is free.
    pub fn set_room(&mut self, bytes: u64) {
        self.ring.set_room(bytes);
        let room = self.ring.room();
        self.ring.set_low_water((room - worth_telling(room)) as u64);
    }

    /// The ring itself, for what only a ring can: a segment's start, a read(2) straight into it.
    /// What is staged there is shown by [`publish`](Self::publish).
    #[inline(always)]
    pub fn ring(&mut self) -> &mut Producer {
        &mut self.ring
    }

    /// Offset behind the last byte accepted.
    #[inline(always)]
    pub fn tail(&self) -> u64 {
        self.ring.tail()
    }

    pub fn words(&self) -> SlotWords {
        outgoing(self.link, self.slot)
    }

    /// The offset behind what the receiver has been shown.
    pub fn shown(&self) -> u64 {
        self.ring.tail() - self.ring.held() as u64
    }

    /// Copies accepted bytes from offset `from` on back, to send them by another carrier.
    pub fn copy_back(&self, from: u64, into: &mut [u8]) -> Result<(), Failure> {
        // SAFETY: the slice is writable, and Rust's memory is not the link's.
        unsafe { self.ring.copy_back(from, into.as_mut_ptr(), into.len()) }?;
        Ok(())
    }

    /// Whether there is room worth a wake-up, as the kernel judges a send buffer: not for one byte.
    pub fn has_room(&mut self) -> Result<bool, Failure> {
        let enough = worth_telling(self.ring.room());
        Ok(self.ring.free_at_least(enough)? >= enough)
    }

    /// Shows the receiver everything staged.
    #[inline(always)]
    pub fn publish(&mut self) {
        self.ring.publish();
        self.wake_receiver();
    }

    /// Takes parts that are `len` bytes together, and keeps them from the receiver until the next send, or
    /// [`show_held`](Self::show_held). Only if there is much more room, and little is held already.
    ///
    /// # Safety
    /// As for [`try_send`](crate::Sender::try_send).
    pub unsafe fn try_hold(
        &mut self,
        parts: impl Iterator<Item = Part>,
        len: usize,
    ) -> Result<bool, Failure> {
        let most = HELD_MAX.min(self.ring.room() / 4);
        if self.ring.held() + len > most || self.ring.free_at_least(len)? < len {
            return Ok(false);
        }
        for part in parts {
            // SAFETY: the caller's promise, and the program's memory is not the link's.
            unsafe { self.ring.stage_copy(part.base, part.len) }?;
        }
        self.ring.hold();
        Ok(true)
    }

    /// Whether something is kept from the receiver.
    #[inline]
    pub fn holds(&self) -> bool {
        self.ring.held() != 0
    }

    /// Shows the receiver what was kept from it.
    #[inline]
    pub fn show_held(&mut self) {
        if self.holds() {
            self.publish();
        }
    }

    /// The stream rests: memory of the ring's that requests and answers do not need is given back, if it is
    /// empty. It comes again as it is used.
    pub fn rest(&mut self) -> Result<(), Failure> {
        let unused = self.ring.rest()?;
        // SAFETY: nobody looks at these bytes before they are written to.
        unsafe { self.link.memory.give_back(self.slot, self.link.side, unused) };
        Ok(())
    }

    /// Nothing is sent here any more: says how much memory that took.
    pub fn leave(&mut self) {
        let touched = u32::try_from(self.ring.touched()).unwrap_or(u32::MAX);
        self.link.memory.note_touched(self.slot, self.link.side, touched);
    }

    /// As [`try_send`](crate::Sender::try_send) for one part of at most [`WHOLE`](super::WHOLE) bytes, and only if there is
    /// room for all of it, and nobody is to take note that the ring has grown.
    ///
    /// # Safety
    /// As there.
    #[inline(always)]
    pub unsafe fn try_send_piece(&mut self, base: *const u8, len: usize) -> Result<bool, Failure> {
        if self.ring.free_at_least(len)? < len || self.ring.has_grown() {
            return Ok(false);
        }
        // SAFETY: the caller's promise, and the program's memory is not the link's.
        unsafe { self.ring.stage_copy(base, len) }?;
        self.publish();
        Ok(true)
    }

    /// As [`try_send_piece`](Self::try_send_piece), of parts that are `len` bytes together.
    ///
    /// # Safety
    /// As there.
    pub unsafe fn try_send_all(
        &mut self,
        parts: impl Iterator<Item = Part>,
        len: usize,
    ) -> Result<bool, Failure> {
        if self.ring.free_at_least(len)? < len || self.ring.has_grown() {
            return Ok(false);
        }
        for part in parts {
            // SAFETY: the caller's promise, and the program's memory is not the link's.
            unsafe { self.ring.stage_copy(part.base, part.len) }?;
        }
        self.publish();
        Ok(true)
    }

    /// The `end` word of this direction.
    #[inline(always)]
    pub fn end(&self) -> u64 {
        self.ring.direction().end()
    }

    /// Wakes the peer's reader after something was published for it.
    #[inline]
    pub fn wake_receiver(&self) {
        let bits = self.ring.take_data_waiters();
        if bits != 0 {
            wake(self.link, self.slot, bits, &self.ring.direction().wake.data_wanted);
        }
    }

    /// The end word says that nobody will take what is in the ring.
    #[cold]
    fn receiver_left(&self) -> Result<bool, Failure> {
        match End::decode(self.words().end()) {
            Ok(End::Stop(_) | End::Closed(_)) => Ok(true),
            Ok(_) => Ok(false),
            Err(_) => Err(Failure::Corrupt),
        }
    }
}

impl Half for Sender {
    fn ready(&mut self) -> Result<bool, Failure> {
        Ok(self.has_room()? || self.receiver_left()?)
    }

    fn announce(&mut self) -> Wait {
        let value = self.ring.want_space(FUTEX);
        let words = self.link.memory.direction(self.slot, self.link.side);
        // SAFETY: the link lives for ever, its memory while a stream stands in it (`attach`); the
        // reference is to atomics alone.
        let words: &'static shunt_ring::Direction = unsafe { words.as_ref() };
        Wait::Word { word: &words.wake.space_wanted, value }
    }
}

impl crate::Sender for Sender {
    /// All parts are one publication, long ones apart: these are announced, for a reader to take them together.
    #[inline]
    unsafe fn try_send(&mut self, parts: impl Iterator<Item = Part>) -> Result<Sent, Failure> {
        let (mut total, mut staged) = (0, 0);
        let mut full = false;
        let mut parts = parts.peekable();
        'parts: while let Some(part) = parts.next() {
            let mut done = 0;
            while done < part.len {
                let enough = if total == 0 { FIRST } else { piece() };
                let wanted = (part.len - done).min(enough.saturating_sub(staged).max(REST));
                // SAFETY: the caller's promise, and the program's memory is not the link's.
                let count = unsafe { self.ring.stage_copy(part.base.wrapping_add(done), wanted) }?;
                done += count;
                staged += count;
                full = count < wanted;
                if full {
                    break 'parts;
                }
                if staged >= enough {
                    let next = parts.peek().map_or(0, |part| part.len);
                    let more = (part.len - done).saturating_add(next);
                    if more > REST || staged >= enough + REST {
                        self.ring.announce(more);
                        self.publish();
                        total += core::mem::take(&mut staged);
                    }
                }
            }
        }
        if full && total > 0 {
            // What was announced does not come.
            self.ring.announce(0);
        }
        if staged > 0 {
            self.publish();
        }
        total += staged;
        if total == 0 && full {
            // Else nobody would ever make room.
            self.show_held();
            return if self.receiver_left()? { Err(Failure::Left) } else { Ok(Sent::Full) };
        }
        Ok(Sent::Took(total))
    }

    /// In a stream it is `Writer::go_down` that does this, and knows what follows; here is the same
    /// change of the same word, for a carrier alone.
    fn try_shut(&mut self) -> Result<Shut, Failure> {
        let words = self.words();
        let down = End::Down(self.tail());
        match End::decode(words.end()).map_err(|_| Failure::Corrupt)? {
            End::Seen if words.end_cas(End::Seen.encode(), down.encode()).is_ok() => {}
            End::Open => return Ok(Shut::Later),
            End::Down(at) if at == self.tail() => return Ok(Shut::Done),
            _ => return Err(Failure::Left),
        }
        self.wake_receiver();
        Ok(Shut::Done)
    }

    fn unread(&mut self) -> Result<Option<u64>, Failure> {
        Ok(Some(self.ring.unread()?))
    }
}
