//! Which streams of a link became ready, and whether its process sleeps.
//!
//! One map a link and side, in shared memory. The peer marks slots; the owner drains them. Two
//! levels, so that looking costs one cache line however many streams are idle. The owner's threads
//! announce before they sleep on a bell of the link; who marks then asks which to ring.
//!
//! | step of a sleeper | step of a marker |
//! |---|---|
//! | `announce_sleep`, then `any`: if so `retract_sleep` and `drain` | `mark` |
//! | sleep on the bell | `take_sleeper`: ring the bell that it names |
//! | clear the bell, then `retract_sleep`, then `drain` | |
//!
//! Several threads may sleep; a bell is rung once until one of them has answered. It must
//! stay rung until it is cleared (an eventfd, or a futex on a word).
//!
//! Bell 0 wakes every sleeper, who all announce there. Each other bell is of some sleepers, who announce there as
//! well, and want to be told of some streams alone: a word beside the stream says by which bell. Who comes to wait for it sets that to 0,
//! or to a bell of its own if nobody else waits, before it looks at the stream for the last time; or another thread changes it, and rings
//! the first bell behind that.

use crate::sync::{acquire, fence, release, AtomicU32, AtomicU64, Point, Relaxed};

/// How many streams a link can have.
pub const SLOTS: u32 = if cfg!(loom) { 128 } else { 16384 };

const WORDS: usize = (SLOTS / 64) as usize;
const SUMMARIES: usize = WORDS.div_ceil(64);

/// How many bells a map has.
pub const BELLS: usize = if cfg!(loom) { 2 } else { 16 };

/// In `sleeping`: the bell was rung and nobody has answered yet. Below it: how many threads sleep.
const RUNG: u32 = 1 << 31;

/// A line each: who sleeps on different bells does not share one.
#[repr(C, align(64))]
struct Apart {
    sleeping: AtomicU32,
}

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
    /// Who sleeps on each bell but the first.
    apart: [Apart; BELLS - 1],
}

#[cfg(not(loom))]
const _: () = {
    use core::mem::{offset_of, size_of};
    assert!(offset_of!(ReadyMap, summary) == 0);
    assert!(offset_of!(ReadyMap, sleeping) == 32);
    assert!(offset_of!(ReadyMap, elsewhere) == 40);
    assert!(offset_of!(ReadyMap, first) == 48);
    assert!(offset_of!(ReadyMap, words) == 64);
    assert!(offset_of!(ReadyMap, apart) == 64 + 2048);
    assert!(size_of::<ReadyMap>() == 64 + 2048 + 64 * (BELLS - 1));
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
            apart: core::array::from_fn(|_| Apart { sleeping: AtomicU32::new(0) }),
        }
    }

    #[inline]
    fn word(&self, at: usize) -> &AtomicU64 {
        match at {
            0 => &self.first,
            at => &self.words[at],
        }
    }

    /// Of a bell that is not there, whatever a peer says, it is the first one's.
    #[inline]
    fn sleeping(&self, bell: u32) -> (&AtomicU32, u32) {
        match self.apart.get((bell as usize).wrapping_sub(1)) {
            Some(apart) => (&apart.sleeping, bell),
            None => (&self.sleeping, 0),
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

    /// Announces that a thread will sleep on `bell` unless [`any`](Self::any) says no.
    #[inline]
    pub fn announce_sleep(&self, bell: u32) {
        let (sleeping, _) = self.sleeping(bell);
        // A ring that nobody answered was for an earlier sleep: its event may have been taken by a
        // look that was not a sleeper's, and must not silence the next mark.
        let mut now = sleeping.load(Relaxed);
        while let Err(changed) =
            sleeping.compare_exchange_weak(now, (now & !RUNG).wrapping_add(1), Relaxed, Relaxed)
        {
            now = changed;
        }
        // SYNC sleeping -> ReadyMap::take_sleeper: the sleeper sees the mark in `any`, or the marker
        // sees the sleeper.
        fence(Point::SleeperAnnounce);
    }

    /// The thread is awake again, or did not sleep after all. It has cleared the bell before (if the
    /// bell woke it) and drains after this.
    #[inline]
    pub fn retract_sleep(&self, bell: u32) {
        let (sleeping, _) = self.sleeping(bell);
        let mut now = sleeping.load(Relaxed);
        // A peer that scribbles must not make the count underflow into `RUNG`.
        while let Err(changed) =
            sleeping.compare_exchange_weak(now, (now & !RUNG).saturating_sub(1), Relaxed, Relaxed)
        {
            now = changed;
        }
        // SYNC sleeping -> ReadyMap::take_sleeper: a marker that still saw `RUNG` and did not ring
        // has its mark seen by the drain that follows.
        fence(Point::SleeperRetract);
    }

    /// A thread that is no sleeper took the bell's event: the next mark rings again. It drains after
    /// this.
    #[inline]
    pub fn clear_rung(&self, bell: u32) {
        self.sleeping(bell).0.fetch_and(!RUNG, Relaxed);
        // SYNC sleeping -> ReadyMap::take_sleeper: as in `retract_sleep`.
        fence(Point::SleeperRetract);
    }

    /// Whether the bell is rung, or is about to be, and none of its sleepers has answered.
    #[inline]
    pub fn is_rung(&self, bell: u32) -> bool {
        self.sleeping(bell).0.load(Relaxed) & RUNG != 0
    }

    /// After [`mark`](Self::mark): which bell of the owner's the caller must ring, if any. `told_by` says by which the
    /// owner is told of this stream.
    #[inline]
    pub fn take_sleeper(&self, told_by: &AtomicU32) -> Option<u32> {
        // SYNC sleeping -> ReadyMap::announce_sleep, ReadyMap::retract_sleep: the mark before this
        // fence is seen by an owner that is not seen asleep, or whose bell is seen rung, or who has not been seen to
        // set `told_by` before it announced.
        fence(Point::SleeperTake);
        let (sleeping, bell) = self.sleeping(told_by.load(Relaxed));
        let now = sleeping.load(Relaxed);
        if now == 0 || now & RUNG != 0 {
            return None;
        }
        (sleeping.fetch_or(RUNG, Relaxed) & RUNG == 0).then_some(bell)
    }
}

impl Default for ReadyMap {
    fn default() -> ReadyMap {
        ReadyMap::new()
    }
}
