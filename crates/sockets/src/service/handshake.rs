//! The first meeting with a process: greeting, proof, memory, a link.

use core::sync::atomic::Ordering::*;

use shunt_link::memory::has_room;
use shunt_link::{Link, Memory, Side};
use shunt_os::handles::{self, Received};
use shunt_os::peer::{Diagnosis, Endpoint, Owner, Tuple};
use shunt_pairing::message::{Kind, Message, BYTES, NO_SLOT};
use shunt_pairing::trust::{self, Distrust};
use shunt_stats::Reason;

use super::links::{released, Known};
use super::offers::{close_passed, same_ends, shows_other_end};
use super::reserved::Reserved;
use super::{settle, tag, Work, SLOTS_FIRST, SLOTS_MAX};
use crate::pool::{self, stage, Mode, Socket};
use crate::{attach, process, quiet, search};

/// A handshake under way.
pub(super) struct Handshake {
    pub(super) control: i32,
    pub(super) index: u32,
    pub(super) generation: u32,
    pub(super) tuple: Tuple,
    pub(super) state: State,
}

pub(super) enum State {
    /// We went to the other end's rendezvous and wait to be greeted.
    Visiting,
    /// The other end came to ours, was greeted, and is to introduce itself.
    Visited,
    /// We have shown our end and wait for the welcome.
    Introduced { owner: Owner, own_bell: i32 },
}

/// Sends the stream's descriptor to its peer, unless it was closed. Who closes it later knows.
pub(super) fn show(
    socket: &Socket,
    generation: u32,
    send: impl FnOnce(i32) -> shunt_os::Result<()>,
) -> shunt_os::Result<()> {
    let _held = socket.recv.lock();
    // Who closes has looked already whether it is shown, once it is free.
    if socket.generation.load(Relaxed) != generation || socket.mode() == Mode::Free {
        return Err(shunt_os::Errno(libc::EBADF));
    }
    socket.shown_ns.store(shunt_os::clock::now_ns(), Relaxed);
    socket.shown_in_slot.store(false, Relaxed);
    send(socket.fd.load(Relaxed))
}

/// The stream that was shown stands in its slot: the peer closes the copy before it comes there.
pub(super) fn shown_in_slot(socket: &Socket, generation: u32) {
    let _held = socket.recv.lock();
    if socket.generation.load(Relaxed) == generation && socket.mode() == Mode::Attached {
        socket.shown_in_slot.store(true, Relaxed);
    }
}

/// The peer has answered, and closed its copy before.
pub(super) fn shown_no_more(socket: &Socket, generation: u32) {
    let _held = socket.recv.lock();
    if socket.generation.load(Relaxed) == generation {
        socket.shown_ns.store(0, Relaxed);
    }
}

/// Whether nothing has come about since the search that keeps the stream from being attached: the peer is not to
/// attach its end then.
fn may_go_on(socket: &Socket) -> Result<(), Reason> {
    if !socket.kin.may_pair() {
        return Err(Reason::SharedWithOtherProcess);
    }
    if let Some(reason) = quiet::look_around() {
        return Err(reason);
    }
    if !has_room() {
        return Err(Reason::NoMemory);
    }
    Ok(())
}

impl Handshake {
    fn refuse(self, reason: Reason) {
        let Handshake { index, generation, .. } = self;
        self.end();
        settle(pool::get(index), generation, reason);
    }

    fn end(self) {
        if let State::Introduced { own_bell, .. } = self.state {
            handles::close(own_bell);
        }
        let refusal = Message::of(Kind::Refuse, NO_SLOT);
        let _ = handles::send_message(self.control, &refusal.encode(), &[]);
        handles::close(self.control);
    }
}

impl Work {
    pub(super) fn greet(&mut self, index: u32, generation: u32, control: i32, came: bool) {
        let socket = pool::get(index);
        let tuple = *socket.tuple.lock();
        let (Some(tuple), true) = (tuple, socket.generation.load(Relaxed) == generation) else {
            self.service.meets_no_more(control);
            return handles::close(control);
        };
        let state = if came {
            State::Visiting
        } else {
            let greeting = Message::of(Kind::Greet, NO_SLOT);
            let _ = handles::send_message(control, &greeting.encode(), &[]);
            State::Visited
        };
        let data = tag::HANDSHAKE | control as u64;
        let events = libc::EPOLLIN as u32;
        let watched =
            handles::epoll_ctl(self.service.epoll, libc::EPOLL_CTL_ADD, control, events, data);
        if watched.is_err() {
            self.service.meets_no_more(control);
            handles::close(control);
            return settle(socket, generation, Reason::LinkFailed);
        }
        self.handshakes.push(Handshake { control, index, generation, tuple, state });
    }

    pub(super) fn hello(
        &mut self,
        socket: &Socket,
        generation: u32,
        tuple: &Tuple,
        control: i32,
    ) -> Result<State, Reason> {
        let owner = self.owner(tuple, control)?;
        let own_bell = handles::eventfd().map_err(|_| Reason::NoDescriptors)?;
        let who = handles::credentials(control).map_err(|_| Reason::NotTheOwner)?;
        let has_room = self.link_with_room(&who).is_some().into();
        let (kind, slot) = (Kind::Hello, process::ring_bytes());
        let message = Message { kind, slot, id: has_room, tuple: *tuple };
        match show(socket, generation, |fd| {
            handles::send_message(control, &message.encode(), &[fd, own_bell])
        }) {
            Ok(()) => Ok(State::Introduced { owner, own_bell }),
            Err(_) => {
                handles::close(own_bell);
                Err(Reason::LinkFailed)
            }
        }
    }

    /// The owner of the other end, if that is the user at the control socket.
    pub(super) fn owner(&mut self, tuple: &Tuple, control: i32) -> Result<Owner, Reason> {
        let who = handles::credentials(control).map_err(|_| Reason::NotTheOwner)?;
        self.owner_uid(tuple, who.uid)
    }

    pub(super) fn owner_uid(&mut self, tuple: &Tuple, uid: u32) -> Result<Owner, Reason> {
        if self.diagnosis.is_none() {
            self.diagnosis = Diagnosis::open().ok();
        }
        let line = self.diagnosis.as_mut().ok_or(Reason::NoSocketDiagnosis)?;
        trust::owner_of_other_end(line, tuple, uid).map_err(|distrust| match distrust {
            Distrust::NoDiagnosis => Reason::NoSocketDiagnosis,
            _ => Reason::NotTheOwner,
        })
    }

    pub(super) fn advance(&mut self, control: i32) {
        let Some(at) = self.handshakes.iter().position(|h| h.control == control) else { return };
        let mut buffer = [0u8; BYTES + 8];
        let mut received = match handles::receive_message(control, &mut buffer) {
            Err(error) if error.0 == libc::EAGAIN => return,
            Err(_) => None,
            Ok(received) => Some(received),
        };
        let handshake = self.take_out(at);
        let message = received.as_ref().and_then(|r| Message::decode(&buffer[..r.bytes]));
        let outcome = match (&handshake.state, &message, &mut received) {
            (State::Visiting, Some(message), Some(_)) if message.kind == Kind::Greet => {
                self.greeted(&handshake)
            }
            (State::Visited, Some(message), Some(received)) if message.kind == Kind::Hello => {
                self.welcome(&handshake, message, received)
            }
            (State::Introduced { owner, own_bell }, Some(message), Some(received))
                if message.kind == Kind::Welcome =>
            {
                self.welcomed(&handshake, owner, *own_bell, message, received)
            }
            _ => Err(Reason::RefusedByPeer),
        };
        match outcome {
            Ok(()) => {}
            // It was not to become a link: there is one by which the stream can be offered.
            Err(_) if self.offer_instead(&handshake) => handshake.end(),
            Err(reason) => handshake.refuse(reason),
        }
        if let Some(received) = received {
            close_passed(&received);
        }
    }

    fn take_out(&mut self, at: usize) -> Handshake {
        let handshake = self.handshakes.swap_remove(at);
        let control = handshake.control;
        self.service.meets_no_more(control);
        if let State::Introduced { own_bell, .. } = handshake.state {
            self.service.meets_no_more(own_bell);
        }
        let _ = handles::epoll_ctl(self.service.epoll, libc::EPOLL_CTL_DEL, control, 0, 0);
        handshake
    }

    /// The thread stops.
    pub(super) fn refuse_all(&mut self) {
        while !self.handshakes.is_empty() {
            self.take_out(0).refuse(Reason::LinkFailed);
        }
    }

    /// The other end's service thread is there: show it our end, if it is the right user's.
    pub(super) fn greeted(&mut self, handshake: &Handshake) -> Result<(), Reason> {
        let socket = pool::get(handshake.index);
        if socket.generation.load(Relaxed) != handshake.generation || !socket.may_be_paired() {
            return Err(Reason::Closed);
        }
        may_go_on(socket)?;
        let control = handshake.control;
        let state = self.hello(socket, handshake.generation, &handshake.tuple, control)?;
        let data = tag::HANDSHAKE | control as u64;
        let events = libc::EPOLLIN as u32;
        let _ = handles::epoll_ctl(self.service.epoll, libc::EPOLL_CTL_ADD, control, events, data);
        self.service.meets_by(control);
        if let State::Introduced { own_bell, .. } = state {
            self.service.meets_by(own_bell);
        }
        self.handshakes.push(Handshake { state, ..*handshake });
        Ok(())
    }

    /// The other end came to our rendezvous: we are the master.
    pub(super) fn welcome(
        &mut self,
        handshake: &Handshake,
        message: &Message,
        received: &mut Received,
    ) -> Result<(), Reason> {
        let socket = pool::get(handshake.index);
        if received.passed_count != 2 || !same_ends(&message.tuple.reversed(), &handshake.tuple) {
            return Err(Reason::RefusedByPeer);
        }
        may_go_on(socket)?;
        let owner = self.owner(&handshake.tuple, handshake.control)?;
        if !shows_other_end(received, 0, &owner) {
            return Err(Reason::NotTheOwner);
        }
        if !handles::may_be_eventfd(received.passed[1]) {
            return Err(Reason::RefusedByPeer);
        }
        let who = handles::credentials(handshake.control).map_err(|_| Reason::NotTheOwner)?;
        if message.id != 0 || self.link_with_room(&who).is_some() {
            // The end that connected offers the stream there.
            return Err(Reason::LinkFailed);
        }
        let before = self.links_to(who.pid).len() as u32;
        let slots = (SLOTS_FIRST << (2 * before.min(3))).min(SLOTS_MAX);
        let asked = Some(message.slot).filter(|bytes| process::is_ring(*bytes));
        let ring_bytes = process::ring_bytes().min(asked.ok_or(Reason::RefusedByPeer)?);
        let (memory, memfd) = Memory::create(slots, ring_bytes).map_err(|_| Reason::NoMemory)?;
        let opened =
            handles::eventfd().and_then(|own| Ok((own, handles::duplicate(received.passed[1])?)));
        let Ok((own_bell, peer_bell)) = opened else {
            handles::close(memfd);
            return Err(Reason::NoDescriptors);
        };
        let link = Link::new(
            memory,
            Side::Master,
            handshake.control,
            (own_bell, peer_bell),
            (who.uid, who.pid),
        );
        let link: &'static Link = Box::leak(Box::new(link));
        let slot = link.slots.take().unwrap_or(0);
        let welcome = Message { tuple: handshake.tuple, ..Message::of(Kind::Welcome, slot) };
        let sent = show(socket, handshake.generation, |fd| {
            handles::send_message(handshake.control, &welcome.encode(), &[memfd, fd, own_bell])
        });
        handles::close(memfd);
        if sent.is_err() {
            return Err(Reason::LinkFailed);
        }
        self.adopt(link, socket, &handshake.tuple);
        match attach::attach(handshake.index, handshake.generation, link, slot) {
            Ok(()) => shown_in_slot(socket, handshake.generation),
            Err(_) => released(link, slot),
        }
        Ok(())
    }

    /// The master has answered: its memory is the link's.
    pub(super) fn welcomed(
        &mut self,
        handshake: &Handshake,
        owner: &Owner,
        own_bell: i32,
        message: &Message,
        received: &mut Received,
    ) -> Result<(), Reason> {
        let socket = pool::get(handshake.index);
        if received.passed_count != 3 || !same_ends(&message.tuple.reversed(), &handshake.tuple) {
            return Err(Reason::RefusedByPeer);
        }
        if !shows_other_end(received, 1, owner) {
            return Err(Reason::NotTheOwner);
        }
        let memory = Memory::open(received.passed[0]).map_err(|_| Reason::NoMemory)?;
        if message.slot >= memory.slots() {
            return Err(Reason::RefusedByPeer);
        }
        let who = handles::credentials(handshake.control).map_err(|_| Reason::NotTheOwner)?;
        if !handles::may_be_eventfd(received.passed[2]) {
            return Err(Reason::RefusedByPeer);
        }
        let peer_bell =
            handles::duplicate(received.passed[2]).map_err(|_| Reason::NoDescriptors)?;
        let link = Link::new(
            memory,
            Side::Guest,
            handshake.control,
            (own_bell, peer_bell),
            (who.uid, who.pid),
        );
        let link: &'static Link = Box::leak(Box::new(link));
        self.adopt(link, socket, &handshake.tuple);
        shown_no_more(socket, handshake.generation);
        let Handshake { index, generation, .. } = *handshake;
        self.follow(Reserved { index, generation, link, slot: message.slot });
        Ok(())
    }

    pub(super) fn adopt(&mut self, link: &'static Link, socket: &Socket, tuple: &Tuple) {
        let server = if socket.connector.load(Relaxed) { tuple.remote } else { tuple.local };
        self.service.links.lock().push(Known { link, serves: vec![server] });
        let data = tag::LINK | link.control as u64;
        let events = libc::EPOLLIN as u32;
        let epoll = self.service.epoll;
        let _ = handles::epoll_ctl(epoll, libc::EPOLL_CTL_ADD, link.control, events, data);
        if socket.connector.load(Relaxed) {
            self.offer_waiting(link, &server);
        }
    }

    /// Other streams to the same server that wait at a rendezvous are offered on the new link.
    pub(super) fn offer_waiting(&mut self, link: &'static Link, server: &Endpoint) {
        let mut waiting = Vec::new();
        pool::each(|index, socket| {
            let tuple = *socket.tuple.lock();
            let same = tuple.is_some_and(|tuple| tuple.remote == *server);
            let waits = socket.stage.load(Relaxed) == stage::WAITING;
            if same && waits && socket.connector.load(Relaxed) && socket.may_be_paired() {
                waiting.push((index, socket.generation.load(Relaxed)));
            }
        });
        for (index, generation) in waiting {
            let socket = pool::get(index);
            if search::end_waiting(socket) {
                self.offer(index, generation, link, 0);
            }
        }
    }

    /// If the stream's other end is of a process to which there is a link, offers the stream to it there, as the end that
    /// connected does.
    fn offer_instead(&mut self, handshake: &Handshake) -> bool {
        let Handshake { index, generation, tuple, .. } = *handshake;
        let socket = pool::get(index);
        if socket.generation.load(Relaxed) != generation
            || !socket.connector.load(Relaxed)
            || !socket.may_be_paired()
            || socket.stage.load(Relaxed) != stage::MEETING
            || may_go_on(socket).is_err()
        {
            return false;
        }
        let Ok(who) = handles::credentials(handshake.control) else { return false };
        // Where the other end has the slots, a new link is more likely to have room.
        let guests = || self.links_of(&who).into_iter().rfind(|link| link.side == Side::Guest);
        let link = self.link_with_room(&who).or_else(guests);
        link.is_some_and(|link| self.offer_by(index, generation, link, 0, &tuple).is_ok())
    }

    /// A link to the process at the other end of a control socket of which this one has the slots, with more free ones than may
    /// be asked for at this moment.
    fn link_with_room(&self, who: &libc::ucred) -> Option<&'static Link> {
        let asked = self.handshakes.len() + self.offered.len();
        let has_room = |link: &&Link| link.side == Side::Master && link.slots.free() > asked;
        self.links_of(who).into_iter().find(has_room)
    }

    /// The live links to the process, as far as it has a number here (one of another namespace has none) and the user it had.
    fn links_of(&self, who: &libc::ucred) -> Vec<&'static Link> {
        let mut links = if who.pid > 0 { self.links_to(who.pid) } else { Vec::new() };
        links.retain(|link| link.peer_uid == who.uid);
        links
    }

    fn links_to(&self, pid: i32) -> Vec<&'static Link> {
        let links = self.service.links.lock();
        let live = links.iter().map(|known| known.link).filter(|link| link.is_alive());
        live.filter(|link| link.peer_pid == pid).collect()
    }
}
