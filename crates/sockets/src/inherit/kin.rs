//! What the processes of one family know of each other's share in a stream or an epoll set.

use core::ptr::null_mut;
use core::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicU32, Ordering::*};

use shunt_os::{clock, handles, mapping, raw};

use crate::process;

/// Streams that were open at some fork, ever, in one family of processes.
const FAMILY_MAX: usize = 1 << 18;

/// Memory that a family of forked processes shares: how many of them hold a stream or an epoll set,
/// and whether somebody other than its owner wants to use it.
#[repr(C)]
struct Family {
    next: AtomicU32,
    members: [Member; FAMILY_MAX],
}

#[repr(C)]
struct Member {
    /// Processes that have not closed it.
    holders: AtomicU32,
    /// 0: the owner may keep it on the ring. 1: asked to leave. 2: on TCP; a set is the kernel's.
    state: AtomicU32,
    /// The fork that counted a child as a holder last. Here and not in its process's own memory, of
    /// which a fork has a copy made page by page where it is written.
    forking: AtomicU32,
    /// The process that does what its owner died before, 0 if none does.
    heir: AtomicI32,
}

/// How long a child without a bell waits for its parent.
const UNHEARD_NS_MAX: u64 = 200_000_000;

/// How long a child waits for the end of a parent that has said that it ends. Its number may be another's by now.
const ENDING_NS_MAX: u64 = 1_000_000_000;

/// How often a child that waits looks whether the one that it waits for lives.
const LOOK_NS: u64 = 10_000_000;

const ASKED: u32 = 1;
const ON_TCP: u32 = 2;
/// A set has had entries of ours, and has its owner's still unless that was asked.
const TAGGED: u32 = 4;
/// A stream was put into a set, or a set is watched, by one who may be gone: it is the kernel's for good.
const WATCHED: u32 = 8;
/// Somebody has made a call on a stream that wakes every waiter, whether anything changed or not.
const WOKEN: u32 = 16;
/// The peer died with bytes of a ring unread, which the kernel tells of by another name, or as an end.
const RESET: u32 = 32;
/// The owner of a stream has closed it, or ended in order: it has left nothing to be done.
const CLOSED: u32 = 64;
/// What it died before was done by an heir.
const INHERITED: u32 = 128;
/// The owner has ended, or is about to, and has left something to be done.
const ENDED: u32 = 256;
/// One of those who hold a stream has given it away: others may hold it of whom we do not know.
const PASSED: u32 = 512;

/// What a process knows of its family's share in a stream or set.
pub struct Kin {
    /// Its number in the family, 0 if it never was open at a fork.
    number: AtomicU32,
    /// While inherited: the process whose it is, and the bell of its service thread.
    owner: AtomicI32,
    owner_bell: AtomicI32,
    /// Its process has given it away, perhaps before it was open at a fork.
    passed: AtomicBool,
}

impl Default for Kin {
    fn default() -> Kin {
        Kin {
            number: AtomicU32::new(0),
            owner: AtomicI32::new(0),
            owner_bell: AtomicI32::new(-1),
            passed: AtomicBool::new(false),
        }
    }
}

impl Kin {
    /// It is another one's from now on.
    pub fn forget(&self) {
        self.number.store(0, Relaxed);
        self.passed.store(false, Relaxed);
    }

    /// What this process knows of it goes to another of its keepers.
    pub fn hand_over(&self) -> Kin {
        let handed = Kin::default();
        handed.number.store(self.number.swap(0, SeqCst), SeqCst);
        handed
    }

    /// Its number in the family, 0 if it never was open at a fork.
    pub fn number(&self) -> u32 {
        self.number.load(SeqCst)
    }

    fn member(&self) -> Option<&'static Member> {
        let number = self.number();
        if number == 0 {
            return None;
        }
        family()?.members.get(number as usize)
    }

    /// Whether no other process that we know of holds it, and none of those has given it away.
    pub fn is_sole_holder(&self) -> bool {
        self.member().is_none_or(|member| {
            member.holders.load(Acquire) <= 1 && member.state.load(Acquire) & PASSED == 0
        })
    }

    /// A stream is about to be given to a process that may be a stranger. To those who have it from a fork it is
    /// never theirs alone again.
    pub fn note_passed(&self) {
        // Who counts a child at this moment looks for that once it has a number.
        self.passed.store(true, SeqCst);
        if let Some(member) = self.member() {
            member.state.fetch_or(PASSED, SeqCst);
        }
    }

    /// This process has closed it, or is about to. Whether it was shared, and no other can have it any more.
    pub fn let_go(&self) -> bool {
        let Some(member) = self.member() else {
            self.forget();
            return false;
        };
        if self.is_owner() {
            member.state.fetch_or(CLOSED, SeqCst);
        }
        let is_last = member.holders.fetch_sub(1, SeqCst) == 1;
        let was_passed = self.passed.load(SeqCst) || member.state.load(SeqCst) & PASSED != 0;
        self.forget();
        is_last && !was_passed
    }

    /// This process ends, and an heir is to finish what it has not.
    pub(super) fn leave_behind(&self) {
        if let Some(member) = self.member() {
            member.state.fetch_or(ENDED, SeqCst);
        }
    }

    pub(super) fn hold(&self, more: bool) {
        let Some(member) = self.member() else { return };
        if more {
            member.holders.fetch_add(1, AcqRel);
        } else {
            member.holders.fetch_sub(1, AcqRel);
        }
    }

    /// A stream comes into a set: where others have both, they are told of it by the kernel alone, for good.
    pub fn enters(&self, set: &Kin) {
        if !self.is_sole_holder() && !set.is_sole_holder() {
            self.note_watched();
        }
    }

    /// Whether this process has a stream alone, and knows every set that it is in.
    pub fn may_pair(&self) -> bool {
        self.is_sole_holder()
            && self.member().is_none_or(|it| it.state.load(Acquire) & WATCHED == 0)
    }

    /// Only the kernel can tell whoever watches a set, in whatever process.
    pub fn note_watched(&self) {
        if let Some(member) = self.member() {
            member.state.fetch_or(WATCHED, SeqCst);
        }
    }

    /// A call that wakes every waiter of the kernel's is about to be made on a stream.
    pub fn note_woken(&self) {
        if let Some(member) = self.member() {
            member.state.fetch_or(WOKEN, SeqCst);
        }
    }

    /// Whether such a call was made by any process, since the stream came to TCP for good.
    pub fn was_woken(&self) -> bool {
        self.member().is_some_and(|member| member.state.load(SeqCst) & WOKEN != 0)
    }

    /// The peer died with bytes unread, of which the kernel does not know.
    pub fn note_reset(&self) {
        if let Some(member) = self.member() {
            member.state.fetch_or(RESET, SeqCst);
        }
    }

    /// Whether that happened while its owner had a stream on a ring.
    pub fn was_reset(&self) -> bool {
        self.member().is_some_and(|member| member.state.load(SeqCst) & RESET != 0)
    }

    /// Tells whoever else holds it that this process has nothing of ours in it.
    pub fn announce(&self) {
        if let Some(member) = self.member() {
            member.state.fetch_or(ON_TCP, AcqRel);
            shunt_os::park::wake_all(&member.state);
        }
    }

    /// Whether another process that we know of held it at any time.
    pub(super) fn was_shared(&self) -> bool {
        self.number.load(Relaxed) != 0
    }

    /// Its sole holder takes a stream to a ring: what was announced to others was to those who are gone.
    pub fn begin_ownership(&self) {
        if let Some(member) = self.member() {
            member.heir.store(0, Relaxed);
            member.state.store(0, Release);
        }
        self.owner.store(0, Relaxed);
    }

    /// The child that is about to be forked is one more holder. False if it cannot be told of what happens.
    pub(super) fn count_child(&self, fork: u32) -> bool {
        self.count(fork).is_some()
    }

    /// As [`count_child`](Self::count_child), of a set, which may have entries of ours.
    pub(super) fn count_child_of_set(&self, tagged: bool, fork: u32) -> bool {
        let alone = self.is_sole_holder();
        let Some(member) = self.count(fork) else { return false };
        if alone {
            member.state.fetch_and(WATCHED, SeqCst);
        }
        if tagged {
            member.state.fetch_or(TAGGED, SeqCst);
        }
        true
    }

    fn count(&self, fork: u32) -> Option<&'static Member> {
        if self.number.load(Relaxed) == 0 {
            let family = make_family()?;
            let number = family.next.fetch_add(1, Relaxed) + 1;
            let member = family.members.get(number as usize)?;
            member.holders.store(1, Release);
            // Who tags a set stores that and then looks for its number (`may_tag`).
            self.number.store(number, SeqCst);
            if self.passed.load(SeqCst) {
                member.state.fetch_or(PASSED, SeqCst);
            }
        }
        self.hold(true);
        let member = self.member()?;
        member.forking.store(fork, Relaxed);
        Some(member)
    }

    /// That fork failed: a child that there is not holds nothing.
    pub(super) fn count_no_child(&self, fork: u32) {
        // What was closed meanwhile has let go of its member, and what was opened was not counted.
        let counted = |it: &&Member| it.forking.compare_exchange(fork, 0, Relaxed, Relaxed).is_ok();
        if self.member().filter(counted).is_some() {
            self.hold(false);
        }
    }

    /// In a forked child: it is the parent's.
    pub fn inherit(&self, bell: i32) {
        self.owner.store(process::pid(), Relaxed);
        self.owner_bell.store(bell, Relaxed);
    }

    /// Whether it was not inherited.
    pub fn is_owner(&self) -> bool {
        self.owner() == 0
    }

    /// While inherited: the process whose it is.
    pub fn owner(&self) -> i32 {
        self.owner.load(Relaxed)
    }

    /// Asks the owner to take it back to TCP, and waits until that is done. False if the owner is gone.
    pub(super) fn ask_owner(&self) -> bool {
        let Some(member) = self.member() else { return false };
        let settled = || member.state.load(Acquire) & ON_TCP != 0;
        // An owner that closed it took it back before; one that died left that to the peer, which does
        // it when the link closes.
        let shared = || member.holders.load(Acquire) > 1;
        if shared() && !settled() {
            member.state.fetch_or(ASKED, AcqRel);
            let bell = self.owner_bell.load(Relaxed);
            if bell >= 0 {
                handles::ring(bell);
            }
        }
        let owner = self.owner();
        // An owner whose service had ended has no bell, and perhaps nobody to answer.
        let has_bell = self.owner_bell.load(Relaxed) >= 0;
        let began_ns = clock::now_ns();
        while !settled() && shared() {
            let state = member.state.load(Acquire);
            let longest = match state & ENDED != 0 {
                true => ENDING_NS_MAX,
                false if has_bell => u64::MAX,
                false => UNHEARD_NS_MAX,
            };
            let has_waited = clock::now_ns() - began_ns >= longest;
            if state & ON_TCP != 0 || !raw::runs(owner) || has_waited {
                break;
            }
            // The wait is for the owner's service thread; its death is noticed by the timeout.
            let _ = shunt_os::park::wait(&member.state, state, Some(LOOK_NS));
        }
        settled()
    }

    /// Where the owner died while it had a stream, does what it left to be done, once in the family: the others wait. If
    /// who does it dies, another one begins anew.
    /// `act`: false if it could not.
    pub(super) fn act_for_dead_owner(&self, act: impl FnOnce() -> bool) {
        let Some(member) = self.member() else { return };
        let me = process::pid();
        let state = || member.state.load(Acquire);
        let is_gone = || state() & ENDED != 0 || !raw::runs(self.owner());
        let is_due = || state() & (CLOSED | INHERITED | ON_TCP) == 0 && is_gone();
        while !process::in_vfork_child() && is_due() {
            let heir = member.heir.load(Acquire);
            // Another thread of this process may be at it: they take turns, or it has left it by a jump.
            let is_free = heir == 0 || heir == me || !raw::runs(heir);
            if is_free && member.heir.compare_exchange(heir, me, AcqRel, Relaxed).is_ok() {
                match act() {
                    true => _ = member.state.fetch_or(INHERITED, AcqRel),
                    false => member.heir.store(0, Release),
                }
                shunt_os::park::wake_all(&member.state);
                return;
            }
            let _ = shunt_os::park::wait(&member.state, state(), Some(LOOK_NS));
        }
    }

    pub(super) fn is_asked_for(&self) -> bool {
        self.member().is_some_and(|member| member.state.load(Acquire) & (ASKED | ON_TCP) == ASKED)
    }

    /// Before entries of ours are put into a set. False once another process wanted to use it.
    pub fn may_tag(&self) -> bool {
        let Some(member) = self.member() else { return true };
        member.state.fetch_or(TAGGED, SeqCst) & (ASKED | ON_TCP | WATCHED) == 0
    }

    /// Whether others used a set as well, and are gone.
    #[inline]
    pub fn is_renewable(&self) -> bool {
        self.member().is_some_and(|member| {
            let state = member.state.load(SeqCst);
            member.holders.load(Acquire) <= 1
                && state & (ASKED | ON_TCP) != 0
                && state & WATCHED == 0
        })
    }

    /// Such a set is this process's again. True once.
    pub fn renew(&self) -> bool {
        let asked =
            |member: &Member| member.state.fetch_and(TAGGED, SeqCst) & (ASKED | ON_TCP) != 0;
        self.is_renewable() && self.member().is_some_and(asked)
    }

    /// A child uses a set of its parent's: it becomes the kernel's. True if that is so; the owner may
    /// have gone without a word.
    pub fn claim_set(&self) -> bool {
        let Some(member) = self.member() else { return false };
        if member.state.fetch_or(ASKED, SeqCst) & TAGGED == 0 {
            self.announce();
        }
        self.ask_owner()
    }
}

static FAMILY: AtomicPtr<Family> = AtomicPtr::new(null_mut());

/// Whether this process has a family.
pub(super) fn is_there() -> bool {
    family().is_some()
}

fn family() -> Option<&'static Family> {
    let family = FAMILY.load(Acquire);
    // SAFETY: never unmapped.
    (!family.is_null()).then(|| unsafe { &*family })
}

fn make_family() -> Option<&'static Family> {
    if let Some(family) = family() {
        return Some(family);
    }
    let mapped = mapping::anonymous_shared(core::mem::size_of::<Family>()).ok()?;
    let fresh = mapped.base.as_ptr().cast::<Family>();
    if FAMILY.compare_exchange(null_mut(), fresh, AcqRel, Acquire).is_err() {
        // SAFETY: nobody has seen it.
        unsafe { mapping::unmap(mapped) };
    }
    family()
}
