//! Where addresses have 32 bits: the rings of a slot are mapped when its first stream comes, and stay
//! mapped while the link lives. All links together take a bounded part of the program's addresses;
//! streams for which nothing is left stay on TCP.

use core::ptr::{null_mut, NonNull};
use core::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicUsize, Ordering::*};

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
    fd: AtomicI32,
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
                Ok((words.base, Rings { fd: AtomicI32::new(kept), place, mapped }))
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
            let offset = self.place.of(slot);
            if let Ok(mapping) = mapping::map_part(self.fd.load(Relaxed), offset, bytes) {
                place.store(mapping.base.as_ptr(), Release);
                return true;
            }
        }
        MAPPED.fetch_sub(bytes, Relaxed);
        EXHAUSTED.store(true, Relaxed);
        false
    }

    /// The two rings of a slot that was reached.
    pub fn of(&self, slot: u32) -> Option<NonNull<u8>> {
        NonNull::new(self.mapped.get(slot as usize)?.load(Acquire))
    }

    /// Unmaps them all.
    ///
    /// # Safety
    /// Nobody has an address in them.
    pub unsafe fn unmap(&self) {
        let bytes = self.place.slot_bytes();
        for place in &self.mapped {
            if let Some(base) = NonNull::new(place.swap(null_mut(), AcqRel)) {
                // SAFETY: the caller vouches for it.
                unsafe { mapping::unmap(Mapping { base, bytes }) };
                MAPPED.fetch_sub(bytes, Relaxed);
            }
        }
        EXHAUSTED.store(false, Relaxed);
        self.after_fork();
    }

    /// In a forked child: the link is the parent's.
    pub fn after_fork(&self) {
        let fd = self.fd.swap(-1, Relaxed);
        if fd >= 0 {
            handles::close(fd);
        }
    }
}
