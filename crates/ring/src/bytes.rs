//! Where the payload lives: mapped memory, or loom cells in models.
//!
//! The peer can write these bytes at any time, so they are never borrowed: they are copied in once
//! or out once, by absolute stream offset, which is masked into the array here and nowhere else.
// UNSAFETY: raw copies to and from shared memory.
#![allow(unsafe_code)]

use core::ptr::NonNull;

/// One byte of payload as it lies in memory.
#[cfg(not(loom))]
pub type Byte = u8;
/// One byte of payload, watched by the model checker for unordered access.
#[cfg(loom)]
pub type Byte = loom::cell::UnsafeCell<u8>;

#[derive(Clone, Copy)]
pub(crate) struct Bytes {
    base: NonNull<Byte>,
    mask: u64,
    /// Offset of the byte at the array's start: whatever it is, addresses stay inside.
    pub(crate) origin: u64,
}

impl Bytes {
    /// # Safety
    /// `base..base + capacity` stays mapped, readable and writable, while the result or a copy of
    /// it is used. `capacity` is a power of two.
    pub(crate) unsafe fn new(base: NonNull<Byte>, capacity: u32) -> Bytes {
        debug_assert!(capacity.is_power_of_two());
        Bytes { base, mask: u64::from(capacity).wrapping_sub(1), origin: 0 }
    }

    #[inline(always)]
    pub(crate) fn capacity(&self) -> u64 {
        self.mask + 1
    }

    /// Where the byte at `offset` lies: always inside the array.
    #[inline(always)]
    fn address(&self, offset: u64) -> *mut Byte {
        self.base.as_ptr().wrapping_add(self.position(offset))
    }

    #[inline(always)]
    pub(crate) fn position(&self, offset: u64) -> usize {
        (offset.wrapping_sub(self.origin) & self.mask) as usize
    }

    /// How many of `len` bytes from `offset` on lie before the array's end.
    #[inline(always)]
    fn before_wrap(&self, offset: u64, len: usize) -> usize {
        len.min((self.mask + 1) as usize - self.position(offset))
    }

    /// The longest piece of `len` bytes from `offset` on that needs no wrap.
    #[cfg(not(loom))]
    #[inline]
    pub(crate) fn piece(&self, offset: u64, len: usize) -> (NonNull<u8>, usize) {
        // SAFETY: the position is masked below the capacity that `new` was promised.
        let start = unsafe { self.base.add(self.position(offset)) };
        (start, self.before_wrap(offset, len))
    }

    /// Copies `value` in, the first `len` bytes of a word.
    ///
    /// # Safety
    /// `len` is 1 to 8, and at most the capacity.
    #[inline(always)]
    pub(crate) unsafe fn copy_word_in(&self, offset: u64, value: u64, len: usize) {
        #[cfg(not(loom))]
        if self.before_wrap(offset, len) == len {
            // SAFETY: `len` bytes from the address on end at or before the array's end.
            return unsafe { crate::latest::store_few(self.address(offset), value, len) };
        }
        // SAFETY: the caller's promise, and a word has eight bytes.
        unsafe { self.copy_in(offset, value.to_le_bytes().as_ptr(), len) }
    }

    /// # Safety
    /// `src..src + len` is readable and no part of the ring; `len` is at most the capacity.
    #[inline]
    pub(crate) unsafe fn copy_in(&self, offset: u64, src: *const u8, len: usize) {
        debug_assert!(len as u64 <= self.capacity());
        let first = self.before_wrap(offset, len);
        // SAFETY: the address is inside the array and `first` ends at or before its end.
        unsafe { store(self.address(offset), src, first) };
        if first < len {
            // SAFETY: `len - first` is less than the capacity, since `first` is at least 1.
            unsafe { store(self.base.as_ptr(), src.wrapping_add(first), len - first) };
        }
    }

    /// # Safety
    /// `dst..dst + len` is writable and no part of the ring; `len` is at most the capacity.
    #[inline]
    pub(crate) unsafe fn copy_out(&self, offset: u64, dst: *mut u8, len: usize) {
        debug_assert!(len as u64 <= self.capacity());
        let first = self.before_wrap(offset, len);
        // SAFETY: the address is inside the array and `first` ends at or before its end.
        unsafe { load(self.address(offset), dst, first) };
        if first < len {
            // SAFETY: `len - first` is less than the capacity, since `first` is at least 1.
            unsafe { load(self.base.as_ptr(), dst.wrapping_add(first), len - first) };
        }
    }
}

#[cfg(not(loom))]
#[inline(always)]
unsafe fn store(to: *mut Byte, from: *const u8, len: usize) {
    // SAFETY: the caller checked both ranges; program memory and ring never overlap.
    unsafe { crate::copy::copy(from, to, len) }
}

#[cfg(not(loom))]
#[inline(always)]
unsafe fn load(from: *const Byte, to: *mut u8, len: usize) {
    // SAFETY: the caller checked both ranges; program memory and ring never overlap.
    unsafe { crate::copy::copy(from, to, len) }
}

#[cfg(loom)]
unsafe fn store(to: *mut Byte, from: *const u8, len: usize) {
    for i in 0..len {
        // SAFETY: both ranges hold `len` elements; the cell reports any unordered access.
        unsafe { (*to.add(i)).with_mut(|cell| *cell = *from.add(i)) }
    }
}

#[cfg(loom)]
unsafe fn load(from: *const Byte, to: *mut u8, len: usize) {
    for i in 0..len {
        // SAFETY: both ranges hold `len` elements; the cell reports any unordered access.
        unsafe { (*from.add(i)).with(|cell| *to.add(i) = *cell) }
    }
}
