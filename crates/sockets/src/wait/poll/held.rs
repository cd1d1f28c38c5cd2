//! The streams that a poll has come upon, until it returns. As in the kernel, whose poll holds the open
//! files: another thread that closes the last descriptor of one does not end it meanwhile, and nobody who
//! gets its number is waited for.

use core::sync::atomic::Ordering::*;

use libc::pollfd;
use shunt_link::Link;
use shunt_os::handles;

use crate::pool::{self, Mode, Socket};
use crate::table::{self, Entry};
use crate::wait::joined::{self, Joined};
use crate::wait::state;

/// A stream's place in the pool, and its generation there.
type Name = (u32, u32);

/// What a position of the list named when the poll began.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Named {
    Stream(Name),
    /// Nothing that we know of.
    Other,
    /// A stream that stirred after its number had gone over to another: it has nothing more to tell.
    Told,
}

pub struct Held {
    /// By position in the list.
    named: Vec<Named>,
    /// Those that are held, sorted.
    holds: Vec<Name>,
    /// Those that tell of what comes by the bells of the thread that sleeps.
    armed: Vec<Name>,
}

/// What a sleeping poll does about a position of its list.
pub enum Watch {
    /// A stream of ours.
    Stream(&'static Socket),
    /// The kernel is asked by this number.
    Kernel(i32),
    /// The number has gone over to another stream.
    Nobody,
}

fn named(fd: i32) -> Named {
    let Entry::Socket(index) = table::get(fd) else { return Named::Other };
    Named::Stream((index, pool::get(index).generation.load(Relaxed)))
}

fn attached((index, generation): Name) -> Option<&'static Socket> {
    let socket = pool::get(index);
    let is_it = socket.generation.load(Relaxed) == generation;
    (is_it && socket.mode() == Mode::Attached).then_some(socket)
}

/// A number of a stream that is on TCP for good.
fn number_of((index, generation): Name) -> Option<i32> {
    let socket = pool::get(index);
    let number = socket.fd.load(SeqCst);
    let is_it = socket.generation.load(SeqCst) == generation;
    (is_it && number >= 0).then_some(number)
}

impl Held {
    /// What the numbers of `list` name now.
    pub fn of(list: &[pollfd]) -> Held {
        let named = list.iter().map(|entry| named(entry.fd)).collect();
        Held { named, holds: Vec::new(), armed: Vec::new() }
    }

    /// Holds those that are attached by now. `list` may name one that was not known before.
    pub fn hold(&mut self, list: &[pollfd]) {
        for (was, entry) in self.named.iter_mut().zip(list) {
            if *was == Named::Other {
                *was = named(entry.fd);
            }
        }
        let names = self.named.iter().filter_map(|named| match named {
            Named::Stream(name) => Some(*name),
            _ => None,
        });
        let mut new: Vec<Name> = names.filter(|name| attached(*name).is_some()).collect();
        // A list may name one stream several times.
        new.sort_unstable();
        new.dedup();
        new.retain(|name| self.holds.binary_search(name).is_err());
        new.retain(|&name| {
            let mut recv = pool::get(name.0).recv.lock();
            let holds = attached(name).is_some();
            if holds {
                recv.waiting.begin(true);
            }
            holds
        });
        if !new.is_empty() {
            self.holds.extend(new);
            self.holds.sort_unstable();
        }
    }

    /// The attached stream at a position, whoever has its number.
    pub fn stream(&self, position: usize) -> Option<&'static Socket> {
        match self.named[position] {
            Named::Stream(name) => attached(name),
            _ => None,
        }
    }

    pub fn watch(&self, position: usize, fd: i32) -> Watch {
        match (self.named[position], self.stream(position)) {
            (_, Some(socket)) => Watch::Stream(socket),
            (Named::Other, None) => Watch::Kernel(fd),
            (Named::Stream(name), None) if named(fd) == Named::Stream(name) => Watch::Kernel(fd),
            (Named::Stream(name), None) => number_of(name).map_or(Watch::Nobody, Watch::Kernel),
            (Named::Told, None) => Watch::Nobody,
        }
    }

    pub fn links(&self) -> Vec<&'static Link> {
        super::links_of(self.streams())
    }

    /// Whether every stream stands on one of these.
    pub fn stands_on(&self, links: &[Joined]) -> bool {
        self.streams().filter_map(Socket::link).all(|link| joined::find(links, link).is_some())
    }

    fn streams(&self) -> impl Iterator<Item = &'static Socket> + '_ {
        (0..self.named.len()).filter_map(|position| self.stream(position))
    }

    /// Every stream tells of what comes, by the bells of the thread that has announced its sleep to these.
    pub fn arm(&mut self, links: &[Joined]) {
        let bell_of = |link: &Link| joined::find(links, link).map_or(0, |it| it.bell);
        for position in 0..self.named.len() {
            let (Named::Stream(name), Some(socket)) = (self.named[position], self.stream(position))
            else {
                continue;
            };
            state::begin_poll(socket, name.1, socket.link().map_or(0, bell_of));
            self.armed.push(name);
        }
    }

    /// The thread sleeps no more.
    pub fn disarm(&mut self) {
        for (index, generation) in self.armed.drain(..) {
            state::end_poll(pool::get(index), generation);
        }
    }

    /// Whether a stream has something that the list asks for.
    pub fn is_stirred(&self, list: &[pollfd]) -> bool {
        list.iter().enumerate().any(|(position, entry)| self.tells(position, entry))
    }

    fn tells(&self, position: usize, entry: &pollfd) -> bool {
        let asked = u32::from(entry.events as u16);
        let mask = self.stream(position).and_then(|socket| state::mask(socket, asked));
        super::events_of(entry, mask.unwrap_or(0)) != 0
    }

    /// A look at the list's numbers has not shown what some stream tells: its number is another's now.
    pub fn forget_told(&mut self, list: &[pollfd]) {
        for (position, entry) in list.iter().enumerate() {
            if named(entry.fd) != self.named[position] && self.tells(position, entry) {
                self.note_told(position, entry);
            }
        }
    }

    /// What the number names now is looked at once more, and then by nobody: the kernel is asked, as what ended the
    /// one may have ended the other a moment later, and nobody has told us yet.
    fn note_told(&mut self, position: usize, entry: &pollfd) {
        self.named[position] = Named::Told;
        if let Some((_, other)) = super::attached(entry.fd) {
            other.companion_stirred.set();
        }
    }

    /// A stream that is on TCP for good and has lost its number: by another it is waited for until it has
    /// something. True if one has, or there is one without any number: the list is to be looked at once more.
    pub fn forget_lost(&mut self, list: &[pollfd]) -> bool {
        let mut some = false;
        for (position, entry) in list.iter().enumerate() {
            let told = match self.watch(position, entry.fd) {
                Watch::Stream(_) => false,
                Watch::Kernel(fd) => fd != entry.fd && handles::poll_now(fd, entry.events) != 0,
                Watch::Nobody => self.named[position] != Named::Told,
            };
            if told {
                self.note_told(position, entry);
                some = true;
            }
        }
        some
    }

    /// Whether some position cannot be waited for as before: a stream that was held there is on TCP for
    /// good, or a number that the kernel was asked by names something else.
    pub fn is_outdated(&self, list: &[pollfd]) -> bool {
        self.holds.iter().any(|name| attached(*name).is_none())
            || list.iter().enumerate().any(|(position, entry)| {
                self.named[position] != Named::Told
                    && matches!(self.watch(position, entry.fd), Watch::Nobody)
            })
    }

    pub fn let_go(&mut self) {
        for (index, generation) in self.holds.drain(..) {
            let socket = pool::get(index);
            {
                let mut recv = socket.recv.lock();
                if socket.generation.load(Relaxed) != generation {
                    continue;
                }
                recv.waiting.end(true);
            }
            if socket.closing.load(Relaxed) {
                crate::calls::descriptor::finish_closing(index);
            }
        }
    }
}
