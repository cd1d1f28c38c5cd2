//! What a writer that is gone has left in its ring, once several processes have the stream: each call
//! takes what is there, whichever process makes it. What comes behind it the kernel has.

use core::sync::atomic::Ordering::*;

use shunt_os::tcp;
use shunt_stream::Words;

use super::native::rest_natively;
use super::peek::PEEK;
use super::sources::{how, parts};
use super::Request;
use crate::attach;
use crate::outcome::Outcome;
use crate::pool::Socket;
use crate::send::wanted;
use crate::wait::blocking::{other_number, Patience};

/// Receives some of it; `None` if nothing is left.
pub fn receive_remains(socket: &Socket, request: Request<'_>) -> Option<isize> {
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
    let mut got = if behind { rest_natively(socket, &mut patience, native, 0) } else { 0 };
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
    (got > 0).then_some(got as isize)
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
    Outcome::Handled(some)
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
        words.tail().saturating_sub(words.head())
    })
}
