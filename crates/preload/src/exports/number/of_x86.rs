//! Calls of 32-bit programs: several have a second form, for files or times of 64 bits, and the oldest
//! ones take their arguments in memory.

use core::ffi::{c_int, c_long, c_uint};

use shunt_sockets::receive::is_no_address;

use super::{has_time, mask_of_pselect6, takes_mask};
use crate::exports::{descriptor, io, readiness, socket};

const PSELECT6_TIME64: c_long = 413;
const PPOLL_TIME64: c_long = 414;
const RECVMMSG_TIME64: c_long = 417;

/// The stream's own place, as preadv2 takes an offset.
const ANY_PLACE: [usize; 2] = [usize::MAX; 2];

/// Whether it waits for descriptors of a list.
pub fn waits(number: c_long) -> bool {
    matches!(
        number,
        libc::SYS_select
            | libc::SYS__newselect
            | libc::SYS_pselect6
            | PSELECT6_TIME64
            | PPOLL_TIME64
    )
}

/// `None` for what is to go to the kernel as it is.
pub unsafe fn call(number: c_long, [a, b, c, d, e, f]: [usize; 6]) -> Option<c_long> {
    let fd = a as c_int;
    Some(unsafe {
        match number {
            libc::SYS_socketcall => return socketcall(a, b as _),
            libc::SYS_fcntl64 => descriptor::fcntl64(fd, b as c_int, c as _).into(),
            libc::SYS_recvmmsg => io::recvmmsg(fd, b as _, c as c_uint, d as c_int, e as _).into(),
            RECVMMSG_TIME64 => io::__recvmmsg64(fd, b as _, c as c_uint, d as c_int, e as _).into(),
            libc::SYS_sendfile => io::sendfile(fd, b as c_int, c as _, d) as c_long,
            libc::SYS_sendfile64 => io::sendfile64(fd, b as c_int, c as _, d) as c_long,
            libc::SYS_preadv2 if [d, e] == ANY_PLACE => {
                io::preadv2(fd, b as _, c as c_int, -1, f as c_int) as c_long
            }
            libc::SYS_pwritev2 if [d, e] == ANY_PLACE => {
                io::pwritev2(fd, b as _, c as c_int, -1, f as c_int) as c_long
            }
            libc::SYS_ppoll if has_time(c) && takes_mask(d, e) => {
                readiness::ppoll(a as _, b as _, c as _, d as _).into()
            }
            PPOLL_TIME64 => readiness::__ppoll64(a as _, b as _, c as _, d as _).into(),
            libc::SYS_select => {
                let [count, read, write, except, timeout] = arguments(a as _)?;
                readiness::select(count as c_int, read as _, write as _, except as _, timeout as _)
                    .into()
            }
            libc::SYS__newselect => readiness::select(fd, b as _, c as _, d as _, e as _).into(),
            libc::SYS_pselect6 if has_time(e) => {
                let mask = mask_of_pselect6(f)?;
                readiness::pselect(fd, b as _, c as _, d as _, e as _, mask).into()
            }
            PSELECT6_TIME64 => {
                let mask = mask_of_pselect6(f)?;
                readiness::__pselect64(fd, b as _, c as _, d as _, e as _, mask).into()
            }
            libc::SYS_epoll_pwait2 => {
                readiness::__epoll_pwait2_time64(fd, b as _, c as c_int, d as _, e as _).into()
            }
            _ => return None,
        }
    })
}

/// Arguments that lie in memory. `None`: it is none, as the kernel will say.
unsafe fn arguments<const COUNT: usize>(from: *const [usize; COUNT]) -> Option<[usize; COUNT]> {
    let readable = !is_no_address(from.cast_mut().cast());
    readable.then(|| unsafe { from.read_unaligned() })
}

/// socketcall(2): every call on sockets by one number, and its own among them (linux/net.h).
unsafe fn socketcall(call: usize, from: *const usize) -> Option<c_long> {
    Some(unsafe {
        match call {
            1 => {
                let [domain, kind, protocol] = arguments(from.cast())?;
                socket::socket(domain as c_int, kind as c_int, protocol as c_int).into()
            }
            3 => {
                let [fd, address, len] = arguments(from.cast())?;
                socket::connect(fd as c_int, address as _, len as c_uint).into()
            }
            5 => {
                let [fd, address, len] = arguments(from.cast())?;
                socket::accept(fd as c_int, address as _, len as _).into()
            }
            9 => {
                let [fd, buffer, len, flags] = arguments(from.cast())?;
                io::send(fd as c_int, buffer as _, len, flags as c_int) as c_long
            }
            10 => {
                let [fd, buffer, len, flags] = arguments(from.cast())?;
                io::recv(fd as c_int, buffer as _, len, flags as c_int) as c_long
            }
            11 => {
                let [fd, buffer, len, flags, address, room] = arguments(from.cast())?;
                let (address, room) = (address as _, room as c_uint);
                io::sendto(fd as c_int, buffer as _, len, flags as c_int, address, room) as c_long
            }
            12 => {
                let [fd, buffer, len, flags, address, room] = arguments(from.cast())?;
                let (address, room) = (address as _, room as _);
                io::recvfrom(fd as c_int, buffer as _, len, flags as c_int, address, room) as c_long
            }
            13 => {
                let [fd, how] = arguments(from.cast())?;
                socket::shutdown(fd as c_int, how as c_int).into()
            }
            14 => {
                let [fd, level, name, value, len] = arguments(from.cast())?;
                let (fd, level, name) = (fd as c_int, level as c_int, name as c_int);
                socket::setsockopt(fd, level, name, value as _, len as c_uint).into()
            }
            15 => {
                let [fd, level, name, value, len] = arguments(from.cast())?;
                let (fd, level, name) = (fd as c_int, level as c_int, name as c_int);
                socket::getsockopt(fd, level, name, value as _, len as _).into()
            }
            16 => {
                let [fd, message, flags] = arguments(from.cast())?;
                io::sendmsg(fd as c_int, message as _, flags as c_int) as c_long
            }
            17 => {
                let [fd, message, flags] = arguments(from.cast())?;
                io::recvmsg(fd as c_int, message as _, flags as c_int) as c_long
            }
            18 => {
                let [fd, address, len, flags] = arguments(from.cast())?;
                socket::accept4(fd as c_int, address as _, len as _, flags as c_int).into()
            }
            19 => {
                let [fd, messages, count, flags, timeout] = arguments(from.cast())?;
                let (count, flags) = (count as c_uint, flags as c_int);
                io::recvmmsg(fd as c_int, messages as _, count, flags, timeout as _).into()
            }
            20 => {
                let [fd, messages, count, flags] = arguments(from.cast())?;
                io::sendmmsg(fd as c_int, messages as _, count as c_uint, flags as c_int).into()
            }
            _ => return None,
        }
    })
}
