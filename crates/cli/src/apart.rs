//! How far apart the two cores of a pair are. A host may run the processors of a virtual machine on one core now
//! and on two of different caches a moment later, which makes some measures four times what they were: ways are
//! compared only where it has not done so in between.

use std::sync::atomic::{AtomicU32, Ordering::*};
use std::time::Instant;

use anyhow::Result;

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

/// What `take` makes of each turn, and how far apart the cores were after it: with the cores where they were before
/// the first turn, if that can be had in so many `tries`. What `look` tells nothing about is taken once.
pub fn unmoved<T, R>(
    turns: &[T],
    tries: u32,
    look: impl Fn() -> Option<f64>,
    mut take: impl FnMut(&T) -> Result<R>,
) -> Result<Vec<(R, Option<f64>)>> {
    let mut tries_left = tries;
    loop {
        tries_left -= 1;
        let begun = look();
        let (mut taken, mut is_unmoved) = (Vec::new(), true);
        for turn in turns {
            let result = take(turn)?;
            let after = look();
            taken.push((result, after));
            is_unmoved = !begun.zip(after).is_some_and(|(one, now)| moved(one, now));
            if !is_unmoved && tries_left > 0 {
                break;
            }
        }
        if is_unmoved || tries_left == 0 {
            return Ok(taken);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn turns_are_taken_anew_where_the_cores_moved_in_between() {
        let looks =
            std::cell::RefCell::new(vec![25.0, 26.0, 120.0, 120.0, 121.0, 119.0].into_iter());
        let mut number = 0;
        let mut take = |turn: &char| {
            number += 1;
            Ok(format!("{turn}{number}"))
        };
        let look = || looks.borrow_mut().next();
        let taken = unmoved(&['a', 'b'], 3, look, &mut take).unwrap();
        assert_eq!(taken, [("a3".to_owned(), Some(121.0)), ("b4".to_owned(), Some(119.0))]);
    }

    #[test]
    fn turns_are_taken_at_last_wherever_the_cores_are() {
        let looks = std::cell::Cell::new(0u32);
        let look = || {
            looks.set(looks.get() + 1);
            Some(if looks.get().is_multiple_of(2) { 25.0 } else { 120.0 })
        };
        let mut count = 0;
        let taken = unmoved(&[(), ()], 3, look, |()| {
            count += 1;
            Ok(count)
        });
        let numbers: Vec<i32> = taken.unwrap().into_iter().map(|(number, _)| number).collect();
        assert_eq!(numbers, [3, 4], "the third try goes on to its end");
    }

    #[test]
    fn a_look_takes_some_time_and_small_differences_are_none() {
        assert_eq!(ns().is_some(), child::cores().len() > 1);
        assert!(ns().is_none_or(|ns| ns > 0.1));
        assert!(moved(25.0, 120.0) && moved(120.0, 25.0) && !moved(25.0, 30.0));
    }
}
