//! The usual receive: into one part, from a ring that has something. It is a short way through what
//! [`receive`](super::receive) does for all others, and leaves everything else to it.

use core::ffi::{c_int, c_void};

use shunt_carriers::Part;
use shunt_os::park;
use shunt_stats::Carrier;
use shunt_stream::End;

use super::{is_no_address, Request};
use crate::pool::{RecvSide, Socket};
use crate::table;

const FLAGS: c_int = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL | libc::MSG_CMSG_CLOEXEC;

/// Where a call wants its bytes that is one of these but for having waited.
#[inline]
pub(super) fn part(request: &Request<'_>) -> Option<Part> {
    let [part] = request.vector else { return None };
    let (base, len) = (part.iov_base, part.iov_len);
    let is_usual = request.flags & !FLAGS == 0 && len > 0 && !is_no_address(base);
    is_usual.then_some(Part { base: base.cast(), len })
}

/// The bytes that the call got; 0 if it is none of these, or has to wait.
#[inline(always)]
pub fn receive_at_once(fd: c_int, base: *mut c_void, len: usize, flags: c_int) -> usize {
    let Some(index) = table::socket(fd) else { return 0 };
    if flags & !FLAGS != 0 {
        return 0;
    }
    take(fd, index, base.cast(), len)
}

/// One look at the ring.
#[inline(never)]
fn take(fd: c_int, index: u32, base: *mut u8, len: usize) -> usize {
    let Some(socket) = Socket::attached(index) else { return 0 };
    if len == 0 || is_no_address(base.cast()) {
        return 0;
    }
    park::test_cancel();
    let mut recv = socket.recv.lock();
    if !socket.is_attached_as(fd, index) {
        return 0;
    }
    let count = take_locked(socket, &mut recv, Part { base, len });
    recv.misses = recv.misses.wrapping_add(u32::from(count > 0 && count < len));
    count
}

/// As above, for one who holds the lock of a stream that is attached, and counts what is missed.
#[inline(always)]
pub(super) fn take_locked(socket: &Socket, recv: &mut RecvSide, part: Part) -> usize {
    let Some(consumer) = &mut recv.consumer else { return 0 };
    if !recv.reader.is_on_ring() {
        return 0;
    }
    let Ok(known) = consumer.known_at_least(part.len) else { return 0 };
    // To a program a receive of less than it asked for says that there was no more: not so if the rest is
    // on its way by TCP.
    let is_short = known < part.len;
    if known == 0 || is_short && matches!(End::decode(consumer.end()), Err(_) | Ok(End::Down(_))) {
        return 0;
    }
    // SAFETY: the program's own buffer.
    let Ok(count) = (unsafe { consumer.try_receive_part(part) }) else { return 0 };
    recv.offset += count as u64;
    recv.ring_only += count as u64;
    if let Some(entry) = socket.entry() {
        entry.received(Carrier::Shm, count as u64);
    }
    count
}
