//! Further streams on a link: one side offers, the other looks whether it has the other end.

use std::collections::HashMap;

use core::sync::atomic::Ordering::*;

use shunt_link::{Link, Side};
use shunt_os::handles::{self, Received};
use shunt_os::peer::{Endpoint, Owner, Tuple};
use shunt_os::tcp;
use shunt_pairing::message::{Kind, Message, NO_SLOT};
use shunt_pairing::trust;
use shunt_stats::Reason;

use super::handshake::{show, shown_in_slot, shown_no_more};
use super::links::{free_if_last, links_serving, released, return_slot};
use super::reserved::Reserved;
use super::{settle, Request, Work};
use crate::pool::{self, Socket};
use crate::{attach, search};

/// What the peer was asked, and has not answered.
pub(super) struct Offered {
    pub(super) id: u64,
    pub(super) index: u32,
    pub(super) generation: u32,
    pub(super) link: &'static Link,
    pub(super) owner: Owner,
    pub(super) tuple: Tuple,
    pub(super) slot: u32,
    pub(super) tried: u32,
}

/// A stream of the peer's offer that is attached here.
#[derive(Clone, Copy)]
pub struct Accepted {
    link: &'static Link,
    slot: u32,
    index: u32,
    generation: u32,
    id: u64,
}

impl Work {
    /// Offers the stream to the process at the other end of `link`, the `tried`th that serves the
    /// stream's address; if that cannot be, as [`try_elsewhere`](Self::try_elsewhere).
    pub(super) fn offer(&mut self, index: u32, generation: u32, link: &'static Link, tried: u32) {
        let socket = pool::get(index);
        let tuple = *socket.tuple.lock();
        let (Some(tuple), true) = (tuple, socket.generation.load(Relaxed) == generation) else {
            return;
        };
        match self.offer_by(index, generation, link, tried, &tuple) {
            Ok(()) => {}
            // No link is better than another: the other end is not accepted yet, or gone.
            Err(Reason::NoSocketDiagnosis) => search::meet(index, socket, generation, &tuple),
            Err(_) => self.try_elsewhere(index, generation, tuple, tried),
        }
    }

    pub(super) fn offer_by(
        &mut self,
        index: u32,
        generation: u32,
        link: &'static Link,
        tried: u32,
        tuple: &Tuple,
    ) -> Result<(), Reason> {
        if !link.is_alive() {
            // Its channel is closed, and the number may be another's.
            return Err(Reason::PeerDied);
        }
        let owner = self.owner_uid(tuple, link.peer_uid)?;
        let slot = match link.side {
            Side::Master => link.slots.take().ok_or(Reason::NoMemory)?,
            Side::Guest => NO_SLOT,
        };
        let id = self.next_offer;
        self.next_offer += 1;
        let message = Message { kind: Kind::Offer, slot, id, tuple: *tuple };
        let sent = show(pool::get(index), generation, |fd| {
            handles::send_message(link.control, &message.encode(), &[fd])
        });
        if sent.is_err() {
            return_slot(link, slot);
            return Err(Reason::LinkFailed);
        }
        let offered = Offered { id, index, generation, link, owner, tuple: *tuple, slot, tried };
        self.offered.push(offered);
        Ok(())
    }

    /// Another link that serves the same address, or the rendezvous. There may be hundreds of links.
    pub(super) fn try_elsewhere(&mut self, index: u32, generation: u32, tuple: Tuple, tried: u32) {
        let socket = pool::get(index);
        if socket.generation.load(Relaxed) != generation || !socket.may_be_paired() {
            return;
        }
        if self.service.stopping.load(SeqCst) {
            // Whoever has it stopped holds what another start would wait for.
            return search::put_off(socket, Reason::LinkFailed);
        }
        for (at, link) in links_serving(&tuple.remote).into_iter().enumerate() {
            let at = at as u32;
            if at > tried && self.offer_by(index, generation, link, at, &tuple).is_ok() {
                return;
            }
        }
        search::meet(index, socket, generation, &tuple);
    }

    /// The peer offers a stream: is its other end ours?
    pub(super) fn consider(
        &mut self,
        link: &'static Link,
        message: &Message,
        received: &mut Received,
    ) {
        let outcome = (|| -> Option<(u32, u32, u32)> {
            if received.passed_count != 1 {
                return None;
            }
            let own = message.tuple.reversed();
            let (index, generation) = self.by_ports.find(&own)?;
            let socket = pool::get(index);
            let owner = self.owner_uid(&own, link.peer_uid).ok()?;
            let shown = shows_other_end(received, 0, &owner);
            if !shown || !socket.may_be_paired() {
                return None;
            }
            if !socket.kin.may_pair() {
                if search::end_waiting(socket) {
                    search::put_off(socket, Reason::SharedWithOtherProcess);
                }
                return None;
            }
            let slot = match link.side {
                Side::Master => link.slots.take()?,
                Side::Guest => (message.slot < link.memory.slots()).then_some(message.slot)?,
            };
            if attach::attach(index, generation, link, slot).is_err() {
                return_slot(link, slot);
                return None;
            }
            if let Some(entry) = socket.entry() {
                search::publish_addresses(entry, &own);
            }
            Some((slot, index, generation))
        })();
        match outcome {
            Some((slot, index, generation)) => {
                self.accept(Accepted { link, slot, index, generation, id: message.id });
            }
            None => self.decline(link, message.id),
        }
    }

    /// Tells the peer that its stream is attached here, and shows it; later if the channel is full.
    pub(super) fn accept(&mut self, accepted: Accepted) {
        let Accepted { link, slot, index, generation, id } = accepted;
        let answer = Message { kind: Kind::Accept, slot, id, tuple: Tuple::default() }.encode();
        let shown = show(pool::get(index), generation, |fd| {
            handles::send_message(link.control, &answer, &[fd])
        });
        match shown.map_err(|error| error.0) {
            Ok(()) => shown_in_slot(pool::get(index), generation),
            // More descriptors of the user's are on their way than one may have open (unix(7)): later, too.
            Err(libc::EAGAIN | libc::ETOOMANYREFS | libc::ENOBUFS) => {
                self.put_off(link, Request::Accept(accepted));
            }
            Err(libc::EBADF) => {
                // The program closed it meanwhile, and gives its own share of the slot back.
                free_if_last(link, slot, link.side.other());
                self.decline(link, id);
            }
            _ => {}
        }
    }

    fn decline(&mut self, link: &'static Link, id: u64) {
        let kind = Kind::Decline;
        self.say(link, Message { kind, slot: NO_SLOT, id, tuple: Tuple::default() });
    }

    pub(super) fn take_offer(&mut self, link: &'static Link, id: u64) -> Option<Offered> {
        let at = self.offered.iter().position(|o| o.id == id && core::ptr::eq(o.link, link))?;
        Some(self.offered.swap_remove(at))
    }

    pub(super) fn accepted(
        &mut self,
        link: &'static Link,
        message: &Message,
        received: &mut Received,
    ) -> bool {
        let Some(offer) = self.take_offer(link, message.id) else { return false };
        let slot = match link.side {
            Side::Master => offer.slot,
            Side::Guest => message.slot,
        };
        if slot >= link.memory.slots() {
            return false;
        }
        if received.passed_count > 1 {
            return false;
        }
        let unproved = if received.passed_count == 0 || received.passed[0] < 0 {
            // Our table had no room for it.
            Some(Reason::NoDescriptors)
        } else {
            (!shows_other_end(received, 0, &offer.owner)).then_some(Reason::NotTheOwner)
        };
        shown_no_more(pool::get(offer.index), offer.generation);
        if let Some(reason) = unproved {
            // The other streams of the link go on.
            released(link, slot);
            settle(pool::get(offer.index), offer.generation, reason);
            return true;
        }
        let server = if pool::get(offer.index).connector.load(Relaxed) {
            offer.tuple.remote
        } else {
            offer.tuple.local
        };
        if let Some(known) =
            self.service.links.lock().iter_mut().find(|k| core::ptr::eq(k.link, link))
        {
            if !known.serves.contains(&server) {
                known.serves.push(server);
            }
        }
        self.follow(Reserved { index: offer.index, generation: offer.generation, link, slot });
        true
    }

    pub(super) fn declined(&mut self, link: &'static Link, message: &Message) {
        if let Some(offer) = self.take_offer(link, message.id) {
            return_slot(link, offer.slot);
            self.try_elsewhere(offer.index, offer.generation, offer.tuple, offer.tried);
        }
    }
}

/// Whether the descriptor that was passed there is the other end. It is closed before the stream is attached: a
/// peer that closes its own then must not find that we hold the connection open.
pub(super) fn shows_other_end(received: &mut Received, at: usize, owner: &Owner) -> bool {
    let shown = core::mem::replace(&mut received.passed[at], -1);
    let is_it = trust::is_other_end(shown, owner).is_ok();
    handles::close(shown);
    is_it
}

pub(super) fn close_passed(received: &Received) {
    let passed = received.passed[..received.passed_count].iter();
    passed.filter(|fd| **fd >= 0).for_each(|fd| handles::close(*fd));
}

/// Sockets whose other end may be looked for, by their ports, as far as they were looked at: a link is asked for thousands of
/// streams at once.
#[derive(Default)]
pub(super) struct ByPorts(HashMap<(u16, u16), u32>);

impl ByPorts {
    /// The one with these addresses: its index and generation.
    pub(super) fn find(&mut self, own: &Tuple) -> Option<(u32, u32)> {
        let ports = (own.local.port, own.remote.port);
        let known = self.0.get(&ports).and_then(|index| {
            let socket = pool::get(*index);
            let (generation, tuple) = paired_by(socket)?;
            is_end(socket, &tuple, own).then_some((*index, generation))
        });
        if known.is_some() {
            return known;
        }
        self.0.clear();
        let mut found = None;
        pool::each(|index, socket| {
            let Some((generation, tuple)) = paired_by(socket) else { return };
            if is_end(socket, &tuple, own) {
                found = Some((index, generation));
            }
            self.0.insert((tuple.local.port, tuple.remote.port), index);
        });
        found
    }
}

/// The generation of a stream that may be paired, and its addresses.
fn paired_by(socket: &Socket) -> Option<(u32, Tuple)> {
    // Before all else that is asked: another stream may come to the place meanwhile.
    let generation = socket.generation.load(Acquire);
    if !socket.may_be_paired() {
        return None;
    }
    Some((generation, tuple_of(socket, generation)?))
}

/// Whether a stream with the addresses `tuple` is the end `own` of a connection. One that is over may have had the same
/// addresses, and be open still.
fn is_end(socket: &Socket, tuple: &Tuple, own: &Tuple) -> bool {
    // Addresses may differ where ports do not.
    same_ends(tuple, own) && tcp::is_connected(socket.fd.load(Relaxed))
}

/// Each end has its own idea of the scope of an address.
pub(super) fn same_ends(one: &Tuple, other: &Tuple) -> bool {
    let same = |a: &Endpoint, b: &Endpoint| a.address == b.address && a.port == b.port;
    same(&one.local, &other.local) && same(&one.remote, &other.remote)
}

/// A socket's addresses, asked for once.
fn tuple_of(socket: &Socket, generation: u32) -> Option<Tuple> {
    let known = *socket.tuple.lock();
    known.or_else(|| {
        let tuple = shunt_os::peer::tuple(socket.fd.load(Relaxed)).ok()?;
        socket.note_tuple(generation, tuple);
        Some(tuple)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;
    use std::net::{Shutdown, TcpListener, TcpStream};
    use std::os::fd::AsRawFd;

    /// The server's end of a connection, as a stream that its addresses are known of, and the client's.
    fn known() -> (u32, TcpStream, TcpStream, Tuple) {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a listener");
        let client = TcpStream::connect(listener.local_addr().expect("a name")).expect("connect");
        let (server, _) = listener.accept().expect("accept");
        let index = pool::take(server.as_raw_fd(), false, false).expect("a place");
        let tuple = shunt_os::peer::tuple(server.as_raw_fd()).expect("addresses");
        let generation = pool::get(index).generation.load(Relaxed);
        pool::get(index).note_tuple(generation, tuple);
        (index, server, client, tuple)
    }

    #[test]
    fn an_end_is_found_until_its_connection_is_over() {
        let (index, mut server, client, tuple) = known();
        let generation = pool::get(index).generation.load(Relaxed);
        let mut by_ports = ByPorts::default();
        for _ in 0..2 {
            assert_eq!(by_ports.find(&tuple), Some((index, generation)));
        }
        server.shutdown(Shutdown::Write).expect("shutdown");
        assert_eq!(by_ports.find(&tuple), Some((index, generation)));
        drop(client);
        assert_eq!(server.read(&mut [0]).expect("the end"), 0);
        assert_eq!(by_ports.find(&tuple), None, "its number is open still");
    }

    #[test]
    fn what_was_asked_of_an_earlier_stream_is_not_noted_of_the_next() {
        let (index, server, _client, tuple) = known();
        let socket = pool::get(index);
        let earlier = socket.generation.load(Relaxed);
        socket.set_mode(crate::pool::Mode::Free);
        pool::give_back(index);
        let next = pool::take(server.as_raw_fd(), false, false).expect("a place");
        socket.note_tuple(earlier, tuple);
        assert!(socket.tuple.lock().is_none());
        assert!(pool::get(next).tuple.lock().is_none());
    }
}
