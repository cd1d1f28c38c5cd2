//! Any sequence of operations on a ring equals the same sequence on a queue.
// UNSAFETY: hands buffers to the two ends by address.
#![allow(unsafe_code)]

use std::collections::VecDeque;

use proptest::prelude::*;
use proptest::sample::Index;

use crate::rig::{cases, Rig};
use crate::{Consumer, Corrupt, Producer};

#[derive(Clone, Copy, Debug)]
enum Operation {
    Write(Index),
    /// Few bytes, as they go by the writer's line.
    WriteFew(usize),
    StageFew(usize),
    ReadFew(usize),
    PeekFew(usize, usize),
    StageCopy(Index),
    StageInPlace(Index),
    Publish,
    Read(Index),
    Peek(Index, Index),
    SkipInPlace(Index),
    Look,
    LookFresh,
    Free,
    FreeAtLeast(Index),
    Unread,
    CopyBack(Index, Index),
    /// The segment ends where it is and the next begins that many bytes later.
    GoUpAgain(u32),
    /// The reader crosses over to the segment that was begun.
    Cross,
    /// The memory of an empty ring is given back.
    Rest,
    /// Another process takes the end over at its last published state.
    NewProducer,
    NewConsumer,
}

fn operation() -> impl Strategy<Value = Operation> {
    use Operation::*;
    let index = any::<Index>;
    prop_oneof![
        4 => index().prop_map(Write),
        6 => (0..=40usize).prop_map(WriteFew),
        2 => (0..=20usize).prop_map(StageFew),
        6 => (0..=40usize).prop_map(ReadFew),
        2 => (0..=20usize, 0..=40usize).prop_map(|(skip, len)| PeekFew(skip, len)),
        2 => index().prop_map(StageCopy),
        2 => index().prop_map(StageInPlace),
        2 => Just(Publish),
        4 => index().prop_map(Read),
        2 => (index(), index()).prop_map(|(skip, len)| Peek(skip, len)),
        2 => index().prop_map(SkipInPlace),
        1 => Just(Look),
        1 => Just(LookFresh),
        1 => Just(Free),
        1 => index().prop_map(FreeAtLeast),
        1 => Just(Unread),
        2 => (index(), index()).prop_map(|(back, len)| CopyBack(back, len)),
        1 => (0u32..100_000).prop_map(GoUpAgain),
        3 => Just(Cross),
        2 => Just(Rest),
        1 => Just(NewProducer),
        1 => Just(NewConsumer),
    ]
}

/// The byte that a stream carries at an offset; neighbours and laps differ.
fn byte_at(offset: u64) -> u8 {
    (offset.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 56) as u8
}

struct World {
    rig: Rig,
    producer: Producer,
    consumer: Consumer,
    capacity: usize,
    /// What was published and not read.
    published: VecDeque<u8>,
    /// What was copied in and not published.
    staged: VecDeque<u8>,
    /// Offset behind the last byte copied in, and where the segment began.
    tail: u64,
    began: u64,
    crossed: bool,
}

impl World {
    fn new(capacity: usize, offset: u64) -> World {
        let rig = Rig::new(capacity as u32);
        let (mut producer, mut consumer) = (rig.producer(), rig.consumer());
        producer.start_at(offset);
        rig.direction().set_up_at(offset);
        consumer.start_at(offset);
        World {
            rig,
            producer,
            consumer,
            capacity,
            published: VecDeque::new(),
            staged: VecDeque::new(),
            tail: offset,
            began: offset,
            crossed: true,
        }
    }

    fn room(&self) -> usize {
        self.capacity - self.published.len() - self.staged.len()
    }

    /// Lengths up to one and a half rings, with the ring's own length among them.
    fn length(&self, index: Index) -> usize {
        index.index(self.capacity * 3 / 2 + 1)
    }

    fn fill(&mut self, count: usize) -> Vec<u8> {
        let bytes = (0..count as u64).map(|i| byte_at(self.tail + i)).collect();
        self.tail += count as u64;
        bytes
    }

    fn publish_oracle(&mut self) {
        self.published.append(&mut self.staged);
    }

    fn perform(&mut self, operation: Operation) -> Result<(), Corrupt> {
        use Operation::*;
        match operation {
            Write(len) => self.copy_in(self.length(len), true)?,
            WriteFew(len) => self.copy_in(len, true)?,
            StageFew(len) => self.copy_in(len, false)?,
            StageCopy(len) => self.copy_in(self.length(len), false)?,
            StageInPlace(len) => self.stage_in_place(len)?,
            Publish => {
                self.producer.publish();
                self.publish_oracle();
            }
            Read(_) | ReadFew(_) | Peek(..) | PeekFew(..) | SkipInPlace(_) | Look | LookFresh
            | NewConsumer
                if !self.crossed => {}
            ReadFew(len) => self.read(len)?,
            PeekFew(skip, len) => self.peek(skip, len)?,
            Read(len) => self.read(self.length(len))?,
            Peek(skip, len) => self.peek(self.length(skip), self.length(len))?,
            SkipInPlace(n) => self.skip_in_place(n)?,
            Look => {
                let seen = self.consumer.available()?;
                assert!(seen <= self.published.len());
                assert_eq!(seen == 0, self.published.is_empty());
            }
            LookFresh => assert_eq!(self.consumer.available_fresh()?, self.published.len()),
            Free => {
                let free = self.producer.free()?;
                assert!(free <= self.room());
                assert_eq!(free == 0, self.room() == 0);
            }
            FreeAtLeast(wanted) => {
                let wanted = self.length(wanted);
                let free = self.producer.free_at_least(wanted)?;
                assert!(free <= self.room() && free >= wanted.min(self.room()));
            }
            Unread => {
                let unread = self.producer.unread()?;
                assert_eq!(unread as usize, self.published.len() + self.staged.len());
            }
            CopyBack(back, len) => self.copy_back(back, len)?,
            GoUpAgain(gap) => self.go_up_again(u64::from(gap)),
            Cross => {
                if !self.crossed {
                    self.consumer.start_at(self.began);
                    self.crossed = true;
                }
            }
            Rest => {
                let unread = self.published.len() + self.staged.len();
                let given = self.producer.rest()?;
                assert!(given.is_empty() || unread == 0);
                self.rig.make_zero(given);
            }
            NewProducer => {
                self.tail -= self.staged.len() as u64;
                self.staged.clear();
                self.producer = self.rig.producer();
            }
            NewConsumer => self.consumer = self.rig.consumer(),
        }
        assert_eq!(self.producer.tail(), self.tail);
        assert_eq!(
            self.rig.direction().tail(),
            self.tail - self.staged.len() as u64,
            "only publishing shows bytes"
        );
        if self.crossed {
            let unread = self.published.len() + self.staged.len();
            assert_eq!(self.consumer.head(), self.tail - unread as u64);
        }
        assert!(self.rig.guards_are_whole());
        Ok(())
    }

    fn copy_in(&mut self, len: usize, publish: bool) -> Result<(), Corrupt> {
        let start = self.tail;
        let bytes = self.fill(len);
        // SAFETY: `bytes` has `len` bytes of its own.
        let copied = unsafe {
            match publish {
                true => self.producer.write(bytes.as_ptr(), len)?,
                false => self.producer.stage_copy(bytes.as_ptr(), len)?,
            }
        };
        assert_eq!(copied, len.min(self.room()));
        self.tail = start + copied as u64;
        self.staged.extend(&bytes[..copied]);
        if publish && copied != 0 {
            self.publish_oracle();
        }
        Ok(())
    }

    fn stage_in_place(&mut self, len: Index) -> Result<(), Corrupt> {
        let (place, room) = self.producer.writable()?;
        assert!(room <= self.room());
        assert_eq!(room == 0, self.room() == 0);
        let len = len.index(room + 1);
        let bytes = self.fill(len);
        // SAFETY: `writable` offered at least `len` bytes there.
        unsafe { place.as_ptr().copy_from_nonoverlapping(bytes.as_ptr(), len) };
        self.producer.stage(len);
        self.staged.extend(bytes);
        Ok(())
    }

    fn read(&mut self, len: usize) -> Result<(), Corrupt> {
        let mut bytes = vec![0; len];
        // SAFETY: `bytes` has `len` bytes of its own.
        let count = unsafe { self.consumer.read(bytes.as_mut_ptr(), len)? };
        assert_eq!(count, len.min(self.published.len()));
        let expected: Vec<u8> = self.published.drain(..count).collect();
        assert_eq!(bytes[..count], expected);
        Ok(())
    }

    fn peek(&mut self, skip: usize, len: usize) -> Result<(), Corrupt> {
        let mut bytes = vec![0; len];
        // SAFETY: `bytes` has `len` bytes of its own.
        let count = unsafe { self.consumer.peek(skip, bytes.as_mut_ptr(), len)? };
        assert_eq!(count, len.min(self.published.len().saturating_sub(skip)));
        let expected: Vec<u8> = self.published.iter().skip(skip).take(count).copied().collect();
        assert_eq!(bytes[..count], expected);
        Ok(())
    }

    fn skip_in_place(&mut self, n: Index) -> Result<(), Corrupt> {
        let (place, there) = self.consumer.readable()?;
        assert!(there <= self.published.len());
        assert_eq!(there == 0, self.published.is_empty());
        let n = n.index(there + 1);
        for i in 0..n {
            // SAFETY: `readable` offered more than `i` bytes there.
            let byte = unsafe { place.add(i).read() };
            assert_eq!(Some(byte), self.published.pop_front());
        }
        self.consumer.skip(n);
        Ok(())
    }

    fn copy_back(&mut self, back: Index, len: Index) -> Result<(), Corrupt> {
        let back = back.index(self.published.len() + self.staged.len() + 1);
        let len = len.index(back + 1);
        let from = self.tail - back as u64;
        let mut bytes = vec![0; len];
        // SAFETY: `bytes` has `len` bytes of its own.
        unsafe { self.producer.copy_back(from, bytes.as_mut_ptr(), len)? };
        assert!((from..).zip(&bytes).all(|(offset, &byte)| byte == byte_at(offset)));
        Ok(())
    }

    fn go_up_again(&mut self, gap: u64) {
        self.tail += gap;
        self.began = self.tail;
        self.published.clear();
        self.staged.clear();
        self.producer.start_at(self.tail);
        self.rig.direction().set_up_at(self.tail);
        self.crossed = false;
    }
}

/// Offsets from the first byte to the last that an end word can hold, and around laps.
fn offset() -> impl Strategy<Value = u64> {
    prop_oneof![
        Just(0),
        0..1u64 << 61,
        (1u64 << 61) - 4096..1 << 61,
        (0u64..1 << 40).prop_map(|lap| (lap << 16) - lap.min(7)),
    ]
}

proptest! {
    #![proptest_config(cases(500, 6))]

    #[test]
    fn any_sequence_of_operations_equals_a_queue(
        log in 0u32..9,
        offset in offset(),
        walk in 0u64..400,
        operations in prop::collection::vec(operation(), 0..if cfg!(miri) { 25 } else { 300 }),
    ) {
        let mut world = World::new(1 << log, offset);
        world.producer.set_walk(walk);
        for operation in operations {
            world.perform(operation).expect("honest indices are believed");
        }
    }
}

#[test]
fn a_ring_that_grew_is_noted_once_and_gives_back_what_it_touched() {
    let mut world = World::new(16, 1000);
    world.copy_in(3, true).unwrap();
    world.copy_in(3, true).unwrap();
    assert!(!world.producer.has_grown(), "it has not looked since it grew");
    world.copy_in(5, true).unwrap();
    assert!(world.producer.take_growth());
    world.copy_in(5, true).unwrap();
    assert!(!world.producer.has_grown(), "it was noted");
    assert_eq!(world.producer.rest(), Ok(0..0), "bytes are unread");
    world.read(16).unwrap();
    world.copy_in(3, false).unwrap();
    assert_eq!(world.producer.rest(), Ok(0..0), "bytes are staged");
    world.producer.publish();
    world.publish_oracle();
    world.read(3).unwrap();
    assert_eq!(world.producer.rest(), Ok(1..16), "all of it was touched");
    assert_eq!(world.producer.touched(), 1, "what stays");
    assert_eq!(world.producer.rest(), Ok(1..1), "nothing was touched since");
    world.copy_in(2, true).unwrap();
    world.read(2).unwrap();
    assert_eq!(world.producer.touched(), 2, "it had begun again");
    assert_eq!(world.producer.rest(), Ok(1..2), "it had begun again");
}

#[test]
fn a_copy_back_of_bytes_that_the_ring_does_not_hold_is_refused() {
    let world = World::new(16, 1000);
    let mut byte = 0u8;
    for (from, len) in [(999, 0), (1000, 1), (1001, 0), (984, 1), (u64::MAX, 1)] {
        // SAFETY: a refused copy writes nothing.
        let copied = unsafe { world.producer.copy_back(from, &mut byte, len) };
        assert_eq!(copied, Err(Corrupt), "{len} bytes from {from}");
    }
}

#[test]
fn a_reader_that_has_not_crossed_over_does_not_hold_room() {
    let mut world = World::new(16, 0);
    world.copy_in(10, true).unwrap();
    world.go_up_again(5);
    assert_eq!(world.producer.free(), Ok(16));
    world.copy_in(16, true).unwrap();
    assert_eq!(world.producer.unread(), Ok(16));
    assert_eq!(world.producer.free(), Ok(0));
}

#[test]
fn long_messages_walk_through_as_much_of_the_array_as_they_may() {
    let mut world = World::new(64, 1000);
    // It is looked every 16 bytes, so that 32 are long.
    world.producer.set_walk(64);
    let mut begin_at = |length: usize| {
        let origin = world.rig.direction().wake.origin.load(crate::sync::Relaxed);
        let from = world.producer.tail() - origin;
        world.copy_in(length, true).unwrap();
        world.read(length).unwrap();
        let origin = world.rig.direction().wake.origin.load(crate::sync::Relaxed);
        (from, world.producer.tail() - length as u64 - origin)
    };
    assert_eq!(begin_at(32), (0, 0));
    assert_eq!(begin_at(32), (32, 32), "behind the first");
    assert_eq!(begin_at(32), (64, 0), "the array is used up");
    assert_eq!(begin_at(16), (32, 32), "the one before was long");
    assert_eq!(begin_at(16), (48, 0), "the one before was short");
    assert_eq!(begin_at(32), (16, 0), "it was, too");
    assert_eq!(world.producer.rest(), Ok(1..64));
    world.copy_in(32, true).unwrap();
    world.read(32).unwrap();
    world.copy_in(32, true).unwrap();
    world.read(32).unwrap();
    assert_eq!(world.producer.touched(), 32, "it had rested, and may not walk");
}
