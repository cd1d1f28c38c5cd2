//! Marks are not lost, neither against a drain nor against a sleeper.

use loom::sync::atomic::AtomicU32;
use loom::sync::Arc;
use loom::thread;

use super::bells::Bell;
use super::explore;
use crate::sync::Relaxed;
use crate::ReadyMap;

fn drained(map: &ReadyMap) -> Vec<u32> {
    let mut slots = Vec::new();
    map.drain(|slot| slots.push(slot));
    slots
}

/// One marker, one owner that sleeps until it has the mark.
pub(super) fn mark_against_sleep() {
    let (map, bell) = (Arc::new(ReadyMap::new()), Arc::new(Bell::new()));
    let marker = thread::spawn({
        let (map, bell) = (map.clone(), bell.clone());
        move || {
            map.mark(3);
            if map.take_sleeper() {
                bell.ring();
            }
        }
    });
    let mut slots = Vec::new();
    while slots.is_empty() {
        map.announce_sleep();
        if !map.any() {
            bell.sleep_and_clear();
        }
        map.retract_sleep();
        slots = drained(&map);
    }
    assert_eq!(slots, [3]);
    marker.join().unwrap();
}

/// Two threads sleep; the bell rings and one answers. A mark made meanwhile is in its drain, or rings
/// again for the thread that still sleeps.
pub(super) fn mark_against_answer() {
    let (map, bell) = (Arc::new(ReadyMap::new()), Arc::new(Bell::new()));
    map.announce_sleep();
    map.announce_sleep();
    let marker = thread::spawn({
        let (map, bell) = (map.clone(), bell.clone());
        move || {
            assert!(map.take_sleeper());
            bell.ring();
            map.mark(3);
            map.take_sleeper()
        }
    });
    bell.sleep_and_clear();
    map.retract_sleep();
    let slots = drained(&map);
    let rang_again = marker.join().unwrap();
    assert!(slots == [3] || rang_again);
}

/// Two markers in one word: who drains a mark sees what its marker did, even if the summary bit was
/// the other marker's.
pub(super) fn marks_carry_what_was_done() {
    let map = Arc::new(ReadyMap::new());
    let done = Arc::new([AtomicU32::new(0), AtomicU32::new(0)]);
    let markers = [0, 1].map(|slot| {
        let (map, done) = (map.clone(), done.clone());
        thread::spawn(move || {
            done[slot].store(1, Relaxed);
            map.mark(slot as u32);
        })
    });
    for slot in drained(&map) {
        assert_eq!(done[slot as usize].load(Relaxed), 1);
    }
    markers.into_iter().for_each(|marker| marker.join().unwrap());
}

/// A summary bit that is seen leads to its mark.
pub(super) fn summary_leads_to_the_mark() {
    let map = Arc::new(ReadyMap::new());
    let marker = thread::spawn({
        let map = map.clone();
        move || map.mark(3)
    });
    if map.any() {
        assert_eq!(drained(&map), [3]);
    }
    marker.join().unwrap();
}

#[test]
fn a_sleeping_owner_is_woken_by_a_mark() {
    explore(mark_against_sleep);
}

#[test]
fn a_mark_after_the_bell_is_drained_or_rings_again() {
    explore(mark_against_answer);
}

#[test]
fn a_drained_mark_shows_what_its_marker_did() {
    explore(marks_carry_what_was_done);
}

#[test]
fn a_summary_bit_leads_to_its_mark() {
    explore(summary_leads_to_the_mark);
}
