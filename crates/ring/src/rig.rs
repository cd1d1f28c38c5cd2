//! What the tests hold a ring in: words and bytes by raw address, with guards around the bytes.
// UNSAFETY: owns the memory that producer and consumer reach by address.
#![allow(unsafe_code)]

use core::ptr::NonNull;
use std::alloc::{alloc_zeroed, dealloc, Layout};

use crate::{Consumer, Direction, Producer};

/// miri sees by itself what leaves the allocation.
const GUARD: usize = if cfg!(miri) { 0 } else { 64 };
const GUARD_BYTE: u8 = 0xA5;

pub(crate) struct Rig {
    direction: NonNull<Direction>,
    block: NonNull<u8>,
    capacity: u32,
}

impl Rig {
    pub(crate) fn new(capacity: u32) -> Rig {
        let direction = NonNull::from(Box::leak(Box::new(Direction::new())));
        // SAFETY: the layout is not empty.
        let block = NonNull::new(unsafe { alloc_zeroed(layout(capacity)) }).expect("memory");
        for guard in [0, GUARD + capacity as usize] {
            // SAFETY: the block is a guard, the capacity, and a guard again.
            unsafe { block.add(guard).write_bytes(GUARD_BYTE, GUARD) };
        }
        Rig { direction, block, capacity }
    }

    pub(crate) fn direction(&self) -> &Direction {
        // SAFETY: leaked in `new`, freed in `drop`.
        unsafe { self.direction.as_ref() }
    }

    pub(crate) fn producer(&self) -> Producer {
        // SAFETY: the tests drop every end before the rig, and use one of each at a time.
        let mut producer =
            unsafe { Producer::attach(self.direction, self.block.add(GUARD), self.capacity) };
        producer.set_window(u64::from(self.capacity / 4));
        producer
    }

    pub(crate) fn consumer(&self) -> Consumer {
        // SAFETY: as for `producer`.
        unsafe { Consumer::attach(self.direction, self.block.add(GUARD), self.capacity) }
    }

    /// As a system does with memory that is given back.
    pub(crate) fn make_zero(&self, positions: core::ops::Range<usize>) {
        assert!(positions.end <= self.capacity as usize);
        let start = GUARD + positions.start;
        // SAFETY: inside the block, and no end of the ring is active meanwhile.
        unsafe { self.block.add(start).write_bytes(0, positions.len()) };
    }

    pub(crate) fn guards_are_whole(&self) -> bool {
        [0, GUARD + self.capacity as usize].into_iter().all(|guard| {
            // SAFETY: inside the block, and no end of the ring is active during the look.
            (0..GUARD).all(|i| unsafe { self.block.add(guard + i).read() } == GUARD_BYTE)
        })
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        // SAFETY: came from `Box::leak` in `new`.
        drop(unsafe { Box::from_raw(self.direction.as_ptr()) });
        // SAFETY: allocated in `new` with the same layout.
        unsafe { dealloc(self.block.as_ptr(), layout(self.capacity)) };
    }
}

fn layout(capacity: u32) -> Layout {
    Layout::from_size_align(2 * GUARD + capacity as usize, 64).expect("a small layout")
}

/// How many cases a property gets: few under miri, which is a thousand times slower.
pub(crate) fn cases(normally: u32, under_miri: u32) -> proptest::test_runner::Config {
    proptest::test_runner::Config {
        cases: if cfg!(miri) { under_miri } else { normally },
        failure_persistence: None,
        ..Default::default()
    }
}
