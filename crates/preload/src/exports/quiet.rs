//! Calls after which, or during which, the library must keep still (`sockets::quiet`).

use core::ffi::{c_int, c_long};

use shunt_os::real;
use shunt_sockets::quiet;

/// Whether [`prctl`] does more than the kernel. By number its result is longer.
pub fn heeds(operation: c_int, a: usize) -> bool {
    let forbids_clock = operation == libc::PR_SET_TSC && a == libc::PR_TSC_SIGSEGV as usize;
    operation == libc::PR_SET_SECCOMP || forbids_clock
}

#[no_mangle]
pub unsafe extern "C" fn prctl(operation: c_int, a: usize, b: usize, c: usize, d: usize) -> c_int {
    let genuine = || unsafe { real::prctl(operation, a, b, c, d) };
    // The library reads the processor's clock by an instruction that may be forbidden then.
    match heeds(operation, a) {
        true => quiet::filter(|| genuine() as isize) as c_int,
        false => genuine(),
    }
}

#[cfg(target_arch = "x86")]
#[no_mangle]
pub unsafe extern "C" fn __prctl_time64(
    operation: c_int,
    a: usize,
    b: usize,
    c: usize,
    d: usize,
) -> c_int {
    unsafe { prctl(operation, a, b, c, d) }
}

/// seccomp(2), which glibc has by number only. Without a program it only asks what is known.
pub unsafe fn seccomp(operation: usize, flags: usize, program: usize) -> c_long {
    const STRICT: usize = 0;
    const FILTER: usize = 1;
    let genuine =
        || unsafe { real::syscall(libc::SYS_seccomp, operation, flags, program, 0, 0, 0) as isize };
    let filters = operation == STRICT || operation == FILTER && program != 0;
    if filters {
        quiet::filter(genuine) as c_long
    } else {
        genuine() as c_long
    }
}

#[no_mangle]
pub unsafe extern "C" fn unshare(flags: c_int) -> c_int {
    /// What the kernel unshares for one thread of several, and what no address depends on.
    const HARMLESS: c_int = libc::CLONE_FS
        | libc::CLONE_SYSVSEM
        | libc::CLONE_NEWNS
        | libc::CLONE_NEWUTS
        | libc::CLONE_NEWIPC
        | libc::CLONE_NEWPID
        | libc::CLONE_NEWCGROUP;
    let genuine = || unsafe { real::unshare(flags) };
    match flags & !HARMLESS {
        0 => genuine(),
        libc::CLONE_FILES => quiet::split(|| genuine() as isize) as c_int,
        _ => quiet::alone(|| genuine() as isize) as c_int,
    }
}

#[no_mangle]
pub unsafe extern "C" fn mlockall(flags: c_int) -> c_int {
    let result = unsafe { real::mlockall(flags) };
    let kept = libc::MCL_FUTURE | libc::MCL_ONFAULT;
    if result == 0 && flags & kept == libc::MCL_FUTURE {
        quiet::saw_locked_memory();
    }
    result
}

#[no_mangle]
pub unsafe extern "C" fn setns(fd: c_int, kind: c_int) -> c_int {
    quiet::alone(|| unsafe { real::setns(fd, kind) as isize }) as c_int
}
