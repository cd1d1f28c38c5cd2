//! The usual send, for all of which the ring has room. It is a short way through what
//! [`send`](super::send) does for all others, and leaves everything else to it.

use core::ffi::{c_int, c_void};
use core::sync::atomic::Ordering::*;

use libc::iovec;
use shunt_carriers::{shm, Part};
use shunt_os::{lock::Guard, park};

use super::{count_sent, wanted};
use crate::pool::{SendSide, Socket};
use crate::receive::is_no_address;
use crate::table::{self, Named};

const FLAGS: c_int = libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT;

/// The bytes that the ring took: all of them, or 0 if the call is none of these.
#[inline(always)]
pub fn send_at_once(fd: c_int, base: *const c_void, len: usize, flags: c_int) -> isize {
    let Some(named) = table::named(fd) else { return 0 };
    if flags & !FLAGS != 0 {
        return 0;
    }
    put(named, base.cast(), len) as isize
}

/// As [`send_at_once`], of several parts.
#[inline]
pub fn send_parts_at_once(fd: c_int, parts: &[iovec], flags: c_int) -> usize {
    const PARTS_MAX: usize = 64;
    let Some(named) = table::named(fd) else { return 0 };
    if flags & !FLAGS != 0 || parts.len() > PARTS_MAX {
        return 0;
    }
    put_parts(named, parts)
}

#[inline(never)]
fn put(named: Named, base: *const u8, len: usize) -> usize {
    let Some(socket) = Socket::attached(named) else { return 0 };
    if !(1..=shm::WHOLE).contains(&len) || is_no_address(base.cast_mut().cast()) {
        return 0;
    }
    let Some(mut side) = lock(socket, named) else { return 0 };
    let sent = match ring(socket, &mut side) {
        // SAFETY: the program's own buffer.
        Some(ring) => unsafe { ring.try_send_piece(base, len) },
        None => Ok(false),
    };
    counted(socket, len, sent == Ok(true))
}

#[inline(never)]
fn put_parts(named: Named, parts: &[iovec]) -> usize {
    let Some(socket) = Socket::attached(named) else { return 0 };
    // Looked at first, so that their sum is one.
    let long = |part: &iovec| part.iov_len > shm::WHOLE;
    let bad = |part: &iovec| long(part) || part.iov_len > 0 && is_no_address(part.iov_base);
    if parts.iter().any(bad) {
        return 0;
    }
    let len = wanted(parts);
    if !(1..=shm::WHOLE).contains(&len) {
        return 0;
    }
    let Some(mut side) = lock(socket, named) else { return 0 };
    let all = parts.iter().map(|part| Part { base: part.iov_base.cast(), len: part.iov_len });
    let sent = match ring(socket, &mut side) {
        // SAFETY: the program's own buffers.
        Some(ring) => unsafe { ring.try_send_all(all, len) },
        None => Ok(false),
    };
    counted(socket, len, sent == Ok(true))
}

/// The sending side of a stream, if the descriptor is still its.
#[inline(always)]
fn lock(socket: &Socket, named: Named) -> Option<Guard<'_, SendSide>> {
    park::test_cancel();
    let side = socket.send.lock();
    socket.is_attached_as(named).then_some(side)
}

/// What the call took.
#[inline(always)]
fn counted(socket: &Socket, len: usize, sent: bool) -> usize {
    if !sent {
        return 0;
    }
    count_sent(socket, len);
    len
}

/// Where the bytes go, of a stream that is attached and locked.
#[inline(always)]
fn ring<'a>(socket: &Socket, side: &'a mut SendSide) -> Option<&'a mut shm::Sender> {
    if side.fin_pending || socket.told_reset.load(Relaxed) || socket.is_corked.load(Relaxed) {
        return None;
    }
    let producer = side.producer.as_mut()?;
    side.writer.stays(producer.end()).then_some(producer)
}
