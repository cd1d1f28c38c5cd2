//! Where addresses have 64 bits: the rings are mapped in parts, each of as many slots as all before it, as streams come to them. A
//! process of few streams has few addresses more, which it may look at (VmSize) or limit (RLIMIT_AS).

use core::ptr::{null_mut, NonNull};
use core::sync::atomic::{AtomicPtr, Ordering::*};

use shunt_os::mapping::{self, Mapping};
use shunt_os::Result;

use super::Place;

/// Each part ends before the slot of this number, or behind the last one (16384): all together are at most twice what
/// streams have come to.
const ENDS: [u32; 15] = [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, u32::MAX];

/// Whether a ring more can be mapped: addresses do not run out.
pub fn has_room() -> bool {
    true
}

pub struct Rings {
    /// The start of the file.
    words: NonNull<u8>,
    /// Null before it is mapped.
    parts: [AtomicPtr<u8>; ENDS.len()],
    place: Place,
}

impl Rings {
    /// Maps the words, which lie before the rings, and the first part of these. The words of a dead link stay: mapped
    /// by themselves they come to lie beside those of others, with which they are one mapping to the kernel. Of
    /// mappings a process has 65530, which the program needs too.
    pub fn map(fd: i32, place: Place) -> Result<(NonNull<u8>, Rings)> {
        let words = mapping::map(fd, place.start as usize)?;
        let parts = [const { AtomicPtr::new(null_mut()) }; ENDS.len()];
        let rings = Rings { words: words.base, parts, place };
        let (start, bytes) = rings.part(0);
        match mapping::map_part(fd, start, bytes) {
            Ok(mapping) => {
                rings.parts[0].store(mapping.base.as_ptr(), Release);
                Ok((words.base, rings))
            }
            Err(error) => {
                // SAFETY: nobody knows of them yet.
                unsafe { mapping::unmap(words) };
                Err(error)
            }
        }
    }

    /// The number of the part that has `slot`.
    fn number(slot: u32) -> usize {
        ENDS.iter().position(|end| slot < *end).unwrap_or(ENDS.len() - 1)
    }

    /// Where a part, which has a slot, lies in the file, and its bytes.
    fn part(&self, number: usize) -> (u64, usize) {
        let first = number.checked_sub(1).map_or(0, |before| ENDS[before]);
        let end = ENDS[number].min(self.place.slots);
        (self.place.of(first), (end - first) as usize * self.place.slot_bytes())
    }

    /// Makes the rings of `slot` reachable.
    /// Called by the service thread alone.
    pub fn reach(&self, slot: u32) -> bool {
        let number = Rings::number(slot);
        let place = &self.parts[number];
        if !place.load(Acquire).is_null() {
            return true;
        }
        let (start, bytes) = self.part(number);
        // SAFETY: the words are mapped from the file's start on, as long as streams come.
        match unsafe { mapping::map_more(self.words, start, bytes) } {
            Ok(mapping) => {
                place.store(mapping.base.as_ptr(), Release);
                true
            }
            Err(_) => false,
        }
    }

    /// The two rings of a slot that was reached.
    #[inline]
    pub fn of(&self, slot: u32) -> Option<NonNull<u8>> {
        let number = Rings::number(slot);
        let base = NonNull::new(self.parts[number].load(Acquire))?;
        let offset = self.place.of(slot) - self.part(number).0;
        // SAFETY: inside the part, which is mapped whole.
        Some(unsafe { base.add(offset as usize) })
    }

    /// Addresses do not run out: they stay mapped for the next stream.
    ///
    /// # Safety
    /// Nobody has an address in them.
    pub unsafe fn leave(&self, _slot: u32) {}

    /// Gives back what of a slot's rings was `touched`, but the first `kept` bytes of each.
    ///
    /// # Safety
    /// Both processes have left them.
    pub unsafe fn give_back(&self, slot: u32, touched: [usize; 2], kept: usize) {
        let Some(rings) = self.of(slot) else { return };
        for part in self.place.touched(touched, kept) {
            // SAFETY: inside the rings; the caller vouches for it.
            unsafe { mapping::give_back(rings.add(part.start).as_ptr(), part.len()) };
        }
    }

    /// Unmaps them all.
    ///
    /// # Safety
    /// Nobody has an address in them.
    pub unsafe fn unmap(&self) {
        for (number, place) in self.parts.iter().enumerate() {
            if let Some(base) = NonNull::new(place.swap(null_mut(), AcqRel)) {
                let bytes = self.part(number).1;
                // SAFETY: the caller vouches for it.
                unsafe { mapping::unmap(Mapping { base, bytes }) };
            }
        }
    }

    /// In a forked child: nothing is left open.
    ///
    /// # Safety
    /// The process has one thread.
    pub unsafe fn after_fork(&self) {}
}

#[cfg(all(test, not(miri)))]
mod tests {
    use shunt_os::handles;

    use super::*;

    #[test]
    fn each_slot_has_rings_of_its_own_whatever_part_it_is_in() {
        const RING_BYTES: u32 = 4096;
        let mark = |slot: u32| (slot % 251) as u8 + 1;
        for slots in [1, 2, 3, 16, 64, 300] {
            let place = Place { start: 8192, slots, ring_bytes: RING_BYTES };
            let fd = mapping::create(c"test", place.end(), true).expect("memory");
            let (_, rings) = Rings::map(fd, place).expect("a mapping");
            let whole = mapping::map(fd, place.end() as usize).expect("a mapping");
            handles::close(fd);
            for slot in (0..slots).rev() {
                assert!(rings.reach(slot));
                let bytes = place.slot_bytes();
                let of_slot = rings.of(slot).expect("it was reached");
                // SAFETY: the slot's bytes.
                unsafe { of_slot.write_bytes(mark(slot), bytes) };
            }
            for slot in 0..slots {
                let at = place.of(slot) as usize;
                for byte in [0, place.slot_bytes() - 1] {
                    // SAFETY: inside the file.
                    let found = unsafe { whole.base.add(at + byte).read() };
                    assert_eq!(found, mark(slot), "slot {slot} of {slots}");
                }
            }
            // SAFETY: nobody uses them any more.
            unsafe { rings.unmap() };
            assert!(rings.of(0).is_none());
        }
    }
}
