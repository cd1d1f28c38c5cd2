//! Time for the adaptive wait. Not for protocol decisions.

/// `ns` nanoseconds for a system call.
#[inline]
pub fn span(ns: u64) -> libc::timespec {
    libc::timespec { tv_sec: (ns / 1_000_000_000) as i64, tv_nsec: (ns % 1_000_000_000) as i64 }
}

/// A number that grows with time in no unit, for the order of things of this host: the processor's
/// time-stamp counter where there is one (about 10 ns). Cores agree on it as far as the kernel's own
/// clock relies on them (constant_tsc, nonstop_tsc).
#[inline]
pub fn stamp() -> u64 {
    // SAFETY: every x86-64 has the instruction.
    #[cfg(target_arch = "x86_64")]
    return unsafe { core::arch::x86_64::_rdtsc() };
    #[cfg(not(target_arch = "x86_64"))]
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
