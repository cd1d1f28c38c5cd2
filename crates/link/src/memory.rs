//! The link's shared memory: a sealed memfd made by the master.
//!
//! | offset | holds |
//! |---|---|
//! | 0 | header: magic, version, slots, ring bytes (read once, at mapping) |
//! | 4096 | ready map of the master |
//! | 8192 | ready map of the other side |
//! | 12288 | 512 bytes of control words a slot: direction from the master, direction to it |
//! | behind them | 16 bytes a slot: when it was last marked for the master, for the other side |
//! | page after | two rings of data a slot |

use core::mem::size_of;
use core::ptr::NonNull;
use core::sync::atomic::AtomicU64;

use shunt_os::mapping::{self, Mapping};
use shunt_os::{Errno, Result};
use shunt_ring::Direction;
use shunt_ring::ReadyMap;

const MAGIC: u64 = 0x3274_6e75_6853; // "Shunt2"
const PAGE: usize = 4096;
const MAPS: usize = PAGE;
const CONTROL: usize = 3 * PAGE;
const CONTROL_BYTES: usize = 512;

const _: () = assert!(size_of::<ReadyMap>() <= PAGE);
const _: () = assert!(2 * size_of::<Direction>() <= CONTROL_BYTES);

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
}

#[repr(C)]
#[derive(Clone, Copy)]
struct Header {
    magic: u64,
    slots: u32,
    ring_bytes: u32,
}

/// A mapped link memory whose sizes are known to fit.
#[derive(Clone, Copy)]
pub struct Memory {
    mapping: Mapping,
    slots: u32,
    ring_bytes: u32,
}

fn stamps_start(slots: u32) -> usize {
    CONTROL + slots as usize * CONTROL_BYTES
}

fn data_start(slots: u32) -> usize {
    (stamps_start(slots) + 2 * slots as usize * size_of::<AtomicU64>()).next_multiple_of(PAGE)
}

fn total(slots: u32, ring_bytes: u32) -> usize {
    data_start(slots) + 2 * slots as usize * ring_bytes as usize
}

impl Memory {
    /// Makes and maps memory for `slots` streams with rings of `ring_bytes` (a power of two,
    /// at least a page). Returns the memfd to pass on as well.
    pub fn create(slots: u32, ring_bytes: u32) -> Result<(Memory, i32)> {
        let bytes = total(slots, ring_bytes);
        let fd = mapping::create(c"shunt-link", bytes, true)?;
        match mapping::map(fd, bytes) {
            Ok(mapping) => {
                let header = Header { magic: MAGIC, slots, ring_bytes };
                // SAFETY: the mapping starts with room for a header and is page-aligned.
                unsafe { mapping.base.as_ptr().cast::<Header>().write_volatile(header) };
                Ok((Memory { mapping, slots, ring_bytes }, fd))
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
        if bytes < CONTROL {
            return Err(Errno(libc_eproto()));
        }
        let mapping = mapping::map(fd, bytes)?;
        // SAFETY: at least `CONTROL` bytes are mapped.
        let header = unsafe { mapping.base.as_ptr().cast::<Header>().read_volatile() };
        let fits = header.magic == MAGIC
            && (1..=16384).contains(&header.slots)
            && header.ring_bytes.is_power_of_two()
            && (PAGE as u32..=1 << 24).contains(&header.ring_bytes)
            && total(header.slots, header.ring_bytes) == bytes;
        if !fits {
            // SAFETY: nobody else knows the mapping yet.
            unsafe { mapping::unmap(mapping) };
            return Err(Errno(libc_eproto()));
        }
        Ok(Memory { mapping, slots: header.slots, ring_bytes: header.ring_bytes })
    }

    pub fn slots(&self) -> u32 {
        self.slots
    }

    pub fn ring_bytes(&self) -> u32 {
        self.ring_bytes
    }

    /// The control words of the direction that `writer` writes in `slot`.
    pub fn direction(&self, slot: u32, writer: Side) -> NonNull<Direction> {
        assert!(slot < self.slots);
        let offset =
            CONTROL + slot as usize * CONTROL_BYTES + writer as usize * size_of::<Direction>();
        // SAFETY: inside the mapping, by `total`.
        unsafe { self.mapping.base.add(offset).cast() }
    }

    /// The ring of the direction that `writer` writes in `slot`.
    pub fn data(&self, slot: u32, writer: Side) -> NonNull<u8> {
        assert!(slot < self.slots);
        let ring = 2 * slot as usize + writer as usize;
        // SAFETY: inside the mapping, by `total`.
        unsafe { self.mapping.base.add(data_start(self.slots) + ring * self.ring_bytes as usize) }
    }

    /// The ready map that `side` drains.
    #[inline]
    pub fn ready(&self, side: Side) -> &ReadyMap {
        // SAFETY: a page of the mapping, which lives while the link does; all atomics.
        unsafe { self.mapping.base.add(MAPS + side as usize * PAGE).cast().as_ref() }
    }

    /// When `slot` was marked in the map that `side` drains ([`clock::stamp`](shunt_os::clock::stamp)).
    /// Side by side, since many are read after one drain.
    #[inline]
    pub fn stamp(&self, slot: u32, side: Side) -> &AtomicU64 {
        assert!(slot < self.slots);
        let at = side as usize * self.slots as usize + slot as usize;
        let offset = stamps_start(self.slots) + at * size_of::<AtomicU64>();
        // SAFETY: inside the mapping, by `data_start`; it lives while the link does.
        unsafe { self.mapping.base.add(offset).cast().as_ref() }
    }

    /// Gives the pages of a slot's rings back and zeroes its control words.
    pub fn reset_slot(&self, slot: u32) {
        assert!(slot < self.slots);
        let start = self.data(slot, Side::Master).as_ptr();
        // SAFETY: both sides have released the slot.
        unsafe { mapping::give_back(start, 2 * self.ring_bytes as usize) };
        let words = self.direction(slot, Side::Master).as_ptr().cast::<u8>();
        // SAFETY: as above; the 512 bytes are the slot's own.
        unsafe { core::ptr::write_bytes(words, 0, CONTROL_BYTES) };
    }

    /// The peer is gone and every slot is vacant: unmaps the rings, which nobody can reach but
    /// through a stream in a slot, and gives the pages of the words back.
    pub fn retire(&self) {
        let start = data_start(self.slots);
        // SAFETY: inside the mapping, by `total`.
        let base = unsafe { self.mapping.base.add(start) };
        // SAFETY: no stream stands here, so no producer or consumer has an address in the rings.
        unsafe { mapping::unmap(Mapping { base, bytes: self.mapping.bytes - start }) };
        // SAFETY: the words mean nothing any more, and read as zeros from now on.
        unsafe { mapping::give_back(self.mapping.base.as_ptr(), start) };
    }
}

const fn libc_eproto() -> i32 {
    71
}
