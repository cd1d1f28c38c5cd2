//! Marks are not lost, neither against a drain nor against a sleeper.

use loom::sync::atomic::{fence, AtomicU32, Ordering::SeqCst};
use loom::sync::Arc;
use loom::thread;

use super::bells::Bell;
use super::{explore, explore_bounded};
use crate::sync::Relaxed;
use crate::ReadyMap;

fn drained(map: &ReadyMap) -> Vec<u32> {
    let mut slots = Vec::new();
    map.drain(|slot| slots.push(slot));
    slots
}

/// A thread that marks a slot, and rings the first bell if that is the one to ring.
fn marker(
    map: &Arc<ReadyMap>,
    bell: &Arc<Bell>,
    told_by: &Arc<AtomicU32>,
) -> thread::JoinHandle<()> {
    let (map, bell, told_by) = (map.clone(), bell.clone(), told_by.clone());
    thread::spawn(move || {
        map.mark(3);
        if map.take_sleeper(&told_by) == Some(0) {
            bell.ring();
        }
    })
}

/// Sleeps by the first bell until some slots are marked.
fn marked(map: &ReadyMap, bell: &Bell) -> Vec<u32> {
    loop {
        map.announce_sleep(0);
        if !map.any() {
            bell.sleep_and_clear();
        }
        map.retract_sleep(0);
        let slots = drained(map);
        if !slots.is_empty() {
            return slots;
        }
    }
}

/// One marker, one owner that sleeps until it has the mark.
pub(super) fn mark_against_sleep() {
    let (map, bell) = (Arc::new(ReadyMap::new()), Arc::new(Bell::new()));
    let marker = marker(&map, &bell, &Arc::new(AtomicU32::new(0)));
    assert_eq!(marked(&map, &bell), [3]);
    marker.join().unwrap();
}

/// A stream of one wait set, told of by a bell of its own, comes to be of interest to another sleeper, who knows the first
/// bell alone.
pub(super) fn mark_against_another_bell() {
    let (map, bell) = (Arc::new(ReadyMap::new()), Arc::new(Bell::new()));
    let told_by = Arc::new(AtomicU32::new(1));
    let marker = marker(&map, &bell, &told_by);
    told_by.store(0, Relaxed);
    map.announce_sleep(0);
    if !map.any() {
        bell.sleep_and_clear();
    }
    map.retract_sleep(0);
    assert_eq!(drained(&map), [3]);
    marker.join().unwrap();
}

/// As above, where another thread changes the bell while the owner sleeps, and wakes it.
pub(super) fn mark_against_a_change_of_bell() {
    let (map, bell) = (Arc::new(ReadyMap::new()), Arc::new(Bell::new()));
    let told_by = Arc::new(AtomicU32::new(1));
    let marker = marker(&map, &bell, &told_by);
    let changer = thread::spawn({
        let (bell, told_by) = (bell.clone(), told_by.clone());
        move || {
            assert_eq!(told_by.swap(0, SeqCst), 1);
            fence(SeqCst);
            bell.ring();
        }
    });
    assert_eq!(marked(&map, &bell), [3]);
    marker.join().unwrap();
    changer.join().unwrap();
}

/// Two threads sleep; the bell rings and one answers. A mark made meanwhile is in its drain, or rings
/// again for the thread that still sleeps.
pub(super) fn mark_against_answer() {
    let (map, bell) = (Arc::new(ReadyMap::new()), Arc::new(Bell::new()));
    map.announce_sleep(0);
    map.announce_sleep(0);
    let marker = thread::spawn({
        let (map, bell) = (map.clone(), bell.clone());
        move || {
            let first = AtomicU32::new(0);
            assert!(map.take_sleeper(&first).is_some());
            bell.ring();
            map.mark(3);
            map.take_sleeper(&first).is_some()
        }
    });
    bell.sleep_and_clear();
    map.retract_sleep(0);
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
fn a_mark_is_told_of_by_a_bell_that_has_just_changed() {
    explore(mark_against_another_bell);
}

#[test]
fn a_mark_is_told_of_by_who_changes_its_bell() {
    explore_bounded(4, mark_against_a_change_of_bell);
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
