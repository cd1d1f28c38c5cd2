//! Bytes arrive as written, also around the array's end, and no cell is touched by both at once.

use loom::thread;

use super::{explore, read, write, Shared};
use crate::Producer;

/// As many bytes as are to come, at most two at a time.
fn read_all(shared: &Shared, count: usize) -> Vec<u8> {
    let mut consumer = shared.consumer();
    let mut got = Vec::new();
    while got.len() < count {
        match read(&mut consumer, 2) {
            none if none.is_empty() => thread::yield_now(),
            some => got.extend(some),
        }
    }
    got
}

/// Three bytes through two cells, at most so many at a time: a third waits for room, the reader for
/// bytes.
fn three_bytes(piece: usize, prepare: fn(&mut Producer)) {
    let shared = Shared::new(2);
    let mut producer = shared.producer();
    prepare(&mut producer);
    let writer = thread::spawn({
        let shared = shared.clone();
        move || {
            let mut left = &[1, 2, 3][..];
            while !left.is_empty() {
                match write(&mut producer, &left[..left.len().min(piece)]) {
                    0 => thread::yield_now(),
                    count => left = &left[count..],
                }
            }
            drop(shared);
        }
    });
    let got = read_all(&shared, 3);
    writer.join().unwrap();
    assert_eq!(got, [1, 2, 3]);
}

pub(super) fn through_a_full_ring() {
    three_bytes(3, |_| {});
}

/// A ring that is found empty begins again at its array's start: the reader finds each byte where it
/// lies now.
fn in_a_ring_that_begins_again() {
    three_bytes(1, |producer| producer.set_window(1));
}

/// Whenever the ring is empty its memory is given back: nobody looks at it then, and the reader finds each
/// byte where it lies now.
fn in_a_ring_that_rests() {
    let shared = Shared::new(1);
    let mut producer = shared.producer();
    let writer = thread::spawn({
        let shared = shared.clone();
        move || {
            for byte in [[1], [2]] {
                for position in producer.rest().unwrap() {
                    // SAFETY: the ring says that nobody looks; the cell reports if somebody does.
                    shared.bytes[position].with_mut(|cell| unsafe { *cell = 0 });
                }
                while write(&mut producer, &byte) == 0 {
                    thread::yield_now();
                }
            }
        }
    });
    let got = read_all(&shared, 2);
    writer.join().unwrap();
    assert_eq!(got, [1, 2]);
}

/// Staged pieces are seen together or not at all.
fn staged_pieces() {
    let shared = Shared::new(2);
    let mut producer = shared.producer();
    let writer = thread::spawn({
        let shared = shared.clone();
        move || {
            for piece in [[1], [2]] {
                super::stage(&mut producer, &piece);
            }
            producer.publish();
            drop(shared);
        }
    });
    let mut consumer = shared.consumer();
    let seen = consumer.available_fresh().unwrap();
    assert!(seen == 0 || seen == 2);
    assert_eq!(read(&mut consumer, seen), [1, 2][..seen]);
    writer.join().unwrap();
}

#[test]
fn bytes_arrive_in_order_through_a_full_ring() {
    explore(through_a_full_ring);
}

#[test]
fn bytes_arrive_in_order_through_a_ring_that_begins_again() {
    explore(in_a_ring_that_begins_again);
}

#[test]
fn bytes_arrive_in_order_through_a_ring_that_rests() {
    explore(in_a_ring_that_rests);
}

#[test]
fn staged_pieces_are_one_publication() {
    explore(staged_pieces);
}
