//! The `syscall` instruction with the results as [`Result`].

use crate::{Errno, Result};

/// Makes system call `number`.
///
/// # Safety
/// The arguments must be what the kernel expects of that call; pointers must be valid for it.
#[cfg(target_arch = "x86_64")]
#[inline]
pub unsafe fn syscall(number: libc::c_long, a: [usize; 6]) -> Result<usize> {
    let result: isize;
    // SAFETY: the kernel's calling convention: rcx and r11 are clobbered, memory may change.
    unsafe {
        core::arch::asm!(
            "syscall",
            inlateout("rax") number as isize => result,
            in("rdi") a[0], in("rsi") a[1], in("rdx") a[2],
            in("r10") a[3], in("r8") a[4], in("r9") a[5],
            lateout("rcx") _, lateout("r11") _,
            options(nostack)
        );
    }
    decode(result)
}

/// Makes system call `number`.
///
/// # Safety
/// The arguments must be what the kernel expects of that call; pointers must be valid for it.
#[cfg(target_arch = "aarch64")]
#[inline]
pub unsafe fn syscall(number: libc::c_long, a: [usize; 6]) -> Result<usize> {
    let result: isize;
    // SAFETY: the kernel's calling convention.
    unsafe {
        core::arch::asm!(
            "svc 0",
            in("x8") number,
            inlateout("x0") a[0] as isize => result,
            in("x1") a[1], in("x2") a[2], in("x3") a[3], in("x4") a[4], in("x5") a[5],
            options(nostack)
        );
    }
    decode(result)
}

/// Makes system call `number`.
///
/// # Safety
/// The arguments must be what the kernel expects of that call; pointers must be valid for it.
#[cfg(target_arch = "x86")]
#[inline]
pub unsafe fn syscall(number: libc::c_long, a: [usize; 6]) -> Result<usize> {
    // SAFETY: six words; the rest is the caller's promise.
    decode(unsafe { interrupt(number, a.as_ptr()) })
}

/// Six arguments take every register but the stack's, three of which the compiler keeps for itself.
#[cfg(target_arch = "x86")]
#[unsafe(naked)]
unsafe extern "C" fn interrupt(number: libc::c_long, arguments: *const usize) -> isize {
    core::arch::naked_asm!(
        ".cfi_startproc",
        "push ebx",
        ".cfi_adjust_cfa_offset 4",
        ".cfi_rel_offset ebx, 0",
        "push esi",
        ".cfi_adjust_cfa_offset 4",
        ".cfi_rel_offset esi, 0",
        "push edi",
        ".cfi_adjust_cfa_offset 4",
        ".cfi_rel_offset edi, 0",
        "push ebp",
        ".cfi_adjust_cfa_offset 4",
        ".cfi_rel_offset ebp, 0",
        "mov eax, [esp + 20]",
        "mov ebp, [esp + 24]",
        "mov ebx, [ebp]",
        "mov ecx, [ebp + 4]",
        "mov edx, [ebp + 8]",
        "mov esi, [ebp + 12]",
        "mov edi, [ebp + 16]",
        "mov ebp, [ebp + 20]",
        "int 0x80",
        "pop ebp",
        ".cfi_adjust_cfa_offset -4",
        ".cfi_restore ebp",
        "pop edi",
        ".cfi_adjust_cfa_offset -4",
        ".cfi_restore edi",
        "pop esi",
        ".cfi_adjust_cfa_offset -4",
        ".cfi_restore esi",
        "pop ebx",
        ".cfi_adjust_cfa_offset -4",
        ".cfi_restore ebx",
        "ret",
        ".cfi_endproc",
    )
}

/// Calls that have another number where a long has 32 bits: there, those of the plain names know
/// 32-bit files alone, or take their arguments in another way.
#[cfg(target_pointer_width = "64")]
pub mod number {
    pub use libc::{SYS_fstat as FSTAT, SYS_newfstatat as FSTATAT};
    pub use libc::{SYS_ftruncate as FTRUNCATE, SYS_mmap as MMAP};
    /// The bytes in which [`MMAP`] counts the offset.
    pub const MMAP_UNIT: u64 = 1;
}

#[cfg(target_arch = "x86")]
pub mod number {
    pub use libc::{SYS_fstat64 as FSTAT, SYS_fstatat64 as FSTATAT};
    pub use libc::{SYS_ftruncate64 as FTRUNCATE, SYS_mmap2 as MMAP};
    pub const MMAP_UNIT: u64 = 4096;
}

/// An offset in a file as the last two arguments of a call: where a register holds all of it, in the
/// first, and the second means nothing.
#[inline]
pub fn in_registers(offset: u64) -> [usize; 2] {
    [offset as usize, (offset >> 32) as usize]
}

#[inline]
fn decode(result: isize) -> Result<usize> {
    if (-4095..0).contains(&result) {
        Err(Errno(-result as i32))
    } else {
        Ok(result as usize)
    }
}

/// Shorthand for [`syscall`] with fewer than six arguments.
#[macro_export]
macro_rules! sys {
    ($number:expr $(, $arg:expr)*) => {{
        let given: &[usize] = &[$($arg as usize),*];
        let mut arguments = [0usize; 6];
        arguments[..given.len()].copy_from_slice(given);
        $crate::raw::syscall($number, arguments)
    }};
}

/// `geteuid`.
pub fn geteuid() -> u32 {
    // SAFETY: no arguments.
    unsafe { sys!(libc::SYS_geteuid) }.unwrap_or(0) as u32
}

/// `getpid`, asked of the kernel: in a vfork child it differs from what the parent recorded.
pub fn getpid() -> i32 {
    // SAFETY: no arguments.
    unsafe { sys!(libc::SYS_getpid) }.unwrap_or(0) as i32
}

/// `getppid`.
pub fn getppid() -> i32 {
    // SAFETY: no arguments.
    unsafe { sys!(libc::SYS_getppid) }.unwrap_or(0) as i32
}

/// Whether a process with this number runs: not so of one that has ended and was not waited for
/// (pidfd_open(2), since Linux 5.3; before, such a one counts).
pub fn runs(pid: i32) -> bool {
    // SAFETY: no pointers.
    let open = || unsafe { sys!(libc::SYS_pidfd_open, pid, 0) }.map(|fd| fd as i32);
    let has_ended = |fd| crate::handles::poll_now(fd, libc::POLLIN) & libc::POLLIN != 0;
    match crate::handles::for_a_moment(open, has_ended) {
        Ok(has_ended) => !has_ended,
        Err(error) if error.0 == libc::ESRCH => false,
        // SAFETY: signal 0 only asks.
        Err(_) => !unsafe { sys!(libc::SYS_kill, pid, 0) }.is_err_and(|e| e.0 == libc::ESRCH),
    }
}

/// Ends the process and all its threads (`exit_group`).
pub fn exit(status: i32) -> ! {
    loop {
        // SAFETY: nothing of the process is left afterwards.
        let _ = unsafe { sys!(libc::SYS_exit_group, status) };
    }
}

/// `gettid`.
pub fn gettid() -> i32 {
    // SAFETY: no arguments.
    unsafe { sys!(libc::SYS_gettid) }.unwrap_or(0) as i32
}

/// `sched_yield`.
#[inline]
pub fn sched_yield() {
    // SAFETY: no arguments.
    let _ = unsafe { sys!(libc::SYS_sched_yield) };
}

/// The soft limit of this process for `resource`, one of RLIMIT_*; RLIM64_INFINITY is none (prlimit(2)).
pub fn limit(resource: libc::__rlimit_resource_t) -> Result<u64> {
    let mut limit = libc::rlimit64 { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `limit` is valid for the call.
    unsafe { sys!(libc::SYS_prlimit64, 0, resource, 0, &raw mut limit)? };
    Ok(limit.rlim_cur)
}

/// Sleeps about `ns` nanoseconds; used only where another process must first do its part.
pub fn nanosleep(ns: u64) {
    let span = crate::clock::span(ns);
    // SAFETY: `span` is valid for the call.
    let _ = unsafe { sys!(libc::SYS_nanosleep, &raw const span, 0) };
}

/// sched_setattr(2).
#[repr(C)]
#[derive(Default)]
struct Scheduling {
    size: u32,
    policy: u32,
    flags: u64,
    nice: i32,
    priority: u32,
    runtime: u64,
    deadline: u64,
    period: u64,
}

/// Asks for turns of `ns` on the core for this thread, which is short: after a wake-up it runs sooner
/// among threads that compute, and no more in all. Since Linux 6.12; without effect before.
pub fn take_short_turns(ns: u64) {
    let mut scheduling = Scheduling::default();
    let bytes = size_of::<Scheduling>();
    // SAFETY: the struct is valid and as large as is said; 0 is this thread.
    if unsafe { sys!(libc::SYS_sched_getattr, 0, &raw mut scheduling, bytes, 0) }.is_err() {
        return;
    }
    if scheduling.policy == libc::SCHED_OTHER as u32 {
        scheduling.runtime = ns;
        // SAFETY: as above.
        let _ = unsafe { sys!(libc::SYS_sched_setattr, 0, &raw const scheduling, 0) };
    }
}

/// Whether the kernel is of that version or a later one, by uname(2).
pub fn kernel_is_at_least(major: u32, minor: u32) -> bool {
    // SAFETY: zero is a valid buffer, which the call fills in.
    let release = unsafe {
        let mut names: libc::utsname = core::mem::zeroed();
        if sys!(libc::SYS_uname, &raw mut names).is_err() {
            return false;
        }
        names.release
    };
    let mut numbers = release.split(|byte| !(*byte as u8).is_ascii_digit()).map(|digits| {
        digits
            .iter()
            .fold(0u32, |number, digit| number.wrapping_mul(10) + (*digit as u8 - b'0') as u32)
    });
    (numbers.next(), numbers.next()) >= (Some(major), Some(minor))
}

#[cfg(all(test, not(miri)))]
mod tests {
    #[test]
    fn versions_are_compared_by_number() {
        use super::kernel_is_at_least;
        assert!(kernel_is_at_least(2, 6) && kernel_is_at_least(4, 0));
        assert!(!kernel_is_at_least(999, 0));
    }
}
