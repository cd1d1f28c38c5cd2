//! The last bytes of the stream, once more, in the writer's own line.
//!
//! A small message then costs the reader one cache line, the one that it looks at anyway. The byte at
//! offset `o` lies at `o % 32` of the line's last words. They are a copy: every byte lies in the array
//! as well, and a reader that finds the words overwritten or not filled takes it from there.
//!
//! The writer fills them only by publications of at most 32 bytes, from a [`Shadow`] in memory of its
//! own. `since` says from where on it did so without a gap; `reserved` says how far it may have come,
//! before it does. Nothing here is an index into memory: a hostile writer gives wrong bytes, no more.
// UNSAFETY: copies from and to the program's memory.
#![allow(unsafe_code)]

use crate::layout::ProducerLine;
use crate::sync::{acquire_fence, release, Point, Relaxed};

/// Fewer in models, which try every value that a load could give.
pub(crate) const WORDS: usize = if cfg!(loom) { 2 } else { 4 };
pub(crate) const WORD_BYTES: usize = 8;
pub(crate) const LATEST_BYTES: usize = WORDS * WORD_BYTES;

#[inline(always)]
fn word_of(offset: u64) -> usize {
    (offset / WORD_BYTES as u64) as usize % WORDS
}

#[inline(always)]
fn bits_before(offset: u64) -> u32 {
    (offset as u32 % WORD_BYTES as u32) * 8
}

/// What the writer's words say, or will once it publishes. The first byte is the lowest.
pub(crate) struct Shadow([u64; WORDS]);

impl Shadow {
    pub(crate) const fn new() -> Shadow {
        Shadow([0; WORDS])
    }

    /// Takes the bytes at `offset..offset + len`; they replace those of one lap before.
    ///
    /// # Safety
    /// `src..src + len` is readable; `len` is 8 to [`LATEST_BYTES`].
    #[inline]
    pub(crate) unsafe fn put(&mut self, offset: u64, src: *const u8, len: usize) {
        debug_assert!((WORD_BYTES..=LATEST_BYTES).contains(&len));
        let (mut word, shift) = (word_of(offset), bits_before(offset));
        // Each word is stored once; `carry` is its part that came with the load before.
        let mut carry = self.0[word] & !(u64::MAX << shift);
        let mut at = 0;
        while at + WORD_BYTES <= len {
            // SAFETY: the word ends within the caller's bytes.
            let value = unsafe { load_word(src.add(at)) };
            self.0[word] = carry | value << shift;
            carry = value >> 1 >> (63 - shift);
            word = (word + 1) % WORDS;
            at += WORD_BYTES;
        }
        self.0[word] = self.0[word] & u64::MAX << shift | carry;
        if at < len {
            let beside = 64 - (len - at) * 8;
            // SAFETY: the last word ends with the caller's bytes, and there are at least eight.
            let value = unsafe { load_word(src.add(len - WORD_BYTES)) } >> beside;
            self.put_word(offset.wrapping_add(at as u64), value, u64::MAX >> beside);
        }
    }

    /// Takes the bytes of `value` for which `mask` has ones.
    #[inline(always)]
    pub(crate) fn put_word(&mut self, offset: u64, value: u64, mask: u64) {
        let (word, shift) = (word_of(offset), bits_before(offset));
        let low = &mut self.0[word];
        *low = *low & !(mask << shift) | value << shift;
        let high = &mut self.0[(word + 1) % WORDS];
        *high = *high & !(mask >> 1 >> (63 - shift)) | value >> 1 >> (63 - shift);
    }

    /// Stores the words that hold `from..to`, at most [`LATEST_BYTES`]; the caller then shows `to`
    /// by the tail.
    #[inline(always)]
    pub(crate) fn show(&self, line: &ProducerLine, from: u64, to: u64) {
        line.reserved.store(to, Relaxed);
        let mut bytes = from as usize % WORD_BYTES + to.wrapping_sub(from) as usize;
        let mut word = word_of(from);
        loop {
            // SYNC latest -> latest::hold: who sees the word sees the `reserved` and `since` before.
            line.latest[word].store(self.0[word].to_le(), release(Point::LatestPublish));
            if bytes <= WORD_BYTES {
                return;
            }
            bytes -= WORD_BYTES;
            word = (word + 1) % WORDS;
        }
    }
}

/// Copies out `from..from + len`, which were published, unless the words do not hold them (any more).
///
/// # Safety
/// `dst..dst + len` is writable; `len` is 1 to [`LATEST_BYTES`].
#[inline(always)]
#[must_use]
pub(crate) unsafe fn copy_out(line: &ProducerLine, from: u64, dst: *mut u8, len: usize) -> bool {
    debug_assert!((1..=LATEST_BYTES).contains(&len));
    if len > WORD_BYTES {
        // SAFETY: the caller's promise.
        return unsafe { copy_words_out(line, from, dst, len) };
    }
    let value = word_from(line, from);
    let held = hold(line, from);
    if held {
        // SAFETY: the caller's promise.
        unsafe { store_few(dst, value, len) };
    }
    held
}

/// # Safety
/// As for `copy_out`; `len` is more than one word.
#[inline(never)]
unsafe fn copy_words_out(line: &ProducerLine, from: u64, dst: *mut u8, len: usize) -> bool {
    // For two words and less, the inner ones are those at the ends again.
    let inner = if len > 2 * WORD_BYTES { [8, len - 16] } else { [0, 0] };
    let places = [0, inner[0], inner[1], len - 8];
    let words = places.map(|at| word_from(line, from.wrapping_add(at as u64)));
    let held = hold(line, from);
    if held {
        for (at, word) in places.into_iter().zip(words) {
            // SAFETY: a word at each of these places ends within `len` bytes.
            unsafe { store_word(dst.add(at), word) };
        }
    }
    held
}

/// The eight bytes from `offset` on, believed only if `hold` says so afterwards.
#[inline(always)]
fn word_from(line: &ProducerLine, offset: u64) -> u64 {
    let (word, shift) = (word_of(offset), bits_before(offset));
    let low = u64::from_le(line.latest[word].load(Relaxed));
    let high = u64::from_le(line.latest[(word + 1) % WORDS].load(Relaxed));
    low >> shift | high << 1 << (63 - shift)
}

/// After loading words: did they hold the bytes from `from` to the tail that the caller knows?
#[inline(always)]
fn hold(line: &ProducerLine, from: u64) -> bool {
    // SYNC latest -> Shadow::show: if a word was loaded that is newer than that tail, so are these two.
    acquire_fence(Point::LatestObserve);
    line.since.load(Relaxed) <= from
        && line.reserved.load(Relaxed).wrapping_sub(from) <= LATEST_BYTES as u64
}

/// # Safety
/// Eight bytes are readable at `src`.
#[inline(always)]
unsafe fn load_word(src: *const u8) -> u64 {
    // SAFETY: the caller's promise.
    u64::from_le(unsafe { src.cast::<u64>().read_unaligned() })
}

/// # Safety
/// Eight bytes are writable at `dst`.
#[inline(always)]
unsafe fn store_word(dst: *mut u8, value: u64) {
    // SAFETY: the caller's promise.
    unsafe { dst.cast::<u64>().write_unaligned(value.to_le()) }
}

/// The bytes of a word and less; those behind `len` are zero.
///
/// # Safety
/// `src..src + len` is readable; `len` is 1 to 8.
#[inline(always)]
pub(crate) unsafe fn load_few(src: *const u8, len: usize) -> u64 {
    // SAFETY: pieces at the start, in the middle and at the end, neither longer than `len`.
    unsafe {
        let byte = |at: usize| u64::from(src.add(at).read()) << (at * 8);
        let half = |at: usize| {
            u64::from(u32::from_le(src.add(at).cast::<u32>().read_unaligned())) << (at * 8)
        };
        match len {
            8 => load_word(src),
            4.. => half(0) | half(len - 4),
            _ => byte(0) | byte(len / 2) | byte(len - 1),
        }
    }
}

/// # Safety
/// `dst..dst + len` is writable; `len` is 1 to 8.
#[inline(always)]
pub(crate) unsafe fn store_few(dst: *mut u8, value: u64, len: usize) {
    // SAFETY: pieces at the start, in the middle and at the end, neither longer than `len`.
    unsafe {
        let byte = |at: usize| dst.add(at).write((value >> (at * 8)) as u8);
        let half = |at: usize| {
            dst.add(at).cast::<u32>().write_unaligned(((value >> (at * 8)) as u32).to_le())
        };
        match len {
            8 => store_word(dst, value),
            4.. => [0, len - 4].into_iter().for_each(half),
            _ => [0, len / 2, len - 1].into_iter().for_each(byte),
        }
    }
}
