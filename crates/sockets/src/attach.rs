//! Putting a stream in a slot of a link, taking it back to TCP, and taking it out.
//!
//! Lock order: `recv`, then `send`, then a wait set's own lock. Nobody sleeps holding any of them.

use core::ptr::null_mut;
use core::sync::atomic::Ordering::*;

use shunt_carriers::{shm, Failure, Part, Sender, Sent};
use shunt_link::{Link, VACANT};
use shunt_os::{handles, park, tcp};
use shunt_pairing::message::{Kind, Message};
use shunt_ring::FUTEX;
use shunt_stats::{Carrier, Reason};
use shunt_stream::{End, ReaderDied, ReaderOn, StopOutcome, Violation, WriterOn};

use crate::pool::{self, stage, Mode, RecvSide, SendSide, Socket};
use crate::service::{self, Request};
use crate::wait::epoll::Managed;
use crate::{inherit, search, wait};

pub use shunt_carriers::shm::{incoming, outgoing};

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

/// Puts a plain stream in `slot`. False if it is not to be had any more.
pub fn attach(index: u32, generation: u32, link: &'static Link, slot: u32) -> bool {
    let socket = pool::get(index);
    {
        // A fork between the look at the holders and the new mode would leave the child with a
        // stream that it takes for plain.
        let _no_fork = inherit::no_fork();
        let mut recv = socket.recv.lock();
        let mut send = socket.send.lock();
        let fits = socket.mode() == Mode::Plain
            && socket.generation.load(Relaxed) == generation
            && !socket.pinned.load(Relaxed)
            && inherit::is_sole_holder(socket);
        if !fits {
            return false;
        }
        // SAFETY: the slot's memory stays mapped while the stream stands in it, and this is the
        // only sender of the direction.
        let producer = unsafe { shm::Sender::attach(link, slot) };
        // SAFETY: as above, the only receiver.
        let consumer = unsafe { shm::Receiver::attach(link, slot) };
        *recv = RecvSide::fresh(consumer);
        *send = SendSide::fresh(producer);
        socket.slot.store(slot, Relaxed);
        socket.link.store((&raw const *link).cast_mut(), Release);
        socket.stage.store(stage::SETTLED, Relaxed);
        socket.unmanaged.store(true, Relaxed);
        link.set_stream(slot, index);
        if let Some(entry) = socket.entry() {
            entry.peer_is_shunt();
        }
        socket.set_mode(Mode::Attached);
    }
    search::stop_waiting(socket);
    if let Some(service) = service::running() {
        service.watch_companion(index, socket);
    }
    try_agree(index, socket);
    true
}

/// Tells the writer that it may go up, once no thread sleeps natively for the stream and its
/// epoll registrations are ours.
pub fn try_agree(index: u32, socket: &'static Socket) {
    if socket.unmanaged.load(Acquire) {
        match wait::epoll::manage_all(index, socket) {
            Managed::All => socket.unmanaged.store(false, Release),
            Managed::Later => return,
            Managed::Never => return leave(index, socket, Reason::NestedEpoll),
        }
    }
    let mut recv = socket.recv.lock();
    if socket.mode() == Mode::Attached {
        let _ = agree_locked(socket, &mut recv);
    }
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

/// Wakes everybody of this process who waits for the stream.
pub fn wake_own(index: u32, socket: &'static Socket) {
    if let Some(link) = socket.link() {
        let slot = socket.slot.load(Relaxed);
        wake_futexes(link, slot);
        wait::epoll::stir(index, socket);
        link.wake_own();
    }
}

/// Wakes the threads of this process that sleep on the stream's own words.
fn wake_futexes(link: &Link, slot: u32) {
    // A stream that is being taken out has no slot any more.
    if slot >= link.memory.slots() {
        return;
    }
    for writer in [link.side, link.side.other()] {
        // SAFETY: link memory stays mapped, and only atomics are touched.
        let direction = unsafe { link.memory.direction(slot, writer).as_ref() };
        let ours = if writer == link.side {
            &direction.wake.space_wanted
        } else {
            &direction.wake.data_wanted
        };
        if ours.fetch_and(!FUTEX, SeqCst) & FUTEX != 0 {
            park::wake_all(ours);
        }
    }
}

/// Accounts for the end of a ring segment of the outgoing direction.
fn left_ring(send: &mut SendSide, tail: u64) {
    let until = match send.writer.on() {
        WriterOn::Resend { from, .. } => from,
        _ => tail,
    };
    send.ring_only += until.saturating_sub(send.up_at);
    send.since_down = 0;
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

/// The outgoing direction goes to TCP; the reader is woken to see it.
pub fn go_down(socket: &Socket, send: &mut SendSide) -> Result<WriterOn, Broken> {
    if send.writer.on() != WriterOn::Ring {
        return Ok(send.writer.on());
    }
    let (Some(link), Some(producer)) = (socket.link(), &send.producer) else { return Err(Broken) };
    let (slot, tail) = (socket.slot.load(Relaxed), producer.tail());
    let on = send.writer.go_down(&outgoing(link, slot), tail)?;
    producer.wake_receiver();
    left_ring(send, tail);
    note_tx_on_tcp(socket);
    Ok(on)
}

fn note_tx_on_tcp(socket: &Socket) {
    if let Some(entry) = socket.entry() {
        entry.set_carrier_tx(Carrier::Tcp);
    }
}

/// TCP to ring, if the reader has agreed and no thread is inside a native send.
pub fn try_go_up(socket: &Socket, send: &mut SendSide) -> bool {
    let Some(link) = socket.link() else { return false };
    let slot = socket.slot.load(Relaxed);
    let words = outgoing(link, slot);
    let may = send.writer.may_go_up(&words)
        && !send.shut
        && !socket.pinned.load(Relaxed)
        && link.is_alive()
        && socket.native_send.load(SeqCst) == 0;
    if !may {
        return false;
    }
    let fd = socket.fd.load(Relaxed);
    let Ok(written) = tcp::bytes_written(fd, socket.connector.load(Relaxed)) else { return false };
    let offset = written + send.ring_only;
    let Some(producer) = &mut send.producer else { return false };
    producer.ring().start_at(offset);
    if !send.writer.go_up(&words, offset) {
        return false;
    }
    send.up_at = offset;
    if let Some(entry) = socket.entry() {
        entry.upgraded();
        entry.set_carrier_tx(Carrier::Shm);
    }
    true
}

/// Sends ring bytes again by TCP as far as the kernel takes them; true when all are sent.
pub fn resend(socket: &Socket, send: &mut SendSide) -> Result<bool, Broken> {
    let Some(link) = socket.link() else { return Err(Broken) };
    let words = outgoing(link, socket.slot.load(Relaxed));
    let fd = socket.fd.load(Relaxed);
    let mut companion = shunt_carriers::tcp::Sender::new(fd);
    let mut buffer = [0u8; 16 * 1024];
    let mut resent = false;
    while let WriterOn::Resend { from, to } = send.writer.on() {
        resent = true;
        let dead = handles::poll_now(fd, 0) & (libc::POLLERR | libc::POLLHUP) != 0;
        let length = (to - from).min(buffer.len() as u64) as usize;
        let Some(producer) = &send.producer else { return Err(Broken) };
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
                    send.failed = Some(error.0);
                }
                send.writer.resent(&words, to)?
            }
        };
    }
    if resent {
        tcp::push(fd);
    }
    Ok(true)
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
        let closed = socket.link().is_some_and(|link| {
            let end = shunt_stream::Words::end(&outgoing(link, socket.slot.load(Relaxed)));
            matches!(End::decode(end), Ok(End::Closed(_)))
        });
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
        break_stream(index, socket);
    }
    settle_on_tcp(index, socket);
    wake_own(index, socket);
}

/// The FIN that a shutdown asked for, once nothing of the stream is left on the ring.
fn fin_if_due(socket: &Socket, send: &mut SendSide) {
    if send.fin_pending && send.writer.on() == WriterOn::Tcp {
        send.fin_pending = false;
        handles::shut_writing(socket.fd.load(Relaxed));
    }
}

/// shutdown(SHUT_WR) with bytes unread in the ring: the FIN is held back until the reader has
/// taken them, because a reader that leaves meanwhile gets them by TCP, where nothing may come
/// before them. False if there is no reason to hold it.
pub fn hold_fin(socket: &Socket, send: &mut SendSide) -> Result<bool, Broken> {
    let (Some(link), WriterOn::Ring) = (socket.link(), send.writer.on()) else { return Ok(false) };
    let slot = socket.slot.load(Relaxed);
    let seen = shunt_stream::Words::end(&outgoing(link, slot)) == End::Seen.encode();
    let unread = match &mut send.producer {
        Some(producer) => producer.unread()?.unwrap_or(0),
        None => 0,
    };
    let hold =
        seen && unread > 0 && link.is_alive() && !tcp::peer_has_ended(socket.fd.load(Relaxed));
    if hold {
        send.fin_pending = true;
        tell(link, Kind::FinHeld, slot);
    }
    Ok(hold)
}

/// The writer holds its FIN.
pub fn fin_is_held(index: u32, socket: &'static Socket) {
    {
        let mut recv = socket.recv.lock();
        if socket.mode() != Mode::Attached {
            return;
        }
        recv.fin_held = true;
        recv.peer_shut = true;
        report_drained(socket, &mut recv);
    }
    wake_own(index, socket);
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
        Ok(true) => wake_own(index, socket),
        Ok(false) => flush(index, socket),
        Err(Broken) => break_stream(index, socket),
    }
}

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
fn resend_all(socket: &Socket) -> Result<bool, Broken> {
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
fn await_answer(link: &Link, slot: u32) {
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

fn on_ring(recv: &RecvSide, send: &SendSide) -> bool {
    send.writer.on() != WriterOn::Tcp || recv.reader.on() != ReaderOn::Tcp
}

fn stop_reading(socket: &Socket, recv: &mut RecvSide) -> Result<StopOutcome, Broken> {
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

/// Sends a message to the peer's service thread; by ours if the channel is full.
pub fn tell(link: &'static Link, kind: Kind, slot: u32) {
    if !link.is_alive() {
        return;
    }
    let message = Message::of(kind, slot);
    let sent = handles::send_message(link.control, &message.encode(), &[]);
    if sent.is_err_and(|error| error.0 == libc::EAGAIN) {
        if let Some(service) = service::running() {
            service.ask(Request::Tell { link, message });
        }
    }
}

/// The peer broke the rules, or bytes are lost beyond repair: the stream ends in a reset.
#[cold]
pub fn break_stream(index: u32, socket: &'static Socket) {
    {
        let mut recv = socket.recv.lock();
        let _send = socket.send.lock();
        if socket.mode() != Mode::Attached {
            return;
        }
        recv.reset_pending = true;
        socket.pinned.store(true, SeqCst);
        handles::shut_both(socket.fd.load(Relaxed));
        if let Some(entry) = socket.entry() {
            entry.set_reason(Reason::CorruptPeer);
        }
        socket.set_mode(Mode::Left);
    }
    wait::epoll::release_all(index, socket);
    wake_own(index, socket);
}

/// The peer's process is gone (or became another program): finish both directions alone.
pub fn peer_died(index: u32, socket: &'static Socket) {
    let mut unsent = false;
    let done = (|| -> Result<(), Broken> {
        let mut recv = socket.recv.lock();
        let mut send = socket.send.lock();
        let Some(link) = socket.link() else { return Ok(()) };
        if socket.mode() != Mode::Attached {
            return Ok(());
        }
        let slot = socket.slot.load(Relaxed);
        let tail = send.producer.as_ref().map_or(0, shm::Sender::tail);
        let was_ring = send.writer.on() == WriterOn::Ring;
        match send.writer.reader_died(&outgoing(link, slot), tail)? {
            ReaderDied::On(on) => {
                if was_ring && on != WriterOn::Ring {
                    left_ring(&mut send, tail);
                    note_tx_on_tcp(socket);
                }
                unsent = matches!(on, WriterOn::Resend { .. });
            }
            ReaderDied::Lost { .. } => return Err(Broken),
        }
        if unsent && tcp::peer_has_ended(socket.fd.load(Relaxed)) {
            // The kernel saw an empty receive queue and sent a FIN; the bytes lay in the ring.
            recv.reset_pending = true;
        }
        let offset = recv.offset;
        if recv.offset_known {
            recv.reader.writer_died(&incoming(link, slot), offset)?;
            restart_consumer(&mut recv);
        }
        if unsent {
            unsent = !resend(socket, &mut send)?;
        }
        fin_if_due(socket, &mut send);
        if let Some(entry) = socket.entry() {
            entry.set_reason(Reason::PeerDied);
        }
        Ok(())
    })();
    match done {
        Err(Broken) => return break_stream(index, socket),
        Ok(()) if unsent => {
            if let Some(service) = service::running() {
                service.await_space(index, socket);
            }
        }
        Ok(()) => {}
    }
    socket.companion_stirred.store(true, Release);
    wake_own(index, socket);
}

/// After the reader came to the ring: the consumer starts where the stream is.
pub fn restart_consumer(recv: &mut RecvSide) {
    let offset = recv.offset;
    if recv.reader.on() == ReaderOn::Ring {
        if let Some(consumer) = &mut recv.consumer {
            consumer.cross_to(offset);
        }
    }
}

/// What closing the last descriptor leaves to be done to the companion.
pub struct Farewell {
    /// TCP would answer with a reset, because bytes were left unread.
    pub reset: bool,
}

/// Ends the stream's stay in its slot; the caller closes the descriptor next. `alone`: no other
/// process holds it.
pub fn detach(index: u32, socket: &'static Socket, alone: bool) -> Farewell {
    let mut farewell = Farewell { reset: false };
    wait::epoll::forget_all(index, socket);
    let mut recv = socket.recv.lock();
    let mut send = socket.send.lock();
    let attached = socket.mode() == Mode::Attached;
    let link = socket.link();
    let mut orphaned = false;
    if let (true, Some(link)) = (attached, link) {
        let slot = socket.slot.load(Relaxed);
        let words = incoming(link, slot);
        let _ = go_down(socket, &mut send);
        let flushed = resend(socket, &mut send).unwrap_or(true);
        if !flushed {
            orphaned = service::resend_after_close(socket, &mut send);
        }
        let offset = recv.offset;
        if recv.offset_known {
            let asked = if alone {
                recv.reader.close(&words, offset).map(|o| {
                    farewell.reset = o.unread;
                    o.asked
                })
            } else {
                recv.reader.stop(&words, offset).map(|o| o == StopOutcome::Asked)
            };
            if asked.unwrap_or(false) {
                if let Some(consumer) = &recv.consumer {
                    consumer.wake_sender();
                }
                tell(link, Kind::Stopped, slot);
                if !alone {
                    await_answer(link, slot);
                }
            }
        }
    }
    socket.set_mode(Mode::Free);
    socket.link.store(null_mut(), SeqCst);
    if let (true, Some(link)) = (socket.slot.load(Relaxed) != VACANT, link) {
        let slot = socket.slot.swap(VACANT, SeqCst);
        wake_futexes(link, slot);
        link.set_stream(slot, VACANT);
        if !orphaned {
            service::released(link, slot);
        }
    }
    recv.consumer = None;
    send.producer = None;
    farewell
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
