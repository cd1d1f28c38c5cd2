//! Where addresses have 32 bits: the rings of a slot are mapped while a stream of this process stands
//! there. All links together take a bounded part of the program's addresses; streams for which nothing is
//! left stay on TCP.

use core::ptr::{null_mut, NonNull};
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering::*};

use shunt_os::lock::Lock;
use shunt_os::mapping::{self, Mapping};
use shunt_os::{handles, Result};

use super::Place;

/// An eighth of what there is on a kernel of 64 bits: 256 streams with rings of the usual size.
const BYTES_MAX: usize = 512 << 20;

/// What the rings of all links take.
static MAPPED: AtomicUsize = AtomicUsize::new(0);

/// The last that were wanted could not be mapped, and none were given back since.
static EXHAUSTED: AtomicBool = AtomicBool::new(false);

/// Whether the rings of one more stream can be mapped, as far as is known.
pub fn has_room() -> bool {
    !EXHAUSTED.load(Relaxed)
}

pub struct Rings {
    /// The memory, for the rings to come; -1 once the link is dead.
    file: Lock<i32>,
    place: Place,
    mapped: Box<[AtomicPtr<u8>]>,
}

impl Rings {
    /// Maps the words, which lie before the rings.
    pub fn map(fd: i32, place: Place) -> Result<(NonNull<u8>, Rings)> {
        let kept = handles::duplicate(fd)?;
        match mapping::map(fd, place.start as usize) {
            Ok(words) => {
                let mapped = (0..place.slots).map(|_| AtomicPtr::new(null_mut())).collect();
                Ok((words.base, Rings { file: Lock::new(kept), place, mapped }))
            }
            Err(error) => {
                handles::close(kept);
                Err(error)
            }
        }
    }

    /// Makes the rings of `slot` reachable; false if there are no addresses left for them. Called by
    /// the service thread alone.
    pub fn reach(&self, slot: u32) -> bool {
        if self.of(slot).is_some() {
            return true;
        }
        let Some(place) = self.mapped.get(slot as usize) else { return false };
        let bytes = self.place.slot_bytes();
        if MAPPED.fetch_add(bytes, Relaxed) + bytes <= BYTES_MAX {
            if let Ok(mapping) = self.map_slot(slot) {
                place.store(mapping.base.as_ptr(), Release);
                return true;
            }
        }
        MAPPED.fetch_sub(bytes, Relaxed);
        EXHAUSTED.store(true, Relaxed);
        false
    }

    fn map_slot(&self, slot: u32) -> Result<Mapping> {
        let file = self.file.lock();
        mapping::map_part(*file, self.place.of(slot), self.place.slot_bytes())
    }

    /// The two rings of a slot that was reached.
    pub fn of(&self, slot: u32) -> Option<NonNull<u8>> {
        NonNull::new(self.mapped.get(slot as usize)?.load(Acquire))
    }

    /// Gives the addresses of a slot's rings back.
    ///
    /// # Safety
    /// Nobody has an address in them.
    pub unsafe fn leave(&self, slot: u32) {
        let Some(place) = self.mapped.get(slot as usize) else { return };
        let Some(base) = NonNull::new(place.swap(null_mut(), AcqRel)) else { return };
        let bytes = self.place.slot_bytes();
        // SAFETY: the caller vouches for it.
        unsafe { mapping::unmap(Mapping { base, bytes }) };
        MAPPED.fetch_sub(bytes, Relaxed);
        EXHAUSTED.store(false, Relaxed);
    }

    /// Gives back what of a slot's rings was `touched`, but the first `kept` bytes of each. This process has left
    /// them. What cannot be mapped for it stays until the next stream writes over it.
    ///
    /// # Safety
    /// Both processes have left them.
    pub unsafe fn give_back(&self, slot: u32, touched: [usize; 2], kept: usize) {
        if touched.iter().all(|bytes| *bytes <= kept) {
            return;
        }
        let Ok(mapping) = self.map_slot(slot) else { return };
        for part in self.place.touched(touched, kept) {
            // SAFETY: inside the rings; the caller vouches for it.
            unsafe { mapping::give_back(mapping.base.add(part.start).as_ptr(), part.len()) };
        }
        // SAFETY: nobody else knows this mapping.
        unsafe { mapping::unmap(mapping) };
    }

    /// Unmaps them all.
    ///
    /// # Safety
    /// Nobody has an address in them.
    pub unsafe fn unmap(&self) {
        for slot in 0..self.place.slots {
            // SAFETY: the caller vouches for it.
            unsafe { self.leave(slot) };
        }
        self.close_file();
    }

    /// In a forked child: the link is the parent's.
    ///
    /// # Safety
    /// The process has one thread.
    pub unsafe fn after_fork(&self) {
        // SAFETY: one thread, by the caller's word.
        unsafe { self.file.force_open() };
        self.close_file();
    }

    fn close_file(&self) {
        let mut file = self.file.lock();
        if *file >= 0 {
            handles::close(*file);
            *file = -1;
        }
    }
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;

    const RING_BYTES: u32 = 1 << 20;
    const SLOTS: u32 = 300;

    #[test]
    fn addresses_of_slots_that_were_left_are_had_again() {
        let place = Place { start: 4096, slots: SLOTS, ring_bytes: RING_BYTES };
        let fd = mapping::create(c"test", place.end(), true).expect("memory");
        let (_, rings) = Rings::map(fd, place).expect("a mapping");
        handles::close(fd);
        let most = (0..SLOTS).find(|slot| !rings.reach(*slot)).expect("addresses have an end");
        assert_eq!(most as usize, BYTES_MAX / place.slot_bytes());
        assert!(!has_room());
        // SAFETY: nobody looks at them.
        unsafe { rings.leave(3) };
        assert!(has_room() && rings.of(3).is_none());
        for slot in most..SLOTS {
            assert!(rings.reach(slot), "slot {slot}");
            let base = rings.of(slot).expect("it was reached").as_ptr();
            // SAFETY: mapped just now.
            unsafe { base.write(1) };
            // SAFETY: nobody looks at them any more.
            unsafe { rings.leave(slot) };
            // SAFETY: as above.
            unsafe { rings.give_back(slot, [RING_BYTES as usize; 2], 0) };
            assert!(rings.reach(slot));
            // SAFETY: mapped just now.
            assert_eq!(unsafe { rings.of(slot).expect("it was reached").read() }, 0);
            // SAFETY: as above.
            unsafe { rings.leave(slot) };
        }
        // SAFETY: as above.
        unsafe { rings.unmap() };
        assert_eq!(MAPPED.load(Relaxed), 0);
    }
}
