//! Receiving on an attached stream.
//!
//! The ring is looked at first, with one load beyond the lock. Everything else (TCP before the
//! crossing, the end of a segment, the end of the stream) is asked of `stream` and the kernel.

use core::sync::atomic::Ordering::*;

use libc::iovec;
use shunt_os::{clock, park, set_errno, threads};
use shunt_ring::FUTEX;

use self::attempt::{ahead, attempt, Ahead, Attempt};
use self::ends::{await_owed, stands_at_end};
use self::native::{goes_on_by_itself, insist, rest_natively};
use self::peek::PEEK;
use self::usual::Took;
use crate::attach::{self, break_stream, Broken};
use crate::outcome::Outcome;
use crate::pool::{Mode, RecvSide, Socket};
use crate::send::wanted;
use crate::wait::blocking::{self, Watch, Woken};

mod attempt;
mod ends;
pub mod flow;
mod native;
mod peek;
mod remains;
mod sources;
pub mod usual;

pub use attempt::drop_unread;
pub use ends::{await_death, ended_by_death, has_ended, is_dying, is_dying_locked, owes};
pub use native::{let_enter, Entering};
pub use remains::{before_end, receive_remains, remaining};
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
                Some(outcome) => return outcome,
                None => drained = true,
            },
            Attempt::Gone if got == 0 && socket.unanswered.load(Relaxed) => {
                let outcome = match goes_on {
                    true => insist(socket, &mut patience, request),
                    false => Outcome::Genuine(genuine()),
                };
                return before_end(socket, request, outcome);
            }
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
