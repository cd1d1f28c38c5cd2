//! Which numbers are ours: a program that closes every number there is does not mean them.

use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Above these a number of ours is not known: a process would have as many open.
const NUMBERS: usize = 1 << 16;

type Numbers = [AtomicU64; NUMBERS / 64];

static OWN: Numbers = [const { AtomicU64::new(0) }; NUMBERS / 64];
/// Those that were ours at any time.
static EVER: Numbers = [const { AtomicU64::new(0) }; NUMBERS / 64];

fn place(numbers: &'static Numbers, fd: i32) -> Option<(&'static AtomicU64, u64)> {
    let fd = usize::try_from(fd).ok()?;
    numbers.get(fd / 64).map(|word| (word, 1 << (fd % 64)))
}

fn is_in(numbers: &'static Numbers, fd: i32) -> bool {
    place(numbers, fd).is_some_and(|(word, bit)| word.load(Relaxed) & bit != 0)
}

/// The number becomes ours, or is ours no more.
pub(super) fn mark(fd: i32, ours: bool) {
    let Some((word, bit)) = place(&OWN, fd) else { return };
    if ours {
        word.fetch_or(bit, Relaxed);
        if let Some((word, bit)) = place(&EVER, fd) {
            word.fetch_or(bit, Relaxed);
        }
    } else if word.load(Relaxed) & bit != 0 {
        word.fetch_and(!bit, Relaxed);
    }
}

/// Whether the number is a descriptor of ours.
#[inline]
pub fn is_own(fd: i32) -> bool {
    is_in(&OWN, fd)
}

/// Whether the number is a descriptor of ours, or was one before.
pub(super) fn was_own(fd: i32) -> bool {
    is_in(&EVER, fd)
}

/// The lowest number of ours from `first` to `last`.
pub fn first_own(first: u32, last: u32) -> Option<u32> {
    let end = (last as usize).saturating_add(1).min(NUMBERS);
    let mut at = first as usize;
    while at < end {
        let ahead = OWN[at / 64].load(Relaxed) >> (at % 64);
        if ahead != 0 {
            at += ahead.trailing_zeros() as usize;
            return (at < end).then_some(at as u32);
        }
        at = (at / 64 + 1) * 64;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_found_from_where_one_looks() {
        for fd in [60_000, 60_063, 60_064, 60_200] {
            mark(fd, true);
            assert!(is_own(fd));
        }
        assert_eq!(first_own(60_000, u32::MAX), Some(60_000));
        assert_eq!(first_own(60_001, u32::MAX), Some(60_063));
        assert_eq!(first_own(60_064, 60_064), Some(60_064));
        assert_eq!(first_own(60_065, 60_199), None);
        assert_eq!(first_own(60_065, 60_200), Some(60_200));
        mark(60_200, false);
        assert_eq!(first_own(60_065, 70_000), None);
        assert!(was_own(60_200) && !is_own(60_200) && !was_own(60_201));
        assert!(!is_own(-1) && !is_own(1 << 20));
        mark(-1, true);
    }
}
