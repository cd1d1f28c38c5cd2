//! Copies between a program's memory and memory that two processes share.
// UNSAFETY: raw copies, to and from memory that the peer can write.
#![allow(unsafe_code)]

use core::ptr::copy_nonoverlapping;

/// The longest copy, in bytes, that glibc's `memcpy` never makes by `rep movsb`, as it is set: it begins at 2048 with
/// vectors of 16 bytes, at more with longer ones, and at 2112 where the processor has FSRM (its tunable
/// `glibc.cpu.x86_rep_movsb_threshold`).
const BY_VECTORS: usize = 2048;
/// Short of that by whole lines of the cache, so that each piece begins in a line as the one before.
const PIECE: usize = 1536;
const PAGE: usize = 4096;
const LINE: usize = 64;

/// `memcpy`, by vectors in place of `rep movsb` where that may be slow.
///
/// # Safety
/// `from..from + len` is readable and `to..to + len` writable, and they have no byte in common.
#[inline(always)]
pub unsafe fn copy(from: *const u8, to: *mut u8, len: usize) {
    if cfg!(target_arch = "x86_64") && len > BY_VECTORS && is_a_little_behind(to, from) {
        // SAFETY: the caller's promise.
        return unsafe { copy_in_pieces(from, to, len) };
    }
    // SAFETY: the caller's promise.
    unsafe { copy_nonoverlapping(from, to, len) }
}

/// `rep movsb` takes what it reads for what it is about to write where the target lies less than a
/// line behind the source, as far as the bits of an address within a page say. On Zen 3 and 4 that is
/// up to twenty times slower (glibc bug 30994; `docs/speed.md` has figures). It is no rare case: rings
/// begin with a page, and what `malloc` takes from the kernel for large blocks begins 16 bytes behind one.
fn is_a_little_behind(to: *const u8, from: *const u8) -> bool {
    let distance = (to as usize).wrapping_sub(from as usize) % PAGE;
    (1..LINE).contains(&distance)
}

#[inline(never)]
unsafe fn copy_in_pieces(from: *const u8, to: *mut u8, len: usize) {
    let mut done = 0;
    while done < len {
        let piece = PIECE.min(len - done);
        // SAFETY: the piece is within what the caller promised.
        unsafe { copy_nonoverlapping(from.wrapping_add(done), to.wrapping_add(done), piece) };
        done += piece;
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn every_distance_and_length_copies_every_byte_and_no_other() {
        let source: Vec<u8> = (0..3 * PAGE).map(|i| (i % 251) as u8).collect();
        for distance in [0, 1, 8, 16, 63, 64, 2048, 4095] {
            for len in [0, 1, PIECE, BY_VECTORS, BY_VECTORS + 1, 2 * PIECE, 2 * PIECE + 1, 2 * PAGE]
            {
                let mut target = vec![0xaa; 4 * PAGE + 2];
                let start = target.as_ptr() as usize;
                let at = (source.as_ptr() as usize + distance).wrapping_sub(start + 1) % PAGE + 1;
                let room = &mut target[at..at + len];
                assert_eq!(
                    (room.as_ptr() as usize).wrapping_sub(source.as_ptr() as usize) % PAGE,
                    distance
                );
                // SAFETY: both have `len` bytes, of two allocations.
                unsafe { copy(source.as_ptr(), room.as_mut_ptr(), len) };
                assert!(*room == source[..len], "{len} bytes, {distance} behind");
                let (before, behind) = (&target[..at], &target[at + len..]);
                assert!(before.iter().chain(behind).all(|byte| *byte == 0xaa), "{len}, {distance}");
            }
        }
    }
}
