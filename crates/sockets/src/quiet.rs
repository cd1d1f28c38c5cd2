//! A process in which the library must keep still: for good under a seccomp filter, which may kill for
//! calls that the program itself never makes; for a moment where the kernel wants a process of one
//! thread (unshare(2), setns(2)); for good where it takes a number of ours; and on TCP for good beside io_uring and
//! modules whose calls it does not see, and where the program may map only so much.

use core::ffi::{c_char, c_int, c_long, CStr};
use core::sync::atomic::{AtomicU16, Ordering::*};

use shunt_os::{handles, lookups, memory};
use shunt_stats::Reason;

use crate::pool::{self, Mode};
use crate::wait::epoll;
use crate::{attach, inherit, process, service, uring};

/// How long streams are given to be on TCP, in ns.
const SETTLE_NS_MAX: u64 = 100_000_000;

/// Why no stream of this process goes to a ring: a reason's number plus one.
static KEEPS_TO_TCP: AtomicU16 = AtomicU16::new(0);

/// Why no stream of this process goes to a ring any more, if none does.
pub fn keeps_to_tcp() -> Option<Reason> {
    match KEEPS_TO_TCP.load(Relaxed) {
        0 => None,
        number => Reason::from_number(number - 1),
    }
}

fn keep_to_tcp(reason: Reason) {
    KEEPS_TO_TCP.store(reason as u16 + 1, SeqCst);
    process::count(reason);
}

/// From now on every call is the kernel's.
fn cease(reason: Reason) {
    let errno = shunt_os::errno();
    keep_to_tcp(reason);
    let alone = pool::chosen(|it| it.mode() != Mode::Free && inherit::is_sole_holder(it));
    keep_still(reason);
    // What a killed writer has left in a ring nobody is there to take from now on.
    alone.into_iter().for_each(|index| attach::reset_if_stranded(pool::get(index)));
    process::set_enabled(false);
    shunt_os::set_errno(errno);
}

/// Around a call that puts a seccomp filter on this thread or process; `genuine` returns -1 if it
/// failed. Afterwards every call is the kernel's.
pub fn filter(genuine: impl FnOnce() -> isize) -> isize {
    if !process::enabled() || process::in_vfork_child() {
        return genuine();
    }
    cease(Reason::Seccomp);
    let result = genuine();
    if result < 0 {
        KEEPS_TO_TCP.store(0, SeqCst);
        process::set_enabled(true);
    }
    result
}

/// Around a call that the kernel refuses to a process with several threads, or that changes what
/// addresses mean: streams made before stay on TCP.
pub fn alone(genuine: impl Fn() -> isize) -> isize {
    if !process::enabled() || process::in_vfork_child() {
        return genuine();
    }
    let errno = shunt_os::errno();
    keep_still(Reason::Namespaces);
    shunt_os::set_errno(errno);
    let mut result = genuine();
    // A thread that was waited for is still counted for a moment.
    for _ in 0..100 {
        let failed = result < 0 && shunt_os::errno() == libc::EINVAL;
        if !failed || !service::has_just_stopped() {
            break;
        }
        shunt_os::raw::nanosleep(100_000);
        shunt_os::set_errno(errno);
        result = genuine();
    }
    result
}

/// Around a call that gives a thread of the process descriptors of its own: a number is not the same
/// socket to all of them any more, and our own thread's copies would keep connections open. Afterwards
/// every call is the kernel's.
pub fn split(genuine: impl FnOnce() -> isize) -> isize {
    if !process::enabled() || process::in_vfork_child() {
        return genuine();
    }
    cease(Reason::SplitDescriptors);
    genuine()
}

/// Around a call that gives a number of ours to a descriptor of the program's. Afterwards every call is the
/// kernel's.
pub fn give(number: c_int, genuine: impl FnOnce() -> isize) -> isize {
    cease(Reason::TookOurNumber);
    handles::give(number);
    genuine()
}

/// All memory that is mapped from now on stays resident, and rings are large: links that exist do.
pub fn saw_locked_memory() {
    if keeps_to_tcp().is_none() && !process::in_vfork_child() {
        keep_to_tcp(Reason::LockedMemory);
    }
}

/// The program has an io_uring by which bytes may pass by us on any descriptor.
pub fn saw_io_uring() {
    if keeps_to_tcp() != Some(Reason::IoUring) && !process::in_vfork_child() {
        keep_to_tcp(Reason::IoUring);
        pool::chosen(|it| it.mode() == Mode::Inherited).into_iter().for_each(inherit::touch);
        attach::leave_all(&pool::chosen(|it| it.mode() != Mode::Inherited), Reason::IoUring);
    }
}

/// Before a stream comes to a ring, in the service thread: looks for an io_uring that is not looked at, and for a limit
/// of addresses.
pub fn look_around() -> Option<Reason> {
    if keeps_to_tcp().is_none() {
        if uring::some_is_unseen() {
            saw_io_uring();
        } else if memory::addresses_are_limited() {
            keep_to_tcp(Reason::LimitedAddresses);
        }
    }
    keeps_to_tcp()
}

/// Before dlopen(3). A module that is bound to the C library past us, or a program that asks the C library
/// itself for functions, is to find ours there.
///
/// # Safety
/// `file` is null or NUL-terminated.
pub unsafe fn opening(file: *const c_char, flags: c_int) {
    let past_us = flags & libc::RTLD_DEEPBIND != 0;
    // SAFETY: by the caller's word.
    if (past_us || unsafe { is_the_c_library(file) }) && !lookups::lead_here() {
        saw_other_calls();
    }
}

/// Before dlmopen(3): a module in a namespace of its own comes with a C library of its own.
///
/// # Safety
/// As [`opening`].
pub unsafe fn opening_in(namespace: c_long, file: *const c_char, flags: c_int) {
    match namespace {
        // SAFETY: by the caller's word.
        libc::LM_ID_BASE => unsafe { opening(file, flags) },
        _ => saw_other_calls(),
    }
}

unsafe fn is_the_c_library(file: *const c_char) -> bool {
    if file.is_null() {
        return false;
    }
    // SAFETY: by the caller's word.
    let file = unsafe { CStr::from_ptr(file) }.to_bytes();
    file.rsplit(|byte| *byte == b'/').next() == Some(b"libc.so.6")
}

/// From now on there are calls in this process that we do not see.
fn saw_other_calls() {
    if keeps_to_tcp() != Some(Reason::OtherCalls) && !process::in_vfork_child() {
        keep_to_tcp(Reason::OtherCalls);
        keep_still(Reason::OtherCalls);
    }
}

/// Takes every stream to TCP and ends the service thread.
fn keep_still(reason: Reason) {
    pool::chosen(|it| it.mode() == Mode::Inherited).into_iter().for_each(inherit::touch);
    let streams = pool::chosen(|it| it.mode() != Mode::Inherited);
    attach::leave_all(&streams, reason);
    attach::settle_before_end();
    attach::wait_until(SETTLE_NS_MAX, || {
        streams.iter().all(|index| pool::get(*index).mode() != Mode::Attached)
    });
    // Nobody is there to answer children.
    streams.iter().for_each(|index| inherit::announce_on_tcp(pool::get(*index)));
    epoll::announce_all();
    service::stop();
}
