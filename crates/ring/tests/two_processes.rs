//! A stream of bytes between two processes over mapped memory, and between two threads for the
//! sanitizer that sees only threads. Both spinning, and both sleeping in futexes: that no wake-up is
//! lost in earnest shows as the stream's end; a watchdog ends tests that hang.
//!
//! ThreadSanitizer does not see between processes: run it on the `threads` tests (docs/design/ring.md
//! has the commands).
// UNSAFETY: maps memory, forks, sleeps in futexes.
#![cfg(all(target_os = "linux", not(loom), not(miri)))]
#![allow(unsafe_code)]

use std::panic::AssertUnwindSafe;
use std::ptr::NonNull;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU64};

use shunt_ring::{AtomicU32, Consumer, Direction, Producer, FUTEX};

const CAPACITY: u32 = 64 * 1024;
const STREAM_BYTES: u64 = 64 << 20;
/// The futex runs stop and start at every few bytes: fewer bytes, a small ring.
const SLEEPING_CAPACITY: u32 = 4096;
const SLEEPING_BYTES: u64 = 64 << 20;
const WATCHDOG_SECONDS: u32 = 120;
/// An offset that is not a multiple of the capacity, far along.
const START: u64 = (1 << 40) + 12_345;

/// The words, what each side summed up, and the bytes; shared by fork or by threads.
#[repr(C)]
struct Shared {
    direction: Direction,
    written: AtomicU64,
    sleeps: [AtomicU64; 2],
    failed: AtomicBool,
    bytes: [u8; CAPACITY as usize],
}

#[derive(Clone, Copy)]
struct Mapping(NonNull<Shared>);

// SAFETY: the mapping is shared by design; its words are atomics and its bytes belong to the ring.
unsafe impl Send for Mapping {}

impl Mapping {
    fn new() -> Mapping {
        let (access, kind) =
            (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_ANONYMOUS);
        // SAFETY: a new mapping at an address of the kernel's choice.
        let base =
            unsafe { libc::mmap(std::ptr::null_mut(), size_of::<Shared>(), access, kind, -1, 0) };
        assert_ne!(base, libc::MAP_FAILED);
        Mapping(NonNull::new(base.cast()).expect("not at zero"))
    }

    fn unmap(self) {
        // SAFETY: mapped in `new` with this length; both sides are done.
        assert_eq!(unsafe { libc::munmap(self.0.as_ptr().cast(), size_of::<Shared>()) }, 0);
    }

    fn direction(&self) -> &Direction {
        // SAFETY: mapped until `unmap`; zeroed memory is a valid direction.
        unsafe { &(*self.0.as_ptr()).direction }
    }

    fn written(&self) -> &AtomicU64 {
        // SAFETY: mapped until `unmap`.
        unsafe { &(*self.0.as_ptr()).written }
    }

    fn sleeps(&self, side: usize) -> &AtomicU64 {
        // SAFETY: mapped until `unmap`.
        unsafe { &(*self.0.as_ptr()).sleeps[side] }
    }

    fn failed(&self) -> &AtomicBool {
        // SAFETY: mapped until `unmap`.
        unsafe { &(*self.0.as_ptr()).failed }
    }

    fn data(&self) -> NonNull<u8> {
        // SAFETY: inside the mapping; only the address is taken.
        unsafe { self.0.cast::<u8>().add(std::mem::offset_of!(Shared, bytes)) }
    }
}

#[derive(Clone, Copy, PartialEq)]
enum Waiting {
    Spin,
    Sleep,
}

impl Waiting {
    fn capacity(self) -> u32 {
        match self {
            Waiting::Spin => CAPACITY,
            Waiting::Sleep => SLEEPING_CAPACITY,
        }
    }

    fn stream_bytes(self) -> u64 {
        match self {
            Waiting::Spin => STREAM_BYTES,
            Waiting::Sleep => SLEEPING_BYTES,
        }
    }
}

fn futex_wait(word: &AtomicU32, expected: u32) {
    // SAFETY: an aligned word that is mapped during the call; a shared futex, without time-out.
    unsafe {
        let none = std::ptr::null::<libc::timespec>();
        libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAIT, expected, none);
    }
}

fn futex_wake(word: &AtomicU32) {
    // SAFETY: an aligned word that is mapped during the call.
    unsafe {
        libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAKE, i32::MAX);
    }
}

/// xorshift: cheap, and every byte depends on its place.
struct Noise(u64);

impl Noise {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    /// Mostly small pieces, now and then one near the ring's size and beyond.
    fn length(&mut self, left: u64, capacity: u32) -> usize {
        let limit = match self.next() % 8 {
            0 => u64::from(capacity) * 9 / 8,
            1..4 => 4096,
            _ => 512,
        };
        (1 + self.next() % limit).min(left) as usize
    }
}

/// A sum that notices bytes that are lost, doubled or exchanged.
fn checksum(sum: u64, bytes: &[u8]) -> u64 {
    bytes.iter().fold(sum, |sum, &byte| (sum ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01B3))
}

fn write_all(mapping: Mapping, waiting: Waiting, buffer: &mut [u8]) {
    let capacity = waiting.capacity();
    // SAFETY: the mapping outlives both sides, and this side is the one writer.
    let mut producer =
        unsafe { Producer::attach(mapping.0.cast::<Direction>(), mapping.data(), capacity) };
    let (mut noise, mut sum, mut left) = (Noise(42), 0, waiting.stream_bytes());
    while left != 0 {
        let len = noise.length(left, capacity);
        for chunk in buffer[..len].chunks_mut(8) {
            chunk.copy_from_slice(&noise.next().to_le_bytes()[..chunk.len()]);
        }
        sum = checksum(sum, &buffer[..len]);
        let mut done = 0;
        while done < len {
            // SAFETY: the rest of the buffer.
            let wrote = unsafe { producer.write(buffer[done..].as_ptr(), len - done) };
            match wrote.expect("an honest peer") {
                0 => wait_for_space(mapping, &mut producer, waiting),
                count => done += count,
            }
            if waiting == Waiting::Sleep && producer.take_data_waiters() & FUTEX != 0 {
                futex_wake(&mapping.direction().wake.data_wanted);
            }
        }
        left -= len as u64;
    }
    mapping.written().store(sum, Relaxed);
}

fn wait_for_space(mapping: Mapping, producer: &mut Producer, waiting: Waiting) {
    if waiting == Waiting::Spin {
        return std::thread::yield_now();
    }
    let word = producer.want_space(FUTEX);
    if producer.free().expect("an honest peer") == 0 {
        mapping.sleeps(0).fetch_add(1, Relaxed);
        futex_wait(&mapping.direction().wake.space_wanted, word);
    }
}

fn read_all(mapping: Mapping, waiting: Waiting, buffer: &mut [u8]) -> u64 {
    let capacity = waiting.capacity();
    // SAFETY: the mapping outlives both sides, and this side is the one reader.
    let mut consumer =
        unsafe { Consumer::attach(mapping.0.cast::<Direction>(), mapping.data(), capacity) };
    let (mut noise, mut sum, mut left) = (Noise(43), 0, waiting.stream_bytes());
    while left != 0 && !mapping.failed().load(Relaxed) {
        let len = noise.length(left, capacity);
        // SAFETY: `len` is at most the buffer's length.
        let count = unsafe { consumer.read(buffer.as_mut_ptr(), len) }.expect("an honest peer");
        if count == 0 {
            wait_for_data(mapping, &mut consumer, waiting);
            continue;
        }
        if waiting == Waiting::Sleep && consumer.take_space_waiters() & FUTEX != 0 {
            futex_wake(&mapping.direction().wake.space_wanted);
        }
        sum = checksum(sum, &buffer[..count]);
        left -= count as u64;
    }
    sum
}

fn wait_for_data(mapping: Mapping, consumer: &mut Consumer, waiting: Waiting) {
    if waiting == Waiting::Spin {
        return std::thread::yield_now();
    }
    let word = consumer.want_data(FUTEX);
    if consumer.available_fresh().expect("an honest peer") == 0 {
        mapping.sleeps(1).fetch_add(1, Relaxed);
        futex_wait(&mapping.direction().wake.data_wanted, word);
    }
}

/// Both directions begin far along the stream.
fn prepared(waiting: Waiting) -> Mapping {
    let mapping = Mapping::new();
    let (direction, data) = (mapping.0.cast::<Direction>(), mapping.data());
    // SAFETY: nobody else uses the mapping yet.
    unsafe { Producer::attach(direction, data, waiting.capacity()) }.start_at(START);
    // SAFETY: nobody else uses the mapping yet.
    unsafe { Consumer::attach(direction, data, waiting.capacity()) }.start_at(START);
    mapping.direction().set_up_at(START);
    mapping
}

fn between_processes(waiting: Waiting) {
    start_watchdog();
    let mapping = prepared(waiting);
    let mut buffer = buffer();
    // SAFETY: the child allocates nothing, uses its copy of this thread only, and leaves by `_exit`.
    let child = unsafe { libc::fork() };
    assert!(child >= 0);
    if child == 0 {
        start_watchdog();
        let write = AssertUnwindSafe(|| write_all(mapping, waiting, &mut buffer));
        let failed = std::panic::catch_unwind(write).is_err();
        mapping.failed().store(failed, Relaxed);
        // SAFETY: leaves without the test harness's own exit.
        unsafe { libc::_exit(failed.into()) };
    }
    let sum = read_all(mapping, waiting, &mut buffer);
    let mut status = 0;
    // SAFETY: our own child.
    assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
    assert_eq!(status, 0, "the writer failed");
    conclude(mapping, sum, waiting);
}

fn between_threads(waiting: Waiting) {
    start_watchdog();
    let mapping = prepared(waiting);
    let writer = std::thread::spawn(move || {
        let mapping = mapping;
        write_all(mapping, waiting, &mut buffer())
    });
    let sum = read_all(mapping, waiting, &mut buffer());
    writer.join().expect("the writer failed");
    conclude(mapping, sum, waiting);
}

fn buffer() -> Vec<u8> {
    vec![0; CAPACITY as usize * 2]
}

/// Ends this process some time after its last test began. A forked child has its own.
fn start_watchdog() {
    // SAFETY: the signal's default is to end the process, which is the purpose.
    unsafe { libc::alarm(WATCHDOG_SECONDS) };
}

fn conclude(mapping: Mapping, sum: u64, waiting: Waiting) {
    assert_eq!(sum, mapping.written().load(Relaxed), "the bytes differ");
    assert_eq!(mapping.direction().head(), START + waiting.stream_bytes());
    assert_eq!(mapping.direction().tail(), START + waiting.stream_bytes());
    if waiting == Waiting::Sleep {
        let [writer, reader] = [0, 1].map(|side| mapping.sleeps(side).load(Relaxed));
        println!("the writer slept {writer} times, the reader {reader} times");
        assert!(writer + reader > 0, "nobody slept: this run shows nothing");
    }
    mapping.unmap();
}

#[test]
fn two_spinning_processes_move_a_stream() {
    between_processes(Waiting::Spin);
}

#[test]
fn two_sleeping_processes_move_a_stream() {
    between_processes(Waiting::Sleep);
}

#[test]
fn two_spinning_threads_move_a_stream() {
    between_threads(Waiting::Spin);
}

#[test]
fn two_sleeping_threads_move_a_stream() {
    between_threads(Waiting::Sleep);
}
