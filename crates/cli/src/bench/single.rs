//! What a carrier that copies once could do: the reader takes bytes out of the writer's own memory, by
//! `process_vm_readv`, and the writer waits until it has, since its memory is the program's.
//!
//! One word for each direction tells what is offered: how many bytes, at the address beside it.
// UNSAFETY: maps the file that both processes share, and reads the other's memory.
#![allow(unsafe_code)]

use std::fs::File;
use std::io::{self, ErrorKind, Read, Write};
use std::ptr::NonNull;
use std::sync::atomic::{
    AtomicU32, AtomicU64,
    Ordering::{Acquire, Relaxed, Release},
};

use super::{copy, mapping};

/// In the place of a number of bytes: nothing more will come; the reader may not read.
const END: u64 = u64::MAX;
const REFUSED: u64 = u64::MAX - 1;

/// One direction.
#[repr(C, align(128))]
struct Offer {
    /// Who offers.
    pid: AtomicU32,
    address: AtomicU64,
    /// 0 while nothing is offered.
    bytes: AtomicU64,
}

const FILE_BYTES: usize = 4096;
const _: () = assert!(size_of::<[Offer; 2]>() <= FILE_BYTES);

pub struct SingleEnd {
    out: &'static Offer,
    inward: &'static Offer,
    /// Bytes of the inward offer that were taken already.
    taken: usize,
}

impl SingleEnd {
    /// Makes the file in which client and server meet.
    pub fn make(path: &str) -> io::Result<()> {
        mapping::make(path, FILE_BYTES)
    }

    pub fn server(path: &str) -> io::Result<SingleEnd> {
        SingleEnd::attach(path, [1, 0])
    }

    pub fn client(path: &str) -> io::Result<SingleEnd> {
        SingleEnd::attach(path, [0, 1])
    }

    fn attach(path: &str, directions: [usize; 2]) -> io::Result<SingleEnd> {
        let file = File::options().read(true).write(true).open(path)?;
        let base: NonNull<[Offer; 2]> = mapping::map(&file, FILE_BYTES)?.cast();
        // SAFETY: mapped for ever, page-aligned, with room for both; they consist of atomics, for
        // which zeroes are valid.
        let offers: &'static [Offer; 2] = unsafe { base.as_ref() };
        let [out, inward] = directions.map(|index| &offers[index]);
        out.pid.store(std::process::id(), Relaxed);
        let_others_read();
        Ok(SingleEnd { out, inward, taken: 0 })
    }

    pub fn close_writing(&mut self) {
        self.out.bytes.store(END, Release);
    }

    /// Copies from what is offered into the slice, which is not longer than what is left of it.
    fn copy_out(&self, into: &mut [u8]) -> io::Result<usize> {
        let local = libc::iovec { iov_base: into.as_mut_ptr().cast(), iov_len: into.len() };
        let address = self.inward.address.load(Relaxed) as usize + self.taken;
        let remote = libc::iovec { iov_base: address as *mut _, iov_len: into.len() };
        let pid = self.inward.pid.load(Relaxed) as libc::pid_t;
        // SAFETY: the local memory is a valid slice; the kernel checks the other process's.
        let taken = unsafe { libc::process_vm_readv(pid, &local, 1, &remote, 1, 0) };
        match taken {
            1.. => Ok(taken as usize),
            0 => Err(ErrorKind::UnexpectedEof.into()),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

impl Write for SingleEnd {
    /// Offers all of it, and waits until it was taken.
    fn write(&mut self, from: &[u8]) -> io::Result<usize> {
        self.out.address.store(from.as_ptr() as u64, Relaxed);
        // SYNC offered -> SingleEnd::read: the bytes, where they are, and whose.
        self.out.bytes.store(from.len() as u64, Release);
        // SYNC taken -> SingleEnd::read: every byte has been copied.
        copy::wait(|| matches!(self.out.bytes.load(Acquire), 0 | REFUSED));
        match self.out.bytes.load(Relaxed) {
            REFUSED => Err(ErrorKind::PermissionDenied.into()),
            _ => Ok(from.len()),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Read for SingleEnd {
    /// Takes what is offered, as far as there is room.
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        copy::wait(|| self.inward.bytes.load(Relaxed) != 0);
        // SYNC offered -> SingleEnd::write: the bytes, where they are, and whose.
        let offered = match self.inward.bytes.load(Acquire) {
            END | REFUSED => return Ok(0),
            offered => offered as usize,
        };
        let room = into.len().min(offered.saturating_sub(self.taken));
        let taken = self.copy_out(&mut into[..room]).inspect_err(|_| {
            self.inward.bytes.store(REFUSED, Relaxed);
        })?;
        self.taken += taken;
        if self.taken >= offered {
            self.taken = 0;
            // SYNC taken -> SingleEnd::write: every byte has been copied.
            self.inward.bytes.store(0, Release);
        }
        Ok(taken)
    }
}

/// Where a process may read its children's memory only (Yama), this one lets every process of its user.
fn let_others_read() {
    let any: libc::c_ulong = libc::c_ulong::MAX;
    // SAFETY: no memory is involved. Without Yama the kernel knows no such request, nor is it needed.
    unsafe { libc::prctl(libc::PR_SET_PTRACER, any, 0, 0, 0) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_taken_whatever_the_size_of_the_buffer() {
        let path = mapping::path_of_a_test("single");
        SingleEnd::make(&path).unwrap();
        let mut server = SingleEnd::server(&path).unwrap();
        let sent: Vec<u8> = (0..300_000u32).map(|n| (n % 251) as u8).collect();
        let expected = sent.clone();
        let client_path = path.clone();
        let writer = std::thread::spawn(move || {
            let mut client = SingleEnd::client(&client_path).unwrap();
            for part in sent.chunks(100_003) {
                client.write_all(part).unwrap();
            }
            client.close_writing();
        });
        let (mut received, mut buffer) = (Vec::<u8>::new(), [0; 4096]);
        loop {
            match server.read(&mut buffer).unwrap() {
                0 => break,
                read => received.extend(&buffer[..read]),
            }
        }
        writer.join().unwrap();
        std::fs::remove_file(path).unwrap();
        assert!(received == expected);
    }

    #[test]
    fn a_reader_that_may_not_read_is_an_error_on_both_sides() {
        let path = mapping::path_of_a_test("refused");
        SingleEnd::make(&path).unwrap();
        let mut server = SingleEnd::server(&path).unwrap();
        let mut client = SingleEnd::client(&path).unwrap();
        // No process has this number.
        client.out.pid.store(u32::MAX >> 1, Relaxed);
        let writer = std::thread::spawn(move || client.write(b"text").is_err());
        assert!(server.read(&mut [0; 8]).is_err());
        assert!(writer.join().unwrap());
        std::fs::remove_file(path).unwrap();
    }
}
