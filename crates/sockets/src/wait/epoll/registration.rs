//! What the program has put into a set, by descriptor.

use libc::epoll_event;
use shunt_readiness::interest::{bits, Interest};

use super::queue::Place;
use crate::pool::{self, Socket};
use crate::wait::state::State;

/// Counts a set's registrations that became ours: a moment in its life.
#[derive(Clone, Copy, Default)]
pub struct Era(u32);

impl Era {
    /// The moment after this one.
    pub fn next(self) -> Era {
        Era(self.0.wrapping_add(1))
    }

    pub fn is_after(self, other: Era) -> bool {
        (self.0.wrapping_sub(other.0) as i32) > 0
    }
}

/// One program registration of a TCP socket.
pub struct Registration {
    pub socket: u32,
    pub generation: u32,
    pub interest: Interest,
    /// The kernel's registration is ours (tagged, edge-triggered).
    pub managed: bool,
    /// That asks for room, too.
    pub tells_room: bool,
    /// When it became that.
    pub ours_since: Era,
    /// Where it stands in the set's queue.
    pub place: Option<Place>,
    /// The program has deleted it, and it stays for the next ADD: some programs delete and add for
    /// every message. If it is ours, so does the kernel's entry, and neither costs a system call
    /// while its bytes come by a ring.
    pub deleted: bool,
    /// A one-shot that has told, of a stream that left its ring: the kernel has no way to be told of
    /// that state, and would tell of an end again. Its set has no entry until the program asks anew.
    pub parked: bool,
    /// Other processes used the set, and may have changed what the kernel has of it.
    pub foreign: bool,
    /// What the last report of an edge-triggered registration told.
    pub told: State,
    /// What was told as having arrived beyond this comes once more.
    pub retracted: u64,
    /// The kernel has it again, as a new entry, which tells once more of what was told.
    pub echoes: bool,
    /// Added or changed since: whatever is ready is reported.
    pub fresh: bool,
    /// Counts what was asked and told: a thread that looked before must look again.
    pub version: u32,
    /// Its bytes come by TCP, as far as is known. Not so for a listener, which has none.
    pub apart: bool,
}

impl Registration {
    pub fn new(socket: u32, generation: u32, interest: Interest) -> Registration {
        Registration {
            socket,
            generation,
            interest,
            managed: false,
            tells_room: false,
            ours_since: Era::default(),
            place: None,
            deleted: false,
            parked: false,
            foreign: false,
            told: State::default(),
            retracted: u64::MAX,
            echoes: false,
            fresh: true,
            version: 0,
            apart: true,
        }
    }

    /// Whether it is this stream's: a number may name one after the other.
    pub fn is_of(&self, index: u32, generation: u32) -> bool {
        self.socket == index && self.generation == generation
    }

    /// What changes the kernel's entry.
    pub fn change(&self) -> i32 {
        if self.parked {
            libc::EPOLL_CTL_ADD
        } else {
            libc::EPOLL_CTL_MOD
        }
    }

    /// The program asks anew.
    pub fn ask(&mut self, asked: &epoll_event) {
        self.interest = Interest::new(asked.events, asked.u64);
        self.fresh = true;
        self.echoes = false;
        self.version = self.version.wrapping_add(1);
    }

    /// What has arrived counts as less by so much.
    pub fn count_anew(&mut self, less: u64) {
        self.told.arrived = self.told.arrived.saturating_sub(less);
        if self.retracted != u64::MAX {
            self.retracted = self.retracted.saturating_sub(less);
        }
        self.version = self.version.wrapping_add(1);
    }

    /// Whether the kernel takes a wake-up for these events for one of this registration.
    pub fn is_woken_by(&self, events: u32) -> bool {
        let asked = self.interest.events & 0xffff | bits::ERR | bits::HUP;
        !self.interest.disabled && asked & events != 0
    }

    /// Whether something happened since the last report that the program asked to hear of.
    pub fn has_edge(&self, now: &State) -> bool {
        let asked = self.interest.events;
        let ends = now.mask & ENDS;
        self.fresh
            || (asked & (bits::IN | bits::RDNORM) != 0
                && now.arrived > self.told.arrived.min(self.retracted))
            || ends & !self.told.mask != 0
            || now.peer_ended && !self.told.peer_ended
            || (asked & (bits::OUT | bits::WRNORM) != 0
                && now.has_room
                && now.fulls != self.told.fulls)
    }

    pub fn tell(&mut self, now: &State) {
        let fulls = if now.has_room { now.fulls } else { self.told.fulls };
        self.told = State { fulls, ..*now };
        self.retracted = u64::MAX;
        self.fresh = false;
        self.version = self.version.wrapping_add(1);
    }
}

const ENDS: u32 = bits::RDHUP | bits::HUP | bits::ERR | bits::PRI;

/// Registrations by descriptor: found with two loads, and no memory is asked for when one comes in
/// the place of another.
#[derive(Default)]
pub struct Registrations {
    /// Place in `all` plus one, by descriptor; 0 is none.
    places: Vec<u32>,
    all: Vec<(i32, Registration)>,
    apart: usize,
}

impl Registrations {
    #[inline]
    fn place(&self, fd: i32) -> Option<usize> {
        self.places.get(fd as usize).map(|place| *place as usize).filter(|place| *place != 0)
    }

    #[inline]
    pub fn get(&self, fd: i32) -> Option<&Registration> {
        self.place(fd).map(|place| &self.all[place - 1].1)
    }

    #[inline]
    pub fn get_mut(&mut self, fd: i32) -> Option<&mut Registration> {
        self.place(fd).map(|place| &mut self.all[place - 1].1)
    }

    /// As [`get_mut`](Self::get_mut), of this stream: another one may have the number by now.
    pub fn get_mut_of(&mut self, socket: &Socket, fd: i32) -> Option<&mut Registration> {
        self.get_mut(fd).filter(|it| core::ptr::eq(pool::get(it.socket), socket))
    }

    /// How many streams' bytes come by TCP.
    pub fn apart(&self) -> usize {
        self.apart
    }

    pub fn set_apart(&mut self, fd: i32, apart: bool) {
        let Some(registration) = self.get_mut(fd) else { return };
        let before = core::mem::replace(&mut registration.apart, apart);
        self.apart = self.apart + usize::from(apart) - usize::from(before);
    }

    /// Takes the place of an earlier one.
    pub fn insert(&mut self, fd: i32, registration: Registration) {
        self.set_apart(fd, false);
        self.apart += usize::from(registration.apart);
        match self.place(fd) {
            Some(place) => self.all[place - 1].1 = registration,
            None => {
                if self.places.len() <= fd as usize {
                    self.places.resize(fd as usize + 1, 0);
                }
                self.all.push((fd, registration));
                self.places[fd as usize] = self.all.len() as u32;
            }
        }
    }

    pub fn remove(&mut self, fd: i32) -> Option<Registration> {
        self.set_apart(fd, false);
        let place = self.place(fd)?;
        self.places[fd as usize] = 0;
        let (_, removed) = self.all.swap_remove(place - 1);
        if let Some((moved, _)) = self.all.get(place - 1) {
            self.places[*moved as usize] = place as u32;
        }
        Some(removed)
    }

    /// One that is the kernel's alone was deleted there.
    pub fn set_deleted(&mut self, fd: i32) {
        self.set_apart(fd, false);
        if let Some(registration) = self.get_mut(fd) {
            registration.deleted = true;
            registration.parked = false;
        }
    }

    /// One that the program has deleted, and the kernel has not: its number and its stream.
    pub fn some_deleted(&self) -> Option<(i32, u32)> {
        self.all().find(|(_, it)| it.managed && it.deleted).map(|(fd, it)| (fd, it.socket))
    }

    pub fn all(&self) -> impl Iterator<Item = (i32, &Registration)> {
        self.all.iter().map(|(fd, registration)| (*fd, registration))
    }

    pub fn all_mut(&mut self) -> impl Iterator<Item = (i32, &mut Registration)> {
        self.all.iter_mut().map(|(fd, registration)| (*fd, registration))
    }

    /// The streams that the kernel's set has entries for.
    pub fn streams(&self) -> Vec<u32> {
        let present = self.all.iter().filter(|(_, r)| r.managed || !r.deleted);
        present.map(|(_, registration)| registration.socket).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn registrations_come_and_go_as_in_a_map() {
        let mut ours = Registrations::default();
        let mut map = std::collections::BTreeMap::new();
        for step in 0..2000u32 {
            let fd = (step.wrapping_mul(2_654_435_761) >> 20) as i32 % 60;
            if step % 3 == 0 {
                assert_eq!(ours.remove(fd).map(|r| r.socket), map.remove(&fd));
            } else {
                ours.insert(fd, Registration::new(step, 1, Interest::new(bits::IN, 0)));
                map.insert(fd, step);
            }
            for fd in 0..60 {
                assert_eq!(ours.get(fd).map(|r| r.socket), map.get(&fd).copied());
            }
            assert_eq!(ours.all().count(), map.len());
        }
    }
}
