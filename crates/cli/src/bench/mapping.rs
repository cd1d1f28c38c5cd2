//! Files that two processes of a benchmark both map.
// UNSAFETY: maps them.
#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::ptr::{self, NonNull};

pub fn make(path: &str, bytes: usize) -> io::Result<()> {
    let file = File::options().read(true).write(true).create_new(true).open(path)?;
    file.set_len(bytes as u64)
}

/// The whole file, for ever.
pub fn map(file: &File, bytes: usize) -> io::Result<NonNull<u8>> {
    let (access, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED);
    // SAFETY: a new mapping, at a place that the kernel chooses.
    let base = unsafe { libc::mmap(ptr::null_mut(), bytes, access, flags, file.as_raw_fd(), 0) };
    if base == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    NonNull::new(base.cast()).ok_or_else(|| io::Error::other("mapped at zero"))
}

/// A path for what a test makes and removes.
#[cfg(test)]
pub fn path_of_a_test(name: &str) -> String {
    let file = format!("shunt-{name}-{}", std::process::id());
    std::env::temp_dir().join(file).display().to_string()
}
