//! The bare ring between two processes: the crate `ring` with the plainest wait there is, to spin
//! politely for a while and then sleep in a futex. No sockets, no links.
// UNSAFETY: uses the memory that both processes share, and sleeps on words in it.
#![allow(unsafe_code)]

use std::fs::File;
use std::io::{self, Read, Write};
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
use std::time::{Duration, Instant};

use super::mapping;
use shunt_ring::{Consumer, Corrupt, Direction, Producer, FUTEX};

/// As much as a ring of the library has: a writer ahead of its reader by more than its own cache has goes faster.
const CAPACITY: u32 = 4 * 1024 * 1024;
const SPIN_MAX: Duration = Duration::from_micros(50);

/// What lies at the start of the file; each data area follows.
#[repr(C)]
struct Shared {
    to_server: Direction,
    to_client: Direction,
    /// One for each direction: nothing more will be written.
    closed: [AtomicU32; 2],
}

const DATA_AT: usize = 4096;
const FILE_BYTES: usize = DATA_AT + 2 * CAPACITY as usize;
const _: () = assert!(size_of::<Shared>() <= DATA_AT);

pub struct RingEnd {
    shared: &'static Shared,
    out: Producer,
    inward: Consumer,
    /// Index of the outward direction in `closed`.
    outward: usize,
}

impl RingEnd {
    /// Makes the file in which client and server meet.
    pub fn make(path: &str) -> io::Result<()> {
        mapping::make(path, FILE_BYTES)
    }

    pub fn server(path: &str) -> io::Result<RingEnd> {
        RingEnd::attach(path, 1)
    }

    pub fn client(path: &str) -> io::Result<RingEnd> {
        RingEnd::attach(path, 0)
    }

    fn attach(path: &str, outward: usize) -> io::Result<RingEnd> {
        let file = File::options().read(true).write(true).open(path)?;
        let base = mapping::map(&file, FILE_BYTES)?;
        // SAFETY: the mapping is never undone, is large enough and page-aligned; the struct
        // consists of atomics, for which zeroes are valid.
        let shared: &'static Shared = unsafe { base.cast().as_ref() };
        let directions = [&shared.to_server, &shared.to_client].map(NonNull::from);
        // SAFETY: both data areas are inside the mapping.
        let data = [0, 1].map(|n| unsafe { base.add(DATA_AT + n * CAPACITY as usize) });
        let inward = 1 - outward;
        // SAFETY: mapped for ever; one client writes 0, one server writes 1.
        let out = unsafe { Producer::attach(directions[outward], data[outward].cast(), CAPACITY) };
        // SAFETY: mapped for ever; one server reads 0, one client reads 1.
        let into = unsafe { Consumer::attach(directions[inward], data[inward].cast(), CAPACITY) };
        Ok(RingEnd { shared, out, inward: into, outward })
    }

    pub fn close_writing(&mut self) {
        // Both sides of the sleep protocol fence between this word and the wake word.
        self.shared.closed[self.outward].store(1, SeqCst);
        self.wake_reader();
    }

    fn is_closed(&self) -> bool {
        self.shared.closed[1 - self.outward].load(SeqCst) != 0
    }

    fn wake_reader(&self) {
        if self.out.take_data_waiters() & FUTEX != 0 {
            wake(&self.out.direction().wake.data_wanted);
        }
    }

    fn wake_writer(&self) {
        if self.inward.take_space_waiters() & FUTEX != 0 {
            wake(&self.inward.direction().wake.space_wanted);
        }
    }

    fn wait_for_data(&mut self) -> io::Result<()> {
        let there = |end: &mut RingEnd| {
            Ok::<bool, Corrupt>(end.inward.available_fresh()? > 0 || end.is_closed())
        };
        if self.spin(there)? {
            return Ok(());
        }
        let word = self.inward.want_data(FUTEX);
        if !there(self).map_err(corrupt)? {
            sleep(&self.inward.direction().wake.data_wanted, word);
        }
        Ok(())
    }

    fn wait_for_space(&mut self) -> io::Result<()> {
        let there = |end: &mut RingEnd| Ok::<bool, Corrupt>(end.out.free()? > 0);
        if self.spin(there)? {
            return Ok(());
        }
        let word = self.out.want_space(FUTEX);
        if !there(self).map_err(corrupt)? {
            sleep(&self.out.direction().wake.space_wanted, word);
        }
        Ok(())
    }

    fn spin(&mut self, there: impl Fn(&mut RingEnd) -> Result<bool, Corrupt>) -> io::Result<bool> {
        let mut start = None;
        loop {
            for _ in 0..64 {
                if there(self).map_err(corrupt)? {
                    return Ok(true);
                }
                std::hint::spin_loop();
            }
            std::thread::yield_now();
            if start.get_or_insert_with(Instant::now).elapsed() > SPIN_MAX {
                return Ok(false);
            }
        }
    }
}

impl Read for RingEnd {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        loop {
            let was_closed = self.is_closed();
            // SAFETY: the slice is writable and no part of the ring.
            let read = unsafe { self.inward.read(into.as_mut_ptr(), into.len()) };
            match read.map_err(corrupt)? {
                0 if was_closed => return Ok(0),
                0 => self.wait_for_data()?,
                read => {
                    self.wake_writer();
                    return Ok(read);
                }
            }
        }
    }
}

impl Write for RingEnd {
    fn write(&mut self, from: &[u8]) -> io::Result<usize> {
        loop {
            // SAFETY: the slice is readable and no part of the ring.
            let written = unsafe { self.out.write(from.as_ptr(), from.len()) };
            match written.map_err(corrupt)? {
                0 => self.wait_for_space()?,
                written => {
                    self.wake_reader();
                    return Ok(written);
                }
            }
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn corrupt(error: Corrupt) -> io::Error {
    io::Error::other(error)
}

/// Sleeps while the word has this value, or returns early; the caller looks again.
fn sleep(word: &AtomicU32, value: u32) {
    let timeout: *const libc::timespec = ptr::null();
    // SAFETY: the word is mapped, and without a time-out nothing else is read.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAIT, value, timeout) };
}

fn wake(word: &AtomicU32) {
    // SAFETY: the word is mapped.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAKE, i32::MAX) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_cross_the_ring_and_the_end_follows_them() {
        let path = std::env::temp_dir().join(format!("shunt-ring-{}", std::process::id()));
        let path = path.to_str().unwrap();
        RingEnd::make(path).unwrap();
        let (mut server, mut client) =
            (RingEnd::server(path).unwrap(), RingEnd::client(path).unwrap());
        std::fs::remove_file(path).unwrap();
        let sent: Vec<u8> = (0..3_000_000u32).map(|n| (n % 251) as u8).collect();
        let expected = sent.clone();
        let writer = std::thread::spawn(move || {
            client.write_all(&sent).unwrap();
            client.close_writing();
        });
        let mut received = Vec::new();
        server.read_to_end(&mut received).unwrap();
        writer.join().unwrap();
        assert!(received == expected);
    }
}
