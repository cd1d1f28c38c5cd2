//! Who waits for bytes or for room is woken; a sleep that nobody ends is a deadlock to loom.

use loom::sync::Arc;
use loom::thread;

use super::bells::{Bell, Futex};
use super::{explore, explore_bounded, read, write, Shared};
use crate::{ReadyMap, FUTEX, WAIT_SET};

const OPEN: u64 = 3;

/// A reader that sleeps in a futex, against one write.
pub(super) fn for_data() {
    let (shared, futex) = (Shared::new(1), Arc::new(Futex::new()));
    let mut producer = shared.producer();
    let writer = thread::spawn({
        let (shared, futex) = (shared.clone(), futex.clone());
        move || {
            assert_eq!(write(&mut producer, &[7]), 1);
            if producer.take_data_waiters() & FUTEX != 0 {
                futex.wake();
            }
            drop(shared);
        }
    });
    let mut consumer = shared.consumer();
    while consumer.available_fresh().unwrap() == 0 {
        let word = consumer.want_data(FUTEX);
        if consumer.available_fresh().unwrap() == 0 {
            futex.wait(&shared.direction.wake.data_wanted, word);
        }
    }
    assert_eq!(read(&mut consumer, 1), [7]);
    writer.join().unwrap();
}

/// A writer that sleeps in a futex before a full ring, against one read.
pub(super) fn for_space() {
    let (shared, futex) = (Shared::new(1), Arc::new(Futex::new()));
    let mut producer = shared.producer();
    assert_eq!(write(&mut producer, &[7]), 1);
    let mut consumer = shared.consumer();
    let reader = thread::spawn({
        let (shared, futex) = (shared.clone(), futex.clone());
        move || {
            assert_eq!(read(&mut consumer, 1), [7]);
            if consumer.take_space_waiters() & FUTEX != 0 {
                futex.wake();
            }
            drop(shared);
        }
    });
    while producer.free().unwrap() == 0 {
        let word = producer.want_space(FUTEX);
        if producer.free().unwrap() == 0 {
            futex.wait(&shared.direction.wake.space_wanted, word);
        }
    }
    assert_eq!(write(&mut producer, &[8]), 1);
    reader.join().unwrap();
}

/// A writer that sleeps until as much is free as it is to be woken for, against two reads of which the second frees
/// that.
pub(super) fn for_space_at_low_water() {
    let (shared, futex) = (Shared::new(2), Arc::new(Futex::new()));
    let mut producer = shared.producer();
    producer.set_low_water(0);
    assert_eq!(write(&mut producer, &[7, 8]), 2);
    let mut consumer = shared.consumer();
    let reader = thread::spawn({
        let (shared, futex) = (shared.clone(), futex.clone());
        move || {
            for byte in [[7], [8]] {
                assert_eq!(read(&mut consumer, 1), byte);
                if consumer.take_space_waiters_at_low_water().unwrap() & FUTEX != 0 {
                    futex.wake();
                }
            }
            drop(shared);
        }
    });
    while producer.free_at_least(2).unwrap() < 2 {
        let word = producer.want_space(FUTEX);
        if producer.free_at_least(2).unwrap() < 2 {
            futex.wait(&shared.direction.wake.space_wanted, word);
        }
    }
    reader.join().unwrap();
}

/// A reader in a wait set, through the ready map and the bell of its link, against two writes.
fn for_data_in_a_wait_set() {
    const SLOT: u32 = 70;
    let (shared, map) = (Shared::new(2), Arc::new(ReadyMap::new()));
    let bell = Arc::new(Bell::new());
    let mut producer = shared.producer();
    let writer = thread::spawn({
        let (shared, map, bell) = (shared.clone(), map.clone(), bell.clone());
        move || {
            for byte in [[7], [8]] {
                assert_eq!(write(&mut producer, &byte), 1);
                if producer.take_data_waiters() & WAIT_SET != 0 {
                    map.mark(SLOT);
                    if map.take_sleeper(&shared.direction.consumer.told_by).is_some() {
                        bell.ring();
                    }
                }
            }
            drop(shared);
        }
    });
    let mut consumer = shared.consumer();
    let mut got = read(&mut consumer, 2);
    while got.len() < 2 {
        consumer.want_data(WAIT_SET);
        if consumer.available_fresh().unwrap() == 0 {
            let mut ready = Vec::new();
            map.announce_sleep(0);
            if !map.any() {
                bell.sleep_and_clear();
            }
            map.retract_sleep(0);
            map.drain(|slot| ready.push(slot));
            assert!(ready.iter().all(|&slot| slot == SLOT));
        }
        got.extend(read(&mut consumer, 2));
    }
    writer.join().unwrap();
    assert_eq!(got, [7, 8]);
}

/// Two bytes through one cell: the writer sleeps for room, the reader for bytes, both by futex, and
/// each takes its announcement back when it did not need the sleep.
fn of_both_sides() {
    let (shared, futexes) = (Shared::new(1), Arc::new([Futex::new(), Futex::new()]));
    let mut producer = shared.producer();
    let writer = thread::spawn({
        let (shared, futexes) = (shared.clone(), futexes.clone());
        move || {
            for byte in [[7], [8]] {
                while producer.free().unwrap() == 0 {
                    let word = producer.want_space(FUTEX);
                    match producer.free().unwrap() {
                        0 => futexes[1].wait(&shared.direction.wake.space_wanted, word),
                        _ => shared.direction.wake.unwant_space(FUTEX),
                    }
                }
                assert_eq!(write(&mut producer, &byte), 1);
                if producer.take_data_waiters() != 0 {
                    futexes[0].wake();
                }
            }
        }
    });
    let mut consumer = shared.consumer();
    for byte in [[7], [8]] {
        while consumer.available_fresh().unwrap() == 0 {
            let word = consumer.want_data(FUTEX);
            match consumer.available_fresh().unwrap() {
                0 => futexes[0].wait(&shared.direction.wake.data_wanted, word),
                _ => shared.direction.wake.unwant_data(FUTEX),
            }
        }
        assert_eq!(read(&mut consumer, 1), byte);
        if consumer.take_space_waiters() != 0 {
            futexes[1].wake();
        }
    }
    writer.join().unwrap();
}

/// A reader that waits for the writer to go up, against the writer going up with a first byte.
fn for_a_segment() {
    let (shared, futex) = (Shared::new(1), Arc::new(Futex::new()));
    let mut producer = shared.producer();
    let writer = thread::spawn({
        let (shared, futex) = (shared.clone(), futex.clone());
        move || {
            producer.start_at(5);
            shared.direction.set_up_at(5);
            shared.direction.end_cas(0, OPEN).expect("nobody else opens it");
            if shared.direction.wake.take_data_waiters() != 0 {
                futex.wake();
            }
            assert_eq!(write(&mut producer, &[7]), 1);
            if producer.take_data_waiters() != 0 {
                futex.wake();
            }
        }
    });
    let wake = &shared.direction.wake;
    while shared.direction.end() != OPEN {
        let word = wake.want_data(FUTEX);
        if shared.direction.end() != OPEN {
            futex.wait(&wake.data_wanted, word);
        }
    }
    let mut consumer = shared.consumer();
    consumer.start_at(shared.direction.up_at());
    while consumer.available_fresh().unwrap() == 0 {
        let word = consumer.want_data(FUTEX);
        if consumer.available_fresh().unwrap() == 0 {
            futex.wait(&wake.data_wanted, word);
        }
    }
    assert_eq!(read(&mut consumer, 1), [7]);
    writer.join().unwrap();
}

/// Two threads that read one stream, against its end: the one is about to sleep when the end comes, and the
/// other announces its sleep behind that.
fn for_an_end_of_two() {
    let (shared, futex) = (Shared::new(1), Arc::new(Futex::new()));
    shared.direction.end_cas(0, OPEN).expect("nobody else opens it");
    let sleeper = |shared: Arc<Shared>, futex: Arc<Futex>| {
        move || {
            let wake = &shared.direction.wake;
            while shared.direction.end() == OPEN {
                let word = wake.want_data(FUTEX);
                if shared.direction.end() == OPEN {
                    futex.wait(&wake.data_wanted, word);
                }
            }
        }
    };
    let threads = [(); 2].map(|()| thread::spawn(sleeper(shared.clone(), futex.clone())));
    shared.direction.end_cas(OPEN, OPEN + 1).expect("nobody else ends it");
    if shared.direction.wake.take_data_waiters() != 0 {
        futex.wake();
    }
    threads.into_iter().for_each(|thread| thread.join().unwrap());
}

/// A writer that dies before it wakes whom it has taken from the word: whoever notes its death wakes the
/// reader whether the word has its bit or not.
fn for_a_death() {
    let (shared, futex) = (Shared::new(1), Arc::new(Futex::new()));
    shared.direction.end_cas(0, OPEN).expect("nobody else opens it");
    let mut producer = shared.producer();
    let undertaker = thread::spawn({
        let (shared, futex) = (shared.clone(), futex.clone());
        move || {
            assert_eq!(write(&mut producer, &[7]), 1);
            producer.take_data_waiters();
            shared.direction.end_cas(OPEN, OPEN + 1).expect("nobody else ends it");
            shared.direction.wake.take_data_sleepers();
            futex.wake();
        }
    });
    let wake = &shared.direction.wake;
    while shared.direction.end() == OPEN {
        let word = wake.want_data(FUTEX);
        if shared.direction.end() == OPEN {
            futex.wait(&wake.data_wanted, word);
        }
    }
    undertaker.join().unwrap();
}

#[test]
fn a_reader_is_woken_although_its_writer_died_with_the_word_taken() {
    explore(for_a_death);
}

#[test]
fn both_threads_of_a_reader_are_woken_by_the_end() {
    explore_bounded(2, for_an_end_of_two);
}

#[test]
fn a_sleeping_reader_is_woken_by_data() {
    explore(for_data);
}

#[test]
fn a_sleeping_writer_is_woken_by_space() {
    explore(for_space);
}

#[test]
fn a_sleeping_writer_is_woken_at_low_water() {
    explore(for_space_at_low_water);
}

#[test]
fn a_reader_in_a_wait_set_is_woken_through_map_and_bell() {
    explore_bounded(6, for_data_in_a_wait_set);
}

#[test]
fn both_sides_sleep_and_are_woken() {
    explore_bounded(6, of_both_sides);
}

#[test]
fn a_sleeping_reader_is_woken_by_a_segment() {
    explore_bounded(8, for_a_segment);
}
