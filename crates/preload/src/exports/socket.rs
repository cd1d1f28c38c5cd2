//! Sockets come into being and are set up.

use core::ffi::{c_int, c_void};

use libc::{sockaddr, socklen_t};
use shunt_os::real;
use shunt_sockets::calls::socket as calls;

use crate::boundary::{about, before, boundary, noted, with_numbers, with_numbers_at_start};

#[no_mangle]
pub unsafe extern "C" fn socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int {
    noted(with_numbers(|| unsafe { real::socket(domain, kind, protocol) }), |fd| {
        calls::created(fd, domain, kind, protocol);
    })
}

#[no_mangle]
pub unsafe extern "C" fn accept(fd: c_int, address: *mut sockaddr, len: *mut socklen_t) -> c_int {
    let genuine = || with_numbers_at_start(|| unsafe { real::accept(fd, address, len) as isize });
    let new = boundary(|| calls::accepting(fd, genuine), genuine);
    noted(new as c_int, |new| calls::accepted(fd, new, 0))
}

#[no_mangle]
pub unsafe extern "C" fn accept4(
    fd: c_int,
    address: *mut sockaddr,
    len: *mut socklen_t,
    flags: c_int,
) -> c_int {
    let accept = || unsafe { real::accept4(fd, address, len, flags) as isize };
    let genuine = || with_numbers_at_start(accept);
    let new = boundary(|| calls::accepting(fd, genuine), genuine);
    noted(new as c_int, |new| calls::accepted(fd, new, flags))
}

#[no_mangle]
pub unsafe extern "C" fn connect(fd: c_int, address: *const sockaddr, len: socklen_t) -> c_int {
    before(|| unsafe { calls::connecting(fd, address, len) });
    unsafe { real::connect(fd, address, len) }
}

#[no_mangle]
pub unsafe extern "C" fn __connect(fd: c_int, address: *const sockaddr, len: socklen_t) -> c_int {
    unsafe { connect(fd, address, len) }
}

#[no_mangle]
pub unsafe extern "C" fn shutdown(fd: c_int, how: c_int) -> c_int {
    let genuine = || about(fd, with_numbers, || unsafe { real::shutdown(fd, how) as isize });
    boundary(|| calls::shutdown(fd, how), genuine) as c_int
}

#[no_mangle]
pub unsafe extern "C" fn getpeername(
    fd: c_int,
    address: *mut sockaddr,
    len: *mut socklen_t,
) -> c_int {
    let genuine =
        || about(fd, with_numbers, || unsafe { real::getpeername(fd, address, len) as isize });
    boundary(|| calls::peer_asked(fd), genuine) as c_int
}

#[no_mangle]
pub unsafe extern "C" fn getsockopt(
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *mut c_void,
    len: *mut socklen_t,
) -> c_int {
    before(|| calls::option_asked(fd, level, name));
    let genuine = || unsafe { real::getsockopt(fd, level, name, value, len) };
    noted(about(fd, with_numbers, genuine), |_| unsafe {
        calls::option_told(fd, level, name, value, len);
    })
}

#[no_mangle]
pub unsafe extern "C" fn setsockopt(
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *const c_void,
    len: socklen_t,
) -> c_int {
    let genuine = || unsafe { real::setsockopt(fd, level, name, value, len) };
    noted(about(fd, with_numbers, genuine), |_| unsafe {
        calls::option_set(fd, level, name, value, len);
    })
}

#[cfg(target_arch = "x86")]
#[no_mangle]
pub unsafe extern "C" fn __getsockopt64(
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *mut c_void,
    len: *mut socklen_t,
) -> c_int {
    unsafe { getsockopt(fd, level, name, value, len) }
}

#[cfg(target_arch = "x86")]
#[no_mangle]
pub unsafe extern "C" fn __setsockopt64(
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *const c_void,
    len: socklen_t,
) -> c_int {
    unsafe { setsockopt(fd, level, name, value, len) }
}
