//! `epoll_wait`: what the rings and the kernel have to tell, in one answer.

use core::sync::atomic::Ordering::*;

use libc::epoll_event;
use shunt_link::Link;
use shunt_os::{clock, park, real, set_errno};

use super::members::take_over;
use super::registration::Era;
use super::{put_off, set_at, Set, BELL};
use crate::outcome::Outcome;
use crate::pool;
use crate::process;
use crate::table::{self, Entry};
use crate::wait::blocking::{self, Spun};
use crate::wait::{doings, state, stir_marked};

/// How long `epoll_wait` may take.
#[derive(Clone, Copy)]
pub struct Limits {
    /// Nanoseconds; `None` is for ever.
    pub timeout: Option<u64>,
    pub mask: *const libc::sigset_t,
}

/// `epoll_wait` and its relatives.
///
/// # Safety
/// `events` is writable for `count` events, as the program says.
pub unsafe fn wait(set_fd: i32, events: *mut epoll_event, count: i32, limits: Limits) -> Outcome {
    put_off::settle();
    let Entry::Set(index) = table::get(set_fd) else { return Outcome::PassThrough };
    let set = set_at(index);
    if crate::receive::is_no_address(events.cast()) && count > 0 {
        let mut room = epoll_event { events: 0, u64: 0 };
        // SAFETY: room for one.
        return match unsafe { wait(set_fd, &raw mut room, 1, limits) } {
            Outcome::Handled(1..) => Outcome::Failed(libc::EFAULT),
            outcome => outcome,
        };
    }
    if count <= 0 || count as usize > i32::MAX as usize / 12 {
        return Outcome::PassThrough;
    }
    take_over(index);
    let began = clock::now_ns();
    if set.managed.load(SeqCst) == 0 {
        // Nothing of ours in it now; a stream attached meanwhile makes the kernel's wait return
        // with our tag, which is taken out below.
        set.sleepers.fetch_add(1, SeqCst);
        let touched = set.touched.load(SeqCst);
        let era = if touched { set.inner.lock().era } else { Era::default() };
        let got = if set.managed.load(SeqCst) == 0 {
            // SAFETY: the program's own arguments.
            unsafe { native(set_fd, events, count, limits.timeout, limits.mask) }
        } else {
            0
        };
        set.sleepers.fetch_sub(1, SeqCst);
        if got < 0 {
            return Outcome::Genuine(got as isize);
        }
        if !set.touched.load(SeqCst) && !set.watched.load(Relaxed) {
            return Outcome::Handled(got as isize);
        }
        // SAFETY: the kernel wrote `got` events.
        let mut kept = unsafe { sift(set, events, got as usize) };
        if kept > 0 && set.touched.load(SeqCst) {
            // What our tags say is told with the rest.
            // SAFETY: the caller's buffer.
            kept += unsafe { collect(set, events, kept, count as usize, Some(era)) };
        }
        let over = limits.timeout.is_some_and(|limit| clock::now_ns() - began >= limit);
        if kept > 0 || (got == 0 && over) {
            return Outcome::Handled(kept as isize);
        }
    }
    park::test_cancel();
    // SAFETY: as above.
    unsafe { wait_managed(set, set_fd, events, count as usize, limits, began) }
}

unsafe fn native(
    set_fd: i32,
    events: *mut epoll_event,
    count: i32,
    timeout: Option<u64>,
    mask: *const libc::sigset_t,
) -> i32 {
    // Whole milliseconds go the way the program's own call would; finer ones need pwait2.
    match timeout {
        // SAFETY: the caller's arguments.
        None => unsafe { real::epoll_pwait(set_fd, events, count, -1, mask) },
        Some(ns) if ns % 1_000_000 == 0 && ns / 1_000_000 <= i32::MAX as u64 => {
            // SAFETY: the caller's arguments.
            unsafe { real::epoll_pwait(set_fd, events, count, (ns / 1_000_000) as i32, mask) }
        }
        Some(ns) => {
            let span = clock::span(ns);
            // SAFETY: the caller's arguments and a valid timespec.
            unsafe { real::epoll_pwait2(set_fd, events, count, &span, mask) }
        }
    }
}

/// Takes our tags out of `events[..got]` and queues what they name; returns how many of the program's
/// own events are left there.
unsafe fn sift(set: &Set, events: *mut epoll_event, got: usize) -> usize {
    let secret = process::secret();
    let mut kept = 0;
    for at in 0..got {
        // SAFETY: within the events that the kernel wrote.
        let event = unsafe { events.add(at).read_unaligned() };
        let data = event.u64;
        if (data >> 32) as u32 != secret {
            // SAFETY: `kept <= at`.
            unsafe { events.add(kept).write_unaligned(event) };
            kept += 1;
            if set.watched.load(Relaxed) {
                set.inner.lock().reported(data, event.events);
            }
            continue;
        }
        let low = data as u32;
        if low != BELL {
            let mut inner = set.inner.lock();
            let socket = inner.registrations.get(low as i32).map(|r| r.socket);
            if let Some(index) = socket {
                pool::get(index).companion_stirred.store(true, Release);
            }
            inner.queue(low as i32);
        }
    }
    kept
}

/// Moves the marks of the set's links to the candidates of whatever sets hold the streams.
fn drain_links(set: &Set) {
    let links: Vec<&'static Link> = {
        let inner = set.inner.lock();
        inner.links.iter().copied().filter(|link| link.own_ready().any()).collect()
    };
    stir_marked(&links);
}

/// Reports candidates into `events[from..count]`; returns how many. What became ours after `era` may
/// be among the events that the kernel told before, and is then left for the next wait.
unsafe fn collect(
    set: &Set,
    events: *mut epoll_event,
    from: usize,
    count: usize,
    era: Option<Era>,
) -> usize {
    let mut filled = from;
    let mut inner = set.inner.lock();
    let rounds = inner.candidates.len();
    for _ in 0..rounds {
        if filled == count {
            break;
        }
        let Some(fd) = inner.candidates.pop_front() else { break };
        let Some(registration) = inner.registrations.get_mut(fd) else { continue };
        registration.queued = false;
        let data = registration.interest.data;
        // SAFETY: within the events that were told.
        let told = || (0..from).any(|at| unsafe { events.add(at).read_unaligned() }.u64 == data);
        if era.is_some_and(|era| registration.ours_since.is_after(era)) && told() {
            inner.queue(fd);
            continue;
        }
        let (index, generation) = (registration.socket, registration.generation);
        let (interest, version) = (registration.interest, registration.version);
        let socket = pool::get(index);
        if interest.disabled || socket.generation.load(Relaxed) != generation {
            continue;
        }
        // The stream's locks come before the set's.
        drop(inner);
        let edge = interest.is_edge();
        // Before the look, so that what comes after it is told: to a stream that is ready it costs
        // the peer one more mark, to one that is not it saves a second look.
        state::arm(socket);
        let now = state::look(socket, edge);
        inner = set.inner.lock();
        let Some(now) = now else { continue };
        let Some(registration) = inner.registrations.get_mut(fd) else { continue };
        if registration.generation != generation || !registration.managed {
            continue;
        }
        if registration.apart == now.on_ring {
            inner.registrations.set_apart(fd, !now.on_ring);
        }
        let Some(registration) = inner.registrations.get_mut(fd) else { continue };
        if registration.version != version {
            // Another thread was told meanwhile, and may have read what was seen here.
            inner.queue(fd);
            continue;
        }
        if edge && !registration.has_edge(&now) {
            continue;
        }
        let report = registration.interest.report(now.mask);
        if report.events != 0 {
            registration.tell(&now);
        }
        let data = registration.interest.data;
        if report.events != 0 {
            // SAFETY: `filled < count`.
            unsafe {
                events
                    .add(filled)
                    .write_unaligned(epoll_event { events: report.events, u64: data });
            }
            filled += 1;
        }
        if report.stays {
            inner.queue(fd);
        }
    }
    filled - from
}

unsafe fn wait_managed(
    set: &Set,
    set_fd: i32,
    events: *mut epoll_event,
    count: usize,
    limits: Limits,
    began: u64,
) -> Outcome {
    let mut spun = false;
    loop {
        drain_links(set);
        // SAFETY: the caller's buffer.
        let first = unsafe { kernel_first(set, set_fd, events, count, &limits) };
        if first.told < 0 {
            return Outcome::Genuine(-1);
        }
        let mut filled = first.told as usize;
        // Where the kernel told nothing, nothing can be told twice.
        let era = first.era.filter(|_| filled > 0);
        // SAFETY: the caller's buffer.
        filled += unsafe { collect(set, events, filled, count, era) };
        let left = limits.timeout.map(|limit| limit.saturating_sub(clock::now_ns() - began));
        // Never behind the rings' events: a stream that left its ring since would be told twice.
        // Before a sleep the kernel is asked by the sleep itself.
        let due = filled == 0
            && first.era.is_none()
            && (left == Some(0) || set.turn.is_due(set.doings()));
        if due {
            // SAFETY: the caller's buffer.
            let more = unsafe { kernel_now(set, set_fd, events, count, limits.mask) };
            if more < 0 {
                return Outcome::Genuine(-1);
            }
            filled = more as usize;
            set.turn.answered(more > 0);
            if filled == 0 && set.has_candidates() {
                continue;
            }
        }
        if filled > 0 || left == Some(0) {
            if filled == count && set.sleepers.load(Relaxed) > 0 && set.has_candidates() {
                // There is work for another thread that sleeps on the set.
                set.kick(&set.inner.lock());
            }
            return Outcome::Handled(filled as isize);
        }
        let spin = set.policy.spin_ns().min(left.unwrap_or(u64::MAX));
        if spin > 0 && !spun {
            spun = true;
            let start = clock::now_ns();
            let links = set.inner.lock().links.clone();
            let stirred =
                || links.iter().any(|link| link.own_ready().any()) || set.has_candidates_hint();
            match blocking::spin_until(&set.policy, start, spin, stirred) {
                Spun::Changed => {
                    set.policy.observe(0, false);
                    continue;
                }
                Spun::LostCore => set.policy.overloaded(),
                Spun::InVain => {}
            }
        }
        let era = set.inner.lock().era;
        // SAFETY: the caller's buffer.
        let got = unsafe { sleep(set, set_fd, events, count, limits, began) };
        if got < 0 {
            return Outcome::Genuine(-1);
        }
        if got > 0 {
            set.turn.answered(true);
            // What our tags say is told with the rest.
            // SAFETY: the caller's buffer.
            let more = unsafe { collect(set, events, got as usize, count, Some(era)) };
            return Outcome::Handled(got + more as isize);
        }
    }
}

/// What [`kernel_first`] did.
struct First {
    /// Events written; negative is an error, in `errno`.
    told: isize,
    /// Set if the kernel was asked: when.
    era: Option<Era>,
}

/// Asks the kernel before the rings: at its turn, for a wait that only looks, and wherever a set has
/// streams of both kinds. There a byte sent by TCP before one by a ring is to be told before it, or
/// with it, as the kernel would: who has seen the rings' marks finds in the kernel's set whatever came
/// earlier.
unsafe fn kernel_first(
    set: &Set,
    set_fd: i32,
    events: *mut epoll_event,
    count: usize,
    limits: &Limits,
) -> First {
    let (marked, era) = {
        let inner = set.inner.lock();
        let asks = !inner.candidates.is_empty()
            && (inner.registrations.apart() != 0
                || limits.timeout == Some(0)
                || set.turn.is_due(doings(&inner.links)))
            // If it filled the buffer last time, the rings' turn has come.
            && !set.crowded.swap(false, Relaxed);
        if !asks {
            return First { told: 0, era: None };
        }
        (inner.candidates.len(), inner.era)
    };
    // SAFETY: the caller's buffer.
    let told = unsafe { kernel_now(set, set_fd, events, count, limits.mask) };
    set.crowded.store(told == count as isize, Relaxed);
    set.turn.answered(told > 0);
    let mut inner = set.inner.lock();
    if inner.candidates.len() > marked {
        // What its tags have queued came before the marks, too.
        inner.candidates.rotate_left(marked);
    }
    First { told, era: Some(era) }
}

/// The kernel's set without waiting. Negative is an error, in `errno`.
unsafe fn kernel_now(
    set: &Set,
    set_fd: i32,
    events: *mut epoll_event,
    count: usize,
    mask: *const libc::sigset_t,
) -> isize {
    let mut asked = false;
    let result = loop {
        // SAFETY: the caller's buffer.
        let got = unsafe { real::epoll_pwait(set_fd, events, count as i32, 0, mask) };
        if got <= 0 {
            break got as isize;
        }
        asked = true;
        // SAFETY: the kernel wrote `got` events.
        let kept = unsafe { sift(set, events, got as usize) };
        // Our own tags may have taken the place of more events of the program's.
        if kept > 0 || (got as usize) < count {
            break kept as isize;
        }
    };
    if asked {
        let errno = shunt_os::errno();
        set.answer_bells();
        set_errno(errno);
    }
    result
}

/// Sleeps in the kernel's set; returns the program's own events, 0 for "look again", negative for
/// an error.
unsafe fn sleep(
    set: &Set,
    set_fd: i32,
    events: *mut epoll_event,
    count: usize,
    limits: Limits,
    began: u64,
) -> isize {
    set.sleepers.fetch_add(1, SeqCst);
    let links = set.inner.lock().links.clone();
    links.iter().for_each(|link| link.own_ready().announce_sleep());
    let stirred = links.iter().any(|link| link.own_ready().any()) || set.has_candidates();
    let mut result = 0;
    if !stirred {
        let left = limits.timeout.map(|limit| limit.saturating_sub(clock::now_ns() - began));
        // SAFETY: the caller's buffer.
        let got = unsafe { native(set_fd, events, count as i32, left, limits.mask) };
        let errno = shunt_os::errno();
        set.policy.observe(clock::now_ns() - began, true);
        result = got as isize;
        if got > 0 {
            // SAFETY: the kernel wrote `got` events.
            result = unsafe { sift(set, events, got as usize) as isize };
        }
        set_errno(errno);
    }
    links.iter().for_each(|link| link.own_ready().retract_sleep());
    set.sleepers.fetch_sub(1, SeqCst);
    result
}
