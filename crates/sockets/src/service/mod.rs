//! The one thread of ours in a process: started when another Shunt process was found, not before.
//!
//! It pairs, watches companions and control channels, does the peer's share of handovers, and
//! finishes what the program's threads must not wait for. It is not on the data path. It blocks
//! every signal and never calls into the program.

use core::ffi::c_void;
use core::ptr::null_mut;
use core::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicU32, Ordering::*};

use shunt_link::Link;
use shunt_os::lock::Lock;
use shunt_os::peer::Diagnosis;
use shunt_os::{handles, park, threads};
use shunt_pairing::message::Message;
use shunt_stats::Reason;

use self::handshake::Handshake;
use self::links::Known;
use self::looks::Looks;
use self::offers::{ByPorts, Offered};
use self::orphans::{Kept, Orphan};
use self::reserved::Reserved;
use self::unsaid::Unsaid;
use crate::pool::{self, Mode, Socket};
use crate::wait::poll;
use crate::{attach, inherit, search};

mod door;
mod handshake;
mod links;
mod looks;
mod offers;
mod orphans;
mod reserved;
mod unsaid;

pub use door::ask as ask_at_door;
pub use links::{links_serving, released, retire_if_empty};
pub use orphans::{has_orphan, hurry_orphans, keep_after_close};

const STACK_BYTES: usize = 128 * 1024;
/// The thread works for some microseconds at a time, and somebody waits for it.
const TURN_NS: u64 = 100_000;
/// Slots of the first link to a process; further links to the same process have more.
const SLOTS_FIRST: u32 = 64;
const SLOTS_MAX: u32 = 4096;

/// What program threads ask of the service thread.
pub enum Request {
    /// A control socket leads to the other end's process; `came`: we went to it.
    Meet { index: u32, generation: u32, control: i32, came: bool },
    /// Offer the stream on a link; `tried` links have declined.
    Offer { index: u32, generation: u32, link: &'static Link, tried: u32 },
    /// Put the stream where its peer's end stands already.
    Follow { index: u32, generation: u32 },
    /// Look for the other end of a stream whose link is gone, if nothing of that is left.
    Search { index: u32, generation: u32 },
    /// Continue what [`attach::flush`] began.
    Flush { index: u32, generation: u32 },
    /// Send a control message that did not fit.
    Tell { link: &'static Link, message: Message },
    /// Accept an offer, by a message that did not fit.
    Accept(offers::Accepted),
    /// Finish what a closed stream left.
    Finish(Orphan),
}

/// What program threads can reach of the service.
pub struct Service {
    thread: Lock<Option<libc::pthread_t>>,
    /// 1 once the thread's body runs.
    begun: AtomicU32,
    stopping: AtomicBool,
    epoll: i32,
    bell: i32,
    /// Where who took a descriptor of ours comes to, while the thread runs; else -1.
    door: AtomicI32,
    requests: Lock<Vec<Request>>,
    links: Lock<Vec<Known>>,
    looks: Looks,
    /// Descriptors of handshakes under way: a forked child closes them.
    meeting: Lock<Vec<i32>>,
    /// Connections of streams that were closed and are not finished: a forked child closes them.
    orphans: Lock<Vec<Kept>>,
    /// The peers are to take what closed streams left.
    hurry: AtomicBool,
}

/// What only the thread itself touches.
struct Work {
    service: &'static Service,
    diagnosis: Option<Diagnosis>,
    handshakes: Vec<Handshake>,
    offered: Vec<Offered>,
    reserved: Vec<Reserved>,
    orphans: Vec<Orphan>,
    by_ports: ByPorts,
    next_offer: u64,
    unsaid: Unsaid,
}

static SERVICE: AtomicPtr<Service> = AtomicPtr::new(null_mut());
static STARTING: Lock<()> = Lock::new(());

mod tag {
    pub const BELL: u64 = 1 << 56;
    pub const HANDSHAKE: u64 = 2 << 56;
    pub const LINK: u64 = 3 << 56;
    pub const RENDEZVOUS: u64 = 4 << 56;
    pub const COMPANION: u64 = 5 << 56;
    pub const ORPHAN: u64 = 6 << 56;
    pub const FAMILY: u64 = 7 << 56;
    pub const DOOR: u64 = 8 << 56;
    pub const KIND: u64 = 0xff << 56;

    /// A socket by index and the low bits of its generation.
    pub fn socket(kind: u64, index: u32, generation: u32) -> u64 {
        kind | u64::from(generation & 0xff_ffff) << 32 | u64::from(index)
    }
}

/// The service, if it runs in this process.
#[inline]
pub fn running() -> Option<&'static Service> {
    let service = SERVICE.load(Acquire);
    // SAFETY: leaked when made.
    (!service.is_null()).then(|| unsafe { &*service })
}

/// A service whose thread was stopped, to be taken up again.
static STOPPED: AtomicPtr<Service> = AtomicPtr::new(null_mut());

/// Ends the service thread and its links: the peers finish what stands on them as for a death. The
/// next stream that finds a peer starts it again.
pub fn stop() {
    let _held = STARTING.lock();
    let Some(service) = running() else { return };
    SERVICE.store(null_mut(), SeqCst);
    service.stopping.store(true, SeqCst);
    let thread = service.thread.lock().take();
    if thread.is_some() {
        threads::count_again();
    }
    handles::ring(service.bell);
    if let Some(thread) = thread {
        // SAFETY: a joinable thread of ours that nobody else joins.
        unsafe { libc::pthread_join(thread, null_mut()) };
    }
    service.stopping.store(false, SeqCst);
    STOPPED.store((&raw const *service).cast_mut(), Release);
}

/// Whether a thread of ours ended, and none runs.
pub fn has_just_stopped() -> bool {
    !STOPPED.load(Acquire).is_null()
}

/// Starts the service thread unless it runs. `None` when the kernel refuses.
pub fn start() -> Option<&'static Service> {
    if let Some(service) = running() {
        return Some(service);
    }
    let _held = STARTING.lock();
    if let Some(service) = running() {
        return Some(service);
    }
    let stopped = STOPPED.swap(null_mut(), AcqRel);
    if !stopped.is_null() {
        // SAFETY: leaked when made.
        let service: &'static Service = unsafe { &*stopped };
        return spawn(service).then(|| {
            SERVICE.store(stopped, Release);
            inherit::watch_children(service);
            service
        });
    }
    let made = [handles::epoll(), handles::eventfd()];
    let give_up = || made.into_iter().flatten().for_each(handles::close);
    let [Ok(epoll), Ok(bell)] = made else {
        give_up();
        return None;
    };
    let add = libc::EPOLL_CTL_ADD;
    let watched = handles::epoll_ctl(epoll, add, bell, libc::EPOLLIN as u32, tag::BELL).is_ok();
    let service: &'static Service = Box::leak(Box::new(Service {
        thread: Lock::new(None),
        begun: AtomicU32::new(0),
        stopping: AtomicBool::new(false),
        epoll,
        bell,
        door: AtomicI32::new(-1),
        requests: Lock::new(Vec::new()),
        links: Lock::new(Vec::new()),
        looks: Looks::new(),
        meeting: Lock::new(Vec::new()),
        orphans: Lock::new(Vec::new()),
        hurry: AtomicBool::new(false),
    }));
    if !watched || !spawn(service) {
        give_up();
        return None;
    }
    poll::provide();
    SERVICE.store((&raw const *service).cast_mut(), Release);
    inherit::watch_children(service);
    Some(service)
}

fn spawn(service: &'static Service) -> bool {
    // SAFETY: zero is a valid start for all three, which are initialised by the calls below.
    let (mut attributes, mut all, mut before) = unsafe {
        (
            core::mem::zeroed::<libc::pthread_attr_t>(),
            core::mem::zeroed::<libc::sigset_t>(),
            core::mem::zeroed::<libc::sigset_t>(),
        )
    };
    let mut thread: libc::pthread_t = 0;
    let argument = (&raw const *service).cast_mut().cast::<c_void>();
    // SAFETY: all pointers are valid; the thread inherits a mask that blocks every signal.
    unsafe {
        libc::sigfillset(&mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &all, &mut before);
        libc::pthread_attr_init(&mut attributes);
        libc::pthread_attr_setstacksize(&mut attributes, threads::stack_with(STACK_BYTES));
        service.begun.store(0, SeqCst);
        let made = libc::pthread_create(&mut thread, &attributes, body, argument);
        libc::pthread_attr_destroy(&mut attributes);
        libc::pthread_sigmask(libc::SIG_SETMASK, &before, null_mut());
        if made == 0 {
            threads::leave_uncounted();
            *service.thread.lock() = Some(thread);
            // A child made by a bare clone(2) has glibc's list with a thread that does not run there:
            // its setuid would wait for one that has not begun (nptl(7)).
            while service.begun.load(Acquire) == 0 {
                let _ = park::wait(&service.begun, 0, None);
            }
        }
        made == 0
    }
}

extern "C" fn body(argument: *mut c_void) -> *mut c_void {
    // SAFETY: `spawn` passes a leaked service.
    let service: &'static Service = unsafe { &*argument.cast::<Service>() };
    service.begun.store(1, Release);
    park::wake_all(&service.begun);
    let mut work = Work {
        service,
        diagnosis: None,
        handshakes: Vec::new(),
        offered: Vec::new(),
        reserved: Vec::new(),
        orphans: Vec::new(),
        by_ports: ByPorts::default(),
        next_offer: 1,
        unsaid: Unsaid::default(),
    };
    shunt_os::raw::take_short_turns(TURN_NS);
    service.open_door();
    work.run();
    service.close_door();
    null_mut()
}

impl Service {
    /// Hands a request over.
    pub fn ask(&self, request: Request) {
        self.requests.lock().push(request);
        handles::ring(self.bell);
    }

    fn open_door(&self) {
        let Ok(door) = door::open() else { return };
        let (add, events) = (libc::EPOLL_CTL_ADD, libc::EPOLLIN as u32);
        let _ = handles::epoll_ctl(self.epoll, add, door, events, tag::DOOR);
        self.door.store(door, SeqCst);
    }

    fn close_door(&self) {
        let door = self.door.swap(-1, SeqCst);
        if door >= 0 {
            handles::close(door);
        }
    }

    /// A descriptor belongs to a meeting that is under way: a forked child closes it. With a copy of the control socket
    /// there the other end would not hear of this process's death, and what it has passed would live on.
    pub fn meets_by(&self, fd: i32) {
        self.meeting.lock().push(fd);
    }

    fn meets_no_more(&self, fd: i32) {
        self.meeting.lock().retain(|known| *known != fd);
    }

    /// Somebody may come to this listener.
    pub fn watch_rendezvous(&self, listener: i32, index: u32, generation: u32) {
        let data = tag::socket(tag::RENDEZVOUS, index, generation);
        let _ = handles::epoll_ctl(
            self.epoll,
            libc::EPOLL_CTL_ADD,
            listener,
            libc::EPOLLIN as u32,
            data,
        );
    }

    /// Children ring this bell when they want a stream or a set of ours.
    pub fn watch_family(&self, bell: i32) {
        let data = tag::FAMILY | bell as u64;
        let events = libc::EPOLLIN as u32;
        let _ = handles::epoll_ctl(self.epoll, libc::EPOLL_CTL_ADD, bell, events, data);
    }

    /// Ends, resets, bytes and urgent data on an attached stream's kernel connection.
    pub fn watch_companion(&self, index: u32, socket: &Socket) {
        self.companion(libc::EPOLL_CTL_ADD, index, socket, 0);
    }

    /// The kernel serves the stream alone again.
    pub fn forget_companion(&self, socket: &Socket) {
        self.forget(socket.fd.load(Relaxed));
    }

    /// Before another thread closes what this one watches. While it looks at a descriptor it holds what
    /// that names, which would be closed when it next comes out of the kernel, and not before.
    pub fn forget(&self, fd: i32) {
        let _ = handles::epoll_ctl(self.epoll, libc::EPOLL_CTL_DEL, fd, 0, 0);
    }

    /// As before, and room in its send buffer.
    pub fn await_space(&self, index: u32, socket: &Socket) {
        self.companion(libc::EPOLL_CTL_MOD, index, socket, libc::EPOLLOUT as u32);
    }

    fn companion(&self, operation: i32, index: u32, socket: &Socket, more: u32) {
        let news = libc::EPOLLIN | libc::EPOLLPRI | libc::EPOLLRDHUP;
        let events = (news | libc::EPOLLET) as u32 | more;
        let data = tag::socket(tag::COMPANION, index, socket.generation.load(Relaxed));
        let fd = socket.fd.load(Relaxed);
        let done = handles::epoll_ctl(self.epoll, operation, fd, events, data);
        // A number that was closed while a copy lives, or is used again, is known otherwise.
        let other = match done {
            Err(error) if error.0 == libc::EEXIST => libc::EPOLL_CTL_MOD,
            Err(error) if error.0 == libc::ENOENT => libc::EPOLL_CTL_ADD,
            _ => return,
        };
        let _ = handles::epoll_ctl(self.epoll, other, fd, events, data);
    }
}

impl Work {
    fn run(&mut self) {
        let mut last = looks::Last::default();
        while !self.service.stopping.load(SeqCst) {
            let mut events = [libc::epoll_event { events: 0, u64: 0 }; 32];
            let waited = self.service.looks.waited();
            let sleeps_ns =
                [waited.sleeps_ns(), self.unsaid.waits_ns()].into_iter().flatten().min();
            let timeout = sleeps_ns.map_or(-1, |ns| ns.div_ceil(1_000_000) as i32);
            let count = match handles::epoll_wait(self.service.epoll, &mut events, timeout) {
                Ok(count) => count,
                Err(error) if error.0 == libc::EINTR => continue,
                // The program has closed it, by system calls of its own.
                Err(_) => break,
            };
            self.service.looks.look(waited, &mut last);
            links::retire_others();
            self.drop_unwanted();
            for event in &events[..count] {
                let (data, what) = (event.u64, event.events);
                self.dispatch(data, what);
            }
            self.say_again();
        }
        self.wind_up();
    }

    /// Everything that the thread would go on with ends here.
    fn wind_up(&mut self) {
        let links: Vec<&'static Link> =
            self.service.links.lock().iter().map(|known| known.link).collect();
        links.into_iter().for_each(|link| self.lose(link));
        self.refuse_all();
    }

    fn dispatch(&mut self, data: u64, events: u32) {
        let index = data as u32;
        let of_socket = |kind: u64| {
            let socket = pool::find(index)?;
            let same = tag::socket(kind, index, socket.generation.load(Relaxed)) == data;
            (same && socket.mode() != Mode::Free).then_some(socket)
        };
        match data & tag::KIND {
            tag::BELL => {
                handles::silence(self.service.bell);
                let requests = core::mem::take(&mut *self.service.requests.lock());
                requests.into_iter().for_each(|request| self.serve(request));
                self.hurry();
            }
            // A child forked meanwhile would hold what a message has passed, and so keep the other end
            // of a connection open.
            tag::HANDSHAKE => {
                let _no_fork = inherit::no_fork();
                self.advance(index as i32);
            }
            tag::LINK => {
                let _no_fork = inherit::no_fork();
                self.listen(index as i32);
            }
            tag::RENDEZVOUS => {
                if let Some(socket) = of_socket(tag::RENDEZVOUS) {
                    search::look(index, socket);
                }
            }
            tag::COMPANION => {
                if let Some(socket) = of_socket(tag::COMPANION) {
                    self.companion_event(index, socket, events);
                }
            }
            tag::ORPHAN => self.orphan_event(index as i32),
            tag::DOOR => {
                let _no_fork = inherit::no_fork();
                door::answer(self.service.door.load(SeqCst));
            }
            tag::FAMILY => {
                let no_fork = inherit::no_fork();
                self.hear_the_dead();
                drop(no_fork);
                inherit::answer_children(index as i32);
            }
            _ => {}
        }
    }

    fn serve(&mut self, request: Request) {
        match request {
            Request::Meet { index, generation, control, came } => {
                let _no_fork = inherit::no_fork();
                self.greet(index, generation, control, came);
            }
            Request::Offer { index, generation, link, tried } => {
                self.offer(index, generation, link, tried);
            }
            Request::Follow { index, generation } => {
                let _no_fork = inherit::no_fork();
                self.follow_now(index, generation);
            }
            Request::Search { index, generation } => {
                let socket = pool::get(index);
                if socket.generation.load(Relaxed) == generation {
                    attach::look_anew(index, socket);
                    search::search_anew(index, generation);
                }
            }
            Request::Flush { index, generation } => {
                let socket = pool::get(index);
                if socket.generation.load(Relaxed) == generation {
                    attach::flush(index, socket);
                }
            }
            Request::Tell { link, message } => self.say(link, message),
            Request::Accept(accepted) => self.accept(accepted),
            Request::Finish(orphan) => self.take_in(orphan),
        }
    }

    fn companion_event(&mut self, index: u32, socket: &'static Socket, events: u32) {
        if socket.mode() != Mode::Attached {
            return;
        }
        socket.companion_stirred.set();
        if events & libc::EPOLLRDHUP as u32 != 0 {
            attach::let_held_go(socket);
        }
        if events & libc::EPOLLOUT as u32 != 0 {
            attach::flush(index, socket);
        }
        attach::wake_own(socket);
    }
}

/// An attempt failed; what may be otherwise when the stream has carried twice as much is tried
/// again then.
fn settle(socket: &Socket, generation: u32, reason: Reason) {
    if socket.generation.load(Relaxed) == generation && socket.may_be_paired() {
        use Reason::{LinkFailed, NoMemory, PeerDied, RefusedByPeer, SharedWithOtherProcess};
        match reason {
            LinkFailed | NoMemory | PeerDied | RefusedByPeer | SharedWithOtherProcess => {
                search::put_off(socket, reason);
            }
            _ => search::settle(socket, reason),
        }
    }
}

/// In a forked child: the service and its links are the parent's. Their descriptors are closed,
/// so that the parent's death is seen by its peers.
///
/// # Safety
/// The process has one thread.
pub unsafe fn after_fork() {
    // SAFETY: one thread, by the caller's word.
    unsafe { STARTING.force_open() };
    // SAFETY: as above.
    unsafe { links::after_fork() };
    let stopped = STOPPED.swap(null_mut(), AcqRel);
    // SAFETY: leaked when made; one that was stopped has none but these.
    if let Some(stopped) = unsafe { stopped.as_ref() } {
        [stopped.epoll, stopped.bell].into_iter().for_each(handles::close);
    }
    let service = SERVICE.swap(null_mut(), AcqRel);
    // SAFETY: leaked when made.
    let Some(service) = (unsafe { service.as_ref() }) else { return };
    // SAFETY: one thread.
    unsafe {
        service.links.force_open();
        service.requests.force_open();
        service.looks.force_open();
        service.meeting.force_open();
        service.orphans.force_open();
    }
    service.orphans.lock().iter().for_each(|kept| handles::close(kept.fd));
    service.meeting.lock().iter().for_each(|control| handles::close(*control));
    for known in service.links.lock().iter() {
        // SAFETY: one thread.
        unsafe { known.link.after_fork() };
    }
    handles::close(service.epoll);
    handles::close(service.bell);
    service.close_door();
}
