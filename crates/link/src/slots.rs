//! Which slots of a link are free. Only the master's copy decides.

// UNSAFETY: a forked child opens the lock anew.
#![allow(unsafe_code)]

use shunt_os::lock::Lock;

use crate::Side;

/// So many free slots keep the memory that their next streams need first.
const WARM_MAX: usize = 64;

/// A slot is free again when both sides have released it.
pub struct Slots {
    inner: Lock<Inner>,
}

struct Inner {
    /// Taken from the end.
    free: Vec<u32>,
    /// Free as well, and taken before: those that are warm.
    warm: Vec<u32>,
    /// For each slot the sides that have not released it, as bits.
    holders: Vec<u32>,
}

impl Slots {
    /// All free, lowest first.
    pub fn new(count: u32) -> Slots {
        let (free, warm) = ((0..count).rev().collect(), Vec::new());
        Slots { inner: Lock::new(Inner { free, warm, holders: vec![0; count as usize] }) }
    }

    /// Takes a slot for both sides; `None` when all are in use.
    pub fn take(&self) -> Option<u32> {
        let mut inner = self.inner.lock();
        let slot = inner.warm.pop().or_else(|| inner.free.pop())?;
        inner.holders[slot as usize] = Side::Master.bit() | Side::Guest.bit();
        Some(slot)
    }

    /// How many there are to take.
    pub fn free(&self) -> usize {
        let inner = self.inner.lock();
        inner.warm.len() + inner.free.len()
    }

    /// `side` is done with `slot`; true when it was the second, and the slot must be reset
    /// and then [`put_back`](Slots::put_back). A side that says so twice is heard once: the peer cannot
    /// take a slot from a stream that stands there.
    pub fn release(&self, slot: u32, side: Side) -> bool {
        let mut inner = self.inner.lock();
        match inner.holders.get_mut(slot as usize) {
            Some(holders) if *holders & side.bit() != 0 => {
                *holders &= !side.bit();
                *holders == 0
            }
            _ => false,
        }
    }

    /// Makes a slot available that `reset` resets; it is told whether the slot's memory is to stay warm.
    pub fn put_back(&self, slot: u32, reset: impl FnOnce(bool)) {
        let warm = self.inner.lock().warm.len() < WARM_MAX;
        reset(warm);
        let mut inner = self.inner.lock();
        if warm { &mut inner.warm } else { &mut inner.free }.push(slot);
    }

    /// Opens the lock whoever held it.
    ///
    /// # Safety
    /// The holder does not exist any more (a thread of the parent, in a forked child).
    pub unsafe fn force_open(&self) {
        // SAFETY: by the caller's word.
        unsafe { self.inner.force_open() };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slot_is_free_after_both_sides_released_it() {
        let slots = Slots::new(1);
        let slot = slots.take().unwrap();
        assert_eq!(slots.take(), None);
        assert!(!slots.release(slot, Side::Guest));
        assert!(!slots.release(slot, Side::Guest), "a second release of one side is a lie");
        assert!(slots.release(slot, Side::Master));
        assert!(!slots.release(slot, Side::Master), "a third release is a lie");
        slots.put_back(slot, |warm| assert!(warm));
        assert_eq!(slots.take(), Some(slot));
        assert!(!slots.release(99, Side::Guest));
    }

    #[test]
    fn some_free_slots_are_warm_and_taken_first() {
        const COUNT: u32 = WARM_MAX as u32 + 3;
        let slots = Slots::new(COUNT);
        while slots.take().is_some() {}
        let mut warm = 0;
        (0..COUNT).for_each(|slot| slots.put_back(slot, |is_warm| warm += usize::from(is_warm)));
        assert_eq!(warm, WARM_MAX);
        let taken: Vec<u32> = core::iter::from_fn(|| slots.take()).collect();
        assert_eq!(taken.len(), COUNT as usize);
        assert!(taken[..WARM_MAX].iter().all(|slot| (*slot as usize) < WARM_MAX));
    }
}
