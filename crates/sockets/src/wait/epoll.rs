//! epoll over mixed sets.
//!
//! The kernel's set stays the program's own and holds everything the program put in. While a
//! stream is attached, its kernel registration is edge-triggered for everything and carries our
//! tag instead of the program's data: it only says "look". What is reported, and whether it stays
//! reported, is decided here ([`Interest`]), from the ring and the kernel together. The bells of
//! the links are members too, so that a sleeper in the kernel's own wait is reached.

use std::collections::{BTreeMap, VecDeque};

use core::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, Ordering::*};

use libc::epoll_event;
use shunt_link::Link;
use shunt_os::{clock, handles, real, set_errno, tcp};
use shunt_readiness::interest::{bits, Interest};
use shunt_readiness::policy::Policy;
use shunt_stats::Reason;

use crate::lock::Lock;
use crate::outcome::Outcome;
use crate::pool::{self, Membership, Mode, Socket};
use crate::table::{self, Entry};
use crate::wait::blocking::Spun;
use crate::wait::state::State;
use crate::wait::{blocking, state};
use crate::{attach, process};

/// One program registration of a TCP socket.
struct Registration {
    socket: u32,
    generation: u32,
    interest: Interest,
    /// The kernel's registration is ours (tagged, edge-triggered).
    managed: bool,
    queued: bool,
    /// The program has deleted it; the kernel's entry, which is ours, stays for the next ADD. A
    /// program that deletes and adds for every message pays no system call for it.
    deleted: bool,
    /// What the last report of an edge-triggered registration told.
    told: State,
    /// Added or changed since: whatever is ready is reported.
    fresh: bool,
    /// Counts what was asked and told: a thread that looked before must look again.
    version: u32,
}

impl Registration {
    fn new(socket: u32, generation: u32, interest: Interest) -> Registration {
        Registration {
            socket,
            generation,
            interest,
            managed: false,
            queued: false,
            deleted: false,
            told: State::default(),
            fresh: true,
            version: 0,
        }
    }

    /// The program asks anew.
    fn ask(&mut self, asked: &epoll_event) {
        self.interest = Interest::new(asked.events, asked.u64);
        self.fresh = true;
        self.version = self.version.wrapping_add(1);
    }

    /// Whether something happened since the last report that the program asked to hear of.
    fn has_edge(&self, now: &State) -> bool {
        let asked = self.interest.events;
        let ends = now.mask & ENDS;
        self.fresh
            || (asked & (bits::IN | bits::RDNORM) != 0 && now.arrived > self.told.arrived)
            || ends & !self.told.mask != 0
            || (asked & (bits::OUT | bits::WRNORM) != 0
                && now.mask & bits::OUT != 0
                && now.fulls != self.told.fulls)
    }

    fn tell(&mut self, now: &State) {
        let fulls = if now.mask & bits::OUT != 0 { now.fulls } else { self.told.fulls };
        self.told = State { fulls, ..*now };
        self.fresh = false;
        self.version = self.version.wrapping_add(1);
    }
}

const ENDS: u32 = bits::RDHUP | bits::HUP | bits::ERR | bits::PRI;

struct Inner {
    registrations: BTreeMap<i32, Registration>,
    /// Edge-triggered and one-shot registrations that are the kernel's still, by their data: what
    /// it reports of them must be known when they become ours.
    by_data: BTreeMap<u64, i32>,
    candidates: VecDeque<i32>,
    links: Vec<&'static Link>,
    /// Some registration's own data looks like our tag: this set is left to the kernel.
    clash: bool,
    /// The set is itself polled as a descriptor.
    nested: bool,
}

/// An epoll set of the program's.
pub struct Set {
    fd: AtomicI32,
    descriptors: AtomicU32,
    managed: AtomicU32,
    /// Something of ours has been put into the kernel's set.
    touched: AtomicBool,
    /// The set was open when this process was forked.
    inherited: AtomicBool,
    /// Some registration is edge-triggered or one-shot.
    watched: AtomicBool,
    turn: super::KernelTurn,
    sleepers: AtomicU32,
    inner: Lock<Inner>,
    policy: Policy,
}

const SETS: usize = 4096;
static POOL: [core::sync::atomic::AtomicPtr<Set>; SETS] =
    [const { core::sync::atomic::AtomicPtr::new(core::ptr::null_mut()) }; SETS];
static FREE: Lock<(Vec<u32>, u32)> = Lock::new((Vec::new(), 0));

/// In the lower half of our tag: a bell, not a descriptor.
const BELL: u32 = u32::MAX;
const TAGGED: u32 = bits::IN | bits::OUT | bits::PRI | bits::RDHUP | bits::ET;

fn tag(low: u32) -> u64 {
    u64::from(process::secret()) << 32 | u64::from(low)
}

fn set_at(index: u32) -> &'static Set {
    // SAFETY: indices come from `opened`, which stores a leaked set before it hands one out.
    unsafe { &*POOL[index as usize].load(Acquire) }
}

/// A set was created.
pub fn opened(fd: i32) {
    let mut free = FREE.lock();
    let index = match free.0.pop() {
        Some(index) => index,
        None if (free.1 as usize) < SETS => {
            free.1 += 1;
            free.1 - 1
        }
        None => return,
    };
    let place = &POOL[index as usize];
    if place.load(Relaxed).is_null() {
        place.store(Box::into_raw(Box::new(Set::new())), Release);
    }
    let set = set_at(index);
    set.fd.store(fd, Relaxed);
    set.descriptors.store(1, Relaxed);
    table::set(fd, Entry::Set(index));
}

/// One more descriptor of a set.
pub fn duplicated(index: u32, fd: i32) {
    set_at(index).descriptors.fetch_add(1, Relaxed);
    table::set(fd, Entry::Set(index));
}

/// A descriptor of a set was closed.
pub fn closed(index: u32) {
    let set = set_at(index);
    if set.descriptors.fetch_sub(1, AcqRel) != 1 {
        return;
    }
    let registrations = {
        let mut inner = set.inner.lock();
        inner.candidates.clear();
        inner.by_data.clear();
        inner.links.clear();
        inner.clash = false;
        inner.nested = false;
        core::mem::take(&mut inner.registrations)
    };
    set.managed.store(0, Relaxed);
    set.touched.store(false, Relaxed);
    set.inherited.store(false, Relaxed);
    set.watched.store(false, Relaxed);
    for (fd, registration) in registrations {
        let member = Membership { set: index, fd };
        pool::get(registration.socket).memberships.lock().retain(|m| *m != member);
    }
    FREE.lock().0.push(index);
}

impl Set {
    fn new() -> Set {
        Set {
            fd: AtomicI32::new(-1),
            descriptors: AtomicU32::new(0),
            managed: AtomicU32::new(0),
            touched: AtomicBool::new(false),
            inherited: AtomicBool::new(false),
            watched: AtomicBool::new(false),
            turn: super::KernelTurn::new(),
            sleepers: AtomicU32::new(0),
            inner: Lock::new(Inner {
                registrations: BTreeMap::new(),
                by_data: BTreeMap::new(),
                candidates: VecDeque::new(),
                links: Vec::new(),
                clash: false,
                nested: false,
            }),
            policy: Policy::new(),
        }
    }

    fn has_candidates(&self) -> bool {
        !self.inner.lock().candidates.is_empty()
    }

    /// A thread that does not sleep may have taken the bell's event from one that does, and may
    /// return to the program before it looks again.
    fn answer_bells(&self) {
        let inner = self.inner.lock();
        for link in &inner.links {
            link.own_ready().clear_rung();
        }
        if !inner.candidates.is_empty() || inner.links.iter().any(|link| link.own_ready().any()) {
            self.kick(&inner);
        }
    }

    /// Wakes threads that sleep in the kernel's set.
    fn kick(&self, inner: &Inner) {
        if self.sleepers.load(SeqCst) > 0 {
            if let Some(link) = inner.links.first() {
                link.wake_own();
            }
        }
    }
}

impl Inner {
    /// Notes a registration whose reports by the kernel are watched.
    fn remember(&mut self, fd: i32) {
        if let Some(registration) = self.registrations.get(&fd) {
            if registration.interest.events & (bits::ET | bits::ONESHOT) != 0 {
                self.by_data.insert(registration.interest.data, fd);
            }
        }
    }

    /// The kernel reported this to the program.
    fn reported(&mut self, data: u64, events: u32) {
        let Some(fd) = self.by_data.get(&data) else { return };
        if let Some(registration) = self.registrations.get_mut(fd) {
            if !registration.managed && registration.interest.data == data {
                registration.fresh = false;
                if events & bits::OUT != 0 {
                    registration.told.fulls = pool::get(registration.socket).fulls.load(Relaxed);
                }
                registration.interest.disabled = registration.interest.events & bits::ONESHOT != 0;
            }
        }
    }

    fn queue(&mut self, fd: i32) {
        if let Some(registration) = self.registrations.get_mut(&fd) {
            if registration.managed && !registration.queued {
                registration.queued = true;
                self.candidates.push_back(fd);
            }
        }
    }

    fn join_link(&mut self, set_fd: i32, link: &'static Link) {
        if !self.links.iter().any(|known| core::ptr::eq(*known, link)) {
            let events = bits::IN | bits::ET;
            link.with_bells(|bells| {
                let add = libc::EPOLL_CTL_ADD;
                let _ = handles::epoll_ctl(set_fd, add, bells.own, events, tag(BELL));
            });
            self.links.push(link);
        }
    }
}

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
    let set = set_at(set_index);
    if let Entry::Set(inner_set) = table::get(fd) {
        leave_nested(inner_set);
        return Outcome::PassThrough;
    }
    // SAFETY: the program passes a valid event with ADD and MOD; a bad pointer is the kernel's to
    // report.
    let asked = unsafe {
        if operation == libc::EPOLL_CTL_DEL || crate::receive::is_no_address(event.cast()) {
            None
        } else {
            Some(event.read_unaligned())
        }
    };
    if let Some(asked) = asked {
        if (asked.u64 >> 32) as u32 == process::secret() {
            set.inner.lock().clash = true;
            leave_nested(set_index);
        }
    }
    let Entry::Socket(index) = table::get(fd) else { return Outcome::PassThrough };
    match (operation, asked) {
        (libc::EPOLL_CTL_ADD, Some(asked)) => add(set_index, index, fd, asked, event),
        (libc::EPOLL_CTL_MOD, Some(asked)) => modify(set_index, fd, asked),
        (libc::EPOLL_CTL_DEL, _) => delete(set_index, index, fd, event),
        _ => Outcome::PassThrough,
    }
}

/// ADD of a stream whose deleted registration is still ours: no system call. `None`: there is none.
fn add_again(set: &Set, index: u32, fd: i32, asked: &epoll_event) -> Option<Outcome> {
    let mut inner = set.inner.lock();
    let registration = inner.registrations.get_mut(&fd)?;
    let same = registration.socket == index
        && registration.generation == pool::get(index).generation.load(Relaxed);
    if !registration.managed || !same {
        return None;
    }
    if !registration.deleted {
        return Some(Outcome::Failed(libc::EEXIST));
    }
    if asked.events & bits::EXCLUSIVE != 0 {
        return None;
    }
    registration.deleted = false;
    registration.ask(asked);
    inner.queue(fd);
    set.kick(&inner);
    Some(Outcome::Handled(0))
}

fn add(
    set_index: u32,
    index: u32,
    fd: i32,
    asked: epoll_event,
    event: *mut epoll_event,
) -> Outcome {
    let set = set_at(set_index);
    if let Some(outcome) = add_again(set, index, fd, &asked) {
        return outcome;
    }
    // SAFETY: the program's own arguments.
    let result = unsafe { real::epoll_ctl(set.fd.load(Relaxed), libc::EPOLL_CTL_ADD, fd, event) };
    if result != 0 {
        return Outcome::Genuine(result as isize);
    }
    if asked.events & (bits::ET | bits::ONESHOT) != 0 {
        set.watched.store(true, Relaxed);
    }
    let socket = pool::get(index);
    let exclusive = asked.events & bits::EXCLUSIVE != 0;
    let unserved = {
        let mut inner = set.inner.lock();
        inner.registrations.insert(
            fd,
            Registration::new(
                index,
                socket.generation.load(Relaxed),
                Interest::new(asked.events, asked.u64),
            ),
        );
        inner.remember(fd);
        exclusive || inner.clash || inner.nested
    };
    socket.memberships.lock().push(Membership { set: set_index, fd });
    if unserved {
        let reason = if exclusive { Reason::EpollExclusive } else { Reason::NestedEpoll };
        attach::leave(index, socket, reason);
    } else if socket.mode() == Mode::Attached && manage(set, socket, fd) == Managed::Never {
        attach::leave(index, socket, Reason::NestedEpoll);
    }
    Outcome::Genuine(0)
}

fn modify(set_index: u32, fd: i32, asked: epoll_event) -> Outcome {
    let set = set_at(set_index);
    if asked.events & (bits::ET | bits::ONESHOT) != 0 {
        set.watched.store(true, Relaxed);
    }
    let mut inner = set.inner.lock();
    let Some(registration) = inner.registrations.get_mut(&fd) else { return Outcome::PassThrough };
    if registration.deleted {
        return Outcome::Failed(libc::ENOENT);
    }
    if asked.events & bits::EXCLUSIVE != 0 || registration.interest.events & bits::EXCLUSIVE != 0 {
        return Outcome::Failed(libc::EINVAL);
    }
    registration.ask(&asked);
    if !registration.managed {
        let done = handles::epoll_ctl(
            set.fd.load(Relaxed),
            libc::EPOLL_CTL_MOD,
            fd,
            asked.events,
            asked.u64,
        );
        inner.remember(fd);
        return match done {
            Ok(()) => Outcome::Handled(0),
            Err(error) => Outcome::Failed(error.0),
        };
    }
    inner.queue(fd);
    set.kick(&inner);
    Outcome::Handled(0)
}

fn delete(set_index: u32, index: u32, fd: i32, event: *mut epoll_event) -> Outcome {
    let set = set_at(set_index);
    {
        let mut inner = set.inner.lock();
        if let Some(registration) = inner.registrations.get_mut(&fd) {
            if registration.managed && registration.socket == index {
                if core::mem::replace(&mut registration.deleted, true) {
                    return Outcome::Failed(libc::ENOENT);
                }
                registration.interest.disabled = true;
                return Outcome::Handled(0);
            }
        }
    }
    // SAFETY: the program's own arguments.
    let result = unsafe { real::epoll_ctl(set.fd.load(Relaxed), libc::EPOLL_CTL_DEL, fd, event) };
    if result == 0 {
        remove(set_index, fd);
        let member = Membership { set: set_index, fd };
        pool::get(index).memberships.lock().retain(|m| *m != member);
    }
    Outcome::Genuine(result as isize)
}

fn remove(set_index: u32, fd: i32) {
    let set = set_at(set_index);
    let mut inner = set.inner.lock();
    if let Some(registration) = inner.registrations.remove(&fd) {
        inner.candidates.retain(|candidate| *candidate != fd);
        if registration.managed {
            set.managed.fetch_sub(1, SeqCst);
        }
    }
}

/// Whether a stream's registrations are ours.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Managed {
    All,
    /// An edge may have been reported by the kernel for bytes that are still unread; once they are
    /// read, it can be told from the next.
    Later,
    /// The kernel's registration cannot be reached (its descriptor was closed, a copy lives).
    Never,
}

/// Takes a registration over from the kernel, now that the stream is attached.
fn manage(set: &Set, socket: &'static Socket, fd: i32) -> Managed {
    let mut inner = set.inner.lock();
    let set_fd = set.fd.load(Relaxed);
    let Some(link) = socket.link() else { return Managed::All };
    let nested = inner.nested;
    let Some(registration) = inner.registrations.get_mut(&fd) else { return Managed::All };
    if registration.managed {
        return Managed::All;
    }
    if nested || registration.interest.events & bits::EXCLUSIVE != 0 {
        return Managed::Never;
    }
    set.touched.store(true, SeqCst);
    let socket_fd = socket.fd.load(Relaxed);
    if registration.interest.is_edge() && !registration.fresh {
        // The order matters: what has arrived by the first look has been read by the second, so
        // the program has been told of it; what comes later will be an edge.
        let arrived = tcp::bytes_received(socket_fd).unwrap_or(0);
        let ends = handles::poll_now(socket_fd, libc::POLLRDHUP | libc::POLLPRI);
        if tcp::readable(socket_fd).unwrap_or(0) > 0 || ends != 0 {
            return Managed::Later;
        }
        registration.told = State { mask: 0, arrived, fulls: registration.told.fulls };
    }
    let changed = handles::epoll_ctl(set_fd, libc::EPOLL_CTL_MOD, fd, TAGGED, tag(fd as u32));
    if changed.is_err() {
        return Managed::Never;
    }
    registration.managed = true;
    let data = registration.interest.data;
    set.managed.fetch_add(1, SeqCst);
    inner.by_data.remove(&data);
    inner.join_link(set_fd, link);
    inner.queue(fd);
    set.kick(&inner);
    Managed::All
}

/// The stream was attached: its registrations are to be ours from now on.
pub fn manage_all(_index: u32, socket: &'static Socket) -> Managed {
    let members = socket.memberships.lock().clone();
    let mut worst = Managed::All;
    for member in members {
        match manage(set_at(member.set), socket, member.fd) {
            Managed::All => {}
            Managed::Never => return Managed::Never,
            Managed::Later => worst = Managed::Later,
        }
    }
    worst
}

/// The stream left its slot: the kernel gets its registrations back.
pub fn release_all(_index: u32, socket: &'static Socket) {
    let members = socket.memberships.lock().clone();
    for member in members {
        let set = set_at(member.set);
        let mut inner = set.inner.lock();
        let Some(registration) = inner.registrations.get_mut(&member.fd) else { continue };
        if !core::mem::take(&mut registration.managed) {
            continue;
        }
        registration.queued = false;
        registration.fresh = false;
        let interest = registration.interest;
        if registration.deleted {
            inner.registrations.remove(&member.fd);
            inner.candidates.retain(|candidate| *candidate != member.fd);
            set.managed.fetch_sub(1, SeqCst);
            let set_fd = set.fd.load(Relaxed);
            let _ = handles::epoll_ctl(set_fd, libc::EPOLL_CTL_DEL, member.fd, 0, 0);
            drop(inner);
            socket.memberships.lock().retain(|known| *known != member);
            continue;
        }
        let events = if interest.disabled { 0 } else { interest.events };
        inner.candidates.retain(|candidate| *candidate != member.fd);
        set.managed.fetch_sub(1, SeqCst);
        let set_fd = set.fd.load(Relaxed);
        let _ = handles::epoll_ctl(set_fd, libc::EPOLL_CTL_MOD, member.fd, events, interest.data);
    }
}

/// The socket's last descriptor closes: the kernel drops its registrations, and so do we.
pub fn forget_all(_index: u32, socket: &'static Socket) {
    let members = core::mem::take(&mut *socket.memberships.lock());
    for member in members {
        remove(member.set, member.fd);
    }
}

/// Something happened to the stream: its registrations become candidates.
pub fn stir(_index: u32, socket: &'static Socket) {
    // Lock order: a stream's memberships, then a set.
    for member in socket.memberships.lock().iter() {
        let set = set_at(member.set);
        let mut inner = set.inner.lock();
        inner.queue(member.fd);
        set.kick(&inner);
    }
}

/// The set's readiness is watched through its own descriptor, which only the kernel can signal:
/// its streams go back to TCP.
pub fn leave_nested(set_index: u32) {
    let set = set_at(set_index);
    let sockets: Vec<u32> = {
        let mut inner = set.inner.lock();
        inner.nested = true;
        inner.registrations.values().map(|r| r.socket).collect()
    };
    for index in sockets {
        let socket = pool::get(index);
        attach::leave(index, socket, Reason::NestedEpoll);
    }
    let mut inner = set.inner.lock();
    if set.managed.load(SeqCst) == 0 {
        let set_fd = set.fd.load(Relaxed);
        for link in inner.links.drain(..) {
            link.with_bells(|bells| {
                let _ = handles::epoll_ctl(set_fd, libc::EPOLL_CTL_DEL, bells.own, 0, 0);
            });
        }
    }
}

/// A link whose peer is gone and which no stream uses leaves every set.
pub fn forget_link(link: &'static Link) {
    let used = FREE.lock().1;
    for index in 0..used {
        set_at(index).inner.lock().links.retain(|known| !core::ptr::eq(*known, link));
    }
}

/// How long `epoll_wait` may take.
#[derive(Clone, Copy)]
pub struct Limits {
    /// Nanoseconds; `None` is for ever.
    pub timeout: Option<u64>,
    pub mask: *const libc::sigset_t,
}

/// `epoll_wait` and its relatives.
///
/// # Safety
/// `events` is writable for `count` events, as the program says.
pub unsafe fn wait(set_fd: i32, events: *mut epoll_event, count: i32, limits: Limits) -> Outcome {
    let Entry::Set(index) = table::get(set_fd) else { return Outcome::PassThrough };
    let set = set_at(index);
    if count <= 0 || count as usize > i32::MAX as usize / 12 {
        return Outcome::PassThrough;
    }
    if set.inherited.load(Relaxed) && set.inherited.swap(false, AcqRel) {
        take_over(set);
    }
    let began = clock::now_ns();
    if set.managed.load(SeqCst) == 0 {
        // Nothing of ours in it now; a stream attached meanwhile makes the kernel's wait return
        // with our tag, which is taken out below.
        set.sleepers.fetch_add(1, SeqCst);
        let got = if set.managed.load(SeqCst) == 0 {
            // SAFETY: the program's own arguments.
            unsafe { native(set_fd, events, count, limits.timeout, limits.mask) }
        } else {
            0
        };
        set.sleepers.fetch_sub(1, SeqCst);
        if got < 0 {
            return Outcome::Genuine(got as isize);
        }
        if !set.touched.load(SeqCst) && !set.watched.load(Relaxed) {
            return Outcome::Handled(got as isize);
        }
        // SAFETY: the kernel wrote `got` events.
        let kept = unsafe { sift(set, events, 0, got as usize) };
        let over = limits.timeout.is_some_and(|limit| clock::now_ns() - began >= limit);
        if kept > 0 || (got == 0 && over) {
            return Outcome::Handled(kept as isize);
        }
    }
    // SAFETY: as above.
    unsafe { wait_managed(set, set_fd, events, count as usize, limits, began) }
}

unsafe fn native(
    set_fd: i32,
    events: *mut epoll_event,
    count: i32,
    timeout: Option<u64>,
    mask: *const libc::sigset_t,
) -> i32 {
    // Whole milliseconds go the way the program's own call would; finer ones need pwait2.
    match timeout {
        // SAFETY: the caller's arguments.
        None => unsafe { real::epoll_pwait(set_fd, events, count, -1, mask) },
        Some(ns) if ns % 1_000_000 == 0 && ns / 1_000_000 <= i32::MAX as u64 => {
            // SAFETY: the caller's arguments.
            unsafe { real::epoll_pwait(set_fd, events, count, (ns / 1_000_000) as i32, mask) }
        }
        Some(ns) => {
            let span = libc::timespec {
                tv_sec: (ns / 1_000_000_000) as i64,
                tv_nsec: (ns % 1_000_000_000) as i64,
            };
            // SAFETY: the caller's arguments and a valid timespec.
            unsafe { real::epoll_pwait2(set_fd, events, count, &span, mask) }
        }
    }
}

/// Takes our tags out of `events[from..from + got]` and queues what they name; returns how many
/// of the program's own events are left there.
unsafe fn sift(set: &Set, events: *mut epoll_event, from: usize, got: usize) -> usize {
    let secret = process::secret();
    let mut kept = 0;
    for at in from..from + got {
        // SAFETY: within the events that the kernel wrote.
        let event = unsafe { events.add(at).read_unaligned() };
        let data = event.u64;
        if (data >> 32) as u32 != secret {
            // SAFETY: `from + kept <= at`.
            unsafe { events.add(from + kept).write_unaligned(event) };
            kept += 1;
            if set.watched.load(Relaxed) {
                set.inner.lock().reported(data, event.events);
            }
            continue;
        }
        let low = data as u32;
        if low != BELL {
            let mut inner = set.inner.lock();
            let socket = inner.registrations.get(&(low as i32)).map(|r| r.socket);
            if let Some(index) = socket {
                pool::get(index).companion_stirred.store(true, Release);
            }
            inner.queue(low as i32);
        }
    }
    kept
}

/// Moves the marks of the set's links to the candidates of whatever sets hold the streams.
fn drain_links(set: &Set) {
    let links: Vec<&'static Link> = {
        let inner = set.inner.lock();
        inner.links.iter().copied().filter(|link| link.own_ready().any()).collect()
    };
    for link in links {
        link.own_ready().drain(|slot| {
            if let Some(index) = link.stream(slot) {
                stir(index, pool::get(index));
            }
        });
    }
}

/// Reports candidates into `events[from..count]`; returns how many.
unsafe fn collect(set: &Set, events: *mut epoll_event, from: usize, count: usize) -> usize {
    let mut filled = from;
    let mut inner = set.inner.lock();
    let rounds = inner.candidates.len();
    for _ in 0..rounds {
        if filled == count {
            break;
        }
        let Some(fd) = inner.candidates.pop_front() else { break };
        let Some(registration) = inner.registrations.get_mut(&fd) else { continue };
        registration.queued = false;
        let (index, generation) = (registration.socket, registration.generation);
        let (interest, version) = (registration.interest, registration.version);
        let socket = pool::get(index);
        if interest.disabled || socket.generation.load(Relaxed) != generation {
            continue;
        }
        // The stream's locks come before the set's.
        drop(inner);
        let edge = interest.is_edge();
        // Before the look, so that what comes after it is told: to a stream that is ready it costs
        // the peer one more mark, to one that is not it saves a second look.
        state::arm(socket);
        let now = state::look(index, socket, edge);
        inner = set.inner.lock();
        let Some(now) = now else { continue };
        let Some(registration) = inner.registrations.get_mut(&fd) else { continue };
        if registration.generation != generation || !registration.managed {
            continue;
        }
        if registration.version != version {
            // Another thread was told meanwhile, and may have read what was seen here.
            inner.queue(fd);
            continue;
        }
        if edge && !registration.has_edge(&now) {
            continue;
        }
        let report = registration.interest.report(now.mask);
        if report.events != 0 {
            registration.tell(&now);
        }
        let data = registration.interest.data;
        if report.events != 0 {
            // SAFETY: `filled < count`.
            unsafe {
                events
                    .add(filled)
                    .write_unaligned(epoll_event { events: report.events, u64: data });
            }
            filled += 1;
        }
        if report.stays {
            inner.queue(fd);
        }
    }
    filled - from
}

unsafe fn wait_managed(
    set: &Set,
    set_fd: i32,
    events: *mut epoll_event,
    count: usize,
    limits: Limits,
    began: u64,
) -> Outcome {
    let mut spun = false;
    loop {
        drain_links(set);
        // SAFETY: the caller's buffer.
        let mut filled = unsafe { collect(set, events, 0, count) };
        let left = limits.timeout.map(|limit| limit.saturating_sub(clock::now_ns() - began));
        // Before a sleep the kernel is asked by the sleep itself.
        let due = if filled == 0 {
            left == Some(0) || set.turn.is_due()
        } else {
            filled < count && set.turn.is_due()
        };
        if due {
            // SAFETY: the rest of the caller's buffer.
            let more = unsafe { kernel_now(set, set_fd, events, filled, count, limits.mask) };
            if more < 0 && filled == 0 {
                return Outcome::Genuine(-1);
            }
            filled += more.max(0) as usize;
            set.turn.answered(more > 0);
            if filled == 0 && set.has_candidates() {
                continue;
            }
        }
        if filled > 0 || left == Some(0) {
            if filled == count && set.sleepers.load(Relaxed) > 0 && set.has_candidates() {
                // There is work for another thread that sleeps on the set.
                set.kick(&set.inner.lock());
            }
            return Outcome::Handled(filled as isize);
        }
        let spin = set.policy.spin_ns().min(left.unwrap_or(u64::MAX));
        if spin > 0 && !spun {
            spun = true;
            let start = clock::now_ns();
            let links = set.inner.lock().links.clone();
            let stirred =
                || links.iter().any(|link| link.own_ready().any()) || set.has_candidates_hint();
            match blocking::spin_until(start, spin, stirred) {
                Spun::Changed => {
                    set.policy.observe(0, false);
                    continue;
                }
                Spun::LostCore => set.policy.overloaded(),
                Spun::InVain => {}
            }
        }
        // SAFETY: the caller's buffer.
        let got = unsafe { sleep(set, set_fd, events, count, limits, began) };
        if got < 0 {
            return Outcome::Genuine(-1);
        }
        if got > 0 {
            set.turn.answered(true);
            return Outcome::Handled(got);
        }
    }
}

impl Set {
    /// As [`has_candidates`](Set::has_candidates), without waiting for the lock.
    fn has_candidates_hint(&self) -> bool {
        self.inner.try_lock().is_some_and(|inner| !inner.candidates.is_empty())
    }
}

/// The kernel's set without waiting, behind `filled` events. Negative is an error, in `errno`.
unsafe fn kernel_now(
    set: &Set,
    set_fd: i32,
    events: *mut epoll_event,
    filled: usize,
    count: usize,
    mask: *const libc::sigset_t,
) -> isize {
    let room = count - filled;
    let mut asked = false;
    let result = loop {
        // SAFETY: within the caller's buffer.
        let rest = unsafe { events.add(filled) };
        // SAFETY: `room` events are writable there.
        let got = unsafe { real::epoll_pwait(set_fd, rest, room as i32, 0, mask) };
        if got <= 0 {
            break got as isize;
        }
        asked = true;
        // SAFETY: the kernel wrote `got` events.
        let kept = unsafe { sift(set, events, filled, got as usize) };
        // Our own tags may have taken the place of more events of the program's.
        if kept > 0 || (got as usize) < room {
            break kept as isize;
        }
    };
    if asked {
        let errno = shunt_os::errno();
        set.answer_bells();
        set_errno(errno);
    }
    result
}

/// Sleeps in the kernel's set; returns the program's own events, 0 for "look again", negative for
/// an error.
unsafe fn sleep(
    set: &Set,
    set_fd: i32,
    events: *mut epoll_event,
    count: usize,
    limits: Limits,
    began: u64,
) -> isize {
    set.sleepers.fetch_add(1, SeqCst);
    let links = set.inner.lock().links.clone();
    links.iter().for_each(|link| link.own_ready().announce_sleep());
    let stirred = links.iter().any(|link| link.own_ready().any()) || set.has_candidates();
    let mut result = 0;
    if !stirred {
        let left = limits.timeout.map(|limit| limit.saturating_sub(clock::now_ns() - began));
        // SAFETY: the caller's buffer.
        let got = unsafe { native(set_fd, events, count as i32, left, limits.mask) };
        let errno = shunt_os::errno();
        set.policy.observe(clock::now_ns() - began, true);
        result = got as isize;
        if got > 0 {
            // SAFETY: the kernel wrote `got` events.
            result = unsafe { sift(set, events, 0, got as usize) as isize };
        }
        set_errno(errno);
    }
    links.iter().for_each(|link| link.own_ready().retract_sleep());
    set.sleepers.fetch_sub(1, SeqCst);
    result
}

/// In a forked child that uses a set of its parent's: the child's view of a stream it took over
/// goes by the kernel. The kernel's set is shared, so its registration is put back for both.
pub fn release_inherited(index: u32, socket: &'static Socket) {
    release_all(index, socket);
}

/// A forked child waits on a set of its parent's: it wants the streams in it.
fn take_over(set: &Set) {
    let sockets: Vec<u32> = {
        let inner = set.inner.lock();
        inner.registrations.values().map(|registration| registration.socket).collect()
    };
    sockets.into_iter().for_each(crate::inherit::touch);
}

/// In a forked child: nobody holds a lock.
///
/// # Safety
/// The process has one thread.
pub unsafe fn after_fork() {
    // SAFETY: one thread, by the caller's word.
    unsafe { FREE.force_open() };
    let used = FREE.lock().1;
    for index in 0..used {
        let set = set_at(index);
        // SAFETY: one thread.
        unsafe { set.inner.force_open() };
        set.inner.lock().links.clear();
        set.sleepers.store(0, Relaxed);
        set.inherited.store(true, Relaxed);
    }
}
