//! The memory of rings that have grown is given back when their streams rest: a ring touches as much of its
//! array as lay in it at a time, and a stream that has carried much may be idle for hours.
//!
//! Who writes gives back, since what is free of a ring is the writer's. A send that finds that its ring has
//! grown tells the service thread, which looks at the stream once a second until nothing was sent between two
//! looks. Then it is done with it, whatever it finds: a thread that looked on would never sleep.

use core::sync::atomic::Ordering::*;

use shunt_stream::WriterOn;

use crate::pool::{self, Mode, SendSide, Socket};
use crate::service;

/// A stream that has sent nothing for this long rests.
pub const REST_NS: u64 = 1_000_000_000;

/// The rings of a process walk together through no more memory than this where messages are long
/// ([`Producer::set_walk`](shunt_ring::Producer::set_walk)): more than a core's second cache has, so that what is written
/// has left the reader's, and a part of the last one, so that what is read has not left that.
const WALK_BYTES: u64 = 8 * 1024 * 1024;

/// The share of one of so many streams.
fn walk_bytes(streams: usize) -> u64 {
    WALK_BYTES / streams.max(1) as u64
}

/// A stream whose ring has grown, and where it stood at the last look.
pub struct Resting {
    index: u32,
    generation: u32,
    tail: Option<u64>,
}

/// After a send, with the lock held: tells the service thread of a ring that has grown.
#[inline]
pub(super) fn look_at_growth(index: u32, socket: &Socket, side: &mut SendSide) {
    let Some(producer) = &mut side.producer else { return };
    if producer.ring().take_growth() {
        let generation = socket.generation.load(Relaxed);
        if let Some(service) = service::running() {
            let streams = service.watch_rest(Resting { index, generation, tail: None });
            producer.ring().set_walk(walk_bytes(streams));
        }
    }
}

/// [`REST_NS`] or more after the last look, in the service thread: gives the memory of a stream that has sent
/// nothing since back. True if it must be looked at again, as one of so many `streams`.
pub fn rest(stream: &mut Resting, streams: usize) -> bool {
    let socket = pool::get(stream.index);
    // A stream that sends at this moment does not rest.
    let Some(mut side) = socket.send.try_lock() else { return true };
    let attached =
        socket.generation.load(Relaxed) == stream.generation && socket.mode() == Mode::Attached;
    let on_ring = side.writer.on() == WriterOn::Ring;
    let Some(producer) = side.producer.as_mut().filter(|_| attached) else { return false };
    if !on_ring {
        // It went to TCP meanwhile; once it is back, its memory is noted anew.
        producer.ring().forget_growth();
        return false;
    }
    let tail = Some(producer.tail());
    if core::mem::replace(&mut stream.tail, tail) != tail {
        producer.ring().set_walk(walk_bytes(streams));
        return true;
    }
    // A peer that lies is found by the next send.
    let _ = producer.rest();
    false
}
