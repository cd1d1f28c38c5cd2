//! Bytes in and out.

use core::ffi::{c_int, c_uint, c_void};

use libc::{
    iovec, mmsghdr, msghdr, off64_t, off_t, size_t, sockaddr, socklen_t, ssize_t, timespec,
};
use shunt_os::real;
use shunt_sockets::calls::{file, io as calls, messages, several, splice as calls_splice};
use shunt_sockets::Outcome;

use crate::boundary::{boundary, passes, usual};

#[no_mangle]
pub unsafe extern "C" fn read(fd: c_int, buffer: *mut c_void, len: size_t) -> ssize_t {
    match usual(|| calls::receive_at_once(fd, buffer, len, 0)) {
        Some(answer) => answer,
        None => unsafe { read_otherwise(fd, buffer, len) },
    }
}

#[inline(never)]
unsafe fn read_otherwise(fd: c_int, buffer: *mut c_void, len: size_t) -> ssize_t {
    let genuine = || unsafe { real::read(fd, buffer, len) };
    if passes(|| calls::receive_is_kernels(fd)) {
        return genuine();
    }
    boundary(|| calls::read(fd, &calls::single(buffer, len), genuine), genuine)
}

#[no_mangle]
pub unsafe extern "C" fn __read(fd: c_int, buffer: *mut c_void, len: size_t) -> ssize_t {
    unsafe { read(fd, buffer, len) }
}

#[no_mangle]
pub unsafe extern "C" fn __read_chk(
    fd: c_int,
    buffer: *mut c_void,
    len: size_t,
    room: size_t,
) -> ssize_t {
    check(len, room);
    unsafe { read(fd, buffer, len) }
}

#[no_mangle]
pub unsafe extern "C" fn write(fd: c_int, buffer: *const c_void, len: size_t) -> ssize_t {
    match usual(|| calls::send_at_once(fd, buffer, len, 0)) {
        Some(answer) => answer,
        None => unsafe { write_otherwise(fd, buffer, len) },
    }
}

#[inline(never)]
unsafe fn write_otherwise(fd: c_int, buffer: *const c_void, len: size_t) -> ssize_t {
    let genuine = || unsafe { real::write(fd, buffer, len) };
    if passes(|| calls::send_is_kernels(fd)) {
        return genuine();
    }
    boundary(|| calls::write(fd, &calls::single(buffer, len), genuine), genuine)
}

#[no_mangle]
pub unsafe extern "C" fn __write(fd: c_int, buffer: *const c_void, len: size_t) -> ssize_t {
    unsafe { write(fd, buffer, len) }
}

#[no_mangle]
pub unsafe extern "C" fn readv(fd: c_int, vector: *const iovec, count: c_int) -> ssize_t {
    let genuine = || unsafe { real::readv(fd, vector, count) };
    let parts_max = count.max(0) as usize;
    if passes(|| calls::receive_is_kernels(fd) || !calls::may_look(fd, vector, parts_max)) {
        return genuine();
    }
    let parts = || unsafe { calls::vector(vector, parts_max) };
    boundary(|| calls::read(fd, parts(), genuine), genuine)
}

#[no_mangle]
pub unsafe extern "C" fn writev(fd: c_int, vector: *const iovec, count: c_int) -> ssize_t {
    let genuine = || unsafe { real::writev(fd, vector, count) };
    let parts_max = count.max(0) as usize;
    if passes(|| calls::send_is_kernels(fd) || !calls::may_look(fd, vector, parts_max)) {
        return genuine();
    }
    let parts = || unsafe { calls::vector(vector, parts_max) };
    boundary(|| calls::write_parts(fd, parts(), genuine), genuine)
}

#[no_mangle]
pub unsafe extern "C" fn recv(
    fd: c_int,
    buffer: *mut c_void,
    len: size_t,
    flags: c_int,
) -> ssize_t {
    match usual(|| calls::receive_at_once(fd, buffer, len, flags)) {
        Some(answer) => answer,
        None => unsafe { recv_otherwise(fd, buffer, len, flags) },
    }
}

#[inline(never)]
unsafe fn recv_otherwise(fd: c_int, buffer: *mut c_void, len: size_t, flags: c_int) -> ssize_t {
    let genuine = || unsafe { real::recv(fd, buffer, len, flags) };
    if passes(|| calls::receive_is_kernels(fd)) {
        return genuine();
    }
    boundary(|| calls::receive(fd, &calls::single(buffer, len), flags, genuine), genuine)
}

#[no_mangle]
pub unsafe extern "C" fn __recv_chk(
    fd: c_int,
    buffer: *mut c_void,
    len: size_t,
    room: size_t,
    flags: c_int,
) -> ssize_t {
    check(len, room);
    unsafe { recv(fd, buffer, len, flags) }
}

#[no_mangle]
pub unsafe extern "C" fn recvfrom(
    fd: c_int,
    buffer: *mut c_void,
    len: size_t,
    flags: c_int,
    address: *mut sockaddr,
    address_len: *mut socklen_t,
) -> ssize_t {
    match usual(|| calls::receive_at_once(fd, buffer, len, flags)) {
        Some(count @ 0..) if !address.is_null() => {
            let received = || Outcome::Handled(count);
            boundary(|| unsafe { messages::no_address(address_len, received()) }, || count)
        }
        Some(answer) => answer,
        None => unsafe { recvfrom_otherwise(fd, buffer, len, flags, address, address_len) },
    }
}

#[inline(never)]
unsafe fn recvfrom_otherwise(
    fd: c_int,
    buffer: *mut c_void,
    len: size_t,
    flags: c_int,
    address: *mut sockaddr,
    address_len: *mut socklen_t,
) -> ssize_t {
    let genuine = || unsafe { real::recvfrom(fd, buffer, len, flags, address, address_len) };
    if passes(|| calls::receive_is_kernels(fd)) {
        return genuine();
    }
    let ours = || {
        let outcome = calls::receive(fd, &calls::single(buffer, len), flags, genuine);
        if matches!(outcome, Outcome::Handled(_)) && !address.is_null() {
            return unsafe { messages::no_address(address_len, outcome) };
        }
        outcome
    };
    boundary(ours, genuine)
}

#[no_mangle]
pub unsafe extern "C" fn __recvfrom_chk(
    fd: c_int,
    buffer: *mut c_void,
    len: size_t,
    room: size_t,
    flags: c_int,
    address: *mut sockaddr,
    address_len: *mut socklen_t,
) -> ssize_t {
    check(len, room);
    unsafe { recvfrom(fd, buffer, len, flags, address, address_len) }
}

macro_rules! recvmsgs {
    ($($name:ident),*) => { $(
        #[no_mangle]
        pub unsafe extern "C" fn $name(fd: c_int, message: *mut msghdr, flags: c_int) -> ssize_t {
            let genuine = |message, flags| unsafe { real::$name(fd, message, flags) };
            boundary(
                || unsafe { messages::receive_message(fd, message, flags, genuine) },
                || genuine(message, flags),
            )
        }
    )* };
}
recvmsgs!(recvmsg);
#[cfg(target_arch = "x86")]
recvmsgs!(__recvmsg64);

macro_rules! recvmmsgs {
    ($($name:ident, $one:ident, $span:ty;)*) => { $(
        #[no_mangle]
        pub unsafe extern "C" fn $name(
            fd: c_int,
            messages: *mut mmsghdr,
            count: c_uint,
            flags: c_int,
            timeout: *mut $span,
        ) -> c_int {
            let genuine = || unsafe { real::$name(fd, messages, count, flags, timeout) as isize };
            let one = |message, flags| unsafe { real::$one(fd, message, flags) };
            boundary(
                || unsafe {
                    let all = (messages, count);
                    several::receive_messages(fd, all, flags, timeout, genuine, one)
                },
                genuine,
            ) as c_int
        }
    )* };
}
recvmmsgs! {
    recvmmsg, recvmsg, timespec;
}
#[cfg(target_arch = "x86")]
recvmmsgs! {
    __recvmmsg64, __recvmsg64, shunt_os::clock::Timespec64;
}

#[no_mangle]
pub unsafe extern "C" fn send(
    fd: c_int,
    buffer: *const c_void,
    len: size_t,
    flags: c_int,
) -> ssize_t {
    match usual(|| calls::send_at_once(fd, buffer, len, flags)) {
        Some(answer) => answer,
        None => unsafe { send_otherwise(fd, buffer, len, flags) },
    }
}

#[inline(never)]
unsafe fn send_otherwise(fd: c_int, buffer: *const c_void, len: size_t, flags: c_int) -> ssize_t {
    let genuine = || unsafe { real::send(fd, buffer, len, flags) };
    if passes(|| calls::send_is_kernels(fd)) {
        return genuine();
    }
    boundary(|| calls::send(fd, &calls::single(buffer, len), flags, genuine), genuine)
}

#[no_mangle]
pub unsafe extern "C" fn __send(
    fd: c_int,
    buffer: *const c_void,
    len: size_t,
    flags: c_int,
) -> ssize_t {
    unsafe { send(fd, buffer, len, flags) }
}

#[no_mangle]
pub unsafe extern "C" fn sendto(
    fd: c_int,
    buffer: *const c_void,
    len: size_t,
    flags: c_int,
    address: *const sockaddr,
    address_len: socklen_t,
) -> ssize_t {
    if address.is_null() || calls::may_be_address(address.cast(), address_len) {
        if let Some(answer) = usual(|| calls::send_at_once(fd, buffer, len, flags)) {
            return answer;
        }
    }
    unsafe { sendto_otherwise(fd, buffer, len, flags, address, address_len) }
}

#[inline(never)]
unsafe fn sendto_otherwise(
    fd: c_int,
    buffer: *const c_void,
    len: size_t,
    flags: c_int,
    address: *const sockaddr,
    address_len: socklen_t,
) -> ssize_t {
    let genuine = || unsafe { real::sendto(fd, buffer, len, flags, address, address_len) };
    if passes(|| calls::send_is_kernels(fd)) {
        return genuine();
    }
    let buffer = calls::single(buffer, len);
    if address.is_null() {
        return boundary(|| calls::send(fd, &buffer, flags, genuine), genuine);
    }
    let address = (address.cast(), address_len);
    boundary(|| calls::send_to(fd, &buffer, flags, address, genuine), genuine)
}

#[no_mangle]
pub unsafe extern "C" fn sendmsg(fd: c_int, message: *const msghdr, flags: c_int) -> ssize_t {
    boundary(
        || unsafe { messages::send_message(fd, message, flags) },
        || unsafe { real::sendmsg(fd, message, flags) },
    )
}

/// glibc's own is another name of the same function, as are all that have no time among their arguments.
#[cfg(target_arch = "x86")]
#[no_mangle]
pub unsafe extern "C" fn __sendmsg64(fd: c_int, message: *const msghdr, flags: c_int) -> ssize_t {
    unsafe { sendmsg(fd, message, flags) }
}

#[cfg(target_arch = "x86")]
#[no_mangle]
pub unsafe extern "C" fn __sendmmsg64(
    fd: c_int,
    messages: *mut mmsghdr,
    count: c_uint,
    flags: c_int,
) -> c_int {
    unsafe { sendmmsg(fd, messages, count, flags) }
}

#[no_mangle]
pub unsafe extern "C" fn sendmmsg(
    fd: c_int,
    messages: *mut mmsghdr,
    count: c_uint,
    flags: c_int,
) -> c_int {
    boundary(
        || unsafe { several::send_messages(fd, messages, count, flags) },
        || unsafe { real::sendmmsg(fd, messages, count, flags) as isize },
    ) as c_int
}

macro_rules! at_an_offset {
    ($($name:ident, $ours:ident, $is_kernels:ident, $offset:ty;)*) => { $(
        /// With offset -1 as `readv` and `writev` (preadv2(2)); with another, a stream has no such place.
        #[no_mangle]
        pub unsafe extern "C" fn $name(
            fd: c_int,
            vector: *const iovec,
            count: c_int,
            offset: $offset,
            flags: c_int,
        ) -> ssize_t {
            let genuine = || unsafe { real::$name(fd, vector, count, offset, flags) };
            let parts_max = count.max(0) as usize;
            let is_kernels =
                || calls::$is_kernels(fd) || !calls::may_look(fd, vector, parts_max);
            if offset != -1 || passes(is_kernels) {
                return genuine();
            }
            let parts = || unsafe { calls::vector(vector, parts_max) };
            boundary(|| calls::$ours(fd, parts(), flags, genuine), genuine)
        }
    )* };
}
at_an_offset! {
    preadv2, read_now, receive_is_kernels, off_t;
    preadv64v2, read_now, receive_is_kernels, off64_t;
    pwritev2, write_now, send_is_kernels, off_t;
    pwritev64v2, write_now, send_is_kernels, off64_t;
}

macro_rules! sendfiles {
    ($($name:ident, $offset:ty;)*) => { $(
        #[no_mangle]
        pub unsafe extern "C" fn $name(
            out: c_int,
            input: c_int,
            offset: *mut $offset,
            count: size_t,
        ) -> ssize_t {
            let genuine = |out| unsafe { real::$name(out, input, offset, count) };
            let ours = || unsafe { file::send_file(out, input, offset, count, genuine) };
            boundary(ours, || genuine(out))
        }
    )* };
}
sendfiles! {
    sendfile, off_t;
    sendfile64, off64_t;
}

#[no_mangle]
pub unsafe extern "C" fn eventfd_write(fd: c_int, value: u64) -> c_int {
    let written = unsafe { write(fd, (&raw const value).cast(), 8) };
    if written == 8 {
        0
    } else {
        -1
    }
}

#[no_mangle]
pub unsafe extern "C" fn splice(
    input: c_int,
    input_offset: *mut off64_t,
    out: c_int,
    out_offset: *mut off64_t,
    len: size_t,
    flags: c_uint,
) -> ssize_t {
    let genuine = |out| unsafe { real::splice(input, input_offset, out, out_offset, len, flags) };
    // Neither a stream nor a pipe has offsets: with one, the kernel refuses or no stream takes part.
    let offsets = !input_offset.is_null() || !out_offset.is_null();
    if len == 0 || offsets || flags & !SPLICE_FLAGS != 0 {
        return genuine(out);
    }
    boundary(|| calls_splice::splice(input, out, len, flags, genuine), || genuine(out))
}

/// Those that the kernel knows; of others it says EINVAL.
const SPLICE_FLAGS: c_uint =
    libc::SPLICE_F_MOVE | libc::SPLICE_F_NONBLOCK | libc::SPLICE_F_MORE | libc::SPLICE_F_GIFT;

/// What glibc's fortified functions do when the buffer is too small.
fn check(len: size_t, room: size_t) {
    extern "C" {
        fn __chk_fail() -> !;
    }
    if len > room {
        // SAFETY: glibc's own ending of the program.
        unsafe { __chk_fail() }
    }
}
