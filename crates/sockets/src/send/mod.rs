//! Sending on an attached stream.

use core::sync::atomic::Ordering::*;

use libc::iovec;
use shunt_carriers::{Failure, Sender, Sent};
use shunt_os::{park, set_errno, threads};
use shunt_ring::FUTEX;
use shunt_stats::{Carrier, Reason};
use shunt_stream::WriterOn;

use self::full::spill;
use self::native::{goes_on_by_itself, piece};
use crate::attach::{
    self, break_stream, leave_ring, observe_writer, outgoing, resend, try_go_up, Broken,
};
use crate::outcome::Outcome;
use crate::pool::{Mode, SendSide, Socket};
use crate::receive::{is_no_address, parts};
use crate::service::{self, Request as Ask};
use crate::wait::blocking::{self, Watch, Woken};

mod file;
mod full;
pub mod held;
mod native;
mod rest;
pub mod usual;

pub use file::{send_from, Delivery};
pub use full::{has_room, is_full, still_full, FULL_NS_MAX};
pub use native::{is_large, native, note_room, on_tcp};
pub use rest::{rest, Resting, REST_NS};

/// What to send, and how.
#[derive(Clone, Copy)]
pub struct Request<'a> {
    pub fd: i32,
    /// Of the stream that the descriptor named when the call began.
    pub generation: u32,
    pub vector: &'a [iovec],
    pub flags: i32,
}

enum Attempt {
    /// The ring took this many bytes.
    Took(usize),
    /// The ring is full, or bytes must be sent again by TCP first.
    Full,
    /// The kernel's error for bytes that it got late.
    Error(i32),
    /// Nothing is sent any more, of which the kernel or the ring has not heard: the program has shut this
    /// direction, or the connection is reset.
    Shut,
    /// The peer has closed, and TCP has not heard of it yet.
    Unheard,
    /// The genuine call is to be made; `native_send` is counted.
    Native,
    Gone,
    /// The descriptor was closed, and the place may be another stream's.
    Closed,
}

/// After a ring was left because it stayed full: sends on TCP before it is taken again.
const SENDS_BEFORE_UP: u32 = 4;

/// Why only the kernel can send with these flags, if it is so.
#[inline]
pub fn kernels_alone(flags: i32) -> Option<Reason> {
    if flags & libc::MSG_OOB != 0 {
        return Some(Reason::UrgentData);
    }
    (flags & (libc::MSG_ZEROCOPY | libc::MSG_FASTOPEN) != 0).then_some(Reason::ZeroCopy)
}

/// Sends as `sendmsg` does on a connected TCP socket. One that is not attached yet may be before all is sent.
pub fn send(
    index: u32,
    socket: &'static Socket,
    request: Request<'_>,
    genuine: impl FnOnce() -> isize,
) -> Outcome {
    if let Some(reason) = kernels_alone(request.flags) {
        attach::leave(index, reason);
    }
    let wanted = wanted(request.vector);
    if wanted == 0 {
        let attached = socket.mode() == Mode::Attached;
        return if attached && socket.send.lock().fin_pending {
            Outcome::Failed(refused(socket, request.flags))
        } else if let Some(number) = attached.then(|| attach::error_of_death(socket)).flatten() {
            let is_broken = number == libc::EPIPE;
            Outcome::Failed(if is_broken { refused(socket, request.flags) } else { number })
        } else {
            Outcome::PassThrough
        };
    }
    if request.vector.iter().any(|part| part.iov_len > 0 && is_no_address(part.iov_base)) {
        return Outcome::Failed(libc::EFAULT);
    }
    park::test_cancel();
    let mut waiting = false;
    let outcome = send_waiting(index, socket, request, wanted, genuine, &mut waiting);
    if waiting && socket.generation.load(Relaxed) == request.generation {
        let mut side = socket.send.lock();
        side.waiting.end(false);
    }
    if socket.closing.load(Relaxed) {
        crate::calls::descriptor::finish_closing(index);
    }
    outcome
}

#[inline]
fn send_waiting(
    index: u32,
    socket: &'static Socket,
    request: Request<'_>,
    wanted: usize,
    genuine: impl FnOnce() -> isize,
    waiting: &mut bool,
) -> Outcome {
    let mut sent = 0;
    let mut request = request;
    let mut patience = blocking::Patience::new(libc::SO_SNDTIMEO, Some(index));
    let (mut looked, mut heard) = (false, false);
    loop {
        let watch = looked.then(|| Watch::new(socket, true));
        let (attempt, by_itself) = {
            let mut side = socket.send.lock();
            // A stream that was closed is free before its place counts as another's.
            let is_there = socket.generation.load(Relaxed) == request.generation
                && socket.mode() != Mode::Free;
            let attempt = if !is_there {
                Attempt::Closed
            } else if socket.mode() == Mode::Plain {
                // Counted under the lock: it is not attached meanwhile.
                threads::add(&socket.native_send, 1);
                Attempt::Native
            } else if socket.mode() != Mode::Attached {
                Attempt::Gone
            } else {
                match attempt((index, socket), &mut side, request, sent, heard) {
                    Ok(attempt) => attempt,
                    Err(Broken) => {
                        drop(side);
                        break_stream(socket);
                        continue;
                    }
                }
            };
            if matches!(attempt, Attempt::Took(_)) {
                rest::look_at_growth(index, socket, &mut side);
            }
            let is_kernels = matches!(attempt, Attempt::Native | Attempt::Gone);
            let by_itself = is_kernels && goes_on_by_itself(socket, request, sent, &patience);
            // A close need not wait for a call of the kernel's.
            let counts = match attempt {
                Attempt::Full => true,
                _ if is_kernels => by_itself || *waiting && socket.closing.load(Relaxed),
                _ => *waiting,
            };
            match (counts, *waiting) {
                (true, false) => side.waiting.begin(false),
                (false, true) => side.waiting.end(false),
                _ => {}
            }
            *waiting = counts;
            (attempt, by_itself)
        };
        match attempt {
            Attempt::Took(count) => {
                sent += count;
                if sent == wanted {
                    return Outcome::Handled(sent as isize);
                }
            }
            Attempt::Native | Attempt::Gone if by_itself => {
                let given = piece(index, socket, request, sent, &mut patience);
                if matches!(attempt, Attempt::Native) {
                    threads::take(&socket.native_send);
                }
                match given {
                    Ok(count) => sent += count,
                    Err(outcome) => return outcome,
                }
                if sent == wanted {
                    return Outcome::Handled(sent as isize);
                }
            }
            Attempt::Native => return native(index, socket, request, genuine),
            Attempt::Error(number) if sent > 0 => {
                owe_error(socket, request, number);
                return Outcome::Handled(sent as isize);
            }
            Attempt::Closed | Attempt::Shut if sent > 0 => return Outcome::Handled(sent as isize),
            Attempt::Closed => return Outcome::Failed(libc::EBADF),
            Attempt::Shut => return Outcome::Failed(refused(socket, request.flags)),
            Attempt::Unheard => {
                attach::have_fin_sent(socket);
                heard = true;
            }
            Attempt::Error(number) => return Outcome::Failed(number),
            Attempt::Gone => return Outcome::PassThrough,
            Attempt::Full => {
                if patience.may_not_wait(socket, request.flags) {
                    if !is_full(index, socket) {
                        continue;
                    }
                    return if sent > 0 {
                        Outcome::Handled(sent as isize)
                    } else {
                        Outcome::Failed(libc::EAGAIN)
                    };
                }
                let Some(watch) = watch else {
                    looked = true;
                    continue;
                };
                let ended = wait(index, socket, &watch, request, &mut patience, sent > 0);
                if let Some(fd) = blocking::other_number(socket, request.fd) {
                    request.fd = fd;
                    patience.renamed = true;
                }
                match ended {
                    None => {}
                    Some(_) if sent > 0 => return Outcome::Handled(sent as isize),
                    Some(outcome) => return outcome,
                }
            }
        }
    }
}

/// What a send is told that the kernel would refuse, and does not see: a pending error comes first,
/// and is taken by who is told.
fn refused(socket: &Socket, flags: i32) -> i32 {
    if let Some(number) = attach::take_error(socket).filter(|number| *number != libc::EPIPE) {
        return number;
    }
    if flags & libc::MSG_NOSIGNAL == 0 {
        shunt_os::signals::raise_sigpipe();
    }
    libc::EPIPE
}

/// Bytes in all parts.
pub fn wanted(vector: &[iovec]) -> usize {
    vector.iter().map(|part| part.iov_len).sum()
}

fn attempt(
    (index, socket): (u32, &'static Socket),
    side: &mut SendSide,
    request: Request<'_>,
    already: usize,
    heard: bool,
) -> Result<Attempt, Broken> {
    let holds = held::is_wanted(socket, request.flags);
    if side.fin_pending {
        return Ok(Attempt::Shut);
    }
    match observe_writer(socket, side)? {
        WriterOn::Ring if socket.told_reset.load(Relaxed) => return Ok(Attempt::Shut),
        WriterOn::Ring => {}
        _ if !heard && !side.shut && attach::closed_unheard(socket) => return Ok(Attempt::Unheard),
        WriterOn::Resend { .. } => {
            if !resend(socket, side)? {
                return Ok(Attempt::Full);
            }
            if let Some(number) = told_to_resend(socket, side) {
                return Ok(Attempt::Error(number));
            }
            return attempt_native(socket, side);
        }
        WriterOn::Tcp => {
            if let Some(number) = told_to_resend(socket, side) {
                return Ok(Attempt::Error(number));
            }
            side.since_down = side.since_down.saturating_add(1);
            let waits = side.since_down < SENDS_BEFORE_UP && side.ring_only > 0;
            // What the kernel holds back stands before whatever a ring would.
            if waits || holds || !try_go_up(socket, side) {
                return attempt_native(socket, side);
            }
        }
    }
    if holds {
        let rest = wanted(request.vector) - already;
        // SAFETY: the program's own buffer.
        if unsafe { held::hold((index, socket), side, parts(request.vector, already), rest) }? {
            count_sent(socket, rest);
            return Ok(Attempt::Took(rest));
        }
    }
    let Some(producer) = &mut side.producer else { return Err(Broken) };
    // SAFETY: the program's own buffer.
    match unsafe { producer.try_send(parts(request.vector, already)) } {
        Ok(Sent::Took(total)) => {
            count_sent(socket, total);
            Ok(Attempt::Took(total))
        }
        Ok(Sent::Full) if attach::widen_room(socket, side) => {
            attempt((index, socket), side, request, already, heard)
        }
        // A reader that left since we observed is found by the next attempt.
        Ok(Sent::Full) | Err(Failure::Left) => Ok(Attempt::Full),
        Err(_) => Err(Broken),
    }
}

/// What a re-send, or the end of a call, was told in the place of the next. EPIPE the kernel says again.
fn told_to_resend(socket: &Socket, side: &mut SendSide) -> Option<i32> {
    let told = side.failed.take().map(|number| attach::renamed(socket, number));
    told.filter(|number| *number != libc::EPIPE)
}

/// A send that has taken bytes was told of the connection's error, which is for the next call then.
fn owe_error(socket: &Socket, request: Request<'_>, number: i32) {
    let of_call =
        [libc::EAGAIN, libc::EINTR, libc::ERESTART, libc::EFAULT, libc::ENOBUFS, libc::ENOMEM];
    // The kernel says it again, but for what it takes for another.
    let is_repeated = number == libc::EPIPE && !attach::owes_reset(socket);
    let is_for_next = !of_call.contains(&number) && !is_repeated;
    let mut side = socket.send.lock();
    if socket.generation.load(Relaxed) == request.generation && is_for_next {
        side.failed.get_or_insert(number);
    }
}

#[inline]
fn count_sent(socket: &Socket, total: usize) {
    if let Some(entry) = socket.entry() {
        entry.sent(Carrier::Shm, total as u64);
    }
}

fn attempt_native(socket: &Socket, _side: &SendSide) -> Result<Attempt, Broken> {
    match attach::error_of_death(socket) {
        Some(libc::EPIPE) => return Ok(Attempt::Shut),
        Some(number) => return Ok(Attempt::Error(number)),
        None => {}
    }
    // Counted under the lock: nobody goes up while a native send is in flight.
    threads::add(&socket.native_send, 1);
    Ok(Attempt::Native)
}

/// shutdown of an attached stream: the FIN follows the last byte, whichever carrier has it.
pub fn shutdown(index: u32, socket: &'static Socket, how: i32) -> Outcome {
    let mut later = false;
    let mut broken = false;
    if socket.shut_reading.load(Relaxed) && socket.shut_writing.load(Relaxed) {
        // From here on the kernel answers every byte of the peer's with a reset.
        attach::leave(index, Reason::Closed);
    }
    if how == libc::SHUT_WR || how == libc::SHUT_RDWR {
        let mut side = socket.send.lock();
        if socket.mode() != Mode::Attached {
            return Outcome::PassThrough;
        }
        if side.fin_pending {
            return Outcome::Handled(0);
        }
        held::show_locked(&mut side);
        side.shut = true;
        if let Some(link) = socket.link() {
            outgoing(link, socket.slot.load(Relaxed)).shut_writer();
        }
        let down = loop {
            let held = how == libc::SHUT_WR
                && observe_writer(socket, &mut side)
                    .and_then(|_| attach::hold_fin(socket, &mut side))
                    .unwrap_or(false);
            if held {
                drop(side);
                // Who sleeps for room is told that he writes no more.
                blocking_wake(socket);
                return Outcome::Handled(0);
            }
            let on = observe_writer(socket, &mut side)
                .and_then(|_| leave_ring(socket, &mut side, how != libc::SHUT_WR));
            match on {
                // The reader has come to it since.
                Ok(WriterOn::Ring) => {}
                on => break on.and_then(|_| resend(socket, &mut side)),
            }
        };
        match down {
            Ok(sent) => later = !sent,
            Err(Broken) => broken = true,
        }
        if later {
            side.fin_pending = true;
        }
    }
    if broken {
        break_stream(socket);
    }
    blocking_wake(socket);
    if !later {
        if let (false, Some(link)) = (how == libc::SHUT_RD, socket.link()) {
            outgoing(link, socket.slot.load(Relaxed)).fin_is_sent();
        }
        return Outcome::PassThrough;
    }
    if how == libc::SHUT_RDWR {
        // SAFETY: no pointers.
        unsafe { shunt_os::real::shutdown(socket.fd.load(Relaxed), libc::SHUT_RD) };
    }
    if let Some(service) = service::running() {
        service.ask(Ask::Flush { index, generation: socket.generation.load(Relaxed) });
    }
    Outcome::Handled(0)
}

fn blocking_wake(socket: &'static Socket) {
    let errno = shunt_os::errno();
    attach::wake_own(socket);
    set_errno(errno);
}

/// Waits until another attempt is worth it; `Some` ends the call so, or with what it has sent if it
/// `has_some`.
fn wait(
    index: u32,
    socket: &'static Socket,
    watch: &Watch,
    request: Request<'_>,
    patience: &mut blocking::Patience,
    has_some: bool,
) -> Option<Outcome> {
    let (direction, fd) =
        match patience.before_sleep(socket, watch, &socket.send_policy, request.flags) {
            Ok(ready) => ready,
            // Another process has set O_NONBLOCK.
            Err(Some(Outcome::Failed(libc::EAGAIN))) if !is_full(index, socket) => return None,
            Err(ended) => return ended,
        };
    let word = direction.wake.want_space(FUTEX);
    if watch.is_worth_another(socket) {
        return None;
    }
    let limit = patience.limit(fd);
    let bounded = limit.map_or(FULL_NS_MAX, |limit| limit.min(FULL_NS_MAX));
    let bounded = patience.elapsed() + bounded;
    let word_at = &direction.wake.space_wanted;
    let woken = patience.sleep_at_most(word_at, word, &socket.send_policy, Some(bounded));
    let interrupted = matches!(woken, Woken::Interrupted | Woken::Restarted);
    match woken {
        Woken::Look => None,
        _ if interrupted && watch.changed(socket) => None,
        Woken::Interrupted => Some(Outcome::Failed(libc::EINTR)),
        // With some bytes sent, or a limit of its own, it is not begun anew.
        Woken::Restarted if has_some || limit.is_some() => Some(Outcome::Failed(libc::EINTR)),
        Woken::Restarted => blocking::begun_anew(socket, request.fd, patience),
        Woken::TimedOut if limit.is_some_and(|limit| patience.elapsed() >= limit) => {
            Some(Outcome::Failed(libc::EAGAIN))
        }
        Woken::TimedOut => {
            spill(index, socket, watch);
            None
        }
    }
}
