//! Sends that go to the kernel: whole, in pieces, or behind what a ring took.

use core::sync::atomic::Ordering::*;

use libc::iovec;
use shunt_carriers::parts::up_to;
use shunt_link::elsewhere;
use shunt_os::{handles, set_errno, threads};

use super::{owe_error, refused, send, told_to_resend, wanted, Delivery, Request};
use crate::attach::{self, break_stream, go_down, observe_writer, resend, Broken};
use crate::outcome::Outcome;
use crate::pool::{stage, Mode, Socket};
use crate::receive::parts;
use crate::search::{self, Way};
use crate::wait::blocking::may_not_wait;

/// While a stream is on TCP, a send of more than this that may wait goes there piece by piece: the
/// ring may be there before all is sent.
const PIECE: usize = 256 * 1024;

/// The rest by the kernel: the program's own call if nothing was sent yet. `native_send` is counted,
/// and is not afterwards.
pub fn native(
    index: u32,
    socket: &'static Socket,
    request: Request<'_>,
    sent: usize,
    genuine: Option<impl FnOnce() -> isize>,
) -> Outcome {
    if let (0, Some(genuine)) = (sent, genuine) {
        let result = genuine();
        let errno = shunt_os::errno();
        note_room(socket, wanted(request.vector), result);
        elsewhere::note();
        threads::take(&socket.native_send);
        search::note(index, socket, Way::Out, result);
        set_errno(errno);
        return Outcome::Genuine(result);
    }
    // Part of it is in the ring already.
    let total = sent + rest(index, socket, request, sent);
    threads::take(&socket.native_send);
    Outcome::Handled(total as isize)
}

/// Right after the kernel's answer to a send of `wanted` bytes: room that it did not find is told of later.
pub fn note_room(socket: &Socket, wanted: usize, result: isize) {
    let waited = || matches!(shunt_os::errno(), libc::EAGAIN | libc::EINTR);
    if result < wanted as isize && (result >= 0 || waited()) {
        socket.fulls.fetch_add(1, Relaxed);
    }
}

/// What is left behind the first `sent` bytes; returns how much of it the kernel took.
pub(super) fn rest(
    index: u32,
    socket: &'static Socket,
    request: Request<'_>,
    sent: usize,
) -> usize {
    let wanted = wanted(request.vector);
    let mut total = sent;
    while total < wanted {
        let (asked, result) = send_some(request, total, usize::MAX);
        if result < 0 && total > 0 {
            owe_error(socket, request, shunt_os::errno());
        }
        note_room(socket, asked, result);
        search::note(index, socket, Way::Out, result);
        total += result.max(0) as usize;
        if result < asked as isize {
            break;
        }
    }
    total - sent
}

/// Gives the kernel at most `limit` of the bytes behind the first `sent`; returns how many, and its
/// answer.
fn send_some(request: Request<'_>, sent: usize, limit: usize) -> (usize, isize) {
    const PARTS: usize = 64;
    let mut vector = [iovec { iov_base: core::ptr::null_mut(), iov_len: 0 }; PARTS];
    let (mut count, mut asked) = (0, 0);
    for part in up_to(parts(request.vector, sent), limit as u64).take(PARTS) {
        vector[count] = iovec { iov_base: part.base.cast(), iov_len: part.len };
        count += 1;
        asked += part.len;
    }
    // SAFETY: zero is a valid msghdr.
    let mut message: libc::msghdr = unsafe { core::mem::zeroed() };
    message.msg_iov = vector.as_mut_ptr();
    message.msg_iovlen = count;
    // The kernel raises no signal for a call that has sent something.
    let quiet = if sent > 0 { libc::MSG_NOSIGNAL } else { 0 };
    // SAFETY: the program's own buffers.
    let result = unsafe { shunt_os::real::sendmsg(request.fd, &message, request.flags | quiet) };
    elsewhere::note();
    (asked, result)
}

/// Makes a call that only the kernel can serve, of `wanted` bytes, behind what a ring has to send again. A stream that
/// may wait waits for room for that first.
pub fn on_tcp(
    delivery: &mut Delivery,
    wanted: usize,
    genuine: &mut dyn FnMut(i32) -> isize,
) -> Outcome {
    let socket = delivery.socket;
    let mut heard = false;
    loop {
        match clear_for_tcp(delivery, heard) {
            Clear::Now => {
                let result = genuine(delivery.fd);
                let errno = shunt_os::errno();
                note_room(socket, wanted, result);
                elsewhere::note();
                threads::take(&socket.native_send);
                set_errno(errno);
                return Outcome::Genuine(result);
            }
            Clear::Gone => return Outcome::Genuine(genuine(delivery.fd)),
            Clear::Broken => {
                break_stream(socket);
                return Outcome::Genuine(genuine(delivery.fd));
            }
            Clear::Shut => {
                return Outcome::Failed(refused(socket, 0));
            }
            Clear::Refused(number) => return Outcome::Failed(number),
            Clear::Unheard => {
                attach::have_fin_sent(socket);
                heard = true;
                continue;
            }
            Clear::NotYet => {}
        }
        if delivery.may_not_wait() {
            socket.fulls.fetch_add(1, Relaxed);
            return Outcome::Failed(libc::EAGAIN);
        }
        if let Some(outcome) = delivery.wait_for_room(false) {
            return outcome;
        }
    }
}

/// Whether TCP's next byte is the stream's.
enum Clear {
    /// `native_send` is counted.
    Now,
    NotYet,
    /// The program has shut this direction; the kernel is not told yet.
    Shut,
    /// As of an attempt to send.
    Unheard,
    /// The peer died, and left unread what the kernel did not know of.
    Refused(i32),
    Broken,
    Gone,
}

fn clear_for_tcp(delivery: &mut Delivery, heard: bool) -> Clear {
    let socket = delivery.socket;
    let mut side = socket.send.lock();
    if !delivery.is_ours() {
        delivery.leave_to_kernel(&mut side);
        return Clear::Gone;
    }
    if side.fin_pending {
        return Clear::Shut;
    }
    let on = observe_writer(socket, &mut side);
    if !heard && attach::closed_unheard(socket) {
        return Clear::Unheard;
    }
    let down = on.and_then(|_| go_down(socket, &mut side)).and_then(|_| resend(socket, &mut side));
    match down {
        Ok(true) => {
            let told = || attach::error_of_death(socket);
            match told_to_resend(&mut side).or_else(told) {
                Some(libc::EPIPE) => return Clear::Shut,
                Some(number) => return Clear::Refused(number),
                None => {}
            }
            threads::add(&socket.native_send, 1);
            delivery.leave_to_kernel(&mut side);
            Clear::Now
        }
        Ok(false) => Clear::NotYet,
        Err(Broken) => Clear::Broken,
    }
}

/// Whether `left` bytes are so many that they are not given to the kernel in one call.
pub(super) fn goes_in_pieces(socket: &Socket, request: Request<'_>, left: usize) -> bool {
    left > PIECE
        && !may_not_wait(socket, request.flags)
        && request.flags & !libc::MSG_NOSIGNAL == 0
        && handles::option_timeout(request.fd, libc::SO_SNDTIMEO).is_none()
}

/// Sends the next piece natively; `Err` ends the call. `native_send` is counted, and is not
/// afterwards.
pub(super) fn piece(
    index: u32,
    socket: &'static Socket,
    request: Request<'_>,
    sent: usize,
) -> Result<usize, Outcome> {
    let (asked, result) = send_some(request, sent, PIECE);
    let errno = shunt_os::errno();
    note_room(socket, asked, result);
    threads::take(&socket.native_send);
    search::note(index, socket, Way::Out, result);
    if result == asked as isize {
        return Ok(asked);
    }
    Err(match result {
        error if error < 0 && sent == 0 => Outcome::Failed(errno),
        error if error < 0 => {
            owe_error(socket, request, errno);
            Outcome::Handled(sent as isize)
        }
        _ => Outcome::Handled(sent as isize + result),
    })
}

/// Whether a send on a stream that is not attached yet is one for [`in_pieces`].
pub fn is_large(socket: &Socket, request: Request<'_>) -> bool {
    let wanted = wanted(request.vector);
    wanted > PIECE
        && socket.stage.load(Relaxed) != stage::SETTLED
        && goes_in_pieces(socket, request, wanted)
}

/// A large send on a stream that is not attached yet.
pub fn in_pieces(
    index: u32,
    socket: &'static Socket,
    mut request: Request<'_>,
    genuine: impl FnOnce() -> isize,
) -> Outcome {
    let wanted = wanted(request.vector);
    while request.already < wanted {
        threads::add(&socket.native_send, 1);
        if socket.mode() != Mode::Plain {
            threads::take(&socket.native_send);
            return send(index, socket, request, genuine);
        }
        match piece(index, socket, request, request.already) {
            Ok(count) => request.already += count,
            Err(outcome) => return outcome,
        }
    }
    Outcome::Handled(wanted as isize)
}
