//! `epoll_wait`: what the rings and the kernel have to tell, in one answer.

use core::sync::atomic::Ordering::*;

use libc::epoll_event;
use shunt_link::Link;
use shunt_os::critical::Section;
use shunt_os::{clock, park, real, set_errno};
use shunt_stats::Reason;

use super::members::{leave_set, take_over};
use super::registration::Era;
use super::{set_at, Cause, Set, BELL};
use crate::outcome::Outcome;
use crate::pool;
use crate::process;
use crate::table::{self, Entry};
use crate::wait::blocking::{self, Spun};
use crate::wait::few::Few;
use crate::wait::{doings, state, stir_marked, Question, Signals};

/// How long `epoll_wait` may take.
#[derive(Clone, Copy)]
pub struct Limits {
    /// Nanoseconds; `None` is for ever.
    pub timeout: Option<u64>,
    pub mask: *const libc::sigset_t,
}

impl Limits {
    fn only_looks(&self) -> bool {
        self.timeout == Some(0)
    }
}

/// `epoll_wait` and its relatives.
///
/// # Safety
/// `events` is writable for `count` events, as the program says.
pub unsafe fn wait(set_fd: i32, events: *mut epoll_event, count: i32, limits: Limits) -> Outcome {
    let Entry::Set(index) = table::get(set_fd) else { return Outcome::PassThrough };
    let set = set_at(index);
    if crate::receive::is_no_address(events.cast()) && count > 0 {
        // EFAULT comes with the first event, which the kernel keeps.
        leave_set(index, Reason::UnsupportedOption);
        return Outcome::PassThrough;
    }
    if count <= 0 || count as usize > i32::MAX as usize / 12 {
        return Outcome::PassThrough;
    }
    take_over(index);
    if !set.waited.load(Relaxed) {
        set.waited.store(true, Relaxed);
    }
    // One that only looks is over in any case.
    let began = if limits.only_looks() { 0 } else { clock::now_ns() };
    if set.managed.load(SeqCst) == 0 {
        // SAFETY: as above.
        if let Some(outcome) = unsafe { wait_unmanaged(set, set_fd, events, count, limits, began) }
        {
            return outcome;
        }
    }
    park::test_cancel();
    if set.meetings.load(Relaxed) != shunt_link::meetings() {
        set.fetch_bells();
    }
    // SAFETY: as above.
    unsafe { wait_managed(set, set_fd, events, count as usize, limits, began) }
}

/// Nothing of ours in the set now; a stream attached meanwhile makes the kernel's wait return with our tag,
/// which is taken out. `None`: there is something to look at, or to wait for on.
unsafe fn wait_unmanaged(
    set: &Set,
    set_fd: i32,
    events: *mut epoll_event,
    count: i32,
    limits: Limits,
    began: u64,
) -> Option<Outcome> {
    // Who only looks is not to be woken.
    let sleeps = !limits.only_looks();
    if sleeps {
        set.begin_sleep();
    }
    let touched = set.touched.load(SeqCst);
    let era = if touched { set.inner.lock().era } else { Era::default() };
    let native = set.managed.load(SeqCst) == 0;
    // SAFETY: the program's own arguments.
    let got =
        native.then(|| unsafe { native_wait(set_fd, events, count, limits.timeout, limits.mask) });
    if sleeps {
        let errno = shunt_os::errno();
        set.end_sleep();
        set_errno(errno);
    }
    // Otherwise it became ours at this moment, and nobody was asked.
    let got = got?;
    if got < 0 {
        return Some(Outcome::Genuine(got as isize));
    }
    if !set.touched.load(SeqCst) && !set.watched.load(Relaxed) {
        return Some(Outcome::Handled(got as isize));
    }
    // SAFETY: the kernel wrote `got` events.
    let sifted = unsafe { sift(set, events, got as usize) };
    if !sleeps && sifted.kept < got as usize {
        set.answer_bells();
    }
    if sifted.kept > 0 && set.touched.load(SeqCst) {
        // SAFETY: the caller's buffer.
        let told = unsafe { tell_with(set, events, sifted, count as usize, era) };
        return Some(Outcome::Handled(told as isize));
    }
    let over = limits.timeout.is_some_and(|limit| clock::now_ns() - began >= limit);
    (sifted.kept > 0 || (got == 0 && over)).then_some(Outcome::Handled(sifted.kept as isize))
}

unsafe fn native_wait(
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
            let got = unsafe { real::epoll_pwait2(set_fd, events, count, &span, mask) };
            if got >= 0 || shunt_os::errno() != libc::ENOSYS {
                return got;
            }
            // Before Linux 5.11: not earlier than asked for.
            let ms = ns.div_ceil(1_000_000).min(i32::MAX as u64) as i32;
            // SAFETY: the caller's arguments.
            unsafe { real::epoll_pwait(set_fd, events, count, ms, mask) }
        }
    }
}

/// What is left of the kernel's events without our tags.
#[derive(Clone, Copy, Default)]
struct Sifted {
    /// How many are the program's own.
    kept: usize,
    /// How long the queue was when the kernel named the first of these.
    queued_before: usize,
    /// A bell had rung before the first of these.
    bell_first: bool,
}

/// Takes our tags out of `events[..got]` and queues what they name.
unsafe fn sift(set: &Set, events: *mut epoll_event, got: usize) -> Sifted {
    let secret = process::secret();
    let queued = || set.inner.lock().candidates.len();
    let (mut kept, mut queued_before, mut bell_first) = (0, 0, false);
    for at in 0..got {
        // SAFETY: within the events that the kernel wrote.
        let event = unsafe { events.add(at).read_unaligned() };
        let data = event.u64;
        if (data >> 32) as u32 != secret {
            if kept == 0 {
                queued_before = queued();
            }
            // SAFETY: `kept <= at`.
            unsafe { events.add(kept).write_unaligned(event) };
            kept += 1;
            if set.watched.load(Relaxed) {
                set.inner.lock().reported(data, event.events);
            }
            continue;
        }
        let low = data as u32;
        bell_first |= low == BELL && kept == 0;
        if low != BELL {
            let mut inner = set.inner.lock();
            let socket = inner.registrations.get(low as i32).map(|r| r.socket);
            if let Some(index) = socket {
                pool::get(index).companion_stirred.set();
            }
            inner.queue(low as i32, Cause::First);
        }
    }
    if kept == 0 {
        queued_before = queued();
    }
    Sifted { kept, queued_before, bell_first }
}

/// Moves the marks of the set's links to the candidates of whatever sets hold the streams.
fn drain_links(set: &Set) {
    let links: Few<&'static Link> = {
        let inner = set.inner.lock();
        let links = inner.links.iter().map(|joined| joined.link);
        links.filter(|link| link.own_ready().any()).collect()
    };
    stir_marked(links.iter());
}

/// What of the queue is told, and where.
#[derive(Clone, Copy)]
struct Turn {
    /// So many come before the events that the kernel told,
    first: usize,
    /// and so many at all, if there are.
    most: usize,
}

/// Everything, where the kernel was not asked.
const ALL: Turn = Turn { first: 0, most: usize::MAX };

/// Reports candidates into `events[..count]`, of which the kernel has filled `from`; returns how many
/// there are then. What became ours after `era` may be among the kernel's, and is then left for the
/// next wait.
unsafe fn collect(
    set: &Set,
    events: *mut epoll_event,
    from: usize,
    count: usize,
    era: Option<Era>,
    turn: Turn,
) -> usize {
    // A handler that does not return would take along what has left the queue and is not told of yet.
    let _section = Section::begin();
    let mut filled = from;
    let mut before = from;
    let mut inner = set.inner.lock();
    // What is put back is for the next wait, also if another thread takes some out meanwhile: one answer tells of
    // a stream once.
    let newest = inner.candidates.newest();
    let rounds = turn.most.min(inner.candidates.len());
    for at in 0..rounds {
        if filled == count {
            break;
        }
        let next = match filled > from {
            true => inner.candidates.pop_until(newest),
            false => inner.candidates.pop(),
        };
        let Some((fd, place)) = next else { break };
        let Some(registration) = inner.registrations.get_mut(fd) else { continue };
        if registration.place != Some(place) {
            continue;
        }
        registration.place = None;
        let data = registration.interest.data;
        // SAFETY: within the events that were told.
        let told = || (0..from).any(|at| unsafe { events.add(at).read_unaligned() }.u64 == data);
        if era.is_some_and(|era| registration.ours_since.is_after(era)) && told() {
            inner.queue(fd, Cause::Look);
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
        let now = state::look(socket, interest.events, edge);
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
            inner.queue(fd, Cause::Look);
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
            if at < turn.first {
                before = filled;
            }
        }
        if report.stays {
            inner.queue(fd, Cause::Again);
        }
    }
    // SAFETY: the events that are filled.
    unsafe { rotate(events, before, from) };
    filled
}

/// The first `by` of `count` events change places with those behind them.
unsafe fn rotate(events: *mut epoll_event, count: usize, by: usize) {
    if 0 < by && by < count {
        // The program's buffer need not be aligned: an event is 12 bytes on x86-64.
        let size = size_of::<epoll_event>();
        // SAFETY: the caller's word.
        let bytes = unsafe { core::slice::from_raw_parts_mut(events.cast::<u8>(), count * size) };
        bytes.rotate_left(by * size);
    }
}

/// Tells what came with the kernel's events that ended a sleep: before them, what was marked before
/// them (one mark at least, if a bell is before them), and what our tags say. What was marked after
/// something that the kernel tells of may be newer than its answer, and waits until it is asked again.
unsafe fn tell_with(
    set: &Set,
    events: *mut epoll_event,
    sifted: Sifted,
    count: usize,
    era: Era,
) -> usize {
    let tags = set.inner.lock().candidates.len();
    drain_links(set);
    let turn = {
        let mut inner = set.inner.lock();
        let rang = sifted.bell_first && inner.candidates.len() > tags;
        let marked = inner.first_from(tags).places.max(usize::from(rang));
        inner.candidates.swap(0, tags, tags + marked);
        Turn { first: marked + sifted.queued_before, most: marked + tags }
    };
    // SAFETY: the caller's buffer.
    let filled = unsafe { collect(set, events, sifted.kept, count, Some(era), turn) };
    set.hand_on();
    filled
}

unsafe fn wait_managed(
    set: &Set,
    set_fd: i32,
    events: *mut epoll_event,
    count: usize,
    limits: Limits,
    began: u64,
) -> Outcome {
    let waited = Waited { began, signals: Signals::begin(limits.mask) };
    let (mut spun, mut again) = (false, false);
    loop {
        drain_links(set);
        let asked = kernel_is_first(set, count, &limits);
        // SAFETY: the caller's buffer.
        let Ok(mut filled) = (unsafe { tell(set, set_fd, events, count, &limits, asked) }) else {
            return Outcome::Genuine(-1);
        };
        let left = limits.timeout.map(|limit| limit.saturating_sub(clock::now_ns() - began));
        let ends = filled > 0 || left == Some(0);
        let spins = !ends && !spun;
        let spin = if spins { set.policy.spin_ns().min(left.unwrap_or(u64::MAX)) } else { 0 };
        // Before a sleep the kernel is asked by the sleep itself, if that comes about.
        let is_due = || (spin > 0 || again) && set.turn.is_due(set.doings());
        let due = filled == 0 && asked.is_none() && (left == Some(0) || is_due());
        again = true;
        if due {
            let all = Some(Asked { room: count, first: 0 });
            // SAFETY: the caller's buffer.
            let Ok(more) = (unsafe { tell(set, set_fd, events, count, &limits, all) }) else {
                return Outcome::Genuine(-1);
            };
            filled = more;
        }
        if filled > 0 || left == Some(0) {
            set.hand_on();
            return Outcome::Handled(filled as isize);
        }
        if spin > 0 {
            spun = true;
            let start = clock::now_ns();
            let links: Few<&'static Link> =
                set.inner.lock().links.iter().map(|joined| joined.link).collect();
            let stirred =
                || links.iter().any(|link| link.own_ready().any()) || set.has_candidates_hint();
            match blocking::spin_until(&set.policy, start, spin, blocking::LOOKS, stirred) {
                Spun::Changed => {
                    set.policy.caught();
                    continue;
                }
                Spun::LostCore => set.policy.overloaded(),
                Spun::InVain => set.policy.in_vain(),
            }
        }
        if waited.signals.interrupt() {
            return Outcome::Failed(libc::EINTR);
        }
        let era = set.inner.lock().era;
        // SAFETY: the caller's buffer.
        let slept = unsafe { sleep(set, set_fd, events, count, limits, &waited) };
        match slept {
            Err(()) => return Outcome::Genuine(-1),
            Ok(sifted) if sifted.kept > 0 => {
                // SAFETY: the caller's buffer.
                let told = unsafe { tell_with(set, events, sifted, count, era) };
                return Outcome::Handled(told as isize);
            }
            Ok(_) => {}
        }
    }
}

/// How the kernel is asked before the rings' events are told.
#[derive(Clone, Copy)]
struct Asked {
    /// For so many events.
    room: usize,
    /// So many of the queue are told before them.
    first: usize,
}

/// Whether the kernel is asked before the rings are looked at: at its turn, for a wait that only looks, and
/// wherever a set has streams of both kinds or something was marked after its maker did something that
/// the kernel tells of. There a byte sent by TCP before one by a ring is to be told before it, or with
/// it: who has seen the rings' marks finds in the kernel's set whatever came earlier. What was marked
/// before is told first, and needs no question if it fills the room.
fn kernel_is_first(set: &Set, count: usize, limits: &Limits) -> Option<Asked> {
    let inner = set.inner.lock();
    let asks = !inner.candidates.is_empty()
        && (inner.registrations.apart() != 0
            || limits.only_looks()
            || inner.candidates.has_after_kernel()
            || set.turn.is_due(doings(inner.links.iter().map(|joined| joined.link))))
        // If it filled its room last time, the rings' turn has come.
        && !set.crowded.swap(false, Relaxed);
    if !asks {
        return None;
    }
    let first = inner.first_from(0);
    if first.streams < count {
        return Some(Asked { room: count - first.streams, first: first.places });
    }
    // No room for both: now one, now the other.
    let rings = !set.filled.fetch_xor(true, Relaxed);
    (!rings).then_some(Asked { room: count, first: 0 })
}

/// Tells what the rings have and, if it is `asked`, the kernel before; returns how many events there
/// are.
///
/// # Errors
/// The kernel's, in `errno`.
unsafe fn tell(
    set: &Set,
    set_fd: i32,
    events: *mut epoll_event,
    count: usize,
    limits: &Limits,
    asked: Option<Asked>,
) -> Result<usize, ()> {
    let Some(asked) = asked else {
        // SAFETY: the caller's buffer.
        return Ok(unsafe { collect(set, events, 0, count, None, ALL) });
    };
    let (marked, era) = {
        let inner = set.inner.lock();
        (inner.candidates.len(), inner.era)
    };
    let question = Question::begin();
    // SAFETY: the caller's buffer.
    let sifted = unsafe { kernel_now(set, set_fd, events, asked.room, limits.mask) }?;
    let crowded = sifted.kept == asked.room;
    set.crowded.store(crowded, Relaxed);
    set.turn.answered(&question, sifted.kept > 0, !crowded);
    if !crowded {
        set.turn.put_off();
    }
    let turn = {
        let mut inner = set.inner.lock();
        // What its tags have queued comes before what was marked after something of the kernel's.
        inner.candidates.advance(asked.first, marked);
        let tags_first = sifted.queued_before.saturating_sub(marked);
        Turn { first: asked.first + tags_first, ..ALL }
    };
    // Where the kernel told nothing, nothing can be told twice.
    let era = Some(era).filter(|_| sifted.kept > 0);
    // SAFETY: the caller's buffer.
    Ok(unsafe { collect(set, events, sifted.kept, count, era, turn) })
}

/// The kernel's set without waiting, for `room` events.
///
/// # Errors
/// The kernel's, in `errno`.
unsafe fn kernel_now(
    set: &Set,
    set_fd: i32,
    events: *mut epoll_event,
    room: usize,
    mask: *const libc::sigset_t,
) -> Result<Sifted, ()> {
    let mut asked = false;
    let result = loop {
        // SAFETY: the caller's buffer.
        let got = unsafe { real::epoll_pwait(set_fd, events, room as i32, 0, mask) };
        if got < 0 {
            break Err(());
        }
        asked |= got > 0;
        // SAFETY: the kernel wrote `got` events.
        let sifted = unsafe { sift(set, events, got as usize) };
        // Our own tags may have taken the place of more events of the program's.
        if sifted.kept > 0 || (got as usize) < room {
            break Ok(sifted);
        }
    };
    if asked {
        let errno = shunt_os::errno();
        set.answer_bells();
        set_errno(errno);
    }
    result
}

/// What came before a sleep.
struct Waited {
    /// When the call began.
    began: u64,
    signals: Signals,
}

/// Sleeps in the kernel's set. Without an event of the program's it is to look again.
///
/// # Errors
/// The kernel's, in `errno`.
unsafe fn sleep(
    set: &Set,
    set_fd: i32,
    events: *mut epoll_event,
    count: usize,
    limits: Limits,
    waited: &Waited,
) -> Result<Sifted, ()> {
    set.begin_sleep();
    let stirred = {
        let mut inner = set.inner.lock();
        set.announce(&mut inner);
        !inner.candidates.is_empty() || inner.has_marks()
    };
    let mut result = Ok(Sifted::default());
    let left = limits.timeout.map(|limit| limit.saturating_sub(clock::now_ns() - waited.began));
    // Asked as late as can be.
    if !stirred && !waited.signals.interrupt() {
        let question = Question::begin();
        // SAFETY: the caller's buffer.
        let got = unsafe { native_wait(set_fd, events, count as i32, left, limits.mask) };
        let errno = shunt_os::errno();
        set.policy.slept(clock::now_ns() - waited.began);
        result = match got {
            ..0 => Err(()),
            // SAFETY: the kernel wrote `got` events.
            got => Ok(unsafe { sift(set, events, got as usize) }),
        };
        if let Ok(sifted) = result {
            let everything = (got as usize) < count;
            set.turn.answered(&question, sifted.kept > 0, everything);
            if everything {
                set.turn.put_off();
            }
        }
        set_errno(errno);
    }
    let errno = shunt_os::errno();
    set.end_sleep();
    set_errno(errno);
    result
}
