//! The rings of a link, mapped as they are needed, in a few parts or one by one.

#[cfg_attr(target_pointer_width = "64", path = "in_parts.rs")]
#[cfg_attr(not(target_pointer_width = "64"), path = "one_by_one.rs")]
mod mapped;

/// Its tests run wherever these do.
#[allow(dead_code)]
#[cfg(all(test, target_pointer_width = "64"))]
mod one_by_one;

pub use mapped::{has_room, Rings};

use core::ops::Range;

pub const PAGE: usize = 4096;

/// Where the rings lie in a link's memory.
#[derive(Clone, Copy)]
pub struct Place {
    /// Whole pages.
    pub start: u64,
    pub slots: u32,
    pub ring_bytes: u32,
}

impl Place {
    /// The bytes of the two rings of a slot.
    pub fn slot_bytes(&self) -> usize {
        2 * self.ring_bytes as usize
    }

    /// Where those of `slot` begin.
    pub fn of(&self, slot: u32) -> u64 {
        self.start + u64::from(slot) * self.slot_bytes() as u64
    }

    /// What of a slot's rings, of which the first bytes are `touched`, lies behind the first `kept` of each: whole
    /// pages, by where they lie in the slot.
    pub fn touched(&self, touched: [usize; 2], kept: usize) -> impl Iterator<Item = Range<usize>> {
        let starts = [0, self.ring_bytes as usize];
        let parts = starts.into_iter().zip(touched);
        parts
            .map(move |(start, bytes)| start + kept..start + bytes.next_multiple_of(PAGE))
            .filter(|part| !part.is_empty())
    }

    /// Behind the last one.
    pub fn end(&self) -> u64 {
        self.of(self.slots)
    }
}
