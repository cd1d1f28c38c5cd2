//! What loom proves of the ring, and the mutants that show each ordering is needed.
//!
//! Each model is a plain function that runs two or three threads and asserts. `holds` explores it
//! with all orderings as they are; `mutants` explores the same function with one ordering weakened
//! and demands that it fails. loom reports unordered access to a byte, deadlock (a lost wake-up) and
//! failed assertions. It treats `SeqCst` loads and stores as weaker, so there are none; it does
//! understand the full fence.
//!
//! `RUSTFLAGS="--cfg loom" cargo test --release -p shunt-ring models`
// UNSAFETY: attaches both ends to memory shared by the threads of a model.
#![allow(unsafe_code)]

mod bells;
mod bytes_in_order;
mod close_race;
mod handover_words;
mod latest;
mod mutants;
mod no_lost_wakeup;
mod ready_map;

use core::ptr::NonNull;

use loom::sync::Arc;

use crate::{Byte, Consumer, Direction, Producer};

/// Explores every order of events of a model; panics if one breaks it.
fn explore(model: fn()) {
    loom::model::Builder::new().check(model);
}

/// As `explore`, for a model that is too big: threads are interrupted at most so many times.
/// `LOOM_MAX_PREEMPTIONS` goes further.
fn explore_bounded(preemptions_max: usize, model: fn()) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound.get_or_insert(preemptions_max);
    builder.check(model);
}

/// One direction and its bytes, shared by the threads of a model.
struct Shared {
    direction: Direction,
    bytes: Vec<Byte>,
}

impl Shared {
    fn new(capacity: usize) -> Arc<Shared> {
        let bytes = (0..capacity).map(|_| Byte::new(0)).collect();
        Arc::new(Shared { direction: Direction::new(), bytes })
    }

    fn data(&self) -> NonNull<Byte> {
        NonNull::from(&self.bytes[..]).cast()
    }

    fn producer(&self) -> Producer {
        let capacity = self.bytes.len() as u32;
        // SAFETY: every thread of a model keeps its `Arc`; the models attach one of each.
        unsafe { Producer::attach(NonNull::from(&self.direction), self.data(), capacity) }
    }

    fn consumer(&self) -> Consumer {
        let capacity = self.bytes.len() as u32;
        // SAFETY: as for `producer`.
        unsafe { Consumer::attach(NonNull::from(&self.direction), self.data(), capacity) }
    }
}

/// Writes what fits of `bytes` to the array alone, and says how much. Small messages would not touch
/// the array at the reader's side: the models in `latest` are about those.
fn write(producer: &mut Producer, bytes: &[u8]) -> usize {
    // SAFETY: a slice of the caller's own.
    let count =
        unsafe { producer.stage_copy(bytes.as_ptr(), bytes.len()) }.expect("an honest peer");
    if count != 0 {
        producer.stage(0);
        producer.publish();
    }
    count
}

/// Writes what fits of `bytes`, also to the writer's line.
fn write_few(producer: &mut Producer, bytes: &[u8]) -> usize {
    // SAFETY: a slice of the caller's own.
    unsafe { producer.write(bytes.as_ptr(), bytes.len()) }.expect("an honest peer")
}

/// Reads what is there, up to `len`.
fn read(consumer: &mut Consumer, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    // SAFETY: `bytes` has `len` bytes.
    let count = unsafe { consumer.read(bytes.as_mut_ptr(), len) }.expect("an honest peer");
    bytes.truncate(count);
    bytes
}

fn stage(producer: &mut Producer, bytes: &[u8]) {
    // SAFETY: a slice of the caller's own.
    let copied = unsafe { producer.stage_copy(bytes.as_ptr(), bytes.len()) };
    assert_eq!(copied, Ok(bytes.len()));
}

fn copy_back(producer: &Producer, from: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    // SAFETY: `bytes` has `len` bytes.
    unsafe { producer.copy_back(from, bytes.as_mut_ptr(), len) }.expect("the ring holds them");
    bytes
}
