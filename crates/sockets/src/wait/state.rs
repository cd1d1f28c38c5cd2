//! What poll and epoll would say of an attached stream now.

use core::sync::atomic::{fence, Ordering::*};

use shunt_os::{handles, tcp};
use shunt_readiness::interest::bits;
use shunt_ring::WAIT_SET;
use shunt_stream::{ReaderOn, Words, WriterOn};

use crate::attach::{self, agree_locked, break_stream, observe_reader, observe_writer, Broken};
use crate::pool::{Mode, Socket};
use crate::wait::{blocking, epoll};
use crate::{receive, send};

/// Kernel poll bits are numerically the epoll bits.
pub const ENDS: u32 = bits::RDHUP | bits::HUP | bits::ERR;
const READABLE: u32 = bits::IN | bits::RDNORM;
const WRITABLE: u32 = bits::OUT | bits::WRNORM;

/// What each half says by itself, and whether the kernel must be asked for it.
struct Halves {
    readable: bool,
    read_kernel: bool,
    /// TCP may hold bytes behind the crossing, which are not to be had yet.
    tcp_open: bool,
    writable: bool,
    /// The last send left too little room, and did not find the ring full.
    just_full: bool,
    write_kernel: bool,
    shut: bool,
    peer_shut: bool,
    own_shut: bool,
    /// An error that a call of ours was told in the program's place, or that the kernel does not know of.
    owes_error: bool,
    on_ring: bool,
    /// On the ring, every byte that arrived.
    arrived: Option<u64>,
    /// The ring has ended, and TCP's bytes follow those of `arrived`.
    tcp_follows: bool,
    /// On TCP, bytes that came by rings before.
    skew: u64,
    misses: u32,
}

/// What an attached stream is like now.
#[derive(Clone, Copy, Default)]
pub struct State {
    /// Event bits, whether asked for or not.
    pub mask: u32,
    /// A send finds room, unlike one that fails.
    pub has_room: bool,
    /// The peer has ended its direction.
    pub peer_ended: bool,
    /// Bytes that have arrived since the stream began, read or not: more of them is an edge.
    pub arrived: u64,
    /// How often a send found no room: room after that is an edge.
    pub fulls: u32,
    /// What arrives comes by the ring.
    pub on_ring: bool,
    /// How often the program had found no more bytes.
    pub misses: u32,
}

/// The event mask of an attached stream, for who asks for `events`; `None` if it is attached no more.
pub fn mask(socket: &'static Socket, events: u32) -> Option<u32> {
    look(socket, events, false).map(|state| state.mask)
}

/// The state of an attached stream, for who asks for `events`; `None` if it is attached no more. `edges`: `arrived`
/// is wanted, which costs a system call while the stream reads TCP.
pub fn look(socket: &'static Socket, events: u32, edges: bool) -> Option<State> {
    let fulls = socket.fulls.load(Relaxed);
    let halves = match halves(socket, events & WRITABLE != 0) {
        Ok(halves) => halves?,
        Err(Broken) => {
            break_stream(socket);
            return None;
        }
    };
    if halves.just_full {
        let slot = socket.slot.load(Relaxed);
        let index = socket.link().and_then(|link| link.stream(slot));
        if !index.is_some_and(|index| send::is_full(index, socket)) {
            // There is some by now, or it is attached no more.
            return look(socket, events, edges);
        }
    }
    // Before the kernel is asked: what comes between is an edge that is told twice, and not one that is lost.
    let arrived = match halves.arrived {
        Some(arrived) if edges && halves.tcp_follows => {
            arrived + tcp::readable(socket.fd.load(Relaxed)).unwrap_or(0)
        }
        Some(arrived) => arrived,
        None if edges => {
            let was_reset = socket.told_reset.load(Relaxed);
            let by_tcp = tcp::bytes_arrived(socket.fd.load(Relaxed), was_reset);
            by_tcp.unwrap_or(0) + halves.skew
        }
        None => 0,
    };
    let mut mask = 0;
    if halves.peer_shut {
        mask |= READABLE | bits::RDHUP;
    }
    if halves.readable {
        mask |= READABLE;
    }
    if halves.writable {
        mask |= WRITABLE;
    }
    let ask = halves.read_kernel
        || halves.write_kernel
        || halves.shut
        || socket.companion_stirred.is_set();
    if ask {
        mask |= kernel(socket, &halves);
        if mask & ENDS == bits::RDHUP && !halves.peer_shut {
            mask |= end_of_a_death(socket);
        }
    }
    if halves.owes_error && mask & bits::HUP != 0 {
        mask |= bits::ERR;
    }
    // The kernel does not know of an own end that is held back.
    if halves.own_shut && mask & bits::RDHUP != 0 {
        mask |= bits::HUP;
    }
    let has_room = mask & WRITABLE != 0;
    // Where nothing may be sent, a send need not wait.
    if halves.own_shut {
        mask |= WRITABLE;
    }
    // An own end shows the bit of the peer's.
    let peer_ended = if edges && halves.shut {
        halves.peer_shut || tcp::peer_has_ended(socket.fd.load(Relaxed))
    } else {
        mask & bits::RDHUP != 0
    };
    Some(State {
        mask,
        has_room,
        peer_ended,
        arrived,
        fulls,
        on_ring: halves.on_ring,
        misses: halves.misses,
    })
}

/// `wants_room`: whether the stream is writable is asked for. It is with room that is worth a wake-up, as to the kernel, for
/// a program may take it for room for a message.
fn halves(socket: &'static Socket, wants_room: bool) -> Result<Option<Halves>, Broken> {
    let mut halves = Halves {
        readable: false,
        read_kernel: false,
        tcp_open: false,
        writable: false,
        just_full: false,
        write_kernel: false,
        shut: false,
        peer_shut: false,
        own_shut: false,
        owes_error: false,
        on_ring: false,
        arrived: None,
        tcp_follows: false,
        skew: 0,
        misses: 0,
    };
    {
        let mut recv = socket.recv.lock();
        if socket.mode() != Mode::Attached {
            return Ok(None);
        }
        halves.shut = socket.shut_reading.load(Relaxed);
        halves.skew = recv.ring_only;
        halves.misses = recv.misses;
        halves.peer_shut = attach::hear_end(socket, &mut recv);
        if recv.reader.on() != ReaderOn::Ring && !agree_locked(socket, &mut recv)? {
            halves.read_kernel = true;
            halves.tcp_open = true;
        } else {
            let ready = match (recv.reader.on(), &mut recv.consumer) {
                (ReaderOn::Ring, Some(consumer)) => consumer.available()? > 0,
                _ => false,
            };
            if ready {
                halves.readable = true;
            } else {
                match observe_reader(socket, &mut recv)? {
                    ReaderOn::Ring => {
                        if let Some(consumer) = &mut recv.consumer {
                            halves.readable = consumer.available()? > 0;
                        }
                        if !halves.readable {
                            attach::report_drained(socket, &mut recv);
                        }
                    }
                    ReaderOn::Crossing { .. } => {
                        halves.read_kernel = true;
                        halves.tcp_open = true;
                        halves.readable |= receive::owes(socket, &recv);
                    }
                    ReaderOn::Tcp | ReaderOn::Salvage { .. } => {
                        halves.read_kernel = true;
                        halves.tcp_open = true;
                        halves.readable |= recv.reset_pending || receive::owes(socket, &recv);
                    }
                }
            }
        }
        halves.owes_error = recv.reset_pending;
        let offset = recv.offset;
        match (recv.reader.on(), &mut recv.consumer) {
            (ReaderOn::Ring, Some(consumer)) => {
                let unread = consumer.known()? as u64;
                // What came since the look above counts as told from now on.
                halves.readable |= unread > 0;
                let arrived = consumer.head() + unread;
                halves.on_ring = true;
                halves.arrived = Some(arrived);
                halves.tcp_follows = receive::has_ended(socket, arrived);
            }
            // The ring's bytes count once TCP has arrived up to the crossing, and not before: until
            // then a program that is told of them finds nothing.
            (ReaderOn::Crossing { up_at }, Some(consumer)) => {
                let by_tcp = offset + tcp::readable(socket.fd.load(Relaxed)).unwrap_or(0);
                // Nor is the end told, which is behind both.
                halves.peer_shut &= halves.readable || by_tcp > offset;
                let all = consumer.words().tail();
                halves.arrived = Some(if by_tcp < up_at { by_tcp } else { all });
            }
            _ => {}
        }
    }
    let mut side = socket.send.lock();
    if socket.mode() != Mode::Attached {
        return Ok(None);
    }
    halves.owes_error |= side.failed.is_some();
    halves.own_shut = side.shut || socket.shut_writing.load(Relaxed);
    match observe_writer(socket, &mut side)? {
        WriterOn::Ring if !wants_room => {}
        WriterOn::Ring => {
            if socket.full.load(Relaxed) {
                halves.writable = send::has_room(socket, &mut side);
            } else {
                let producer = side.producer.as_mut();
                let has_room = producer.map_or(Ok(true), |producer| producer.has_room());
                halves.writable = has_room.map_err(|_| Broken)?;
                halves.just_full = !halves.writable;
            }
        }
        WriterOn::Tcp => halves.write_kernel = true,
        WriterOn::Resend { .. } => {
            halves.write_kernel = attach::resend(socket, &mut side)?;
        }
    }
    Ok(Some(halves))
}

/// What a reset adds to the end that the kernel tells of, if it is about to come; or has since the kernel was asked.
#[cold]
#[inline(never)]
fn end_of_a_death(socket: &Socket) -> u32 {
    let fd = socket.fd.load(Relaxed);
    let is_reset = || handles::poll_now(fd, 0) & libc::POLLERR != 0;
    let was_seen_to = || socket.death_error.load(Relaxed) != 0 && is_reset();
    if receive::is_dying(socket) || was_seen_to() {
        READABLE | WRITABLE | bits::ERR | bits::HUP
    } else {
        0
    }
}

fn kernel(socket: &Socket, halves: &Halves) -> u32 {
    let asked = READABLE | WRITABLE | bits::PRI | bits::RDHUP;
    let stirred = &socket.companion_stirred;
    let seen = stirred.seen();
    let ask = || u32::from(handles::poll_now(socket.fd.load(Relaxed), asked as i16) as u16);
    let mut said = ask();
    if said & (bits::ERR | bits::HUP) == bits::ERR {
        // A reset sets the error first and the state after it; a poll that sleeps sees both.
        shunt_os::raw::sched_yield();
        said = ask();
    }
    if said & (bits::ERR | bits::HUP) == bits::ERR | bits::HUP {
        socket.told_reset.store(true, Relaxed);
    }
    let mut mask = said & (bits::ERR | bits::HUP | bits::PRI | bits::RDHUP);
    if halves.tcp_open || said & ENDS != 0 || halves.shut {
        mask |= said & READABLE;
    }
    if halves.write_kernel || said & (bits::ERR | bits::HUP) != 0 {
        mask |= said & WRITABLE;
    }
    match (said & (ENDS | bits::PRI) != 0, seen) {
        (true, 0) => stirred.set(),
        (true, _) => {}
        (false, seen) => stirred.was_nothing(seen),
    }
    mask
}

/// By which bell the peer tells of an attached stream whose memberships are locked: 0, which wakes everybody, while
/// somebody sleeps for it in a poll.
pub fn be_told_by(socket: &Socket, bell: u32) {
    let Some(direction) = blocking::direction(socket, false) else { return };
    let bell = if socket.polls.load(Relaxed) > 0 { 0 } else { bell };
    let before = direction.consumer.told_by.swap(bell, SeqCst);
    // By that one, nobody may have been told who sleeps for the stream by now. By the first all are.
    if before != 0 && before != bell {
        // A peer that has loaded it has marked before, which who is woken sees.
        fence(SeqCst);
        if let Some(link) = socket.link() {
            link.wake_own();
        }
    }
}

/// As [`arm`], for a poll that has announced its sleep by `bell` and by the first one: by that alone the peer tells of a
/// stream that others sleep for too, or which is in a set.
pub fn begin_poll(socket: &Socket, generation: u32, bell: u32) {
    {
        let members = socket.memberships.lock();
        if socket.generation.load(Relaxed) != generation {
            return;
        }
        let others = socket.polls.fetch_add(1, Relaxed);
        if let Some(direction) = blocking::direction(socket, false) {
            let told_by = &direction.consumer.told_by;
            let before = told_by.load(Relaxed);
            let bell = match others {
                _ if !members.is_empty() => 0,
                0 => bell,
                _ if before == bell => bell,
                _ => 0,
            };
            // Nobody is to be woken by the one before: who sleeps by it does so by the first one, too.
            if before != bell {
                told_by.store(bell, SeqCst);
            }
        }
    }
    arm(socket);
}

/// The poll sleeps no more.
pub fn end_poll(socket: &Socket, generation: u32) {
    let members = socket.memberships.lock();
    if socket.generation.load(Relaxed) == generation
        && socket.polls.fetch_sub(1, Relaxed) == 1
        && !members.is_empty()
    {
        epoll::choose_bell(socket, &members);
    }
}

/// Asks the peer to tell the link when there is something to read, or room where there was none.
/// The caller looks at [`mask`] once more afterwards.
pub fn arm(socket: &Socket) {
    if let Some(direction) = blocking::direction(socket, false) {
        direction.wake.want_data(WAIT_SET);
    }
    if socket.full.load(Relaxed) {
        if let Some(direction) = blocking::direction(socket, true) {
            direction.wake.want_space(WAIT_SET);
        }
    }
}
