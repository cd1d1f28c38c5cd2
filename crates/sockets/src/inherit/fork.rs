//! Around a fork. libc's runs what programs have registered by pthread_atfork(3): some of it takes locks, some
//! forks itself, some has signals handled. So we have a place in that list ourselves, which is the first:
//! what is registered first is run last before a fork, and first after it. The program's own finds no lock of ours
//! held, and in the child a library that knows where it is.
//!
//! | step | by | does |
//! |---|---|---|
//! | prepare | the list, last | counts the child; takes `FORKING` and the heap |
//! | parent | the list, first | opens them |
//! | child | the list, first | opens every lock, and makes the library the child's |
//! | afterwards | `fork` | if there is no child, takes it off the counts |
//!
//! A fork that runs no list (`_Fork`, clone by number) makes the same steps by itself, as all do where libc has no
//! place for us.

use core::mem::forget;
use core::ptr::null_mut;
use core::sync::atomic::{fence, AtomicBool, AtomicI32, AtomicU32, Ordering::*};

use shunt_os::lock::{Guard, Lock};
use shunt_os::real::{self, AtFork};
use shunt_os::{allocator, critical, handles, threads};

use crate::pool::{self, stage, Mode, Waiting};
use crate::{attach, process, search, service, uring, wait};

/// Where a child rings for the parent's attention, and the parent's other end. Made with the service
/// where that comes first: at a fork the table of descriptors may be full.
static CALL_BELL: AtomicI32 = AtomicI32::new(-1);
static FORKING: Lock<()> = Lock::new(());
/// How many forks this process has prepared.
static FORKS: AtomicU32 = AtomicU32::new(0);
/// The fork that is under way is one of a process that has an account of its own. Of who holds the heap for it.
static IS_COUNTED: AtomicBool = AtomicBool::new(false);

/// Our place in libc's list was asked for; was given.
static ASKED: AtomicBool = AtomicBool::new(false);
static LISTED: AtomicBool = AtomicBool::new(false);

/// While held, no thread of this process forks.
pub fn no_fork() -> impl Drop {
    FORKING.lock()
}

/// Before anything of the program's is registered by pthread_atfork(3), also by what is started before us.
pub fn be_first_at_fork() {
    if ASKED.swap(true, Relaxed) {
        return;
    }
    let errno = shunt_os::errno();
    // No library is named that would take ours away at its end: a program may fork in its last moments.
    let (before, parent, child): (AtFork, AtFork, AtFork) =
        (Some(prepare), Some(in_parent), Some(in_child));
    // SAFETY: three functions that stay where they are.
    let refused = unsafe { real::__register_atfork(before, parent, child, null_mut()) };
    LISTED.store(refused == 0, Relaxed);
    shunt_os::set_errno(errno);
}

/// A fork by libc's function.
pub fn fork(genuine: impl FnOnce() -> i32) -> i32 {
    if !LISTED.load(Relaxed) {
        return bare_fork(genuine);
    }
    if !process::enabled() || process::in_vfork_child() {
        return genuine();
    }
    counted(|| threads::fork_as_alone(genuine))
}

/// One that runs nothing of what was registered.
pub fn bare_fork(genuine: impl FnOnce() -> i32) -> i32 {
    if !process::enabled() {
        return genuine();
    }
    counted(|| {
        prepare();
        let child =
            if process::in_vfork_child() { genuine() } else { threads::fork_as_alone(genuine) };
        if child == 0 {
            in_child();
        } else {
            in_parent();
        }
        child
    })
}

/// In a child of [`bare_fork`] that does not return from it: clone(2)'s begins with a function.
pub fn begin_child() {
    in_child();
    critical::swap_fork(0);
}

/// Every open stream and set has one holder more, which is the child, if there is one. What is registered may fork
/// itself, before our steps or after them.
fn counted(fork: impl FnOnce() -> i32) -> i32 {
    let around = critical::swap_fork(0);
    let child = fork();
    let number = critical::swap_fork(around);
    if child < 0 && number != 0 {
        let _held = FORKING.lock();
        pool::each(|_, socket| socket.kin.count_no_child(number));
        wait::epoll::each(|_, set| set.kin.count_no_child(number));
    }
    child
}

/// Directly before the genuine fork.
extern "C" fn prepare() {
    // One that another step of the list makes where we are not the first has what it needs.
    if !process::enabled() || allocator::is_held_here() {
        return;
    }
    let errno = shunt_os::errno();
    let is_counted = !process::in_vfork_child();
    if is_counted {
        wait::epoll::share_all();
        forget(FORKING.lock());
        count_child();
    }
    allocator::hold();
    IS_COUNTED.store(is_counted, Relaxed);
    shunt_os::set_errno(errno);
}

/// Nothing is allocated here: `_Fork` may be called in a signal handler.
fn count_child() {
    // Process numbers have 22 bits (proc_sys_kernel(5), pid_max).
    let number = (process::pid() as u32) << 10 | FORKS.fetch_add(1, Relaxed) & 1023;
    critical::swap_fork(number);
    let mut some = false;
    pool::each(|_, socket| {
        if socket.mode() == Mode::Free {
            return;
        }
        some |= socket.kin.count_child(number) && service::running().is_some();
        attach::share_reader(socket);
    });
    wait::epoll::each(|_, set| {
        set.renew();
        some |= set.kin.count_child_of_set(set.is_tagged(), number);
    });
    if some {
        // A child is to know our tags by it.
        process::secret();
        make_bell();
    }
}

/// Directly after it, whether there is a child or not.
extern "C" fn in_parent() {
    finish(allocator::let_go, drop);
}

/// Directly after it, in the child.
extern "C" fn in_child() {
    finish(allocator::let_go_in_child, |forking| {
        open_all();
        forking.end_in_child();
    });
}

/// Ends what `prepare` began on this thread, if it did: `let_go` of the heap, and `open` what it holds if the fork
/// was counted.
fn finish(let_go: fn(), open: impl FnOnce(Guard<'static, ()>)) {
    if !allocator::is_held_here() {
        return;
    }
    let errno = shunt_os::errno();
    let is_counted = IS_COUNTED.load(Relaxed);
    let_go();
    if is_counted {
        // SAFETY: taken by this thread in `prepare`, which keeps no proof.
        open(unsafe { FORKING.held() });
    }
    shunt_os::set_errno(errno);
}

/// Children are to reach the service thread, which may be started later.
fn make_bell() {
    if CALL_BELL.load(Relaxed) < 0 {
        if let Ok(bell) = handles::eventfd() {
            CALL_BELL.store(bell, SeqCst);
        }
        // Who starts the service looks for the bell afterwards.
        fence(SeqCst);
        if let Some(service) = service::running() {
            watch_children(service);
        }
    }
}

/// Has the service thread, which has just been started, hear of children's wishes.
pub fn watch_children(service: &service::Service) {
    fence(SeqCst);
    if CALL_BELL.load(SeqCst) < 0 {
        let made = handles::eventfd().unwrap_or(-1);
        if CALL_BELL.compare_exchange(-1, made, SeqCst, SeqCst).is_err() && made >= 0 {
            handles::close(made);
        }
    }
    let bell = CALL_BELL.load(SeqCst);
    if bell >= 0 {
        service.watch_family(bell);
    }
}

/// In the child: one thread, and whatever the parent's other threads held is open.
fn open_all() {
    handles::forget_numbers();
    // SAFETY: a forked child has one thread.
    unsafe {
        FORKING.force_open();
        pool::after_fork();
        search::after_fork();
        uring::after_fork();
        wait::poll::after_fork();
        service::after_fork();
        shunt_os::lookups::after_fork();
    }
    // The bell rings the parent; a child that has streams of its own makes another.
    let bell = CALL_BELL.swap(-1, Relaxed);
    // SAFETY: as above.
    let mut needed = unsafe { wait::epoll::after_fork(bell) };
    pool::each(|_, socket| {
        // SAFETY: as above.
        unsafe {
            socket.recv.force_open();
            socket.send.force_open();
            socket.memberships.force_open();
            socket.aliases.force_open();
            socket.tuple.force_open();
            // The service has forgotten links whose peers are gone.
            if let Some(link) = socket.link() {
                link.open_after_fork();
            }
        }
        // Those who waited are the parent's.
        socket.recv.lock().waiting = Waiting::NONE;
        socket.send.lock().waiting = Waiting::NONE;
        socket.native_recv.store(0, Relaxed);
        socket.native_send.store(0, Relaxed);
        socket.entering.iter().for_each(|place| place.store(0, Relaxed));
        socket.native_polls.store(0, Relaxed);
        socket.polls.store(0, Relaxed);
        socket.forget_entry();
        search::stop_waiting(socket);
        if socket.closing.swap(false, Relaxed) {
            // The parent's, for a call of its own that is not over.
            socket.kin.hold(false);
            socket.kin.forget();
            handles::close(socket.fd.load(Relaxed));
            return socket.set_mode(Mode::Free);
        }
        if socket.mode() == Mode::Attached {
            socket.kin.inherit(bell);
            socket.set_mode(Mode::Inherited);
            needed = true;
        } else if socket.unanswered.load(Relaxed) {
            // The slot is the parent's, which may close it.
            socket.kin.inherit(-1);
        } else if socket.stage.load(Relaxed) != stage::YOUNG {
            // The parent's search is not ours; the child may search when it is alone.
            socket.stage.store(stage::YOUNG, Relaxed);
        }
    });
    if bell >= 0 && !needed {
        handles::close(bell);
    }
    // SAFETY: as above.
    unsafe { process::after_fork() };
    if pool::any() {
        // The child's table is as large as what was open asked for.
        handles::make_room();
    }
}
