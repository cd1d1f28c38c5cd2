//! The words of a handover show what was done before they were stored.

use loom::thread;

use super::{explore, read, write, Shared};
use crate::OPEN;

const DOWN: u64 = 1;
const STOP: u64 = 2;

/// A reader that sees the segment sees where it begins, and takes its bytes from there.
pub(super) fn segment_shows_its_start() {
    const START: u64 = 5;
    let shared = Shared::new(2);
    let mut producer = shared.producer();
    let writer = thread::spawn({
        let shared = shared.clone();
        move || {
            producer.start_at(START);
            shared.direction.reopen();
            shared.direction.set_up_at(START);
            shared.direction.set_segment(1);
            assert_eq!(write(&mut producer, &[7]), 1);
        }
    });
    let mut consumer = shared.consumer();
    if shared.direction.segment() == 1 {
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
            shared.direction.end_cas(OPEN, 1 << 2 | DOWN).expect("nobody else ends it");
        }
    });
    let mut consumer = shared.consumer();
    if shared.direction.end() != OPEN {
        assert_eq!(read(&mut consumer, 2), [7]);
    }
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
            let _ = shared.direction.end_cas(OPEN, 1 << 2 | DOWN);
        }
    });
    let mut consumer = shared.consumer();
    if shared.direction.end_cas(OPEN, STOP).is_err() {
        assert_eq!(read(&mut consumer, 2), [7]);
    }
    writer.join().unwrap();
}

/// A writer that sees the reader finished may overwrite what the reader copied out.
pub(super) fn finished_frees_the_bytes() {
    let shared = Shared::new(1);
    let mut producer = shared.producer();
    assert_eq!(write(&mut producer, &[7]), 1);
    let mut consumer = shared.consumer();
    let reader = thread::spawn({
        let shared = shared.clone();
        move || {
            assert_eq!(read(&mut consumer, 1), [7]);
            shared.direction.set_finished(1);
        }
    });
    if shared.direction.finished() == 1 {
        producer.start_at(10);
        assert_eq!(write(&mut producer, &[8]), 1);
    }
    reader.join().unwrap();
}

/// A writer that is let up sees that the reader left the segment before.
pub(super) fn ready_shows_finished() {
    let shared = Shared::new(1);
    let reader = thread::spawn({
        let shared = shared.clone();
        move || {
            shared.direction.set_finished(1);
            shared.direction.set_ready(2);
        }
    });
    if shared.direction.ready() == 2 {
        assert_eq!(shared.direction.finished(), 1);
    }
    reader.join().unwrap();
}

#[test]
fn a_segment_shows_where_it_begins() {
    explore(segment_shows_its_start);
}

#[test]
fn an_end_shows_every_byte_before_it() {
    explore(end_shows_the_tail);
}

#[test]
fn a_lost_race_for_the_end_shows_every_byte_before_it() {
    explore(lost_race_shows_the_tail);
}

#[test]
fn a_finished_segment_may_be_overwritten() {
    explore(finished_frees_the_bytes);
}

#[test]
fn a_writer_that_is_let_up_sees_the_segment_finished() {
    explore(ready_shows_finished);
}
