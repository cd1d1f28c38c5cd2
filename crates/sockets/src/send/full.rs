//! A ring without room: what a send that may not wait is told, and when the ring is left for it.

use core::sync::atomic::Ordering::*;

use shunt_ring::{Direction, WAIT_SET};
use shunt_stats::Reason;
use shunt_stream::WriterOn;

use crate::attach::{
    self, ask_to_stop, break_stream, is_seen, leave_ring, may_leave_unread, observe_writer, resend,
    widen_room, ANSWER_NS_MAX,
};
use crate::pool::{Mode, SendSide, Socket};
use crate::service;
use crate::wait::blocking::{self, Watch};

/// A reader that takes nothing for this long is given the kernel's larger buffer instead, so that
/// a program that relies on it does not stand still.
pub const FULL_NS_MAX: u64 = 20_000_000;
/// Such times that the reader's process has to answer.
const LOOKS_FOR_STOP: u32 = (ANSWER_NS_MAX / FULL_NS_MAX) as u32;

/// A send that may not wait, or a look for room, found none: notes that, and asks to be told of room. False
/// if there is some by now.
#[cold]
pub fn is_full(index: u32, socket: &'static Socket) -> bool {
    socket.fulls.fetch_add(1, Relaxed);
    let newly = {
        let mut side = socket.send.lock();
        match side.writer.on() {
            _ if socket.mode() != Mode::Attached => return false,
            WriterOn::Tcp => return false,
            WriterOn::Resend { .. } => return true,
            WriterOn::Ring => {}
        }
        let Some(direction) = blocking::direction(socket, true) else { return false };
        let newly = !socket.full.swap(true, Relaxed);
        if newly {
            side.full_head = direction.head();
        }
        // In this order, so that room that comes after the look is told of.
        direction.wake.want_space(WAIT_SET);
        if has_room(socket, &mut side) {
            return false;
        }
        newly
    };
    if let (true, Some(service)) = (newly, service::running()) {
        service.watch_full(index, socket.generation.load(Relaxed));
    }
    true
}

/// Whether a ring that was [full](Socket::full) has room worth telling of. The lock is held.
pub fn has_room(socket: &Socket, side: &mut SendSide) -> bool {
    let has_room = |side: &mut SendSide| {
        side.producer.as_mut().is_none_or(|producer| producer.has_room().unwrap_or(true))
    };
    let room = has_room(side) || widen_room(socket, side) && has_room(side);
    if room {
        socket.full.store(false, Relaxed);
    }
    room
}

/// Whether the reader of a full ring has taken something since the last look: if so, it is asked to stop anew.
fn has_moved(side: &mut SendSide, head: u64) -> bool {
    let moved = core::mem::replace(&mut side.full_head, head) != head;
    if moved {
        side.looks_for_stop = 0;
    }
    moved
}

/// A while after [`is_full`], in the service thread. The reader has taken nothing since the last
/// look: the stream is to go on over TCP. True if it must be looked at again.
pub fn still_full(index: u32, socket: &'static Socket) -> bool {
    let is_over = {
        let mut side = socket.send.lock();
        let on_ring = socket.mode() == Mode::Attached && side.writer.on() == WriterOn::Ring;
        let Some(direction) = blocking::direction(socket, true) else { return false };
        let is_over = !on_ring || !socket.full.load(Relaxed) || has_room(socket, &mut side);
        if !is_over && has_moved(&mut side, direction.head()) {
            return true;
        }
        is_over
    };
    if !is_over && !spill_now(index, socket) && socket.full.load(Relaxed) {
        return true;
    }
    // Also of room that the ring has had since its reader came to it, of which that one tells nobody.
    socket.full.store(false, Relaxed);
    attach::wake_own(socket);
    false
}

/// The reader took nothing for long: go on over TCP.
#[cold]
pub(super) fn spill(index: u32, socket: &'static Socket, watch: &Watch) {
    if !watch.changed(socket) {
        spill_now(index, socket);
    }
}

/// A full ring is left for the kernel's buffer, which holds more. The reader's process is asked to
/// stop first, and only if it does not answer for [`LOOKS_FOR_STOP`] looks, since it is stopped, the
/// ring is left with what is in it. False if it may answer yet.
#[cold]
fn spill_now(index: u32, socket: &'static Socket) -> bool {
    let broken = {
        let mut side = socket.send.lock();
        if socket.mode() != Mode::Attached || side.writer.on() != WriterOn::Ring {
            return true;
        }
        let Some(head) = blocking::direction(socket, true).map(Direction::head) else {
            return true;
        };
        if has_room(socket, &mut side) {
            return false;
        }
        has_moved(&mut side, head);
        let first = side.looks_for_stop == 0;
        if first && !matches!(ask_to_stop(socket, &mut side, Some(head)), Ok(true)) {
            side.looks_for_stop = LOOKS_FOR_STOP;
        }
        if side.looks_for_stop < LOOKS_FOR_STOP {
            side.looks_for_stop += 1;
            return false;
        }
        let slot = socket.slot.load(Relaxed);
        // Before the next look: a reader that comes to the ring behind it need not be one that may be left.
        let seen = socket.link().is_some_and(|link| is_seen(link, slot));
        if socket.link().is_some_and(|link| !may_leave_unread(link, slot)) {
            // It was asked, and will answer when it can.
            side.looks_for_stop = 1;
            return false;
        }
        let on =
            observe_writer(socket, &mut side).and_then(|_| leave_ring(socket, &mut side, seen));
        if matches!(on, Ok(WriterOn::Ring)) {
            // It has come to the ring at this moment, and is to be asked.
            side.looks_for_stop = 0;
            return false;
        }
        let done = on.and_then(|_| resend(socket, &mut side));
        if let Some(entry) = socket.entry() {
            entry.set_reason(Reason::RingFullForLong);
        }
        if matches!(done, Ok(false)) {
            if let Some(service) = service::running() {
                service.await_space(index, socket);
            }
        }
        done.is_err()
    };
    if broken {
        break_stream(socket);
    }
    true
}
