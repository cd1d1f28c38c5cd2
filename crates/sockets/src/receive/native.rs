//! Receives that the kernel serves, behind what a ring gave or after a sleep on its words.

use core::sync::atomic::{AtomicI32, Ordering::*};

use libc::iovec;
use shunt_carriers::Part;
use shunt_os::{clock, handles, proc, raw, set_errno, sys, Errno};

use super::attempt::{ahead, Ahead};
use super::peek::PEEK;
use super::sources::parts;
use super::Request;
use crate::attach;
use crate::outcome::Outcome;
use crate::pool::Socket;
use crate::send::wanted;
use crate::wait::blocking::{self, Patience};

/// Whether a call waits on by calls that do not wait, and counted as waiting: its number was closed meanwhile, or
/// it has slept and somebody has set O_NONBLOCK. Others are the kernel's, which holds their file.
pub(super) fn goes_on_by_itself(
    socket: &Socket,
    request: Request<'_>,
    patience: &Patience,
) -> bool {
    let closed = || socket.closing.load(SeqCst) || patience.renamed;
    match patience.has_slept() {
        true => closed() || handles::is_nonblocking(request.fd),
        false => closed() && !blocking::may_not_wait(socket, request.flags),
    }
}

/// A call that has slept to the program, on a ring or by looks, and makes the genuine call by its number.
pub struct Entering {
    place: &'static AtomicI32,
    thread: i32,
}

impl Entering {
    /// Under the receive lock, which whoever closes the number takes as well before it looks ([`let_enter`]).
    pub fn announce(socket: &'static Socket) -> Entering {
        let thread = raw::gettid();
        let is_free = |place: &&AtomicI32| place.load(Relaxed) == 0;
        let place = socket.entering.iter().find(is_free).unwrap_or(&socket.entering[0]);
        place.store(thread, SeqCst);
        Entering { place, thread }
    }
}

impl Drop for Entering {
    fn drop(&mut self) {
        let _ = self.place.compare_exchange(self.thread, 0, SeqCst, Relaxed);
    }
}

/// Before the kernel closes a number of the socket's: a call that began before keeps its file, once it sleeps in the
/// kernel, and a busy machine may be long in letting it come there. One that has run for much longer than that takes was
/// left by a handler's jump.
pub fn let_enter(socket: &Socket) {
    const ENTRY_NS_MAX: u64 = 1_000_000_000;
    const RUN_NS_MAX: u64 = 3_000_000;
    for place in &socket.entering {
        let thread = place.load(SeqCst);
        if thread == 0 || thread == raw::gettid() {
            continue;
        }
        let began = clock::cpu_ns(thread).unwrap_or(0);
        let runs_on =
            || clock::cpu_ns(thread).is_none_or(|now| now.saturating_sub(began) > RUN_NS_MAX);
        let is_there = || place.load(SeqCst) != thread || proc::is_asleep(thread) || runs_on();
        attach::wait_until(ENTRY_NS_MAX, is_there);
        let _ = place.compare_exchange(thread, 0, SeqCst, Relaxed);
    }
}

fn looks_for_all(flags: i32) -> bool {
    flags & libc::MSG_WAITALL != 0 && flags & PEEK != 0
}

/// Waits by the kernel's connection for what the program asked for, and counts as waiting.
pub(super) fn insist(socket: &Socket, patience: &mut Patience, request: Request<'_>) -> Outcome {
    let looks_for_all = looks_for_all(request.flags);
    let wanted = wanted(request.vector);
    let one_try = |fd| {
        let got = at_once(fd, request.vector, request.flags)?;
        let ended = || handles::poll_now(fd, libc::POLLRDHUP | libc::POLLPRI) != 0;
        match looks_for_all && got > 0 && got < wanted && !ended() {
            true => Err(Errno::AGAIN),
            false => Ok(got),
        }
    };
    let events = if looks_for_all { 0 } else { libc::POLLIN };
    let call = || by_its_number(socket, request, one_try);
    // Looked at are also those that came since the last try.
    let so_far = || match looks_for_all {
        true => by_its_number(socket, request, |fd| at_once(fd, request.vector, request.flags)).1,
        false => 0,
    };
    match patience.insist_anew(socket, request.fd, events, call, so_far) {
        Ok(result @ 1..) if request.flags & (libc::MSG_WAITALL | PEEK) == libc::MSG_WAITALL => {
            let rest = rest_natively(socket, patience, request, result as usize);
            Outcome::Genuine(result + rest as isize)
        }
        Ok(result) => Outcome::Genuine(result),
        Err(ended) => ended,
    }
}

/// What TCP has for a call that has got its first bytes from a ring; returns how much. With MSG_WAITALL
/// it waits for all, and is counted as waiting. An error is left to the next call.
pub(super) fn rest_natively(
    socket: &Socket,
    patience: &mut Patience,
    request: Request<'_>,
    already: usize,
) -> usize {
    let errno = shunt_os::errno();
    let got = rest(socket, patience, request, already);
    set_errno(errno);
    got
}

fn rest(socket: &Socket, patience: &mut Patience, request: Request<'_>, already: usize) -> usize {
    let flags = request.flags | libc::MSG_DONTWAIT;
    let waits = request.flags & (libc::MSG_WAITALL | libc::MSG_DONTWAIT) == libc::MSG_WAITALL
        && (patience.has_slept() || !handles::is_nonblocking(request.fd));
    patience.begin();
    let mut total = 0;
    for Part { base, len } in parts(request.vector, already) {
        let mut filled = 0;
        while filled < len {
            let call = || {
                by_its_number(socket, request, |fd| {
                    let (to, room) = (base.wrapping_add(filled), len - filled);
                    let part = [iovec { iov_base: to.cast(), iov_len: room }];
                    match ahead(fd) {
                        Ahead::More => at_once(fd, &part, flags),
                        Ahead::Stop => Ok(0),
                        Ahead::Nothing => Err(Errno::AGAIN),
                    }
                })
            };
            let result = if waits { patience.insist(libc::POLLIN, call) } else { call().1 };
            filled += result.max(0) as usize;
            if result <= 0 || !waits && filled < len {
                return total + filled;
            }
        }
        total += filled;
    }
    total
}

fn by_its_number(
    socket: &Socket,
    request: Request<'_>,
    call: impl FnOnce(i32) -> shunt_os::Result<usize>,
) -> (i32, isize) {
    let _recv = socket.recv.lock();
    blocking::by_its_number(socket, request.generation, request.fd, call)
}

/// A message of bytes alone.
pub(super) fn message_of(vector: &[iovec]) -> libc::msghdr {
    // SAFETY: zero is a valid start.
    let mut message: libc::msghdr = unsafe { core::mem::zeroed() };
    message.msg_iov = vector.as_ptr().cast_mut();
    message.msg_iovlen = vector.len() as _;
    message
}

/// What TCP has now.
fn at_once(fd: i32, vector: &[iovec], flags: i32) -> shunt_os::Result<usize> {
    let mut message = message_of(vector);
    // SAFETY: the program's own buffers. No cancellation point: a lock is held.
    unsafe { sys!(libc::SYS_recvmsg, fd, &raw mut message, flags | libc::MSG_DONTWAIT) }
}
