//! One look at everything that could give a call its bytes.

use core::sync::atomic::Ordering::*;

use libc::iovec;
use shunt_os::{handles, threads};
use shunt_stream::ReaderOn;

use super::ends::{
    has_died_unread, has_ended, outgoing_unread, owes, stands_at_held_end, was_reset,
};
use super::peek::{peek_over_the_seam, PEEK};
use super::sources::{from_ring, from_tcp};
use super::Request;
use crate::attach::{self, agree_locked, incoming, observe_reader, restart_consumer, Broken};
use crate::pool::{RecvSide, Socket};
use crate::wait::blocking;

/// What one attempt gave.
pub(super) enum Attempt {
    /// This many bytes, or the end of the stream (0).
    Got(usize),
    /// This many bytes, and the next one is the other carrier's, TCP's, or on its way there.
    UpToTcp(usize),
    /// The same: the ring's.
    UpToTheRing(usize),
    /// An error of the kernel's.
    Error(i32),
    /// Nothing now.
    Empty,
    /// Nothing now, but the program may know of bytes that the peer is about to send again.
    Owed,
    /// TCP has heard of the death of the peer's process, and the link not yet, which has to say with what.
    Dying,
    /// The stream is still native: the genuine call is to be made. `native_recv` is counted.
    Native,
    /// The stream is not attached any more.
    Gone,
    /// The same, and bytes may be left in its ring.
    Remains,
    /// The descriptor was closed, and the place may be another stream's.
    Closed,
}

impl Attempt {
    /// Whether a program that wanted so many bytes does not learn that there are no more for now.
    #[inline]
    pub(super) fn satisfies(&self, wanted: usize) -> bool {
        match *self {
            Attempt::Got(count) | Attempt::UpToTcp(count) | Attempt::UpToTheRing(count) => {
                count == 0 || count >= wanted
            }
            Attempt::Error(_) => true,
            Attempt::Empty
            | Attempt::Owed
            | Attempt::Dying
            | Attempt::Native
            | Attempt::Gone
            | Attempt::Remains
            | Attempt::Closed => false,
        }
    }

    /// Whether a call that has `got` so much of all it wants ends with it.
    pub(super) fn ends(&self, got: usize, wanted: usize, wants_all: bool) -> bool {
        match *self {
            Attempt::Got(count) => !wants_all || count == 0 || got + count == wanted,
            Attempt::Error(_) => true,
            _ => false,
        }
    }
}

/// What a receive that has some bytes finds before TCP's next one.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Ahead {
    Nothing,
    /// Bytes, or the end: a receive now does not come to an error.
    More,
    /// The urgent mark, which only TCP has, or an error, which is told to the next call and not taken now.
    Stop,
}

/// In one look: an error that comes behind it must not be taken either.
pub(super) fn ahead(fd: i32) -> Ahead {
    let said = handles::poll_now(fd, libc::POLLIN | libc::POLLPRI | libc::POLLRDHUP);
    let no_bytes = || shunt_os::tcp::readable(fd).is_ok_and(|bytes| bytes == 0);
    if said & libc::POLLPRI != 0 || said & libc::POLLERR != 0 && no_bytes() {
        Ahead::Stop
    } else if said & (libc::POLLIN | libc::POLLRDHUP) != 0 {
        Ahead::More
    } else {
        Ahead::Nothing
    }
}

/// One look at everything that could give bytes. The receive lock is held.
pub(super) fn attempt(
    socket: &Socket,
    recv: &mut RecvSide,
    request: Request<'_>,
    already: usize,
    awaited: bool,
) -> Result<Attempt, Broken> {
    let Some(link) = socket.link() else { return Ok(Attempt::Gone) };
    if request.flags & PEEK != 0 {
        if let Some(count) = peek_over_the_seam(socket, recv, request)? {
            return Ok(Attempt::Got(count));
        }
    }
    // Two rounds suffice: the ring is found empty, and the segment's end leads to TCP; one more
    // for a writer that went up again in between.
    for _ in 0..4 {
        attach::hear_end(socket, recv);
        if recv.reader.on() == ReaderOn::Ring {
            let count = from_ring(socket, recv, request, already)?;
            if count > 0 {
                return Ok(got(socket, recv, request, count));
            }
        } else if stands_at_held_end(socket, recv) {
            return Ok(Attempt::Got(0));
        } else if !agree_locked(socket, recv)? {
            threads::add(&socket.native_recv, 1);
            return Ok(Attempt::Native);
        }
        let words = incoming(link, socket.slot.load(Relaxed));
        let before = recv.reader.on();
        match observe_reader(socket, recv)? {
            ReaderOn::Ring if before == ReaderOn::Ring => {
                if let Some(consumer) = &mut recv.consumer {
                    if consumer.available()? > 0 {
                        continue;
                    }
                }
                attach::report_drained(socket, recv);
                if recv.peer_shut && !words.fin_is_dropped() {
                    return Ok(Attempt::Got(0));
                }
                if !blocking::companion_ended(socket) {
                    return Ok(Attempt::Empty);
                }
                // The peer closed or died without a word: its process published no more. What it
                // had not read makes TCP's end a reset.
                recv.reset_pending |= outgoing_unread(socket);
                recv.reader.writer_died(&words, recv.offset)?;
                restart_consumer(recv);
            }
            ReaderOn::Ring => {}
            ReaderOn::Tcp | ReaderOn::Crossing { .. } | ReaderOn::Salvage { .. } => {
                let has_drained = recv.peer_shut && !recv.fin_held && !words.fin_is_dropped();
                if has_drained || stands_at_held_end(socket, recv) {
                    // Its FIN may not be here yet.
                    return Ok(Attempt::Got(0));
                }
                if already > 0 {
                    match ahead(request.fd) {
                        Ahead::Stop => return Ok(Attempt::UpToTcp(0)),
                        Ahead::Nothing => return Ok(Attempt::Empty),
                        Ahead::More => {}
                    }
                }
                let result = match from_tcp(socket, recv, request, already)? {
                    Attempt::Error(number) if attach::leave_to_send(socket, number) => {
                        Attempt::Got(0)
                    }
                    result => result,
                };
                let ended = match result {
                    // A shutdown of our own reading gives 0 as well, and bytes may still come.
                    Attempt::Got(0) => {
                        !socket.shut_reading.load(Relaxed)
                            || shunt_os::tcp::peer_has_ended(socket.fd.load(Relaxed))
                    }
                    Attempt::Error(number) => number != libc::EFAULT && number != libc::EINTR,
                    _ => false,
                };
                let offset = recv.offset;
                if !ended || recv.reader.tcp_ended(&words, offset)? != ReaderOn::Ring {
                    // The dead peer left bytes unread in the ring, or a re-send of ours was told
                    // what this call should have been told.
                    let at_end = matches!(result, Attempt::Got(0)) && ended;
                    if at_end && !awaited && has_died_unread(socket) {
                        return Ok(Attempt::Dying);
                    }
                    // Both are told by this one error.
                    let told = |recv: &mut RecvSide| {
                        attach::reset_by_death(socket) | core::mem::take(&mut recv.reset_pending)
                    };
                    if at_end && already == 0 && (told(recv) || was_reset(socket)) {
                        return Ok(Attempt::Error(libc::ECONNRESET));
                    }
                    return Ok(match result {
                        Attempt::Got(count) if count > 0 => got(socket, recv, request, count),
                        result => result,
                    });
                }
                // It is told behind the ring's bytes.
                recv.reset_pending |= matches!(result, Attempt::Error(libc::ECONNRESET));
                restart_consumer(recv);
            }
        }
    }
    Ok(Attempt::Empty)
}

/// Takes what is unread of a stream whose peer sends nothing more, and gives it to nobody. The receive lock is held.
pub fn drop_unread(socket: &Socket, recv: &mut RecvSide) {
    // From one carrier at a time, of which the stream changes a few times at most.
    const ROUNDS: usize = 16;
    let all = [iovec { iov_base: core::ptr::null_mut(), iov_len: i32::MAX as usize }];
    let (fd, generation) = (socket.fd.load(Relaxed), socket.generation.load(Relaxed));
    let request = Request { fd, generation, vector: &all, flags: libc::MSG_TRUNC };
    for _ in 0..ROUNDS {
        match attempt(socket, recv, request, 0, true) {
            Ok(Attempt::Got(1..) | Attempt::UpToTcp(_) | Attempt::UpToTheRing(_)) => {}
            Ok(Attempt::Native) => {
                threads::take(&socket.native_recv);
                return;
            }
            _ => return,
        }
    }
}

/// Bytes of one carrier: are they its last, with the other's behind them?
#[inline]
fn got(socket: &Socket, recv: &RecvSide, request: Request<'_>, count: usize) -> Attempt {
    if request.flags & PEEK != 0 {
        return Attempt::Got(count);
    }
    match recv.reader.on() {
        ReaderOn::Crossing { up_at } if recv.offset >= up_at => Attempt::UpToTheRing(count),
        ReaderOn::Ring if has_ended(socket, recv.offset) => Attempt::UpToTcp(count),
        ReaderOn::Ring => Attempt::Got(count),
        _ if owes(socket, recv) => Attempt::UpToTcp(count),
        _ => Attempt::Got(count),
    }
}
