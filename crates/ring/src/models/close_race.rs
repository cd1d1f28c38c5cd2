//! Both sides may end a segment at once, while either sleeps: one wins, nobody sleeps on, and every
//! byte is read once, by the ring or by the way back.

use loom::sync::{Arc, Mutex};
use loom::thread;

use super::bells::Futex;
use super::{copy_back, explore, read, write, Shared};
use crate::FUTEX;

const OPEN: u64 = 0;
const DOWN: u64 = 1;
const STOP: u64 = 2;

/// The reader waits for a byte or the end; the writer ends the segment without a byte.
fn end_against_a_sleeping_reader() {
    let (shared, futex) = (Shared::new(1), Arc::new(Futex::new()));
    let writer = thread::spawn({
        let (shared, futex) = (shared.clone(), futex.clone());
        move || {
            shared.direction.end_cas(OPEN, DOWN).expect("nobody else ends it");
            if shared.direction.wake.take_data_waiters() & FUTEX != 0 {
                futex.wake();
            }
        }
    });
    while shared.direction.end() == OPEN {
        let word = shared.direction.wake.want_data(FUTEX);
        if shared.direction.end() == OPEN {
            futex.wait(&shared.direction.wake.data_wanted, word);
        }
    }
    writer.join().unwrap();
}

/// The writer waits for room in a full ring; the reader takes nothing and stops.
fn stop_against_a_sleeping_writer() {
    let (shared, futex) = (Shared::new(1), Arc::new(Futex::new()));
    let mut producer = shared.producer();
    assert_eq!(write(&mut producer, &[7]), 1);
    let reader = thread::spawn({
        let (shared, futex) = (shared.clone(), futex.clone());
        move || {
            shared.direction.end_cas(OPEN, STOP).expect("nobody else ends it");
            if shared.direction.wake.take_space_waiters() & FUTEX != 0 {
                futex.wake();
            }
        }
    });
    while producer.free().unwrap() == 0 && shared.direction.end() == OPEN {
        let word = producer.want_space(FUTEX);
        if producer.free().unwrap() == 0 && shared.direction.end() == OPEN {
            futex.wait(&shared.direction.wake.space_wanted, word);
        }
    }
    assert_eq!(shared.direction.end(), STOP);
    assert_eq!(copy_back(&producer, 0, 1), [7]);
    reader.join().unwrap();
}

/// The reader reads what it finds and stops; the writer writes twice and goes down. What is left is
/// sent again the other way, and the whole is what was written.
fn both_end_at_once() {
    let (shared, tcp) = (Shared::new(2), Arc::new(Mutex::new(Vec::new())));
    let mut producer = shared.producer();
    let writer = thread::spawn({
        let (shared, tcp) = (shared.clone(), tcp.clone());
        move || {
            write(&mut producer, &[1]);
            write(&mut producer, &[2]);
            let tail = producer.tail();
            if let Err(stop) = shared.direction.end_cas(OPEN, tail << 2 | DOWN) {
                assert_eq!(stop & 3, STOP);
                let from = stop >> 2;
                assert_eq!(shared.direction.head(), from);
                tcp.lock().unwrap().extend(copy_back(&producer, from, (tail - from) as usize));
            }
            tcp.lock().unwrap().push(3);
        }
    });
    let mut consumer = shared.consumer();
    let mut got = read(&mut consumer, 1);
    if let Err(down) = shared.direction.end_cas(OPEN, consumer.head() << 2 | STOP) {
        assert_eq!(down & 3, DOWN);
        got.extend(read(&mut consumer, 2));
        assert_eq!(consumer.head(), down >> 2);
    }
    writer.join().unwrap();
    got.extend(tcp.lock().unwrap().iter());
    assert_eq!(got, [1, 2, 3]);
}

#[test]
fn a_sleeping_reader_is_woken_by_the_end() {
    explore(end_against_a_sleeping_reader);
}

#[test]
fn a_sleeping_writer_is_woken_by_a_stop() {
    explore(stop_against_a_sleeping_writer);
}

#[test]
fn bytes_are_read_once_when_both_end_the_segment() {
    explore(both_end_at_once);
}
