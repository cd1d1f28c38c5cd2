//! Sending on an attached stream.

use core::sync::atomic::Ordering::*;

use libc::iovec;
use shunt_carriers::{Failure, Part, Sender, Sent};
use shunt_os::{handles, set_errno, sys};
use shunt_ring::{Direction, FUTEX};
use shunt_stats::{Carrier, Reason};
use shunt_stream::WriterOn;

use crate::attach::{self, break_stream, go_down, observe_writer, resend, try_go_up, Broken};
use crate::outcome::Outcome;
use crate::pool::{Mode, SendSide, Socket};
use crate::receive::{is_no_address, parts};
use crate::search::{self, Way};
use crate::service::{self, Request as Ask};
use crate::wait::blocking::{self, Woken};

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
    /// The program has shut this direction; the kernel is not told yet.
    Shut,
    /// The genuine call is to be made; `native_send` is counted.
    Native,
    Gone,
    /// The descriptor was closed, and the place may be another stream's.
    Closed,
}

/// A reader that takes nothing for this long is given the kernel's larger buffer instead, so that
/// a program that relies on it does not stand still.
const FULL_NS_MAX: u64 = 20_000_000;
/// After a ring was left because it stayed full: sends on TCP before it is taken again.
const SENDS_BEFORE_UP: u32 = 4;

/// Sends as `sendmsg` does on a connected TCP socket.
pub fn send(
    index: u32,
    socket: &'static Socket,
    request: Request<'_>,
    genuine: impl FnOnce() -> isize,
) -> Outcome {
    if request.flags & (libc::MSG_OOB | libc::MSG_ZEROCOPY | libc::MSG_FASTOPEN) != 0 {
        let reason =
            if request.flags & libc::MSG_OOB != 0 { Reason::UrgentData } else { Reason::ZeroCopy };
        attach::leave(index, socket, reason);
    }
    let wanted = wanted(request.vector);
    if wanted == 0 {
        return Outcome::PassThrough;
    }
    if request.vector.iter().any(|part| part.iov_len > 0 && is_no_address(part.iov_base)) {
        return Outcome::Failed(libc::EFAULT);
    }
    let mut waiting = false;
    let outcome = send_waiting(index, socket, request, wanted, genuine, &mut waiting);
    if waiting && socket.generation.load(Relaxed) == request.generation {
        let mut side = socket.send.lock();
        side.waiting = side.waiting.saturating_sub(1);
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
    let mut sent = 0usize;
    let mut genuine = Some(genuine);
    let mut patience = blocking::Patience::new(libc::SO_SNDTIMEO);
    let mut looked = false;
    let mut spilled = false;
    loop {
        let watch = looked.then(|| Watch::new(socket));
        let attempt = {
            let mut side = socket.send.lock();
            if socket.generation.load(Relaxed) != request.generation {
                Attempt::Closed
            } else if socket.mode() != Mode::Attached {
                Attempt::Gone
            } else {
                match attempt(socket, &mut side, request.vector, sent) {
                    Ok(Attempt::Full) => {
                        if !*waiting {
                            *waiting = true;
                            side.waiting += 1;
                        }
                        Attempt::Full
                    }
                    Ok(attempt) => attempt,
                    Err(Broken) => {
                        drop(side);
                        break_stream(index, socket);
                        Attempt::Gone
                    }
                }
            }
        };
        match attempt {
            Attempt::Took(count) => {
                sent += count;
                if sent == wanted {
                    return Outcome::Handled(sent as isize);
                }
            }
            Attempt::Native => return native(index, socket, request, sent, genuine.take()),
            Attempt::Error(_) | Attempt::Gone | Attempt::Closed if sent > 0 => {
                return Outcome::Handled(sent as isize);
            }
            Attempt::Closed => return Outcome::Failed(libc::EBADF),
            Attempt::Shut => {
                if request.flags & libc::MSG_NOSIGNAL == 0 {
                    shunt_os::signals::raise_sigpipe();
                }
                return Outcome::Failed(libc::EPIPE);
            }
            Attempt::Error(number) => return Outcome::Failed(number),
            Attempt::Gone => return Outcome::PassThrough,
            Attempt::Full => {
                if may_not_wait(socket, request) {
                    // TCP would take more than a ring does before it says EAGAIN.
                    if !spilled && spill_now(index, socket) {
                        spilled = true;
                        continue;
                    }
                    socket.fulls.fetch_add(1, Relaxed);
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
                if let Some(number) = wait(index, socket, &watch, request, &mut patience) {
                    return if sent > 0 {
                        Outcome::Handled(sent as isize)
                    } else {
                        Outcome::Failed(number)
                    };
                }
            }
        }
    }
}

/// Bytes in all parts.
pub fn wanted(vector: &[iovec]) -> usize {
    vector.iter().map(|part| part.iov_len).sum()
}

/// The rest by a genuine call.
fn native(
    index: u32,
    socket: &'static Socket,
    request: Request<'_>,
    sent: usize,
    genuine: Option<impl FnOnce() -> isize>,
) -> Outcome {
    if let (0, Some(genuine)) = (sent, genuine) {
        let result = genuine();
        let errno = shunt_os::errno();
        socket.native_send.fetch_sub(1, SeqCst);
        if result < wanted(request.vector) as isize {
            socket.fulls.fetch_add(1, Relaxed);
        }
        search::note(index, socket, Way::Out, result);
        set_errno(errno);
        return Outcome::Genuine(result);
    }
    // Part of it is in the ring already: what is left, piece by piece.
    let mut total = sent;
    for Part { base, len: length } in parts(request.vector, sent) {
        // SAFETY: the program's own buffer.
        let result = unsafe {
            shunt_os::real::send(
                request.fd,
                base.cast(),
                length,
                request.flags | libc::MSG_NOSIGNAL,
            )
        };
        if result < 0 {
            socket.fulls.fetch_add(1, Relaxed);
            break;
        }
        search::note(index, socket, Way::Out, result);
        total += result as usize;
        if (result as usize) < length {
            socket.fulls.fetch_add(1, Relaxed);
            break;
        }
    }
    socket.native_send.fetch_sub(1, SeqCst);
    Outcome::Handled(total as isize)
}

fn attempt(
    socket: &Socket,
    side: &mut SendSide,
    vector: &[iovec],
    already: usize,
) -> Result<Attempt, Broken> {
    if side.fin_pending {
        return Ok(Attempt::Shut);
    }
    match observe_writer(socket, side)? {
        WriterOn::Ring => {}
        WriterOn::Resend { .. } => {
            if !resend(socket, side)? {
                return Ok(Attempt::Full);
            }
            if let Some(number) = side.failed.take() {
                if number != libc::EPIPE {
                    return Ok(Attempt::Error(number));
                }
            }
            return attempt_native(socket, side);
        }
        WriterOn::Tcp => {
            side.since_down = side.since_down.saturating_add(1);
            if side.since_down < SENDS_BEFORE_UP && side.ring_only > 0 || !try_go_up(socket, side) {
                return attempt_native(socket, side);
            }
        }
    }
    let Some(producer) = &mut side.producer else { return Err(Broken) };
    // SAFETY: the program's own buffer.
    match unsafe { producer.try_send(parts(vector, already)) } {
        Ok(Sent::Took(total)) => {
            count_sent(socket, total);
            Ok(Attempt::Took(total))
        }
        // A reader that left since we observed is found by the next attempt.
        Ok(Sent::Full) | Err(Failure::Left) => Ok(Attempt::Full),
        Err(_) => Err(Broken),
    }
}

#[inline]
fn count_sent(socket: &Socket, total: usize) {
    if let Some(entry) = socket.entry() {
        entry.sent(Carrier::Shm, total as u64);
    }
}

fn attempt_native(socket: &Socket, _side: &SendSide) -> Result<Attempt, Broken> {
    // Counted under the lock: nobody goes up while a native send is in flight.
    socket.native_send.fetch_add(1, SeqCst);
    Ok(Attempt::Native)
}

/// Reads up to `count` bytes of `input` straight into the ring, for sendfile. `None`: the stream
/// is not on the ring, or the ring is full.
pub fn send_from(
    index: u32,
    socket: &'static Socket,
    input: i32,
    offset: Option<i64>,
    count: usize,
) -> Option<Result<usize, i32>> {
    let mut side = socket.send.lock();
    if socket.mode() != Mode::Attached {
        return None;
    }
    if !matches!(observe_writer(socket, &mut side), Ok(WriterOn::Ring)) {
        let up = matches!(side.writer.on(), WriterOn::Tcp) && try_go_up(socket, &mut side);
        if !up {
            return None;
        }
    }
    let producer = side.producer.as_mut()?;
    let mut total = 0usize;
    while total < count {
        let Ok((base, free)) = producer.ring().writable() else {
            drop(side);
            break_stream(index, socket);
            return None;
        };
        let length = free.min(count - total);
        if length == 0 {
            break;
        }
        let at = offset.map_or(-1, |offset| offset + total as i64);
        // SAFETY: `length` bytes of the ring are free and this thread holds the send lock. The
        // kernel writes them; what the peer scribbles meanwhile only hurts what it reads.
        let result = unsafe {
            if at >= 0 {
                sys!(libc::SYS_pread64, input, base.as_ptr(), length, at)
            } else {
                sys!(libc::SYS_read, input, base.as_ptr(), length)
            }
        };
        match result {
            Ok(0) => {
                if total == 0 {
                    return Some(Ok(0));
                }
                break;
            }
            Ok(got) => {
                producer.ring().stage(got);
                total += got;
                if got < length {
                    break;
                }
            }
            Err(error) if total == 0 => return Some(Err(error.0)),
            Err(_) => break,
        }
    }
    if total == 0 {
        return None;
    }
    producer.publish();
    count_sent(socket, total);
    Some(Ok(total))
}

/// Waits for room in the ring; for sendfile.
pub fn wait_for_room(
    index: u32,
    socket: &'static Socket,
    fd: i32,
    patience: &mut blocking::Patience,
) -> Option<i32> {
    let watch = Watch::new(socket);
    {
        let mut side = socket.send.lock();
        if !matches!(observe_writer(socket, &mut side), Ok(WriterOn::Ring)) {
            return None;
        }
        let free = side.producer.as_mut().map(|producer| producer.ring().free());
        if matches!(free, Some(Ok(free)) if free > 0) {
            return None;
        }
    }
    wait(
        index,
        socket,
        &watch,
        Request { fd, generation: socket.generation.load(Relaxed), vector: &[], flags: 0 },
        patience,
    )
}

/// shutdown of an attached stream: the FIN follows the last byte, whichever carrier has it.
pub fn shutdown(index: u32, socket: &'static Socket, how: i32) -> Outcome {
    let mut later = false;
    let mut broken = false;
    if how == libc::SHUT_WR || how == libc::SHUT_RDWR {
        let mut side = socket.send.lock();
        if socket.mode() != Mode::Attached {
            return Outcome::PassThrough;
        }
        if side.fin_pending {
            return Outcome::Handled(0);
        }
        side.shut = true;
        let held = how == libc::SHUT_WR
            && observe_writer(socket, &mut side)
                .and_then(|_| attach::hold_fin(socket, &mut side))
                .unwrap_or(false);
        if held {
            return Outcome::Handled(0);
        }
        let down = observe_writer(socket, &mut side)
            .and_then(|_| go_down(socket, &mut side))
            .and_then(|_| resend(socket, &mut side));
        match down {
            Ok(sent) => later = !sent,
            Err(Broken) => broken = true,
        }
        if later {
            side.fin_pending = true;
        }
    }
    if broken {
        break_stream(index, socket);
    }
    if how == libc::SHUT_RD || how == libc::SHUT_RDWR {
        blocking_wake(index, socket);
    }
    if !later {
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

fn blocking_wake(index: u32, socket: &'static Socket) {
    let errno = shunt_os::errno();
    attach::wake_own(index, socket);
    set_errno(errno);
}

/// The writer's words as they were before an attempt.
struct Watch {
    direction: Option<&'static Direction>,
    head: u64,
    end: u64,
}

impl Watch {
    #[inline]
    fn new(socket: &Socket) -> Watch {
        let direction = blocking::direction(socket, true);
        let (head, end) = direction.map_or((0, 0), |d| (d.head(), d.end()));
        Watch { direction, head, end }
    }

    fn changed(&self, socket: &Socket) -> bool {
        self.direction.is_none_or(|d| d.head() != self.head || d.end() != self.end)
            || socket.mode() != Mode::Attached
    }
}

/// Waits until another attempt is worth it; `Some` ends the call with this error.
fn wait(
    index: u32,
    socket: &'static Socket,
    watch: &Watch,
    request: Request<'_>,
    patience: &mut blocking::Patience,
) -> Option<i32> {
    if may_not_wait(socket, request) {
        return Some(libc::EAGAIN);
    }
    let direction = watch.direction?;
    if patience.spin(&socket.send_policy, || watch.changed(socket)) {
        return None;
    }
    let fd = socket.fd.load(Relaxed);
    if handles::is_nonblocking(fd) {
        return Some(libc::EAGAIN);
    }
    let word = direction.wake.want_space(FUTEX);
    if watch.changed(socket) {
        return None;
    }
    let limit = handles::option_timeout(fd, libc::SO_SNDTIMEO);
    let bounded = limit.map_or(FULL_NS_MAX, |limit| limit.min(FULL_NS_MAX));
    let bounded = patience.elapsed() + bounded;
    let word_at = &direction.wake.space_wanted;
    match patience.sleep_at_most(word_at, word, &socket.send_policy, Some(bounded)) {
        Woken::Look => None,
        Woken::Interrupted => interrupted(watch, socket, limit.is_some()),
        Woken::TimedOut if limit.is_some_and(|limit| patience.elapsed() >= limit) => {
            Some(libc::EAGAIN)
        }
        Woken::TimedOut => {
            spill(index, socket, watch);
            None
        }
    }
}

/// A bounded futex wait is not restarted by the kernel as its own send would be, unless
/// SO_SNDTIMEO is set.
fn interrupted(watch: &Watch, socket: &Socket, has_limit: bool) -> Option<i32> {
    let ends = has_limit || shunt_os::signals::some_handler_interrupts();
    (ends && !watch.changed(socket)).then_some(libc::EINTR)
}

fn may_not_wait(socket: &Socket, request: Request<'_>) -> bool {
    request.flags & libc::MSG_DONTWAIT != 0 || socket.nonblocking.load(Relaxed)
}

/// The reader took nothing for long: go on over TCP.
#[cold]
fn spill(index: u32, socket: &'static Socket, watch: &Watch) {
    if !watch.changed(socket) {
        spill_now(index, socket);
    }
}

/// A full ring is left for the kernel's buffer, which holds more. False if it was not a ring.
#[cold]
pub fn spill_now(index: u32, socket: &'static Socket) -> bool {
    let broken = {
        let mut side = socket.send.lock();
        if socket.mode() != Mode::Attached || side.writer.on() != WriterOn::Ring {
            return false;
        }
        let done = observe_writer(socket, &mut side)
            .and_then(|_| go_down(socket, &mut side))
            .and_then(|_| resend(socket, &mut side));
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
        break_stream(index, socket);
    }
    true
}
