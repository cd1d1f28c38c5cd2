//! poll, select and epoll, in the units of the data path.

use shunt_os::clock::Span;
use shunt_os::memory;

pub use crate::wait::epoll::{control, opened, wait, Limits};
pub use crate::wait::poll::{bounded, poll, select};

/// A time that the kernel would call invalid, or not find.
#[derive(Debug)]
pub struct Invalid;

/// What the program points at as a time; `None` is for ever.
///
/// # Safety
/// It stays as it is meanwhile.
unsafe fn parts<S: Span>(span: *const S) -> Result<Option<(i64, i64)>, Invalid> {
    if span.is_null() {
        return Ok(None);
    }
    if !memory::is_there(span, size_of::<S>()) {
        return Err(Invalid);
    }
    // SAFETY: it is there.
    Ok(Some(unsafe { *span }.parts()))
}

/// Milliseconds as poll and epoll take them; negative is for ever.
pub fn of_milliseconds(ms: i32) -> Option<u64> {
    u64::try_from(ms).ok().map(|ms| ms * 1_000_000)
}

/// A timespec; `Err` if the kernel would call it invalid, or does not find it, and null is for ever.
///
/// # Safety
/// The program's.
pub unsafe fn of_timespec(span: *const impl Span) -> Result<Option<u64>, Invalid> {
    // SAFETY: as the caller's.
    let Some((seconds, nanoseconds)) = unsafe { parts(span) }? else { return Ok(None) };
    if seconds < 0 || !(0..1_000_000_000).contains(&nanoseconds) {
        return Err(Invalid);
    }
    let seconds = (seconds as u64).saturating_mul(1_000_000_000);
    Ok(Some(seconds.saturating_add(nanoseconds as u64)))
}

/// A timeval, as [`of_timespec`]; microseconds beyond a second are carried as select does.
///
/// # Safety
/// The program's.
pub unsafe fn of_timeval(span: *const impl Span) -> Result<Option<u64>, Invalid> {
    // SAFETY: as the caller's.
    let Some((seconds, microseconds)) = unsafe { parts(span) }? else { return Ok(None) };
    if seconds < 0 || microseconds < 0 {
        return Err(Invalid);
    }
    let ns = (seconds as u64).saturating_mul(1_000_000_000);
    Ok(Some(ns.saturating_add((microseconds as u64).saturating_mul(1000))))
}
