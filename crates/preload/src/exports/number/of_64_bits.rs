//! Calls of 64-bit programs.

use core::ffi::{c_int, c_long, c_uint};

use super::{has_time, mask_of_pselect6, takes_mask};
use crate::exports::{io, readiness, socket};

/// Whether it waits for descriptors of a list.
pub fn waits(number: c_long) -> bool {
    matches!(number, libc::SYS_select | libc::SYS_pselect6)
}

/// `None` for what is to go to the kernel as it is.
pub unsafe fn call(number: c_long, [a, b, c, d, e, f]: [usize; 6]) -> Option<c_long> {
    let fd = a as c_int;
    Some(unsafe {
        match number {
            libc::SYS_accept => socket::accept(fd, b as _, c as _).into(),
            libc::SYS_recvmmsg => io::recvmmsg(fd, b as _, c as c_uint, d as c_int, e as _).into(),
            libc::SYS_sendfile => io::sendfile64(fd, b as c_int, c as _, d) as c_long,
            libc::SYS_preadv2 if d as i64 == -1 => {
                io::preadv2(fd, b as _, c as c_int, -1, f as c_int) as c_long
            }
            libc::SYS_pwritev2 if d as i64 == -1 => {
                io::pwritev2(fd, b as _, c as c_int, -1, f as c_int) as c_long
            }
            libc::SYS_ppoll if has_time(c) && takes_mask(d, e) => {
                readiness::ppoll(a as _, b as _, c as _, d as _).into()
            }
            libc::SYS_select if has_time(e) => {
                readiness::select(fd, b as _, c as _, d as _, e as _).into()
            }
            libc::SYS_pselect6 if has_time(e) => {
                let mask = mask_of_pselect6(f)?;
                readiness::pselect(fd, b as _, c as _, d as _, e as _, mask).into()
            }
            libc::SYS_epoll_pwait2 if takes_mask(e, f) => {
                readiness::epoll_pwait2(fd, b as _, c as c_int, d as _, e as _).into()
            }
            _ => return None,
        }
    })
}
