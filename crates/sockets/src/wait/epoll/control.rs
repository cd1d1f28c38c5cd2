//! `epoll_ctl`.

use core::sync::atomic::Ordering::*;

use libc::epoll_event;
use shunt_link::Link;
use shunt_os::{handles, memory, real};
use shunt_readiness::interest::{bits, Interest};
use shunt_stats::Reason;

use super::members::{choose_bell, leave_set, manage, provide_bell, release_all, take_over};
use super::registration::Registration;
use super::{renew_entry, set_at, tag, tagged, Set};
use crate::outcome::Outcome;
use crate::pool::{self, Membership, Mode, Socket};
use crate::table::{self, Entry};
use crate::{attach, process};

/// `epoll_ctl`.
///
/// # Safety
/// `event` is what the program passed.
pub unsafe fn control(set_fd: i32, operation: i32, fd: i32, event: *mut epoll_event) -> Outcome {
    loop {
        // SAFETY: the caller's promise.
        if let Some(outcome) = unsafe { control_once(set_fd, operation, fd, event) } {
            return outcome;
        }
    }
}

/// `None`: the number has come to name another file meanwhile.
///
/// # Safety
/// As for [`control`].
unsafe fn control_once(
    set_fd: i32,
    operation: i32,
    fd: i32,
    event: *mut epoll_event,
) -> Option<Outcome> {
    let Entry::Set(set_index) = table::get(set_fd) else {
        // A set that came from elsewhere: only the kernel can signal it.
        crate::inherit::leave_to_kernel(fd);
        return Some(Outcome::PassThrough);
    };
    take_over(set_index);
    if let Entry::Set(inner_set) = table::get(fd) {
        leave_set(inner_set, Reason::NestedEpoll);
        return Some(Outcome::PassThrough);
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
    let Entry::Socket(index) = table::get(fd) else { return Some(Outcome::PassThrough) };
    Some(match (operation, asked) {
        (libc::EPOLL_CTL_ADD, Some(asked)) => {
            return add((set_fd, set_index), index, fd, asked, event);
        }
        (libc::EPOLL_CTL_MOD, Some(asked)) => modify(set_index, index, fd, asked),
        (libc::EPOLL_CTL_DEL, _) => delete((set_fd, set_index), index, fd, event),
        _ => Outcome::PassThrough,
    })
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

/// ADD of the stream that the number named. `None`: it names another file by now.
fn add(
    (set_fd, set_index): (i32, u32),
    index: u32,
    fd: i32,
    asked: epoll_event,
    event: *mut epoll_event,
) -> Option<Outcome> {
    let (set, socket) = (set_at(set_index), pool::get(index));
    set.renew();
    if set.managed.load(SeqCst) != 0 {
        if let Some(outcome) = add_again(set, index, fd, &asked) {
            return Some(outcome);
        }
    }
    if socket.mode() == Mode::Inherited {
        crate::inherit::touch(index);
    }
    if let Some(link) = socket.link().filter(|_| socket.mode() == Mode::Attached) {
        provide_bell(set, link);
    }
    let exclusive = asked.events & bits::EXCLUSIVE != 0;
    // Held until it is listed. A thread that waits on the set may be told of the stream before this one is back from
    // the kernel, bring it to a ring, and close the number: it finds what is listed.
    let mut memberships = socket.memberships.lock();
    if table::get(fd) != Entry::Socket(index) {
        return None;
    }
    let is_attached = socket.mode() == Mode::Attached && !exclusive;
    if is_attached {
        match list_attached(set_index, index, fd, &asked, &mut memberships) {
            Listed::As(link) => {
                drop(memberships);
                settle_attached(set, socket, fd, link);
                return Some(Outcome::Handled(0));
            }
            Listed::Failed(number) => return Some(Outcome::Failed(number)),
            Listed::ByKernel => {}
        }
    }
    let generation = socket.generation.load(Relaxed);
    let mut inner = set.inner.lock();
    if inner.is_parked(fd, index, generation) {
        return Some(Outcome::Failed(libc::EEXIST));
    }
    // SAFETY: the program's own arguments.
    let result = unsafe { real::epoll_ctl(set_fd, libc::EPOLL_CTL_ADD, fd, event) };
    if result != 0 {
        return Some(Outcome::Genuine(result as isize));
    }
    let known = inner.knows(fd, index, generation);
    let interest = Interest::new(asked.events, asked.u64);
    // A program may add a stream for every message: what has carried bytes is not asked about.
    let used = socket.connector.load(Relaxed)
        || socket.messages_in.load(Relaxed) > 0
        || socket.messages_out.load(Relaxed) > 0;
    let apart = used || !handles::listens(fd);
    let registration = Registration { apart, ..Registration::new(index, generation, interest) };
    inner.registrations.insert(fd, registration);
    if asked.events & (bits::ET | bits::ONESHOT) != 0 {
        set.watched.store(true, Relaxed);
        inner.remember(fd);
    }
    if !known {
        memberships.push(Membership { set: set_index, fd });
    }
    let unserved = exclusive
        .then_some(Reason::EpollExclusive)
        .or(inner.kernels)
        .or(is_attached.then_some(Reason::SharedWithOtherProcess));
    socket.kin.enters(&set.kin);
    drop(inner);
    drop(memberships);
    if let Some(reason) = unserved.filter(|_| socket.generation.load(Relaxed) == generation) {
        attach::leave(index, reason);
    }
    Some(Outcome::Genuine(0))
}

/// What became of a registration of a stream that is attached.
enum Listed {
    /// Ours from the start, while the stream had this link.
    As(&'static Link),
    /// The kernel refuses it.
    Failed(i32),
    /// The set is the kernel's.
    ByKernel,
}

/// ADD of a stream that is attached. Its memberships are locked: what comes behind the first look at it is told to
/// those that are listed.
fn list_attached(
    set_index: u32,
    index: u32,
    fd: i32,
    asked: &epoll_event,
    memberships: &mut Vec<Membership>,
) -> Listed {
    let (set, socket) = (set_at(set_index), pool::get(index));
    let mut inner = set.inner.lock();
    let Some(link) = socket.link() else { return Listed::ByKernel };
    if inner.kernels.is_some() || !set.may_tag() {
        return Listed::ByKernel;
    }
    let set_fd = set.fd.load(Relaxed);
    let interest = Interest::new(asked.events, asked.u64);
    let events = tagged(&interest);
    if let Err(error) = handles::epoll_ctl(set_fd, libc::EPOLL_CTL_ADD, fd, events, tag(fd as u32))
    {
        return Listed::Failed(error.0);
    }
    let generation = socket.generation.load(Relaxed);
    if !inner.knows(fd, index, generation) {
        memberships.push(Membership { set: set_index, fd });
    }
    inner.registrations.insert(fd, Registration::new(index, generation, interest));
    set.managed.fetch_add(1, SeqCst);
    set.join_link(&mut inner, set_fd, link);
    inner.own(set_fd, fd);
    set.kick(&inner);
    drop(inner);
    choose_bell(socket, memberships);
    Listed::As(link)
}

/// Behind that, without a lock.
fn settle_attached(set: &Set, socket: &'static Socket, fd: i32, link: &'static Link) {
    if socket.mode() != Mode::Attached {
        // It left the ring meanwhile, and did not know of this registration.
        release_all(socket);
    } else if !socket.link().is_some_and(|now| core::ptr::eq(now, link)) {
        // It came to another link meanwhile.
        manage(set, socket, fd);
    }
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
    let socket = pool::get(index);
    let generation = socket.generation.load(Relaxed);
    let is_the_kernels = |registration: &&Registration| {
        !registration.managed && !registration.deleted && registration.is_of(index, generation)
    };
    let mut memberships = socket.memberships.lock();
    let mut inner = set.inner.lock();
    if inner.is_parked(fd, index, generation) {
        inner.registrations.set_deleted(fd);
        return Outcome::Handled(0);
    }
    // With the locks held: who takes the registration over meanwhile would miss the kernel's.
    // SAFETY: the program's own arguments.
    let result = unsafe { real::epoll_ctl(set_fd, libc::EPOLL_CTL_DEL, fd, event) };
    if result != 0 {
        return Outcome::Genuine(result as isize);
    }
    if inner.registrations.get(fd).filter(is_the_kernels).is_some() {
        inner.registrations.set_deleted(fd);
        return Outcome::Genuine(0);
    }
    set.remove(&mut inner, fd);
    let member = Membership { set: set_index, fd };
    memberships.retain(|known| *known != member);
    Outcome::Genuine(0)
}
