//! Whether memory that the program names is there, since the kernel answers EFAULT where we would fault; and whether
//! it may have all the addresses there are.

use core::sync::atomic::{AtomicU8, Ordering::Relaxed};

use crate::{sys, Errno};

const PAGE: usize = 4096;

/// Whether all of `length` bytes can be read. Some 0.1 us a page: the kernel is asked for something
/// that it refuses, of which it reads 8 bytes first (rt_sigprocmask(2) with no such `how`).
pub fn is_readable<T>(pointer: *const T, length: usize) -> bool {
    let first = pointer as usize;
    let Some(end) = first.checked_add(length) else { return false };
    if first < PAGE && length > 0 {
        // To the kernel a set at 0 is none, and nothing else is mapped there (vm.mmap_min_addr).
        return false;
    }
    if is_under_valgrind() {
        return true;
    }
    let mut at = first;
    while at < end {
        // Aligned, it lies in one page.
        let word = at & !7;
        const NO_SUCH: i32 = -1;
        // SAFETY: the kernel looks at the address by itself, and changes nothing.
        let answer = unsafe { sys!(libc::SYS_rt_sigprocmask, NO_SUCH, word, 0, 8) };
        if answer == Err(Errno::FAULT) {
            return false;
        }
        at = (at / PAGE + 1) * PAGE;
    }
    true
}

/// Whether the program runs in Valgrind, which carries out the call below by itself, tells the user of its first
/// argument, and does not look at the address. A program there that passes what is not there faults.
fn is_under_valgrind() -> bool {
    static FOUND: AtomicU8 = AtomicU8::new(0);
    const NO: u8 = 1;
    const YES: u8 = 2;
    match FOUND.load(Relaxed) {
        0 => {
            let found = asked_valgrind();
            FOUND.store(if found { YES } else { NO }, Relaxed);
            found
        }
        found => found == YES,
    }
}

/// RUNNING_ON_VALGRIND (valgrind.h, "client requests"): instructions that change nothing, at which Valgrind answers.
#[cfg(target_arch = "x86_64")]
fn asked_valgrind() -> bool {
    let request = [RUNNING_ON_VALGRIND, 0, 0, 0, 0, 0];
    let answer: usize;
    // SAFETY: rotations of a register by 128 bits in all, and an exchange of one with itself.
    unsafe {
        core::arch::asm!(
            "rol rdi, 3", "rol rdi, 13", "rol rdi, 61", "rol rdi, 51", "xchg rbx, rbx",
            inout("rdx") 0usize => answer, in("rax") request.as_ptr(), options(nostack),
        );
    }
    answer != 0
}

/// As for x86-64.
#[cfg(target_arch = "x86")]
fn asked_valgrind() -> bool {
    let request = [RUNNING_ON_VALGRIND, 0, 0, 0, 0, 0];
    let answer: usize;
    // SAFETY: rotations of a register by 64 bits in all, and an exchange of one with itself.
    unsafe {
        core::arch::asm!(
            "rol edi, 3", "rol edi, 13", "rol edi, 29", "rol edi, 19", "xchg ebx, ebx",
            inout("edx") 0usize => answer, in("eax") request.as_ptr(), options(nostack),
        );
    }
    answer != 0
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "x86")))]
fn asked_valgrind() -> bool {
    false
}

#[cfg(any(target_arch = "x86_64", target_arch = "x86"))]
const RUNNING_ON_VALGRIND: usize = 0x1001;

/// As [`is_readable`]; what lies where callers have what they pass, on the stack above us, is not asked about.
#[inline]
pub fn is_there<T>(pointer: *const T, length: usize) -> bool {
    is_on_stack(pointer) || is_readable(pointer, length)
}

/// Whether it lies so.
#[inline(always)]
pub fn is_on_stack<T>(pointer: *const T) -> bool {
    const NEAR: usize = 16 * 1024;
    let here = 0u8;
    let frame = (&raw const here) as usize;
    (pointer as usize).wrapping_sub(frame) < NEAR
}

/// Whether this process may map only so much (RLIMIT_AS): what the library maps it could not.
pub fn addresses_are_limited() -> bool {
    crate::raw::limit(libc::RLIMIT_AS).is_ok_and(|bytes| bytes != libc::RLIM64_INFINITY)
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;

    #[test]
    fn what_a_caller_has_is_on_the_stack() {
        #[inline(never)]
        fn asked(pointer: *const u64) -> bool {
            is_on_stack(pointer)
        }
        static NOT_MINE: u64 = 1;
        let mine = 1u64;
        assert!(asked(&raw const mine));
        assert!(!asked(&raw const NOT_MINE) && is_there(&raw const NOT_MINE, 8));
    }

    #[test]
    fn memory_that_is_not_there_is_told() {
        let text = b"here";
        assert!(is_readable(text.as_ptr(), text.len()));
        assert!(is_readable(core::ptr::null::<u8>(), 0));
        assert!(!is_readable(core::ptr::null::<u8>(), 1));
        assert!(!is_readable(core::ptr::without_provenance::<u64>(64), 8));
        assert!(!is_readable(usize::MAX as *const u8, 1));
        let bytes = 2 * PAGE;
        // SAFETY: a mapping of our own, of which the second page is closed.
        unsafe {
            let none = core::ptr::null_mut();
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
            let base = libc::mmap(none, bytes, libc::PROT_READ, flags, -1, 0).cast::<u8>();
            assert_eq!(libc::mprotect(base.add(PAGE).cast(), PAGE, libc::PROT_NONE), 0);
            assert!(is_readable(base, PAGE));
            assert!(!is_readable(base, PAGE + 1));
            assert!(!is_readable(base.add(PAGE), 1));
            assert!(is_readable(base.add(PAGE - 1), 1));
            libc::munmap(base.cast(), bytes);
        }
    }
}
