//! Bytes that a writer has left in a ring for good, when several processes have the stream: none of them
//! can put these on TCP before what is there. They stay where they are, and each process takes them from
//! there (`receive::remains`); all else is the kernel's.

use core::sync::atomic::Ordering::*;

use shunt_carriers::shm::{self, incoming};
use shunt_link::{Link, VACANT};
use shunt_os::{handles, raw, tcp};
use shunt_stream::{End, Reader, ReaderOn, Words, WriterOn};

use super::leave::has_left;
use super::stop::{wait_until, ANSWER_NS_MAX};
use super::Broken;
use crate::pool::{Mode, RecvSide, Socket};
use crate::{inherit, receive};

/// After [`leave`](super::leave) for another process that has the stream: the ring's last bytes are for
/// whoever comes first.
pub fn share_remains(socket: &'static Socket) {
    {
        let mut recv = socket.recv.lock();
        let send = socket.send.lock();
        let settled = socket.mode() == Mode::Attached
            && socket.pinned.load(SeqCst)
            && send.writer.on() == WriterOn::Tcp
            && !socket.closing.load(SeqCst)
            && finish_for_dead(socket, &mut recv).unwrap_or(false);
        if !settled {
            return;
        }
        socket.remains.store(true, Release);
        socket.set_mode(Mode::Left);
    }
    has_left(socket);
}

/// Whether there are such bytes for the reader. A writer that died before it had sent again what the
/// reader left has left them: behind what is on TCP of it.
pub(super) fn finish_for_dead(socket: &Socket, recv: &mut RecvSide) -> Result<bool, Broken> {
    let Some(link) = socket.link() else { return Ok(false) };
    let words = incoming(link, socket.slot.load(Relaxed));
    let (fd, offset) = (socket.fd.load(Relaxed), recv.offset);
    if matches!(recv.reader.on(), ReaderOn::Salvage { .. }) {
        // The link hears of a death before TCP does.
        wait_until(ANSWER_NS_MAX, || tcp::peer_has_ended(fd));
    }
    if recv.reader.on() != ReaderOn::Ring && tcp::peer_has_ended(fd) {
        let on_tcp = tcp::readable(fd).unwrap_or(0);
        let is_crossing = matches!(recv.reader.on(), ReaderOn::Crossing { .. });
        let ends_there = on_tcp == 0 || !is_crossing;
        if ends_there && recv.reader.tcp_ended(&words, offset + on_tcp)? == ReaderOn::Ring {
            begin_behind(&words, recv, offset + on_tcp, on_tcp);
        }
    }
    if !is_left(&words) {
        return Ok(false);
    }
    let is_gone = tcp::peer_has_ended(fd) || !raw::runs(link.peer_pid);
    Ok(recv.reader.on() == ReaderOn::Ring || is_gone && begin_at_crossing(recv))
}

/// A descriptor goes to a program that has none of this memory, no lock held. If a writer that is gone has left bytes in
/// the ring for good, that program finds a reset in their place: the end of the stream, or what comes behind them,
/// would hide that they are lost.
pub fn reset_if_stranded(socket: &Socket) {
    take_up_unanswered(socket);
    let is_stranded = match socket.mode() {
        Mode::Attached => leaves_for_good(socket, &mut socket.recv.lock()),
        Mode::Left => receive::remaining(socket) > 0,
        _ => false,
    };
    if is_stranded {
        handles::abort(socket.fd.load(Relaxed));
    }
}

/// Whether the ring has bytes that nobody will put on TCP before what follows them.
fn leaves_for_good(socket: &Socket, recv: &mut RecvSide) -> bool {
    let Some(link) = socket.link() else { return false };
    let words = incoming(link, socket.slot.load(Relaxed));
    let offset = recv.offset;
    match recv.reader.on() {
        ReaderOn::Ring => is_left(&words) && recv.consumer.as_mut().is_some_and(has_some),
        ReaderOn::Crossing { up_at } => is_left(&words) && up_at < words.tail(),
        // Who shares the writer's end may send them yet.
        ReaderOn::Salvage { to, .. } => {
            let fd = socket.fd.load(Relaxed);
            tcp::peer_has_ended(fd) && tcp::readable(fd).is_ok_and(|bytes| offset + bytes < to)
        }
        ReaderOn::Tcp => false,
    }
}

fn has_some(consumer: &mut shm::Receiver) -> bool {
    consumer.available().is_ok_and(|bytes| bytes > 0)
}

/// What the ring has left begins at `offset`, behind the bytes that TCP has still.
fn begin_behind(words: &shm::SlotWords, recv: &mut RecvSide, offset: u64, on_tcp: u64) {
    if let Some(consumer) = &mut recv.consumer {
        consumer.begin_remains(offset);
    }
    if on_tcp > 0 {
        words.set_behind_tcp();
    }
}

/// A reader that had not come to the ring: what is there begins behind the bytes that its writer had put on TCP before, which
/// are counted where it is taken. Others of the writer's family may write there.
pub(super) fn begin_at_crossing(recv: &mut RecvSide) -> bool {
    let (ReaderOn::Crossing { up_at }, Some(consumer)) = (recv.reader.on(), &mut recv.consumer)
    else {
        return false;
    };
    consumer.begin_remains(up_at);
    true
}

fn is_left(words: &shm::SlotWords) -> bool {
    matches!(End::decode(words.end()), Ok(End::Down(_)))
}

/// In a child to which its parent has left the stream, or that has outlived it: what the ring has still
/// is its as well. `nobody_reads`: the parent is off the ring for sure.
pub fn take_up_remains(socket: &Socket, nobody_reads: bool) {
    let mut recv = socket.recv.lock();
    // What the parent owed to its program.
    recv.reset_pending = false;
    if let Some(link) = socket.link() {
        let words = incoming(link, socket.slot.load(Relaxed));
        let is_its = is_its_slot(socket, &words);
        if is_its && nobody_reads {
            // A writer that has not heard of that may come to the ring no more; it is there, if this says so.
            let (agreed, idle) = (End::Agreed.encode(), End::Idle.encode());
            let _ = words.end_cas(agreed, idle);
        }
        if is_its && nobody_reads && !is_left(&words) && has_ended(socket) {
            // The parent is gone as well, or was on its way when the writer died.
            let _ = end_for_dead(socket, &words, &mut recv);
        }
        if is_its && !raw::runs(socket.kin.owner()) {
            stop_for_dead(&words);
        }
        socket.remains.store(is_its && is_left(&words), Release);
        let is_open = matches!(End::decode(words.end()), Ok(End::Open | End::Seen));
        let is_awaited = is_unanswered(&words) || nobody_reads && is_open;
        socket.unanswered.store(is_its && is_awaited, Relaxed);
    }
}

/// A parent that was killed reads no more, and whoever writes is to send the rest by TCP: also one of those who had the stream
/// with a writer that was killed as well, and cannot know of this death.
fn stop_for_dead(words: &shm::SlotWords) {
    if let Ok(open @ (End::Open | End::Seen)) = End::decode(words.end()) {
        let from = words.head().max(words.up_at());
        let _ = words.end_cas(open.encode(), End::Stop(from).encode());
    }
}

/// Before a stream that has left its ring is asked for bytes, or has come to TCP's end: if its writer has died before it
/// sent again what was left, whoever has the stream takes that from the ring.
#[inline]
pub fn take_up_unanswered(socket: &Socket) {
    if socket.unanswered.load(Relaxed) {
        take_up_rest(socket);
    }
}

#[cold]
fn take_up_rest(socket: &Socket) {
    let mut recv = socket.recv.lock();
    let Some(link) = socket.link() else { return };
    let words = incoming(link, socket.slot.load(Relaxed));
    let is_its = socket.mode() == Mode::Left && is_its_slot(socket, &words);
    // A writer that lives says so once it has sent again, or begins to once it has heard that a reader died.
    if is_its && !matches!(End::decode(words.end()), Ok(End::Idle | End::Agreed | End::Down(_))) {
        if !has_ended(socket) {
            return;
        }
        let _ = end_for_dead(socket, &words, &mut recv);
    }
    socket.remains.store(is_its && is_left(&words), Release);
    socket.unanswered.store(false, Relaxed);
}

fn has_ended(socket: &Socket) -> bool {
    tcp::peer_has_ended(socket.fd.load(Relaxed))
}

/// Whether what a reader left is still to be sent again.
fn is_unanswered(words: &shm::SlotWords) -> bool {
    matches!(End::decode(words.end()), Ok(End::Stop(_) | End::Recalled(_)))
}

/// Once a parent has closed a stream, another one may have come to its slot.
fn is_its_slot(socket: &Socket, words: &shm::SlotWords) -> bool {
    socket.kin.is_owner() || words.is_shared_as(socket.kin.number())
}

/// Where a stream that several processes have, or had, was on a ring, for the last of them: what it knows is in the words
/// alone.
#[derive(Clone, Copy)]
pub struct FormerSlot {
    link: &'static Link,
    slot: u32,
    fd: i32,
    /// The stream's number in the family, to tell whether it has its slot still.
    number: u32,
}

impl FormerSlot {
    /// `None` if there was none, or nobody has shared it, or the connection is another one by now.
    pub fn of(socket: &Socket) -> Option<FormerSlot> {
        let link = socket.link().filter(|_| !socket.given_up.load(Relaxed))?;
        FormerSlot::at(
            link,
            socket.slot.load(Relaxed),
            socket.fd.load(Relaxed),
            socket.kin.number(),
        )
    }

    /// As [`FormerSlot::of`], of one that its process has closed, but for a descriptor of ours.
    pub fn at(link: &'static Link, slot: u32, fd: i32, number: u32) -> Option<FormerSlot> {
        (number != 0 && slot != VACANT).then_some(FormerSlot { link, slot, fd, number })
    }

    /// Whether bytes that were in the ring are unread, as far as the words tell. The last close is a reset then.
    pub fn has_unread(self) -> bool {
        let words = incoming(self.link, self.slot);
        let (up_at, tail) = (words.up_at(), words.tail());
        let again = |from| behind_tcp(self.fd, &words, from);
        // Another stream may have come to the slot since.
        words.is_shared_as(self.number)
            && match End::decode(words.end()) {
                Ok(End::Open) => up_at < tail,
                Ok(End::Seen | End::Down(_)) => words.head().max(up_at) < tail,
                Ok(End::Stop(from)) => again(from).is_some_and(|at| at < tail),
                Ok(End::Recalled(to)) => again(up_at).is_some_and(|at| at < to),
                Ok(End::Idle | End::Agreed | End::Closed(_)) | Err(_) => false,
            }
    }

    /// As [`FormerSlot::has_unread`], right before that close: the writer is told.
    pub fn gives_up_unread(self) -> bool {
        let is_given_up = self.has_unread();
        if is_given_up {
            incoming(self.link, self.slot).announce_reset();
        }
        is_given_up
    }
}

/// Of a stream that this process has on no ring, and no other has any more.
pub(super) fn former_slot_of_last(socket: &Socket) -> Option<FormerSlot> {
    let is_last =
        matches!(socket.mode(), Mode::Inherited | Mode::Left) && inherit::is_sole_holder(socket);
    FormerSlot::of(socket).filter(|_| is_last)
}

/// Ends the ring of a writer that has died, in a process that knows of the stream's state by the words alone. What TCP
/// had of the ring's bytes is not taken twice.
fn end_for_dead(
    socket: &Socket,
    words: &shm::SlotWords,
    recv: &mut RecvSide,
) -> Result<(), Broken> {
    let fd = socket.fd.load(Relaxed);
    let on_tcp = tcp::readable(fd).unwrap_or(0);
    words.show_held();
    let mut reader = Reader::take_over(words)?;
    let (up_at, tail) = (words.up_at(), words.tail());
    let begins = match (reader.on(), End::decode(words.end())?) {
        (ReaderOn::Ring, _) => {
            reader.writer_died(words, words.head())?;
            return Ok(());
        }
        (ReaderOn::Crossing { up_at }, _) => Some(up_at),
        (_, End::Stop(from)) => behind_tcp(fd, words, from),
        (_, End::Open | End::Recalled(_)) => behind_tcp(fd, words, up_at),
        _ => None,
    };
    // Before it is said that the ring has something left: others of the family may come for it.
    if let Some(offset) = begins.filter(|offset| *offset < tail) {
        // On the way to the ring, TCP's are counted where they are taken.
        let is_crossing = matches!(reader.on(), ReaderOn::Crossing { .. });
        begin_behind(words, recv, offset, if is_crossing { 0 } else { on_tcp });
        match reader.on() {
            ReaderOn::Tcp => reader.tcp_ended(words, offset)?,
            _ => reader.writer_died(words, offset)?,
        };
    }
    Ok(())
}

/// How far TCP has brought bytes that were to be sent again from `from` on, now that it has ended; `None` if that
/// cannot be told.
fn behind_tcp(fd: i32, words: &shm::SlotWords, from: u64) -> Option<u64> {
    let arrived = |was_reset| tcp::bytes_arrived(fd, was_reset).ok()?.checked_sub(words.by_tcp());
    match (arrived(false), arrived(true)) {
        (Some(again), other) if other == Some(again) => Some(from + again),
        // A connection that was reset has had a FIN before, or none.
        (None | Some(0), Some(0 | 1)) => Some(from),
        _ => None,
    }
}
