//! Sending on an attached stream.

use core::sync::atomic::Ordering::*;

use libc::iovec;
use shunt_carriers::parts::up_to;
use shunt_carriers::{Failure, Sender, Sent};
use shunt_os::{handles, set_errno, sys, threads};
use shunt_ring::{Direction, FUTEX, WAIT_SET};
use shunt_stats::{Carrier, Reason};
use shunt_stream::WriterOn;

use crate::attach::{self, break_stream, go_down, observe_writer, resend, try_go_up, Broken};
use crate::outcome::Outcome;
use crate::pool::{stage, Mode, SendSide, Socket};
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
    /// Bytes of `vector` that are sent already.
    pub already: usize,
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
pub const FULL_NS_MAX: u64 = 20_000_000;
/// While a stream is on TCP, a send of more than this that may wait goes there piece by piece: the
/// ring may be there before all is sent.
const PIECE: usize = 256 * 1024;
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
    let mut sent = request.already;
    let mut genuine = Some(genuine);
    let mut patience = blocking::Patience::new(libc::SO_SNDTIMEO);
    let mut looked = false;
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
            Attempt::Native if goes_in_pieces(socket, request, wanted - sent) => {
                match piece(index, socket, request, sent) {
                    Ok(count) => sent += count,
                    Err(outcome) => return outcome,
                }
                if sent == wanted {
                    return Outcome::Handled(sent as isize);
                }
            }
            Attempt::Native => return native(index, socket, request, sent, genuine.take()),
            Attempt::Gone if sent > 0 => {
                sent += rest(index, socket, request, sent);
                return Outcome::Handled(sent as isize);
            }
            Attempt::Error(_) | Attempt::Closed if sent > 0 => {
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
        threads::take(&socket.native_send);
        if result < wanted(request.vector) as isize {
            socket.fulls.fetch_add(1, Relaxed);
        }
        search::note(index, socket, Way::Out, result);
        set_errno(errno);
        return Outcome::Genuine(result);
    }
    // Part of it is in the ring already.
    let total = sent + rest(index, socket, request, sent);
    threads::take(&socket.native_send);
    Outcome::Handled(total as isize)
}

/// What is left behind the first `sent` bytes; returns how much of it the kernel took.
fn rest(index: u32, socket: &'static Socket, request: Request<'_>, sent: usize) -> usize {
    let wanted = wanted(request.vector);
    let mut total = sent;
    while total < wanted {
        let (asked, result) = send_some(request, total, usize::MAX);
        search::note(index, socket, Way::Out, result);
        total += result.max(0) as usize;
        if result < asked as isize {
            socket.fulls.fetch_add(1, Relaxed);
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
    (asked, result)
}

/// Whether `left` bytes are so many that they are not given to the kernel in one call.
fn goes_in_pieces(socket: &Socket, request: Request<'_>, left: usize) -> bool {
    left > PIECE
        && !may_not_wait(socket, request)
        && request.flags & !libc::MSG_NOSIGNAL == 0
        && handles::option_timeout(request.fd, libc::SO_SNDTIMEO).is_none()
}

/// Sends the next piece natively; `Err` ends the call. `native_send` is counted, and is not
/// afterwards.
fn piece(
    index: u32,
    socket: &'static Socket,
    request: Request<'_>,
    sent: usize,
) -> Result<usize, Outcome> {
    let (asked, result) = send_some(request, sent, PIECE);
    let errno = shunt_os::errno();
    threads::take(&socket.native_send);
    search::note(index, socket, Way::Out, result);
    if result == asked as isize {
        return Ok(asked);
    }
    socket.fulls.fetch_add(1, Relaxed);
    Err(match result {
        error if error < 0 && sent == 0 => Outcome::Failed(errno),
        _ => Outcome::Handled(sent as isize + result.max(0)),
    })
}

/// A large send on a stream that is not attached yet. `None`: it is not so large.
pub fn in_pieces(
    index: u32,
    socket: &'static Socket,
    mut request: Request<'_>,
    genuine: impl FnOnce() -> isize,
) -> Option<Outcome> {
    let wanted = wanted(request.vector);
    if wanted <= PIECE
        || socket.stage.load(Relaxed) == stage::SETTLED
        || !goes_in_pieces(socket, request, wanted)
    {
        return None;
    }
    while request.already < wanted {
        threads::add(&socket.native_send, 1);
        if socket.mode() != Mode::Plain {
            threads::take(&socket.native_send);
            return Some(send(index, socket, request, genuine));
        }
        match piece(index, socket, request, request.already) {
            Ok(count) => request.already += count,
            Err(outcome) => return Some(outcome),
        }
    }
    Some(Outcome::Handled(wanted as isize))
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
    threads::add(&socket.native_send, 1);
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
        Request {
            fd,
            generation: socket.generation.load(Relaxed),
            vector: &[],
            flags: 0,
            already: 0,
        },
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

/// A send that may not wait found no room: notes that, and asks to be told of room. False if there
/// is some by now.
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
    let room = side.producer.as_mut().is_none_or(|producer| producer.has_room().unwrap_or(true));
    if room {
        socket.full.store(false, Relaxed);
    }
    room
}

/// A while after [`is_full`], in the service thread. The reader has taken nothing since the last
/// look: go on over TCP. True if it must be looked at again.
pub fn still_full(index: u32, socket: &'static Socket) -> bool {
    {
        let mut side = socket.send.lock();
        let on_ring = socket.mode() == Mode::Attached && side.writer.on() == WriterOn::Ring;
        let Some(direction) = blocking::direction(socket, true) else { return false };
        if !on_ring || !socket.full.load(Relaxed) || has_room(socket, &mut side) {
            socket.full.store(false, Relaxed);
            return false;
        }
        let head = direction.head();
        if core::mem::replace(&mut side.full_head, head) != head {
            return true;
        }
        socket.full.store(false, Relaxed);
    }
    spill_now(index, socket);
    attach::wake_own(index, socket);
    false
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
