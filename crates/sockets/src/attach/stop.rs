//! A writer that would go on over TCP has the reader stop first: then what is unread in the ring is
//! sent again by TCP, in order, and whoever reads next needs no ring (`docs/design/handover.md`).

use core::sync::atomic::Ordering::*;

use shunt_carriers::shm::{incoming, outgoing};
use shunt_carriers::Sender;
use shunt_link::Link;
use shunt_os::{clock, handles, proc, raw};
use shunt_pairing::message::{Kind, Message};
use shunt_stream::{End, ReaderOn, Words, WriterOn};

use super::ends::{break_stream, have_ended};
use super::fin::fin_if_due;
use super::leave::stop_reading;
use super::remains::{former_slot_of_last, FormerSlot};
use super::{leave_ring, resend, say, wake_own, Broken};
use crate::pool::{self, Mode, RecvSide, SendSide, Socket};
use crate::send::held;
use crate::wait::blocking::direction;
use crate::{inherit, receive, service, wait};

/// How long a reader's service thread is given to answer, in ns.
pub const ANSWER_NS_MAX: u64 = 100_000_000;
/// How long a thread that has something to do at once may wait for a core, in ns: its answer decides what
/// the program is told.
pub const CORE_NS_MAX: u64 = 2_000_000_000;

/// Whether the reader is on the ring, has not taken everything, and could stop.
pub(super) fn leaves_unread(socket: &Socket, send: &mut SendSide) -> Result<bool, Broken> {
    let (Some(link), WriterOn::Ring) = (socket.link(), send.writer.on()) else { return Ok(false) };
    let unread = match &mut send.producer {
        Some(producer) => producer.unread()?.unwrap_or(0),
        None => 0,
    };
    Ok(unread > 0 && link.is_alive() && is_seen(link, socket.slot.load(Relaxed)))
}

/// Whether the stream's writer is on the ring: its reader may come there at any time.
pub fn writes_ring(socket: &Socket) -> bool {
    socket.mode() == Mode::Attached && socket.send.lock().writer.on() == WriterOn::Ring
}

/// Whether the reader is bound by the ring: it does not read on by TCP without a word.
pub fn is_seen(link: &Link, slot: u32) -> bool {
    Words::end(&outgoing(link, slot)) == End::Seen.encode()
}

/// Asks the reader's process to stop, if it has something unread in the ring. Its answer is a
/// `Stopped`, and [`flush`](super::flush) sends the rest.
///
/// `head`, for a full ring: a reader that has come beyond it goes on, for there is room, and the program may
/// have been told of it.
pub fn ask_to_stop(
    socket: &Socket,
    send: &mut SendSide,
    head: Option<u64>,
) -> Result<bool, Broken> {
    let asks = leaves_unread(socket, send)?;
    if let (true, Some(link)) = (asks, socket.link()) {
        let id = head.map_or(0, |head| head + 1);
        say(link, Message { id, ..Message::of(Kind::Yield, socket.slot.load(Relaxed)) });
    }
    Ok(asks)
}

/// After [`ask_to_stop`], no lock held: waits until `end` for the reader to have stopped. False if it
/// has not, and should: while it only waits for a processor, or another process reads the stream too.
pub(super) fn await_stop(link: &Link, slot: u32, end: u64) -> bool {
    loop {
        let left = end.saturating_sub(clock::now_ns());
        wait_until(left.min(ANSWER_NS_MAX), || !link.is_alive() || !is_seen(link, slot));
        if !link.is_alive() || may_leave_unread(link, slot) {
            return true;
        }
        if left == 0 {
            return false;
        }
    }
}

/// Has the reader stop, if it has something unread in the ring, and waits a little for that. No lock is held.
pub fn have_reader_stop(socket: &Socket) {
    let asked = ask_to_stop(socket, &mut socket.send.lock(), None);
    if let (Ok(true), Some(link)) = (asked, socket.link()) {
        await_stop(link, socket.slot.load(Relaxed), clock::now_ns() + ANSWER_NS_MAX);
    }
}

/// Whether a ring whose reader does not answer may be left with what is in it. One that has not come
/// to it yet need not answer: all of it is sent again. One that only waits for a processor will
/// answer. One that is stopped finds it when it goes on; but a process that shares its stream would
/// not, and read what comes behind.
pub fn may_leave_unread(link: &Link, slot: u32) -> bool {
    let stopped = || proc::is_stopped(link.peer_pid);
    !is_seen(link, slot) || !outgoing(link, slot).reader_shares() && stopped()
}

/// The writer asked: this process reads TCP from here on, until both go up again. `head`: only if the reader
/// has taken nothing beyond it. False if the stream has left its slot.
pub fn stop_for_writer(socket: &'static Socket, head: Option<u64>) -> bool {
    let stopped = {
        let mut recv = socket.recv.lock();
        let has_moved = |head| direction(socket, false).is_some_and(|it| it.head() != head);
        if socket.mode() != Mode::Attached {
            return false;
        }
        if head.is_some_and(has_moved) {
            return true;
        }
        let offset = recv.offset;
        stop_reading(socket, &mut recv).map(|_| offset)
    };
    match stopped {
        Ok(offset) => {
            wait::epoll::retract_beyond(offset, socket);
            wake_own(socket);
        }
        Err(Broken) => break_stream(socket),
    }
    true
}

/// This process ends, or becomes another program, perhaps in a signal handler: what lies unread in
/// rings that it writes is to be on TCP by then, which outlives it. Waits for that as for [`await_peer`].
pub fn settle_before_end() {
    let mut asked = false;
    pool::try_each(|socket| {
        if socket.mode() != Mode::Attached {
            return;
        }
        let Some(mut send) = socket.send.try_lock() else {
            // The service thread may be sending again what a reader left.
            asked = true;
            return;
        };
        if send.writer.on() != WriterOn::Ring {
            // What is being sent again is to be out, too.
            asked |= matches!(send.writer.on(), WriterOn::Resend { .. });
            return;
        }
        held::show_locked(&mut send);
        let unread = leaves_unread(socket, &mut send).is_ok_and(|unread| unread);
        let Some(link) = socket.link() else { return };
        let slot = socket.slot.load(Relaxed);
        if !is_seen(link, slot) || send.fin_pending && !unread {
            // Nobody has to be asked, unless he comes to the ring at this moment.
            let down = leave_ring(socket, &mut send, false);
            if !matches!(down, Ok(WriterOn::Ring)) {
                if matches!(down.and_then(|_| resend(socket, &mut send)), Ok(true)) {
                    fin_if_due(socket, &mut send);
                }
                return;
            }
        } else if !unread {
            return;
        }
        asked |= link.is_alive();
        say(link, Message::of(Kind::Yield, slot));
    });
    asked |= service::hurry_orphans();
    if asked {
        // What does not come to it in time is lost to whoever else has the reader's descriptor.
        await_unless(
            || !some_unsettled(|_| true),
            || !some_unsettled(|peer| !proc::is_stopped(peer)),
        );
    }
}

/// Whether a stream of this process, or one that it closed, is not settled, with a peer's process that, by its number,
/// `is` so.
fn some_unsettled(is: impl Fn(i32) -> bool) -> bool {
    let mut some = service::has_orphan(&is);
    pool::try_each(|socket| {
        some |= !is_settled(socket) && socket.link().is_some_and(|link| is(link.peer_pid));
    });
    some
}

/// This process ends: the kernel finds nothing unread on connections whose unread bytes lie in a ring,
/// and would send a FIN in place of a reset. With that done, its FINs are true.
pub fn reset_unread() {
    pool::try_each(reset_unread_of);
}

fn reset_unread_of(socket: &'static Socket) {
    let_readers_take(socket);
    let Some(unread) = leaves_unread_at_end(socket) else { return };
    let Some(link) = socket.link() else { return };
    let slot = socket.slot.load(Relaxed);
    if unread {
        handles::close_will_reset(socket.fd.load(Relaxed));
        incoming(link, slot).announce_reset();
    }
    outgoing(link, slot).writer_ends();
}

/// This process ends, and lets go of a stream that others may have.
pub fn let_go_at_end(socket: &'static Socket) {
    let former = FormerSlot::of(socket);
    // Only now it may have it alone.
    match (socket.kin.let_go(), socket.mode()) {
        (true, Mode::Attached) => reset_unread_of(socket),
        (true, _) if former.is_some_and(FormerSlot::gives_up_unread) => {
            handles::close_will_reset(socket.fd.load(Relaxed));
        }
        _ => {}
    }
}

/// A call of another thread that sleeps for bytes takes those that came, even in a process that ends: in
/// the kernel it looks for bytes before it looks for its own end. Waits until it has done so.
fn let_readers_take(socket: &Socket) {
    const TAKE_NS_MAX: u64 = 20_000_000;
    if socket.mode() != Mode::Attached {
        return;
    }
    wait_until(TAKE_NS_MAX, || {
        socket.recv.try_lock().is_some_and(|mut recv| {
            recv.waiting.other_takers() == 0 || ring_bytes(socket, &mut recv) == 0
        })
    });
}

/// As [`reset_unread`], for a stream that exec closes, if it comes to that.
pub fn reset_unread_at_exec(socket: &Socket) {
    let fd = socket.fd.load(Relaxed);
    let unread = leaves_unread_at_end(socket) == Some(true)
        || former_slot_of_last(socket).is_some_and(FormerSlot::has_unread);
    if unread && handles::lingers(fd).is_none() {
        handles::close_will_reset(fd);
        socket.resets_at_exec.store(true, Relaxed);
    }
}

/// It did not come to that.
pub fn unread_stays(socket: &Socket) {
    if socket.resets_at_exec.swap(false, Relaxed) {
        handles::close_will_not_linger(socket.fd.load(Relaxed));
    }
}

/// Whether bytes lie unread in a ring of which the kernel does not know; `None` if that is not ours to say.
/// A connection that has ended both ways nobody resets.
fn leaves_unread_at_end(socket: &Socket) -> Option<bool> {
    if socket.mode() != Mode::Attached || !inherit::is_sole_holder(socket) {
        return None;
    }
    let mut recv = socket.recv.try_lock()?;
    // Who sleeps for more has those that came, or is about to.
    let is_some = |recv: &mut RecvSide| ring_bytes(socket, recv) > 0 || receive::owes(socket, recv);
    let unread = recv.waiting.takers() == 0 && is_some(&mut recv);
    Some(unread && !have_ended(socket, &mut recv, socket.fd.load(Relaxed)))
}

/// How many bytes lie unread in the ring that a stream reads.
pub fn ring_bytes(socket: &Socket, recv: &mut RecvSide) -> u64 {
    match (recv.reader.on(), &mut recv.consumer) {
        (ReaderOn::Ring, Some(consumer)) => consumer.available().unwrap_or(0) as u64,
        // The program has not read far enough to have come to the ring.
        (ReaderOn::Tcp | ReaderOn::Crossing { .. }, _) => socket.link().map_or(0, |link| {
            let words = incoming(link, socket.slot.load(Relaxed));
            let is_up = matches!(End::decode(words.end()), Ok(End::Open | End::Seen));
            if is_up {
                words.tail().saturating_sub(words.up_at())
            } else {
                0
            }
        }),
        _ => 0,
    }
}

/// Whether neither the service thread has still to send again what a reader left, or the FIN behind it, nor the reader to
/// leave it.
pub fn is_settled(socket: &Socket) -> bool {
    if socket.mode() != Mode::Attached {
        return true;
    }
    // The service thread may be at it.
    let Some(mut send) = socket.send.try_lock() else { return false };
    match send.writer.on() {
        _ if send.fin_pending => false,
        WriterOn::Tcp => true,
        WriterOn::Resend { .. } => false,
        WriterOn::Ring => {
            let stopped = socket.link().is_some_and(|link| {
                let end = Words::end(&outgoing(link, socket.slot.load(Relaxed)));
                matches!(End::decode(end), Ok(End::Stop(_)))
            });
            !stopped && !leaves_unread(socket, &mut send).is_ok_and(|unread| unread)
        }
    }
}

/// What a peer that only waits for a processor comes to: as [`wait_until`], for [`CORE_NS_MAX`], and not for one that is
/// stopped. Whether it is so.
pub fn await_peer(link: &Link, ready: impl Fn() -> bool) -> bool {
    await_unless(ready, || proc::is_stopped(link.peer_pid))
}

/// As [`wait_until`], for [`CORE_NS_MAX`], unless it `is_in_vain`, which is looked at from time to time. Whether it is so.
fn await_unless(ready: impl Fn() -> bool, is_in_vain: impl Fn() -> bool) -> bool {
    let end = clock::now_ns() + CORE_NS_MAX;
    loop {
        wait_until(ANSWER_NS_MAX, &ready);
        if ready() {
            return true;
        }
        if clock::now_ns() >= end || is_in_vain() {
            return false;
        }
    }
}

/// Yields the core, then sleeps, until `ready` or `limit` ns have passed.
pub fn wait_until(limit: u64, ready: impl Fn() -> bool) {
    let began = clock::now_ns();
    let mut turn = 0;
    while !ready() && clock::now_ns() - began < limit {
        if turn < 50 {
            raw::sched_yield();
        } else {
            raw::nanosleep(50_000);
        }
        turn += 1;
    }
}
