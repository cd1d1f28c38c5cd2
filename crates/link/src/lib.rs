//! What two processes that paired once keep: shared memory with a slot for each stream, a bell or more
//! each way, and a control channel. All their streams share it.
//!
//! [`memory`] lays the shared memory out, [`slots`] says which slots are free, [`elsewhere`] what the
//! peer is to hear of by the kernel, [`Link`] holds the
//! descriptors. What travels on the control channel is `pairing`'s; who reads it is the service
//! thread of `sockets`.

// UNSAFETY: hands out addresses inside the mapping it has checked.
#![allow(unsafe_code)]

pub mod elsewhere;
pub mod memory;
mod rings;
pub mod slots;

use core::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, Ordering::*};

pub use memory::{Memory, Side};
use shunt_os::lock::{Lock, Users};
use shunt_os::{clock, handles};
use shunt_ring::{ReadyMap, BELLS};
pub use slots::Slots;

/// No stream stands in this slot.
pub const VACANT: u32 = u32::MAX;
/// Stands in a slot whose stream was closed, and whose last bytes are still on their way.
pub const ORPHAN: u32 = u32::MAX - 1;

/// The eventfds of a link; -1 once they are closed. They are not changed back, and not closed while somebody uses them.
pub struct Bells {
    /// The peer rings it; every wait set with a stream of this link has it as a member.
    own: AtomicI32,
    /// We ring it.
    peer: AtomicI32,
    /// Those of some wait sets each, made when there are more sets than one; -1 while they are not.
    own_apart: [AtomicI32; BELLS - 1],
    /// Those of the peer's that it has shown.
    peer_apart: [AtomicI32; BELLS - 1],
}

/// Whose the bells are.
struct Allotment {
    /// Those that are made and have no number yet.
    spare: Vec<i32>,
    /// How many wait sets of this process have each as theirs.
    sets: [u32; BELLS],
}

/// How many bells of wait sets this process holds, its own and its peers': they are descriptors, and a program may have few.
static APART: AtomicU32 = AtomicU32::new(0);
const APART_MAX: u32 = 64;

/// How often a wait set has come to a link where another was.
static MEETINGS: AtomicU32 = AtomicU32::new(0);

/// Changes when a set may want a bell that did not before: it was alone with its link.
#[inline]
pub fn meetings() -> u32 {
    MEETINGS.load(Relaxed)
}

/// Counts one more. False: there are as many as may be.
fn count_apart() -> bool {
    APART.fetch_update(Relaxed, Relaxed, |count| (count < APART_MAX).then_some(count + 1)).is_ok()
}

impl Bells {
    fn new(own: i32, peer: i32) -> Bells {
        let none = || [const { AtomicI32::new(-1) }; BELLS - 1];
        Bells {
            own: AtomicI32::new(own),
            peer: AtomicI32::new(peer),
            own_apart: none(),
            peer_apart: none(),
        }
    }

    /// The first one.
    pub fn own(&self) -> i32 {
        self.own.load(SeqCst)
    }

    /// That of a number; `None` if it has not been made.
    pub fn own_of(&self, bell: u32) -> Option<i32> {
        let fd = if bell == 0 { Some(&self.own) } else { apart(&self.own_apart, bell) };
        fd.map(|fd| fd.load(SeqCst)).filter(|fd| *fd >= 0)
    }

    /// One that the peer has not shown yet, or could not, is not missed: by the first one, all are woken.
    fn peer_of(&self, bell: u32) -> i32 {
        let shown = apart(&self.peer_apart, bell).map(|fd| fd.load(SeqCst));
        shown.filter(|fd| *fd >= 0).unwrap_or_else(|| self.peer.load(SeqCst))
    }
}

/// That of a bell which is not the first.
fn apart(fds: &[AtomicI32; BELLS - 1], bell: u32) -> Option<&AtomicI32> {
    fds.get((bell as usize).wrapping_sub(1))
}

impl Allotment {
    /// How many sets there are.
    fn count(&self) -> u32 {
        self.sets.iter().sum()
    }

    /// Behind the first.
    fn least_used(&self) -> u32 {
        let used = |bell: &u32| self.sets[*bell as usize];
        (1..BELLS as u32).min_by_key(used).unwrap_or(0)
    }
}

/// One end of a link. Lives for ever once made: threads that hold it need no count.
pub struct Link {
    pub memory: Memory,
    pub side: Side,
    /// Unix socket to the peer's service thread.
    pub control: i32,
    bells: Bells,
    /// Who uses their numbers at this moment.
    ringers: Users,
    allotment: Lock<Allotment>,
    /// The peer as the kernel named it when the control channel was made.
    pub peer_uid: u32,
    pub peer_pid: i32,
    alive: AtomicBool,
    /// The time of the last of our doings elsewhere that the peer was told of.
    told: AtomicU64,
    /// How many polls of this process sleep by it.
    polled: AtomicU32,
    /// Slot to the index of the stream in the program's table.
    streams: Box<[AtomicU32]>,
    pub slots: Slots,
}

impl Link {
    /// A link over memory that both sides have mapped.
    pub fn new(
        memory: Memory,
        side: Side,
        control: i32,
        bells: (i32, i32),
        peer: (u32, i32),
    ) -> Link {
        let count = memory.slots();
        Link {
            memory,
            side,
            control,
            bells: Bells::new(bells.0, bells.1),
            ringers: Users::new(),
            allotment: Lock::new(Allotment { spare: Vec::new(), sets: [0; BELLS] }),
            peer_uid: peer.0,
            peer_pid: peer.1,
            alive: AtomicBool::new(true),
            told: AtomicU64::new(0),
            polled: AtomicU32::new(0),
            streams: (0..count).map(|_| AtomicU32::new(VACANT)).collect(),
            slots: Slots::new(count),
        }
    }

    /// A poll begins to sleep by the link's bell and its words, which are kept until it has left.
    pub fn enter_poll(&self) {
        self.polled.fetch_add(1, SeqCst);
    }

    pub fn leave_poll(&self) {
        self.polled.fetch_sub(1, SeqCst);
    }

    /// Whether some poll sleeps so.
    pub fn is_polled(&self) -> bool {
        self.polled.load(SeqCst) > 0
    }

    /// Whether the peer is still there, as far as is known.
    pub fn is_alive(&self) -> bool {
        self.alive.load(Acquire)
    }

    /// Notes the peer's end; true for whoever notes it first. What the peer held back of streams is shown before.
    pub fn bury(&self) -> bool {
        for slot in (0..self.memory.slots()).filter(|slot| self.stream(*slot).is_some()) {
            let words = self.memory.direction(slot, self.side.other());
            // SAFETY: the link's memory is mapped for as long as the link is there; nothing but atomics.
            unsafe { words.as_ref() }.show_held(self.memory.ring_bytes().into());
        }
        self.alive.swap(false, AcqRel)
    }

    /// Puts a stream in `slot`; false if one stands there, whatever the peer says, or if there are no
    /// addresses for its rings. Called by the service thread alone.
    pub fn occupy(&self, slot: u32, stream: u32) -> bool {
        let Some(place) = self.streams.get(slot as usize) else { return false };
        if place.compare_exchange(VACANT, stream, AcqRel, Relaxed).is_err() {
            return false;
        }
        let is_reached = self.memory.reach(slot);
        if !is_reached {
            place.store(VACANT, Release);
        }
        is_reached
    }

    /// The stream in `slot` was closed, and its last bytes are still on their way.
    pub fn make_orphan(&self, slot: u32) {
        if let Some(place) = self.streams.get(slot as usize) {
            place.store(ORPHAN, Release);
        }
    }

    /// Takes the stream or orphan out of `slot`, of whose rings nobody of this process has an address any
    /// more.
    pub fn vacate(&self, slot: u32) {
        if let Some(place) = self.streams.get(slot as usize) {
            // Before another can come.
            self.memory.leave(slot);
            place.store(VACANT, Release);
        }
    }

    /// The stream in `slot`; `None` also for numbers that a peer made up.
    pub fn stream(&self, slot: u32) -> Option<u32> {
        let index = self.streams.get(slot as usize)?.load(Acquire);
        (index < ORPHAN).then_some(index)
    }

    /// Whether what stands in a slot is an orphan.
    pub fn is_orphan(&self, slot: u32) -> bool {
        self.streams.get(slot as usize).is_some_and(|stream| stream.load(Acquire) == ORPHAN)
    }

    /// Every stream on this link.
    pub fn streams(&self) -> impl Iterator<Item = u32> + '_ {
        self.streams.iter().map(|s| s.load(Acquire)).filter(|s| *s < ORPHAN)
    }

    /// Whether nothing stands in any slot.
    pub fn is_empty(&self) -> bool {
        self.streams.iter().all(|stream| stream.load(Acquire) == VACANT)
    }

    /// The map in which the peer marks what became ready for us.
    #[inline]
    pub fn own_ready(&self) -> &ReadyMap {
        self.memory.ready(self.side)
    }

    /// Takes the marks, with the times at which they were made. A peer that lies about those
    /// disorders what is told of its own streams.
    #[inline]
    pub fn drain(&self, mut ready: impl FnMut(u32, u64)) {
        self.own_ready().drain(|slot| {
            if slot < self.memory.slots() {
                ready(slot, self.memory.stamp(slot, self.side).load(Relaxed));
            }
        });
    }

    /// Tells the peer that `slot` changed, and wakes it if it sleeps.
    #[inline]
    pub fn notify(&self, slot: u32) {
        let owner = self.side.other();
        let map = self.memory.ready(owner);
        // Nothing of the map is loaded before it is changed: that would move its lines twice. A slot
        // is marked again only after its owner has looked, so that the stamp is of its first mark.
        let done = elsewhere::last();
        if self.told.load(Relaxed) != done {
            self.told.store(done, Relaxed);
            map.did_elsewhere(done);
        }
        self.memory.stamp(slot, owner).store(clock::stamp(), Relaxed);
        map.mark(slot);
        if let Some(bell) = map.take_sleeper(self.memory.told_by(slot, owner)) {
            self.with_bells(|bells| handles::ring(bells.peer_of(bell)));
        }
    }

    /// Wakes whoever of this process sleeps on the link's bell.
    pub fn wake_own(&self) {
        self.with_bells(|bells| handles::ring(bells.own()));
    }

    /// Before [`assign_bell`](Self::assign_bell), without a lock: a new bell, if that may need one. Several sets may be about to
    /// ask.
    pub fn provide_bell(&self) {
        if !self.may_need_bell(&self.allotment.lock()) || !count_apart() {
            return;
        }
        let made = handles::eventfd();
        let mut allotment = self.allotment.lock();
        match made {
            Ok(fd) if self.may_need_bell(&allotment) => return allotment.spare.push(fd),
            Ok(fd) => handles::close(fd),
            Err(_) => {}
        }
        APART.fetch_sub(1, Relaxed);
    }

    fn may_need_bell(&self, allotment: &Allotment) -> bool {
        let made = (1..BELLS as u32).filter(|bell| self.bells.own_of(*bell).is_some()).count();
        self.is_alive() && allotment.count() > 0 && made + allotment.spare.len() < BELLS - 1
    }

    /// The bell of one more wait set, which sleeps by it and by the first: that one while it is alone, then the least used one.
    /// `show` shows the peer a new one, and says whether it could; if not, it is the first one.
    pub fn assign_bell(&self, show: impl FnOnce(u32, i32) -> bool) -> u32 {
        let mut allotment = self.allotment.lock();
        if allotment.count() > 0 {
            MEETINGS.fetch_add(1, Relaxed);
        }
        self.assign(&mut allotment, show)
    }

    /// Another bell for a wait set that has the first one, if it can have one.
    pub fn assign_another_bell(&self, show: impl FnOnce(u32, i32) -> bool) -> u32 {
        let mut allotment = self.allotment.lock();
        let bell = self.assign(&mut allotment, show);
        allotment.sets[0] = allotment.sets[0].saturating_sub(1);
        bell
    }

    fn assign(&self, allotment: &mut Allotment, show: impl FnOnce(u32, i32) -> bool) -> u32 {
        let is_alone = self.bells.own() < 0 || allotment.count() == 0;
        let mut bell = if is_alone { 0 } else { allotment.least_used() };
        if let Some(own) = apart(&self.bells.own_apart, bell).filter(|own| own.load(Relaxed) < 0) {
            let spare = allotment.spare.last().copied();
            match spare.filter(|fd| self.is_alive() && show(bell, *fd)) {
                Some(fd) => {
                    own.store(fd, SeqCst);
                    allotment.spare.pop();
                }
                None => bell = 0,
            }
        }
        allotment.sets[bell as usize] += 1;
        bell
    }

    /// Whether several wait sets sleep by the first bell alone, or one beside others.
    pub fn is_shared(&self) -> bool {
        let allotment = self.allotment.lock();
        allotment.sets[0] > 0 && allotment.count() > 1
    }

    /// The wait set sleeps by its bell no more.
    pub fn return_bell(&self, bell: u32) {
        if let Some(sets) = self.allotment.lock().sets.get_mut(bell as usize) {
            *sets = sets.saturating_sub(1);
        }
    }

    /// The peer shows a bell, which is ours to close from now on. False if it cannot be one, whatever the peer says, and stays the
    /// caller's.
    pub fn accept_bell(&self, bell: u32, fd: i32) -> bool {
        let allotment = self.allotment.lock();
        let is_open = self.bells.own() >= 0;
        let place = apart(&self.bells.peer_apart, bell);
        let Some(place) = place.filter(|place| is_open && place.load(Relaxed) < 0) else {
            return false;
        };
        if count_apart() {
            place.store(fd, SeqCst);
            return true;
        }
        drop(allotment);
        handles::close(fd);
        true
    }

    /// The peer is gone. Who says something to it by the allotment's lock does not reach whoever has the number next.
    pub fn close_control(&self) {
        let _held = self.allotment.lock();
        handles::close(self.control);
    }

    /// Calls `act` with the bells, unless they have been closed. They are not closed meanwhile, so
    /// their numbers name nothing else.
    pub fn with_bells(&self, act: impl FnOnce(&Bells)) {
        let _use = self.ringers.enter();
        if self.bells.own() >= 0 {
            act(&self.bells);
        }
    }

    /// The bells name nothing any more.
    fn close_bells(&self, allotment: &mut Allotment) {
        let bells = &self.bells;
        let first = [&bells.own, &bells.peer].map(|fd| fd.swap(-1, SeqCst));
        let apart = bells.own_apart.iter().chain(&bells.peer_apart).map(|fd| fd.swap(-1, SeqCst));
        let apart = apart.chain(allotment.spare.drain(..)).filter(|fd| *fd >= 0);
        let apart: Vec<i32> = apart.collect();
        allotment.sets = [0; BELLS];
        self.ringers.wait_until_none();
        APART.fetch_sub(apart.len() as u32, Relaxed);
        first.into_iter().chain(apart).for_each(handles::close);
    }

    /// In a forked child: the link is the parent's, one of whose threads may have held a lock of it. Its
    /// descriptors are closed, and to the child it is dead.
    ///
    /// # Safety
    /// The process has one thread.
    pub unsafe fn after_fork(&self) {
        // SAFETY: one thread, by the caller's word.
        unsafe { self.open_after_fork() };
        self.bury();
        handles::close(self.control);
        let mut allotment = self.allotment.lock();
        if self.bells.own() >= 0 {
            self.close_bells(&mut allotment);
        }
    }

    /// As above, of a link that was dead before, and that streams still stand in.
    ///
    /// # Safety
    /// The process has one thread.
    pub unsafe fn open_after_fork(&self) {
        // SAFETY: one thread, by the caller's word.
        unsafe { self.allotment.force_open() };
        // SAFETY: as above.
        unsafe { self.ringers.forget() };
        // SAFETY: as above.
        unsafe { self.slots.force_open() };
        // SAFETY: as above.
        unsafe { self.memory.after_fork() };
    }

    /// The peer is gone and no stream stands here any more: gives back what can be. The words of
    /// the slots stay mapped, because threads that still know the link may look at them.
    pub fn retire(&self) {
        if self.is_alive() || !self.is_empty() {
            return;
        }
        let mut allotment = self.allotment.lock();
        if self.bells.own() >= 0 {
            self.close_bells(&mut allotment);
            self.memory.retire();
        }
    }
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;

    #[test]
    fn a_slot_takes_no_stream_beside_another_whatever_the_peer_says() {
        let (memory, fd) = Memory::create(2, 4096).expect("memory");
        handles::close(fd);
        let link = Link::new(memory, Side::Guest, -1, (-1, -1), (0, 0));
        assert!(link.occupy(1, 7));
        assert!(!link.occupy(1, 8));
        assert!(!link.occupy(2, 8), "there is no such slot");
        link.make_orphan(1);
        assert!(!link.occupy(1, 8), "its last bytes are on their way");
        link.vacate(1);
        assert!(link.occupy(1, 8));
        assert_eq!(link.stream(1), Some(8));
    }

    /// A link to nobody, with bells.
    fn with_bells() -> Link {
        let (memory, fd) = Memory::create(2, 4096).expect("memory");
        handles::close(fd);
        let bell = || handles::eventfd().expect("a bell");
        Link::new(memory, Side::Guest, -1, (bell(), bell()), (0, 0))
    }

    #[test]
    fn each_set_behind_the_first_has_a_bell_of_its_own_if_one_was_made_and_shown() {
        let link = with_bells();
        let assign = |is_shown: bool| {
            link.provide_bell();
            link.assign_bell(|_, _| is_shown)
        };
        assert_eq!(link.assign_bell(|_, _| true), 0, "the first");
        assert!(!link.is_shared());
        assert_eq!(link.assign_bell(|_, _| true), 0, "none was made");
        assert!(link.is_shared());
        assert_eq!(assign(false), 0, "the peer was not shown it");
        let all: Vec<u32> = (1..BELLS as u32).map(|_| assign(true)).collect();
        assert_eq!(all, (1..BELLS as u32).collect::<Vec<u32>>());
        assert_eq!(assign(false), 1, "one is shared, which the peer knows");
        link.return_bell(7);
        assert_eq!(assign(false), 7);
        let before = meetings();
        assert_eq!(link.assign_another_bell(|_, _| false), 2);
        assert_eq!(link.assign_another_bell(|_, _| false), 3);
        assert_eq!(link.assign_another_bell(|_, _| false), 4, "all that had the first");
        assert!(!link.is_shared());
        assert_eq!(assign(false), 5, "it is not alone");
        assert!(meetings() > before);
        link.close_bells(&mut link.allotment.lock());
        assert_eq!(assign(true), 0, "they are closed");
    }

    #[test]
    fn a_peer_shows_each_bell_once_and_no_others() {
        let link = with_bells();
        let show = |bell| link.accept_bell(bell, handles::eventfd().expect("a bell"));
        let shown = [0, 1, 1, BELLS as u32 - 1, BELLS as u32, u32::MAX].map(show);
        assert_eq!(shown, [false, true, false, true, false, false]);
        let rung = |bell| link.bells.peer_of(bell);
        assert_eq!([rung(0), rung(2), rung(u32::MAX)], [rung(0); 3]);
        assert_ne!(rung(1), rung(0));
        link.close_bells(&mut link.allotment.lock());
        assert!(!show(2), "the link has ended");
    }
}
