//! Receiving on an attached stream.
//!
//! The ring is looked at first, with one load beyond the lock. Everything else (TCP before the
//! crossing, the end of a segment, the end of the stream) is asked of `stream` and the kernel.

use core::sync::atomic::Ordering::*;

use libc::iovec;
use shunt_os::{clock, handles, park, set_errno, threads};
use shunt_ring::FUTEX;
use shunt_stream::ReaderOn;

use self::ends::{
    await_owed, has_died_unread, outgoing_unread, stands_at_end, stands_at_held_end, was_reset,
};
use self::native::{goes_on_by_itself, insist, rest_natively};
use self::peek::{peek_over_the_seam, PEEK};
use self::sources::{from_ring, from_tcp};
use self::usual::Took;
use crate::attach::{
    self, agree_locked, break_stream, incoming, observe_reader, restart_consumer, Broken,
};
use crate::outcome::Outcome;
use crate::pool::{Mode, RecvSide, Socket};
use crate::send::wanted;
use crate::wait::blocking::{self, Watch, Woken};

mod ends;
pub mod flow;
mod native;
mod peek;
mod remains;
mod sources;
pub mod usual;

pub use ends::{await_death, ended_by_death, has_ended, is_dying, is_dying_locked, owes};
pub use native::{let_enter, Entering};
pub use remains::{receive_remains, remaining};
pub use sources::{is_buffer, is_no_address, is_part, parts};

/// What to receive into, and how.
#[derive(Clone, Copy)]
pub struct Request<'a> {
    pub fd: i32,
    /// Of the stream that the descriptor named when the call began.
    pub generation: u32,
    pub vector: &'a [iovec],
    pub flags: i32,
}

impl Request<'_> {
    /// Whether it leaves the bytes where they are. One for no bytes looks for some, too.
    fn looks(&self) -> bool {
        self.flags & PEEK != 0 || wanted(self.vector) == 0
    }
}

/// What one attempt gave.
enum Attempt {
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
    fn satisfies(&self, wanted: usize) -> bool {
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
    fn ends(&self, got: usize, wanted: usize, wants_all: bool) -> bool {
        match *self {
            Attempt::Got(count) => !wants_all || count == 0 || got + count == wanted,
            Attempt::Error(_) => true,
            _ => false,
        }
    }
}

/// Receives as `recvmsg` does on a connected TCP socket.
#[inline]
pub fn receive(
    index: u32,
    socket: &'static Socket,
    request: Request<'_>,
    genuine: impl FnOnce() -> isize,
) -> Outcome {
    park::test_cancel();
    let mut waiting = false;
    let outcome = receive_waiting(index, socket, request, genuine, &mut waiting);
    if waiting && socket.generation.load(Relaxed) == request.generation {
        let mut recv = socket.recv.lock();
        recv.waiting.end(request.looks());
    }
    if socket.closing.load(Relaxed) {
        crate::calls::descriptor::finish_closing(index);
    }
    outcome
}

#[inline]
fn receive_waiting(
    index: u32,
    socket: &'static Socket,
    request: Request<'_>,
    genuine: impl FnOnce() -> isize,
    waiting: &mut bool,
) -> Outcome {
    if request.flags & (libc::MSG_OOB | libc::MSG_ERRQUEUE) != 0 {
        return Outcome::PassThrough;
    }
    let wanted = wanted(request.vector);
    if wanted == 0 {
        return nothing(index, socket, request, genuine, waiting);
    }
    let bad = |part: &iovec| part.iov_len > 0 && is_no_address(part.iov_base);
    if request.flags & libc::MSG_TRUNC == 0 && request.vector.iter().any(bad) {
        return Outcome::Failed(libc::EFAULT);
    }
    let all = request.flags & libc::MSG_WAITALL != 0;
    let wants_all = all && request.flags & PEEK == 0;
    let peeks_all = all && request.flags & PEEK != 0;
    let mut got = 0usize;
    // What a look at all bytes has seen of them.
    let mut peeked = 0usize;
    let mut patience =
        blocking::Patience::new(libc::SO_RCVTIMEO, Some(index)).of_look(request.looks());
    let usual = usual::part(&request);
    // The short way has just looked for what is usual.
    let (mut looked, mut awaited) = (usual.is_some(), false);
    // What the peer owes has been waited for, and what is left in a ring has been looked for.
    let (mut trusted, mut drained) = (false, false);
    let mut owed_since = None;
    let waited_long = |since| clock::now_ns() - since >= attach::CORE_NS_MAX;
    let mut request = request;
    loop {
        // The words are looked at beforehand only if the last attempt found nothing: a look costs
        // a cache line that a call which finds something does not need.
        let watch = looked.then(|| Watch::new(socket, false));
        let (attempt, goes_on, entering) = {
            let mut recv = socket.recv.lock();
            let attempt = if socket.generation.load(Relaxed) != request.generation {
                Attempt::Closed
            } else if socket.mode() != Mode::Attached {
                if got == 0 && !drained && socket.remains.load(Acquire) {
                    Attempt::Remains
                } else if got == 0 && take_reset(socket, &mut recv) {
                    Attempt::Error(libc::ECONNRESET)
                } else {
                    Attempt::Gone
                }
            } else {
                // What has come while the call waited is as it is for one that need not.
                let at_once = match usual {
                    Some(part) if looked && got == 0 => usual::take_locked(socket, &mut recv, part),
                    _ => Took::Unknown,
                };
                let mut tried = match at_once {
                    Took::Some(count) => Ok(Attempt::Got(count)),
                    _ => attempt(socket, &mut recv, request, got, awaited),
                };
                if let (true, Ok(Attempt::Got(count))) = (peeks_all, &tried) {
                    if *count > 0 && *count < wanted && !stands_at_end(socket, &recv) {
                        peeked = *count;
                        tried = Ok(Attempt::Empty);
                    }
                }
                let ends = got > 0 && !wants_all || patience.may_not_wait(socket, request.flags);
                if matches!(tried, Ok(Attempt::Empty))
                    && peeked == 0
                    && !trusted
                    && owes(socket, &recv)
                    && ends
                {
                    tried = Ok(Attempt::Owed);
                }
                if !tried.as_ref().is_ok_and(|attempt| attempt.satisfies(wanted - got))
                    && !sees_all(socket, &recv, &tried, request.flags, peeked)
                {
                    recv.misses = recv.misses.wrapping_add(1);
                }
                if matches!(tried, Ok(Attempt::Empty | Attempt::Dying))
                    && !*waiting
                    && !patience.may_not_wait(socket, request.flags)
                {
                    *waiting = true;
                    recv.waiting.begin(request.looks());
                }
                match tried {
                    Ok(Attempt::Empty) if socket.shut_reading.load(Relaxed) => Attempt::Got(0),
                    Ok(attempt) => attempt,
                    Err(Broken) => {
                        drop(recv);
                        break_stream(socket);
                        continue;
                    }
                }
            };
            let goes_on = goes_on_by_itself(socket, request, &patience);
            let is_kernels = matches!(attempt, Attempt::Native | Attempt::Gone)
                && !goes_on
                && !(got > 0 && wants_all);
            let enters = is_kernels && got == 0 && patience.has_slept();
            let entering = enters.then(|| Entering::announce(socket));
            // Who closes the number meanwhile lets a call that is counted go on.
            if *waiting && (is_kernels || attempt.ends(got, wanted, wants_all)) {
                *waiting = false;
                recv.waiting.end(request.looks());
            }
            (attempt, goes_on, entering)
        };
        match attempt {
            Attempt::Got(count) => {
                got += count;
                if !wants_all || got == wanted || count == 0 {
                    return Outcome::Handled(got as isize);
                }
            }
            // To a program a receive of less than it asked for says that there was no more
            // (epoll(7)): no edge will follow for what lies on the other carrier already.
            Attempt::UpToTcp(count) => {
                got += count;
                // A peer that sends a little now and then does not keep the call for ever.
                trusted &= count == 0 || owed_since.is_some_and(waited_long);
                if got == wanted || ahead(request.fd) == Ahead::Stop {
                    return Outcome::Handled(got as isize);
                }
            }
            // What TCP has is told behind the ring's bytes, be it an error.
            Attempt::UpToTheRing(count) => {
                got += count;
                if got == wanted {
                    return Outcome::Handled(got as isize);
                }
            }
            Attempt::Owed => {
                trusted = true;
                owed_since.get_or_insert_with(clock::now_ns);
                await_owed(socket, request.generation);
            }
            Attempt::Dying => {
                awaited = true;
                await_death(socket, request.generation);
            }
            Attempt::Error(number) if got > 0 => {
                if number == libc::ECONNRESET {
                    socket.recv.lock().reset_pending = true;
                }
                return Outcome::Handled(got as isize);
            }
            Attempt::Error(number) => return Outcome::Failed(number),
            Attempt::Native if got > 0 => {
                count_waiting(socket, request, wants_all, waiting);
                got += rest_natively(socket, &mut patience, request, got);
                leave_native(index, socket);
                return Outcome::Handled(got as isize);
            }
            Attempt::Native => {
                let outcome = match goes_on {
                    true => insist(socket, &mut patience, request),
                    false => Outcome::Genuine(genuine()),
                };
                let result = if let Outcome::Genuine(result) = outcome { result } else { -1 };
                let reset = result == 0 && ended_by_death(socket, request);
                leave_native(index, socket);
                crate::search::note(index, socket, crate::search::Way::In, result);
                if reset {
                    return Outcome::Failed(libc::ECONNRESET);
                }
                return outcome;
            }
            Attempt::Gone if got > 0 => {
                count_waiting(socket, request, wants_all, waiting);
                got += rest_natively(socket, &mut patience, request, got);
                return Outcome::Handled(got as isize);
            }
            Attempt::Closed if got > 0 => return Outcome::Handled(got as isize),
            Attempt::Closed => return Outcome::Failed(libc::EBADF),
            Attempt::Remains => match receive_remains(socket, request) {
                Some(count) => return Outcome::Handled(count),
                None => drained = true,
            },
            Attempt::Gone if goes_on => return insist(socket, &mut patience, request),
            // No lock of ours is waited for on the way there: a sleep would count as the kernel's.
            Attempt::Gone if entering.is_some() => return Outcome::Genuine(genuine()),
            Attempt::Gone => return Outcome::PassThrough,
            Attempt::Empty if got > 0 && !wants_all => return Outcome::Handled(got as isize),
            Attempt::Empty => {
                let some = got.max(peeked);
                let ended = match watch {
                    None if patience.may_not_wait(socket, request.flags) => {
                        Some(Outcome::Failed(libc::EAGAIN))
                    }
                    None => {
                        looked = true;
                        None
                    }
                    Some(watch) => wait(socket, &watch, request, &mut patience, (some, peeked)),
                };
                if let (true, Some(fd)) = (looked, blocking::other_number(socket, request.fd)) {
                    request.fd = fd;
                    patience.renamed = true;
                }
                match ended {
                    None => {}
                    Some(_) if some > 0 => return Outcome::Handled(some as isize),
                    Some(outcome) => return outcome,
                }
            }
        }
    }
}

/// A call that waits for the rest of its bytes keeps its stream.
fn count_waiting(socket: &Socket, request: Request<'_>, waits: bool, waiting: &mut bool) {
    if !waits || *waiting {
        return;
    }
    let mut recv = socket.recv.lock();
    // A stream that was closed is free before its place counts as another's.
    if socket.generation.load(Relaxed) == request.generation && socket.mode() != Mode::Free {
        *waiting = true;
        recv.waiting.begin(request.looks());
    }
}

/// Whether a look has shown everything up to the ring's last byte, none of which is on its way by TCP.
fn sees_all(
    socket: &Socket,
    recv: &RecvSide,
    tried: &Result<Attempt, Broken>,
    flags: i32,
    peeked: usize,
) -> bool {
    let seen = match tried {
        Ok(Attempt::Got(count)) => *count,
        _ => peeked,
    };
    flags & PEEK != 0
        && seen > 0
        && blocking::direction(socket, false)
            .is_some_and(|direction| recv.offset + seen as u64 >= direction.tail())
}

/// What a receive that has some bytes finds before TCP's next one.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Ahead {
    Nothing,
    /// Bytes, or the end: a receive now does not come to an error.
    More,
    /// The urgent mark, which only TCP has, or an error, which is told to the next call and not taken now.
    Stop,
}

/// In one look: an error that comes behind it must not be taken either.
fn ahead(fd: i32) -> Ahead {
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

/// A receive of no bytes waits for some, or the end, and takes none.
fn nothing(
    index: u32,
    socket: &'static Socket,
    request: Request<'_>,
    genuine: impl FnOnce() -> isize,
    waiting: &mut bool,
) -> Outcome {
    let mut byte = 0u8;
    let one = [iovec { iov_base: (&raw mut byte).cast(), iov_len: 1 }];
    let flags = request.flags & !libc::MSG_TRUNC | PEEK;
    match receive_waiting(
        index,
        socket,
        Request { vector: &one, flags, ..request },
        genuine,
        waiting,
    ) {
        Outcome::Handled(_) => Outcome::Handled(0),
        // By another number the look was made natively.
        Outcome::Genuine(1) => Outcome::Genuine(0),
        other => other,
    }
}

/// Whether a stream that left its slot still owes the program the reset that came on the ring; it is told once.
fn take_reset(socket: &Socket, recv: &mut RecvSide) -> bool {
    socket.mode() == Mode::Left && core::mem::take(&mut recv.reset_pending)
}

/// A native receive or wait on an attached stream is over: the writer may be let up now.
pub fn leave_native(index: u32, socket: &'static Socket) {
    if threads::take(&socket.native_recv) == 1 && socket.mode() == Mode::Attached {
        let errno = shunt_os::errno();
        attach::try_agree(index, socket);
        set_errno(errno);
    }
}

/// One look at everything that could give bytes. The receive lock is held.
fn attempt(
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

/// Waits until another attempt is worth it; `Some` ends the call. It has so many bytes, and has looked at
/// so many that it leaves where they are.
fn wait(
    socket: &'static Socket,
    watch: &Watch,
    request: Request<'_>,
    patience: &mut blocking::Patience,
    (some, peeked): (usize, usize),
) -> Option<Outcome> {
    let (direction, fd) =
        match patience.before_sleep(socket, watch, &socket.recv_policy, request.flags) {
            Ok(ready) => ready,
            Err(ended) => return ended,
        };
    let word = direction.wake.want_data(FUTEX);
    // Look once more: what was published before the announcement did not see it.
    if watch.changed(socket) || blocking::readable_after_announcement(socket, fd, peeked) {
        return None;
    }
    let (word_at, policy) = (&direction.wake.data_wanted, &socket.recv_policy);
    let may_end = blocking::begun_anew(socket, request.fd, patience).is_some();
    match patience.sleep(fd, word_at, word, policy, some > 0, may_end) {
        Woken::Look => None,
        Woken::TimedOut => Some(Outcome::Failed(libc::EAGAIN)),
        Woken::Interrupted => Some(Outcome::Failed(libc::EINTR)),
        Woken::Restarted => blocking::begun_anew(socket, request.fd, patience),
    }
}
