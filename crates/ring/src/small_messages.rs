//! From where a small message is read: the tests spoil the other place.
// UNSAFETY: hands buffers to the two ends by address.
#![allow(unsafe_code)]

use crate::latest::LATEST_BYTES;
use crate::rig::Rig;
use crate::sync::Relaxed;
use crate::{Consumer, Producer};

const CAPACITY: usize = 128;

struct World {
    rig: Rig,
    producer: Producer,
    consumer: Consumer,
    next: u8,
}

impl World {
    fn new(offset: u64) -> World {
        let rig = Rig::new(CAPACITY as u32);
        let (mut producer, mut consumer) = (rig.producer(), rig.consumer());
        producer.start_at(offset);
        consumer.start_at(offset);
        World { rig, producer, consumer, next: 1 }
    }

    /// Publishes `len` bytes that differ from each other and from what was before.
    fn write(&mut self, len: usize) -> Vec<u8> {
        let bytes: Vec<u8> = (0..len).map(|i| self.next.wrapping_add(i as u8)).collect();
        self.next = self.next.wrapping_add(len as u8);
        // SAFETY: `bytes` has `len` bytes.
        assert_eq!(unsafe { self.producer.write(bytes.as_ptr(), len) }, Ok(len));
        bytes
    }

    fn read(&mut self, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len + 2];
        bytes[len + 1] = 0xEE;
        // SAFETY: `bytes` has more than `len` bytes behind the first.
        assert_eq!(unsafe { self.consumer.read(bytes[1..].as_mut_ptr(), len) }, Ok(len));
        assert_eq!((bytes[0], bytes[len + 1]), (0, 0xEE), "only what was asked for is stored");
        bytes[1..=len].to_vec()
    }

    fn spoil_array(&mut self) {
        let (place, there) = self.consumer.readable().unwrap();
        // SAFETY: `readable` offered that much.
        unsafe { place.write_bytes(0, there) };
    }

    fn spoil_words(&self) {
        self.rig.direction().producer.latest.iter().for_each(|word| word.store(0, Relaxed));
    }
}

/// Places of a message in its words, and in the array before its end.
fn offsets() -> impl Iterator<Item = u64> {
    (0..40).map(|o| (1 << 40) + o)
}

#[test]
fn a_small_message_is_read_from_the_writers_line() {
    for offset in offsets() {
        for len in 1..=LATEST_BYTES {
            let mut world = World::new(offset);
            let sent = world.write(len);
            world.spoil_array();
            assert_eq!(world.read(len), sent, "{len} bytes at {offset}");
        }
    }
}

#[test]
fn a_larger_message_is_read_from_the_array() {
    for offset in offsets() {
        let mut world = World::new(offset);
        let sent = world.write(LATEST_BYTES + 1);
        world.spoil_words();
        assert_eq!(world.read(LATEST_BYTES + 1), sent, "at {offset}");
    }
}

#[test]
fn words_that_were_overwritten_are_not_believed() {
    for offset in offsets() {
        let mut world = World::new(offset);
        let sent = world.write(8);
        assert_eq!(world.consumer.available_fresh(), Ok(8));
        world.write(LATEST_BYTES - 7);
        assert_eq!(world.read(8), sent, "at {offset}");
    }
}

#[test]
fn words_that_a_larger_message_left_out_are_not_believed() {
    for offset in offsets() {
        let mut world = World::new(offset);
        let mut sent = world.write(5);
        sent.extend(world.write(LATEST_BYTES + 3));
        sent.extend(world.write(7));
        world.read(LATEST_BYTES);
        assert_eq!(world.read(15), sent[LATEST_BYTES..], "at {offset}");
        let sent = world.write(8);
        world.spoil_array();
        assert_eq!(world.read(8), sent, "the words hold what comes after");
    }
}

#[test]
fn words_that_another_writer_left_behind_are_not_believed() {
    for offset in offsets() {
        let mut world = World::new(offset);
        let mut sent = world.write(3);
        world.producer = world.rig.producer();
        sent.extend(world.write(3));
        assert_eq!(world.read(6), sent, "at {offset}");
    }
}

#[test]
fn pieces_of_one_small_publication_are_read_from_the_writers_line() {
    for offset in offsets() {
        let mut world = World::new(offset);
        for piece in [[1; 3], [2; 3], [3; 3]] {
            // SAFETY: an array of its own.
            assert_eq!(unsafe { world.producer.stage_copy(piece.as_ptr(), 3) }, Ok(3));
        }
        world.producer.publish();
        world.spoil_array();
        assert_eq!(world.read(9), [1, 1, 1, 2, 2, 2, 3, 3, 3], "at {offset}");
    }
}

#[test]
fn held_bytes_come_with_the_next_message() {
    for offset in offsets() {
        let mut world = World::new(offset);
        // SAFETY: an array of its own.
        assert_eq!(unsafe { world.producer.stage_copy([9; 5].as_ptr(), 5) }, Ok(5));
        world.producer.hold();
        assert_eq!(world.consumer.available_fresh(), Ok(0), "nobody is to see them");
        let sent = world.write(4);
        assert_eq!(world.read(9), [vec![9; 5], sent].concat(), "at {offset}");
    }
}

/// The writer's line knows nothing of them, and has other bytes in their places.
#[test]
fn held_bytes_of_a_writer_that_is_gone_are_read_from_the_array() {
    for offset in offsets() {
        for before in [0, 3, LATEST_BYTES] {
            let mut world = World::new(offset);
            if before > 0 {
                let sent = world.write(before);
                assert_eq!(world.read(before), sent);
            }
            // SAFETY: an array of its own.
            assert_eq!(unsafe { world.producer.stage_copy([9; 7].as_ptr(), 7) }, Ok(7));
            world.producer.hold();
            for _ in 0..2 {
                world.rig.direction().show_held(CAPACITY as u64);
                assert_eq!(world.consumer.available_fresh(), Ok(7), "once, and no more");
            }
            assert_eq!(world.read(7), [9; 7], "at {offset} behind {before}");
        }
    }
}

#[test]
fn what_was_held_before_a_segment_is_none_of_its_bytes() {
    let mut world = World::new(100);
    // SAFETY: an array of its own.
    assert_eq!(unsafe { world.producer.stage_copy([9; 7].as_ptr(), 7) }, Ok(7));
    world.producer.hold();
    world.producer.start_at(50);
    world.consumer = world.rig.consumer();
    world.consumer.start_at(50);
    world.rig.direction().show_held(CAPACITY as u64);
    assert_eq!(world.consumer.available_fresh(), Ok(0));
    let direction = world.rig.direction();
    direction.wake.held.store(50 + CAPACITY as u64 + 1, Relaxed);
    direction.show_held(CAPACITY as u64);
    assert_eq!(world.consumer.available_fresh(), Ok(0), "more than fits is a lie");
}
