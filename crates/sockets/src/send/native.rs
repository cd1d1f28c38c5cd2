//! Sends that go to the kernel: whole, in pieces, or behind what a ring took.

use core::cell::Cell;
use core::sync::atomic::Ordering::*;

use libc::iovec;
use shunt_carriers::parts::up_to;
use shunt_link::elsewhere;
use shunt_os::{handles, set_errno, sys, threads, Errno};
use shunt_stream::WriterOn;

use super::{owe_error, refused, told_to_resend, wanted, Delivery, Request};
use crate::attach::{self, break_stream, leave_ring, observe_writer, resend, Broken};
use crate::outcome::Outcome;
use crate::pool::{stage, Socket};
use crate::receive::parts;
use crate::search::{self, Way};
use crate::wait::blocking::{self, may_not_wait, Patience};

/// While a stream is on TCP, a send of more than this that may wait goes there piece by piece: the
/// ring may be there before all is sent.
const PIECE: usize = 256 * 1024;

/// By the kernel, as the program's own call. `native_send` is counted, and is not afterwards.
pub fn native(
    index: u32,
    socket: &'static Socket,
    request: Request<'_>,
    genuine: impl FnOnce() -> isize,
) -> Outcome {
    let result = genuine();
    let errno = shunt_os::errno();
    note_room(socket, wanted(request.vector), result);
    elsewhere::note();
    threads::take(&socket.native_send);
    search::note(index, socket, Way::Out, result);
    if result < 0 && is_broken(socket, errno) {
        return Outcome::Failed(refused(socket, request.flags));
    }
    set_errno(errno);
    Outcome::Genuine(result)
}

/// Whether the kernel's error of a send is a broken pipe, since the peer had shut writing down before its reset.
fn is_broken(socket: &Socket, number: i32) -> bool {
    number == libc::ECONNRESET && attach::is_behind_shutdown(socket)
}

/// Right after the kernel's answer to a send of `wanted` bytes: room that it did not find is told of later.
pub fn note_room(socket: &Socket, wanted: usize, result: isize) {
    let waited = || matches!(shunt_os::errno(), libc::EAGAIN | libc::EINTR);
    if result < wanted as isize && (result >= 0 || waited()) {
        socket.fulls.fetch_add(1, Relaxed);
    }
}

/// Whether a call goes on by calls that do not wait, and counted as waiting: so it keeps its stream when somebody
/// closes its number, and a handler that comes between two of them ends it. So does one that has slept or sent
/// something, whose number was closed meanwhile, or that goes in pieces. Others are the kernel's.
pub(super) fn goes_on_by_itself(
    socket: &Socket,
    request: Request<'_>,
    sent: usize,
    patience: &Patience,
) -> bool {
    let closed = || socket.closing.load(SeqCst) || patience.renamed;
    sent > 0 || patience.has_slept() || closed() || goes_in_pieces(socket, request)
}

/// Gives the kernel some of the bytes behind the first `sent`, once it has room for any if the call may wait:
/// a piece at most. `Err` ends the call.
pub(super) fn piece(
    index: u32,
    socket: &'static Socket,
    request: Request<'_>,
    sent: usize,
    patience: &mut Patience,
) -> Result<usize, Outcome> {
    let waits = !patience.may_not_wait(socket, request.flags);
    let is_left_to_next = Cell::new(false);
    let one_try = || {
        let _send = socket.send.lock();
        blocking::by_its_number(socket, request.generation, request.fd, |fd| {
            is_left_to_next.set(sent > 0 && has_failed(fd));
            match is_left_to_next.get() {
                true => Err(Errno(libc::EPIPE)),
                false => at_once(socket, Request { fd, ..request }, sent),
            }
        })
    };
    let result = match (waits, sent) {
        (false, _) => one_try().1,
        (true, 0) => patience.insist_anew(socket, request.fd, libc::POLLOUT, one_try, || 0)?,
        (true, _) => patience.insist(libc::POLLOUT, one_try),
    };
    search::note(index, socket, Way::Out, result);
    if result >= 0 {
        return Ok(result as usize);
    }
    let number = shunt_os::errno();
    if sent == 0 {
        let is_broken = is_broken(socket, number);
        let number = if is_broken { refused(socket, request.flags) } else { number };
        return Err(Outcome::Failed(number));
    }
    if !is_left_to_next.get() {
        owe_error(socket, request, number);
    }
    Err(Outcome::Handled(sent as isize))
}

/// Whether the connection has ended with an error, which is the next call's to be told of.
fn has_failed(fd: i32) -> bool {
    const FAILED: i16 = libc::POLLERR | libc::POLLHUP;
    handles::poll_now(fd, 0) & FAILED == FAILED
}

/// A piece behind the first `sent` bytes, as far as the kernel has room: its answer. No cancellation point: a lock
/// is held.
fn at_once(socket: &Socket, request: Request<'_>, sent: usize) -> shunt_os::Result<usize> {
    const PARTS: usize = 64;
    let mut vector = [iovec { iov_base: core::ptr::null_mut(), iov_len: 0 }; PARTS];
    let (mut count, mut asked) = (0, 0);
    for part in up_to(parts(request.vector, sent), PIECE as u64).take(PARTS) {
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
    let flags = request.flags | libc::MSG_DONTWAIT | quiet;
    // SAFETY: the program's own buffers.
    let given = unsafe { sys!(libc::SYS_sendmsg, request.fd, &raw const message, flags) };
    let answer = given.map_or_else(
        |error| {
            set_errno(error.0);
            -1
        },
        |count| count as isize,
    );
    note_room(socket, asked, answer);
    elsewhere::note();
    given
}

/// Makes a call that only the kernel can serve, of `wanted` bytes, behind what a ring has to send again. A stream that
/// may wait waits for room for that first.
pub fn on_tcp(
    delivery: &mut Delivery,
    wanted: usize,
    genuine: &mut dyn FnMut(i32) -> isize,
) -> Outcome {
    let socket = delivery.socket;
    let (mut heard, mut stopped) = (false, false);
    loop {
        match clear_for_tcp(delivery, heard, stopped) {
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
            Clear::Unread => {
                attach::have_reader_stop(socket);
                stopped = true;
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
    /// The reader has something unread in the ring, and is asked to stop.
    Unread,
    /// The peer died, and left unread what the kernel did not know of.
    Refused(i32),
    Broken,
    Gone,
}

fn clear_for_tcp(delivery: &mut Delivery, heard: bool, stopped: bool) -> Clear {
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
    if !heard && !side.shut && attach::closed_unheard(socket) {
        return Clear::Unheard;
    }
    let on = on.and_then(|_| leave_ring(socket, &mut side, stopped));
    if matches!(on, Ok(WriterOn::Ring)) {
        return Clear::Unread;
    }
    match on.and_then(|_| resend(socket, &mut side)) {
        Ok(true) => {
            let told = || attach::error_of_death(socket);
            match told_to_resend(socket, &mut side).or_else(told) {
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

/// Whether it is of so many bytes, and may wait, that it is not given to the kernel in one call.
fn goes_in_pieces(socket: &Socket, request: Request<'_>) -> bool {
    wanted(request.vector) > PIECE
        && !may_not_wait(socket, request.flags)
        && request.flags & !libc::MSG_NOSIGNAL == 0
}

/// Whether a send on a stream that is not attached yet is one that goes in pieces.
pub fn is_large(socket: &Socket, request: Request<'_>) -> bool {
    wanted(request.vector) > PIECE
        && socket.stage.load(Relaxed) != stage::SETTLED
        && goes_in_pieces(socket, request)
}
