//! Back to TCP for good.

use core::sync::atomic::Ordering::*;

use shunt_carriers::shm::incoming;
use shunt_link::Link;
use shunt_pairing::message::Kind;
use shunt_stats::{Carrier, Reason};
use shunt_stream::{End, ReaderOn, StopOutcome, WriterOn};

use super::ends::break_stream;
use super::writer::{go_down, resend};
use super::{tell, wake_own, Broken};
use crate::pool::{stage, Mode, RecvSide, SendSide, Socket};
use crate::service::{self, Request};
use crate::{search, wait};

/// Takes the stream back to TCP for good: somebody whom we cannot follow is about to use it.
/// Nothing waits for the peer; what it must send again comes by TCP, in order.
pub fn leave(index: u32, socket: &'static Socket, reason: Reason) {
    socket.pinned.store(true, SeqCst);
    search::stop_waiting(socket);
    match socket.mode() {
        Mode::Plain => {
            socket.stage.store(stage::SETTLED, Relaxed);
            if let Some(entry) = socket.entry() {
                entry.set_reason(reason);
            }
            return;
        }
        Mode::Attached => {}
        _ => return,
    }
    let mut asked = None;
    let done = (|| -> Result<bool, Broken> {
        let mut recv = socket.recv.lock();
        let mut send = socket.send.lock();
        if socket.mode() != Mode::Attached {
            return Ok(true);
        }
        let was_up = on_ring(&recv, &send);
        go_down(socket, &mut send)?;
        let sent = resend(socket, &mut send)?;
        if stop_reading(socket, &mut recv)? == StopOutcome::Asked {
            asked = socket.link().map(|link| (link, socket.slot.load(Relaxed)));
        }
        if let (true, Some(entry)) = (was_up, socket.entry()) {
            entry.reverted();
            entry.set_reason(reason);
            entry.set_carrier_rx(Carrier::Tcp);
        }
        Ok(sent)
    })();
    if let (Some((link, slot)), true) = (asked, done.is_ok()) {
        await_answer(link, slot);
    }
    let done = if matches!(reason, Reason::Exec | Reason::PassedDescriptor) {
        // This process, or its threads, may be gone soon: the rest must be out before.
        done.and_then(|sent| if sent { Ok(true) } else { resend_all(socket) })
    } else {
        done
    };
    match done {
        Ok(true) => {}
        Ok(false) => {
            if let Some(service) = service::running() {
                service.ask(Request::Flush { index, generation: socket.generation.load(Relaxed) });
            }
        }
        Err(Broken) => break_stream(index, socket),
    }
    settle_on_tcp(index, socket);
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
    let words = incoming(link, slot);
    for round in 0..400 {
        let end = End::decode(shunt_stream::Words::end(&words));
        if !link.is_alive() || !matches!(end, Ok(End::Stop(_) | End::Recalled(_))) {
            return;
        }
        if round < 50 {
            shunt_os::raw::sched_yield();
        } else {
            shunt_os::raw::nanosleep(50_000);
        }
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
        consumer.wake_sender();
        tell(link, Kind::Stopped, slot);
    }
    Ok(outcome)
}

/// After [`leave`]: once nothing of the stream is on a ring, every call on it is the kernel's
/// again, and so are its epoll registrations.
pub fn settle_on_tcp(index: u32, socket: &'static Socket) {
    {
        let recv = socket.recv.lock();
        let send = socket.send.lock();
        let settled = socket.mode() == Mode::Attached
            && socket.pinned.load(SeqCst)
            && !on_ring(&recv, &send)
            && !recv.reset_pending
            && !send.fin_pending
            && send.failed.is_none()
            && !socket.closing.load(SeqCst);
        if !settled {
            return;
        }
        socket.set_mode(Mode::Left);
    }
    wait::epoll::release_all(index, socket);
    if let Some(service) = service::running() {
        service.forget_companion(socket);
    }
    wake_own(index, socket);
}
