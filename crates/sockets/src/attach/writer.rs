//! The sending half goes up to the ring, down to TCP, and sends again what a reader left.

use core::sync::atomic::Ordering::*;

use shunt_carriers::shm::outgoing;
use shunt_carriers::{Failure, Part, Sender, Sent};
use shunt_os::{handles, tcp};
use shunt_stats::Carrier;
use shunt_stream::{End, ReaderDied, Words, WriterOn};

use super::anew::look_anew;
use super::ends::{break_stream, note_death_of_reader};
use super::fin::fin_if_due;
use super::leave::settle_on_tcp;
use super::room::{bound_room_narrowly, room_to_go_up};
use super::{managed, observe_writer, wake_own, Broken};
use crate::pool::{Mode, SendSide, Socket};
use crate::send::held;
use crate::service;
use crate::wait::epoll::Managed;

/// Sent again at a time.
pub(super) const PIECE_BYTES: usize = 16 * 1024;

/// Accounts for the end of a ring segment of the outgoing direction.
pub(super) fn left_ring(send: &mut SendSide, tail: u64) {
    let until = match send.writer.on() {
        WriterOn::Resend { from, .. } => from,
        _ => tail,
    };
    send.ring_only += until.saturating_sub(send.up_at);
    send.since_down = 0;
    send.looks_for_stop = 0;
}

/// The outgoing direction goes to TCP; the reader is woken to see it.
pub fn go_down(socket: &Socket, send: &mut SendSide) -> Result<WriterOn, Broken> {
    leave_ring(socket, send, true)
}

/// As [`go_down`]. Unless it `may_leave_unread`, a ring stays (`Ring`) whose reader is on it, and has something unread
/// there: he could not leave it any more before he has taken that, and is to be asked to stop ([`ask_to_stop`]). He may
/// have come to the ring at this very moment, whatever a look before has shown.
///
/// [`ask_to_stop`]: super::stop::ask_to_stop
pub fn leave_ring(
    socket: &Socket,
    send: &mut SendSide,
    may_leave_unread: bool,
) -> Result<WriterOn, Broken> {
    if send.writer.on() != WriterOn::Ring {
        return Ok(send.writer.on());
    }
    let (Some(link), Some(producer)) = (socket.link(), &mut send.producer) else {
        return Err(Broken);
    };
    producer.show_held();
    let goes = may_leave_unread || producer.unread()?.unwrap_or(0) == 0;
    let (slot, tail) = (socket.slot.load(Relaxed), producer.tail());
    let words = outgoing(link, slot);
    let on = if !link.is_alive() {
        // The service thread may not have come to this stream yet. Another process may have the reader's descriptor, and
        // it finds nothing in a ring that ends behind unread bytes now.
        match send.writer.reader_died(&words, tail)? {
            ReaderDied::On(on) => on,
            ReaderDied::Lost { .. } => return Err(Broken),
        }
    } else if goes {
        send.writer.go_down(&words, tail)?
    } else {
        send.writer.recall(&words, tail)?
    };
    producer.wake_receiver();
    if on != WriterOn::Ring {
        left_ring(send, tail);
        note_tx_on_tcp(socket);
    }
    Ok(on)
}

pub(super) fn note_tx_on_tcp(socket: &Socket) {
    if let Some(entry) = socket.entry() {
        entry.set_carrier_tx(Carrier::Tcp);
    }
}

/// TCP to ring, if the reader has agreed and no thread is inside a native send.
pub fn try_go_up(socket: &'static Socket, send: &mut SendSide) -> bool {
    let Some(link) = socket.link() else { return false };
    let slot = socket.slot.load(Relaxed);
    let words = outgoing(link, slot);
    let may = send.writer.may_go_up(&words)
        && !send.shut
        && !socket.pinned.load(Relaxed)
        && link.is_alive()
        && socket.native_send.load(SeqCst) == 0;
    // Room in the ring can be told by registrations of ours alone.
    if !may || managed(socket) != Managed::All {
        return false;
    }
    let fd = socket.fd.load(Relaxed);
    // What is held back would come later than what the ring will have.
    tcp::push(fd);
    let Some(room) = room_to_go_up(socket) else { return false };
    let Ok(written) = tcp::bytes_written(fd, socket.connector.load(Relaxed)) else { return false };
    let offset = written + send.ring_only;
    let Some(producer) = &mut send.producer else { return false };
    producer.ring().start_at(offset);
    words.set_by_tcp(written);
    if !send.writer.go_up(&words, offset) {
        return false;
    }
    send.up_at = offset;
    bound_room_narrowly(send, room);
    if let Some(entry) = socket.entry() {
        entry.upgraded();
        entry.set_carrier_tx(Carrier::Shm);
    }
    true
}

/// Whether bytes of the ring wait for room on TCP.
pub fn resends(send: &SendSide) -> bool {
    matches!(send.writer.on(), WriterOn::Resend { .. })
}

/// Whether bytes of the ring wait for room in the kernel's buffer.
pub fn is_resending(socket: &Socket) -> bool {
    socket.mode() == Mode::Attached && resends(&socket.send.lock())
}

/// Whether the stream was to leave its ring, and what it writes has.
pub fn is_down(socket: &Socket) -> bool {
    match socket.mode() {
        Mode::Attached => {
            socket.pinned.load(SeqCst) && socket.send.lock().writer.on() == WriterOn::Tcp
        }
        mode => mode == Mode::Left,
    }
}

/// Sends ring bytes again by TCP as far as the kernel takes them; true when all are sent. What was held back the kernel
/// is to hold back.
pub fn resend(socket: &Socket, send: &mut SendSide) -> Result<bool, Broken> {
    let Some(link) = socket.link() else { return Err(Broken) };
    if !matches!(send.writer.on(), WriterOn::Resend { .. }) {
        return Ok(true);
    }
    let words = outgoing(link, socket.slot.load(Relaxed));
    let fd = socket.fd.load(Relaxed);
    let is_closed = has_closed(&words);
    let mut companion = shunt_carriers::tcp::Sender::new(fd);
    // The program's stack may have little room.
    let mut buffer = vec![0u8; PIECE_BYTES];
    while let WriterOn::Resend { from, to } = send.writer.on() {
        if words.reader_resets() {
            // Nobody reads them. A send might meet the reset, and take the program's error.
            send.writer.resent(&words, to)?;
            break;
        }
        let said = handles::poll_now(fd, 0);
        let dead = said & (libc::POLLERR | libc::POLLHUP) != 0;
        let Some(producer) = &send.producer else { return Err(Broken) };
        let shown = producer.shown();
        let is_held = from >= shown;
        if said & libc::POLLERR != 0 && !is_held && !is_closed {
            note_death_of_reader(socket);
        }
        // The connection's end has come: it held nothing any more.
        companion.hold(is_held && !is_closed);
        let upto = if is_held { to } else { to.min(shown) };
        let length = (upto - from).min(buffer.len() as u64) as usize;
        producer.copy_back(from, &mut buffer[..length])?;
        let part = Part::of(&buffer[..length]);
        let sent = if dead {
            Ok(Sent::Took(length))
        } else {
            // SAFETY: the buffer is our own.
            unsafe { companion.try_send([part].into_iter()) }
        };
        match sent {
            Ok(Sent::Took(count)) => send.writer.resent(&words, from + count as u64)?,
            Ok(Sent::Full) => return Ok(false),
            Err(failure) => {
                if let Failure::Kernel(error) = failure {
                    send.failed.get_or_insert(error.0);
                }
                send.writer.resent(&words, to)?
            }
        };
    }
    match &mut send.producer {
        // Nobody looks for it there.
        Some(producer) if producer.holds() && !is_closed => producer.show_held(),
        _ => tcp::push(fd),
    }
    Ok(true)
}

/// The peer's FIN is here: what is held back goes, as the kernel sends it then (Linux, tcp_data_snd_check).
pub fn let_held_go(socket: &'static Socket) {
    let done = {
        let mut send = socket.send.lock();
        let holds = send.producer.as_ref().is_some_and(|producer| producer.holds());
        if socket.mode() != Mode::Attached || !holds {
            return;
        }
        observe_writer(socket, &mut send).and_then(|on| match on {
            WriterOn::Ring => {
                held::show_locked(&mut send);
                Ok(true)
            }
            _ => resend(socket, &mut send),
        })
    };
    if done.is_err() {
        break_stream(socket);
    }
}

/// Whether the reader has closed.
fn has_closed(words: &impl Words) -> bool {
    matches!(End::decode(words.end()), Ok(End::Closed(_)))
}

/// Does the writer's share after the reader left or a process died; continues in the service
/// thread while the kernel's buffer is full.
pub fn flush(index: u32, socket: &'static Socket) {
    let mut broken = false;
    {
        let mut send = socket.send.lock();
        if socket.mode() != Mode::Attached {
            return;
        }
        let slot = socket.slot.load(Relaxed);
        let closed = socket.link().is_some_and(|link| has_closed(&outgoing(link, slot)));
        let observed = observe_writer(socket, &mut send);
        // Nobody reads after a close: the kernel is asked only when the program sends again, so
        // that its answer reaches the program.
        match observed.and_then(|_| if closed { Ok(true) } else { resend(socket, &mut send) }) {
            Ok(true) => fin_if_due(socket, &mut send),
            Ok(false) => {
                if let Some(service) = service::running() {
                    service.await_space(index, socket);
                }
                return;
            }
            Err(Broken) => broken = true,
        }
    }
    if broken {
        break_stream(socket);
    }
    settle_on_tcp(socket);
    if socket.link().is_some_and(|link| !link.is_alive()) {
        look_anew(index, socket);
    }
    wake_own(socket);
}
