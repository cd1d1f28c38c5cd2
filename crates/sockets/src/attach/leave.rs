//! Back to TCP for good.

use core::sync::atomic::Ordering::*;

use shunt_carriers::shm::incoming;
use shunt_link::Link;
use shunt_os::{clock, handles, proc, tcp};
use shunt_pairing::message::Kind;
use shunt_stats::{Carrier, Reason};
use shunt_stream::{End, ReaderOn, StopOutcome, Words, WriterOn};

use super::ends::{break_stream, error_of_death_is_due, look_for_death, peer_died};
use super::fin::fin_if_due;
use super::stop::{ask_to_stop, await_peer, await_stop, ANSWER_NS_MAX};
use super::writer::{leave_ring, resend};
use super::{observe_writer, tell, wake_own, Broken};
use crate::pool::{self, stage, LeftWith, Mode, RecvSide, SendSide, Socket};
use crate::service::{self, Request};
use crate::{search, wait};

/// Takes the stream back to TCP for good: somebody whom we cannot follow is about to use it. What
/// must be sent again comes by TCP, in order; the peer's process is given a little time for its
/// share.
pub fn leave(index: u32, reason: Reason) {
    leave_all(&[index], reason);
}

/// As [`leave`]; the peers do their shares at the same time.
pub fn leave_all(streams: &[u32], reason: Reason) {
    leave_within(streams, Some(reason), [LEAVE_NS_MAX, STARVED_NS_MAX], |_| true);
}

/// As [`leave`], for a stream that this process closes and another has: nobody here goes on by TCP, so that no counter
/// says so.
pub fn leave_closing(index: u32) {
    leave_within(&[index], None, [LEAVE_NS_MAX, STARVED_NS_MAX], |_| true);
}

/// As [`leave_all`], in the service thread, which has others to answer: returns the streams whose
/// readers did not stop yet, for another try. Of those tries there is an end.
pub fn leave_soon(streams: &[u32], reason: Reason) -> Vec<u32> {
    leave_within(streams, Some(reason), [ANSWER_NS_MAX; 2], |leaving| {
        let tries = pool::get(leaving.index).tries_to_leave.fetch_add(1, Relaxed);
        let waited = u64::from(tries) * ANSWER_NS_MAX;
        waited >= STARVED_NS_MAX || waited >= LEAVE_NS_MAX && !leaving.reader_is_starved()
    })
}

/// Takes back what can be within the first of `limits`, in ns, or the second where the reader is starved, and whatever
/// tries for the last time; returns the others.
fn leave_within(
    streams: &[u32],
    reason: Option<Reason>,
    limits: [u64; 2],
    is_last_try: impl Fn(&Leaving) -> bool,
) -> Vec<u32> {
    let begun: Vec<Leaving> =
        streams.iter().filter_map(|index| Leaving::begin(*index, reason)).collect();
    let began = clock::now_ns();
    let ends = limits.map(|limit| began + limit);
    let undone = |leaving: Leaving| {
        let index = leaving.index;
        let last = is_last_try(&leaving);
        (!leaving.finish(reason, ends, last)).then_some(index)
    };
    begun.into_iter().filter_map(undone).collect()
}

/// How long readers that do not stop are waited for, in ns: what they leave could not be sent in order
/// without their word, but they may be stopped themselves.
const LEAVE_NS_MAX: u64 = 1_000_000_000;
/// As [`LEAVE_NS_MAX`], where they are not, and only lack a processor.
const STARVED_NS_MAX: u64 = 5_000_000_000;

/// A stream on its way back to TCP.
struct Leaving {
    index: u32,
    generation: u32,
    link: &'static Link,
    slot: u32,
    was_up: bool,
    /// The peer was asked to send again what this reader left.
    asked: bool,
    /// How far that goes.
    tail: u64,
    /// The peer was asked to stop reading its ring.
    told_to_stop: bool,
}

impl Leaving {
    fn begin(index: u32, reason: Option<Reason>) -> Option<Leaving> {
        let socket = pool::get(index);
        socket.pinned.store(true, SeqCst);
        search::stop_waiting(socket);
        // Who puts it on a ring at this moment has looked at the mark before, and is done after.
        drop(socket.recv.lock());
        match socket.mode() {
            Mode::Plain => {
                socket.stage.store(stage::SETTLED, Relaxed);
                if let (Some(reason), Some(entry)) = (reason, socket.entry()) {
                    entry.set_reason(reason);
                }
                return None;
            }
            Mode::Attached => {}
            _ => return None,
        }
        look_for_death(socket);
        let begun = (|| -> Result<Option<Leaving>, Broken> {
            let mut recv = socket.recv.lock();
            let mut send = socket.send.lock();
            let (Mode::Attached, Some(link)) = (socket.mode(), socket.link()) else {
                return Ok(None);
            };
            let was_up = on_ring(&recv, &send);
            let told_to_stop = ask_to_stop(socket, &mut send, None)?;
            let asked = stop_reading(socket, &mut recv)? == StopOutcome::Asked;
            let tail = recv.consumer.as_ref().map_or(0, |consumer| consumer.words().tail());
            let slot = socket.slot.load(Relaxed);
            let generation = socket.generation.load(Relaxed);
            Ok(Some(Leaving { index, generation, link, slot, was_up, asked, tail, told_to_stop }))
        })();
        begun.unwrap_or_else(|Broken| {
            break_stream(socket);
            None
        })
    }

    /// The writer's share; whether all is sent. `None`: the reader has come to the ring since, and was asked to stop.
    fn go_down(
        &mut self,
        socket: &'static Socket,
        reason: Option<Reason>,
    ) -> Result<Option<bool>, Broken> {
        if !self.link.is_alive() {
            // The service thread may not have come to this stream yet.
            peer_died(self.index, socket);
        }
        let mut send = socket.send.lock();
        let is_it = socket.generation.load(Relaxed) == self.generation;
        if !is_it || socket.mode() != Mode::Attached {
            return Ok(Some(true));
        }
        observe_writer(socket, &mut send)?;
        if leave_ring(socket, &mut send, self.told_to_stop)? == WriterOn::Ring {
            self.told_to_stop = ask_to_stop(socket, &mut send, None)?;
            return Ok(None);
        }
        let sent = resend(socket, &mut send)?;
        if sent {
            fin_if_due(socket, &mut send);
        }
        if let (Some(reason), Some(entry)) = (reason, socket.entry()) {
            if self.was_up {
                entry.reverted();
            }
            entry.set_reason(reason);
            entry.set_carrier_rx(Carrier::Tcp);
        }
        Ok(Some(sent))
    }

    /// Whether the reader's process runs, as far as one can see.
    fn reader_is_starved(&self) -> bool {
        !proc::is_stopped(self.link.peer_pid)
    }

    /// Whether the kernel takes all that the peer was asked to send again, whoever reads: half of its buffer is for
    /// bytes (tcp(7), tcp_adv_win_scale).
    fn fits(&self, socket: &Socket) -> bool {
        let buffer =
            handles::option_int(socket.fd.load(Relaxed), libc::SOL_SOCKET, libc::SO_RCVBUF);
        let unread = self.tail.saturating_sub(socket.recv.lock().offset);
        buffer.is_ok_and(|bytes| unread <= bytes as u64 / 2)
    }

    /// Waits for the reader until the first of `ends`, or the second where it is starved. Whether it has stopped.
    fn await_reader(&self, ends: [u64; 2]) -> bool {
        let by = |end| await_stop(self.link, self.slot, end);
        !self.told_to_stop || by(ends[0]) || self.reader_is_starved() && by(ends[1])
    }

    /// False if the reader has not stopped by `ends`, unless this try is the last.
    fn finish(mut self, reason: Option<Reason>, ends: [u64; 2], last: bool) -> bool {
        let socket = pool::get(self.index);
        let mut done = loop {
            let stopped = self.await_reader(ends);
            if !stopped && !last {
                return false;
            }
            match self.go_down(socket, reason) {
                Ok(None) => {}
                Ok(Some(sent)) => break Ok(sent),
                Err(Broken) => break Err(Broken),
            }
        };
        if self.asked && done.is_ok() {
            match reason {
                // The kernel answers what comes behind the shutdown with a reset. A peer that lacks a processor is
                // not to cost the bytes that were there before.
                Some(Reason::Closed) if self.fits(socket) => {
                    await_peer(self.link, || has_answered(self.link, self.slot));
                }
                _ => await_answer(self.link, self.slot),
            }
            await_bytes(socket, self.tail);
        }
        // This process, or its threads, may be gone soon, or somebody else writes to TCP next: the rest
        // must be out before.
        let first = matches!(
            reason,
            Some(
                Reason::Exec
                    | Reason::PassedDescriptor
                    | Reason::Fdopen
                    | Reason::StandardStream
                    | Reason::Aio
            )
        );
        if first && matches!(done, Ok(false)) {
            done = resend_all(socket);
        }
        if first && done.is_ok() {
            await_first(socket, self.link, self.tail);
        }
        match done {
            Ok(true) => {}
            Ok(false) => {
                if let Some(service) = service::running() {
                    let Leaving { index, generation, .. } = self;
                    service.ask(Request::Flush { index, generation });
                }
            }
            Err(Broken) => break_stream(socket),
        }
        settle_on_tcp(socket);
        true
    }
}

/// Sends everything again before it returns; the kernel's buffer takes a ring's worth at once
/// unless the peer does not read at all.
pub(super) fn resend_all(socket: &Socket) -> Result<bool, Broken> {
    for _ in 0..5000 {
        if resend(socket, &mut socket.send.lock())? {
            return Ok(true);
        }
        shunt_os::raw::nanosleep(1_000_000);
    }
    Ok(false)
}

/// After a stop that asked the writer for bytes: waits a little for them to be on TCP. Whoever
/// holds the descriptor next then finds them there at once, and they outlive the writer.
pub(super) fn await_answer(link: &Link, slot: u32) {
    for round in 0..400 {
        if has_answered(link, slot) {
            return;
        }
        if round < 50 {
            shunt_os::raw::sched_yield();
        } else {
            shunt_os::raw::nanosleep(50_000);
        }
    }
}

/// Whether the writer has sent again what it was asked for, or never will.
fn has_answered(link: &Link, slot: u32) -> bool {
    let end = End::decode(incoming(link, slot).end());
    !link.is_alive() || !matches!(end, Ok(End::Stop(_) | End::Recalled(_)))
}

/// What was sent again may be on its way in the kernel yet, for a little while.
fn await_bytes(socket: &Socket, tail: u64) {
    for _ in 0..20 {
        {
            let recv = socket.recv.lock();
            let fd = socket.fd.load(Relaxed);
            let arrived = tcp::readable(fd).map(|bytes| recv.offset + bytes);
            if socket.mode() != Mode::Attached || arrived.is_ok_and(|offset| offset >= tail) {
                return;
            }
        }
        shunt_os::raw::nanosleep(50_000);
    }
}

/// Whoever holds the descriptor next finds what this program may have been told of: the first of the bytes up to `tail`
/// that the peer sends again, or the end behind them. A peer that lacks a processor comes to it.
fn await_first(socket: &Socket, link: &Link, tail: u64) {
    let fd = socket.fd.load(Relaxed);
    let is_told = {
        let recv = socket.recv.lock();
        recv.offset_known && (recv.offset < tail || recv.peer_shut)
    };
    if is_told {
        await_peer(link, || tcp::has_news(fd) || !link.is_alive());
    }
}

pub(super) fn on_ring(recv: &RecvSide, send: &SendSide) -> bool {
    send.writer.on() != WriterOn::Tcp || recv.reader.on() != ReaderOn::Tcp
}

pub(super) fn stop_reading(socket: &Socket, recv: &mut RecvSide) -> Result<StopOutcome, Broken> {
    let (Some(link), Some(consumer)) = (socket.link(), &recv.consumer) else { return Err(Broken) };
    if !recv.offset_known {
        return Ok(StopOutcome::Tcp);
    }
    let slot = socket.slot.load(Relaxed);
    let outcome = recv.reader.stop(&incoming(link, slot), recv.offset)?;
    if outcome == StopOutcome::Asked {
        recv.owed = consumer.words().tail();
        consumer.wake_sender();
        tell(link, Kind::Stopped, slot);
    }
    Ok(outcome)
}

/// After [`leave`]: once nothing of the stream is on a ring, every call on it is the kernel's
/// again, and so are its epoll registrations.
pub fn settle_on_tcp(socket: &'static Socket) {
    {
        let mut recv = socket.recv.lock();
        let send = socket.send.lock();
        let settled = socket.mode() == Mode::Attached
            && socket.pinned.load(SeqCst)
            && !on_ring(&recv, &send)
            && !recv.reset_pending
            && !send.fin_pending
            && send.failed.is_none()
            && !error_of_death_is_due(socket)
            && !socket.closing.load(SeqCst);
        if !settled {
            return;
        }
        recv.left = arrived_by_tcp(socket, &recv);
        socket.unanswered.store(!is_answered(socket, &recv), Relaxed);
        socket.set_mode(Mode::Left);
    }
    has_left(socket);
}

/// Whether all that this reader left in its ring has been sent again.
fn is_answered(socket: &Socket, recv: &RecvSide) -> bool {
    let (Some(link), true) = (socket.link(), recv.offset_known) else { return true };
    recv.reader.answered(&incoming(link, socket.slot.load(Relaxed)))
}

/// The stream has just left its ring: the kernel alone tells of it from here on.
pub(super) fn has_left(socket: &'static Socket) {
    wait::epoll::release_all(socket);
    if let Some(service) = service::running() {
        service.forget_companion(socket);
    }
    wake_own(socket);
}

fn arrived_by_tcp(socket: &Socket, recv: &RecvSide) -> Option<LeftWith> {
    if !recv.offset_known {
        return None;
    }
    let fd = socket.fd.load(Relaxed);
    let received = tcp::bytes_received(fd).ok()?;
    Some(LeftWith { arrived: recv.offset + tcp::readable(fd).ok()?, received })
}
