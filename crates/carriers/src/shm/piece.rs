//! How much of a long send is shown at a time, and taken at a time of a long receive: so both sides copy at once.

use core::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// By so much the pieces of a long send, and what a full ring holds, differ from a power of two. There are readers
/// that take a power of two at a time until they get fewer, and find no more to be an error: TCP's segments, of 65483
/// bytes on a loopback, leave them a rest. A line of the cache, so that copies stay aligned.
pub const UNEVEN: usize = 64;

/// A send of no more than this is shown as a whole, as one by TCP mostly arrives.
pub const WHOLE: usize = 32 * 1024;

/// The beginning of a longer one, in bytes.
pub const FIRST: usize = WHOLE - UNEVEN;

/// A rest of no more than this is shown with the piece before it.
pub const REST: usize = 4 * 1024;

/// Small ones keep the copied bytes in a core's nearest cache, large ones spare words that go to and fro. What counts
/// for more differs by maker (docs/speed.md, "Writes of 64 KiB and more").
const SMALL: usize = 16 * 1024 - UNEVEN;
const LARGE: usize = 64 * 1024 - UNEVEN;

/// As much of so many bytes as is one piece, on this machine.
#[inline(always)]
pub fn part_of(bytes: usize) -> usize {
    if bytes <= SMALL {
        bytes
    } else {
        bytes.min(piece())
    }
}

/// Bytes of a piece behind the first.
pub fn piece() -> usize {
    static FOUND: AtomicUsize = AtomicUsize::new(0);
    match FOUND.load(Relaxed) {
        0 => {
            let found = if shunt_os::processor::is_made_by_amd() { LARGE } else { SMALL };
            FOUND.store(found, Relaxed);
            found
        }
        found => found,
    }
}
