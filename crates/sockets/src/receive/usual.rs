//! The usual receive: into one part, from a ring that has something, or that surely has not for a call that
//! does not wait. It is a short way through what
//! [`receive`](super::receive) does for all others, and leaves everything else to it.

use core::ffi::{c_int, c_void};
use core::sync::atomic::Ordering::*;

use shunt_carriers::Part;
use shunt_os::park;
use shunt_stats::Carrier;
use shunt_stream::End;

use super::{is_no_address, Request};
use crate::pool::{RecvSide, Socket};
use crate::table;
use crate::wait::blocking::may_not_wait;

const FLAGS: c_int = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL | libc::MSG_CMSG_CLOEXEC;

/// Where a call wants its bytes that is one of these but for having waited.
#[inline]
pub(super) fn part(request: &Request<'_>) -> Option<Part> {
    let [part] = request.vector else { return None };
    let (base, len) = (part.iov_base, part.iov_len);
    let is_usual = request.flags & !FLAGS == 0 && len > 0 && !is_no_address(base);
    is_usual.then_some(Part { base: base.cast(), len })
}

/// The bytes that the call got, or `-EAGAIN`; 0 if it is none of these, or has to wait.
#[inline(always)]
pub fn receive_at_once(fd: c_int, base: *mut c_void, len: usize, flags: c_int) -> isize {
    let Some(index) = table::socket(fd) else { return 0 };
    if flags & !FLAGS != 0 {
        return 0;
    }
    take(fd, index, base.cast(), len, flags)
}

/// One look at the ring.
#[inline(never)]
fn take(fd: c_int, index: u32, base: *mut u8, len: usize, flags: c_int) -> isize {
    let Some(socket) = Socket::attached(index) else { return 0 };
    if len == 0 || is_no_address(base.cast()) {
        return 0;
    }
    park::test_cancel();
    let mut recv = socket.recv.lock();
    if !socket.is_attached_as(fd, index) {
        return 0;
    }
    if recv.flow.gathers(recv.offset) && !may_not_wait(socket, flags) {
        recv.flow.gather();
    }
    let is_empty = match take_locked(socket, &mut recv, Part { base, len }) {
        Took::Some(count) => {
            if count < len {
                recv.misses = recv.misses.wrapping_add(1);
                let sent = socket.entry().map_or(0, |entry| entry.messages_sent());
                let offset = recv.offset;
                recv.flow.drained(count, offset, sent);
            }
            return count as isize;
        }
        Took::Nothing => may_not_wait(socket, flags) && nothing_else_is_told(socket, &recv),
        Took::Unknown => false,
    };
    if !is_empty {
        return 0;
    }
    recv.misses = recv.misses.wrapping_add(1);
    -(libc::EAGAIN as isize)
}

/// What a look at a ring gave.
pub(super) enum Took {
    Some(usize),
    /// It is empty, and has not ended.
    Nothing,
    /// A longer look is needed.
    Unknown,
}

/// As above, for one who holds the lock of a stream that is attached, and counts what is missed.
#[inline(always)]
pub(super) fn take_locked(socket: &Socket, recv: &mut RecvSide, part: Part) -> Took {
    let Some(consumer) = &mut recv.consumer else { return Took::Unknown };
    if !recv.reader.is_on_ring() {
        return Took::Unknown;
    }
    let Ok(known) = consumer.known_at_least(part.len) else { return Took::Unknown };
    if known < part.len {
        let end = consumer.end();
        if known == 0 {
            return if end == End::Seen.encode() { Took::Nothing } else { Took::Unknown };
        }
        // To a program a receive of less than it asked for says that there was no more: not so if the rest
        // is on its way by TCP.
        if matches!(End::decode(end), Err(_) | Ok(End::Down(_))) {
            return Took::Unknown;
        }
    }
    // SAFETY: the program's own buffer.
    let Ok(count) = (unsafe { consumer.try_receive_part(part) }) else { return Took::Unknown };
    recv.offset += count as u64;
    recv.ring_only += count as u64;
    if let Some(entry) = socket.entry() {
        entry.received(Carrier::Shm, count as u64);
    }
    Took::Some(count)
}

/// Whether a call that finds nothing in the ring has nothing else to be told of.
#[inline(always)]
fn nothing_else_is_told(socket: &Socket, recv: &RecvSide) -> bool {
    let ended = recv.peer_shut || recv.fin_held || socket.shut_reading.load(Relaxed);
    !ended && !socket.companion_stirred.is_set()
}
