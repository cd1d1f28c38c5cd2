//! epoll over mixed sets.
//!
//! The kernel's set stays the program's own and holds everything the program put in. While a
//! stream is attached, its kernel registration is edge-triggered for everything and carries our
//! tag instead of the program's data: it only says "look". What is reported, and whether it stays
//! reported, is decided here ([`Interest`]), from the ring and the kernel together. The bells of
//! the links are members too, so that a sleeper in the kernel's own wait is reached.

use std::collections::BTreeMap;

use core::sync::atomic::{fence, AtomicBool, AtomicI32, AtomicU32, Ordering::*};

use shunt_link::Link;
use shunt_os::handles;
use shunt_os::lock::Lock;
use shunt_readiness::interest::{bits, Interest};
use shunt_readiness::policy::Policy;
use shunt_stats::Reason;

use self::queue::{Cause, First, Queue, Standing};
use self::registration::{Era, Registrations};
use crate::inherit::Kin;
use crate::pool::{self, Membership};
use crate::process;
use crate::table::{self, Entry};
use crate::wait::joined::{self, Joined, BELL_EVENTS};
use crate::wait::state;

mod control;
mod hush;
mod members;
mod queue;
mod registration;
mod waiting;

pub use control::control;
pub use members::{
    announce_all, are_closed_by_exec, choose_bell, count_anew, disown_all, drop_from_kernel,
    forget_all, forget_link, forget_number, leave_set, leave_set_soon, leave_to_others,
    leave_to_others_at_end, manage_all, provide_bells, release_all, retract_beyond, share,
    share_all, stir, stir_anew, stir_on_tcp, take_over, Managed,
};
pub use waiting::{wait, Limits};

struct Inner {
    registrations: Registrations,
    /// Edge-triggered and one-shot registrations that are the kernel's still, by their data: what
    /// it reports of them must be known when they become ours.
    by_data: BTreeMap<u64, i32>,
    candidates: Queue,
    links: Vec<Joined>,
    /// So many sleepers are announced to each of them.
    announced: u32,
    era: Era,
    /// The kernel's for good, and why: the set is polled as a descriptor itself, somebody whom we do
    /// not see may wait on it, or some registration's own data looks like our tag.
    kernels: Option<Reason>,
}

/// An epoll set of the program's.
pub struct Set {
    /// One of its descriptors.
    fd: AtomicI32,
    descriptors: AtomicU32,
    managed: AtomicU32,
    /// Something of ours has been put into the kernel's set, by this process or its parent.
    touched: AtomicBool,
    /// By this process.
    tagged: AtomicBool,
    /// The set was open when this process was forked, and has not been used here.
    inherited: AtomicBool,
    /// Another process may have the set, by a fork or a message.
    shared: AtomicBool,
    /// Some registration is edge-triggered or one-shot.
    watched: AtomicBool,
    /// Somebody has waited here by a call of ours. Who never does asks the kernel in another way, which knows of no
    /// ring: Bun calls epoll_ctl, and has its own instruction for the wait.
    waited: AtomicBool,
    /// [`shunt_link::meetings`] when bells were fetched last.
    meetings: AtomicU32,
    turn: super::KernelTurn,
    /// The kernel's own events left no room for the rings' last time.
    crowded: AtomicBool,
    /// The rings' events left no room to ask the kernel last time.
    filled: AtomicBool,
    sleepers: AtomicU32,
    inner: Lock<Inner>,
    policy: Policy,
    /// Who else has it by a fork.
    pub kin: Kin,
}

const SETS: usize = 4096;
static POOL: [core::sync::atomic::AtomicPtr<Set>; SETS] =
    [const { core::sync::atomic::AtomicPtr::new(core::ptr::null_mut()) }; SETS];
static FREE: Lock<(Vec<u32>, u32)> = Lock::new((Vec::new(), 0));

/// In the lower half of our tag: a bell, not a descriptor.
const BELL: u32 = u32::MAX;

/// What our entry in the kernel's set asks for. Of room, which there nearly always is, only if the program
/// does: the entry's place among what is ready is to be that of its bytes.
fn tagged(interest: &Interest) -> u32 {
    let room = if interest.wants_out() { bits::OUT } else { 0 };
    bits::IN | bits::PRI | bits::RDHUP | bits::ET | room
}

/// Puts a new entry in the place of one in the kernel's set. The kernel queues what is ready in the order in
/// which it became that, and a MOD keeps the place that the old one has there, perhaps before events that
/// came earlier.
fn renew_entry(set_fd: i32, fd: i32, entry: Option<(u32, u64)>) {
    let gone = handles::epoll_ctl(set_fd, libc::EPOLL_CTL_DEL, fd, 0, 0).is_ok();
    if let Some((events, data)) = entry.filter(|_| gone) {
        let _ = handles::epoll_ctl(set_fd, libc::EPOLL_CTL_ADD, fd, events, data);
    }
}

/// Wakes a thread that sleeps in the kernel's set by the bell of one of its links, and none that sleeps in another set
/// with that bell, where [`Link::wake_own`] would wake one of each. False if the bell is closed.
fn wake_in(link: &Link, set_fd: i32) -> bool {
    let mut is_open = false;
    link.with_bells(|bells| {
        let own = bells.own();
        is_open = own >= 0;
        // A bell that has rung once is always readable, and to change its entry is an event then (Linux, ep_modify).
        // Where a peer has emptied it, it rings for all.
        let change = libc::EPOLL_CTL_MOD;
        let changed = handles::epoll_ctl(set_fd, change, own, BELL_EVENTS, tag(BELL));
        if changed.is_err() || handles::poll_now(own, libc::POLLIN) == 0 {
            handles::ring(own);
        }
    });
    is_open
}

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
            // In this order: a child that another thread forks meanwhile finds all that are counted.
            let place = &POOL[free.1 as usize];
            if place.load(Relaxed).is_null() {
                place.store(Box::into_raw(Box::new(Set::new())), Release);
            }
            fence(Release);
            free.1 += 1;
            free.1 - 1
        }
        None => return,
    };
    let set = set_at(index);
    set.fd.store(fd, Relaxed);
    set.descriptors.store(1, Relaxed);
    drop(free);
    named(index, fd);
}

/// A number has come to name a set. A poll that sleeps in the kernel by it will look at the set there.
fn named(index: u32, fd: i32) {
    table::set(fd, Entry::Set(index));
    if super::poll::numbers::is_polled(fd) {
        leave_set(index, Reason::NestedEpoll);
    }
}

/// The set that a descriptor names which was come by unseen.
pub fn find(fd: i32) -> Option<u32> {
    let used = FREE.lock().1;
    (0..used).find(|index| {
        let set = set_at(*index);
        set.descriptors.load(Acquire) > 0 && handles::is_same_file(fd, set.fd.load(Relaxed))
    })
}

/// One more descriptor of a set.
pub fn duplicated(index: u32, fd: i32) {
    set_at(index).descriptors.fetch_add(1, Relaxed);
    named(index, fd);
}

/// A descriptor of a set is about to be closed; it names nothing any more.
pub fn closed(index: u32, fd: i32) {
    let set = set_at(index);
    if set.descriptors.load(Acquire) == 1 {
        leave_to_others(index);
    }
    if set.descriptors.fetch_sub(1, AcqRel) != 1 {
        return rename(index, fd);
    }
    let registrations = {
        let mut inner = set.inner.lock();
        inner.candidates.clear();
        inner.by_data.clear();
        inner.give_up_links();
        inner.kernels = None;
        core::mem::take(&mut inner.registrations)
    };
    set.managed.store(0, Relaxed);
    set.touched.store(false, Relaxed);
    set.tagged.store(false, Relaxed);
    set.inherited.store(false, Relaxed);
    set.shared.store(false, Relaxed);
    set.watched.store(false, Relaxed);
    set.waited.store(false, Relaxed);
    for (fd, registration) in registrations.all() {
        let member = Membership { set: index, fd };
        pool::get(registration.socket).memberships.lock().retain(|m| *m != member);
    }
    set.kin.let_go();
    FREE.lock().0.push(index);
}

/// A descriptor of a set names something else now.
pub fn lost(index: u32, fd: i32) {
    rename(index, fd);
    closed(index, fd);
}

/// Where the number closes by which we reach the kernel's set, a copy takes its place.
fn rename(index: u32, fd: i32) {
    let set = set_at(index);
    // Other threads change the kernel's set under the lock.
    let _held = set.inner.lock();
    if set.fd.load(Relaxed) == fd {
        let mut other = -1;
        table::each(0, u32::MAX, |copy, entry| {
            if entry == Entry::Set(index) {
                other = copy;
            }
        });
        set.fd.store(other, Relaxed);
    }
}

impl Set {
    fn new() -> Set {
        Set {
            fd: AtomicI32::new(-1),
            descriptors: AtomicU32::new(0),
            managed: AtomicU32::new(0),
            touched: AtomicBool::new(false),
            tagged: AtomicBool::new(false),
            inherited: AtomicBool::new(false),
            shared: AtomicBool::new(false),
            watched: AtomicBool::new(false),
            waited: AtomicBool::new(false),
            meetings: AtomicU32::new(0),
            turn: super::KernelTurn::new(),
            crowded: AtomicBool::new(false),
            filled: AtomicBool::new(false),
            sleepers: AtomicU32::new(0),
            inner: Lock::new(Inner {
                registrations: Registrations::default(),
                by_data: BTreeMap::new(),
                candidates: Queue::default(),
                links: Vec::new(),
                announced: 0,
                era: Era::default(),
                kernels: None,
            }),
            policy: Policy::new(),
            kin: Kin::default(),
        }
    }

    /// Whether this process has, or had, something of ours in the kernel's set.
    pub fn is_tagged(&self) -> bool {
        self.tagged.load(SeqCst)
    }

    /// Before something of ours is put into the kernel's set. False: it must not be.
    fn may_tag(&self) -> bool {
        self.touched.store(true, SeqCst);
        self.tagged.store(true, SeqCst);
        self.kin.may_tag()
    }

    /// If the others who used the set are gone, what is added from now on is ours to tell of again.
    pub fn renew(&self) {
        if !self.kin.is_renewable() {
            return;
        }
        let mut inner = self.inner.lock();
        if self.kin.renew() {
            for (_, registration) in inner.registrations.all_mut() {
                registration.foreign = true;
            }
        }
    }

    fn doings(&self) -> u64 {
        super::doings(self.inner.lock().links.iter().map(|joined| joined.link))
    }

    /// Whether there are candidates, without waiting for the lock.
    fn has_candidates_hint(&self) -> bool {
        self.inner.try_lock().is_some_and(|inner| !inner.candidates.is_empty())
    }

    /// One more thread sleeps on the set, or is about to; one that waits in the kernel alone knows no link.
    fn begin_sleep(&self) {
        self.sleepers.fetch_add(1, SeqCst);
    }

    /// Before a sleep, and after it, and when a link has come: as many sleepers as there are now are
    /// announced to each link, also those who went to sleep before they could know of it.
    fn announce(&self, inner: &mut Inner) {
        let sleepers = self.sleepers.load(SeqCst);
        inner.links.iter().for_each(|joined| joined.announce(inner.announced, sleepers));
        inner.announced = sleepers;
    }

    /// A thread sleeps no more.
    fn end_sleep(&self) {
        self.sleepers.fetch_sub(1, SeqCst);
        // Who tags the set does that before it looks for sleepers.
        if self.touched.load(SeqCst) {
            self.announce(&mut self.inner.lock());
        }
    }

    /// A stream of the link has come into the set.
    fn join_link(&self, inner: &mut Inner, set_fd: i32, link: &'static Link) {
        inner.join_link(set_fd, link);
        self.announce(inner);
    }

    /// Bells for the links that had no other when the set joined them. No lock is held.
    #[cold]
    fn fetch_bells(&self) {
        self.meetings.store(shunt_link::meetings(), Relaxed);
        let lacking: Vec<_> = {
            let inner = self.inner.lock();
            inner.links.iter().filter(|it| it.lacks_bell()).map(|it| it.link).collect()
        };
        if lacking.is_empty() {
            return;
        }
        lacking.into_iter().for_each(Link::provide_bell);
        let streams = {
            let mut inner = self.inner.lock();
            let (set_fd, announced) = (self.fd.load(Relaxed), inner.announced);
            let mut some = false;
            for joined in inner.links.iter_mut().filter(|it| it.lacks_bell()) {
                if joined.renew(set_fd, tag(BELL)) {
                    some = true;
                    let map = joined.link.own_ready();
                    (0..announced).for_each(|_| map.announce_sleep(joined.bell));
                }
            }
            if some {
                inner.registrations.streams()
            } else {
                Vec::new()
            }
        };
        for socket in streams.into_iter().map(pool::get) {
            choose_bell(socket, &socket.memberships.lock());
        }
    }

    /// A thread that does not sleep may have taken the bell's event from one that does, and may
    /// return to the program before it looks again.
    fn answer_bells(&self) {
        let inner = self.inner.lock();
        for joined in &inner.links {
            joined.bells().for_each(|bell| joined.link.own_ready().clear_rung(bell));
        }
        if !inner.candidates.is_empty() || inner.has_marks() {
            self.kick(&inner);
        }
    }

    /// A thread that returns to the program leaves the rest of the queue to another that sleeps, also what
    /// it has been told of and what stays ready: as in the kernel, each is told of a level.
    fn hand_on(&self) {
        if self.sleepers.load(Relaxed) > 0 {
            let inner = self.inner.lock();
            if !inner.candidates.is_empty() {
                self.kick(&inner);
            }
        }
    }

    /// Wakes a thread that sleeps in the kernel's set.
    fn kick(&self, inner: &Inner) {
        if self.sleepers.load(SeqCst) > 0 {
            let set_fd = self.fd.load(Relaxed);
            // One whose bell is open is enough.
            let _ = inner.links.iter().any(|joined| wake_in(joined.link, set_fd));
        }
    }
}

impl Inner {
    /// Notes an edge-triggered or one-shot registration: the kernel's reports of it are watched.
    fn remember(&mut self, fd: i32) {
        if let Some(registration) = self.registrations.get(fd) {
            self.by_data.insert(registration.interest.data, fd);
        }
    }

    /// The kernel reported this to the program.
    fn reported(&mut self, data: u64, events: u32) {
        let Some(&fd) = self.by_data.get(&data) else { return };
        if let Some(registration) = self.registrations.get_mut(fd) {
            if !registration.managed && registration.interest.data == data {
                registration.fresh = false;
                registration.echoes = false;
                if events & bits::OUT != 0 {
                    registration.told.fulls = pool::get(registration.socket).fulls.load(Relaxed);
                }
                registration.interest.disabled = registration.interest.events & bits::ONESHOT != 0;
            }
        }
    }

    /// Whether the stream was registered under this number before, and so lists the set.
    fn knows(&self, fd: i32, index: u32, generation: u32) -> bool {
        self.registrations.get(fd).is_some_and(|known| known.is_of(index, generation))
    }

    fn is_parked(&self, fd: i32, index: u32, generation: u32) -> bool {
        self.registrations
            .get(fd)
            .is_some_and(|known| known.parked && !known.deleted && known.is_of(index, generation))
    }

    /// A registration is ours from now on, and whatever is ready is to be told.
    fn own(&mut self, set_fd: i32, fd: i32) {
        self.era = self.era.next();
        if let Some(registration) = self.registrations.get_mut(fd) {
            registration.managed = true;
            registration.echoes = false;
            registration.tells_room = registration.interest.wants_out();
            registration.ours_since = self.era;
        }
        self.ask(set_fd, fd);
    }

    /// The program asks anew: whatever is ready is told, and what comes has its place from now on.
    fn ask(&mut self, set_fd: i32, fd: i32) {
        if let Some(registration) = self.registrations.get_mut(fd) {
            if registration.interest.wants_out() && !registration.tells_room {
                registration.tells_room = true;
                let events = tagged(&registration.interest);
                let change = libc::EPOLL_CTL_MOD;
                let _ = handles::epoll_ctl(set_fd, change, fd, events, tag(fd as u32));
            }
            state::arm(pool::get(registration.socket));
        }
        self.queue(fd, Cause::Look);
    }

    /// Of the queue, from place `start` on, what can be told before what the kernel tells.
    fn first_from(&self, start: usize) -> First {
        self.candidates.first_from(start, |fd, place| match self.registrations.get(fd) {
            Some(registration) if registration.place != Some(place) => Standing::Gone,
            Some(registration) if registration.apart => Standing::ByKernel,
            Some(_) => Standing::ByRing,
            None => Standing::Gone,
        })
    }

    fn queue(&mut self, fd: i32, cause: Cause) {
        if let Some(registration) = self.registrations.get_mut(fd) {
            let stays = registration.place.is_some_and(|place| !place.yields_to(cause));
            if registration.managed && !stays {
                registration.place = Some(self.candidates.push(fd, cause));
            }
        }
    }

    fn join_link(&mut self, set_fd: i32, link: &'static Link) {
        if joined::find(&self.links, link).is_none() {
            let joined = Joined::new(link, set_fd, tag(BELL));
            joined.announce(0, self.announced);
            self.links.push(joined);
        }
    }

    /// By which bell the set is told of what only it is told of.
    fn bell_of(&self, link: &Link) -> u32 {
        joined::find(&self.links, link).map_or(0, |joined| joined.bell)
    }

    /// Whether one of the bells that the set sleeps by has been rung by the link's peer, and not been answered.
    fn is_rung_by(&self, link: &Link) -> bool {
        joined::find(&self.links, link)
            .is_some_and(|it| it.bells().any(|bell| link.own_ready().is_rung(bell)))
    }

    /// Whether a link has marked a stream, of this set or another.
    fn has_marks(&self) -> bool {
        self.links.iter().any(|joined| joined.link.own_ready().any())
    }

    /// What was the parent's is the kernel's.
    fn disown(&mut self) {
        self.candidates.clear();
        for (_, registration) in self.registrations.all_mut() {
            registration.managed = false;
            registration.echoes = false;
            registration.place = None;
        }
    }

    /// No stream of theirs is in the set.
    fn give_up_links(&mut self) -> Vec<Joined> {
        for joined in &self.links {
            joined.announce(self.announced, 0);
            joined.link.return_bell(joined.bell);
        }
        self.announced = 0;
        core::mem::take(&mut self.links)
    }

    fn leave_links(&mut self, set_fd: i32) {
        for joined in self.give_up_links() {
            joined.take_out(set_fd);
        }
    }
}

/// Every open set.
pub fn each(mut visit: impl FnMut(u32, &'static Set)) {
    let used = FREE.lock().1;
    visit_open(used, &mut visit);
}

/// As [`each`], unless that would have to wait.
pub fn try_each(mut visit: impl FnMut(u32, &'static Set)) {
    let used = FREE.try_lock().map_or(0, |free| free.1);
    visit_open(used, &mut visit);
}

fn visit_open(used: u32, visit: &mut impl FnMut(u32, &'static Set)) {
    for index in 0..used {
        let set = set_at(index);
        if set.descriptors.load(Acquire) > 0 {
            visit(index, set);
        }
    }
}

/// What the family has to do with a set.
pub fn kin(index: u32) -> &'static Kin {
    &set_at(index).kin
}

/// In a forked child: nobody holds a lock. `bell` calls the parent.
///
/// # Safety
/// The process has one thread.
pub unsafe fn after_fork(bell: i32) -> bool {
    // SAFETY: one thread, by the caller's word.
    unsafe { FREE.force_open() };
    let used = FREE.lock().1;
    let mut some = false;
    for index in 0..used {
        let set = set_at(index);
        // SAFETY: one thread.
        unsafe { set.inner.force_open() };
        // The links' memory is the parent's.
        {
            let mut inner = set.inner.lock();
            inner.links.clear();
            inner.announced = 0;
        }
        set.sleepers.store(0, Relaxed);
        if set.descriptors.load(Relaxed) > 0 && !set.inherited.swap(true, Relaxed) {
            set.kin.inherit(bell);
            some = true;
            // The parent's entries are to be known, also later ones.
            set.touched.store(true, Relaxed);
            set.tagged.store(false, Relaxed);
        }
    }
    some
}
