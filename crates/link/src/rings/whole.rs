//! Where addresses have 64 bits: words and rings are one mapping.

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
    /// Maps the words, which lie before the rings, and the rings.
    pub fn map(fd: i32, place: Place) -> Result<(NonNull<u8>, Rings)> {
        let mapping = mapping::map(fd, place.end() as usize)?;
        Ok((mapping.base, Rings { mapping, place }))
    }

    /// Makes the rings of `slot` reachable.
    pub fn reach(&self, _slot: u32) -> bool {
        true
    }

    /// The two rings of a slot that was reached.
    #[inline]
    pub fn of(&self, slot: u32) -> Option<NonNull<u8>> {
        // SAFETY: inside the mapping, by `Place::end`.
        Some(unsafe { self.mapping.base.add(self.place.of(slot) as usize) })
    }

    /// Unmaps them all.
    ///
    /// # Safety
    /// Nobody has an address in them.
    pub unsafe fn unmap(&self) {
        let start = self.place.start as usize;
        // SAFETY: inside the mapping.
        let base = unsafe { self.mapping.base.add(start) };
        // SAFETY: the caller vouches for it.
        unsafe { mapping::unmap(Mapping { base, bytes: self.mapping.bytes - start }) };
    }

    /// In a forked child: nothing is left open.
    pub fn after_fork(&self) {}
}
