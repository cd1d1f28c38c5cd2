//! Calls that take a descriptor's number and are otherwise the kernel's: they see the numbers as if
//! this library had none (`os/handles`, `Numbers`).

use core::ffi::{c_char, c_int, c_uint};

use libc::{mode_t, sigset_t};
use shunt_os::real;

use crate::boundary::{with_numbers, with_numbers_for_long};

macro_rules! take_a_number {
    ($($name:ident ( $($arg:ident : $ty:ty),* );)*) => { $(
        #[no_mangle]
        pub unsafe extern "C" fn $name($($arg: $ty),*) -> c_int {
            with_numbers(|| unsafe { real::$name($($arg),*) })
        }
    )* };
}
macro_rules! open_a_file {
    ($($name:ident ( $($arg:ident : $ty:ty),* );)*) => { $(
        #[no_mangle]
        pub unsafe extern "C" fn $name($($arg: $ty),*) -> c_int {
            with_numbers_for_long(|| unsafe { real::$name($($arg),*) })
        }
    )* };
}

// The mode of `open` and its relatives is a variadic argument in C: in the same register.
// An open of a FIFO may last for ever.
open_a_file! {
    open(path: *const c_char, flags: c_int, mode: mode_t);
    open64(path: *const c_char, flags: c_int, mode: mode_t);
    openat(folder: c_int, path: *const c_char, flags: c_int, mode: mode_t);
    openat64(folder: c_int, path: *const c_char, flags: c_int, mode: mode_t);
    __open_2(path: *const c_char, flags: c_int);
    __open64_2(path: *const c_char, flags: c_int);
    __openat_2(folder: c_int, path: *const c_char, flags: c_int);
    __openat64_2(folder: c_int, path: *const c_char, flags: c_int);
    creat(path: *const c_char, mode: mode_t);
    creat64(path: *const c_char, mode: mode_t);
    mkstemp(template: *mut c_char);
    mkstemp64(template: *mut c_char);
    mkostemp(template: *mut c_char, flags: c_int);
    mkostemp64(template: *mut c_char, flags: c_int);
}
take_a_number! {
    pipe(ends: *mut c_int);
    pipe2(ends: *mut c_int, flags: c_int);
    socketpair(domain: c_int, kind: c_int, protocol: c_int, ends: *mut c_int);
    eventfd(count: c_uint, flags: c_int);
    timerfd_create(clock: c_int, flags: c_int);
    signalfd(fd: c_int, mask: *const sigset_t, flags: c_int);
    memfd_create(name: *const c_char, flags: c_uint);
    inotify_init();
    inotify_init1(flags: c_int);
}
