//! Marks are not lost, neither against a drain nor against a sleeper.

use loom::sync::atomic::{fence, AtomicU32, Ordering::SeqCst};
use loom::sync::{Arc, Mutex};
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

/// A wait set's mark is drained for it by a thread that waits elsewhere, which leaves the stream with the set, and wakes who
/// sleeps there unless the set's bell is rung.
pub(super) fn mark_drained_by_another() {
    let (map, bell) = (Arc::new(ReadyMap::new()), Arc::new(Bell::new()));
    // Under the set's lock: whether it has a candidate. Beside it: how many sleep.
    let set = Arc::new((Mutex::new(false), AtomicU32::new(0)));
    let marker = marker(&map, &bell, &Arc::new(AtomicU32::new(0)));
    let other = thread::spawn({
        let (map, bell, set) = (map.clone(), bell.clone(), set.clone());
        move || {
            if drained(&map).is_empty() {
                return;
            }
            let mut candidate = set.0.lock().unwrap();
            *candidate = true;
            if !map.is_rung(0) && set.1.load(SeqCst) > 0 {
                bell.ring();
            }
        }
    });
    loop {
        set.1.fetch_add(1, SeqCst);
        let stirred = {
            let candidate = set.0.lock().unwrap();
            map.announce_sleep(0);
            *candidate || map.any()
        };
        if !stirred {
            bell.sleep_and_clear();
        }
        set.1.fetch_sub(1, SeqCst);
        let held = set.0.lock().unwrap();
        map.retract_sleep(0);
        drop(held);
        let own = !drained(&map).is_empty();
        if own || *set.0.lock().unwrap() {
            break;
        }
    }
    marker.join().unwrap();
    other.join().unwrap();
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
fn a_mark_that_another_set_drains_wakes_the_sleeper() {
    explore_bounded(3, mark_drained_by_another);
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
