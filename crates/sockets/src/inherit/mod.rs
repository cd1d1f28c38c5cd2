//! fork, exec, and descriptors that other processes hold too.
//!
//! | event | what happens |
//! |---|---|
//! | fork | the parent keeps its streams on the ring; the child's copies are marked `Inherited` |
//! | the child closes an inherited stream | nothing but the close |
//! | the child uses one | the parent's service thread takes it back to TCP; the child waits for it |
//! | the parent closes one that the child holds | taken back to TCP first; the child has it alone |
//! | the child uses an inherited epoll set | as a stream: its streams go back to TCP, and it is the kernel's |
//! | exec, death | the link's control channel closes; the peer finishes both directions by itself |

use core::sync::atomic::{fence, AtomicI32, Ordering::*};

use shunt_os::lock::Lock;
use shunt_os::{allocator, handles, threads};
use shunt_stats::Reason;

use crate::pool::{self, stage, Mode, Socket, Waiting};
use crate::table::{self, Entry};
use crate::{attach, process, search, service, wait};

mod bequest;
mod exec;
mod kin;

pub use bequest::{digest, read_bequest, Image};
pub use exec::{after_failed_exec, before_exec, before_exec_in_place};
pub use kin::Kin;

/// Where a child rings for the parent's attention, and the parent's other end. Made with the service
/// where that comes first: at a fork the table of descriptors may be full.
static CALL_BELL: AtomicI32 = AtomicI32::new(-1);
static FORKING: Lock<()> = Lock::new(());

/// Whether no other process that we know of holds the stream.
pub fn is_sole_holder(socket: &Socket) -> bool {
    socket.kin.is_sole_holder()
}

/// Whether another process that we know of held the stream at any time.
pub fn was_shared(socket: &Socket) -> bool {
    socket.kin.was_shared()
}

/// This process ends without a close: what it inherited or shared is the others'. It may be in a
/// signal handler.
pub fn exiting() {
    if !process::enabled() || process::in_vfork_child() {
        return;
    }
    if kin::is_there() {
        wait::epoll::leave_to_others_at_end();
    }
    attach::settle_before_end();
    attach::reset_unread();
    if kin::is_there() {
        pool::try_each(|socket| socket.kin.let_go());
        wait::epoll::try_each(|_, set| set.kin.let_go());
    }
}

/// Options under which a stream must stay on TCP: who set them watches what only TCP shows.
pub fn has_strange_options(fd: i32) -> bool {
    const SO_ZEROCOPY: i32 = 60;
    const SO_TIMESTAMPING: i32 = 37;
    const SO_TIMESTAMP: i32 = 29;
    const SO_TIMESTAMP_NEW: i32 = 63;
    const TCP_INQ: i32 = 36;
    const TCP_REPAIR: i32 = 19;
    let socket = [SO_ZEROCOPY, SO_TIMESTAMP, SO_TIMESTAMP_NEW, SO_TIMESTAMPING, libc::SO_OOBINLINE];
    let tcp = [TCP_INQ, TCP_REPAIR];
    let set = |level, name| handles::option_int(fd, level, name).is_ok_and(|value| value != 0);
    socket.iter().any(|name| set(libc::SOL_SOCKET, *name))
        || tcp.iter().any(|name| set(libc::IPPROTO_TCP, *name))
        || handles::option_int(fd, libc::SOL_SOCKET, libc::SO_RCVLOWAT).is_ok_and(|bytes| bytes > 1)
        || handles::option_int(fd, libc::SOL_SOCKET, libc::SO_PEEK_OFF).is_ok_and(|at| at >= 0)
}

/// While held, no thread of this process forks.
pub fn no_fork() -> impl Drop {
    FORKING.lock()
}

/// Around a fork: every open stream and set gets one more holder, which is the child.
pub fn fork(genuine: impl FnOnce() -> i32) -> i32 {
    if process::in_vfork_child() {
        let _heap = allocator::hold();
        return genuine();
    }
    wait::epoll::share_all();
    let held = FORKING.lock();
    // Nothing is allocated here: `_Fork` may be called in a signal handler.
    let mut some = false;
    pool::each(|_, socket| {
        if socket.mode() == Mode::Free {
            return;
        }
        attach::share_reader(socket);
        some |= socket.kin.count_child() && service::running().is_some();
    });
    wait::epoll::each(|_, set| {
        set.renew();
        some |= set.kin.count_child_of_set(set.is_tagged());
    });
    if some {
        // A child is to know our tags by it.
        process::secret();
        make_bell();
    }
    let heap = allocator::hold();
    let child = threads::fork_as_alone(genuine);
    drop(heap);
    if child == 0 {
        after_fork();
        held.end_in_child();
        return child;
    }
    if child < 0 {
        pool::each(|_, socket| socket.kin.count_no_child());
        wait::epoll::each(|_, set| set.kin.count_no_child());
    }
    child
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
fn after_fork() {
    handles::forget_numbers();
    // SAFETY: a forked child has one thread.
    unsafe {
        FORKING.force_open();
        pool::after_fork();
        search::after_fork();
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
        socket.entering.store(0, Relaxed);
        socket.native_polls.store(0, Relaxed);
        socket.forget_entry();
        search::stop_waiting(socket);
        if socket.closing.swap(false, Relaxed) {
            // The parent's, for a call of its own that is not over.
            socket.kin.let_go();
            handles::close(socket.fd.load(Relaxed));
            return socket.set_mode(Mode::Free);
        }
        if socket.mode() == Mode::Attached {
            socket.kin.inherit(bell);
            socket.set_mode(Mode::Inherited);
            needed = true;
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

/// The child is about to use a stream that its parent has on a ring: it goes back to TCP.
#[cold]
pub fn touch(index: u32) {
    let socket = pool::get(index);
    if socket.mode() != Mode::Inherited {
        return;
    }
    let errno = shunt_os::errno();
    let by_owner = socket.kin.ask_owner();
    attach::take_up_remains(socket);
    if by_owner {
        // The owner has given the kernel its registrations back, as they are by now.
        wait::epoll::disown_all(socket);
    } else {
        wait::epoll::release_all(socket);
    }
    socket.pinned.store(true, Relaxed);
    socket.set_mode(Mode::Left);
    process::count(Reason::ForkChild);
    shunt_os::set_errno(errno);
}

/// In the parent's service thread: children asked for streams or sets.
pub fn answer_children(bell: i32) {
    handles::silence(bell);
    let mut asked = Vec::new();
    pool::each(|index, socket| {
        if socket.mode() != Mode::Inherited && socket.kin.is_asked_for() {
            asked.push(index);
        }
    });
    let undone = attach::leave_soon(&asked, Reason::SharedWithOtherProcess);
    let mut again = !undone.is_empty();
    wait::epoll::each(|index, set| {
        again |= set.kin.is_asked_for() && !wait::epoll::leave_set_soon(index);
    });
    if again {
        // Again, after whatever else there is to do.
        handles::ring(bell);
    }
    asked.retain(|index| !undone.contains(index));
    for socket in asked.into_iter().map(pool::get) {
        attach::share_remains(socket);
        announce_on_tcp(socket);
    }
}

/// Marks a stream as being on TCP for whoever else holds it.
pub fn announce_on_tcp(socket: &Socket) {
    socket.kin.announce();
}

/// A descriptor goes to another process.
pub fn before_passing(fd: i32) {
    if let Entry::Set(set) = table::get(fd) {
        wait::epoll::share(set);
        wait::epoll::leave_set(set, Reason::PassedDescriptor);
    }
    if let Entry::Socket(index) = table::get(fd) {
        let socket = pool::get(index);
        match socket.mode() {
            Mode::Plain | Mode::Attached => attach::leave(index, Reason::PassedDescriptor),
            Mode::Inherited => touch(index),
            _ => {}
        }
    }
}
