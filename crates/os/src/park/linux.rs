//! `futex(2)`, process-shared.

use core::sync::atomic::AtomicU32;

use crate::{sys, Errno, Result};

/// Sleeps while `word` holds `value`, until woken, a signal, or `timeout_ns` have passed.
///
/// # Errors
/// EAGAIN: the word had changed. ETIMEDOUT. EINTR: a signal whose handler asks for no restart
/// (without a timeout the kernel restarts under SA_RESTART, as it does for recv).
pub fn wait(word: &AtomicU32, value: u32, timeout_ns: Option<u64>) -> Result<()> {
    let span = timeout_ns.map(|ns| libc::timespec {
        tv_sec: (ns / 1_000_000_000) as i64,
        tv_nsec: (ns % 1_000_000_000) as i64,
    });
    let pointer = span.as_ref().map_or(core::ptr::null(), |s| s as *const _);
    // SAFETY: the word is mapped; the timespec outlives the call.
    unsafe { sys!(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAIT, value, pointer) }.map(|_| ())
}

/// Wakes everybody who sleeps on `word`.
pub fn wake_all(word: &AtomicU32) {
    // SAFETY: the word is mapped.
    let _ = unsafe { sys!(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAKE, i32::MAX) };
}

/// Whether a wait ended because its time was over.
pub fn timed_out(error: Errno) -> bool {
    error.0 == libc::ETIMEDOUT
}
