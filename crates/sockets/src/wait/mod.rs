//! Waiting: a blocking call ([`blocking`]), poll and select ([`poll`]), epoll ([`epoll`]). Each spins
//! as its policy says, announces that it will sleep, looks once more, and sleeps in the kernel.

pub mod blocking;
pub mod epoll;
mod few;
mod joined;
pub mod kernel;
pub mod poll;
pub mod state;

use core::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use shunt_link::{elsewhere, Link};
use shunt_os::clock;
use shunt_os::critical::{self, Handled, Section};
use shunt_os::{handles, signals};

use self::few::Few;

/// While the rings satisfy every wait, the kernel is asked once in this time, and at once after
/// this process, or one that has marked a ring since, did something [elsewhere].
const KERNEL_EVERY_NS: u64 = 20_000;

/// What signals are to a wait.
#[derive(Clone, Copy)]
struct Signals {
    /// The program's, for the kernel to set while the thread sleeps; null is none.
    mask: *const libc::sigset_t,
    /// What the thread had handled when the call began.
    handled: Handled,
}

impl Signals {
    fn begin(mask: *const libc::sigset_t) -> Signals {
        Signals { mask, handled: critical::handled() }
    }

    /// A handler has run since the call began, which ends the wait: to the program the thread has slept
    /// meanwhile. With a mask that keeps some back which the thread lets in, those that are to end it are let in by the
    /// kernel's sleep.
    fn interrupt(&self) -> bool {
        critical::handled() != self.handled && signals::lets_in_as_much(self.mask)
    }
}

/// Whether a call by `fd` that is now to wait for `events` in the kernel ends with EINTR instead: since it began,
/// the thread has run a handler that was set without SA_RESTART, while the stream went to TCP. To the program
/// it has slept meanwhile, and the kernel's wait would know nothing of the signal.
pub fn is_interrupted(began: Handled, fd: i32, events: i16) -> bool {
    critical::handled().interrupting != began.interrupting
        && !handles::is_nonblocking(fd)
        && handles::poll_now(fd, events) == 0
}

/// A stream that was marked, and when.
#[derive(Clone, Copy)]
struct Marked {
    stamp: u64,
    link: &'static Link,
    slot: u32,
}

/// Takes the marks of some links and stirs their streams, in the order in which they were marked: whose
/// bytes came first is told first.
fn stir_marked(links: impl Iterator<Item = &'static Link>) {
    // A handler that does not return would take the marks with it.
    let _section = Section::begin();
    let mut all = Few::new();
    for link in links.filter(|link| link.own_ready().any()) {
        link.drain(|slot, stamp| all.push(Marked { stamp, link, slot }));
    }
    all.sort_by_key(|marked| marked.stamp);
    for marked in all.iter() {
        if let Some(index) = marked.link.stream(marked.slot) {
            let done = marked.link.own_ready().elsewhere();
            let before = if done <= marked.stamp { done } else { 0 };
            epoll::stir(crate::pool::get(index), before, Some(marked.link));
        }
    }
}

/// When this process, or the peer of one of the links, last did something elsewhere.
fn doings(links: impl IntoIterator<Item = &'static Link>) -> u64 {
    let peers = links.into_iter().map(|link| link.own_ready().elsewhere());
    peers.fold(elsewhere::last(), u64::max)
}

/// Whose turn it is: that of kernel descriptors, which must not starve beside busy rings.
pub struct KernelTurn {
    due_ns: AtomicU64,
    /// What happened before this ([`clock::stamp`]) the kernel has told.
    told_until: AtomicU64,
    /// The last answer named something: it may still be ready, and must be told again.
    found: AtomicBool,
}

/// What the kernel was asked, and when.
pub struct Question {
    began: u64,
}

impl Question {
    /// Before the kernel is asked.
    pub fn begin() -> Question {
        Question { began: clock::stamp() }
    }
}

impl KernelTurn {
    pub const fn new() -> KernelTurn {
        KernelTurn {
            due_ns: AtomicU64::new(0),
            told_until: AtomicU64::new(0),
            found: AtomicBool::new(false),
        }
    }

    /// What the kernel has just answered: whether it named anything, and everything that there is.
    pub fn answered(&self, question: &Question, anything: bool, everything: bool) {
        self.found.store(anything, Relaxed);
        if everything {
            self.told_until.store(question.began, Relaxed);
        }
    }

    /// The next question can wait as long as behind one that was due: the one waiter, or the one set, of this turn has just
    /// been told everything.
    fn put_off(&self) {
        self.due_ns.store(clock::now_ns() + KERNEL_EVERY_NS, Relaxed);
    }

    /// Whether the kernel may have something to tell that was done at `done`.
    pub fn may_tell_of(&self, done: u64) -> bool {
        elsewhere::is_since(done, self.told_until.load(Relaxed))
    }

    /// Whether the kernel is to be asked although the rings have events. `doings` is that of the
    /// links whose rings were looked at before.
    fn is_due(&self, doings: u64) -> bool {
        let now = clock::now_ns();
        if now < self.due_ns.load(Relaxed) && !self.found.load(Relaxed) && !self.may_tell_of(doings)
        {
            return false;
        }
        self.due_ns.store(now + KERNEL_EVERY_NS, Relaxed);
        true
    }
}

impl Default for KernelTurn {
    fn default() -> KernelTurn {
        KernelTurn::new()
    }
}
