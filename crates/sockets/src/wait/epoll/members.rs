//! The streams in the sets: whose their registrations are, and what happens to them.

use core::sync::atomic::Ordering::*;

use shunt_link::Link;
use shunt_os::{handles, tcp};
use shunt_readiness::interest::bits;
use shunt_stats::Reason;

use super::hush::{hush, take_out};
use super::registration::Registration;
use super::{each, renew_entry, set_at, tag, tagged, try_each, Cause, Inner, Set, FREE};
use crate::attach;
use crate::pool::{self, Membership, Mode, Socket};
use crate::table::{self, Entry};
use crate::wait::state::{self, State};

/// Whether a stream's registrations are ours.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Managed {
    All,
    /// An edge may be reported by the kernel just now, or was, for bytes that are still unread; once
    /// they are read, it can be told from the next.
    Later,
    /// The set is the kernel's; or its registration cannot be reached (its descriptor was closed, a
    /// copy lives).
    Never(Reason),
}

/// Takes a registration over from the kernel, now that the stream is attached.
pub fn manage(set: &Set, socket: &'static Socket, fd: i32) -> Managed {
    let mut inner = set.inner.lock();
    let set_fd = set.fd.load(Relaxed);
    let Some(link) = socket.link() else { return Managed::All };
    if socket.mode() != Mode::Attached {
        // It has left meanwhile. Who gave its registrations back has been here, or will find this one.
        return Managed::All;
    }
    let kernels = inner.kernels;
    let Some(registration) = inner.registrations.get_mut_of(socket, fd) else {
        return Managed::All;
    };
    if registration.managed {
        // Of a stream that has come to another link.
        if !inner.links.iter().any(|known| known.is(link)) {
            set.join_link(&mut inner, set_fd, link);
            inner.queue(fd, Cause::First);
            set.kick(&inner);
        }
        return Managed::All;
    }
    if registration.deleted {
        return Managed::All;
    }
    if let Some(reason) = kernels {
        return Managed::Never(reason);
    }
    if registration.interest.events & bits::EXCLUSIVE != 0 {
        return Managed::Never(Reason::EpollExclusive);
    }
    // A set that this process has not used yet may be its parent's still.
    if registration.foreign || set.inherited.load(Relaxed) || !set.may_tag() {
        return Managed::Never(Reason::SharedWithOtherProcess);
    }
    // Who has streams that wait is told by these, whatever sets they are in beside.
    if !set.waited.load(Relaxed) && socket.nonblocking.load(Relaxed) {
        return Managed::Later;
    }
    let socket_fd = socket.fd.load(Relaxed);
    let watched = registration.interest.events & (bits::ET | bits::ONESHOT) != 0;
    if watched && registration.fresh {
        // The kernel may be telling the program of it at this moment: it would be told twice.
        return Managed::Later;
    }
    if registration.interest.is_edge() {
        // The order matters: what has arrived by the first look has been read by the second, so
        // the program has been told of it; what comes later will be an edge.
        let arrived = tcp::bytes_arrived(socket_fd, socket.told_reset.load(Relaxed)).unwrap_or(0);
        let ends = handles::poll_now(socket_fd, libc::POLLRDHUP | libc::POLLPRI);
        if tcp::readable(socket_fd).unwrap_or(0) > 0 || ends != 0 {
            return Managed::Later;
        }
        registration.told = State { mask: 0, arrived, ..registration.told };
        registration.retracted = u64::MAX;
        // Unless it read without being told: the kernel has that edge, and would tell of room with it.
        let asks_room = registration.interest.events & (bits::OUT | bits::WRNORM) != 0;
        registration.fresh = asks_room && handles::poll_now(set_fd, libc::POLLIN) != 0;
    }
    let change = registration.change();
    let events = tagged(&registration.interest);
    if handles::epoll_ctl(set_fd, change, fd, events, tag(fd as u32)).is_err() {
        return Managed::Never(Reason::LeftInEpoll);
    }
    registration.parked = false;
    let data = registration.interest.data;
    set.managed.fetch_add(1, SeqCst);
    inner.by_data.remove(&data);
    set.join_link(&mut inner, set_fd, link);
    inner.own(set_fd, fd);
    set.kick(&inner);
    Managed::All
}

/// The stream was attached: its registrations are to be ours from now on.
pub fn manage_all(socket: &'static Socket) -> Managed {
    let members = socket.memberships.lock().clone();
    let mut worst = Managed::All;
    for member in members {
        match manage(set_at(member.set), socket, member.fd) {
            Managed::All => {}
            Managed::Never(reason) => return Managed::Never(reason),
            Managed::Later => worst = Managed::Later,
        }
    }
    choose_bell(socket, &socket.memberships.lock());
    worst
}

/// Before a stream that stands on a link comes into a set, no lock held: a bell for the set, if it has none of the link's yet.
pub(super) fn provide_bell(set: &Set, link: &Link) {
    if !set.inner.lock().links.iter().any(|known| known.is(link)) {
        link.provide_bell();
    }
}

/// As above, before a stream that is in sets comes to a link.
pub fn provide_bells(socket: &Socket, link: &Link) {
    let members = socket.memberships.lock().clone();
    members.iter().for_each(|member| provide_bell(set_at(member.set), link));
}

/// The peer tells of the stream by the bell of the only set that it is in, or was and may come to once more; or by the
/// first one, which wakes them all. The memberships are locked.
pub fn choose_bell(socket: &Socket, members: &[Membership]) {
    let bell = match (members, socket.link()) {
        ([only], Some(link)) => set_at(only.set).inner.lock().bell_of(link),
        _ => 0,
    };
    state::be_told_by(socket, bell);
}

/// A one-shot that has told, where others must find an entry: when the kernel has told of room, under our
/// tag, which is left out, it has the entry disabled by itself.
const DISABLED: u32 = bits::OUT | bits::ONESHOT;

impl Registration {
    /// Others may ask for a one-shot that has told: another process, or who uses its number for a copy.
    fn unpark(&mut self, set_fd: i32, fd: i32) -> bool {
        let was = core::mem::take(&mut self.parked);
        if was {
            let _ = handles::epoll_ctl(set_fd, libc::EPOLL_CTL_ADD, fd, DISABLED, tag(fd as u32));
        }
        was
    }
}

/// The stream left its slot: the kernel gets its registrations back.
pub fn release_all(socket: &'static Socket) {
    let members = socket.memberships.lock().clone();
    members.into_iter().for_each(|member| release(socket, member));
}

fn release(socket: &Socket, member: Membership) {
    let set = set_at(member.set);
    let shared = set.shared.load(SeqCst);
    let mut inner = set.inner.lock();
    let Some(registration) = inner.registrations.get_mut_of(socket, member.fd) else { return };
    if !core::mem::take(&mut registration.managed) {
        return;
    }
    registration.place = None;
    let (interest, deleted) = (registration.interest, registration.deleted);
    registration.parked = interest.disabled && !deleted && !shared;
    let parked = registration.parked;
    registration.echoes = interest.disabled || (interest.is_edge() && !registration.fresh);
    registration.fresh = false;
    inner.candidates.remove(member.fd);
    let last = set.managed.fetch_sub(1, SeqCst) == 1;
    let entry = if deleted || parked {
        None
    } else if interest.disabled {
        Some((DISABLED, tag(member.fd as u32)))
    } else {
        Some((interest.events, interest.data))
    };
    let set_fd = set.fd.load(Relaxed);
    renew_entry(set_fd, member.fd, entry);
    if last {
        inner.leave_links(set_fd);
    }
    if !deleted {
        return inner.registrations.set_apart(member.fd, true);
    }
    inner.registrations.remove(member.fd);
    drop(inner);
    socket.memberships.lock().retain(|known| *known != member);
}

/// In a child whose parent did that: this process knows them as they were at the fork.
pub fn disown_all(socket: &Socket) {
    for member in socket.memberships.lock().iter() {
        let set = set_at(member.set);
        let mut inner = set.inner.lock();
        let Some(registration) = inner.registrations.get_mut_of(socket, member.fd) else {
            continue;
        };
        if core::mem::take(&mut registration.managed) {
            registration.place = None;
            inner.candidates.remove(member.fd);
            set.managed.fetch_sub(1, SeqCst);
        }
    }
}

/// Whether the sets that a stream is in are this process's alone, and end when it becomes another program.
pub fn are_closed_by_exec(socket: &Socket) -> bool {
    let members = socket.memberships.lock().clone();
    members.iter().all(|member| {
        let set = set_at(member.set);
        let mut survives = false;
        table::each(0, u32::MAX, |fd, entry| {
            survives |= entry == Entry::Set(member.set) && handles::survives_exec(fd);
        });
        !survives && set.kin.may_pair() && set.inner.lock().kernels.is_none()
    })
}

/// A number of the stream's closes, and its registrations stay: from now on the kernel's business, or
/// still the parent's in a set that this process has not used. Whether there are any that the program has not
/// deleted.
pub fn forget_number(socket: &'static Socket, fd: i32) -> bool {
    let of_number = |member: &&Membership| member.fd == fd;
    let members: Vec<_> = socket.memberships.lock().iter().filter(of_number).cloned().collect();
    let mut some = false;
    for member in members {
        let set = set_at(member.set);
        let is_deleted =
            set.inner.lock().registrations.get(fd).is_none_or(|registration| registration.deleted);
        some |= !is_deleted;
        if !set.inherited.load(Relaxed) {
            release(socket, member);
            let mut inner = set.inner.lock();
            if let Some(registration) = inner.registrations.get_mut(fd).filter(|_| !is_deleted) {
                registration.unpark(set.fd.load(Relaxed), fd);
            }
        }
        remove(member.set, fd);
    }
    socket.memberships.lock().retain(|member| member.fd != fd);
    some
}

/// The socket's last descriptor closes: the kernel drops its registrations, and so do we. Returns
/// which there were.
pub fn forget_all(socket: &'static Socket) -> Vec<Membership> {
    let members = core::mem::take(&mut *socket.memberships.lock());
    for member in &members {
        remove(member.set, member.fd);
    }
    members
}

/// The program closes the last number of a stream, whose file may stay open for a while: the kernel is to drop them
/// all the same.
pub fn drop_from_kernel(members: &[Membership]) {
    for member in members {
        let set = set_at(member.set);
        let _held = set.inner.lock();
        let set_fd = set.fd.load(Relaxed);
        let _ = handles::epoll_ctl(set_fd, libc::EPOLL_CTL_DEL, member.fd, 0, 0);
    }
}

/// Something happened to the stream: its registrations become candidates. Before that, at `done`,
/// whoever did it had done something elsewhere; 0 is never. A mark of `link`'s tells so: who made it rings.
pub fn stir(socket: &'static Socket, done: u64, link: Option<&Link>) {
    in_each_set(socket, link, |set, inner, fd| {
        let after = set.turn.may_tell_of(done);
        inner.queue(fd, if after { Cause::AfterKernel } else { Cause::First });
    });
}

/// As [`stir`], by a call that wakes every waiter of the kernel's for one of the events `wakes`, whether
/// anything changed or not: an edge.
pub fn stir_anew(socket: &'static Socket, wakes: u32) {
    in_each_set(socket, None, |_, inner, fd| {
        if let Some(registration) = inner.registrations.get_mut(fd) {
            if registration.is_woken_by(wakes) {
                registration.fresh |= registration.managed;
                registration.echoes = false;
            }
        }
        inner.queue(fd, Cause::First);
    });
}

/// As [`stir_anew`], of a stream that left its ring: what others have told of it is told again.
pub fn stir_on_tcp(socket: &'static Socket, wakes: u32) {
    socket.kin.note_woken();
    stir_anew(socket, wakes);
}

/// Changes each registration of a stream, and wakes who sleeps on its set, unless a bell of the link that told of it
/// has rung there: nobody sleeps on over that, or goes to sleep, before he has had the set's lock and looked.
fn in_each_set(
    socket: &Socket,
    told_by: Option<&Link>,
    mut change: impl FnMut(&Set, &mut Inner, i32),
) {
    // Lock order: a stream's memberships, then a set.
    for member in socket.memberships.lock().iter() {
        let set = set_at(member.set);
        let mut inner = set.inner.lock();
        change(set, &mut inner, member.fd);
        if !told_by.is_some_and(|link| inner.is_rung_by(link)) {
            set.kick(&inner);
        }
    }
}

/// What was told as having arrived beyond `offset` comes once more, by TCP: it is an edge again.
pub fn retract_beyond(offset: u64, socket: &Socket) {
    // Lock order: a stream's memberships, then a set.
    for member in socket.memberships.lock().iter() {
        if let Some(registration) = set_at(member.set).inner.lock().registrations.get_mut(member.fd)
        {
            registration.retracted = registration.retracted.min(offset);
        }
    }
}

/// Offsets are smaller by so much from here on. The stream's lock is held: a look is of before, and is taken
/// again, or of after.
pub fn count_anew(socket: &Socket, less: u64) {
    in_each_set(socket, None, |_, inner, fd| {
        if let Some(registration) = inner.registrations.get_mut(fd) {
            registration.count_anew(less);
        }
    });
}

/// The set is watched by somebody whom only the kernel can tell: its streams go back to TCP, and it
/// holds nothing of ours any more.
pub fn leave_set(set_index: u32, reason: Reason) {
    take_over(set_index);
    let set = set_at(set_index);
    if matches!(reason, Reason::NestedEpoll | Reason::PassedDescriptor) {
        set.kin.note_watched();
    }
    let sockets = {
        let mut inner = set.inner.lock();
        inner.kernels.get_or_insert(reason);
        inner.registrations.streams()
    };
    attach::leave_all(&sockets, reason);
    leave_links(set_index);
    hush(set);
}

/// The streams of a set have left their rings. One that has not, because the ring holds what a peer that
/// died cannot send again, has ended: the kernel tells of that.
fn leave_links(set_index: u32) {
    let set = set_at(set_index);
    let ours = |(fd, it): (i32, &Registration)| it.managed.then_some((it.socket, fd));
    let rest: Vec<_> = set.inner.lock().registrations.all().filter_map(ours).collect();
    for (index, fd) in rest {
        release(pool::get(index), Membership { set: set_index, fd });
    }
    let mut inner = set.inner.lock();
    if set.managed.load(SeqCst) == 0 {
        inner.leave_links(set.fd.load(Relaxed));
    }
}

/// The rings' streams leave the set, for a child that asked the service thread. False if readers did not
/// stop yet.
pub fn leave_set_soon(set_index: u32) -> bool {
    let set = set_at(set_index);
    if set.inherited.load(Relaxed) {
        // Another one was asked.
        return true;
    }
    let mut sockets = set.inner.lock().registrations.streams();
    sockets.retain(|index| pool::get(*index).mode() == Mode::Attached);
    let done = attach::leave_soon(&sockets, Reason::SharedWithOtherProcess).is_empty();
    if done {
        give_to_others(set_index);
    }
    done
}

/// What others have of the set has left: the kernel has all of it.
fn give_to_others(set_index: u32) {
    let set = set_at(set_index);
    leave_links(set_index);
    hush(set);
    set.kin.announce();
}

/// No set has anything of ours any more, and nobody is there to be asked.
pub fn announce_all() {
    each(|_, set| {
        if !set.inherited.load(Relaxed) {
            set.kin.announce();
        }
    });
}

/// This process is about to close the set, or to be stopped: if another holds it, nothing of ours may stay there.
pub fn leave_to_others(set_index: u32) {
    let set = set_at(set_index);
    if set.inherited.load(Relaxed) || set.kin.is_sole_holder() {
        return;
    }
    if set.managed.load(SeqCst) != 0 || !set.inner.lock().links.is_empty() {
        leave_set(set_index, Reason::SharedWithOtherProcess);
    }
    set.kin.announce();
}

/// As [`leave_to_others`], every set: this process ends, and with it the streams that it has alone. It may be
/// in a signal handler that has interrupted who holds a lock: such a set is left as it is.
pub fn leave_to_others_at_end() {
    try_each(|index, set| {
        if set.inherited.load(Relaxed) || set.kin.is_sole_holder() {
            return;
        }
        let Some(mut sockets) = set.inner.try_lock().map(|it| it.registrations.streams()) else {
            return;
        };
        sockets.retain(|index| !pool::get(*index).kin.is_sole_holder());
        let is_free =
            |socket: &Socket| socket.recv.try_lock().is_some() && socket.send.try_lock().is_some();
        if !sockets.iter().copied().map(pool::get).all(is_free) {
            return;
        }
        attach::leave_all(&sockets, Reason::SharedWithOtherProcess);
        give_to_others(index);
        let left = |socket: &&Socket| socket.mode() == Mode::Left;
        sockets.into_iter().map(pool::get).filter(left).for_each(|socket| socket.kin.announce());
    });
}

/// A link whose peer is gone and which no stream uses leaves every set.
pub fn forget_link(link: &'static Link) {
    let used = FREE.lock().1;
    for index in 0..used {
        let set = set_at(index);
        let mut inner = set.inner.lock();
        let before = inner.links.len();
        inner.links.retain(|known| !known.is(link));
        if inner.links.len() != before && !inner.candidates.is_empty() {
            // Who was woken by its bell, which is about to close, may not have seen that.
            set.kick(&inner);
        }
    }
}

/// Another process has the set too, from now on: the kernel's entries are what the program asked for.
pub fn share(set_index: u32) {
    let set = set_at(set_index);
    set.shared.store(true, SeqCst);
    let mut inner = set.inner.lock();
    let set_fd = set.fd.load(Relaxed);
    let mut unparked = false;
    for (fd, registration) in inner.registrations.all_mut() {
        unparked |= registration.unpark(set_fd, fd);
    }
    while let Some((fd, index)) = inner.registrations.some_deleted() {
        inner.registrations.remove(fd);
        inner.candidates.remove(fd);
        set.managed.fetch_sub(1, SeqCst);
        let _ = handles::epoll_ctl(set_fd, libc::EPOLL_CTL_DEL, fd, 0, 0);
        drop(inner);
        let member = Membership { set: set_index, fd };
        pool::get(index).memberships.lock().retain(|known| *known != member);
        inner = set.inner.lock();
    }
    let looked_at = inner.kernels.is_some();
    drop(inner);
    if unparked && looked_at {
        take_out(set, |_| false, |_| false);
    }
}

/// As [`share`], every set: the process forks.
pub fn share_all() {
    each(|index, _| share(index));
}

/// A forked child uses a set of its parent's: the kernel has it from now on, until one of them has it
/// alone.
pub fn take_over(set_index: u32) {
    let set = set_at(set_index);
    if !set.inherited.load(Relaxed) || !set.inherited.swap(false, AcqRel) {
        return;
    }
    let errno = shunt_os::errno();
    if set.kin.claim_set() {
        set.inner.lock().disown();
        set.managed.store(0, SeqCst);
    } else {
        // Its owner is gone without a word.
        let sockets = set.inner.lock().registrations.streams();
        sockets.into_iter().for_each(crate::inherit::touch);
        set.kin.announce();
    }
    shunt_os::set_errno(errno);
}

/// The registration is gone from the kernel's set.
fn remove(set_index: u32, fd: i32) {
    let set = set_at(set_index);
    set.remove(&mut set.inner.lock(), fd);
}

impl Set {
    /// As [`remove`].
    pub(super) fn remove(&self, inner: &mut Inner, fd: i32) {
        if let Some(registration) = inner.registrations.remove(fd) {
            inner.candidates.remove(fd);
            if registration.managed {
                self.managed.fetch_sub(1, SeqCst);
            }
        }
    }
}
