//! The only place that turns an [`Outcome`] into a return value and `errno`.

use shunt_os::{errno, handles, set_errno};
use shunt_sockets::calls::descriptor;
use shunt_sockets::{process, Outcome};

/// Asks `ours`, and makes the genuine call if it is not ours to answer. `errno` is as the program
/// would find it after the kernel's answer.
#[inline(always)]
pub fn boundary(ours: impl Fn() -> Outcome, genuine: impl FnOnce() -> isize) -> isize {
    if !process::enabled() {
        return genuine();
    }
    let before = errno();
    loop {
        return match ours() {
            Outcome::Handled(value) => {
                set_errno(before);
                value
            }
            Outcome::Failed(number) => {
                set_errno(number);
                -1
            }
            Outcome::Genuine(value) => value,
            Outcome::PassThrough => {
                set_errno(before);
                genuine()
            }
            Outcome::Anew => {
                set_errno(before);
                continue;
            }
        };
    }
}

/// The short way of a call that a ring answers `at_once`: with bytes, or a negated error number; 0 is for
/// all others. What succeeds leaves `errno` alone.
#[inline(always)]
pub fn usual(at_once: impl FnOnce() -> isize) -> Option<isize> {
    if !process::enabled() {
        return None;
    }
    match at_once() {
        0 => None,
        error @ ..0 => {
            set_errno(-error as i32);
            Some(-1)
        }
        count => Some(count),
    }
}

/// Whether a call is the kernel's without more ado: because `is_kernels` says so, or as all are where the
/// library does nothing.
#[inline(always)]
pub fn passes(is_kernels: impl FnOnce() -> bool) -> bool {
    !process::enabled() || is_kernels()
}

/// Before a call that gives up a descriptor's number, or is about one and may last.
#[inline(always)]
pub fn numbers_settled() {
    handles::await_numbers();
}

/// Makes a call that takes a number, with none of ours among the low ones.
#[inline(always)]
pub fn with_numbers<T>(call: impl FnOnce() -> T) -> T {
    handles::with_numbers(call)
}

/// As [`with_numbers`], of one that may last.
#[inline(always)]
pub fn with_numbers_for_long<T>(call: impl FnOnce() -> T) -> T {
    handles::with_numbers_for_long(call)
}

/// As [`with_numbers`], of one that takes its number at its start, and then may wait.
#[inline(always)]
pub fn with_numbers_at_start<T>(call: impl FnOnce() -> T) -> T {
    handles::with_numbers_at_start(call)
}

/// Makes a call about a descriptor. A number of which nothing is known may be nobody's: none of ours has it
/// meanwhile, by `keep_apart`, one of the two above.
#[inline(always)]
pub fn about<T, C: FnOnce() -> T>(fd: i32, keep_apart: impl FnOnce(C) -> T, call: C) -> T {
    if process::enabled() && descriptor::may_be_nobodys(fd) {
        keep_apart(call)
    } else {
        call()
    }
}

/// Makes a call about a descriptor, which is not open to the program if it is ours. Within [`with_numbers`].
#[inline(always)]
pub fn of_theirs(fd: i32, call: impl FnOnce() -> i32) -> i32 {
    if process::enabled() && handles::is_own_here(fd) {
        set_errno(libc::EBADF);
        return -1;
    }
    call()
}

/// Makes the genuine call and takes a note of its result.
#[inline(always)]
pub fn noted(result: i32, note: impl FnOnce(i32)) -> i32 {
    if process::enabled() && result >= 0 {
        let before = errno();
        note(result);
        set_errno(before);
    }
    result
}

/// Takes a note before the genuine call.
#[inline(always)]
pub fn before(note: impl FnOnce()) {
    if process::enabled() {
        let before = errno();
        note();
        set_errno(before);
    }
}
