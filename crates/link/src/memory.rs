//! The link's shared memory: a sealed memfd made by the master.
//!
//! | offset | holds |
//! |---|---|
//! | 0 | header: magic, version, slots, ring bytes (read once, at mapping) |
//! | 4096 | ready map of the master |
//! | 8192 | ready map of the other side |
//! | 12288 | 512 bytes of control words a slot: direction from the master, direction to it, who left it |
//! | page after | two rings of data a slot |

use core::mem::{offset_of, size_of};
use core::ops::Range;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering::*};

use shunt_os::mapping;
use shunt_os::{Errno, Result};
use shunt_ring::Direction;
use shunt_ring::ReadyMap;

use crate::rings::{Place, Rings, PAGE};

pub use crate::rings::has_room;

const MAGIC: u64 = 0x3674_6e75_6853; // "Shunt6"
const MAPS: usize = PAGE;
const CONTROL: usize = 3 * PAGE;
const CONTROL_BYTES: usize = 512;
const HEADER_BYTES: usize = 16;
/// What of a ring's memory stays for the next stream in its slot.
const WARM_BYTES: usize = 2 * PAGE;
/// As much as a send buffer holds by the kernel's usual settings (tcp_wmem, tcp(7)).
pub const RING_BYTES_MAX: u32 = 4 << 20;

const _: () = assert!(size_of::<ReadyMap>() <= PAGE);
const _: () = assert!(2 * size_of::<Direction>() + size_of::<Leaving>() <= CONTROL_BYTES);
const _: () = assert!(size_of::<Header>() == HEADER_BYTES && offset_of!(Header, slots) == 8);
const _: () = assert!(offset_of!(Header, ring_bytes) == 12 && size_of::<AtomicU64>() == 8);
const _: () = assert!(align_of::<AtomicU64>() == 8);

/// Which of the two processes: the master made the memory and hands out slots.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Side {
    Master = 0,
    Guest = 1,
}

impl Side {
    /// The other one.
    pub fn other(self) -> Side {
        match self {
            Side::Master => Side::Guest,
            Side::Guest => Side::Master,
        }
    }

    /// The side in a set of sides.
    pub(crate) fn bit(self) -> u32 {
        1 << self as u32
    }
}

#[repr(C)]
#[derive(Clone, Copy)]
struct Header {
    magic: u64,
    slots: u32,
    ring_bytes: u32,
}

/// How the two sides leave a slot: behind its directions.
#[repr(C)]
struct Leaving {
    /// The sides that are done with it, as bits.
    sides: AtomicU32,
    /// For the ring that each side writes, how many bytes from its start on it may have written to.
    touched: [AtomicU32; 2],
}

/// A mapped link memory whose sizes are known to fit.
pub struct Memory {
    words: NonNull<u8>,
    rings: Rings,
    place: Place,
}

// SAFETY: a plain address range, which is never unmapped; access rules are those of whoever uses it.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

fn data_start(slots: u32) -> usize {
    (CONTROL + slots as usize * CONTROL_BYTES).next_multiple_of(PAGE)
}

fn place(slots: u32, ring_bytes: u32) -> Place {
    Place { start: data_start(slots) as u64, slots, ring_bytes }
}

impl Memory {
    /// Makes and maps memory for `slots` streams with rings of `ring_bytes` (a power of two,
    /// at least a page). Returns the memfd to pass on as well.
    pub fn create(slots: u32, ring_bytes: u32) -> Result<(Memory, i32)> {
        let place = place(slots, ring_bytes);
        let fd = mapping::create(c"shunt-link", place.end(), true)?;
        match Rings::map(fd, place) {
            Ok((words, rings)) => {
                let header = Header { magic: MAGIC, slots, ring_bytes };
                // SAFETY: the mapping starts with room for a header and is page-aligned.
                unsafe { words.as_ptr().cast::<Header>().write_volatile(header) };
                Ok((Memory { words, rings, place }, fd))
            }
            Err(error) => {
                shunt_os::handles::close(fd);
                Err(error)
            }
        }
    }

    /// Maps memory that a peer made. Nothing it says is believed before it is checked.
    ///
    /// # Errors
    /// EPERM if it could be shrunk; EPROTO if its sizes do not fit.
    pub fn open(fd: i32) -> Result<Memory> {
        let bytes = mapping::sealed_size(fd)?;
        let mut header = [0; HEADER_BYTES];
        if !mapping::read_start(fd, &mut header) {
            return Err(Errno(libc_eproto()));
        }
        // SAFETY: as many bytes, any of which are a header.
        let header = unsafe { header.as_ptr().cast::<Header>().read_unaligned() };
        let fits = header.magic == MAGIC
            && (1..=16384).contains(&header.slots)
            && header.ring_bytes.is_power_of_two()
            && (PAGE as u32..=RING_BYTES_MAX).contains(&header.ring_bytes)
            && place(header.slots, header.ring_bytes).end() == bytes;
        if !fits {
            return Err(Errno(libc_eproto()));
        }
        let place = place(header.slots, header.ring_bytes);
        let (words, rings) = Rings::map(fd, place)?;
        Ok(Memory { words, rings, place })
    }

    /// Makes the rings of `slot` reachable, before a stream comes to stand there; false if they cannot
    /// be. Called by the service thread alone.
    pub fn reach(&self, slot: u32) -> bool {
        slot < self.place.slots && self.rings.reach(slot)
    }

    pub fn slots(&self) -> u32 {
        self.place.slots
    }

    pub fn ring_bytes(&self) -> u32 {
        self.place.ring_bytes
    }

    /// The control words of the direction that `writer` writes in `slot`.
    pub fn direction(&self, slot: u32, writer: Side) -> NonNull<Direction> {
        assert!(slot < self.place.slots);
        let offset =
            CONTROL + slot as usize * CONTROL_BYTES + writer as usize * size_of::<Direction>();
        // SAFETY: inside the mapping, by `total`.
        unsafe { self.words.add(offset).cast() }
    }

    /// The ring of the direction that `writer` writes in `slot`, which was [reached](Self::reach).
    pub fn data(&self, slot: u32, writer: Side) -> NonNull<u8> {
        assert!(slot < self.place.slots);
        let rings = self.rings.of(slot).expect("a stream stands in a slot that was reached");
        // SAFETY: inside the slot's rings.
        unsafe { rings.add(writer as usize * self.place.ring_bytes as usize) }
    }

    /// The ready map that `side` drains.
    #[inline]
    pub fn ready(&self, side: Side) -> &ReadyMap {
        // SAFETY: a page of the mapping, which lives while the link does; all atomics.
        unsafe { self.words.add(MAPS + side as usize * PAGE).cast().as_ref() }
    }

    /// When `slot` was marked in the map that `side` drains ([`clock::stamp`](shunt_os::clock::stamp)).
    /// In the direction that `side` reads, for which most marks are.
    #[inline]
    pub fn stamp(&self, slot: u32, side: Side) -> &AtomicU64 {
        // SAFETY: mapped while the link lives; nothing but atomics.
        let direction = unsafe { self.direction(slot, side.other()).as_ref() };
        &direction.wake.marked_at
    }

    /// By which bell `side` is told of the stream in `slot`. In the direction that it reads, as [`stamp`](Self::stamp).
    #[inline]
    pub fn told_by(&self, slot: u32, side: Side) -> &AtomicU32 {
        // SAFETY: mapped while the link lives; nothing but atomics.
        let direction = unsafe { self.direction(slot, side.other()).as_ref() };
        &direction.consumer.told_by
    }

    fn leaving(&self, slot: u32) -> &Leaving {
        assert!(slot < self.place.slots);
        let offset = CONTROL + slot as usize * CONTROL_BYTES + 2 * size_of::<Direction>();
        // SAFETY: inside the mapping, by `total`; nothing but atomics.
        unsafe { self.words.add(offset).cast().as_ref() }
    }

    /// Notes that `writer` has written to no more than the first `bytes` of its ring, ever since both left it.
    pub fn note_touched(&self, slot: u32, writer: Side, bytes: u32) {
        self.leaving(slot).touched[writer as usize].store(bytes, Relaxed);
    }

    /// `side` is done with `slot`, and looks at nothing of it any more. True if the other side was before: of two
    /// that leave, one is told so.
    pub fn leave_second(&self, slot: u32, side: Side) -> bool {
        let before = self.leaving(slot).sides.fetch_or(side.bit(), AcqRel);
        before & side.other().bit() != 0
    }

    /// No stream of this process stands in `slot` any more: its rings need not be reachable.
    pub(crate) fn leave(&self, slot: u32) {
        // SAFETY: only a stream in the slot has addresses in its rings.
        unsafe { self.rings.leave(slot) };
    }

    /// Gives back the pages of a ring that lie within `bytes` of it: they are zeros from now on, to both sides.
    ///
    /// # Safety
    /// Nobody needs what is there, and the slot was [reached](Self::reach).
    pub unsafe fn give_back(&self, slot: u32, writer: Side, bytes: Range<usize>) {
        let start = bytes.start.next_multiple_of(PAGE);
        let end = bytes.end.next_multiple_of(PAGE).min(self.place.ring_bytes as usize);
        if start < end {
            // SAFETY: inside the ring, which is whole pages.
            let from = unsafe { self.data(slot, writer).add(start) };
            // SAFETY: the caller vouches for it; what was not used of the last page is nobody's either.
            unsafe { mapping::give_back(from.as_ptr(), end - start) };
        }
    }

    /// Zeroes a slot's control words. Of the memory of its rings, all is given back, or, if it is to be `warm`, all but
    /// what the next stream needs first.
    pub fn reset_slot(&self, slot: u32, warm: bool) {
        let leaving = self.leaving(slot);
        let touched = [Side::Master, Side::Guest].map(|side| {
            leaving.touched[side as usize].load(Relaxed).min(self.place.ring_bytes) as usize
        });
        let kept = if warm { WARM_BYTES } else { 0 };
        // SAFETY: both sides have released the slot.
        unsafe { self.rings.give_back(slot, touched, kept) };
        let words = self.direction(slot, Side::Master).as_ptr().cast::<u8>();
        // SAFETY: as above; the 512 bytes are the slot's own.
        unsafe { core::ptr::write_bytes(words, 0, CONTROL_BYTES) };
    }

    /// The peer is gone and every slot is vacant: unmaps the rings, which nobody can reach but
    /// through a stream in a slot, and lets go of the words. A peer that is not gone, of which we only
    /// cannot hear, may sleep on words of its own: those are left as they are.
    pub fn retire(&self) {
        // SAFETY: no stream stands here, so no producer or consumer has an address in the rings.
        unsafe { self.rings.unmap() };
        let words = data_start(self.place.slots);
        // SAFETY: the words mean nothing to us any more, and read as zeros from now on.
        unsafe { mapping::let_go(self.words.as_ptr(), words) };
    }

    /// In a forked child: the link is the parent's.
    ///
    /// # Safety
    /// The process has one thread.
    pub unsafe fn after_fork(&self) {
        // SAFETY: one thread, by the caller's word.
        unsafe { self.rings.after_fork() };
    }
}

const fn libc_eproto() -> i32 {
    71
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;

    const SIDES: [Side; 2] = [Side::Master, Side::Guest];

    #[test]
    fn of_two_sides_that_leave_the_second_is_told() {
        let (memory, fd) = Memory::create(2, PAGE as u32).expect("memory");
        shunt_os::handles::close(fd);
        for side in SIDES {
            assert!(!memory.leave_second(1, side));
            assert!(memory.leave_second(1, side.other()));
            memory.reset_slot(1, true);
        }
        assert!(!memory.leave_second(0, Side::Guest), "another slot");
    }

    #[test]
    fn a_warm_slot_keeps_what_the_next_stream_needs_first() {
        const RING_BYTES: usize = 8 * PAGE;
        let (memory, fd) = Memory::create(2, RING_BYTES as u32).expect("memory");
        shunt_os::handles::close(fd);
        let fill = |slot| {
            for side in SIDES {
                // SAFETY: the ring's own bytes.
                unsafe { memory.data(slot, side).write_bytes(1, RING_BYTES) };
            }
        };
        let ones = |slot, side| {
            // SAFETY: inside the ring.
            let is_one = |at: &usize| unsafe { memory.data(slot, side).add(*at).read() } == 1;
            (0..RING_BYTES).filter(is_one).count()
        };
        for slot in 0..2 {
            assert!(memory.reach(slot));
            fill(slot);
        }
        memory.note_touched(0, Side::Master, u32::MAX);
        memory.note_touched(0, Side::Guest, 3 * PAGE as u32 + 1);
        memory.reset_slot(0, true);
        assert_eq!(ones(0, Side::Master), WARM_BYTES);
        assert_eq!(ones(0, Side::Guest), WARM_BYTES + 4 * PAGE, "more was not touched");
        SIDES.into_iter().for_each(|side| assert_eq!(ones(1, side), RING_BYTES));
        fill(0);
        memory.note_touched(0, Side::Master, PAGE as u32);
        memory.reset_slot(0, true);
        assert_eq!(ones(0, Side::Master), RING_BYTES, "it was noted anew");
        assert_eq!(ones(0, Side::Guest), RING_BYTES, "nothing was");
        memory.note_touched(0, Side::Master, PAGE as u32);
        memory.reset_slot(0, false);
        assert_eq!(ones(0, Side::Master), RING_BYTES - PAGE);
    }

    #[test]
    fn memory_that_a_ring_gives_back_is_zero_and_its_neighbours_stay() {
        const RING_BYTES: usize = 4 * PAGE;
        let (memory, fd) = Memory::create(2, RING_BYTES as u32).expect("memory");
        shunt_os::handles::close(fd);
        for slot in 0..2 {
            assert!(memory.reach(slot));
            for side in [Side::Master, Side::Guest] {
                // SAFETY: the ring's own bytes.
                unsafe { memory.data(slot, side).write_bytes(1, RING_BYTES) };
            }
        }
        // SAFETY: nobody needs what is there.
        unsafe { memory.give_back(1, Side::Master, PAGE - 1..3 * PAGE + 1) };
        // SAFETY: as above.
        unsafe { memory.give_back(0, Side::Guest, 7..9) };
        for slot in 0..2 {
            for side in [Side::Master, Side::Guest] {
                for at in 0..RING_BYTES {
                    let given = slot == 1 && side == Side::Master && at >= PAGE;
                    // SAFETY: inside the ring.
                    let byte = unsafe { memory.data(slot, side).add(at).read() };
                    assert_eq!(byte, u8::from(!given), "slot {slot}, {side:?}, byte {at}");
                }
            }
        }
    }
}
