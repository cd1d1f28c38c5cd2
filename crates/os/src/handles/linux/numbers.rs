//! Numbers of ours: above those that a program uses, and taken and given back so that it never finds one of
//! them where its own would be.

use core::sync::atomic::{fence, AtomicI32, AtomicU32, AtomicUsize, Ordering::*};

use super::is_open;
use crate::handles::own;
use crate::{clock, raw, sys, threads, Errno, Result};

/// Our descriptors start here unless the program's limit is lower. Higher would make the kernel
/// grow the descriptor table of every process for nothing.
const HIGH_FD: i32 = 3600;
/// Where they start in this process.
static LOWEST_OWN: AtomicI32 = AtomicI32::new(HIGH_FD);

/// The kernel gives new descriptors the lowest free number. Until one of ours is moved, the program
/// must not see that number taken, nor close it by mistake; so whoever of ours makes a descriptor
/// holds this for a few microseconds, and the program's calls that take a number stand aside.
/// Who holds it, as [`threads::name`] says, or 0.
static HOLDER: AtomicUsize = AtomicUsize::new(0);
/// Calls of the program's that are taking a number now, or naming one that may be nobody's.
static INSIDE: Inside = Inside::new();
/// Those of them that may last: an `open` of a FIFO.
static LASTING: Inside = Inside::new();
/// Those that take their number at their start, and then may wait: an `accept`.
static STARTING: Inside = Inside::new();
/// Descriptors of ours that are being closed: no more marked as ours, and perhaps still open.
static CLOSING: AtomicU32 = AtomicU32::new(0);

/// How often a holder is waited for, a yield or a short sleep each: one that has lost its core may
/// be away for a time slice or more.
const TURNS_MAX: u32 = 2000;
/// How often we wait for the program's calls that may last: none is harmed but in its number.
const ASIDE_MAX: u32 = 200;
/// And for those that have taken theirs long before, as a rule: by so many yields, for one may have lost its core first,
/// and for so many nanoseconds.
const START_MAX: u32 = 60;
const START_NS_MAX: u64 = 1_000_000;

/// Calls of the program's that none of our numbers may meet.
struct Inside {
    now: AtomicU32,
    /// How many of them have been waited for in vain: one may have ended without its return, by a jump or a
    /// thread's cancellation.
    stuck: AtomicU32,
}

impl Inside {
    const fn new() -> Inside {
        Inside { now: AtomicU32::new(0), stuck: AtomicU32::new(0) }
    }

    /// Waits, boundedly by `wait`, until none is on its way that has not been given up before.
    fn settle(&self, wait: impl FnOnce(&dyn Fn() -> bool) -> bool) {
        let stuck = self.stuck.load(Relaxed);
        let others = || self.now.load(SeqCst);
        let settled = wait(&|| others() <= stuck);
        let left = others();
        if !settled || left < stuck {
            self.stuck.store(left, Relaxed);
        }
    }

    #[inline]
    fn make<T>(&self, call: impl FnOnce() -> T) -> T {
        if threads::is_alone() {
            // Nobody else is there to hold one.
            return call();
        }
        // SYNC numbers -> Numbers::hold: either sees the other.
        self.now.fetch_add(1, SeqCst);
        let holder = HOLDER.load(SeqCst);
        if holder != 0 && holder != threads::name() {
            self.stand_aside();
        }
        let result = call();
        self.end();
        result
    }

    #[inline]
    fn end(&self) {
        match self.now.fetch_sub(1, SeqCst) {
            // In a child that a handler has forked within the call.
            0 => self.now.store(0, SeqCst),
            now if self.stuck.load(Relaxed) >= now => {
                self.stuck.fetch_min(now - 1, Relaxed);
            }
            _ => {}
        }
    }

    #[cold]
    fn stand_aside(&self) {
        for _ in 0..20 {
            self.now.fetch_sub(1, SeqCst);
            await_numbers();
            self.now.fetch_add(1, SeqCst);
            // The next holder waits for us, unless it came before we were counted again.
            if HOLDER.load(SeqCst) == 0 {
                break;
            }
        }
    }

    fn forget(&self) {
        self.now.store(0, SeqCst);
        self.stuck.store(0, SeqCst);
    }
}

/// Proof that no call of the program's, nor any other thread of ours, takes a number meanwhile.
pub struct Numbers {
    held: bool,
}

impl Numbers {
    /// Waits for its turn. Bounded, and then without.
    pub fn hold() -> Numbers {
        let me = threads::name();
        let free = || {
            // SYNC numbers -> Numbers::drop: the holder's descriptor has left the low numbers.
            match HOLDER.compare_exchange(0, me, SeqCst, Relaxed) {
                Err(holder) if holder == me => Some(false),
                taken => taken.ok().map(|_| true),
            }
        };
        let held = wait_for(TURNS_MAX, free).unwrap_or(false);
        if held {
            let in_turns = |turns, is_free: &dyn Fn() -> bool| {
                wait_for(turns, || is_free().then_some(())).is_some()
            };
            INSIDE.settle(|is_free| in_turns(TURNS_MAX, is_free));
            LASTING.settle(|is_free| in_turns(ASIDE_MAX, is_free));
            STARTING.settle(|is_free| yield_until(START_MAX, START_NS_MAX, is_free));
        }
        Numbers { held }
    }
}

impl Drop for Numbers {
    fn drop(&mut self) {
        if self.held {
            // SYNC numbers -> Numbers::hold, with_numbers: see there.
            HOLDER.store(0, SeqCst);
        }
    }
}

/// Makes a call of the program's that takes a number, or names one, while none of ours is among the low ones. It
/// does not last.
#[inline]
pub fn with_numbers<T>(call: impl FnOnce() -> T) -> T {
    INSIDE.make(call)
}

/// As [`with_numbers`], of one that may last.
#[inline]
pub fn with_numbers_for_long<T>(call: impl FnOnce() -> T) -> T {
    LASTING.make(call)
}

/// As [`with_numbers`], of one that takes its number at its start, and then may wait.
#[inline]
pub fn with_numbers_at_start<T>(call: impl FnOnce() -> T) -> T {
    STARTING.make(call)
}

/// Before the program gives up a number: lets others finish.
#[inline]
pub fn await_numbers() {
    if HOLDER.load(SeqCst) != 0 {
        await_holder();
    }
}

#[cold]
fn await_holder() {
    let me = threads::name();
    wait_for(TURNS_MAX, || {
        let holder = HOLDER.load(SeqCst);
        (holder == 0 || holder == me).then_some(())
    });
}

/// Yields the core between the looks, so often and for so many nanoseconds at most. Whether it came to be so.
fn yield_until(turns: u32, ns: u64, ready: &dyn Fn() -> bool) -> bool {
    if ready() {
        return true;
    }
    let began = clock::now_ns();
    (0..turns).take_while(|_| clock::now_ns() - began < ns).any(|_| {
        raw::sched_yield();
        ready()
    })
}

/// Tries at once, then yields the core, then sleeps between the tries (about 100 ms in all).
fn wait_for<T>(turns: u32, mut ready: impl FnMut() -> Option<T>) -> Option<T> {
    for turn in 0..turns {
        if let Some(result) = ready() {
            return Some(result);
        }
        if turn < 100 {
            raw::sched_yield();
        } else {
            raw::nanosleep(50_000);
        }
    }
    None
}

/// In a forked child, whose parent's threads do not exist.
pub fn forget_numbers() {
    HOLDER.store(0, SeqCst);
    INSIDE.forget();
    LASTING.forget();
    STARTING.forget();
    CLOSING.store(0, SeqCst);
}

/// Moves a fresh descriptor of ours out of the program's range and makes it CLOEXEC. The caller holds the
/// [`Numbers`].
///
/// # Errors
/// EMFILE when there is no room; the low descriptor is closed in any case.
pub fn place_high(fd: i32) -> Result<i32> {
    let high = duplicate_at_any_rate(fd);
    close(fd);
    high
}

/// Lends `act` a descriptor that it makes for it, which the program finds under none of its numbers.
pub(crate) fn for_a_moment<T>(
    make: impl FnOnce() -> Result<i32>,
    act: impl FnOnce(i32) -> T,
) -> Result<T> {
    let numbers = Numbers::hold();
    let low = make()?;
    let Ok(high) = duplicate(low) else {
        // Every number is the program's, which waits for this one.
        let result = act(low);
        close(low);
        return Ok(result);
    };
    close(low);
    drop(numbers);
    let result = act(high);
    close(high);
    Ok(result)
}

/// As [`place_high`], of one that is to stay.
///
/// # Errors
/// EMFILE also where the program is to have every number ([`has_room`]).
pub(super) fn keep_high(fd: i32) -> Result<i32> {
    let high = duplicate(fd);
    close(fd);
    high
}

/// As before, of one that is yet to be made.
///
/// # Errors
/// As `fd`, and as `keep_high`.
pub fn keep_high_at_once(fd: impl FnOnce() -> Result<i32>) -> Result<i32> {
    let _numbers = Numbers::hold();
    keep_high(fd()?)
}

/// Whether the program may mean one of ours by `fd`, or one that becomes ours or is closed at this moment:
/// [`is_own_here`] says.
#[inline]
pub fn may_be_own(fd: i32) -> bool {
    fd >= LOWEST_OWN.load(Relaxed)
}

/// Within [`with_numbers`]: whether the number is a descriptor of ours. If not, it becomes none meanwhile, and
/// is none that is yet to be closed.
#[inline]
pub fn is_own_here(fd: i32) -> bool {
    may_be_own(fd) && {
        let own = own::is_own(fd);
        if !own {
            await_closing();
        }
        own
    }
}

/// Within [`with_numbers`]: the lowest number of ours from `first` to `last`. Those below it are none, as
/// [`is_own_here`] says.
pub fn first_own_here(first: u32, last: u32) -> Option<u32> {
    let own = own::first_own(first, last);
    await_closing();
    own
}

/// Of the numbers that were found to be ours no more, none is open as ours.
fn await_closing() {
    // SYNC closing -> close: the mark was gone.
    fence(Acquire);
    wait_for(TURNS_MAX, || (CLOSING.load(SeqCst) == 0).then_some(()));
}

/// A program that may have no more numbers than this has them all.
const TINY: u64 = 64;

/// Whether the program's limit leaves room for numbers of ours.
pub fn has_room() -> bool {
    limit().is_ok_and(leaves_room)
}

fn leaves_room(limit: u64) -> bool {
    limit > TINY
}

/// How many descriptors this process may have (RLIMIT_NOFILE).
fn limit() -> Result<u64> {
    raw::limit(libc::RLIMIT_NOFILE)
}

/// Above every number that a program is likely to have.
pub fn numbers_end() -> i32 {
    limit().unwrap_or(0).clamp(4096, 1 << 20) as i32
}

/// So few numbers of ours that none is kept for a [`bequest`].
const FEW: i32 = 64;

/// Where our numbers start with this limit, and whether the first is kept for a [`bequest`].
fn lowest(limit: u64) -> (i32, bool) {
    match i32::try_from(limit) {
        Ok(limit) if limit <= HIGH_FD + 400 => (limit - limit / 4, limit / 4 > FEW),
        _ => (HIGH_FD, true),
    }
}

/// A second descriptor of the same open file, above the program's numbers and CLOEXEC.
///
/// # Errors
/// EMFILE when there is no room, or where the program is to have every number ([`has_room`]).
pub fn duplicate(fd: i32) -> Result<i32> {
    // The limit is read once: the program may lower it at any time.
    match limit()? {
        limit if leaves_room(limit) => duplicate_within(limit, fd),
        _ => Err(Errno(libc::EMFILE)),
    }
}

/// As [`duplicate`], and where the program is to have every number, one of the last of them: for what does its
/// bytes more harm if it is not done.
///
/// # Errors
/// EMFILE when there is no room.
pub fn duplicate_at_any_rate(fd: i32) -> Result<i32> {
    duplicate_within(limit()?, fd)
}

fn duplicate_within(limit: u64, fd: i32) -> Result<i32> {
    let (lowest, is_kept) = lowest(limit);
    LOWEST_OWN.fetch_min(lowest, Relaxed);
    // From the moment it is there to the mark: nobody closes it.
    let _numbers = Numbers::hold();
    // SAFETY: no pointers.
    let high =
        unsafe { sys!(libc::SYS_fcntl, fd, libc::F_DUPFD_CLOEXEC, lowest + i32::from(is_kept)) }?
            as i32;
    own::mark(high, true);
    Ok(high)
}

/// Has the kernel enlarge the table of descriptors for ours. It does that when a number is first taken,
/// and then a process of several threads waits for a grace period, some 10 ms (expand_fdtable in the
/// kernel's fs/file.c); one of a single thread does not.
pub fn make_room() {
    // Of a file of ours: the close of another copy ends the locks that a process has on a file (fcntl(2)).
    // SAFETY: no pointers.
    let made = keep_high_at_once(|| unsafe { sys!(libc::SYS_eventfd2, 0, 0).map(|fd| fd as i32) });
    if let Ok(high) = made {
        close(high);
    }
}

/// Leaves a file to the program that this process becomes, under a number that it knows: our first. The
/// descriptor is not closed by exec. `None` if that number is not to be had.
pub fn bequeath(file: i32) -> Option<i32> {
    let (number, is_kept) = lowest(limit().ok()?);
    if !is_kept {
        return None;
    }
    let _numbers = Numbers::hold();
    // SAFETY: no pointers.
    let copy = unsafe { sys!(libc::SYS_fcntl, file, libc::F_DUPFD, number) }.ok()? as i32;
    own::mark(copy, true);
    if copy != number {
        close(copy);
        return None;
    }
    Some(copy)
}

/// Whether there is a number for [`bequeath`].
pub fn keeps_bequests() -> bool {
    limit().is_ok_and(|limit| lowest(limit).1)
}

/// What the program that this process was before has left so, if it has: a memfd under that number.
pub fn bequest() -> Option<i32> {
    let (number, is_kept) = lowest(limit().ok()?);
    // SAFETY: no pointers.
    let is_there = is_kept && unsafe { sys!(libc::SYS_fcntl, number, libc::F_GET_SEALS) }.is_ok();
    is_there.then_some(number)
}

/// Closes a descriptor of ours.
pub fn close(fd: i32) {
    CLOSING.fetch_add(1, Relaxed);
    // SYNC closing -> await_closing: who finds the mark gone finds the count.
    fence(Release);
    own::mark(fd, false);
    // SAFETY: no pointers; the caller owns `fd`.
    let _ = unsafe { sys!(libc::SYS_close, fd) };
    CLOSING.fetch_sub(1, SeqCst);
}

/// The number is the program's from now on, and nobody closes it as ours. Whoever takes it waits for what was
/// unmarked before and is being closed.
pub fn give(fd: i32) {
    own::mark(fd, false);
    await_closing();
}

/// Whether the number was a descriptor of ours when the program had a list of its descriptors made, some time
/// ago: it is ours, or was and is not open any more. (If it is, it is the program's by now.)
pub fn was_listed_as_own(fd: i32) -> bool {
    if !may_be_own(fd) {
        return false;
    }
    // One that was just made is not marked before its maker lets the numbers go.
    await_numbers();
    if own::is_own(fd) {
        return true;
    }
    if !own::was_own(fd) {
        return false;
    }
    await_closing();
    !is_open(fd)
}

#[cfg(test)]
mod tests {
    use super::super::{eventfd, is_open};
    use super::*;

    /// Held by a test in which a number becomes the program's, and by those that count on none being so.
    static HIGH_NUMBERS: std::sync::Mutex<()> = std::sync::Mutex::new(());

    #[test]
    fn a_number_of_ours_was_listed_until_it_is_the_programs() {
        let _alone = HIGH_NUMBERS.lock();
        let fd = eventfd().expect("an eventfd");
        assert!(was_listed_as_own(fd));
        close(fd);
        assert!(was_listed_as_own(fd), "it is not open any more");
        // SAFETY: no pointers.
        let theirs = unsafe { sys!(libc::SYS_fcntl, 0, libc::F_DUPFD, fd) }.expect("room") as i32;
        assert!(!was_listed_as_own(theirs));
        // SAFETY: no pointers.
        let _ = unsafe { sys!(libc::SYS_close, theirs) };
        assert!(!was_listed_as_own(0) && !was_listed_as_own(i32::MAX));
    }

    #[test]
    fn what_is_not_ours_is_not_open_while_ours_come_and_go() {
        let _alone = HIGH_NUMBERS.lock();
        let made = eventfd().expect("an eventfd");
        close(made);
        std::thread::scope(|scope| {
            let maker = scope.spawn(|| (0..20_000).for_each(|_| close(eventfd().expect("room"))));
            while !maker.is_finished() {
                for fd in made..made + 4 {
                    assert!(with_numbers(|| is_own_here(fd) || !is_open(fd)), "{fd}");
                }
            }
        });
    }

    #[test]
    fn a_tiny_limit_leaves_every_number_to_the_program() {
        // SAFETY: the child makes system calls only.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let limit = libc::rlimit { rlim_cur: TINY, rlim_max: TINY };
            // SAFETY: no pointers that outlive the calls; the child is alone.
            unsafe {
                libc::syscall(libc::SYS_close_range, 3, u32::MAX, 0);
                let limited = libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) == 0;
                let none =
                    [duplicate(0), eventfd(), keep_high_at_once(|| duplicate_at_any_rate(0))]
                        .iter()
                        .all(|got| got.is_err());
                let lent = for_a_moment(|| Ok(libc::dup(0)), |fd| fd == 3) == Ok(true);
                let at_any_rate = duplicate_at_any_rate(0).is_ok_and(|fd| (3..64).contains(&fd));
                libc::_exit(i32::from(!(limited && none && lent && at_any_rate)));
            }
        }
        let mut status = 0;
        // SAFETY: a child of ours; room for the status.
        let ended = unsafe { libc::waitpid(child, &raw mut status, 0) };
        assert_eq!((ended, status), (child, 0));
    }

    #[test]
    fn room_is_made_for_our_numbers() {
        make_room();
        let status = std::fs::read_to_string("/proc/self/status").expect("proc(5)");
        let size = status.lines().find_map(|line| line.strip_prefix("FDSize:"));
        let size: u64 = size.and_then(|size| size.trim().parse().ok()).expect("a number");
        let high = duplicate(0).expect("standard input");
        assert!(size > high as u64);
        close(high);
    }
}
