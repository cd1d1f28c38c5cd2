//! How a receive knows that no byte comes any more: the end of a ring, of the connection, or of the peer's
//! process; and what its own process still has to get by TCP.

use core::sync::atomic::Ordering::*;

use shunt_os::{handles, proc};
use shunt_ring::Direction;
use shunt_stream::{End, ReaderOn, Words};

use super::Request;
use crate::attach::{self, incoming};
use crate::pool::{Mode, RecvSide, Socket};
use crate::send::wanted;
use crate::wait::blocking;

/// Whether no byte can follow those that have arrived.
pub(super) fn stands_at_end(socket: &Socket, recv: &RecvSide) -> bool {
    let ended = || match recv.reader.on() {
        ReaderOn::Ring => blocking::companion_ended(socket),
        ReaderOn::Tcp | ReaderOn::Crossing { .. } => {
            handles::poll_now(socket.fd.load(Relaxed), libc::POLLRDHUP | libc::POLLPRI) != 0
        }
        ReaderOn::Salvage { .. } => true,
    };
    recv.peer_shut || socket.shut_reading.load(Relaxed) || ended()
}

/// Whether everything was received that stands before a FIN that is held back: what a wait may have told of is to be
/// found, though the FIN itself comes by TCP a moment later.
pub(super) fn stands_at_held_end(socket: &Socket, recv: &RecvSide) -> bool {
    let is_all = |direction: &Direction| recv.offset >= direction.tail();
    recv.peer_shut
        && recv.offset_known
        && blocking::direction(socket, false).is_some_and(is_all)
        && socket
            .link()
            .is_some_and(|link| !incoming(link, socket.slot.load(Relaxed)).fin_is_dropped())
}

/// Whether the incoming ring has no byte at or beyond `offset` any more: the next comes by TCP.
#[inline]
pub fn has_ended(socket: &Socket, offset: u64) -> bool {
    blocking::direction(socket, false).is_some_and(|direction| {
        matches!(End::decode(direction.end()), Ok(End::Down(_))) && direction.tail() == offset
    })
}

/// Whether the peer's process died with bytes unread, of which TCP has heard before the link: a FIN that nobody
/// asked for.
pub(super) fn has_died_unread(socket: &Socket) -> bool {
    let Some(link) = socket.link() else { return false };
    let slot = socket.slot.load(Relaxed);
    let closed = || matches!(End::decode(attach::outgoing(link, slot).end()), Ok(End::Closed(_)));
    !incoming(link, slot).writer_shut() && !closed() && outgoing_unread(socket)
}

/// Whether the connection of a process that left bytes unread has ended, and its death is about to make a reset of
/// that. Others of its family may have ended it, and read on; or its program has, by a system call of its own. No lock
/// is held.
#[cold]
pub fn is_dying(socket: &Socket) -> bool {
    // Another thread may close the stream meanwhile.
    let _held = socket.recv.lock();
    is_dying_locked(socket)
}

/// As [`is_dying`], for who holds the lock.
#[cold]
pub fn is_dying_locked(socket: &Socket) -> bool {
    if socket.mode() != Mode::Attached {
        return false;
    }
    let Some(link) = socket.link() else { return false };
    // The kernel is asked last.
    !attach::outgoing(link, socket.slot.load(Relaxed)).reader_shares()
        && has_died_unread(socket)
        && shunt_os::tcp::peer_has_ended(socket.fd.load(Relaxed))
        && proc::is_ending(link.peer_pid)
}

/// A call that waited in the kernel found an end there: whether it is told of a reset.
#[cold]
pub fn ended_by_death(socket: &Socket, request: Request<'_>) -> bool {
    if wanted(request.vector) == 0 || socket.shut_reading.load(Relaxed) {
        return false;
    }
    await_death(socket, request.generation);
    let _held = socket.recv.lock();
    let is_ours = socket.generation.load(Relaxed) == request.generation
        && matches!(socket.mode(), Mode::Attached | Mode::Left);
    is_ours && attach::reset_by_death(socket)
}

/// Until the link has heard of such a death as well: the connections of a process that ends are closed
/// before its link is. No lock is held.
pub fn await_death(socket: &Socket, generation: u32) {
    attach::wait_until(attach::CORE_NS_MAX, || {
        let _held = socket.recv.lock();
        let is_ours = socket.generation.load(Relaxed) == generation;
        !is_ours || socket.mode() != Mode::Attached || !has_died_unread(socket)
    });
}

/// Whether bytes that were in a ring when this reader left it have not been received: the peer sends them
/// again by TCP, or, if it dies before, they come from the ring again once TCP has ended.
pub fn owes(socket: &Socket, recv: &RecvSide) -> bool {
    recv.offset < recv.owed && recv.reader.on() != ReaderOn::Ring && socket.mode() == Mode::Attached
}

/// Until some of them are here. No lock is held. The program may have been told of them: to come back without would
/// be an error to it that TCP does not make. A peer that only waits for a processor comes to it; one that does not
/// is not waited for twice.
pub(super) fn await_owed(socket: &Socket, generation: u32) {
    let is_owed = |recv: &RecvSide| {
        let is_ours = socket.generation.load(Relaxed) == generation;
        is_ours && owes(socket, recv) && !shunt_os::tcp::has_news(socket.fd.load(Relaxed))
    };
    let Some(link) = socket.link() else { return };
    if !attach::await_peer(link, || !is_owed(&socket.recv.lock())) {
        let mut recv = socket.recv.lock();
        if is_owed(&recv) {
            recv.owed = 0;
        }
    }
}

/// Whether a re-send of ours took the error of a reset.
pub(super) fn was_reset(socket: &Socket) -> bool {
    socket.send.lock().failed.take() == Some(libc::ECONNRESET)
}

/// Whether the peer has left bytes of ours unread in the ring. What is held back it was not shown.
pub(super) fn outgoing_unread(socket: &Socket) -> bool {
    // Lock order: recv, then send.
    let mut send = socket.send.lock();
    let on_ring = send.writer.on() == shunt_stream::WriterOn::Ring;
    on_ring
        && send.producer.as_mut().is_some_and(|producer| {
            let ring = producer.ring();
            let held = ring.held() as u64;
            ring.unread().is_ok_and(|bytes| bytes > held)
        })
}
