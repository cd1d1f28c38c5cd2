//! poll, ppoll, select and pselect over mixed sets.
//!
//! Without an attached stream the call is the kernel's. With one, the kernel is asked about
//! everything else, and a bell box, an epoll set of ours that holds the bells of the links, stands
//! in for the rings while the thread sleeps. Streams that may yet be attached count a sleep of either
//! kind, so that nobody goes up to a sleeper whom no bell reaches.

use core::ffi::c_void;
use core::sync::atomic::{AtomicU32, Ordering::*};

use libc::{nfds_t, pollfd, sigset_t};
use shunt_link::Link;
use shunt_os::critical::{self, Handled};
use shunt_os::{clock, handles, park, raw, real, set_errno, signals};
use shunt_readiness::interest::bits;
use shunt_readiness::policy::Policy;
use shunt_stats::Reason;

pub use self::bells::provide;

use self::bells::BellBox;
use self::counted::{count_in, count_out, Counted};
use self::held::{Held, Watch};
use self::lone::Lone;
use crate::outcome::Outcome;
use crate::pool::{self, Mode, Socket};
use crate::receive::is_no_address;
use crate::table::{self, Entry};
use crate::wait::blocking::Spun;
use crate::wait::joined::Joined;
use crate::wait::{blocking, state, Question, Signals};

mod bells;
mod counted;
mod held;
mod lone;
pub mod numbers;
mod select;

pub use select::{bounded, select};

/// Threads that sleep in a box, or are about to.
static SLEEPERS: AtomicU32 = AtomicU32::new(0);

/// Whether somebody sleeps in poll or select: a descriptor that another thread closes is looked at
/// again.
pub fn somebody_sleeps() -> bool {
    SLEEPERS.load(SeqCst) > 0
}
static POLICY: Policy = Policy::new();
static TURN: crate::wait::KernelTurn = crate::wait::KernelTurn::new();

/// Sets larger than this are polled without the stack buffer.
const SMALL: usize = 64;

/// `poll` and `ppoll`. `timeout` in nanoseconds; `None` is for ever.
///
/// # Safety
/// `entries` is what the program passed for `count`.
pub unsafe fn poll(
    entries: *mut pollfd,
    count: nfds_t,
    timeout: Option<u64>,
    mask: *const sigset_t,
    genuine: impl FnOnce() -> isize,
) -> Outcome {
    // SAFETY: the caller's word.
    unsafe { poll_with(|| Signals::begin(mask), entries, count, timeout, genuine) }
}

/// As [`poll`](poll()), in a call that may have begun before. The `signals` are asked for if it is not the kernel's.
///
/// # Safety
/// As there, and the mask is null or the program's.
#[inline]
unsafe fn poll_with(
    signals: impl FnOnce() -> Signals,
    entries: *mut pollfd,
    count: nfds_t,
    timeout: Option<u64>,
    genuine: impl FnOnce() -> isize,
) -> Outcome {
    let is_list = count > 0 && count <= 1 << 20 && !is_no_address(entries.cast());
    if !is_list || table::has_had_none() || is_beyond_limit(count) {
        return Outcome::PassThrough;
    }
    // SAFETY: the program's own array.
    let list = unsafe { core::slice::from_raw_parts_mut(entries, count as usize) };
    let (by_tcp, attached) = prepare(list);
    if !by_tcp && !attached {
        return Outcome::PassThrough;
    }
    if !attached {
        let counted = count_in(list);
        if counted.is_all() {
            return natively(list, &counted, genuine);
        }
        count_out(list, &counted);
    }
    let errno = shunt_os::errno();
    let outcome = mixed(list, timeout, signals());
    if !is_refused(&outcome) {
        return outcome;
    }
    // The kernel alone can wait, also for those that come to a ring meanwhile.
    loop {
        leave_rings(list);
        let counted = count_in(list);
        set_errno(errno);
        if counted.is_all() {
            return natively(list, &counted, genuine);
        }
        count_out(list, &counted);
    }
}

/// The kernel's poll, of streams that are counted meanwhile.
fn natively(list: &[pollfd], counted: &Counted, genuine: impl FnOnce() -> isize) -> Outcome {
    let result = genuine();
    let errno = shunt_os::errno();
    count_out(list, counted);
    set_errno(errno);
    Outcome::Genuine(result)
}

/// The kernel refuses a list for its length, which is as long as one may be: a bell has made it longer. And this is
/// what a sleep says for which no bell can be had.
const REFUSED: i32 = libc::EINVAL;

fn leave_rings(list: &[pollfd]) {
    for (index, _) in list.iter().filter_map(|entry| attached(entry.fd)) {
        crate::attach::leave(index, Reason::NoDescriptors);
    }
}

fn is_refused(outcome: &Outcome) -> bool {
    match outcome {
        Outcome::Genuine(-1) => shunt_os::errno() == REFUSED,
        Outcome::Failed(number) => *number == REFUSED,
        _ => false,
    }
}

/// Whether the kernel refuses a list for its length (poll(2), EINVAL): it may not be there then.
fn is_beyond_limit(count: nfds_t) -> bool {
    // A limit below is rare, and a list that is a little longer is there.
    const SHORT: nfds_t = 64;
    count > SHORT
        && raw::limit(libc::RLIMIT_NOFILE).is_ok_and(|limit| limit < count as usize as u64)
}

/// Leaves to the kernel what only it can be asked about. Whether the list names streams on TCP, and attached
/// ones.
fn prepare(list: &[pollfd]) -> (bool, bool) {
    let (mut by_tcp, mut attached) = (false, false);
    for entry in list {
        match table::get(entry.fd) {
            Entry::Socket(index) => match pool::get(index).mode() {
                Mode::Plain | Mode::Left => by_tcp = true,
                Mode::Attached => attached = true,
                Mode::Inherited => {
                    crate::inherit::touch(index);
                    by_tcp = true;
                }
                Mode::Free => {}
            },
            Entry::Set(set) if entry.fd >= 0 => {
                crate::wait::epoll::leave_set(set, Reason::NestedEpoll);
            }
            // As `io::receive_is_kernels`.
            Entry::Unknown => shunt_os::handles::await_numbers(),
            _ => {}
        }
    }
    (by_tcp, attached)
}

/// Whether a stream of the list is on TCP as far as is known without its locks.
fn some_by_tcp(list: &[pollfd]) -> bool {
    list.iter().any(|entry| match table::get(entry.fd) {
        Entry::Socket(index) => {
            let socket = pool::get(index);
            socket.mode() != Mode::Attached && socket.messages_in.load(Relaxed) > 0
        }
        _ => false,
    })
}

fn attached(fd: i32) -> Option<(u32, &'static Socket)> {
    let Entry::Socket(index) = table::get(fd) else { return None };
    let socket = pool::get(index);
    (socket.mode() == Mode::Attached).then_some((index, socket))
}

/// Fills `revents` of attached streams; returns how many are ready, and how many entries are others. They get 0.
fn look(list: &mut [pollfd]) -> (usize, usize) {
    let (mut ready, mut others) = (0, 0);
    for entry in list.iter_mut() {
        entry.revents = 0;
        let Some((_, socket)) = attached(entry.fd) else {
            others += usize::from(entry.fd >= 0);
            continue;
        };
        let Some(mask) = state::mask(socket, u32::from(entry.events as u16)) else {
            // It has just left.
            others += 1;
            continue;
        };
        entry.revents = events_of(entry, mask);
        ready += usize::from(entry.revents != 0);
    }
    (ready, others)
}

/// How many entries are no attached streams.
fn others_in(list: &[pollfd]) -> usize {
    list.iter().filter(|entry| entry.fd >= 0 && attached(entry.fd).is_none()).count()
}

/// What of a stream's mask an entry is told.
fn events_of(entry: &pollfd, mask: u32) -> i16 {
    (mask & (u32::from(entry.events as u16) | bits::ERR | bits::HUP)) as i16
}

fn links_of(streams: impl Iterator<Item = &'static Socket>) -> Vec<&'static Link> {
    let mut links: Vec<&'static Link> = Vec::new();
    for link in streams.filter_map(Socket::link) {
        if !links.iter().any(|known| core::ptr::eq(*known, link)) {
            links.push(link);
        }
    }
    links
}

fn mixed(list: &mut [pollfd], timeout: Option<u64>, signals: Signals) -> Outcome {
    park::test_cancel();
    let (began, mask) = (clock::now_ns(), signals.mask);
    let mut spun = false;
    let mut box_: Option<BellBox> = None;
    let mut held: Option<Held> = None;
    let outcome = loop {
        let (ready, others) = look(list);
        let foreign = others > 0;
        // A stream may come to a ring at any moment, or leave it: asked here or there, it is told of at neither.
        let some_moved = |list: &[pollfd]| others_in(list) != others;
        let left = timeout.map(|limit| limit.saturating_sub(clock::now_ns() - began));
        // While the rings satisfy every call, the kernel is asked about the rest now and then.
        // Not so about other streams: a byte that came by TCP before one by a ring is told with it.
        // A call that only looks is told all that there is.
        let looks = timeout == Some(0);
        let streams =
            || list.iter().filter_map(|entry| attached(entry.fd)).map(|(_, socket)| socket);
        let is_due = || TURN.is_due(crate::wait::doings(links_of(streams())));
        let skip = ready > 0 && foreign && !looks && !some_by_tcp(list) && !is_due();
        if ready > 0 || left == Some(0) || foreign {
            // Signals that the mask lets in come by the kernel's look alone, if there is nothing to tell.
            let lets_in = ready == 0 && !mask.is_null();
            if !foreign && !lets_in || skip && !some_moved(list) {
                break Outcome::Handled(ready as isize);
            }
            let question = Question::begin();
            // SAFETY: no box, the program's list.
            match unsafe { kernel(list, None, Some(0), mask) } {
                Err(()) => break Outcome::Genuine(-1),
                Ok(_) if some_moved(list) => continue,
                Ok(more) if ready + more > 0 || left == Some(0) => {
                    TURN.answered(&question, more > 0, true);
                    break Outcome::Handled((ready + more) as isize);
                }
                Ok(_) => {}
            }
        }
        let spin = POLICY.spin_ns().min(left.unwrap_or(u64::MAX));
        if spin > 0 && !spun {
            spun = true;
            let start = clock::now_ns();
            match blocking::spin_until(&POLICY, start, spin, blocking::LOOKS, || changed(list)) {
                Spun::Changed => {
                    POLICY.caught();
                    continue;
                }
                Spun::LostCore => POLICY.overloaded(),
                Spun::InVain => POLICY.in_vain(),
            }
        }
        let left = || timeout.map(|limit| limit.saturating_sub(clock::now_ns() - began));
        // A handler may have run since the call began; to the program the thread has slept meanwhile.
        if signals.interrupt() {
            break told_to_interrupted(list, libc::EINTR);
        }
        let held = held.get_or_insert_with(|| Held::of(list));
        let slept = sleep(list, held, &mut box_, left, signals);
        let errno = shunt_os::errno();
        // A number may name something else by now.
        prepare(list);
        if !slept {
            break told_to_interrupted(list, errno);
        }
    };
    if let Some(mut held) = held {
        held.let_go();
    }
    if let Some(mut bell_box) = box_ {
        bell_box.give_back();
    }
    outcome
}

/// Who is interrupted looks once more at the numbers, and is told of what there is.
fn told_to_interrupted(list: &mut [pollfd], number: i32) -> Outcome {
    let (ready, _) = look(list);
    // SAFETY: no box, the program's list; the signal has been delivered.
    let more = unsafe { kernel(list, None, Some(0), core::ptr::null()) }.unwrap_or(0);
    if ready + more > 0 {
        Outcome::Handled((ready + more) as isize)
    } else {
        Outcome::Failed(number)
    }
}

/// Sleeps until the numbers of the list are worth another look. A thread that is woken for nothing sleeps
/// on: the kernel, which nothing wakes, would not look whom they name now. False is the kernel's error,
/// in `errno`. Apart from the way of a poll that finds something.
#[cold]
#[inline(never)]
fn sleep(
    list: &mut [pollfd],
    held: &mut Held,
    bell_box: &mut Option<BellBox>,
    left: impl Fn() -> Option<u64>,
    signals: Signals,
) -> bool {
    loop {
        // The caller tells of a handler.
        if held.forget_lost(list) || signals.interrupt() {
            return true;
        }
        let began = clock::now_ns();
        let slept = sleep_once(list, held, bell_box, &left, signals);
        if slept != Slept::Not {
            POLICY.slept(clock::now_ns() - began);
        }
        match slept {
            Slept::Failed => return false,
            Slept::Well
                if left() != Some(0) && !held.is_outdated(list) && !held.is_stirred(list) => {}
            Slept::Not => {
                held.forget_told(list);
                return true;
            }
            Slept::Well | Slept::ForOthers => return true,
        }
    }
}

#[derive(PartialEq, Eq)]
enum Slept {
    /// There was something to see before.
    Not,
    /// Until something stirred, or the time was over.
    Well,
    /// Until the kernel told of a descriptor that is not ours.
    ForOthers,
    /// The kernel's error, in `errno`.
    Failed,
}

/// Sleeps until something stirs, unless it has already.
fn sleep_once(
    list: &mut [pollfd],
    held: &mut Held,
    bell_box: &mut Option<BellBox>,
    left: impl Fn() -> Option<u64>,
    signals: Signals,
) -> Slept {
    // A stream is counted, or has a bell, or the sleep is off.
    let counted = count_in(list);
    held.hold(list);
    if counted.some_skipped {
        if let Some(lone) = Lone::of(list, held, signals) {
            return lone.sleep(list, held, bell_box, left, signals);
        }
    }
    let bell_box = bell_box.get_or_insert_with(bells::take);
    if bell_box.fd < 0 {
        count_out(list, &counted);
        set_errno(REFUSED);
        return Slept::Failed;
    }
    let links = bell_box.join(&held.links());
    SLEEPERS.fetch_add(1, SeqCst);
    for joined in &links {
        joined.link.enter_poll();
        joined.announce(0, 1);
    }
    let slept = Slept::Not;
    held.arm(&links);
    let mut sleeper = Sleeper { links, held, counted, bell_box, list, left: None, signals, slept };
    if !sleeper.held.stands_on(&sleeper.links) {
        // A stream has come to another link since, whose bell is to be waited for.
        sleeper.slept = Slept::Well;
    } else if !sleeper.held.is_stirred(sleeper.list) && !sleeper.counted.some_attached {
        sleeper.left = left();
        let itself = (&raw mut sleeper).cast();
        // SAFETY: both take a sleeper, which outlives the call.
        unsafe { park::call_cancellable(Sleeper::sleep, itself, Sleeper::cancelled, itself) };
        let errno = shunt_os::errno();
        sleeper.bell_box.empty();
        set_errno(errno);
    }
    sleeper.wake();
    sleeper.slept
}

/// What a thread that sleeps has announced.
struct Sleeper<'a> {
    links: Vec<Joined>,
    held: &'a mut Held,
    counted: Counted,
    bell_box: &'a mut BellBox,
    list: &'a mut [pollfd],
    left: Option<u64>,
    signals: Signals,
    slept: Slept,
}

impl Sleeper<'_> {
    /// # Safety
    /// `itself` is a sleeper with the program's list.
    unsafe extern "C" fn sleep(itself: *mut c_void) {
        // SAFETY: the caller's word.
        let sleeper = unsafe { &mut *itself.cast::<Sleeper>() };
        let (bell, mask) = (sleeper.bell_box.fd, sleeper.signals.mask);
        let beside = Beside { bell, held: sleeper.held, handled: sleeper.signals.handled };
        // SAFETY: the program's list.
        let told = unsafe { kernel(sleeper.list, Some(beside), sleeper.left, mask) };
        sleeper.slept = match told {
            Ok(0) => Slept::Well,
            Ok(_) => Slept::ForOthers,
            Err(()) => Slept::Failed,
        };
    }

    /// The thread was cancelled in its sleep.
    ///
    /// # Safety
    /// `itself` is a sleeper, and nobody uses it afterwards.
    unsafe extern "C" fn cancelled(itself: *mut c_void) {
        // SAFETY: the caller's word.
        let sleeper = unsafe { &mut *itself.cast::<Sleeper>() };
        critical::forget_limit();
        sleeper.wake();
        sleeper.held.let_go();
        sleeper.bell_box.give_back();
        sleeper.links = Vec::new();
    }

    fn wake(&mut self) {
        for joined in &self.links {
            joined.announce(1, 0);
            joined.link.leave_poll();
        }
        self.held.disarm();
        SLEEPERS.fetch_sub(1, SeqCst);
        // Marks that a sleeper of this kind leaves behind belong to epoll sets, if to anybody.
        crate::wait::stir_marked(self.links.iter().map(|joined| joined.link));
        count_out(self.list, &self.counted);
    }
}

/// Whether any attached stream looks different from an idle one: cheap, for spinning.
fn changed(list: &[pollfd]) -> bool {
    list.iter().any(|entry| {
        let Some((_, socket)) = attached(entry.fd) else { return false };
        blocking::direction(socket, false).is_some_and(|d| d.tail() != d.head() || d.end() != 3)
            || socket.companion_stirred.is_set()
            || socket.full.load(Relaxed)
                && blocking::direction(socket, true).is_none_or(blocking::has_room)
    })
}

/// What a thread that sleeps has beside its list.
#[derive(Clone, Copy)]
struct Beside<'a> {
    bell: i32,
    held: &'a Held,
    /// What the thread had handled when the call began.
    handled: Handled,
}

/// The kernel's answer for everything: foreign descriptors as asked, attached streams only for
/// what TCP alone knows. Adds to `revents`; returns how many foreign entries are ready.
unsafe fn kernel(
    list: &mut [pollfd],
    beside: Option<Beside<'_>>,
    timeout: Option<u64>,
    mask: *const sigset_t,
) -> Result<usize, ()> {
    let mut small = [pollfd { fd: -1, events: 0, revents: 0 }; SMALL + 1];
    let mut large;
    let asked: &mut [pollfd] = if list.len() < SMALL {
        &mut small[..list.len() + 1]
    } else {
        large = vec![pollfd { fd: -1, events: 0, revents: 0 }; list.len() + 1];
        &mut large[..]
    };
    let watch = |position: usize, fd: i32| match (beside, attached(fd)) {
        (Some(beside), _) => beside.held.watch(position, fd),
        (None, Some((_, socket))) => Watch::Stream(socket),
        (None, None) => Watch::Kernel(fd),
    };
    for (position, (to, from)) in asked.iter_mut().zip(list.iter()).enumerate() {
        *to = match watch(position, from.fd) {
            // Looking without waiting was done already.
            Watch::Stream(_) if beside.is_none() => *to,
            Watch::Stream(socket) => pollfd {
                fd: socket.fd.load(Relaxed),
                events: companion_events(socket, from.events),
                revents: 0,
            },
            Watch::Kernel(fd) => pollfd { fd, events: from.events, revents: 0 },
            Watch::Nobody => *to,
        };
    }
    let bell = beside.map_or(-1, |beside| beside.bell);
    asked[list.len()] = pollfd { fd: bell, events: libc::POLLIN, revents: 0 };
    let span = timeout.map(clock::span);
    let mut call = |span| {
        // SAFETY: our own array and a valid timespec; the mask is the program's.
        unsafe { real::ppoll(asked.as_mut_ptr(), asked.len() as nfds_t, span, mask) }
    };
    let got = match beside {
        Some(Beside { handled, .. }) if signals::lets_in_as_much(mask) => {
            let limit = span.unwrap_or(clock::span(blocking::FAR_NS));
            critical::sleep_unless_handled(handled, limit, call).unwrap_or(0)
        }
        _ => call(span.as_ref().map_or(core::ptr::null(), |span| &raw const *span)),
    };
    if got < 0 {
        return Err(());
    }
    let mut ready = 0;
    let rang = asked[list.len()].revents != 0;
    for (position, (from, to)) in asked.iter().zip(list.iter_mut()).enumerate() {
        if from.revents == 0 {
            continue;
        }
        match watch(position, to.fd) {
            // Its number was closed meanwhile, which wakes nobody: a signal did.
            Watch::Stream(_) if from.revents & libc::POLLNVAL != 0 && !rang => ready += 1,
            Watch::Stream(socket) => socket.companion_stirred.set(),
            Watch::Kernel(_) | Watch::Nobody => {
                to.revents = from.revents;
                ready += 1;
            }
        }
    }
    Ok(ready)
}

/// What to ask the kernel of an attached stream's connection during a sleep: what is already
/// known to be so must not end the sleep at once.
fn companion_events(socket: &Socket, asked: i16) -> i16 {
    let mut events = 0;
    let reads_tcp = !blocking::on_ring(socket);
    if reads_tcp {
        events |= asked & (libc::POLLIN | libc::POLLRDNORM);
    }
    if socket.send.lock().writer.on() == shunt_stream::WriterOn::Tcp {
        events |= asked & (libc::POLLOUT | libc::POLLWRNORM);
    }
    let now = handles::poll_now(socket.fd.load(Relaxed), libc::POLLRDHUP | libc::POLLPRI);
    events | (asked & libc::POLLPRI | libc::POLLRDHUP) & !now
}

/// In a forked child: the boxes are the parent's, and so is whoever slept.
///
/// # Safety
/// The process has one thread.
pub unsafe fn after_fork() {
    // SAFETY: one thread, by the caller's word.
    unsafe { bells::after_fork() };
    // SAFETY: the same.
    unsafe { numbers::after_fork() };
    SLEEPERS.store(0, Relaxed);
}
