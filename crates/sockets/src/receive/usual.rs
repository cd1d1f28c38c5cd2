//! The usual receive: into one part, from a ring that has something, or that surely has not for a call that
//! does not wait. It is a short way through what
//! [`receive`](super::receive) does for all others, and leaves everything else to it.

use core::ffi::{c_int, c_void};
use core::sync::atomic::Ordering::*;

use shunt_carriers::Part;
use shunt_os::{clock, park};
use shunt_stats::Carrier;
use shunt_stream::End;

use super::{is_no_address, Request};
use crate::pool::{RecvSide, Socket};
use crate::table::{self, Named};
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
    let Some(named) = table::named(fd) else { return 0 };
    if flags & !FLAGS != 0 {
        return 0;
    }
    take(named, base.cast(), len, flags)
}

/// One look at the ring.
#[inline(never)]
fn take(named: Named, base: *mut u8, len: usize, flags: c_int) -> isize {
    let Some(socket) = Socket::attached(named) else { return 0 };
    // None, or more than there are addresses, which some calls refuse.
    if len.wrapping_sub(1) >= usize::MAX / 256 || is_no_address(base.cast()) {
        return 0;
    }
    park::test_cancel();
    let mut recv = socket.recv.lock();
    if !socket.is_attached_as(named) {
        return 0;
    }
    let waits = !may_not_wait(socket, flags);
    if recv.flow.gathers(recv.offset) && waits {
        recv.flow.gather();
    }
    let mut looked = false;
    loop {
        match take_locked(socket, &mut recv, Part { base, len }) {
            Took::Some(count) => {
                if count < len {
                    recv.misses = recv.misses.wrapping_add(1);
                    let sent = socket.entry().map_or(0, |entry| entry.messages_sent());
                    let offset = recv.offset;
                    recv.flow.drained(count, offset, sent);
                }
                return count as isize;
            }
            Took::Nothing if waits && !looked && socket.recv_policy.is_eager() => {
                if !comes_at_once(&recv) {
                    return 0;
                }
                socket.recv_policy.caught();
                looked = true;
            }
            Took::Nothing if !waits && nothing_else_is_told(socket, &recv) => {
                recv.misses = recv.misses.wrapping_add(1);
                return -(libc::EAGAIN as isize);
            }
            Took::Nothing | Took::Unknown => return 0,
        }
    }
}

/// Whether the ring's next bytes come within a moment, by looks that cost less than to wait in form. Each reads the
/// clock, which leaves the core to its other thread for about as long as a cache line takes; a pause may take three
/// times that. The lock is held, as for a copy of that length: to take it again would make each answer late.
#[inline]
fn comes_at_once(recv: &RecvSide) -> bool {
    /// In the ticks of [`clock::stamp`]: some 0.4 us.
    const TICKS: u64 = 1000;
    let Some(consumer) = &recv.consumer else { return false };
    let began = clock::stamp();
    while consumer.is_drained() {
        if clock::stamp().wrapping_sub(began) >= TICKS {
            return false;
        }
    }
    true
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
            let goes_on = end == End::Seen.encode() && !consumer.words().fin_is_held();
            return if goes_on { Took::Nothing } else { Took::Unknown };
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
