//! Streams end: the program closes them, the peer dies or lies.

use core::ptr::null_mut;
use core::sync::atomic::Ordering::*;

use shunt_carriers::shm::{incoming, outgoing};
use shunt_link::VACANT;
use shunt_os::{clock, handles, tcp};
use shunt_pairing::message::Kind;
use shunt_stats::Reason;
use shunt_stream::{End, ReaderDied, ReaderOn, StopOutcome, Words, WriterOn};

use super::anew::look_anew;
use super::fin::{drop_fin, fin_if_due, hold_fin};
use super::leave::{await_answer, leave};
use super::remains::{begin_at_crossing, finish_for_dead, former_slot_of_last, FormerSlot};
use super::stop::{ask_to_stop, ring_bytes, wait_until, ANSWER_NS_MAX};
use super::writer::{go_down, leave_ring, left_ring, note_tx_on_tcp, resend};
use super::{tell, wake_futexes, wake_own, Broken};
use crate::pool::{self, Mode, RecvSide, SendSide, Socket};
use crate::send::held;
use crate::{inherit, receive, service, wait};

/// The peer broke the rules, or bytes are lost beyond repair: the stream ends in a reset.
#[cold]
pub fn break_stream(socket: &'static Socket) {
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
    wait::epoll::release_all(socket);
    wake_own(socket);
}

/// The program has given the connection up: what a ring still has of it is nobody's.
pub fn abandon(socket: &'static Socket) {
    {
        let mut recv = socket.recv.lock();
        let mut send = socket.send.lock();
        recv.reset_pending = false;
        send.failed = None;
        socket.given_up.store(true, Relaxed);
        socket.remains.store(false, Relaxed);
        socket.unanswered.store(false, Relaxed);
        if socket.mode() != Mode::Attached {
            return;
        }
        socket.set_mode(Mode::Left);
    }
    wait::epoll::release_all(socket);
    wake_own(socket);
}

/// The peer's process is gone (or became another program): finish both directions alone. Said again, or of a stream that
/// has another peer by now, it is nothing.
pub fn peer_died(index: u32, socket: &'static Socket) {
    let mut unsent = false;
    let done = (|| -> Result<(), Broken> {
        let mut recv = socket.recv.lock();
        let mut send = socket.send.lock();
        let Some(link) = socket.link() else { return Ok(()) };
        if socket.mode() != Mode::Attached || link.is_alive() {
            return Ok(());
        }
        let slot = socket.slot.load(Relaxed);
        let (mut unread, mut lost) = (false, false);
        let words = outgoing(link, slot);
        let (shown, tail) = send.producer.as_ref().map_or((0, 0), |it| (it.shown(), it.tail()));
        let was_ring = send.writer.on() == WriterOn::Ring;
        // Its FIN would not have come before a reset.
        let is_due = recv.peer_shut || incoming(link, slot).fin_is_due();
        let is_overtaken = is_due && !fin_fits(socket, &mut recv);
        let peer_shut = incoming(link, slot).writer_shut() && !is_overtaken;
        // Others of its family may read on.
        let peer_shares = words.reader_shares();
        match send.writer.reader_died(&words, tail)? {
            ReaderDied::On(on) => {
                if was_ring && on != WriterOn::Ring {
                    left_ring(&mut send, tail);
                    note_tx_on_tcp(socket);
                }
                // Both ends of the connection were sent: nobody is told of what nobody reads.
                let was_over = send.shut && peer_shut && !peer_shares;
                if let (WriterOn::Resend { to, .. }, true) = (on, was_over) {
                    send.writer.resent(&words, to)?;
                }
                if let WriterOn::Resend { from, .. } = send.writer.on() {
                    unsent = true;
                    // What is held back is not.
                    unread = from < shown;
                }
            }
            // What was unread when the writer went down behind it nobody misses, unless somebody reads on.
            ReaderDied::Lost { .. } if !peer_shares && ends_soon(socket) => lost = true,
            ReaderDied::Lost { .. } => return Err(Broken),
        }
        let was_reset = handles::poll_now(socket.fd.load(Relaxed), 0) & libc::POLLERR != 0;
        // Where TCP was reset already the kernel names it; but that is of what came behind a FIN if bytes were lost.
        let died_unread = (lost || unread && !was_reset) && !peer_shares;
        if (died_unread || was_reset) && is_overtaken {
            recv.peer_shut = false;
            incoming(link, slot).drop_fin();
        }
        let error = match (recv.peer_shut, peer_shut) {
            _ if was_reset && !peer_shares && is_behind_shutdown(socket) => libc::EPIPE,
            _ if !died_unread => 0,
            (true, _) => libc::EPIPE,
            // The kernel knows of its FIN, or a process that ends has had it send a reset.
            (false, true) => 0,
            (false, false) => libc::ECONNRESET,
        };
        match error {
            // What was noted when it left the ring stands.
            0 => {}
            libc::ECONNRESET if lost && !was_reset => {
                recv.reset_pending = !socket.shut_reading.load(Relaxed);
            }
            libc::ECONNRESET => note_reset(socket),
            error => socket.death_error.store(error, Relaxed),
        }
        let offset = recv.offset;
        if recv.offset_known {
            recv.reader.writer_died(&incoming(link, slot), offset)?;
            restart_consumer(&mut recv);
        }
        if unsent {
            unsent = !resend(socket, &mut send)?;
        }
        // Of bytes that were lost nothing is sent again.
        let is_answered = unread || was_reset;
        if error != 0 && is_answered && tcp::peer_has_ended(socket.fd.load(Relaxed)) {
            // Its connection is closed, and the answer to what was sent is under way: nobody looks before.
            await_reset(socket);
        }
        fin_if_due(socket, &mut send);
        if let Some(entry) = socket.entry() {
            entry.set_reason(Reason::PeerDied);
        }
        Ok(())
    })();
    match done {
        Err(Broken) => return break_stream(socket),
        Ok(()) if unsent => {
            if let Some(service) = service::running() {
                service.await_space(index, socket);
            }
        }
        Ok(()) => look_anew(index, socket),
    }
    socket.companion_stirred.set();
    wake_own(socket);
}

/// The connection's error, which is taken.
pub fn take_error(socket: &Socket) -> Option<i32> {
    let fd = socket.fd.load(Relaxed);
    let number = handles::option_int(fd, libc::SOL_SOCKET, libc::SO_ERROR).unwrap_or(0);
    (number != 0).then(|| renamed(socket, number))
}

/// The kernel's error, which it has told, by the name that it has if the peer died.
pub fn renamed(socket: &Socket, number: i32) -> i32 {
    if !matches!(number, libc::EPIPE | libc::ECONNRESET) {
        return number;
    }
    match socket.death_error.swap(0, Relaxed) {
        0 if number == libc::ECONNRESET && is_behind_shutdown(socket) => libc::EPIPE,
        0 => number,
        death => death,
    }
}

/// The error that the kernel would name otherwise, for a send: a peer died with bytes unread, or reset the
/// stream behind its shutdown.
pub fn error_of_death(socket: &Socket) -> Option<i32> {
    if socket.death_error.load(Relaxed) == 0 && !is_behind_shutdown(socket) {
        return None;
    }
    take_error(socket)
}

/// Whether a reset of which the kernel tells came behind the end of the peer's bytes: its FIN was held back, or was
/// not sent. It is a broken pipe then, as behind a FIN.
pub fn is_behind_shutdown(socket: &Socket) -> bool {
    let is_due = |link| incoming(link, socket.slot.load(Relaxed)).fin_is_due();
    !socket.shut_writing.load(Relaxed) && socket.link().is_some_and(is_due)
}

/// The peer died with bytes unread: this process is to be told of a reset, and whoever shares the stream.
fn note_reset(socket: &Socket) {
    owe_reset(socket);
    socket.kin.note_reset();
}

/// What is sent again was answered by a reset, and to the kernel that is one behind a FIN. It was the process that
/// ended, and the bytes were unread then. The link may not have heard of it yet.
pub(super) fn note_death_of_reader(socket: &Socket) {
    let Some(link) = socket.link() else { return };
    let slot = socket.slot.load(Relaxed);
    if !outgoing(link, slot).reader_shares() && !incoming(link, slot).writer_shut() {
        note_reset(socket);
    }
}

/// A stream is about to leave its ring, no lock held: whether its peer died with bytes unread, of which the link has
/// not heard yet. Behind its FIN they come too late to be told of by TCP.
pub(super) fn look_for_death(socket: &Socket) {
    let _held = socket.recv.lock();
    if receive::is_dying_locked(socket) {
        note_reset(socket);
    }
}

/// The peer died with bytes unread before this process, or this program, had the stream.
pub fn owe_reset(socket: &Socket) {
    socket.death_error.store(libc::ECONNRESET, Relaxed);
}

/// As [`owe_reset`], of one that was not known before: it is the kernel's but for that.
pub fn begin_with_reset(index: u32) {
    let socket = pool::get(index);
    leave(index, Reason::PeerDied);
    owe_reset(socket);
    socket.set_mode(Mode::Left);
}

/// Whether the peer died with bytes unread, and this process is to be told, unless the kernel has done it.
pub fn owes_reset(socket: &Socket) -> bool {
    socket.death_error.load(Relaxed) == libc::ECONNRESET
}

/// Whether nobody was told of it yet.
pub fn is_reset_owed(socket: &Socket) -> bool {
    matches!(socket.mode(), Mode::Attached | Mode::Left)
        && owes_reset(socket)
        && error_of_death_is_due(socket)
}

/// A receive on a stream that has left its ring: whether it is told of that, behind the bytes.
pub fn told_before_receive(socket: &Socket) -> bool {
    if !owes_reset(socket) {
        return false;
    }
    let _held = socket.recv.lock();
    tcp::readable(socket.fd.load(Relaxed)) == Ok(0) && reset_by_death(socket)
}

/// A send on a stream that has left its ring: the error that it is told of.
pub fn told_before_send(socket: &Socket) -> Option<i32> {
    if !owes_reset(socket) {
        return None;
    }
    // A re-send may have taken it.
    let taken = || socket.send.lock().failed.take().map(|number| renamed(socket, number));
    take_error(socket).or_else(taken)
}

/// Whether nobody was told yet of the peer's death, whose error the kernel has by another name.
pub(super) fn error_of_death_is_due(socket: &Socket) -> bool {
    let has_error = || handles::poll_now(socket.fd.load(Relaxed), 0) & libc::POLLERR != 0;
    socket.death_error.load(Relaxed) != 0 && has_error()
}

/// Whether a receive that came to TCP's end is told of a reset in its place, by the peer's death. The FIN may be
/// here before the answer to what was sent again, and that may be known to the re-send alone. The caller holds
/// the receiving side.
pub fn reset_by_death(socket: &Socket) -> bool {
    if !owes_reset(socket) {
        return false;
    }
    let answered = await_reset(socket);
    let failed = socket.send.lock().failed.take().is_some();
    let told = take_error(socket).is_some() || failed || !answered;
    if told {
        socket.death_error.store(0, Relaxed);
    }
    told
}

/// Whether the peer's process, which is gone, was the last that had the connection.
fn ends_soon(socket: &Socket) -> bool {
    let ended = || tcp::peer_has_ended(socket.fd.load(Relaxed));
    wait_until(ANSWER_NS_MAX, ended);
    ended()
}

/// Until the connection has been reset; false if that lasts too long.
fn await_reset(socket: &Socket) -> bool {
    let ends = libc::POLLERR | libc::POLLHUP;
    let answered = || handles::poll_now(socket.fd.load(Relaxed), 0) & ends != 0;
    wait_until(ANSWER_NS_MAX, answered);
    answered()
}

/// A receive took the error of a death behind a FIN from the kernel, which has not heard of that FIN: only
/// a send is told of it. False if it was another error.
pub fn leave_to_send(socket: &Socket, number: i32) -> bool {
    let is_behind_fin =
        || socket.death_error.load(Relaxed) == libc::EPIPE || is_behind_shutdown(socket);
    let breaks = number == libc::ECONNRESET && is_behind_fin();
    if breaks {
        socket.death_error.store(0, Relaxed);
        socket.send.lock().failed = Some(libc::EPIPE);
    }
    breaks
}

/// What SO_ERROR says where the kernel said `number`, and took it.
pub fn error_told(socket: &Socket, number: i32) -> i32 {
    let number = renamed(socket, number);
    if number != 0 || !matches!(socket.mode(), Mode::Attached | Mode::Left) {
        return number;
    }
    let reset = core::mem::take(&mut socket.recv.lock().reset_pending);
    let failed = socket.send.lock().failed.take();
    if reset {
        libc::ECONNRESET
    } else {
        failed.unwrap_or(0)
    }
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

/// Whether a thread is inside the kernel with the open file: the FIN waits for it.
fn is_used_natively(socket: &Socket) -> bool {
    socket.native_recv.load(SeqCst) + socket.native_send.load(SeqCst) > 0
}

/// Whether the peer may still have the copy of the descriptor that it was shown, and nobody else has
/// one: a stream that was shared with a child may have gone anywhere from there.
fn is_being_shown(socket: &Socket) -> bool {
    const SHOWN_NS_MAX: u64 = 1_000_000_000;
    let shown = socket.shown_ns.load(Relaxed);
    shown != 0
        && !is_used_natively(socket)
        && !inherit::was_shared(socket)
        && clock::now_ns() - shown < SHOWN_NS_MAX
}

/// Whether the peer's end of the stream came to its slot: its reader has spoken there.
fn peer_came(words: &impl Words) -> bool {
    !matches!(End::decode(words.end()), Ok(End::Idle))
}

/// What closing the last descriptor leaves to be done to the companion.
pub struct Farewell {
    /// TCP would answer with a reset, because bytes were left unread.
    pub reset: bool,
    /// A FIN is to be sent before the close, which sends none while the peer holds a copy of the
    /// descriptor that it was shown.
    pub fin: bool,
    /// The same of a reset: the connection is given up before.
    pub abort: bool,
}

impl Farewell {
    /// Does it to the descriptor, which is closed next.
    pub fn say(&self, fd: i32) {
        if self.abort {
            handles::abort(fd);
        } else if self.reset {
            handles::close_will_reset(fd);
        } else if self.fin {
            // What comes then is answered with a reset, as after a close (tcp_rcv_state_process of Linux).
            handles::shut_both(fd);
        }
    }
}

/// A close with bytes unread in the ring: its FIN is held, so that a reader that leaves the ring
/// meanwhile gets them by TCP; so is a reset, until they are there.
fn ends_later(socket: &Socket, send: &mut SendSide, resets: bool) -> bool {
    let fd = socket.fd.load(Relaxed);
    let is_over = send.writer.on() != WriterOn::Ring && !send.fin_pending;
    if is_over || is_used_natively(socket) {
        return false;
    }
    let lingers = handles::lingers(fd);
    let resets = resets || lingers == Some(0);
    if send.fin_pending && !resets {
        return service::keep_after_close(socket, send, false, false);
    }
    let waits = lingers.is_some_and(|seconds| seconds > 0);
    let resets = resets || tcp::readable(fd).is_ok_and(|bytes| bytes > 0);
    let fits = if resets { few_unread(socket, send) } else { Ok(true) };
    if resets && matches!(fits, Ok(false)) {
        drop_fin(socket, send);
    }
    if send.writer.on() != WriterOn::Ring || waits {
        return false;
    }
    let held = if resets {
        fits.and_then(|few| Ok(few && ask_to_stop(socket, send, None)?))
    } else {
        hold_fin(socket, send)
    };
    held.unwrap_or(false) && service::keep_after_close(socket, send, resets, false)
}

/// Whether a close resets the connection, as far as the kernel knows.
fn gives_up(socket: &Socket) -> bool {
    let fd = socket.fd.load(Relaxed);
    handles::lingers(fd) == Some(0) || tcp::readable(fd).is_ok_and(|bytes| bytes > 0)
}

/// Whether what is unread in the ring is sure to fit the peer's TCP window.
fn few_unread(socket: &Socket, send: &mut SendSide) -> Result<bool, Broken> {
    let (Some(link), Some(producer)) = (socket.link(), &mut send.producer) else {
        return Ok(false);
    };
    let unread = producer.ring().unread().map_err(|_| Broken)?;
    Ok(outgoing(link, socket.slot.load(Relaxed)).fit_window(unread))
}

/// Whether both ends of an attached stream have sent a FIN, be it one that is held back. Behind more bytes
/// than TCP's window is sure to take, that one would not have come.
pub fn have_ended(socket: &Socket, recv: &mut RecvSide, fd: i32) -> bool {
    socket.shut_writing.load(SeqCst)
        && (tcp::peer_has_ended(fd) || recv.peer_shut && fin_fits(socket, recv))
}

/// Whether a FIN behind what is unread would have come.
fn fin_fits(socket: &Socket, recv: &mut RecvSide) -> bool {
    let here = ring_bytes(socket, recv) + tcp::readable(socket.fd.load(Relaxed)).unwrap_or(0);
    // Before it stands what is on its way again, too.
    let unread = here.max(recv.owed.saturating_sub(recv.offset));
    socket.link().is_some_and(|link| incoming(link, socket.slot.load(Relaxed)).fit_window(unread))
}

/// Ends the stream's stay in its slot; the caller closes the descriptor next. `alone`: no other
/// process holds it.
pub fn detach(socket: &'static Socket, alone: bool) -> Farewell {
    let mut farewell = Farewell { reset: false, fin: false, abort: false };
    let members = wait::epoll::forget_all(socket);
    if alone && socket.fd.load(Relaxed) >= 0 && !is_used_natively(socket) {
        // The kernel would go on to tell of them while the file is held by us: by a message that shows it, or by a call
        // of the service thread. While a call of the program's holds it, it does so without us, too.
        wait::epoll::drop_from_kernel(&members);
    }
    if let (Mode::Attached, Some(service)) = (socket.mode(), service::running()) {
        service.forget_companion(socket);
    }
    if !alone {
        look_for_death(socket);
    }
    // A child would hold the descriptor that an orphan is kept by.
    let _no_fork = (socket.mode() == Mode::Attached).then(inherit::no_fork);
    let mut recv = socket.recv.lock();
    let attached = socket.mode() == Mode::Attached;
    // A connection that has ended both ways is none: nobody resets it.
    let ended = attached && alone && have_ended(socket, &mut recv, socket.fd.load(Relaxed));
    if ended {
        // Its writer's FIN need not wait for that, and a kernel that has not seen it yet would answer what is left
        // on TCP with a reset.
        receive::drop_unread(socket, &mut recv);
    }
    let mut send = socket.send.lock();
    let link = socket.link();
    let mut orphaned = false;
    let is_its_own = socket.mode() != Mode::Inherited;
    let mut leaves_remains = socket.remains.load(Relaxed);
    farewell.reset = former_slot_of_last(socket).is_some_and(FormerSlot::gives_up_unread);
    if let (true, Some(link)) = (attached, link) {
        held::show_locked(&mut send);
        let slot = socket.slot.load(Relaxed);
        let words = incoming(link, slot);
        if socket.shown_in_slot.load(Relaxed) && peer_came(&outgoing(link, slot)) {
            socket.shown_ns.store(0, Relaxed);
        }
        if ended && handles::lingers(socket.fd.load(Relaxed)) == Some(0) {
            handles::close_will_not_linger(socket.fd.load(Relaxed));
        }
        if alone && !ended && ring_bytes(socket, &mut recv) > 0 {
            words.announce_reset();
        }
        let offset = recv.offset;
        if recv.offset_known {
            let mut unread = false;
            let asked = if alone {
                recv.reader.close(&words, offset).map(|o| {
                    unread = o.unread;
                    farewell.reset = unread && !ended;
                    o.asked
                })
            } else {
                recv.reader.stop(&words, offset).map(|o| {
                    leaves_remains = matches!(o, StopOutcome::MustDrain { .. });
                    o == StopOutcome::Asked
                })
            };
            if asked.unwrap_or(false) {
                if let Some(consumer) = &recv.consumer {
                    consumer.wake_sender();
                }
                // A writer that has nothing unread here finds it when it sends next.
                if !alone || unread {
                    tell(link, Kind::Stopped, slot);
                }
                if !alone {
                    await_answer(link, slot);
                    leaves_remains = finish_for_dead(socket, &mut recv).unwrap_or(false);
                }
            } else if leaves_remains && !finish_for_dead(socket, &mut recv).unwrap_or(false) {
                begin_at_crossing(&mut recv);
            }
        }
        orphaned = alone && ends_later(socket, &mut send, farewell.reset);
        let on = (alone && !orphaned).then(|| leave_ring(socket, &mut send, false));
        if matches!(on, Some(Ok(WriterOn::Ring))) {
            // Its reader may have come to the ring at this moment.
            orphaned = ends_later(socket, &mut send, farewell.reset);
        }
        if !orphaned {
            let _ = go_down(socket, &mut send);
            let flushed = resend(socket, &mut send).unwrap_or(true);
            fin_if_due(socket, &mut send);
            if !flushed {
                farewell.reset |= alone && !ended && gives_up(socket);
                // A reset drops what TCP has no room for.
                orphaned =
                    !farewell.reset && service::keep_after_close(socket, &mut send, false, !alone);
            }
        }
        if orphaned && alone {
            // A descriptor of ours holds the file longer than any call of the program's.
            wait::epoll::drop_from_kernel(&members);
        }
    }
    if !alone && is_its_own {
        inherit::announce_on_tcp(socket);
    }
    let is_being_shown = alone && !orphaned && is_being_shown(socket);
    let former = FormerSlot::of(socket);
    // Others take from there what is not sent again.
    leaves_remains |=
        !alone && socket.unanswered.load(Relaxed) && former.is_some_and(FormerSlot::has_unread);
    socket.set_mode(Mode::Free);
    if socket.kin.let_go() && !alone {
        // Whoever had it besides has let go meanwhile.
        farewell.reset |= former.is_some_and(FormerSlot::gives_up_unread);
    }
    socket.link.store(null_mut(), SeqCst);
    if let (true, Some(link)) = (socket.slot.load(Relaxed) != VACANT, link) {
        let slot = socket.slot.swap(VACANT, SeqCst);
        wake_futexes(link, slot);
        if wait::poll::somebody_sleeps() {
            link.wake_own();
        }
        if !orphaned {
            if let Some(producer) = &mut send.producer {
                producer.leave();
            }
            link.vacate(slot);
            // What others may still take there keeps the slot, until the link ends.
            if !leaves_remains || !link.is_alive() {
                service::released(link, slot);
            }
        }
    }
    // What is told of the next stream that gets this place is its own.
    *recv = RecvSide::new();
    *send = SendSide::new();
    let fd = socket.fd.load(Relaxed);
    if is_being_shown {
        let lingers = handles::lingers(fd);
        let unread = tcp::readable(fd).is_ok_and(|bytes| bytes > 0);
        farewell.abort = farewell.reset || lingers == Some(0) || unread;
        farewell.fin = !farewell.abort && lingers.is_none() && tcp::has_read_all(fd);
    }
    farewell
}
