//! The only part of the preloaded library that calls the operating system.
//!
//! One folder per capability, each with `linux.rs` (and later `windows.rs`) behind the same
//! contract: `real` (the genuine socket functions), `raw` (system calls that bypass every
//! interposed symbol), `mapping` (shared memory), `park` (sleep on a word), `handles`
//! (descriptors: eventfds, passing, placing them high) and `peer` (who owns the other end).
//! Nothing here decides anything about streams, and nothing here calls a function that the
//! preloaded library exports.

// UNSAFETY: this crate is the boundary to the operating system.
#![allow(unsafe_code)]

pub mod allocator;
pub mod clock;
pub mod critical;
pub mod handlers;
pub mod handles;
pub mod lock;
pub mod lookups;
pub mod mapping;
pub mod memory;
pub mod park;
pub mod peer;
pub mod proc;
pub mod processor;
pub mod raw;
pub mod real;
pub mod signals;
pub mod tcp;
pub mod threads;
pub mod uring;

/// An operating-system error number, always positive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Errno(pub i32);

impl Errno {
    pub const AGAIN: Errno = Errno(libc::EAGAIN);
    pub const INTR: Errno = Errno(libc::EINTR);
    pub const FAULT: Errno = Errno(libc::EFAULT);
}

pub type Result<T> = core::result::Result<T, Errno>;

/// The calling thread's `errno`.
pub fn errno() -> i32 {
    // SAFETY: glibc returns a valid thread-local address.
    unsafe { *libc::__errno_location() }
}

/// Sets the calling thread's `errno`.
pub fn set_errno(value: i32) {
    // SAFETY: glibc returns a valid thread-local address.
    unsafe { *libc::__errno_location() = value }
}
