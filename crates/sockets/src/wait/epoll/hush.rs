//! What was told already, when a set becomes the kernel's: a new entry of the kernel's tells of whatever is
//! there, also of bytes that the program knows of and has not read yet. In a set that is looked at as a
//! descriptor itself that is an event which there would not be without us. So it is taken out again.

use core::sync::atomic::Ordering::*;

use shunt_os::{handles, proc, tcp};
use shunt_readiness::interest::bits;

use super::{tag, Inner, Set};
use crate::pool::{self, Mode};
use crate::wait::state::{State, ENDS};

/// An edge-triggered registration, and what it had told while it was ours.
struct Told {
    fd: i32,
    socket: u32,
    state: State,
}

impl Inner {
    /// Those whose entries echo, and whether one is a one-shot that is no more than disabled.
    fn take_echoes(&mut self) -> (Vec<Told>, bool) {
        let (mut told, mut disabled) = (Vec::new(), false);
        for (fd, it) in self.registrations.all_mut() {
            if !core::mem::take(&mut it.echoes) || it.parked {
                continue;
            }
            if it.interest.disabled {
                disabled = true;
            } else {
                told.push(Told { fd, socket: it.socket, state: it.told });
            }
        }
        (told, disabled)
    }
}

impl Told {
    /// Whether the kernel has nothing to tell but what was told. A program that has found no more bytes since
    /// may have looked while they were between the ring and TCP, and waits for an edge, unless none are there
    /// now. Another process that has shut the stream down waits for one as well.
    fn is_all(&self) -> bool {
        let socket = pool::get(self.socket);
        let recv = socket.recv.lock();
        if socket.mode() != Mode::Left || socket.kin.was_woken() {
            return false;
        }
        let Some(left) = recv.left else { return false };
        let fd = socket.fd.load(Relaxed);
        let asked = libc::POLLRDHUP | libc::POLLPRI;
        let ends = u32::from(handles::poll_now(fd, asked) as u16) & ENDS;
        let unread = ends != 0 || tcp::readable(fd) != Ok(0);
        if unread && recv.misses != self.state.misses {
            return false;
        }
        // No byte follows an end.
        let everything = left.arrived >= self.state.arrived || ends & bits::RDHUP != 0;
        everything
            && left.arrived <= self.state.arrived
            && tcp::bytes_received(fd) == Ok(left.received)
            && socket.fulls.load(Relaxed) == self.state.fulls
            && ends & !self.state.mask == 0
    }
}

/// Takes what was told out of the kernel's queue, where that is all that there is, and the one-shots that
/// are no more than disabled there.
pub fn hush(set: &Set) {
    let (mut told, disabled) = set.inner.lock().take_echoes();
    told.retain(Told::is_all);
    if disabled || !told.is_empty() {
        let is_told = |fd: i32| told.iter().find(|it| it.fd == fd);
        take_out(set, |fd| is_told(fd).is_some(), |fd| is_told(fd).is_some_and(Told::is_all));
    }
}

/// Takes the events of some numbers, and those under our tag, out of the kernel's queue. What else that held
/// and would not tell again is put back, as are the `chosen` that are not to be taken `still`, which is asked without a lock; if
/// it could not be, nothing is done.
pub fn take_out(set: &Set, chosen: impl Fn(i32) -> bool, still: impl Fn(i32) -> bool) {
    // Numbers come before a set's lock: their holder may be on its way there.
    let numbers = handles::Numbers::hold();
    // Who arms an entry anew meanwhile, once it was seen to be disabled, would have its event taken for good.
    let inner = set.inner.lock();
    let set_fd = set.fd.load(Relaxed);
    let Some(mut entries) = proc::entries_of_epoll(set_fd) else { return };
    let mut events = vec![libc::epoll_event { events: 0, u64: 0 }; entries.len()];
    entries.retain(|it| {
        let tells_once = it.events & (bits::ET | bits::ONESHOT) != 0;
        tells_once && it.events & 0xffff != 0 && it.data != tag(it.fd as u32)
    });
    let stays = |it: &proc::EpollEntry| it.events & bits::EXCLUSIVE == 0 && handles::is_open(it.fd);
    if !entries.iter().all(stays) {
        return;
    }
    let taken = handles::epoll_wait(set_fd, &mut events, 0).unwrap_or(0);
    entries.retain(|entry| events[..taken].iter().any(|event| { event.u64 } == entry.data));
    let put_back = |fd, events, data| {
        let _ = handles::epoll_ctl(set_fd, libc::EPOLL_CTL_MOD, fd, events, data);
    };
    entries.retain(|entry| {
        let is_chosen = chosen(entry.fd);
        if !is_chosen {
            put_back(entry.fd, entry.events, entry.data);
        }
        is_chosen
    });
    drop(inner);
    drop(numbers);
    for entry in entries.iter().filter(|entry| !still(entry.fd)) {
        let inner = set.inner.lock();
        // What the program asks for by now.
        if let Some(known) = inner.registrations.get(entry.fd) {
            if !known.managed && !known.deleted && !known.interest.disabled {
                put_back(entry.fd, known.interest.events, known.interest.data);
            }
        }
    }
}
