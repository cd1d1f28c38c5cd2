//! A FIN that is held back while the ring has bytes.

use core::sync::atomic::Ordering::*;

use shunt_carriers::shm::{incoming, outgoing, Close};
use shunt_link::{elsewhere, Link};
use shunt_os::{handles, tcp};
use shunt_pairing::message::Kind;
use shunt_stream::{End, Words, WriterOn};

use super::ends::break_stream;
use super::stop::{leaves_unread, ring_bytes, stop_for_writer, wait_until, CORE_NS_MAX};
use super::writer::{flush, go_down, let_held_go, resend};
use super::{observe_writer, tell, wake_own, Broken};
use crate::pool::{Mode, RecvSide, SendSide, Socket};

/// The FIN that a shutdown asked for, once nothing of the stream is left on the ring.
pub(super) fn fin_if_due(socket: &Socket, send: &mut SendSide) {
    if send.fin_pending && send.writer.on() == WriterOn::Tcp {
        send.fin_pending = false;
        handles::shut_writing(socket.fd.load(Relaxed));
        if let Some(link) = socket.link() {
            outgoing(link, socket.slot.load(Relaxed)).fin_is_sent();
        }
        elsewhere::note();
    }
}

/// The connection is about to be reset: a FIN behind more bytes than the peer's window takes would not have come
/// before.
pub(super) fn drop_fin(socket: &Socket, send: &mut SendSide) {
    if core::mem::take(&mut send.fin_pending) {
        if let Some(link) = socket.link() {
            outgoing(link, socket.slot.load(Relaxed)).drop_fin();
        }
    }
}

/// shutdown(SHUT_WR), or close, with bytes unread in the ring: the FIN is held back until the reader
/// has taken them, because a reader that leaves meanwhile gets them by TCP, where nothing may come
/// before them. False if there is no reason to hold it.
pub fn hold_fin(socket: &Socket, send: &mut SendSide) -> Result<bool, Broken> {
    let hold = leaves_unread(socket, send)?;
    if let (true, Some(link)) = (hold, socket.link()) {
        send.fin_pending = true;
        outgoing(link, socket.slot.load(Relaxed)).hold_fin();
        tell(link, Kind::FinHeld, socket.slot.load(Relaxed));
    }
    Ok(hold)
}

/// Whether the writer has shut the direction down, as far as is known. Its word tells that it holds its FIN before its
/// message does. What the ring has is to be looked at behind this.
pub fn hear_end(socket: &Socket, recv: &mut RecvSide) -> bool {
    if let (false, Some(link)) = (recv.peer_shut, socket.link()) {
        if incoming(link, socket.slot.load(Relaxed)).fin_is_held() {
            // Both at once: who is shut and does not hold its FIN any more has been told that the ring is empty.
            recv.peer_shut = true;
            recv.fin_held = true;
        }
    }
    recv.peer_shut
}

/// The writer holds its FIN, if it is still the one that said so: who has heard it by the word may have closed the
/// stream since, and another one may have come to its slot. False if the stream has left its slot.
pub fn fin_is_held(socket: &'static Socket) -> bool {
    {
        let mut recv = socket.recv.lock();
        if socket.mode() != Mode::Attached {
            return false;
        }
        hear_end(socket, &mut recv);
        report_drained(socket, &mut recv);
    }
    let_held_go(socket);
    wake_own(socket);
    true
}

/// A slot in which nobody stands is said to hold a FIN back: its bytes have no reader any more. False by the slot's word,
/// it is of a stream that is through, and the next one in its slot is told nothing.
pub fn fin_is_held_for_nobody(link: &'static Link, slot: u32) {
    if incoming(link, slot).fin_is_held() {
        tell(link, Kind::Drained, slot);
    }
}

/// Tells a writer that holds its FIN when the ring is empty.
pub fn report_drained(socket: &Socket, recv: &mut RecvSide) {
    if !recv.fin_held {
        return;
    }
    let empty = match &mut recv.consumer {
        Some(consumer) => consumer.available().is_ok_and(|bytes| bytes == 0),
        None => true,
    };
    if let (true, Some(link)) = (empty, socket.link()) {
        recv.fin_held = false;
        tell(link, Kind::Drained, socket.slot.load(Relaxed));
    }
}

/// The reader has taken everything: the stream goes down to TCP, and the FIN out.
pub fn send_held_fin(index: u32, socket: &'static Socket) {
    let done = {
        let mut send = socket.send.lock();
        if socket.mode() != Mode::Attached || !send.fin_pending {
            return;
        }
        observe_writer(socket, &mut send).and_then(|_| go_down(socket, &mut send)).and_then(|_| {
            let sent = resend(socket, &mut send)?;
            fin_if_due(socket, &mut send);
            Ok(sent)
        })
    };
    match done {
        Ok(true) => wake_own(socket),
        Ok(false) => flush(index, socket),
        Err(Broken) => break_stream(socket),
    }
}

/// Whether the peer closed, and its connection is not closed yet, as far as TCP has heard.
#[cold]
pub fn closed_unheard(socket: &Socket) -> bool {
    let Some(link) = socket.link() else { return false };
    let words = outgoing(link, socket.slot.load(Relaxed));
    let is_closed = || matches!(End::decode(words.end()), Ok(End::Closed(_)));
    link.is_alive()
        && match words.reader_close() {
            Close::ByItself => is_closed() && !tcp::peer_has_ended(socket.fd.load(Relaxed)),
            // Even after its FIN it would take what comes.
            Close::Later => true,
            Close::Done => false,
        }
}

/// Before a send to such a peer: the kernel answers it with a reset, to a connection that has seen
/// the FIN. What is unread goes by TCP before, if it is sure to fit, and stays in the ring otherwise. No
/// lock is held. Unheard, a send would be taken that TCP refuses.
#[cold]
pub fn have_fin_sent(socket: &'static Socket) {
    let Some(link) = socket.link() else { return };
    let unread = ring_bytes(socket, &mut socket.recv.lock());
    if unread > 0 && incoming(link, socket.slot.load(Relaxed)).fit_window(unread) {
        stop_for_writer(socket, None);
    } else {
        tell(link, Kind::Drained, socket.slot.load(Relaxed));
    }
    wait_until(CORE_NS_MAX, || !closed_unheard(socket));
}
