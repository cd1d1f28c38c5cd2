//! The words of a handover show what was done before they were stored.

use loom::thread;

use super::{explore, read, stage, write, Shared};

const TCP: u64 = 0;
const OPEN: u64 = 3;
const DOWN: u64 = 1;
const STOP: u64 = 2;

/// A reader that sees the segment open sees where it begins, and takes its bytes from there.
pub(super) fn open_shows_its_start() {
    const START: u64 = 5;
    let shared = Shared::new(2);
    let mut producer = shared.producer();
    let writer = thread::spawn({
        let shared = shared.clone();
        move || {
            producer.start_at(START);
            shared.direction.set_up_at(START);
            shared.direction.end_cas(TCP, OPEN).expect("nobody else opens it");
            assert_eq!(write(&mut producer, &[7]), 1);
        }
    });
    let mut consumer = shared.consumer();
    if shared.direction.end() == OPEN {
        assert_eq!(shared.direction.up_at(), START);
        consumer.start_at(START);
        let got = read(&mut consumer, 1);
        assert!(got.is_empty() || got == [7]);
    }
    writer.join().unwrap();
}

/// A reader that sees `Down` sees every byte before it.
pub(super) fn end_shows_the_tail() {
    let shared = Shared::new(2);
    let mut producer = shared.producer();
    let writer = thread::spawn({
        let shared = shared.clone();
        move || {
            write(&mut producer, &[7]);
            shared.direction.end_cas(TCP, 1 << 2 | DOWN).expect("nobody else ends it");
        }
    });
    let mut consumer = shared.consumer();
    if shared.direction.end() != TCP {
        assert_eq!(read(&mut consumer, 2), [7]);
    }
    writer.join().unwrap();
}

/// Whoever shows what a writer has held shows its bytes: more than the line's words have, which are read behind a
/// fence.
pub(super) fn held_bytes_are_shown_whole() {
    const BYTES: [u8; 17] = [7; 17];
    let shared = Shared::new(32);
    let mut producer = shared.producer();
    let writer = thread::spawn({
        move || {
            stage(&mut producer, &BYTES);
            producer.hold();
        }
    });
    let mut consumer = shared.consumer();
    shared.direction.show_held(32);
    let got = read(&mut consumer, 32);
    assert!(got.is_empty() || got == BYTES);
    writer.join().unwrap();
}

/// A reader that loses the race to `Down` sees every byte before it.
pub(super) fn lost_race_shows_the_tail() {
    let shared = Shared::new(2);
    let mut producer = shared.producer();
    let writer = thread::spawn({
        let shared = shared.clone();
        move || {
            write(&mut producer, &[7]);
            let _ = shared.direction.end_cas(TCP, 1 << 2 | DOWN);
        }
    });
    let mut consumer = shared.consumer();
    if shared.direction.end_cas(TCP, STOP).is_err() {
        assert_eq!(read(&mut consumer, 2), [7]);
    }
    writer.join().unwrap();
}

/// A writer that sees the reader's `Stop` may overwrite what the reader copied out.
pub(super) fn stop_frees_the_bytes() {
    let shared = Shared::new(1);
    let mut producer = shared.producer();
    assert_eq!(write(&mut producer, &[7]), 1);
    let mut consumer = shared.consumer();
    let reader = thread::spawn({
        let shared = shared.clone();
        move || {
            assert_eq!(read(&mut consumer, 1), [7]);
            shared.direction.end_cas(TCP, STOP).expect("nobody else ends it");
        }
    });
    if shared.direction.end() == STOP {
        producer.start_at(10);
        assert_eq!(write(&mut producer, &[8]), 1);
    }
    reader.join().unwrap();
}

#[test]
fn a_segment_shows_where_it_begins() {
    explore(open_shows_its_start);
}

#[test]
fn an_end_shows_every_byte_before_it() {
    explore(end_shows_the_tail);
}

#[test]
fn what_is_held_is_shown_whole() {
    explore(held_bytes_are_shown_whole);
}

#[test]
fn a_lost_race_for_the_end_shows_every_byte_before_it() {
    explore(lost_race_shows_the_tail);
}

#[test]
fn a_stopped_segment_may_be_overwritten() {
    explore(stop_frees_the_bytes);
}
