//! Time for the adaptive wait. Not for protocol decisions.

/// `ns` nanoseconds for a system call; where its seconds have 32 bits, 68 years at most.
#[inline]
pub fn span(ns: u64) -> libc::timespec {
    libc::timespec {
        tv_sec: libc::time_t::try_from(ns / 1_000_000_000).unwrap_or(libc::time_t::MAX),
        tv_nsec: (ns % 1_000_000_000) as libc::c_long,
    }
}

/// A number that grows with time in no unit, for the order of things of this host: the processor's
/// time-stamp counter where there is one (about 10 ns). Cores agree on it as far as the kernel's own
/// clock relies on them (constant_tsc, nonstop_tsc).
#[inline]
pub fn stamp() -> u64 {
    // SAFETY: every x86-64 has the instruction, and so has every processor that i686 code runs on.
    #[cfg(target_arch = "x86_64")]
    return unsafe { core::arch::x86_64::_rdtsc() };
    // SAFETY: as above. The peer may be a program of 64 bits: the numbers must be of one kind.
    #[cfg(target_arch = "x86")]
    return unsafe { core::arch::x86::_rdtsc() };
    #[cfg(not(any(target_arch = "x86_64", target_arch = "x86")))]
    return now_ns();
}

/// Monotonic nanoseconds (vDSO, about 20 ns).
#[inline]
pub fn now_ns() -> u64 {
    let mut t = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `t` is a valid timespec.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut t) };
    t.tv_sec as u64 * 1_000_000_000 + t.tv_nsec as u64
}

/// How long a thread of this process has run, in nanoseconds (pthread_getcpuclockid(3)); `None` if it is gone.
pub fn cpu_ns(thread: i32) -> Option<u64> {
    // CPUCLOCK_PERTHREAD_MASK, CPUCLOCK_SCHED of Linux's posix-timers.h.
    const OF_THREAD: i32 = 4 | 2;
    let mut t = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `t` is a valid timespec.
    let result = unsafe { libc::clock_gettime(!thread << 3 | OF_THREAD, &mut t) };
    (result == 0).then(|| t.tv_sec as u64 * 1_000_000_000 + t.tv_nsec as u64)
}

/// A span of time as programs of either kind give it: seconds, and nanoseconds or microseconds.
pub trait Span: Copy {
    fn parts(self) -> (i64, i64);
    fn of(seconds: u64, rest: u64) -> Self;
}

macro_rules! spans {
    ($($name:ty, $seconds:ident, $rest:ident;)*) => { $(
        impl Span for $name {
            #[inline]
            fn parts(self) -> (i64, i64) {
                (self.$seconds as i64, self.$rest as i64)
            }

            #[inline]
            fn of(seconds: u64, rest: u64) -> $name {
                // SAFETY: integers, and padding.
                let mut span: $name = unsafe { core::mem::zeroed() };
                span.$seconds = seconds as _;
                span.$rest = rest as _;
                span
            }
        }
    )* };
}

spans! {
    libc::timespec, tv_sec, tv_nsec;
    libc::timeval, tv_sec, tv_usec;
}

/// The spans of programs of 32 bits that were built for times after 2038 (_TIME_BITS=64).
#[cfg(target_pointer_width = "32")]
mod span64 {
    use super::Span;

    #[repr(C)]
    #[derive(Clone, Copy)]
    pub struct Timespec64 {
        tv_sec: i64,
        tv_nsec: i32,
        pad: i32,
    }

    #[repr(C)]
    #[derive(Clone, Copy)]
    pub struct Timeval64 {
        tv_sec: i64,
        tv_usec: i64,
    }

    spans! {
        Timespec64, tv_sec, tv_nsec;
        Timeval64, tv_sec, tv_usec;
    }
}

#[cfg(target_pointer_width = "32")]
pub use span64::{Timespec64, Timeval64};
