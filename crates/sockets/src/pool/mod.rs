//! One [`Socket`] for each TCP socket the program has, in memory that is never given back.
//!
//! A thread may hold a reference while another closes the descriptor and a third gets the same
//! number: so sockets are recycled, never freed, and whoever takes a lock of one checks after
//! that it is still the one that was looked up ([`Socket::is`]).

// UNSAFETY: chunks of the pool are mapped once and never unmapped.
#![allow(unsafe_code)]

use core::ptr::null_mut;
use core::sync::atomic::Ordering::*;
use core::sync::atomic::{fence, AtomicBool, AtomicI32, AtomicPtr, AtomicU32, AtomicU64, AtomicU8};

use shunt_link::Link;
use shunt_os::handles;
use shunt_os::lock::Lock;
use shunt_os::mapping;
use shunt_os::peer::Tuple;
use shunt_stats::StreamEntry;

use crate::inherit::Kin;
use crate::table::Named;

mod halves;
mod stirred;
mod waiting;

pub use halves::{LeftWith, RecvSide, SendSide, Told};
pub use stirred::Stirred;
pub use waiting::Waiting;

/// What a socket is to us.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Mode {
    /// Not in use.
    Free = 0,
    /// Kernel TCP; counted, and perhaps paired later.
    Plain = 1,
    /// Stands in a slot of a link; each direction is on TCP or on the ring.
    Attached = 2,
    /// Kernel TCP for good.
    Left = 3,
    /// Stood in a slot when the process forked: the parent's until it says otherwise.
    Inherited = 4,
}

/// How far the search for the other end has come.
pub mod stage {
    /// Too few messages to be worth it.
    pub const YOUNG: u32 = 0;
    /// Listens under its name.
    pub const WAITING: u32 = 1;
    /// The service thread has it.
    pub const MEETING: u32 = 2;
    /// Decided: attached, or not to be. An attached stream is in any other stage only while its link is gone.
    pub const SETTLED: u32 = 3;
}

/// A registration in an epoll set: which set, and which of its registrations.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Membership {
    pub set: u32,
    pub fd: i32,
}

/// So many receives of one stream are waited for at a time, before its number is closed.
const ENTERING: usize = 4;

/// What every call on a plain stream touches stands in the first cache line.
#[repr(C, align(64))]
pub struct Socket {
    pub mode: AtomicU8,
    pub nonblocking: AtomicBool,
    /// This end called connect.
    pub connector: AtomicBool,
    /// Never to be paired (an option or use that the ring cannot serve).
    pub pinned: AtomicBool,
    /// An option was set that keeps a stream on TCP: of a listener, what it accepts inherits it.
    pub has_odd_option: AtomicBool,
    /// An option has `recvmsg` tell when bytes came (SO_TIMESTAMP).
    pub messages_tell_times: AtomicBool,
    /// An option has `recvmsg` tell how many bytes follow (TCP_INQ).
    pub messages_tell_unread: AtomicBool,
    pub stage: AtomicU32,
    pub generation: AtomicU32,
    /// A descriptor of the socket, for calls of our own.
    pub fd: AtomicI32,
    /// Threads inside a native receive or wait, and inside a native send.
    pub native_recv: AtomicU32,
    pub native_send: AtomicU32,
    pub messages_in: AtomicU32,
    pub messages_out: AtomicU32,
    pub bytes: AtomicU64,
    /// How often a send found no room.
    pub fulls: AtomicU32,
    /// Its counters' index plus one, 0 before it carries data.
    entry: AtomicU32,
    /// How many descriptors this process has of it.
    pub descriptors: AtomicU32,
    /// How often its search was put off.
    pub deferrals: AtomicU32,
    /// Its search was put off because another process has it too.
    pub awaits_sole: AtomicBool,
    /// Its peer stands in a slot where it is to come.
    pub has_reserved: AtomicBool,
    /// Its rendezvous was given up for another stream's.
    pub gave_way: AtomicBool,
    /// How often its reader was asked in vain to let it leave the ring.
    pub tries_to_leave: AtomicU32,
    /// Of the threads in `native_recv`, those in poll.
    pub native_polls: AtomicU32,
    /// Threads whose receives have slept on a ring and go to the kernel by its number, which nobody may close
    /// before they are there; 0 is none.
    pub entering: [AtomicI32; ENTERING],
    /// When a copy of its descriptor was sent to the peer, which is to close it at once; 0: never, or the
    /// peer has closed it.
    pub shown_ns: AtomicU64,
    /// The peer was shown it from the slot that it stands in, and has closed the copy once it stands there.
    pub shown_in_slot: AtomicBool,
    /// The rendezvous that waits, or -1.
    pub listener: AtomicI32,
    /// Something happened on the companion that the kernel should be asked about.
    pub companion_stirred: Stirred,
    /// So many polls sleep for it by bells. Changed where the memberships are locked.
    pub polls: AtomicU32,
    /// shutdown(SHUT_RD) was called.
    pub shut_reading: AtomicBool,
    /// shutdown(SHUT_WR) was called.
    pub shut_writing: AtomicBool,
    /// The program has closed it; the last thread inside finishes the close.
    pub closing: AtomicBool,
    /// Its epoll registrations are the kernel's still.
    pub unmanaged: AtomicBool,
    /// A send that may not wait found the ring full, and no quarter of it has been seen free since.
    pub full: AtomicBool,
    /// The peer's process died and left bytes unread in the ring, which the kernel did not know of: the error
    /// that this is to be, and that the kernel takes for another. ECONNRESET; EPIPE behind a FIN that was held
    /// back; 0 if nothing is.
    pub death_error: AtomicI32,
    /// A wait has told that the connection is reset, of which the ring may not know yet.
    pub told_reset: AtomicBool,
    /// TCP_CORK is set: what is sent is held back.
    pub is_corked: AtomicBool,
    /// Its close is made a reset for an exec that is under way.
    pub resets_at_exec: AtomicBool,
    /// On TCP for good, but for what its writer has left in the ring, which other processes may take as
    /// well. The slot is not used again.
    pub remains: AtomicBool,
    /// On TCP for good, and its writer was still to send again what this reader had left: if it dies before, those bytes
    /// are taken from the ring once TCP has ended.
    pub unanswered: AtomicBool,
    /// The program has broken the connection off by connect(2), and may have made another.
    pub given_up: AtomicBool,
    pub slot: AtomicU32,
    pub kin: Kin,
    pub link: AtomicPtr<Link>,
    pub recv: Lock<RecvSide>,
    pub send: Lock<SendSide>,
    pub memberships: Lock<Vec<Membership>>,
    pub aliases: Lock<Vec<i32>>,
    pub tuple: Lock<Option<Tuple>>,
    pub recv_policy: shunt_readiness::policy::Policy,
    pub send_policy: shunt_readiness::policy::Policy,
}

const _: () = assert!(core::mem::offset_of!(Socket, entry) < 64);

/// Calls on a stream for which its search is put off at most.
const DEFERRALS_MAX: u32 = 32;

const CHUNK: usize = 256;
const CHUNKS: usize = 4096;

static POOL: [AtomicPtr<Socket>; CHUNKS] = [const { AtomicPtr::new(null_mut()) }; CHUNKS];

struct Allocation {
    free: Vec<u32>,
    used: u32,
}

static ALLOCATION: Lock<Allocation> = Lock::new(Allocation { free: Vec::new(), used: 0 });

/// The socket with this index, which was handed out before.
#[inline]
pub fn get(index: u32) -> &'static Socket {
    let chunk = POOL[index as usize / CHUNK].load(Acquire);
    // SAFETY: indices come from `take`, which publishes the chunk before it hands one out, and
    // chunks stay mapped for ever.
    unsafe { &*chunk.add(index as usize % CHUNK) }
}

/// As [`get`], for indices that may never have been handed out.
pub fn find(index: u32) -> Option<&'static Socket> {
    let chunk = POOL.get(index as usize / CHUNK)?.load(Acquire);
    // SAFETY: as in `get`; a published chunk is fully initialised.
    (!chunk.is_null()).then(|| unsafe { &*chunk.add(index as usize % CHUNK) })
}

/// Takes a socket for `fd`. `None` when a million are in use or memory is out.
pub fn take(fd: i32, nonblocking: bool, connector: bool) -> Option<u32> {
    let index = {
        let mut allocation = ALLOCATION.lock();
        match allocation.free.pop() {
            Some(index) => index,
            None => {
                let index = allocation.used;
                let slot = POOL.get(index as usize / CHUNK)?;
                if slot.load(Relaxed).is_null() {
                    slot.store(chunk()?, Release);
                }
                // A child that another thread forks meanwhile finds all that are counted.
                fence(Release);
                allocation.used += 1;
                index
            }
        }
    };
    let socket = get(index);
    {
        let _held = socket.memberships.lock();
        // Who sees it finds that the last stream is gone.
        socket.generation.fetch_add(1, AcqRel);
        socket.polls.store(0, Relaxed);
    }
    socket.nonblocking.store(nonblocking, Relaxed);
    socket.connector.store(connector, Relaxed);
    socket.pinned.store(false, Relaxed);
    socket.has_odd_option.store(false, Relaxed);
    socket.messages_tell_times.store(false, Relaxed);
    socket.messages_tell_unread.store(false, Relaxed);
    socket.stage.store(stage::YOUNG, Relaxed);
    socket.fd.store(fd, Relaxed);
    socket.descriptors.store(1, Relaxed);
    // The native counts are left: a thread that is still inside a call on the last stream that
    // stood here takes its own off when it comes out.
    socket.deferrals.store(0, Relaxed);
    socket.awaits_sole.store(false, Relaxed);
    socket.has_reserved.store(false, Relaxed);
    socket.gave_way.store(false, Relaxed);
    socket.shown_ns.store(0, Relaxed);
    socket.shown_in_slot.store(false, Relaxed);
    socket.tries_to_leave.store(0, Relaxed);
    socket.messages_in.store(0, Relaxed);
    socket.messages_out.store(0, Relaxed);
    socket.bytes.store(0, Relaxed);
    socket.listener.store(-1, Relaxed);
    socket.shut_reading.store(false, Relaxed);
    socket.shut_writing.store(false, Relaxed);
    socket.companion_stirred.clear();
    *socket.tuple.lock() = None;
    socket.link.store(null_mut(), Relaxed);
    socket.kin.forget();
    socket.slot.store(shunt_link::VACANT, Relaxed);
    socket.full.store(false, Relaxed);
    socket.death_error.store(0, Relaxed);
    socket.told_reset.store(false, Relaxed);
    socket.is_corked.store(false, Relaxed);
    socket.resets_at_exec.store(false, Relaxed);
    socket.remains.store(false, Relaxed);
    socket.unanswered.store(false, Relaxed);
    socket.given_up.store(false, Relaxed);
    // SYNC mode -> Socket::mode(): the fields above are seen by who sees the mode.
    socket.mode.store(Mode::Plain as u8, Release);
    Some(index)
}

/// Gives a socket back; its mode is `Free` already.
pub fn give_back(index: u32) {
    ALLOCATION.lock().free.push(index);
}

/// Whether there ever was a socket.
pub fn any() -> bool {
    !POOL[0].load(Acquire).is_null()
}

/// Every socket in use.
pub fn each(mut visit: impl FnMut(u32, &'static Socket)) {
    let used = ALLOCATION.lock().used;
    for index in 0..used {
        let socket = get(index);
        if socket.mode() != Mode::Free {
            visit(index, socket);
        }
    }
}

/// The sockets for which `is_chosen` says so.
pub fn chosen(is_chosen: impl Fn(&Socket) -> bool) -> Vec<u32> {
    let mut sockets = Vec::new();
    each(|index, socket| {
        if is_chosen(socket) {
            sockets.push(index);
        }
    });
    sockets
}

/// The stream whose kernel socket has this cookie (SO_COOKIE, socket(7)).
pub fn of_cookie(cookie: u64) -> Option<u32> {
    let mut found = None;
    each(|index, socket| {
        if handles::cookie(socket.fd.load(Relaxed)) == Ok(cookie) {
            found = Some(index);
        }
    });
    found
}

/// As [`each`], unless that would have to wait.
pub fn try_each(mut visit: impl FnMut(&'static Socket)) {
    let Some(used) = ALLOCATION.try_lock().map(|allocation| allocation.used) else { return };
    (0..used).map(get).filter(|socket| socket.mode() != Mode::Free).for_each(&mut visit);
}

/// For a forked child: whoever held the pool's lock does not exist here.
///
/// # Safety
/// The process has one thread.
pub unsafe fn after_fork() {
    // SAFETY: one thread, by the caller's word.
    unsafe { ALLOCATION.force_open() };
}

fn chunk() -> Option<*mut Socket> {
    let mapping = mapping::anonymous(CHUNK * core::mem::size_of::<Socket>()).ok()?;
    let base = mapping.base.as_ptr().cast::<Socket>();
    for at in 0..CHUNK {
        // SAFETY: the mapping is page-aligned, large enough, and nobody else knows it yet.
        unsafe { base.add(at).write(Socket::new()) };
    }
    Some(base)
}

impl Socket {
    fn new() -> Socket {
        Socket {
            mode: AtomicU8::new(Mode::Free as u8),
            nonblocking: AtomicBool::new(false),
            connector: AtomicBool::new(false),
            pinned: AtomicBool::new(false),
            has_odd_option: AtomicBool::new(false),
            messages_tell_times: AtomicBool::new(false),
            messages_tell_unread: AtomicBool::new(false),
            stage: AtomicU32::new(stage::YOUNG),
            generation: AtomicU32::new(0),
            fd: AtomicI32::new(-1),
            descriptors: AtomicU32::new(0),
            deferrals: AtomicU32::new(0),
            awaits_sole: AtomicBool::new(false),
            has_reserved: AtomicBool::new(false),
            gave_way: AtomicBool::new(false),
            shown_ns: AtomicU64::new(0),
            shown_in_slot: AtomicBool::new(false),
            tries_to_leave: AtomicU32::new(0),
            native_polls: AtomicU32::new(0),
            native_recv: AtomicU32::new(0),
            native_send: AtomicU32::new(0),
            entering: [const { AtomicI32::new(0) }; ENTERING],
            messages_in: AtomicU32::new(0),
            messages_out: AtomicU32::new(0),
            bytes: AtomicU64::new(0),
            listener: AtomicI32::new(-1),
            companion_stirred: Stirred::default(),
            polls: AtomicU32::new(0),
            shut_reading: AtomicBool::new(false),
            shut_writing: AtomicBool::new(false),
            closing: AtomicBool::new(false),
            unmanaged: AtomicBool::new(false),
            fulls: AtomicU32::new(0),
            full: AtomicBool::new(false),
            death_error: AtomicI32::new(0),
            told_reset: AtomicBool::new(false),
            is_corked: AtomicBool::new(false),
            resets_at_exec: AtomicBool::new(false),
            remains: AtomicBool::new(false),
            unanswered: AtomicBool::new(false),
            given_up: AtomicBool::new(false),
            slot: AtomicU32::new(shunt_link::VACANT),
            kin: Kin::default(),
            link: AtomicPtr::new(null_mut()),
            recv: Lock::new(RecvSide::new()),
            send: Lock::new(SendSide::new()),
            memberships: Lock::new(Vec::new()),
            aliases: Lock::new(Vec::new()),
            tuple: Lock::new(None),
            entry: AtomicU32::new(0),
            recv_policy: shunt_readiness::policy::Policy::new(),
            send_policy: shunt_readiness::policy::Policy::new(),
        }
    }

    /// Its search was put off because another stream's meeting was under way, or while another process had it,
    /// which has not any more.
    pub fn is_deferred(&self) -> bool {
        (1..=DEFERRALS_MAX).contains(&self.deferrals.load(Relaxed))
            || (self.awaits_sole.load(Relaxed) && self.kin.may_pair())
    }

    /// Counts one more deferral; true when it has waited long enough.
    pub fn deferred_long(&self) -> bool {
        self.deferrals.fetch_add(1, Relaxed) >= DEFERRALS_MAX
    }

    /// What it is to us now.
    #[inline]
    pub fn mode(&self) -> Mode {
        // SYNC mode -> pool::take, attach: what was prepared for the mode is seen.
        match self.mode.load(Acquire) {
            1 => Mode::Plain,
            2 => Mode::Attached,
            3 => Mode::Left,
            4 => Mode::Inherited,
            _ => Mode::Free,
        }
    }

    /// Whether its other end may be looked for: it is plain, or stands in a slot of a link that is gone and is
    /// looked for anew.
    pub fn may_be_paired(&self) -> bool {
        match self.mode() {
            Mode::Plain => true,
            Mode::Attached => self.stage.load(Acquire) != stage::SETTLED,
            Mode::Free | Mode::Left | Mode::Inherited => false,
        }
    }

    /// The addresses of the stream of that generation, unless another one has come to its place.
    pub fn note_tuple(&self, generation: u32, tuple: Tuple) {
        // `take` forgets them behind its new generation.
        let mut known = self.tuple.lock();
        if self.generation.load(Acquire) == generation {
            *known = Some(tuple);
        }
    }

    /// The socket that a descriptor names, if it is attached.
    #[inline(always)]
    pub fn attached(named: Named) -> Option<&'static Socket> {
        let socket = get(named.index());
        (socket.mode.load(Acquire) == Mode::Attached as u8).then_some(socket)
    }

    /// Whether the descriptor by which this place was found names it still, and its stream is attached. As long as
    /// the caller holds one of the stream's locks, it stays so.
    #[inline(always)]
    pub fn is_attached_as(&self, named: Named) -> bool {
        self.mode.load(Acquire) == Mode::Attached as u8 && named.is_still()
    }

    pub fn set_mode(&self, mode: Mode) {
        // SYNC mode -> Socket::mode(): as in `take`; total order against the native counts.
        self.mode.store(mode as u8, SeqCst);
    }

    /// Its link while attached. Links live for ever.
    #[inline]
    pub fn link(&self) -> Option<&'static Link> {
        let link = self.link.load(Acquire);
        // SAFETY: links are leaked when made.
        (!link.is_null()).then(|| unsafe { &*link })
    }

    /// Its counters, opened when it first carries data; `None` when there is no segment.
    #[inline(always)]
    pub fn entry(&self) -> Option<StreamEntry> {
        match self.entry.load(Acquire) {
            0 => self.open_entry(),
            known => crate::process::known_segment().map(|segment| segment.entry_at(known - 1)),
        }
    }

    #[cold]
    fn open_entry(&self) -> Option<StreamEntry> {
        let segment = crate::process::segment()?;
        let fresh = segment.open_stream();
        match self.entry.compare_exchange(0, fresh.index() + 1, AcqRel, Acquire) {
            Ok(_) => Some(fresh),
            Err(other) => {
                segment.abandon_stream(fresh);
                Some(segment.entry_at(other - 1))
            }
        }
    }

    /// Folds its counters into the totals. The socket is being freed.
    pub fn close_entry(&self) {
        let known = self.entry.swap(0, AcqRel);
        if let (1.., Some(segment)) = (known, crate::process::known_segment()) {
            segment.close_stream(segment.entry_at(known - 1));
        }
    }

    /// Forgets counters that are the parent's (in a forked child).
    pub fn forget_entry(&self) {
        self.entry.store(0, Relaxed);
    }
}
