//! poll, select and epoll, in the units of the data path.

use shunt_os::clock::Span;

pub use crate::wait::epoll::{control, opened, wait, Limits};
pub use crate::wait::poll::{bounded, poll, select};

/// A time that the kernel would call invalid.
#[derive(Debug)]
pub struct Invalid;

/// Milliseconds as poll and epoll take them; negative is for ever.
pub fn of_milliseconds(ms: i32) -> Option<u64> {
    u64::try_from(ms).ok().map(|ms| ms * 1_000_000)
}

/// A timespec; `Err` if the kernel would call it invalid, and null is for ever.
///
/// # Safety
/// Null or readable.
pub unsafe fn of_timespec(span: *const impl Span) -> Result<Option<u64>, Invalid> {
    if span.is_null() {
        return Ok(None);
    }
    // SAFETY: the caller vouches for it.
    let (seconds, nanoseconds) = unsafe { *span }.parts();
    if seconds < 0 || !(0..1_000_000_000).contains(&nanoseconds) {
        return Err(Invalid);
    }
    let seconds = (seconds as u64).saturating_mul(1_000_000_000);
    Ok(Some(seconds.saturating_add(nanoseconds as u64)))
}

/// A timeval, as [`of_timespec`]; microseconds beyond a second are carried as select does.
///
/// # Safety
/// Null or readable.
pub unsafe fn of_timeval(span: *const impl Span) -> Result<Option<u64>, Invalid> {
    if span.is_null() {
        return Ok(None);
    }
    // SAFETY: the caller vouches for it.
    let (seconds, microseconds) = unsafe { *span }.parts();
    if seconds < 0 || microseconds < 0 {
        return Err(Invalid);
    }
    let ns = (seconds as u64).saturating_mul(1_000_000_000);
    Ok(Some(ns.saturating_add((microseconds as u64).saturating_mul(1000))))
}
