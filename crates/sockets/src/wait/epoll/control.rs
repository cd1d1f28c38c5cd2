//! `epoll_ctl`.

use core::sync::atomic::Ordering::*;

use libc::epoll_event;
use shunt_os::{handles, memory, real};
use shunt_readiness::interest::{bits, Interest};
use shunt_stats::Reason;

use super::members::{leave_set, manage, release_all, remove, take_over, Managed};
use super::registration::Registration;
use super::{renew_entry, set_at, tag, tagged, Set};
use crate::outcome::Outcome;
use crate::pool::{self, Membership, Mode};
use crate::table::{self, Entry};
use crate::{attach, process};

/// `epoll_ctl`.
///
/// # Safety
/// `event` is what the program passed.
pub unsafe fn control(set_fd: i32, operation: i32, fd: i32, event: *mut epoll_event) -> Outcome {
    let Entry::Set(set_index) = table::get(set_fd) else {
        // A set that came from elsewhere: only the kernel can signal it.
        crate::inherit::before_passing(fd);
        return Outcome::PassThrough;
    };
    take_over(set_index);
    if let Entry::Set(inner_set) = table::get(fd) {
        leave_set(inner_set, Reason::NestedEpoll);
        return Outcome::PassThrough;
    }
    // SAFETY: the program passes a valid event with ADD and MOD; a bad pointer is the kernel's to
    // report.
    let asked = unsafe {
        if operation == libc::EPOLL_CTL_DEL || !memory::is_there(event, size_of::<epoll_event>()) {
            None
        } else {
            Some(event.read_unaligned())
        }
    };
    if let Some(asked) = asked {
        if (asked.u64 >> 32) as u32 == process::secret() {
            leave_set(set_index, Reason::NestedEpoll);
        }
    }
    let Entry::Socket(index) = table::get(fd) else { return Outcome::PassThrough };
    match (operation, asked) {
        (libc::EPOLL_CTL_ADD, Some(asked)) => add((set_fd, set_index), index, fd, asked, event),
        (libc::EPOLL_CTL_MOD, Some(asked)) => modify(set_index, index, fd, asked),
        (libc::EPOLL_CTL_DEL, _) => delete((set_fd, set_index), index, fd, event),
        _ => Outcome::PassThrough,
    }
}

/// ADD of a stream whose deleted registration is still ours: no system call, if its bytes come by a ring.
/// `None`: there is none.
fn add_again(set: &Set, index: u32, fd: i32, asked: &epoll_event) -> Option<Outcome> {
    let mut inner = set.inner.lock();
    let registration = inner.registrations.get_mut(fd)?;
    let generation = pool::get(index).generation.load(Relaxed);
    if !registration.managed || !registration.is_of(index, generation) {
        return None;
    }
    if !registration.deleted {
        return Some(Outcome::Failed(libc::EEXIST));
    }
    if asked.events & bits::EXCLUSIVE != 0 {
        return None;
    }
    registration.deleted = false;
    // It is put behind what is ready by now, in the kernel's queue as in ours.
    registration.place = None;
    registration.ask(asked);
    if registration.apart {
        registration.tells_room = registration.interest.wants_out();
        let entry = (tagged(&registration.interest), tag(fd as u32));
        renew_entry(set.fd.load(Relaxed), fd, Some(entry));
    }
    inner.ask(set.fd.load(Relaxed), fd);
    set.kick(&inner);
    Some(Outcome::Handled(0))
}

fn add(
    (set_fd, set_index): (i32, u32),
    index: u32,
    fd: i32,
    asked: epoll_event,
    event: *mut epoll_event,
) -> Outcome {
    let (set, socket) = (set_at(set_index), pool::get(index));
    set.renew();
    if set.managed.load(SeqCst) != 0 {
        if let Some(outcome) = add_again(set, index, fd, &asked) {
            return outcome;
        }
    }
    if socket.mode() == Mode::Inherited {
        crate::inherit::touch(index);
    }
    let exclusive = asked.events & bits::EXCLUSIVE != 0;
    if socket.mode() == Mode::Attached && !exclusive {
        if let Some(outcome) = add_attached(set_index, index, fd, &asked) {
            return outcome;
        }
    }
    if set.inner.lock().is_parked(fd, index, socket.generation.load(Relaxed)) {
        return Outcome::Failed(libc::EEXIST);
    }
    // SAFETY: the program's own arguments.
    let result = unsafe { real::epoll_ctl(set_fd, libc::EPOLL_CTL_ADD, fd, event) };
    if result != 0 {
        return Outcome::Genuine(result as isize);
    }
    let watched = asked.events & (bits::ET | bits::ONESHOT) != 0;
    if watched {
        set.watched.store(true, Relaxed);
    }
    let generation = socket.generation.load(Relaxed);
    let (unserved, known) = {
        let mut inner = set.inner.lock();
        let known = inner.knows(fd, index, generation);
        let interest = Interest::new(asked.events, asked.u64);
        // A program may add a stream for every message: what has carried bytes is not asked about.
        let used = socket.connector.load(Relaxed)
            || socket.messages_in.load(Relaxed) > 0
            || socket.messages_out.load(Relaxed) > 0;
        let apart = used || !handles::listens(fd);
        let registration = Registration { apart, ..Registration::new(index, generation, interest) };
        inner.registrations.insert(fd, registration);
        if watched {
            inner.remember(fd);
        }
        (exclusive.then_some(Reason::EpollExclusive).or(inner.kernels), known)
    };
    if !known {
        socket.memberships.lock().push(Membership { set: set_index, fd });
    }
    socket.kin.enters(&set.kin);
    if let Some(reason) = unserved {
        attach::leave(index, reason);
    } else if socket.mode() == Mode::Attached {
        // Attached while it was added, and perhaps on the ring already.
        if let Managed::Never(reason) = manage(set, socket, fd, true) {
            attach::leave(index, reason);
        }
    }
    Outcome::Genuine(0)
}

/// ADD of a stream that is attached: ours from the start. `None`: the set is the kernel's.
fn add_attached(set_index: u32, index: u32, fd: i32, asked: &epoll_event) -> Option<Outcome> {
    let (set, socket) = (set_at(set_index), pool::get(index));
    // Held until it is listed: what comes behind the first look at it is told to those that are.
    let mut memberships = socket.memberships.lock();
    let (known, link) = {
        let mut inner = set.inner.lock();
        let link = socket.link()?;
        if inner.kernels.is_some() {
            return None;
        }
        if !set.may_tag() {
            return None;
        }
        let set_fd = set.fd.load(Relaxed);
        let add = libc::EPOLL_CTL_ADD;
        let interest = Interest::new(asked.events, asked.u64);
        let events = tagged(&interest);
        if let Err(error) = handles::epoll_ctl(set_fd, add, fd, events, tag(fd as u32)) {
            return Some(Outcome::Failed(error.0));
        }
        let generation = socket.generation.load(Relaxed);
        let known = inner.knows(fd, index, generation);
        inner.registrations.insert(fd, Registration::new(index, generation, interest));
        set.managed.fetch_add(1, SeqCst);
        set.join_link(&mut inner, set_fd, link);
        inner.own(set_fd, fd);
        set.kick(&inner);
        (known, link)
    };
    if !known {
        memberships.push(Membership { set: set_index, fd });
    }
    drop(memberships);
    if socket.mode() != Mode::Attached {
        // It left the ring meanwhile, and did not know of this registration.
        release_all(socket);
    } else if !socket.link().is_some_and(|now| core::ptr::eq(now, link)) {
        // It came to another link meanwhile.
        manage(set, socket, fd, true);
    }
    Some(Outcome::Handled(0))
}

fn modify(set_index: u32, index: u32, fd: i32, asked: epoll_event) -> Outcome {
    let set = set_at(set_index);
    let watched = asked.events & (bits::ET | bits::ONESHOT) != 0;
    if watched {
        set.watched.store(true, Relaxed);
    }
    let mut inner = set.inner.lock();
    let generation = pool::get(index).generation.load(Relaxed);
    let its = |it: &&mut Registration| it.is_of(index, generation);
    let Some(registration) = inner.registrations.get_mut(fd).filter(its) else {
        return Outcome::PassThrough;
    };
    if asked.events & bits::EXCLUSIVE != 0 {
        return Outcome::Failed(libc::EINVAL);
    }
    if !registration.managed {
        // The kernel knows what it is by now: another process may have changed, deleted or added it.
        let (set_fd, change) = (set.fd.load(Relaxed), registration.change());
        if let Err(error) = handles::epoll_ctl(set_fd, change, fd, asked.events, asked.u64) {
            return Outcome::Failed(error.0);
        }
        registration.ask(&asked);
        registration.parked = false;
        registration.deleted = false;
        if watched {
            inner.remember(fd);
        }
        return Outcome::Handled(0);
    }
    if registration.deleted {
        return Outcome::Failed(libc::ENOENT);
    }
    registration.ask(&asked);
    inner.ask(set.fd.load(Relaxed), fd);
    set.kick(&inner);
    Outcome::Handled(0)
}

fn delete(
    (set_fd, set_index): (i32, u32),
    index: u32,
    fd: i32,
    event: *mut epoll_event,
) -> Outcome {
    let set = set_at(set_index);
    // With none of ours in the set, the kernel has them all.
    if set.managed.load(SeqCst) != 0 {
        let mut inner = set.inner.lock();
        if let Some(registration) = inner.registrations.get_mut(fd) {
            if registration.managed && registration.socket == index {
                if core::mem::replace(&mut registration.deleted, true) {
                    return Outcome::Failed(libc::ENOENT);
                }
                if !set.shared.load(SeqCst) {
                    registration.interest.disabled = true;
                    return Outcome::Handled(0);
                }
                registration.deleted = false;
            }
        }
    }
    let generation = pool::get(index).generation.load(Relaxed);
    let is_the_kernels = |registration: &&Registration| {
        !registration.managed && !registration.deleted && registration.is_of(index, generation)
    };
    {
        let mut inner = set.inner.lock();
        if inner.is_parked(fd, index, generation) {
            inner.registrations.set_deleted(fd);
            return Outcome::Handled(0);
        }
        // With the lock held: who takes the registration over meanwhile would miss the kernel's.
        // SAFETY: the program's own arguments.
        let result = unsafe { real::epoll_ctl(set_fd, libc::EPOLL_CTL_DEL, fd, event) };
        if result != 0 {
            return Outcome::Genuine(result as isize);
        }
        if inner.registrations.get(fd).filter(is_the_kernels).is_some() {
            inner.registrations.set_deleted(fd);
            return Outcome::Genuine(0);
        }
    }
    remove(set_index, fd);
    let member = Membership { set: set_index, fd };
    pool::get(index).memberships.lock().retain(|m| *m != member);
    Outcome::Genuine(0)
}
