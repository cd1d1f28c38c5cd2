//! The limit of a carrier that copies twice: bytes are copied into shared memory by one process and
//! out of it by the other, with nothing between them but a word for each slot.
//!
//! There are some slots of one piece each, as many bytes together as a ring of the library has. A slot's word
//! is the number of bytes in it, and 0 while it is empty.
// UNSAFETY: maps the file that both processes share, and copies into and out of it.
#![allow(unsafe_code)]

use std::fs::File;
use std::io::{self, Read, Write};
use std::ptr::NonNull;
use std::sync::atomic::{
    AtomicU32,
    Ordering::{Acquire, Relaxed, Release},
};

use super::mapping;

/// Bytes in all slots of a direction.
const DATA_BYTES: usize = 4 * 1024 * 1024;
/// Most bytes in a slot, so that one can be filled while another is emptied.
const PIECE_MAX: usize = 64 * 1024;
const SLOTS_MAX: usize = 4096;
const CACHE_LINE: usize = 64;
/// In the place of a number of bytes: nothing more will come.
const END: u32 = u32::MAX;
/// Looks at a word before the core is given to another process.
const LOOKS: u32 = 256;

/// A pair of lines of the cache for itself: processors fetch two at a time.
#[repr(C, align(128))]
struct Word(AtomicU32);

/// One direction, as it lies in the file.
#[repr(C, align(4096))]
struct Slots {
    words: [Word; SLOTS_MAX],
    data: [u8; DATA_BYTES],
}

const FILE_BYTES: usize = 2 * size_of::<Slots>();

/// One end: both directions, and which slot is next in each.
pub struct CopyEnd {
    out: NonNull<Slots>,
    inward: NonNull<Slots>,
    /// Bytes in a slot; both ends must say the same.
    piece: usize,
    next_out: usize,
    next_inward: usize,
    /// Bytes of the next inward slot that were taken already.
    taken: usize,
}

impl CopyEnd {
    /// Makes the file in which client and server meet.
    pub fn make(path: &str) -> io::Result<()> {
        mapping::make(path, FILE_BYTES)
    }

    /// `size`: of the messages, which decides how large a slot is.
    pub fn server(path: &str, size: usize) -> io::Result<CopyEnd> {
        CopyEnd::attach(path, size, [1, 0])
    }

    pub fn client(path: &str, size: usize) -> io::Result<CopyEnd> {
        CopyEnd::attach(path, size, [0, 1])
    }

    fn attach(path: &str, size: usize, directions: [usize; 2]) -> io::Result<CopyEnd> {
        let file = File::options().read(true).write(true).open(path)?;
        let base = mapping::map(&file, FILE_BYTES)?.cast::<Slots>();
        // SAFETY: the mapping is page-aligned and has room for two of them.
        let [out, inward] = directions.map(|index| unsafe { base.add(index) });
        let piece = size.next_multiple_of(CACHE_LINE).min(PIECE_MAX);
        Ok(CopyEnd { out, inward, piece, next_out: 0, next_inward: 0, taken: 0 })
    }

    pub fn close_writing(&mut self) {
        self.empty_slot().store(END, Release);
    }

    /// The word of the next outward slot, once the slot is empty.
    fn empty_slot(&self) -> &'static AtomicU32 {
        let word = word(self.out, self.next_out);
        // SYNC emptied -> CopyEnd::read: every byte of the slot has been copied out.
        wait(|| word.load(Acquire) == 0);
        word
    }

    fn after(&self, slot: usize) -> usize {
        (slot + 1) % SLOTS_MAX.min(DATA_BYTES / self.piece)
    }

    /// Where the bytes of a slot are.
    fn piece(&self, slots: NonNull<Slots>, slot: usize) -> *mut u8 {
        // SAFETY: within the mapping, of which no reference is made.
        let data = unsafe { &raw mut (*slots.as_ptr()).data };
        data.cast::<u8>().wrapping_add(slot * self.piece)
    }
}

impl Write for CopyEnd {
    /// Copies one piece, once its slot is empty.
    fn write(&mut self, from: &[u8]) -> io::Result<usize> {
        let word = self.empty_slot();
        let count = from.len().min(self.piece);
        let to = self.piece(self.out, self.next_out);
        // SAFETY: the slot is empty, so the other process does not touch it; `count` bytes fit, and
        // the slice is no part of the mapping.
        unsafe { shunt_ring::copy(from.as_ptr(), to, count) };
        // SYNC filled -> CopyEnd::read: every byte of the slot is written.
        word.store(count as u32, Release);
        self.next_out = self.after(self.next_out);
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Read for CopyEnd {
    /// Takes what is there, at least a byte, and no more than stays in the nearest cache.
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        wait(|| word(self.inward, self.next_inward).load(Relaxed) != 0);
        let (mut read, length) = (0, into.len().min(PIECE_MAX));
        while read < length {
            let word = word(self.inward, self.next_inward);
            // SYNC filled -> CopyEnd::write: every byte of the slot is written.
            let filled = match word.load(Acquire) {
                0 | END => break,
                filled => (filled as usize).min(self.piece),
            };
            let count = filled.saturating_sub(self.taken).min(length - read);
            let from = self.piece(self.inward, self.next_inward).wrapping_add(self.taken);
            // SAFETY: the slot is full, so the other process does not touch it; `taken + count` is
            // within the piece and `read + count` within the slice, which is no part of the mapping.
            unsafe { shunt_ring::copy(from, into[read..].as_mut_ptr(), count) };
            read += count;
            self.taken += count;
            if self.taken >= filled {
                self.taken = 0;
                self.next_inward = self.after(self.next_inward);
                // SYNC emptied -> CopyEnd::empty_slot: every byte of the slot has been copied out.
                word.store(0, Release);
            }
        }
        Ok(read)
    }
}

fn word(slots: NonNull<Slots>, index: usize) -> &'static AtomicU32 {
    // SAFETY: mapped for ever; the words are atomics and nothing else refers to them.
    let word: *const Word = unsafe { &raw const (*slots.as_ptr()).words[index] };
    // SAFETY: as above.
    unsafe { &(*word).0 }
}

/// Looks until it is so; gives the core away now and then, since the other may need it.
pub fn wait(is_so: impl Fn() -> bool) {
    loop {
        for _ in 0..LOOKS {
            if is_so() {
                return;
            }
            std::hint::spin_loop();
        }
        std::thread::yield_now();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_copied_in_and_out_and_the_end_follows_them() {
        let path = mapping::path_of_a_test("copy");
        CopyEnd::make(&path).unwrap();
        let mut server = CopyEnd::server(&path, 100_003).unwrap();
        let sent: Vec<u8> = (0..3_000_000u32).map(|n| (n % 251) as u8).collect();
        let expected = sent.clone();
        let client_path = path.clone();
        let writer = std::thread::spawn(move || {
            let mut client = CopyEnd::client(&client_path, 100_003).unwrap();
            // Sizes that do not divide a piece, too.
            for part in sent.chunks(100_003) {
                client.write_all(part).unwrap();
            }
            client.close_writing();
        });
        let mut received = Vec::new();
        server.read_to_end(&mut received).unwrap();
        writer.join().unwrap();
        std::fs::remove_file(path).unwrap();
        assert!(received == expected);
    }
}
