//! Putting a stream in a slot of a link, taking it back to TCP, and taking it out.
//!
//! Lock order: `recv`, then `send`, then a wait set's own lock. Nobody sleeps holding any of them.

use core::sync::atomic::Ordering::*;

use shunt_carriers::{shm, Failure};
use shunt_link::{Link, VACANT};
use shunt_os::{handles, park, tcp};
use shunt_pairing::message::{Kind, Message};
use shunt_stats::{Carrier, Reason};
use shunt_stream::{ReaderOn, Violation, WriterOn};

use self::anew::Former;
use self::writer::{left_ring, note_tx_on_tcp};
use crate::pool::{self, stage, Mode, RecvSide, SendSide, Socket};
use crate::service::{self, Request};
use crate::wait::epoll::Managed;
use crate::{inherit, quiet, search, wait};

mod anew;
mod ends;
mod fin;
mod heir;
mod leave;
mod remains;
mod room;
mod stop;
mod writer;

pub use anew::look_anew;
pub use ends::{
    abandon, begin_with_reset, break_stream, detach, error_of_death, error_told, have_ended,
    is_behind_shutdown, is_reset_owed, leave_to_send, owe_reset, owes_reset, peer_died, renamed,
    reset_by_death, restart_consumer, take_error, told_before_receive, told_before_send, Farewell,
};
pub use fin::{
    closed_unheard, fin_is_held, fin_is_held_for_nobody, have_fin_sent, hear_end, hold_fin,
    report_drained, send_held_fin,
};
pub use heir::finish_for_dead_writer;
pub use leave::{leave, leave_all, leave_closing, leave_soon, settle_on_tcp};
pub use remains::{
    reset_if_stranded, share_remains, take_up_remains, take_up_unanswered, FormerSlot,
};
pub use room::{sizes_changed, widen_room, WINDOW_UNSET};
pub use shunt_carriers::shm::{incoming, outgoing};
pub use stop::{
    ask_to_stop, await_peer, have_reader_stop, is_seen, is_settled, let_go_at_end,
    may_leave_unread, reset_unread, reset_unread_at_exec, ring_bytes, settle_before_end,
    stop_for_writer, unread_stays, wait_until, writes_ring, ANSWER_NS_MAX, CORE_NS_MAX,
};
pub use writer::{
    flush, go_down, is_down, is_resending, leave_ring, let_held_go, resend, resends, try_go_up,
};

/// Something a peer wrote that cannot be.
#[derive(Debug)]
pub struct Broken;

impl From<Violation> for Broken {
    fn from(_: Violation) -> Broken {
        Broken
    }
}

/// For a ring, whose only failure is a peer that lies; see `send` for a receiver that left.
impl From<Failure> for Broken {
    fn from(_: Failure) -> Broken {
        Broken
    }
}

/// Puts a stream that is looked for in `slot`. An error says why not: [`Reason::Closed`] if it is not to be had any
/// more, [`Reason::SharedWithOtherProcess`] while another process has it too. The caller holds
/// [`inherit::no_fork`]: a fork between the look at the holders and the new mode would leave the child
/// with a stream that it takes for plain.
pub fn attach(index: u32, generation: u32, link: &'static Link, slot: u32) -> Result<(), Reason> {
    let socket = pool::get(index);
    wait::epoll::provide_bells(socket, link);
    let former = {
        let mut recv = socket.recv.lock();
        let mut send = socket.send.lock();
        let anew = socket.mode() == Mode::Attached;
        let fits = socket.may_be_paired()
            && (!anew || anew::is_back_on_tcp(socket, &recv, &send))
            && socket.generation.load(Relaxed) == generation
            && !socket.pinned.load(Relaxed)
            && quiet::keeps_to_tcp().is_none();
        if !fits {
            return Err(Reason::Closed);
        }
        let put_off = |reason| {
            search::put_off(socket, reason);
            Err(reason)
        };
        if !socket.kin.may_pair() {
            return put_off(Reason::SharedWithOtherProcess);
        }
        if !link.occupy(slot, index) {
            return put_off(Reason::NoMemory);
        }
        socket.kin.begin_ownership();
        if inherit::was_shared(socket) {
            // Another holder may have changed it.
            socket.nonblocking.store(handles::is_nonblocking(socket.fd.load(Relaxed)), Relaxed);
        }
        // SAFETY: the slot's memory is reached, and stays mapped while the stream stands in it, and this is the
        // only sender of the direction.
        let producer = unsafe { shm::Sender::attach(link, slot) };
        // SAFETY: as above, the only receiver.
        let consumer = unsafe { shm::Receiver::attach(link, slot) };
        let former = Former::of(socket).filter(|_| anew);
        if anew {
            wait::epoll::count_anew(socket, recv.ring_only);
        }
        (*recv, *send) = if anew {
            (recv.renewed(consumer), send.renewed(producer))
        } else {
            (recv.fresh(consumer), send.fresh(producer))
        };
        socket.full.store(false, Relaxed);
        // Who holds no lock finds both of the old, or both of the new, or no slot; or the old link with the new
        // slot, and then the new link when he looks again (`Watch`).
        socket.slot.store(VACANT, SeqCst);
        socket.link.store((&raw const *link).cast_mut(), SeqCst);
        // SYNC slot -> blocking::direction: who finds the slot finds the link.
        socket.slot.store(slot, Release);
        room::announce_window(socket);
        socket.stage.store(stage::SETTLED, Relaxed);
        socket.unmanaged.store(true, Relaxed);
        if socket.shut_writing.load(Relaxed) {
            outgoing(link, slot).shut_writer();
            outgoing(link, slot).fin_is_sent();
        }
        if let Some(entry) = socket.entry() {
            entry.peer_is_shunt();
        }
        socket.set_mode(Mode::Attached);
        former
    };
    search::stop_waiting(socket);
    if let Some(service) = service::running() {
        service.watch_companion(index, socket);
    }
    try_agree(index, socket);
    if let Some(former) = former {
        former.give_up(socket);
    }
    Ok(())
}

/// The stream's companion is known by another of its numbers from here on. `resends`: it is watched for
/// room, too.
pub fn renumber(index: u32, socket: &Socket, fd: i32, resends: bool) {
    let watched = service::running().filter(|_| socket.mode() == Mode::Attached);
    if let Some(service) = watched {
        service.forget_companion(socket);
    }
    socket.fd.store(fd, SeqCst);
    match watched {
        Some(service) if resends => service.await_space(index, socket),
        Some(service) => service.watch_companion(index, socket),
        None => {}
    }
}

/// Another process is about to have the stream: nothing may be left in the ring without our word.
pub fn share_reader(socket: &Socket) {
    // Each page of ours that is written around a fork is copied.
    if wait::blocking::direction(socket, false)
        .is_some_and(|it| it.consumer.shared.load(Relaxed) != 0)
    {
        return;
    }
    let _held = socket.recv.lock();
    let is_read = socket.mode() == Mode::Attached || socket.unanswered.load(Relaxed);
    if let (true, Some(link)) = (is_read, socket.link()) {
        incoming(link, socket.slot.load(Relaxed)).share_reader(socket.kin.number());
    }
}

/// Tells the writer that it may go up, once no thread sleeps natively for the stream and its
/// epoll registrations are ours.
pub fn try_agree(index: u32, socket: &'static Socket) {
    match managed(socket) {
        Managed::All => {}
        Managed::Later => return,
        Managed::Never(reason) => return leave(index, reason),
    }
    let mut recv = socket.recv.lock();
    if socket.mode() == Mode::Attached {
        let _ = agree_locked(socket, &mut recv);
    }
}

/// Whether the stream's epoll registrations are ours; takes them over if they can be.
fn managed(socket: &'static Socket) -> Managed {
    if !socket.unmanaged.load(Acquire) {
        return Managed::All;
    }
    let managed = wait::epoll::manage_all(socket);
    if managed == Managed::All {
        socket.unmanaged.store(false, Release);
    }
    managed
}

/// As [`try_agree`], for who holds the lock. False: still native.
pub fn agree_locked(socket: &Socket, recv: &mut RecvSide) -> Result<bool, Broken> {
    let Some(link) = socket.link() else { return Ok(false) };
    if socket.unmanaged.load(Acquire) && !socket.pinned.load(Relaxed) {
        return Ok(false);
    }
    if !recv.offset_known {
        if socket.native_recv.load(SeqCst) != 0 {
            return Ok(false);
        }
        match tcp::bytes_read(socket.fd.load(Relaxed)) {
            Ok(offset) => recv.offset = offset,
            Err(_) => return Ok(false),
        }
        recv.offset_known = true;
    }
    if !socket.pinned.load(Relaxed) && link.is_alive() {
        let words = incoming(link, socket.slot.load(Relaxed));
        recv.reader.agree(&words)?;
    }
    Ok(true)
}

/// Has the sends and receives of this process that sleep look again.
pub fn wake_calls(socket: &Socket) {
    if let Some(link) = socket.link() {
        wake_futexes(link, socket.slot.load(Relaxed));
    }
}

/// Wakes everybody of this process who waits for the stream.
pub fn wake_own(socket: &'static Socket) {
    if let Some(link) = socket.link() {
        wake_calls(socket);
        wait::epoll::stir(socket, 0, None);
        link.wake_own();
    }
}

/// Wakes the threads of this process that sleep on the stream's own words.
fn wake_futexes(link: &Link, slot: u32) {
    // A stream that is being taken out has no slot any more.
    if slot >= link.memory.slots() {
        return;
    }
    // SAFETY: link memory stays mapped, and only atomics are touched.
    let wake = |writer| unsafe { &link.memory.direction(slot, writer).as_ref().wake };
    let (outgoing, incoming) = (wake(link.side), wake(link.side.other()));
    // A peer that died may have taken the words just before, and woken nobody.
    let died = !link.is_alive();
    if outgoing.take_space_sleepers() || died {
        park::wake_all(&outgoing.space_wanted);
    }
    if incoming.take_data_sleepers() || died {
        park::wake_all(&incoming.data_wanted);
    }
}

/// Where the next byte goes; notices a reader that left.
#[inline]
pub fn observe_writer(socket: &Socket, send: &mut SendSide) -> Result<WriterOn, Broken> {
    let on = send.writer.on();
    if on != WriterOn::Ring {
        return Ok(on);
    }
    let (Some(link), Some(producer)) = (socket.link(), &send.producer) else { return Err(Broken) };
    let tail = producer.tail();
    let now = send.writer.observe(&outgoing(link, socket.slot.load(Relaxed)), tail)?;
    if now != WriterOn::Ring {
        left_ring(send, tail);
        note_tx_on_tcp(socket);
    }
    Ok(now)
}

/// Where the next byte comes from; the consumer starts where a crossing has led.
pub fn observe_reader(socket: &Socket, recv: &mut RecvSide) -> Result<ReaderOn, Broken> {
    let Some(link) = socket.link() else { return Err(Broken) };
    let (before, offset) = (recv.reader.on(), recv.offset);
    let now = recv.reader.observe(&incoming(link, socket.slot.load(Relaxed)), offset)?;
    restart_consumer(recv);
    if now != before {
        if let Some(entry) = socket.entry() {
            let ring = now == ReaderOn::Ring;
            if ring {
                entry.upgraded();
            }
            entry.set_carrier_rx(if ring { Carrier::Shm } else { Carrier::Tcp });
        }
    }
    Ok(now)
}

/// Shows the peer of a live link a further bell of ours. False if the channel is full.
pub fn show_bell(link: &Link, bell: u32, fd: i32) -> bool {
    let message = Message::of(Kind::Bell, bell).encode();
    handles::send_message(link.control, &message, &[fd]).is_ok()
}

/// Sends a message to the peer's service thread; by ours if the channel is full.
pub fn tell(link: &'static Link, kind: Kind, slot: u32) {
    say(link, Message::of(kind, slot));
}

fn say(link: &'static Link, message: Message) {
    if !link.is_alive() {
        return;
    }
    let sent = handles::send_message(link.control, &message.encode(), &[]);
    if sent.is_err_and(|error| error.0 == libc::EAGAIN) {
        if let Some(service) = service::running() {
            service.ask(Request::Tell { link, message });
        }
    }
}
