//! When and how the other end of a plain stream is looked for.
//!
//! A stream that says little is left alone: short connections must not pay. Once it has carried a
//! few messages, the end that gets there second finds the first one's rendezvous. No thread of
//! ours is started before another Shunt process was found.

use core::sync::atomic::{AtomicU32, Ordering::*};

use shunt_link::memory::has_room;
use shunt_link::Link;
use shunt_os::lock::Lock;
use shunt_os::{clock, handles, peer, tcp};
use shunt_pairing::rendezvous::{self, Meeting};
use shunt_stats::{Carrier, Reason};

use crate::pool::{self, stage, Mode, Socket};
use crate::service::{self, Request};
use crate::{inherit, process, quiet};

/// Messages in one direction after which the other end is looked for.
const MESSAGES_MIN: u32 = 3;
/// An acceptor leaves the first word to the connector, who knows by which link to ask.
const MESSAGES_MIN_ACCEPTOR: u32 = 4;
/// Bytes in both directions after which it is looked for in any case.
const BYTES_MIN: u64 = 16 * 1024;
/// A waiting rendezvous is looked at on each of the first calls, then on each 64th: whoever comes
/// comes within a few messages.
const LOOKS_EAGER: u32 = 16;
const LOOK_EVERY: u32 = 64;
/// When streams pair at once: how long a call waits for it, and how often it looks.
const AT_ONCE_NS_MAX: u64 = 20_000_000;
const AT_ONCE_LOOK_NS: u64 = 50_000;
/// Rendezvous that wait at the same time; the oldest is given up for a new one.
const WAITING_MAX: usize = 32;

/// Streams whose meeting is under way, by the server's address.
static MEETINGS: Lock<Vec<(peer::Endpoint, u32, u32)>> = Lock::new(Vec::new());
static WAITING: Lock<Vec<(u32, u32)>> = Lock::new(Vec::new());

/// Which way a native call moved bytes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Way {
    In,
    Out,
}

/// Counts a native call of a plain stream, and looks for the other end when it is time.
#[inline]
pub fn note(index: u32, socket: &'static Socket, way: Way, bytes: isize) {
    if bytes <= 0 {
        return;
    }
    let (messages, other) = match way {
        Way::In => (&socket.messages_in, &socket.messages_out),
        Way::Out => (&socket.messages_out, &socket.messages_in),
    };
    let count = messages.load(Relaxed).wrapping_add(1);
    messages.store(count, Relaxed);
    let total = socket.bytes.load(Relaxed) + bytes as u64;
    socket.bytes.store(total, Relaxed);
    if let Some(entry) = socket.entry() {
        match way {
            Way::In => entry.received(Carrier::Tcp, bytes as u64),
            Way::Out => entry.sent(Carrier::Tcp, bytes as u64),
        }
    }
    match socket.stage.load(Relaxed) {
        stage::YOUNG => {
            if process::pairs_at_once() {
                return search_at_once(index, socket);
            }
            if is_due(socket, count, other, total, bytes as u64) {
                search(index, socket);
            }
        }
        stage::WAITING if count < LOOKS_EAGER || count % LOOK_EVERY == 0 => look(index, socket),
        _ => {}
    }
}

/// Whether the other end is looked for with the `count`th message of one direction, which makes it `total`
/// bytes in both.
#[inline]
fn is_due(socket: &Socket, count: u32, other: &AtomicU32, total: u64, bytes: u64) -> bool {
    let least = if socket.connector.load(Relaxed) { MESSAGES_MIN } else { MESSAGES_MIN_ACCEPTOR };
    // Once for each exchange.
    let again = || count.is_power_of_two() && count > other.load(Relaxed);
    let by_count = count == least || (count > least && (again() || socket.is_deferred()));
    let by_bytes = total >= BYTES_MIN && total - bytes <= BYTES_MIN;
    by_count || by_bytes
}

/// The other end of an attached stream, whose link is gone, is looked for as that of a new one. Its locks are
/// held.
pub fn begin_anew(socket: &Socket) {
    for count in [&socket.messages_in, &socket.messages_out, &socket.deferrals] {
        count.store(0, Relaxed);
    }
    socket.bytes.store(0, Relaxed);
    socket.gave_way.store(false, Relaxed);
    socket.stage.store(stage::YOUNG, Release);
}

/// Counts what a stream whose link is gone has received by TCP. A lock of its is held, and the search is the service
/// thread's.
#[cold]
pub fn note_anew(socket: &Socket, bytes: u64) {
    let count = socket.messages_in.load(Relaxed).wrapping_add(1);
    socket.messages_in.store(count, Relaxed);
    let total = socket.bytes.load(Relaxed) + bytes;
    socket.bytes.store(total, Relaxed);
    if !is_due(socket, count, &socket.messages_out, total, bytes) {
        return;
    }
    let index = socket.link().and_then(|link| link.stream(socket.slot.load(Relaxed)));
    if let (Some(index), Some(service)) = (index, service::running()) {
        service.ask(Request::Search { index, generation: socket.generation.load(Relaxed) });
    }
}

/// In the service thread, when it is due. Whoever closes the stream waits: its place is the next one's then.
pub fn search_anew(index: u32, generation: u32) {
    let socket = pool::get(index);
    let _recv = socket.recv.lock();
    if socket.generation.load(Relaxed) == generation
        && socket.mode() == Mode::Attached
        && socket.stage.load(Acquire) == stage::YOUNG
    {
        search(index, socket);
    }
}

/// Nothing that changes is in the way.
pub fn settle(socket: &Socket, reason: Reason) {
    socket.stage.store(stage::SETTLED, Relaxed);
    if let Some(entry) = socket.entry() {
        entry.set_reason(reason);
    }
}

/// What is in the way may be gone when its messages have doubled, or with another process that has it.
pub fn put_off(socket: &Socket, reason: Reason) {
    socket.awaits_sole.store(reason == Reason::SharedWithOtherProcess, Relaxed);
    socket.stage.store(stage::YOUNG, Relaxed);
    if let Some(entry) = socket.entry() {
        entry.set_reason(reason);
    }
}

/// Searches, and waits while the other end is asked: its process may be about to answer on TCP, or
/// not to answer at all.
#[cold]
fn search_at_once(index: u32, socket: &'static Socket) {
    // Whoever comes to a rendezvous is let in at once, not with the next message.
    service::start();
    search(index, socket);
    let end = clock::now_ns() + AT_ONCE_NS_MAX;
    while socket.stage.load(Acquire) == stage::MEETING && clock::now_ns() < end {
        shunt_os::raw::nanosleep(AT_ONCE_LOOK_NS);
    }
}

#[cold]
fn search(index: u32, socket: &'static Socket) {
    socket.awaits_sole.store(false, Relaxed);
    if socket.pinned.load(Relaxed) || process::has_bad_setting() {
        return settle(
            socket,
            if process::has_bad_setting() { Reason::BadSetting } else { Reason::UnsupportedOption },
        );
    }
    if let Some(reason) = quiet::keeps_to_tcp() {
        return settle(socket, reason);
    }
    if !has_room() {
        return put_off(socket, Reason::NoMemory);
    }
    if !handles::has_room() {
        return put_off(socket, Reason::NoDescriptors);
    }
    if !socket.kin.may_pair() {
        return put_off(socket, Reason::SharedWithOtherProcess);
    }
    let generation = socket.generation.load(Relaxed);
    if let Some(service) = service::running().filter(|_| socket.has_reserved.load(Relaxed)) {
        if begin_meeting(socket) {
            service.ask(Request::Follow { index, generation });
        }
        return;
    }
    let fd = socket.fd.load(Relaxed);
    let Ok(tuple) = peer::tuple(fd) else {
        return settle(socket, Reason::NotConnected);
    };
    if let Some(entry) = socket.entry() {
        publish_addresses(entry, &tuple);
    }
    socket.note_tuple(generation, tuple);
    if !tuple.same_host() && !tcp::goes_over_loopback(fd) {
        return settle(socket, Reason::NotThisHost);
    }
    if inherit::has_strange_options(fd) {
        return settle(socket, Reason::UnsupportedOption);
    }
    inherit::note_options(socket, fd);
    if tcp::is_shut_for_reading(fd) {
        // Perhaps by the program that this one has it from.
        socket.shut_reading.store(true, SeqCst);
    }
    let server = if socket.connector.load(Relaxed) { tuple.remote } else { tuple.local };
    if another_is_meeting(index, generation, &server) && !socket.deferred_long() {
        // The link that comes of it serves this stream as well.
        return;
    }
    if !begin_meeting(socket) {
        return;
    }
    if let Some(entry) = socket.entry() {
        entry.set_reason(Reason::PeerNotFound);
    }
    if let Some(service) = service::running() {
        if let Some(link) = link_for(socket, &tuple) {
            if socket.connector.load(Relaxed) {
                service.ask(Request::Offer { index, generation, link, tried: 0 });
                return;
            }
            // The connector will offer; if it does not, look again later.
            let early = socket.messages_in.load(Relaxed) < 2 * MESSAGES_MIN_ACCEPTOR;
            if early && !process::pairs_at_once() {
                socket.stage.store(stage::YOUNG, Relaxed);
                return;
            }
        }
    }
    meet(index, socket, generation, &tuple);
}

/// Of several threads, one searches.
fn begin_meeting(socket: &Socket) -> bool {
    socket.stage.compare_exchange(stage::YOUNG, stage::MEETING, AcqRel, Relaxed).is_ok()
}

/// Whether a meeting of another stream with the same server address is under way; if not, this
/// one's is from now on.
fn another_is_meeting(index: u32, generation: u32, server: &peer::Endpoint) -> bool {
    let mut meetings = MEETINGS.lock();
    meetings.retain(|(_, index, generation)| {
        let socket = pool::get(*index);
        socket.generation.load(Relaxed) == *generation
            && socket.stage.load(Relaxed) == stage::MEETING
    });
    if meetings.iter().any(|(known, _, _)| known == server) {
        return true;
    }
    meetings.push((*server, index, generation));
    false
}

/// Tries the rendezvous; called by program threads and by the service thread.
pub fn meet(index: u32, socket: &'static Socket, generation: u32, tuple: &peer::Tuple) {
    // One that gave way to another does not push a third one out in its turn.
    if socket.gave_way.load(Relaxed) && still_waiting(&mut WAITING.lock()) >= WAITING_MAX {
        match rendezvous::find(tuple) {
            Some(control) => hand_over(index, socket, generation, control, true),
            None => {
                // Not with each message from here on.
                socket.deferrals.store(0, Relaxed);
                socket.stage.store(stage::YOUNG, Relaxed);
            }
        }
        return;
    }
    match rendezvous::meet(tuple) {
        Meeting::Found(control) => hand_over(index, socket, generation, control, true),
        Meeting::Waiting(listener) => {
            socket.listener.store(listener, Release);
            socket.stage.store(stage::WAITING, Release);
            remember(index, generation);
            if let Some(service) = service::running() {
                service.watch_rendezvous(listener, index, generation);
            }
        }
        Meeting::Failed(error) if error.0 == libc::EMFILE => {
            settle(socket, Reason::NoDescriptors);
        }
        Meeting::Failed(_) => settle(socket, Reason::LinkFailed),
    }
}

/// Whether somebody has come to a waiting rendezvous.
#[cold]
pub fn look(index: u32, socket: &'static Socket) {
    let listener = socket.listener.load(Acquire);
    if listener < 0 {
        return;
    }
    // An accept in vain makes a file and drops it, which took a quarter from streams in bulk (docs/speed.md).
    if handles::poll_now(listener, libc::POLLIN) == 0 {
        return;
    }
    let generation = socket.generation.load(Relaxed);
    let control = match handles::accept_from(listener) {
        Ok(control) => control,
        Err(error) if matches!(error.0, libc::EMFILE | libc::ENFILE) => {
            stop_waiting(socket);
            return settle(socket, Reason::NoDescriptors);
        }
        // Nobody yet, or another thread has closed it since.
        Err(_) => return,
    };
    stop_waiting(socket);
    socket.stage.store(stage::MEETING, Relaxed);
    hand_over(index, socket, generation, control, false);
}

fn hand_over(index: u32, socket: &'static Socket, generation: u32, control: i32, came: bool) {
    match service::start() {
        Some(service) => {
            service.meets_by(control);
            service.ask(Request::Meet { index, generation, control, came });
        }
        None => {
            handles::close(control);
            settle(socket, Reason::LinkFailed);
        }
    }
}

/// Closes a rendezvous that waits.
pub fn stop_waiting(socket: &Socket) {
    let listener = socket.listener.swap(-1, AcqRel);
    if listener >= 0 {
        if let Some(service) = service::running() {
            service.forget(listener);
        }
        handles::close(listener);
    }
}

/// Takes a stream from its rendezvous, if it waits there. Who gets it decides what becomes of it.
pub fn end_waiting(socket: &Socket) -> bool {
    let (from, to) = (stage::WAITING, stage::MEETING);
    let ours = socket.stage.compare_exchange(from, to, AcqRel, Relaxed).is_ok();
    if ours {
        stop_waiting(socket);
    }
    ours
}

/// How many rendezvous wait; those that are over leave the list.
fn still_waiting(waiting: &mut Vec<(u32, u32)>) -> usize {
    waiting.retain(|(index, generation)| {
        let socket = pool::get(*index);
        socket.generation.load(Relaxed) == *generation && socket.listener.load(Relaxed) >= 0
    });
    waiting.len()
}

fn remember(index: u32, generation: u32) {
    let mut waiting = WAITING.lock();
    if still_waiting(&mut waiting) >= WAITING_MAX {
        let (index, _) = waiting.remove(0);
        let socket = pool::get(index);
        stop_waiting(socket);
        // It may be looked for again when it has carried twice as much.
        socket.gave_way.store(true, Relaxed);
        socket.stage.store(stage::YOUNG, Relaxed);
    }
    waiting.push((index, generation));
}

/// A live link to a process that serves the same address as this stream's server end.
fn link_for(socket: &Socket, tuple: &peer::Tuple) -> Option<&'static Link> {
    let server = if socket.connector.load(Relaxed) { tuple.remote } else { tuple.local };
    service::links_serving(&server).into_iter().next()
}

/// Writes a stream's addresses to its counters.
pub fn publish_addresses(entry: shunt_stats::StreamEntry, tuple: &peer::Tuple) {
    let (local, remote) = (&tuple.local, &tuple.remote);
    if local.is_v4() && remote.is_v4() {
        let (l, r) = (&local.address[12..], &remote.address[12..]);
        entry.set_addresses(l, local.port, r, remote.port);
    } else {
        entry.set_addresses(&local.address, local.port, &remote.address, remote.port);
    }
}

/// In a forked child: forget the parent's rendezvous.
///
/// # Safety
/// The process has one thread.
pub unsafe fn after_fork() {
    // SAFETY: one thread, by the caller's word.
    unsafe {
        WAITING.force_open();
        MEETINGS.force_open();
    }
    WAITING.lock().clear();
    MEETINGS.lock().clear();
}
