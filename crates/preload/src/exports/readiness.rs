//! poll, select and epoll.

use core::ffi::c_int;

use libc::{epoll_event, fd_set, nfds_t, pollfd, sigset_t, size_t, timespec, timeval};
use shunt_os::clock::Span;
#[cfg(target_arch = "x86")]
use shunt_os::clock::{Timespec64, Timeval64};
use shunt_os::real;
use shunt_sockets::calls::wait as calls;
use shunt_sockets::calls::wait::Limits;
use shunt_sockets::Outcome;

use crate::boundary::{about, boundary, noted, with_numbers};

#[no_mangle]
pub unsafe extern "C" fn poll(entries: *mut pollfd, count: nfds_t, timeout_ms: c_int) -> c_int {
    let genuine = || unsafe { real::poll(entries, count, timeout_ms) as isize };
    let timeout = calls::of_milliseconds(timeout_ms);
    boundary(
        || unsafe { calls::poll(entries, count, timeout, core::ptr::null(), genuine) },
        genuine,
    ) as c_int
}

#[no_mangle]
pub unsafe extern "C" fn __poll(entries: *mut pollfd, count: nfds_t, timeout_ms: c_int) -> c_int {
    unsafe { poll(entries, count, timeout_ms) }
}

#[no_mangle]
pub unsafe extern "C" fn __poll_chk(
    entries: *mut pollfd,
    count: nfds_t,
    timeout_ms: c_int,
    _room: size_t,
) -> c_int {
    unsafe { poll(entries, count, timeout_ms) }
}

macro_rules! ppolls {
    ($($name:ident, $span:ty;)*) => { $(
        #[no_mangle]
        pub unsafe extern "C" fn $name(
            entries: *mut pollfd,
            count: nfds_t,
            timeout: *const $span,
            mask: *const sigset_t,
        ) -> c_int {
            let genuine = || unsafe { real::$name(entries, count, timeout, mask) as isize };
            let ours = || match unsafe { calls::of_timespec(timeout) } {
                Ok(limit) => unsafe { calls::poll(entries, count, limit, mask, genuine) },
                Err(_) => Outcome::PassThrough,
            };
            boundary(ours, genuine) as c_int
        }
    )* };
}
ppolls! {
    ppoll, timespec;
}
#[cfg(target_arch = "x86")]
ppolls! {
    __ppoll64, Timespec64;
}

#[no_mangle]
pub unsafe extern "C" fn __ppoll_chk(
    entries: *mut pollfd,
    count: nfds_t,
    timeout: *const timespec,
    mask: *const sigset_t,
    _room: size_t,
) -> c_int {
    unsafe { ppoll(entries, count, timeout, mask) }
}

macro_rules! selects {
    ($($name:ident, $span:ty;)*) => { $(
        #[no_mangle]
        pub unsafe extern "C" fn $name(
            count: c_int,
            read: *mut fd_set,
            write: *mut fd_set,
            except: *mut fd_set,
            timeout: *mut $span,
        ) -> c_int {
            let began = shunt_os::clock::now_ns();
            let count = unsafe { calls::bounded(count, [read, write, except]) };
            let ours = || {
                let Ok(limit) = (unsafe { calls::of_timeval(timeout) }) else {
                    return Outcome::PassThrough;
                };
                let sets = [read, write, except];
                let answer = unsafe { calls::select(count, sets, limit, core::ptr::null()) };
                let Some(outcome) = answer else { return Outcome::PassThrough };
                if let (Some(limit), false) = (limit, timeout.is_null()) {
                    let left = limit.saturating_sub(shunt_os::clock::now_ns() - began);
                    let (seconds, rest) = (left / 1_000_000_000, left % 1_000_000_000);
                    unsafe { *timeout = <$span>::of(seconds, rest / 1000) };
                }
                outcome
            };
            let genuine = || unsafe { real::$name(count, read, write, except, timeout) as isize };
            boundary(ours, genuine) as c_int
        }
    )* };
}
selects! {
    select, timeval;
}
#[cfg(target_arch = "x86")]
selects! {
    __select64, Timeval64;
}

#[no_mangle]
pub unsafe extern "C" fn __select(
    count: c_int,
    read: *mut fd_set,
    write: *mut fd_set,
    except: *mut fd_set,
    timeout: *mut timeval,
) -> c_int {
    unsafe { select(count, read, write, except, timeout) }
}

macro_rules! pselects {
    ($($name:ident, $span:ty;)*) => { $(
        #[no_mangle]
        pub unsafe extern "C" fn $name(
            count: c_int,
            read: *mut fd_set,
            write: *mut fd_set,
            except: *mut fd_set,
            timeout: *const $span,
            mask: *const sigset_t,
        ) -> c_int {
            let count = unsafe { calls::bounded(count, [read, write, except]) };
            let ours = || match unsafe { calls::of_timespec(timeout) } {
                Ok(limit) => unsafe { calls::select(count, [read, write, except], limit, mask) }
                    .unwrap_or(Outcome::PassThrough),
                Err(_) => Outcome::PassThrough,
            };
            let genuine =
                || unsafe { real::$name(count, read, write, except, timeout, mask) as isize };
            boundary(ours, genuine) as c_int
        }
    )* };
}
pselects! {
    pselect, timespec;
}
#[cfg(target_arch = "x86")]
pselects! {
    __pselect64, Timespec64;
}

#[no_mangle]
pub unsafe extern "C" fn epoll_create(size: c_int) -> c_int {
    noted(with_numbers(|| unsafe { real::epoll_create(size) }), calls::opened)
}

#[no_mangle]
pub unsafe extern "C" fn epoll_create1(flags: c_int) -> c_int {
    noted(with_numbers(|| unsafe { real::epoll_create1(flags) }), calls::opened)
}

#[no_mangle]
pub unsafe extern "C" fn epoll_ctl(
    set: c_int,
    operation: c_int,
    fd: c_int,
    event: *mut epoll_event,
) -> c_int {
    boundary(
        || unsafe { calls::control(set, operation, fd, event) },
        || {
            about(set, with_numbers, || {
                about(fd, with_numbers, || unsafe {
                    real::epoll_ctl(set, operation, fd, event) as isize
                })
            })
        },
    ) as c_int
}

#[no_mangle]
pub unsafe extern "C" fn epoll_wait(
    set: c_int,
    events: *mut epoll_event,
    count: c_int,
    timeout_ms: c_int,
) -> c_int {
    let limits = Limits { timeout: calls::of_milliseconds(timeout_ms), mask: core::ptr::null() };
    boundary(
        || unsafe { calls::wait(set, events, count, limits) },
        || unsafe { real::epoll_wait(set, events, count, timeout_ms) as isize },
    ) as c_int
}

#[no_mangle]
pub unsafe extern "C" fn epoll_pwait(
    set: c_int,
    events: *mut epoll_event,
    count: c_int,
    timeout_ms: c_int,
    mask: *const sigset_t,
) -> c_int {
    let limits = Limits { timeout: calls::of_milliseconds(timeout_ms), mask };
    boundary(
        || unsafe { calls::wait(set, events, count, limits) },
        || unsafe { real::epoll_pwait(set, events, count, timeout_ms, mask) as isize },
    ) as c_int
}

macro_rules! epoll_pwait2s {
    ($($name:ident, $span:ty;)*) => { $(
        #[no_mangle]
        pub unsafe extern "C" fn $name(
            set: c_int,
            events: *mut epoll_event,
            count: c_int,
            timeout: *const $span,
            mask: *const sigset_t,
        ) -> c_int {
            let ours = || match unsafe { calls::of_timespec(timeout) } {
                Ok(limit) => {
                    unsafe { calls::wait(set, events, count, Limits { timeout: limit, mask }) }
                }
                Err(_) => Outcome::PassThrough,
            };
            let genuine = || unsafe { real::$name(set, events, count, timeout, mask) as isize };
            boundary(ours, genuine) as c_int
        }
    )* };
}
epoll_pwait2s! {
    epoll_pwait2, timespec;
}
#[cfg(target_arch = "x86")]
epoll_pwait2s! {
    __epoll_pwait2_time64, Timespec64;
}
