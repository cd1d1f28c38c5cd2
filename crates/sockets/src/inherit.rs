//! fork, exec, and descriptors that other processes hold too.
//!
//! | event | what happens |
//! |---|---|
//! | fork | the parent keeps its streams on the ring; the child's copies are marked `Inherited` |
//! | the child closes an inherited stream | nothing but the close |
//! | the child uses one | the parent's service thread takes it back to TCP; the child waits for it |
//! | the parent closes one that the child holds | taken back to TCP first; the child has it alone |
//! | exec, death | the link's control channel closes; the peer finishes both directions by itself |

use core::ptr::null_mut;
use core::sync::atomic::{AtomicI32, AtomicPtr, AtomicU32, Ordering::*};

use shunt_os::{handles, mapping, raw};
use shunt_stats::Reason;

use crate::lock::Lock;
use crate::pool::{self, stage, Mode, Socket};
use crate::table::{self, Entry};
use crate::{attach, process, search, service, wait};

/// Streams that were open at some fork, ever, in one family of processes.
const FAMILY_MAX: usize = 1 << 18;

/// Memory that a family of forked processes shares: how many of them hold a stream, and whether
/// somebody other than its owner wants to use it.
#[repr(C)]
struct Family {
    next: AtomicU32,
    members: [Member; FAMILY_MAX],
}

#[repr(C)]
struct Member {
    /// Processes that have not closed it.
    holders: AtomicU32,
    /// 0: the owner may keep it on the ring. 1: asked to leave. 2: on TCP.
    state: AtomicU32,
}

const ASKED: u32 = 1;
const ON_TCP: u32 = 2;

static FAMILY: AtomicPtr<Family> = AtomicPtr::new(null_mut());
/// Where a child rings for the parent's attention, and the parent's other end.
static CALL_BELL: AtomicI32 = AtomicI32::new(-1);
static FORKING: Lock<()> = Lock::new(());

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

fn member(socket: &Socket) -> Option<&'static Member> {
    let number = socket.family.load(Relaxed);
    if number == 0 {
        return None;
    }
    family()?.members.get(number as usize)
}

/// Whether no other process that we know of holds the stream.
pub fn is_sole_holder(socket: &Socket) -> bool {
    match member(socket) {
        None => true,
        Some(member) => member.holders.load(Acquire) <= 1,
    }
}

/// Whether another process that we know of held the stream at any time.
pub fn was_shared(socket: &Socket) -> bool {
    socket.family.load(Relaxed) != 0
}

/// Its sole holder takes a stream to a ring: what was announced to others was to those who are gone.
pub fn begin_ownership(socket: &Socket) {
    if let Some(member) = member(socket) {
        member.state.store(0, Release);
    }
}

/// This process closed its last descriptor of the stream.
pub fn let_go(socket: &Socket) {
    if let Some(member) = member(socket) {
        member.holders.fetch_sub(1, AcqRel);
    }
    socket.family.store(0, Relaxed);
}

/// This process ends without a close: what it inherited or shared is the others'. It may be in a
/// signal handler.
pub fn exiting() {
    if !process::enabled() || process::in_vfork_child() {
        return;
    }
    wait::epoll::settle();
    attach::settle_before_end();
    attach::reset_unread();
    if family().is_some() {
        pool::try_each(let_go);
    }
}

/// Options under which a stream must stay on TCP: who set them watches what only TCP shows.
pub fn has_strange_options(fd: i32) -> bool {
    const SO_ZEROCOPY: i32 = 60;
    const SO_TIMESTAMPING: i32 = 37;
    const SO_TIMESTAMP: i32 = 29;
    const TCP_INQ: i32 = 36;
    const TCP_REPAIR: i32 = 19;
    let socket = [SO_ZEROCOPY, SO_TIMESTAMP, SO_TIMESTAMPING, libc::SO_OOBINLINE];
    let tcp = [TCP_INQ, TCP_REPAIR];
    let set = |level, name| handles::option_int(fd, level, name).is_ok_and(|value| value != 0);
    socket.iter().any(|name| set(libc::SOL_SOCKET, *name))
        || tcp.iter().any(|name| set(libc::IPPROTO_TCP, *name))
}

/// While held, no thread of this process forks.
pub fn no_fork() -> impl Drop {
    FORKING.lock()
}

/// Around a fork: every open stream gets one more holder, which is the child.
pub fn fork(genuine: impl FnOnce() -> i32) -> i32 {
    if process::in_vfork_child() {
        return genuine();
    }
    wait::epoll::settle_for_good();
    wait::epoll::share_all();
    let held = FORKING.lock();
    // Nothing is allocated here: `_Fork` may be called in a signal handler.
    let mut some = false;
    pool::each(|_, socket| {
        if socket.mode() == Mode::Free {
            return;
        }
        if socket.family.load(Relaxed) == 0 {
            let Some(family) = make_family() else { return };
            let number = family.next.fetch_add(1, Relaxed) + 1;
            let Some(member) = family.members.get(number as usize) else { return };
            member.holders.store(1, Release);
            socket.family.store(number, Relaxed);
        }
        attach::share_reader(socket);
        if let Some(member) = member(socket) {
            member.holders.fetch_add(1, AcqRel);
            socket.counted_for_child.store(true, Relaxed);
            some = true;
        }
    });
    if some && CALL_BELL.load(Relaxed) < 0 {
        if let (Some(service), Ok(bell)) = (service::running(), handles::eventfd()) {
            CALL_BELL.store(bell, Relaxed);
            service.watch_family(bell);
        }
    }
    let child = genuine();
    if child == 0 {
        after_fork();
        held.end_in_child();
        return child;
    }
    pool::each(|_, socket| {
        // A stream that was closed meanwhile has let go of its member.
        let counted = socket.counted_for_child.swap(false, Relaxed);
        if let (true, true, Some(member)) = (counted, child < 0, member(socket)) {
            member.holders.fetch_sub(1, AcqRel);
        }
    });
    child
}

/// In the child: one thread, and whatever the parent's other threads held is open.
fn after_fork() {
    handles::forget_numbers();
    // SAFETY: a forked child has one thread.
    unsafe {
        FORKING.force_open();
        pool::after_fork();
        search::after_fork();
        wait::epoll::after_fork();
        wait::poll::after_fork();
        service::after_fork();
    }
    // The bell rings the parent; a child that has streams of its own makes another.
    let bell = CALL_BELL.swap(-1, Relaxed);
    pool::each(|_, socket| {
        // SAFETY: as above.
        unsafe {
            socket.recv.force_open();
            socket.send.force_open();
            socket.memberships.force_open();
            socket.aliases.force_open();
            socket.tuple.force_open();
        }
        socket.native_recv.store(0, Relaxed);
        socket.native_send.store(0, Relaxed);
        socket.forget_entry();
        search::stop_waiting(socket);
        socket.counted_for_child.store(false, Relaxed);
        if socket.closing.swap(false, Relaxed) {
            // The parent's, for a call of its own that is not over.
            let_go(socket);
            handles::close(socket.fd.load(Relaxed));
            return socket.set_mode(Mode::Free);
        }
        if socket.mode() == Mode::Attached {
            socket.owner.store(process::pid(), Relaxed);
            socket.owner_bell.store(bell, Relaxed);
            socket.set_mode(Mode::Inherited);
        } else if socket.stage.load(Relaxed) != stage::YOUNG {
            // The parent's search is not ours; the child may search when it is alone.
            socket.stage.store(stage::YOUNG, Relaxed);
        }
    });
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
    if let (Some(member), bell) = (member(socket), socket.owner_bell.load(Relaxed)) {
        // A parent that closed the stream took it back before; one that died left that to the
        // peer, which does it when the link closes.
        if member.holders.load(Acquire) > 1 && member.state.load(Acquire) != ON_TCP {
            member.state.fetch_or(ASKED, AcqRel);
            if bell >= 0 {
                handles::ring(bell);
            }
        }
        let owner = socket.owner.load(Relaxed);
        while member.state.load(Acquire) & ON_TCP == 0 && member.holders.load(Acquire) > 1 {
            let state = member.state.load(Acquire);
            if state & ON_TCP != 0 || !raw::runs(owner) {
                break;
            }
            // The wait is for the parent's service thread; its death is noticed by the timeout.
            let _ = shunt_os::park::wait(&member.state, state, Some(10_000_000));
        }
    }
    wait::epoll::release_all(socket);
    socket.pinned.store(true, Relaxed);
    socket.set_mode(Mode::Left);
    process::count(Reason::ForkChild);
    shunt_os::set_errno(errno);
}

/// In the parent's service thread: children asked for streams.
pub fn answer_children(bell: i32) {
    handles::silence(bell);
    let mut asked = Vec::new();
    pool::each(|index, socket| {
        if member(socket).is_some_and(|member| member.state.load(Acquire) == ASKED) {
            asked.push(index);
        }
    });
    let undone = attach::leave_soon(&asked, Reason::SharedWithOtherProcess);
    if !undone.is_empty() {
        // Again, after whatever else there is to do.
        handles::ring(bell);
    }
    asked.retain(|index| !undone.contains(index));
    asked.into_iter().for_each(|index| announce_on_tcp(pool::get(index)));
}

/// Marks a stream as being on TCP for whoever else holds it.
pub fn announce_on_tcp(socket: &Socket) {
    if let Some(member) = member(socket) {
        member.state.fetch_or(ON_TCP, AcqRel);
        shunt_os::park::wake_all(&member.state);
    }
}

/// Before exec: streams that the new program will hold go back to TCP. Those that exec closes
/// need nothing: the link closes with them.
pub fn before_exec() {
    prepare_exec(false);
}

/// Before this very process becomes another program.
pub fn before_exec_in_place() {
    prepare_exec(true);
}

fn prepare_exec(in_place: bool) {
    wait::epoll::settle();
    if !process::enabled() || !pool::any() {
        return;
    }
    let vfork = process::in_vfork_child();
    if in_place && !vfork {
        // The new program does not hold them: the other processes of the family may know.
        let closed = closed_by_exec();
        attach::settle_before_end();
        for index in closed {
            // For a child that has one and has not used it yet.
            announce_on_tcp(pool::get(index));
            hold(pool::get(index), false);
        }
    }
    let mut leaving = Vec::new();
    table::each(0, u32::MAX, |fd, entry| {
        let Entry::Socket(index) = entry else { return };
        let socket = pool::get(index);
        let concerned = matches!(socket.mode(), Mode::Plain | Mode::Attached | Mode::Inherited);
        if !concerned || !handles::survives_exec(fd) {
            return;
        }
        match socket.mode() {
            // In a vfork child this is the parent's memory: its stream leaves the ring, which is
            // what sharing the descriptor asks for anyway.
            Mode::Attached => leaving.push(index),
            // The parent's service thread runs on, and may be about to put it on a ring. (Its
            // rendezvous is the parent's descriptor: not ours to close.)
            Mode::Plain if vfork => socket.pinned.store(true, SeqCst),
            Mode::Plain => attach::leave(index, Reason::Exec),
            Mode::Inherited if !vfork => touch(index),
            _ => {}
        }
    });
    attach::leave_all(&leaving, Reason::Exec);
    leaving.into_iter().for_each(|index| announce_on_tcp(pool::get(index)));
}

fn hold(socket: &Socket, more: bool) {
    let Some(member) = member(socket) else { return };
    if more {
        member.holders.fetch_add(1, AcqRel);
    } else {
        member.holders.fetch_sub(1, AcqRel);
    }
}

/// The exec that was prepared for did not happen.
pub fn after_failed_exec() {
    if !process::enabled() || !pool::any() || process::in_vfork_child() {
        return;
    }
    closed_by_exec().into_iter().for_each(|index| hold(pool::get(index), true));
}

/// Sockets of which no descriptor survives exec.
fn closed_by_exec() -> Vec<u32> {
    let (mut all, mut kept) = (Vec::new(), Vec::new());
    table::each(0, u32::MAX, |fd, entry| {
        let Entry::Socket(index) = entry else { return };
        all.push(index);
        if handles::survives_exec(fd) {
            kept.push(index);
        }
    });
    all.sort_unstable();
    all.dedup();
    all.retain(|index| !kept.contains(index));
    all
}

/// A descriptor goes to another process.
pub fn before_passing(fd: i32) {
    if let Entry::Set(set) = table::get(fd) {
        wait::epoll::settle_for_good();
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
