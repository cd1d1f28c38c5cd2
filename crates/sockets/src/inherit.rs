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

use core::ptr::null_mut;
use core::sync::atomic::{fence, AtomicBool, AtomicI32, AtomicPtr, AtomicU32, Ordering::*};

use shunt_os::lock::Lock;
use shunt_os::{allocator, clock, handles, mapping, raw, threads};
use shunt_stats::Reason;

use crate::pool::{self, stage, Mode, Socket, Waiting};
use crate::table::{self, Entry};
use crate::{attach, process, search, service, wait};

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
}

/// How long a child without a bell waits for its parent.
const UNHEARD_NS_MAX: u64 = 200_000_000;

const ASKED: u32 = 1;
const ON_TCP: u32 = 2;
/// A set has had entries of ours, and has its owner's still unless that was asked.
const TAGGED: u32 = 4;

/// What a process knows of its family's share in a stream or set.
pub struct Kin {
    /// Its number in the family, 0 if it never was open at a fork.
    number: AtomicU32,
    /// A fork under way has counted the child as a holder.
    counted_for_child: AtomicBool,
    /// While inherited: the process whose it is, and the bell of its service thread.
    owner: AtomicI32,
    owner_bell: AtomicI32,
}

impl Default for Kin {
    fn default() -> Kin {
        Kin {
            number: AtomicU32::new(0),
            counted_for_child: AtomicBool::new(false),
            owner: AtomicI32::new(0),
            owner_bell: AtomicI32::new(-1),
        }
    }
}

impl Kin {
    /// It is another one's from now on.
    pub fn forget(&self) {
        self.number.store(0, Relaxed);
    }

    fn member(&self) -> Option<&'static Member> {
        let number = self.number.load(SeqCst);
        if number == 0 {
            return None;
        }
        family()?.members.get(number as usize)
    }

    /// Whether no other process that we know of holds it.
    pub fn is_sole_holder(&self) -> bool {
        self.member().is_none_or(|member| member.holders.load(Acquire) <= 1)
    }

    /// This process has closed it.
    pub fn let_go(&self) {
        self.hold(false);
        self.forget();
    }

    fn hold(&self, more: bool) {
        let Some(member) = self.member() else { return };
        if more {
            member.holders.fetch_add(1, AcqRel);
        } else {
            member.holders.fetch_sub(1, AcqRel);
        }
    }

    /// Tells whoever else holds it that this process has nothing of ours in it.
    pub fn announce(&self) {
        if let Some(member) = self.member() {
            member.state.fetch_or(ON_TCP, AcqRel);
            shunt_os::park::wake_all(&member.state);
        }
    }

    /// The child that is about to be forked is one more holder.
    fn count_child(&self) -> Option<&'static Member> {
        if self.number.load(Relaxed) == 0 {
            let family = make_family()?;
            let number = family.next.fetch_add(1, Relaxed) + 1;
            let member = family.members.get(number as usize)?;
            member.holders.store(1, Release);
            // Who tags a set stores that and then looks for its number (`may_tag`).
            self.number.store(number, SeqCst);
        }
        self.hold(true);
        self.counted_for_child.store(true, Relaxed);
        self.member()
    }

    /// The fork is over; a child that there is not holds nothing.
    pub fn counted(&self, failed: bool) {
        // What was closed meanwhile has let go of its member.
        if self.counted_for_child.swap(false, Relaxed) && failed {
            self.hold(false);
        }
    }

    /// In a forked child: it is the parent's.
    pub fn inherit(&self, bell: i32) {
        self.owner.store(process::pid(), Relaxed);
        self.owner_bell.store(bell, Relaxed);
    }

    /// Asks the owner to take it back to TCP, and waits until that is done. False if the owner is gone.
    fn ask_owner(&self) -> bool {
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
        let owner = self.owner.load(Relaxed);
        // An owner whose service had ended has no bell, and perhaps nobody to answer.
        let has_bell = self.owner_bell.load(Relaxed) >= 0;
        let give_up_ns = if has_bell { u64::MAX } else { clock::now_ns() + UNHEARD_NS_MAX };
        while !settled() && shared() {
            let state = member.state.load(Acquire);
            if state & ON_TCP != 0 || !raw::runs(owner) || clock::now_ns() >= give_up_ns {
                break;
            }
            // The wait is for the owner's service thread; its death is noticed by the timeout.
            let _ = shunt_os::park::wait(&member.state, state, Some(10_000_000));
        }
        settled()
    }

    fn is_asked_for(&self) -> bool {
        self.member().is_some_and(|member| member.state.load(Acquire) & (ASKED | ON_TCP) == ASKED)
    }

    /// Before entries of ours are put into a set. False once another process wanted to use it.
    pub fn may_tag(&self) -> bool {
        let Some(member) = self.member() else { return true };
        member.state.fetch_or(TAGGED, SeqCst) & (ASKED | ON_TCP) == 0
    }

    /// Whether others used a set as well, and are gone.
    #[inline]
    pub fn is_renewable(&self) -> bool {
        self.member().is_some_and(|member| {
            member.holders.load(Acquire) <= 1 && member.state.load(SeqCst) & (ASKED | ON_TCP) != 0
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
/// Where a child rings for the parent's attention, and the parent's other end. Made with the service
/// where that comes first: at a fork the table of descriptors may be full.
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

/// Whether no other process that we know of holds the stream.
pub fn is_sole_holder(socket: &Socket) -> bool {
    socket.kin.is_sole_holder()
}

/// Whether another process that we know of held the stream at any time.
pub fn was_shared(socket: &Socket) -> bool {
    socket.kin.number.load(Relaxed) != 0
}

/// Its sole holder takes a stream to a ring: what was announced to others was to those who are gone.
pub fn begin_ownership(socket: &Socket) {
    if let Some(member) = socket.kin.member() {
        member.state.store(0, Release);
    }
}

/// This process ends without a close: what it inherited or shared is the others'. It may be in a
/// signal handler.
pub fn exiting() {
    if !process::enabled() || process::in_vfork_child() {
        return;
    }
    attach::settle_before_end();
    attach::reset_unread();
    if family().is_some() {
        pool::try_each(|socket| socket.kin.let_go());
        wait::epoll::try_each(|set| set.kin.let_go());
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
        some |= socket.kin.count_child().is_some() && service::running().is_some();
    });
    wait::epoll::each(|_, set| {
        set.renew();
        let alone = set.kin.is_sole_holder();
        let Some(member) = set.kin.count_child() else { return };
        if alone {
            member.state.store(0, SeqCst);
        }
        if set.is_tagged() {
            member.state.fetch_or(TAGGED, SeqCst);
        }
        some = true;
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
    pool::each(|_, socket| socket.kin.counted(child < 0));
    wait::epoll::each(|_, set| set.kin.counted(child < 0));
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
        }
        // Those who waited are the parent's.
        socket.recv.lock().waiting = Waiting::NONE;
        socket.send.lock().waiting = Waiting::NONE;
        socket.native_recv.store(0, Relaxed);
        socket.native_send.store(0, Relaxed);
        socket.forget_entry();
        search::stop_waiting(socket);
        socket.kin.counted(false);
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
    socket.kin.ask_owner();
    wait::epoll::release_all(socket);
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
    asked.into_iter().for_each(|index| announce_on_tcp(pool::get(index)));
}

/// Marks a stream as being on TCP for whoever else holds it.
pub fn announce_on_tcp(socket: &Socket) {
    socket.kin.announce();
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
    if !process::enabled() || !pool::any() {
        return;
    }
    let vfork = process::in_vfork_child();
    if in_place && !vfork {
        // The new program does not hold them: the other processes of the family may know.
        let closed = closed_by_exec(socket_of);
        attach::settle_before_end();
        for index in closed {
            // For a child that has one and has not used it yet.
            announce_on_tcp(pool::get(index));
            pool::get(index).kin.hold(false);
        }
        // Who has one besides is not told of what closes.
        wait::epoll::each(|index, _| wait::epoll::leave_to_others(index));
        for index in closed_by_exec(set_of) {
            wait::epoll::kin(index).hold(false);
        }
    }
    let mut leaving = Vec::new();
    table::each(0, u32::MAX, |fd, entry| {
        let Entry::Socket(index) = entry else { return };
        let socket = pool::get(index);
        if socket.mode() == Mode::Free || !handles::survives_exec(fd) {
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
            // It left with a set, or long ago: a child that has not used it yet could not ask any more.
            Mode::Left => announce_on_tcp(socket),
            _ => {}
        }
    });
    attach::leave_all(&leaving, Reason::Exec);
    leaving.into_iter().for_each(|index| announce_on_tcp(pool::get(index)));
}

/// The exec that was prepared for did not happen.
pub fn after_failed_exec() {
    if !process::enabled() || !pool::any() || process::in_vfork_child() {
        return;
    }
    closed_by_exec(socket_of).into_iter().for_each(|index| pool::get(index).kin.hold(true));
    closed_by_exec(set_of).into_iter().for_each(|index| wait::epoll::kin(index).hold(true));
}

fn socket_of(entry: Entry) -> Option<u32> {
    match entry {
        Entry::Socket(index) => Some(index),
        _ => None,
    }
}

fn set_of(entry: Entry) -> Option<u32> {
    match entry {
        Entry::Set(index) => Some(index),
        _ => None,
    }
}

/// Sockets, or sets, of which no descriptor survives exec.
fn closed_by_exec(chosen: fn(Entry) -> Option<u32>) -> Vec<u32> {
    let (mut all, mut kept) = (Vec::new(), Vec::new());
    table::each(0, u32::MAX, |fd, entry| {
        let Some(index) = chosen(entry) else { return };
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
