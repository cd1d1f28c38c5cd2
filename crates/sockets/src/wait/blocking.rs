//! The wait of a blocking receive or send: spin, then a futex on the wake word of the direction.
//!
//! The futex restarts under SA_RESTART and ends with EINTR exactly where the kernel's own wait
//! would. What stirs on the kernel connection is brought to the sleeper by the service thread.

use core::ffi::c_void;
use core::sync::atomic::{AtomicU32, Ordering::*};

use shunt_link::Link;
use shunt_os::critical::{self, Handled};
use shunt_os::{clock, handles, park, raw, real, set_errno, signals, tcp, threads, Errno};
use shunt_readiness::policy::Policy;
use shunt_ring::Direction;
use shunt_stream::ReaderOn;

use crate::outcome::Outcome;
use crate::pool::{self, Mode, Socket};
use crate::table::{self, Entry};

/// How a sleep ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Woken {
    Look,
    TimedOut,
    Interrupted,
    /// By handlers with SA_RESTART: the kernel begins such a call anew.
    Restarted,
}

/// What one call knows of its own waiting: when it began, and how long it may take.
pub struct Patience {
    option: i32,
    /// The socket in whose `waiting` the call is counted.
    counted_in: Option<u32>,
    /// As [`Waiting::begin`](pool::Waiting::begin) was told.
    looks: bool,
    began: u64,
    /// What the thread had handled when the call began, or when it was told last.
    handled: Handled,
    spun: bool,
    /// The call has slept, so it may: the kernel decides that once.
    may_wait: bool,
    limit: Option<Option<u64>>,
    /// The number that the call began with was closed while it slept; it goes on by another.
    pub renamed: bool,
}

/// Calls of `changed` between two looks at the clock.
pub const LOOKS: u32 = 256;
/// So many of them without a pause in between.
const LOOKS_EAGER: u32 = 224;

impl Patience {
    /// `option`: SO_RCVTIMEO or SO_SNDTIMEO, asked for only if the call sleeps. `counted_in`: the
    /// socket that counts the call as waiting while it sleeps.
    pub fn new(option: i32, counted_in: Option<u32>) -> Patience {
        Patience {
            option,
            counted_in,
            looks: false,
            began: 0,
            handled: critical::handled(),
            spun: false,
            may_wait: false,
            limit: None,
            renamed: false,
        }
    }

    /// The call is counted as one that looks, or takes.
    pub fn of_look(self, looks: bool) -> Patience {
        Patience { looks, ..self }
    }

    /// Whether the call must not wait.
    #[inline]
    pub fn may_not_wait(&self, socket: &Socket, flags: i32) -> bool {
        !self.may_wait && may_not_wait(socket, flags)
    }

    /// The call may wait from here on.
    pub fn begin(&mut self) {
        if self.began == 0 {
            self.began = clock::now_ns();
        }
    }

    /// Spins once a call, if that pays. True when something changed.
    fn spin(&mut self, policy: &Policy, changed: impl Fn() -> bool) -> bool {
        self.begin();
        let limit = policy.spin_ns();
        if limit == 0 || self.spun {
            return changed();
        }
        match spin_until(policy, self.began, limit, LOOKS, changed) {
            Spun::Changed => {
                // A spin that was enough was short; its length is not worth a look at the clock.
                policy.caught();
                return true;
            }
            Spun::LostCore => policy.overloaded(),
            Spun::InVain => policy.in_vain(),
        }
        self.spun = true;
        false
    }

    /// What comes before every sleep: no wait at all, or a spin. `Ok`: sleep on a word of this
    /// direction, with this descriptor; `Err`: what the wait ends with.
    pub fn before_sleep(
        &mut self,
        socket: &Socket,
        watch: &Watch,
        policy: &Policy,
        flags: i32,
    ) -> Result<(&'static Direction, i32), Option<Outcome>> {
        if self.may_not_wait(socket, flags) {
            return Err(Some(Outcome::Failed(libc::EAGAIN)));
        }
        let direction = watch.direction.ok_or(None)?;
        if self.spin(policy, || watch.is_worth_another(socket)) {
            return Err(None);
        }
        let fd = socket.fd.load(Relaxed);
        if !self.may_wait && handles::is_nonblocking(fd) {
            return Err(Some(Outcome::Failed(libc::EAGAIN)));
        }
        self.may_wait = true;
        Ok((direction, fd))
    }

    /// Whether the call has slept, and so waits whatever its descriptor is like now.
    pub fn has_slept(&self) -> bool {
        self.may_wait
    }

    /// Waits in the kernel for `events`, or looks now and then without any, for a `call` that does not wait
    /// itself; it says by which descriptor it was made. EINTR: a handler has run since the call slept last.
    /// ERESTART: all of them with SA_RESTART. The call is counted as waiting.
    pub fn insist<F: Fn() -> (i32, isize)>(&mut self, events: i16, call: F) -> isize {
        struct Insistence<'a, F> {
            patience: &'a mut Patience,
            events: i16,
            call: F,
            result: isize,
        }

        unsafe extern "C" fn run<F: Fn() -> (i32, isize)>(itself: *mut c_void) {
            // SAFETY: what is passed below, which outlives the call.
            let it = unsafe { &mut *itself.cast::<Insistence<F>>() };
            it.result = it.patience.wait_in_kernel(it.events, &it.call);
        }

        self.begin();
        self.may_wait = true;
        let name = self.name();
        let mut it = Insistence { patience: self, events, call, result: -1 };
        let itself = (&raw mut it).cast();
        // SAFETY: `run` takes what it is given; `cancelled` what `name` gives, and no frame of ours has
        // anything to drop.
        unsafe { park::call_cancellable(run::<F>, itself, cancelled, name) };
        it.result
    }

    /// [`insist`](Self::insist) without the frame that cancellation needs.
    fn wait_in_kernel(&mut self, events: i16, call: impl Fn() -> (i32, isize)) -> isize {
        let errno = shunt_os::errno();
        loop {
            let (fd, result) = call();
            if result >= 0 {
                set_errno(errno);
            }
            if result >= 0 || shunt_os::errno() != libc::EAGAIN {
                return result;
            }
            let limit = self.limit(fd);
            let left = limit.map(|limit| limit.saturating_sub(self.elapsed()));
            let pause = if events == 0 { PAUSE_NS } else { NUMBER_NS_MAX };
            let span = clock::span(left.unwrap_or(pause).min(pause));
            let mut entry = libc::pollfd { fd, events, revents: 0 };
            // SAFETY: one entry, a valid time.
            let poll = |span| unsafe { real::ppoll(&raw mut entry, 1, span, core::ptr::null()) };
            let before = self.handled;
            let woken = critical::sleep_unless_handled(before, span, poll);
            let told = woken == Some(-1) && shunt_os::errno() == libc::EINTR;
            if woken.is_some_and(|ready| ready > 0) {
                continue;
            }
            if woken == Some(-1) && !told {
                return -1;
            }
            if self.heard().is_some() || told {
                let restarts = limit.is_none() && signals::restarts(before);
                set_errno(if restarts { libc::ERESTART } else { libc::EINTR });
                return -1;
            }
            if left == Some(0) {
                set_errno(libc::EAGAIN);
                return -1;
            }
        }
    }

    /// As [`insist`](Self::insist), of a call by `fd` that has taken nothing yet: behind handlers with SA_RESTART it
    /// goes on as if the kernel had begun it anew, unless it has bytes `so_far`, with which it ends. `Err`: it ends
    /// so.
    pub fn insist_anew<F: Fn() -> (i32, isize)>(
        &mut self,
        socket: &Socket,
        fd: i32,
        events: i16,
        call: F,
        so_far: impl Fn() -> isize,
    ) -> Result<isize, Outcome> {
        let errno = shunt_os::errno();
        loop {
            let result = self.insist(events, &call);
            if result >= 0 {
                return Ok(result);
            }
            let told = shunt_os::errno();
            let some = so_far();
            if some > 0 {
                set_errno(errno);
                return Ok(some);
            }
            set_errno(told);
            if told != libc::ERESTART {
                return Ok(result);
            }
            // Another process may have set O_NONBLOCK, and not told.
            let may_not_wait =
                || handles::is_nonblocking(fd).then_some(Outcome::Failed(libc::EAGAIN));
            if let Some(ended) = begun_anew(socket, fd, self).or_else(may_not_wait) {
                return Err(ended);
            }
            set_errno(errno);
        }
    }

    /// Whether the thread has run a handler since the call slept last, or was told: to the program it has slept
    /// all the time.
    fn heard(&mut self) -> Option<Woken> {
        let before = core::mem::replace(&mut self.handled, critical::handled());
        (before != self.handled).then(|| match signals::restarts(before) {
            true => Woken::Restarted,
            false => Woken::Interrupted,
        })
    }

    /// How long the call may take, in nanoseconds, by the time-out that its socket had when it slept first: one that
    /// is set later is of the calls that begin then.
    pub fn limit(&mut self, fd: i32) -> Option<u64> {
        let option = self.option;
        *self.limit.get_or_insert_with(|| handles::option_timeout(fd, option))
    }

    /// Nanoseconds since the call began to wait.
    pub fn elapsed(&self) -> u64 {
        clock::now_ns() - self.began
    }

    /// Sleeps on `word` while it holds `value`. After a handler with SA_RESTART (signal(7)) a call that
    /// `has_some` of its bytes ends with them, and so does one with a limit of its own; others are begun
    /// anew, which is the kernel's to do unless it `may_end` them.
    pub fn sleep(
        &mut self,
        fd: i32,
        word: &AtomicU32,
        value: u32,
        policy: &Policy,
        has_some: bool,
        may_end: bool,
    ) -> Woken {
        // The kernel does not restart a wait that has an end: so we know when a handler ran, which matters
        // where another thread may close the number.
        let limit = self.limit(fd);
        let far = self.elapsed() + FAR_NS;
        let bound = match limit {
            None if !has_some && !may_end && threads::program_is_alone() => None,
            None => Some(far),
            Some(limit) => Some(limit.min(far)),
        };
        match self.sleep_at_most(word, value, policy, bound) {
            Woken::TimedOut if limit.is_none_or(|limit| self.elapsed() < limit) => Woken::Look,
            Woken::Restarted if has_some || limit.is_some() => Woken::Interrupted,
            woken => woken,
        }
    }

    /// What [`cancelled`] must know.
    fn name(&self) -> *mut c_void {
        let outgoing = usize::from(self.option == libc::SO_SNDTIMEO);
        let kind = usize::from(self.looks) << 1 | outgoing;
        self.counted_in.map_or(NOT_COUNTED, |index| (index as usize) << 2 | kind) as *mut c_void
    }

    /// As [`sleep`](Self::sleep), with the time-out given.
    pub fn sleep_at_most(
        &mut self,
        word: &AtomicU32,
        value: u32,
        policy: &Policy,
        limit: Option<u64>,
    ) -> Woken {
        let now = clock::now_ns();
        let left = limit.map(|limit| limit.saturating_sub(now - self.began));
        if left == Some(0) {
            return Woken::TimedOut;
        }
        if let Some(woken) = self.heard() {
            return woken;
        }
        let before = self.handled;
        let name = self.name();
        let wait = |limit| {
            // SAFETY: `cancelled` takes what `name` gives, and no frame of ours has anything to drop; the limit is
            // none, or lives as long as the sleep.
            unsafe { park::wait_cancellable(word, value, limit, cancelled, name) }
        };
        // Without an end, the kernel goes on behind handlers that ran before as behind those that run in the sleep.
        let slept = match left {
            None => Some(wait(core::ptr::null())),
            Some(left) => critical::sleep_unless_handled(before, clock::span(left), wait),
        };
        policy.slept(clock::now_ns() - self.began);
        let now = critical::handled();
        let ended = |number| matches!(slept, Some(Err(error)) if error.0 == number);
        let told = ended(libc::EINTR);
        // Behind a handler with SA_RESTART the kernel may have begun the sleep anew by itself.
        if told || limit.is_none() && now.interrupting == self.handled.interrupting {
            self.handled = now;
        }
        if told {
            return if signals::restarts(before) { Woken::Restarted } else { Woken::Interrupted };
        }
        let over = ended(libc::ETIMEDOUT);
        // One that ran just before the sleep has taken the limit away.
        let heard = if over || slept.is_none() { self.heard() } else { None };
        heard.unwrap_or(if over { Woken::TimedOut } else { Woken::Look })
    }
}

/// A number of the socket's, if the one that the call began with is not any more.
pub fn other_number(socket: &Socket, fd: i32) -> Option<i32> {
    let is_its = |index| core::ptr::eq(pool::get(index), socket);
    match table::get(fd) {
        Entry::Socket(index) if is_its(index) => None,
        _ => Some(socket.fd.load(SeqCst)).filter(|other| *other >= 0),
    }
}

/// How the wait of a call that the kernel begins anew ends at once: its number was closed meanwhile, or
/// must not wait any more.
pub fn begun_anew(socket: &Socket, fd: i32, patience: &Patience) -> Option<Outcome> {
    if socket.closing.load(SeqCst) || patience.renamed || other_number(socket, fd).is_some() {
        return Some(Outcome::Anew);
    }
    socket.nonblocking.load(Relaxed).then_some(Outcome::Failed(libc::EAGAIN))
}

/// One try of a call that goes on by calls that do not wait, by a number of the stream's; with that number, the
/// count or -1 and `errno`. A lock of the stream's is held: the number stays open meanwhile.
pub fn by_its_number(
    socket: &Socket,
    generation: u32,
    fd: i32,
    call: impl FnOnce(i32) -> shunt_os::Result<usize>,
) -> (i32, isize) {
    let is_its = socket.generation.load(Relaxed) == generation;
    let fd = other_number(socket, fd).unwrap_or(fd);
    match if is_its { call(fd) } else { Err(Errno(libc::EBADF)) } {
        Ok(count) => (fd, count as isize),
        Err(error) => {
            set_errno(error.0);
            (fd, -1)
        }
    }
}

/// Whether a call with these flags must not wait.
#[inline]
pub fn may_not_wait(socket: &Socket, flags: i32) -> bool {
    flags & libc::MSG_DONTWAIT != 0 || socket.nonblocking.load(Relaxed)
}

/// Between two looks of a wait that nothing ends.
const PAUSE_NS: u64 = 1_000_000;

/// A poll that sleeps looks its number up anew when it is woken (do_poll in the kernel's fs/select.c), and would
/// sleep on by another file that was put there: so long until the call finds the stream's own number.
const NUMBER_NS_MAX: u64 = 100_000_000;

/// The end of a wait that has none.
pub const FAR_NS: u64 = 3_600_000_000_000;

const NOT_COUNTED: usize = usize::MAX;

/// The thread was cancelled in its sleep: a close may be waiting for it.
unsafe extern "C" fn cancelled(name: *mut c_void) {
    critical::forget_limit();
    let name = name as usize;
    if name == NOT_COUNTED {
        return;
    }
    let (index, looks, outgoing) = ((name >> 2) as u32, name & 2 != 0, name & 1 != 0);
    let socket = pool::get(index);
    if outgoing {
        socket.send.lock().waiting.end(false);
    } else {
        socket.recv.lock().waiting.end(looks);
    }
    if socket.closing.load(Relaxed) {
        crate::calls::descriptor::finish_closing(index);
    }
}

/// How a spin ended.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Spun {
    Changed,
    InVain,
    /// A yield gave the core away for long.
    LostCore,
}

/// A yield that took longer than this gave the core to somebody with work of his own.
const LOST_NS: u64 = 200_000;

/// Spins until `changed` or `limit` nanoseconds have passed since `began`. Gives the core to
/// whoever else wants it after so many `looks`: on one core that is the peer.
pub fn spin_until(
    policy: &Policy,
    began: u64,
    limit: u64,
    looks: u32,
    changed: impl Fn() -> bool,
) -> Spun {
    let mut before = began;
    loop {
        let mut yielding = before;
        if !policy.yields_first() {
            for look in 0..looks {
                if changed() {
                    return Spun::Changed;
                }
                // The pause takes longer than a cache line does: not before the answer may be late.
                if look >= LOOKS_EAGER {
                    core::hint::spin_loop();
                }
            }
            yielding = clock::now_ns();
        }
        raw::sched_yield();
        let now = clock::now_ns();
        let found = changed();
        policy.yielded(now - yielding, found);
        if now - before > LOST_NS {
            return Spun::LostCore;
        }
        before = now;
        if found {
            return Spun::Changed;
        }
        if now - began > limit {
            return Spun::InVain;
        }
    }
}

/// The words of one direction of an attached stream: the outgoing one, or the incoming.
#[inline]
pub fn direction(socket: &Socket, outgoing: bool) -> Option<&'static Direction> {
    // SYNC slot -> attach: as it was when the link was.
    let (link, slot) = (socket.link()?, socket.slot.load(Acquire));
    if slot >= link.memory.slots() {
        return None;
    }
    let writer = if outgoing { link.side } else { link.side.other() };
    // SAFETY: link memory stays mapped; a direction consists of atomics.
    Some(unsafe { link.memory.direction(slot, writer).as_ref() })
}

/// Whether a ring that was full has room that is worth a wake-up, without its lock.
#[inline]
pub fn has_room(direction: &Direction) -> bool {
    let unread = direction.tail().wrapping_sub(direction.head());
    unread <= direction.wake.low_water.load(Relaxed)
}

/// The words of one direction as they were before an attempt: what changed since is worth another.
pub struct Watch {
    link: *const Link,
    pub direction: Option<&'static Direction>,
    outgoing: bool,
    cursor: u64,
    end: u64,
}

impl Watch {
    #[inline]
    pub fn new(socket: &Socket, outgoing: bool) -> Watch {
        let link = socket.link.load(Acquire).cast_const();
        let direction = direction(socket, outgoing);
        let (cursor, end) = direction.map_or((0, 0), |d| (Watch::cursor(d, outgoing), d.end()));
        Watch { link, direction, outgoing, cursor, end }
    }

    /// The word that the other side moves.
    #[inline]
    fn cursor(direction: &Direction, outgoing: bool) -> u64 {
        if outgoing {
            direction.head()
        } else {
            direction.tail()
        }
    }

    /// Whether another attempt finds something. Of a ring that was full, only if it has room that is worth it, of
    /// which a sleeper is told as well.
    #[inline]
    pub fn is_worth_another(&self, socket: &Socket) -> bool {
        let counts = !self.outgoing || self.direction.is_none_or(has_room);
        self.changed_but(socket, counts)
    }

    #[inline]
    pub fn changed(&self, socket: &Socket) -> bool {
        self.changed_but(socket, true)
    }

    /// Whether anything changed; the other side's word only if it `counts`.
    #[inline]
    fn changed_but(&self, socket: &Socket, counts: bool) -> bool {
        self.direction.is_none_or(|direction| {
            counts && Watch::cursor(direction, self.outgoing) != self.cursor
                || direction.end() != self.end
        }) || socket.mode() != Mode::Attached
            || !core::ptr::eq(socket.link.load(SeqCst), self.link)
    }
}

/// Whether the receiving half stands on the ring.
pub fn on_ring(socket: &Socket) -> bool {
    socket.recv.lock().reader.on() == ReaderOn::Ring
}

/// Whether the kernel connection reported the peer's end; asked only after something stirred.
pub fn companion_ended(socket: &Socket) -> bool {
    let seen = socket.companion_stirred.seen();
    if seen == 0 {
        return false;
    }
    let fd = socket.fd.load(Relaxed);
    let hints = libc::POLLRDHUP | libc::POLLHUP | libc::POLLERR;
    let ended = handles::poll_now(fd, libc::POLLRDHUP) & hints != 0 && tcp::peer_has_ended(fd);
    if !ended {
        socket.companion_stirred.was_nothing(seen);
    }
    ended
}

/// After announcing a sleep: whether TCP has something for a stream that still reads it, the writer
/// said that it holds its end back, the kernel connection ended, or the program reads no more, of which
/// no word tells. What the call has `seen` by TCP, and left there, is no news.
pub fn readable_after_announcement(socket: &Socket, fd: i32, seen: usize) -> bool {
    if socket.shut_reading.load(SeqCst) {
        return true;
    }
    let (on_ring, peer_shut) = {
        let recv = socket.recv.lock();
        (recv.reader.on() == ReaderOn::Ring, recv.peer_shut)
    };
    if on_ring {
        return peer_shut || companion_ended(socket);
    }
    if seen > 0 {
        return handles::poll_now(fd, libc::POLLRDHUP | libc::POLLPRI) != 0
            || tcp::readable(fd).is_ok_and(|bytes| bytes > seen as u64);
    }
    handles::poll_now(fd, libc::POLLIN | libc::POLLRDHUP) != 0
}
