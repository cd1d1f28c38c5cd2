//! Half the round trip of a small message between two pinned threads that spin, over two rings.
//!
//! `cargo run --release -p shunt-ring --example ping_pong -- [bytes] [rounds] [core core]`
// UNSAFETY: owns the memory of both rings, pins threads.
#![cfg(all(target_os = "linux", not(loom)))]
#![allow(unsafe_code)]

use std::alloc::{alloc_zeroed, Layout};
use std::ptr::NonNull;
use std::time::Instant;

use shunt_ring::{Consumer, Direction, Producer};

const CAPACITY: u32 = 256 * 1024;
const MESSAGE_BYTES_MAX: usize = 64 * 1024;
/// Rounds a sample: the clock costs a good part of one.
const BATCH: u32 = 16;

fn main() {
    let given: Vec<usize> =
        std::env::args().skip(1).map(|one| one.parse().expect("a number")).collect();
    let or = |index: usize, default| given.get(index).copied().unwrap_or(default);
    let (bytes, rounds) = (or(0, 8).clamp(1, MESSAGE_BYTES_MAX), or(1, 4_000_000));
    let (there, back) = (ring(), ring());
    let (near, far) = (or(2, 0), or(3, 1));
    std::thread::scope(|scope| {
        scope.spawn(move || {
            pin(far);
            echo(End::new(back, there), bytes, rounds);
        });
        pin(near);
        report(bytes, measure(End::new(there, back), bytes, rounds));
    });
}

/// One side: the ring that it writes and the ring that it reads.
struct End {
    out: Producer,
    into: Consumer,
    buffer: Vec<u8>,
}

#[derive(Clone, Copy)]
struct Ring(NonNull<Direction>, NonNull<u8>);

// SAFETY: leaked memory; its words are atomics and its bytes belong to the ring.
unsafe impl Send for Ring {}

impl End {
    fn new(out: Ring, into: Ring) -> End {
        let capacity = std::hint::black_box(CAPACITY);
        End {
            // SAFETY: leaked in `ring`, and this is its one producer.
            out: unsafe { Producer::attach(out.0, out.1, capacity) },
            // SAFETY: leaked in `ring`, and this is its one consumer.
            into: unsafe { Consumer::attach(into.0, into.1, capacity) },
            buffer: vec![7; MESSAGE_BYTES_MAX],
        }
    }

    /// Not inlined, as a call of the sockets is not: nothing is known of its arguments.
    #[inline(never)]
    fn send(&mut self, bytes: usize) {
        // SAFETY: the buffer has that many.
        let sent = unsafe { self.out.write(self.buffer.as_ptr(), bytes) };
        assert_eq!(sent, Ok(bytes), "the ring has room for a message");
        assert_eq!(self.out.take_data_waiters(), 0, "nobody sleeps");
    }

    #[inline(never)]
    fn receive(&mut self, bytes: usize) {
        while self.into.available_fresh().expect("an honest peer") < bytes {
            std::hint::spin_loop();
        }
        // SAFETY: the buffer has that many.
        let got = unsafe { self.into.read(self.buffer.as_mut_ptr(), bytes) };
        assert_eq!(got, Ok(bytes));
        assert_eq!(self.into.take_space_waiters(), 0, "nobody sleeps");
    }
}

fn echo(mut end: End, bytes: usize, rounds: usize) {
    for _ in 0..rounds {
        end.receive(bytes);
        end.send(bytes);
    }
}

/// Half round trips in nanoseconds, one for each batch.
fn measure(mut end: End, bytes: usize, rounds: usize) -> Vec<f64> {
    let mut samples = Vec::with_capacity(rounds / BATCH as usize);
    let mut left = rounds;
    while left > 0 {
        let batch = left.min(BATCH as usize);
        let began = Instant::now();
        for round in 0..batch {
            end.buffer[0] = round as u8;
            end.send(bytes);
            end.receive(bytes);
            assert_eq!(end.buffer[0], round as u8);
        }
        samples.push(began.elapsed().as_nanos() as f64 / batch as f64 / 2.0);
        left -= batch;
    }
    samples
}

fn report(bytes: usize, mut samples: Vec<f64>) {
    samples.sort_unstable_by(f64::total_cmp);
    let [p10, p50, p90] = [10, 50, 90].map(|percent| samples[(samples.len() - 1) * percent / 100]);
    println!("{bytes} bytes: half a round trip p10 {p10:.1} ns, p50 {p50:.1} ns, p90 {p90:.1} ns");
}

fn ring() -> Ring {
    let layout = Layout::from_size_align(CAPACITY as usize, 4096).expect("a layout");
    // SAFETY: the layout is not empty.
    let data = NonNull::new(unsafe { alloc_zeroed(layout) }).expect("memory");
    Ring(NonNull::from(Box::leak(Box::new(Direction::new()))), data)
}

fn pin(core: usize) {
    // SAFETY: zeroed is an empty set.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    // SAFETY: a set of this thread's stack.
    unsafe { libc::CPU_SET(core, &mut set) };
    // SAFETY: the set has its own size; 0 is this thread.
    let failed = unsafe { libc::sched_setaffinity(0, size_of_val(&set), &set) };
    if failed != 0 {
        eprintln!("core {core} is not ours: the threads are not pinned");
    }
}
