//! How far apart the two cores of a pair are. A host may run the processors of a virtual machine on one core now
//! and on two of different caches a moment later, which makes some measures four times what they were: ways are
//! compared only where it has not done so in between.

use std::sync::atomic::{AtomicU32, Ordering::*};
use std::time::Instant;

use crate::child;

const BATCHES: u32 = 20;
const TRIPS: u32 = 200;
/// More than this between two looks is another place; less is what a look differs by.
const MOVED_MIN: f64 = 1.5;

/// A word with a cache line, and its neighbour, of its own.
#[repr(align(128))]
struct Word(AtomicU32);

/// How long a word takes from one core to the other, in ns; `None` if there is one core only.
pub fn ns() -> Option<f64> {
    let cores = child::cores();
    let (&one, &other) = (cores.first()?, cores.get(1)?);
    let word = Word(AtomicU32::new(0));
    std::thread::scope(|scope| {
        // SYNC word: the one writes odd numbers, the other even ones.
        scope.spawn(|| {
            child::pin_to(other);
            for turn in 0..BATCHES * TRIPS {
                await_word(&word, 2 * turn + 1);
                word.0.store(2 * turn + 2, Release);
            }
        });
        let ask = || {
            child::pin_to(one);
            let batch = |number: u32| {
                let begun = Instant::now();
                for turn in number * TRIPS..(number + 1) * TRIPS {
                    word.0.store(2 * turn + 1, Release);
                    await_word(&word, 2 * turn + 2);
                }
                begun.elapsed().as_nanos() as f64 / f64::from(2 * TRIPS)
            };
            (0..BATCHES).map(batch).fold(f64::INFINITY, f64::min)
        };
        scope.spawn(ask).join().ok()
    })
}

fn await_word(word: &Word, value: u32) {
    while word.0.load(Acquire) != value {
        std::hint::spin_loop();
    }
}

/// Whether the cores were in another place at one look than at the other.
pub fn moved(before: f64, after: f64) -> bool {
    before.max(after) > before.min(after) * MOVED_MIN
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_look_takes_some_time_and_small_differences_are_none() {
        assert_eq!(ns().is_some(), child::cores().len() > 1);
        assert!(ns().is_none_or(|ns| ns > 0.1));
        assert!(moved(25.0, 120.0) && moved(120.0, 25.0) && !moved(25.0, 30.0));
    }
}
