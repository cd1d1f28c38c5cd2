//! What may have happened on a kernel connection, until somebody has looked.

use core::sync::atomic::{AtomicU32, Ordering::*};

/// A mark that stands while several ask whether there is something behind it, and goes when one has found
/// that there is not. Nobody takes it while he asks: another who saw none would sleep. Above the lowest bit
/// it counts how often it was made: who asked about an earlier one does not take a later one.
#[derive(Default)]
pub struct Stirred(AtomicU32);

impl Stirred {
    const STANDS: u32 = 1;

    pub fn set(&self) {
        let made = |word: u32| Some(word.wrapping_add(2) | Stirred::STANDS);
        // SYNC stirred -> Stirred::seen: what stirred can be asked about.
        let _ = self.0.fetch_update(Release, Relaxed, made);
    }

    pub fn clear(&self) {
        self.0.fetch_and(!Stirred::STANDS, Relaxed);
    }

    #[inline]
    pub fn is_set(&self) -> bool {
        self.seen() != 0
    }

    /// Before the question: which mark it is about; 0 is none.
    #[inline]
    pub fn seen(&self) -> u32 {
        // SYNC stirred -> Stirred::set: the kernel is asked behind what stirred.
        let word = self.0.load(Acquire);
        if word & Stirred::STANDS == 0 {
            0
        } else {
            word
        }
    }

    /// There was nothing behind the mark that was seen. One that was made since stays.
    pub fn was_nothing(&self, seen: u32) {
        let _ = self.0.compare_exchange(seen, seen & !Stirred::STANDS, Relaxed, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_stirs_during_the_question_is_not_forgotten() {
        let mark = Stirred::default();
        assert!(!mark.is_set());
        mark.set();
        let seen = mark.seen();
        assert!(mark.is_set(), "another who looks meanwhile must ask as well");
        mark.set();
        mark.was_nothing(seen);
        assert!(mark.is_set());
        mark.was_nothing(mark.seen());
        assert!(!mark.is_set());
    }

    #[test]
    fn who_asks_for_long_does_not_take_a_later_mark() {
        let mark = Stirred::default();
        mark.set();
        let seen = mark.seen();
        mark.was_nothing(mark.seen());
        assert!(!mark.is_set(), "another was faster");
        mark.set();
        mark.was_nothing(seen);
        assert!(mark.is_set());
    }
}
