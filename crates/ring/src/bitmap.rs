//! Which streams of a link became ready, and whether its process sleeps.
//!
//! One map a link and side, in shared memory. The peer marks slots; the owner drains them. Two
//! levels, so that looking costs one cache line however many streams are idle. The owner's threads
//! announce before they sleep on the link's bell; who marks then asks whether to ring it.
//!
//! | step of a sleeper | step of a marker |
//! |---|---|
//! | `announce_sleep`, then `any`: if so `retract_sleep` and `drain` | `mark` |
//! | sleep on the bell | `take_sleeper`: if so, ring the bell |
//! | clear the bell, then `retract_sleep`, then `drain` | |
//!
//! Several threads may sleep; the bell is rung once until one of them has answered. The bell must
//! stay rung until it is cleared (an eventfd, or a futex on a word).

use crate::sync::{acquire, fence, release, AtomicU32, AtomicU64, Point, Relaxed};

/// How many streams a link can have.
pub const SLOTS: u32 = if cfg!(loom) { 128 } else { 16384 };

const WORDS: usize = (SLOTS / 64) as usize;
const SUMMARIES: usize = WORDS.div_ceil(64);

/// In `sleeping`: the bell was rung and nobody has answered yet. Below it: how many threads sleep.
const RUNG: u32 = 1 << 31;

/// Zeroed memory is a valid map: nothing marked, nobody asleep.
#[repr(C, align(64))]
pub struct ReadyMap {
    /// One bit a word that may have marks.
    summary: [AtomicU64; SUMMARIES],
    /// In the summary's line, since whoever touches one looks at the other next.
    sleeping: AtomicU32,
    #[cfg(not(loom))]
    reserved: u32,
    /// When the marker did something elsewhere.
    elsewhere: AtomicU64,
    /// The marks of the first streams, which most links have no more than: one line for all.
    first: AtomicU64,
    #[cfg(not(loom))]
    spare: u64,
    /// Those of the others; the first of these words is not used.
    words: [AtomicU64; WORDS],
}

#[cfg(not(loom))]
const _: () = {
    use core::mem::{offset_of, size_of};
    assert!(offset_of!(ReadyMap, summary) == 0);
    assert!(offset_of!(ReadyMap, sleeping) == 32);
    assert!(offset_of!(ReadyMap, elsewhere) == 40);
    assert!(offset_of!(ReadyMap, first) == 48);
    assert!(offset_of!(ReadyMap, words) == 64);
    assert!(size_of::<ReadyMap>() == 64 + 2048);
};

impl ReadyMap {
    pub fn new() -> ReadyMap {
        ReadyMap {
            summary: core::array::from_fn(|_| AtomicU64::new(0)),
            sleeping: AtomicU32::new(0),
            #[cfg(not(loom))]
            reserved: 0,
            elsewhere: AtomicU64::new(0),
            first: AtomicU64::new(0),
            #[cfg(not(loom))]
            spare: 0,
            words: core::array::from_fn(|_| AtomicU64::new(0)),
        }
    }

    #[inline]
    fn word(&self, at: usize) -> &AtomicU64 {
        match at {
            0 => &self.first,
            at => &self.words[at],
        }
    }

    /// Says that something happened to the stream in `slot`; then [`take_sleeper`](Self::take_sleeper).
    /// Slots beyond [`SLOTS`] are ignored.
    #[inline]
    pub fn mark(&self, slot: u32) {
        if slot >= SLOTS {
            return;
        }
        let word = (slot / 64) as usize;
        // SYNC mark -> ReadyMap::drain: what the marker did to the stream before is seen.
        self.word(word).fetch_or(1 << (slot % 64), release(Point::MarkPublish));
        // SYNC summary -> ReadyMap::drain: the mark in the word is seen by who sees its summary bit.
        self.summary[word / 64].fetch_or(1 << (word % 64), release(Point::SummaryPublish));
    }

    /// Before a mark: when the marker last did something that the map's owner hears of by other means.
    #[inline]
    pub fn did_elsewhere(&self, time: u64) {
        self.elsewhere.store(time, Relaxed);
    }

    /// After a drain: the time that came with a mark, or with a later one.
    #[inline]
    pub fn elsewhere(&self) -> u64 {
        self.elsewhere.load(Relaxed)
    }

    /// Takes all marks and calls `ready` for each slot, in the order of slots.
    #[inline]
    pub fn drain(&self, mut ready: impl FnMut(u32)) {
        for (at, summary) in self.summary.iter().enumerate() {
            if summary.load(Relaxed) == 0 {
                continue;
            }
            // SYNC summary -> ReadyMap::mark: a word whose summary bit is taken here shows its mark.
            let mut marked = summary.swap(0, acquire(Point::SummaryObserve));
            while marked != 0 {
                let word = at * 64 + marked.trailing_zeros() as usize;
                marked &= marked - 1;
                // A peer that scribbles may set summary bits of words that are not there.
                if word < WORDS {
                    self.drain_word(word, &mut ready);
                }
            }
        }
    }

    #[inline]
    fn drain_word(&self, word: usize, ready: &mut impl FnMut(u32)) {
        // The model checker lets a load be stale, but not a swap: it is shown the weaker form.
        #[cfg(loom)]
        if self.word(word).load(Relaxed) == 0 {
            return;
        }
        // SYNC mark -> ReadyMap::mark: what the marker did to the stream before is seen.
        let mut marks = self.word(word).swap(0, acquire(Point::MarkObserve));
        while marks != 0 {
            ready(word as u32 * 64 + marks.trailing_zeros());
            marks &= marks - 1;
        }
    }

    /// Whether anything is marked. One cache line; good for spinning.
    #[inline]
    pub fn any(&self) -> bool {
        self.summary.iter().fold(0, |all, word| all | word.load(Relaxed)) != 0
    }

    /// Announces that a thread will sleep on the bell unless [`any`](Self::any) says no.
    #[inline]
    pub fn announce_sleep(&self) {
        // A ring that nobody answered was for an earlier sleep: its event may have been taken by a
        // look that was not a sleeper's, and must not silence the next mark.
        let mut now = self.sleeping.load(Relaxed);
        while let Err(changed) = self.sleeping.compare_exchange_weak(
            now,
            (now & !RUNG).wrapping_add(1),
            Relaxed,
            Relaxed,
        ) {
            now = changed;
        }
        // SYNC sleeping -> ReadyMap::take_sleeper: the sleeper sees the mark in `any`, or the marker
        // sees the sleeper.
        fence(Point::SleeperAnnounce);
    }

    /// The thread is awake again, or did not sleep after all. It has cleared the bell before (if the
    /// bell woke it) and drains after this.
    #[inline]
    pub fn retract_sleep(&self) {
        let mut now = self.sleeping.load(Relaxed);
        // A peer that scribbles must not make the count underflow into `RUNG`.
        while let Err(changed) = self.sleeping.compare_exchange_weak(
            now,
            (now & !RUNG).saturating_sub(1),
            Relaxed,
            Relaxed,
        ) {
            now = changed;
        }
        // SYNC sleeping -> ReadyMap::take_sleeper: a marker that still saw `RUNG` and did not ring
        // has its mark seen by the drain that follows.
        fence(Point::SleeperRetract);
    }

    /// A thread that is no sleeper took the bell's event: the next mark rings again. It drains after
    /// this.
    #[inline]
    pub fn clear_rung(&self) {
        self.sleeping.fetch_and(!RUNG, Relaxed);
        // SYNC sleeping -> ReadyMap::take_sleeper: as in `retract_sleep`.
        fence(Point::SleeperRetract);
    }

    /// After [`mark`](Self::mark): whether the caller must ring the owner's bell.
    #[inline]
    pub fn take_sleeper(&self) -> bool {
        // SYNC sleeping -> ReadyMap::announce_sleep, ReadyMap::retract_sleep: the mark before this
        // fence is seen by an owner that is not seen asleep, or whose bell is seen rung.
        fence(Point::SleeperTake);
        let now = self.sleeping.load(Relaxed);
        if now == 0 || now & RUNG != 0 {
            return false;
        }
        self.sleeping.fetch_or(RUNG, Relaxed) & RUNG == 0
    }
}

impl Default for ReadyMap {
    fn default() -> ReadyMap {
        ReadyMap::new()
    }
}
