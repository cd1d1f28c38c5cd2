//! The handover's words in a slot of shared memory.

use core::ptr::NonNull;

use shunt_ring::Direction;
use shunt_stream::Words;

/// One direction of a slot. The mapping outlives every stream in it.
#[derive(Clone, Copy)]
pub struct SlotWords(NonNull<Direction>);

impl SlotWords {
    /// # Safety
    /// `direction` stays mapped while the value is used.
    pub unsafe fn new(direction: NonNull<Direction>) -> SlotWords {
        SlotWords(direction)
    }

    fn direction(&self) -> &Direction {
        // SAFETY: mapped, by the word of whoever made this.
        unsafe { self.0.as_ref() }
    }
}

impl Words for SlotWords {
    fn tail(&self) -> u64 {
        self.direction().tail()
    }
    fn set_tail(&self, offset: u64) {
        self.direction().set_tail(offset);
    }
    fn up_at(&self) -> u64 {
        self.direction().up_at()
    }
    fn set_up_at(&self, offset: u64) {
        self.direction().set_up_at(offset);
    }
    fn head(&self) -> u64 {
        self.direction().head()
    }
    fn end(&self) -> u64 {
        self.direction().end()
    }
    fn end_cas(&self, from: u64, to: u64) -> Result<(), u64> {
        self.direction().end_cas(from, to)
    }
}
