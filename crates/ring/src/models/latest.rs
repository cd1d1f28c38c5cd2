//! The writer's line holds the last bytes once more (two words of them in models): a reader takes
//! from there only what was published and not overwritten, and takes the rest from the array.

use loom::thread;

use super::{explore, read, write, write_few, Shared};

/// What is taken from the words is what the tail says is there.
pub(super) fn few_bytes() {
    let shared = Shared::new(8);
    let mut producer = shared.producer();
    let writer = thread::spawn({
        let shared = shared.clone();
        move || {
            for byte in 1..3 {
                assert_eq!(write_few(&mut producer, &[byte]), 1);
            }
            drop(shared);
        }
    });
    let mut consumer = shared.consumer();
    let mut got = read(&mut consumer, 2);
    got.extend(read(&mut consumer, 2));
    assert_eq!(got, [1, 2][..got.len()]);
    writer.join().unwrap();
}

/// The third word replaces the first one, while the reader is at any of them.
pub(super) fn overwritten_words() {
    let shared = Shared::new(32);
    let mut producer = shared.producer();
    let writer = thread::spawn({
        let shared = shared.clone();
        move || {
            for byte in 1..4 {
                assert_eq!(write_few(&mut producer, &[byte; 8]), 8);
            }
            drop(shared);
        }
    });
    let mut consumer = shared.consumer();
    let mut got = read(&mut consumer, 8);
    got.extend(read(&mut consumer, 8));
    assert_eq!(got, [[1; 8], [2; 8]].concat()[..got.len()]);
    writer.join().unwrap();
}

/// Who takes the writing over knows nothing of the bytes before, and overwrites their word.
fn a_new_writer() {
    let shared = Shared::new(8);
    assert_eq!(write_few(&mut shared.producer(), &[1; 4]), 4);
    let writer = thread::spawn({
        let shared = shared.clone();
        move || assert_eq!(write_few(&mut shared.producer(), &[2; 4]), 4)
    });
    let mut consumer = shared.consumer();
    let got = read(&mut consumer, 8);
    assert_eq!(got, [1, 1, 1, 1, 2, 2, 2, 2][..got.len()]);
    assert!(got.len() >= 4);
    writer.join().unwrap();
}

/// A publication that goes past the words, between two that fill them.
fn a_gap() {
    let shared = Shared::new(8);
    let mut producer = shared.producer();
    let writer = thread::spawn({
        let shared = shared.clone();
        move || {
            assert_eq!(write_few(&mut producer, &[1]), 1);
            assert_eq!(write(&mut producer, &[2]), 1);
            assert_eq!(write_few(&mut producer, &[3]), 1);
            drop(shared);
        }
    });
    let mut consumer = shared.consumer();
    let mut got = read(&mut consumer, 1);
    got.extend(read(&mut consumer, 2));
    assert_eq!(got, [1, 2, 3][..got.len()]);
    writer.join().unwrap();
}

#[test]
fn words_hold_what_the_tail_says() {
    explore(few_bytes);
}

#[test]
fn overwritten_words_are_read_from_the_array() {
    explore(overwritten_words);
}

#[test]
fn a_new_writer_does_not_spoil_what_is_unread() {
    explore(a_new_writer);
}

#[test]
fn bytes_that_went_past_the_words_are_read_from_the_array() {
    explore(a_gap);
}
