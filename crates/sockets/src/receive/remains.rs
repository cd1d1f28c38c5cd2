//! What a writer that is gone has left in its ring, once several processes have the stream: each call
//! takes what is there, whichever process makes it. What comes behind it the kernel has.

use core::sync::atomic::Ordering::*;

use libc::iovec;
use shunt_carriers::Part;
use shunt_os::{handles, real, tcp};
use shunt_stream::Words;

use super::native::{message_of, rest_natively};
use super::peek::PEEK;
use super::sources::{how, parts};
use super::Request;
use crate::attach;
use crate::outcome::Outcome;
use crate::pool::Socket;
use crate::send::wanted;
use crate::wait::blocking::{other_number, Patience};

/// Receives some of it, or of what TCP has before it; `None` if nothing is left.
pub fn receive_remains(socket: &Socket, request: Request<'_>) -> Option<Outcome> {
    if !socket.remains.load(Acquire) || request.flags & (libc::MSG_OOB | libc::MSG_ERRQUEUE) != 0 {
        return None;
    }
    let wanted = wanted(request.vector);
    let peeks = request.flags & PEEK != 0;
    let fd = || other_number(socket, request.fd).unwrap_or(request.fd);
    let waiting = || tcp::readable(fd()).unwrap_or(0) > 0;
    let behind = is_behind_tcp(socket) && waiting();
    if behind && peeks {
        return None;
    }
    // What TCP has is there, or will never be.
    let native = Request { flags: request.flags | libc::MSG_DONTWAIT, ..request };
    let mut patience = Patience::new(libc::SO_RCVTIMEO, None);
    let mut got = 0;
    if behind {
        got = rest_natively(socket, &mut patience, native, 0);
    } else {
        // Those before the ring's, and no more: others may have written behind them.
        let mut ahead = before_ring(socket, fd());
        while let Some(Part { base, len }) =
            parts(request.vector, got).find(|it| it.len > 0 && ahead > 0)
        {
            let iov_len = len.min(usize::try_from(ahead).unwrap_or(usize::MAX));
            let part = [iovec { iov_base: base.cast(), iov_len }];
            let one = Request { vector: &part, ..native };
            let mut some = rest_natively(socket, &mut patience, one, 0);
            if some == 0 && got == 0 {
                // They are on their way still.
                match in_kernel(fd(), &part, request.flags) {
                    0 => break,
                    result @ ..0 => return Some(Outcome::Genuine(result)),
                    result => some = result as usize,
                }
            }
            got += some;
            if some == 0 || peeks {
                return Some(Outcome::Handled(got as isize));
            }
            ahead -= some as u64;
        }
    }
    if got < wanted && !(behind && waiting()) {
        let mut recv = socket.recv.lock();
        let into = || parts(request.vector, got);
        // SAFETY: the program's own buffer; a bad one faults as a genuine call would report.
        let taken =
            recv.consumer.as_mut().map(|it| unsafe { it.take_remains(into, how(request.flags)) });
        got += taken.and_then(Result::ok).unwrap_or(0);
    }
    if got > 0 && got < wanted && !behind && !peeks {
        got += rest_natively(socket, &mut patience, native, got);
    }
    (got > 0).then_some(Outcome::Handled(got as isize))
}

/// The program's own call, for no more than `vector` has room for.
fn in_kernel(fd: i32, vector: &[iovec], flags: i32) -> isize {
    let mut message = message_of(vector);
    // SAFETY: the program's own buffer.
    unsafe { real::recvmsg(fd, &raw mut message, flags) }
}

/// How many bytes of TCP are unread that come before those of the ring: the writer had sent them when it went there.
fn before_ring(socket: &Socket, fd: i32) -> u64 {
    let mut recv = socket.recv.lock();
    let Some(consumer) = &mut recv.consumer else { return 0 };
    let words = consumer.words();
    // A reader that died on its way there has not said where the ring begins.
    consumer.begin_remains(words.up_at());
    if words.head() >= words.tail() {
        return 0;
    }
    let was_reset = socket.told_reset.load(Relaxed)
        || recv.reset_pending
        || handles::poll_now(fd, 0) & libc::POLLERR != 0;
    let before =
        tcp::bytes_taken(fd, was_reset).map_or(0, |taken| words.by_tcp().saturating_sub(taken));
    // Behind its end nothing comes any more.
    match tcp::readable(fd) {
        Ok(unread) if tcp::peer_has_ended(fd) => before.min(unread),
        _ => before,
    }
}

fn is_behind_tcp(socket: &Socket) -> bool {
    let recv = socket.recv.lock();
    recv.consumer.as_ref().is_some_and(|consumer| consumer.words().is_behind_tcp())
}

/// A call on a stream that has left its ring, by which the kernel told of TCP's end, or of a reset: what is in the ring
/// still comes before that.
pub fn before_end(socket: &Socket, request: Request<'_>, outcome: Outcome) -> Outcome {
    let was_reset = match outcome {
        Outcome::Genuine(0) | Outcome::Handled(0) => false,
        Outcome::Failed(libc::ECONNRESET) => true,
        Outcome::Genuine(-1) if shunt_os::errno() == libc::ECONNRESET => true,
        _ => return outcome,
    };
    attach::take_up_unanswered(socket);
    let Some(some) = receive_remains(socket, request) else { return outcome };
    // The kernel tells of it once.
    socket.recv.lock().reset_pending |= was_reset;
    some
}

/// How much is left of it.
pub fn remaining(socket: &Socket) -> u64 {
    attach::take_up_unanswered(socket);
    if !socket.remains.load(Acquire) {
        return 0;
    }
    let recv = socket.recv.lock();
    recv.consumer.as_ref().map_or(0, |consumer| {
        let words = consumer.words();
        words.tail().saturating_sub(words.head().max(words.up_at()))
    })
}
