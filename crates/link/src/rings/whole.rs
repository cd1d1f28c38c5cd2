//! Where addresses have 64 bits: the rings are one mapping.

use core::ptr::NonNull;

use shunt_os::mapping::{self, Mapping};
use shunt_os::Result;

use super::Place;

/// Whether a ring more can be mapped: addresses do not run out.
pub fn has_room() -> bool {
    true
}

pub struct Rings {
    mapping: Mapping,
    place: Place,
}

impl Rings {
    /// Maps the words, which lie before the rings, and the rings. The words of a dead link stay: mapped by
    /// themselves they come to lie beside those of others, with which they are one mapping to the kernel. Of
    /// mappings a process has 65530, which the program needs too.
    pub fn map(fd: i32, place: Place) -> Result<(NonNull<u8>, Rings)> {
        let words = mapping::map(fd, place.start as usize)?;
        let bytes = (place.end() - place.start) as usize;
        match mapping::map_part(fd, place.start, bytes) {
            Ok(mapping) => Ok((words.base, Rings { mapping, place })),
            Err(error) => {
                // SAFETY: nobody knows of them yet.
                unsafe { mapping::unmap(words) };
                Err(error)
            }
        }
    }

    /// Makes the rings of `slot` reachable.
    pub fn reach(&self, _slot: u32) -> bool {
        true
    }

    /// The two rings of a slot that was reached.
    #[inline]
    pub fn of(&self, slot: u32) -> Option<NonNull<u8>> {
        let offset = self.place.of(slot) - self.place.start;
        // SAFETY: inside the mapping, by `Place::end`.
        Some(unsafe { self.mapping.base.add(offset as usize) })
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
        // SAFETY: the caller vouches for it.
        unsafe { mapping::unmap(self.mapping) };
    }

    /// In a forked child: nothing is left open.
    ///
    /// # Safety
    /// The process has one thread.
    pub unsafe fn after_fork(&self) {}
}
