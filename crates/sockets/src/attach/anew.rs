//! A stream whose peer became another program. Its link is gone and it is on TCP, but connected: when the new
//! program is one of ours and has the other end alone, it comes to a slot of another link. Until then it stays
//! in its old one, so that calls and registrations that know it there go on.
//!
//! In the new slot offsets are TCP's own counts again, at both ends: the new program knows no others.

use core::sync::atomic::Ordering::*;

use shunt_link::Link;
use shunt_os::tcp;
use shunt_stats::Carrier;
use shunt_stream::{ReaderOn, WriterOn};

use super::{observe_reader, wake_futexes, wake_own};
use crate::pool::{stage, Mode, RecvSide, SendSide, Socket};
use crate::service::{self, Request};
use crate::{process, search};

/// Whether nothing of a stream is under way, or remembered, that has to do with the link it stood on, which is
/// gone. What has begun to end stays on TCP.
pub(super) fn is_back_on_tcp(socket: &Socket, recv: &RecvSide, send: &SendSide) -> bool {
    let flags = [
        &socket.pinned,
        &socket.closing,
        &socket.remains,
        &socket.told_reset,
        &socket.shut_reading,
        &socket.shut_writing,
    ];
    socket.link().is_some_and(|link| !link.is_alive())
        && recv.reader.on() == ReaderOn::Tcp
        && send.writer.on() == WriterOn::Tcp
        && !(recv.fin_held || recv.peer_shut || recv.reset_pending)
        && !(send.shut || send.fin_pending || send.failed.is_some())
        && socket.death_error.load(Relaxed) == 0
        && !flags.iter().any(|flag| flag.load(SeqCst))
}

/// The peer's process is gone: if the connection is not, its other end is looked for as that of a new stream, as
/// soon as nothing of the old link is left.
pub fn look_anew(index: u32, socket: &Socket) {
    let generation = {
        let mut recv = socket.recv.lock();
        let is_gone = || socket.link().is_some_and(|link| !link.is_alive());
        if socket.mode() != Mode::Attached || !is_gone() {
            return;
        }
        // The program may have taken everything from a ring, and not looked since.
        if recv.offset_known && observe_reader(socket, &mut recv).is_err() {
            return;
        }
        let send = socket.send.lock();
        let lives = socket.stage.load(Relaxed) == stage::SETTLED
            && is_back_on_tcp(socket, &recv, &send)
            && !tcp::peer_has_ended(socket.fd.load(Relaxed));
        if !lives {
            return;
        }
        if let Some(entry) = socket.entry() {
            entry.set_carrier_rx(Carrier::Tcp);
        }
        search::begin_anew(socket);
        socket.generation.load(Relaxed)
    };
    if let Some(service) = service::running().filter(|_| process::pairs_at_once()) {
        service.ask(Request::Search { index, generation });
    }
}

/// A slot that a stream has left for another.
pub(super) struct Former {
    link: &'static Link,
    slot: u32,
}

impl Former {
    /// Where the stream stands, if it stands anywhere.
    pub(super) fn of(socket: &Socket) -> Option<Former> {
        let link = socket.link()?;
        Some(Former { link, slot: socket.slot.load(Relaxed) })
    }

    /// Who waits by its words, or by its link's bell, is to wait by the new ones. Then nobody needs it.
    pub(super) fn give_up(self, socket: &'static Socket) {
        wake_futexes(self.link, self.slot);
        wake_own(socket);
        self.link.wake_own();
        self.link.vacate(self.slot);
        service::released(self.link, self.slot);
    }
}
