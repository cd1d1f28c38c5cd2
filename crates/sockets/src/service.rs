//! The one thread of ours in a process: started when another Shunt process was found, not before.
//!
//! It pairs, watches companions and control channels, does the peer's share of handovers, and
//! finishes what the program's threads must not wait for. It is not on the data path. It blocks
//! every signal and never calls into the program.

use std::collections::HashMap;

use core::ffi::c_void;
use core::ptr::null_mut;
use core::sync::atomic::{AtomicPtr, Ordering::*};

use shunt_carriers::{tcp, Part, Sender, Sent};
use shunt_link::{Link, Memory, Side};
use shunt_os::clock;
use shunt_os::handles::{self, Received};
use shunt_os::peer::{Diagnosis, Endpoint, Owner, Tuple};
use shunt_pairing::message::{Kind, Message, BYTES, NO_SLOT};
use shunt_pairing::trust::{self, Distrust};
use shunt_stats::Reason;
use shunt_stream::{Writer, WriterOn};

use crate::attach::{self, Broken};
use crate::lock::Lock;
use crate::pool::{self, stage, Mode, SendSide, Socket};
use crate::send::{still_full, FULL_NS_MAX};
use crate::{inherit, process, search};

const STACK_BYTES: usize = 128 * 1024;
/// Slots of the first link to a process; further links to the same process have more.
const SLOTS_FIRST: u32 = 64;
const SLOTS_MAX: u32 = 4096;

/// What program threads ask of the service thread.
pub enum Request {
    /// A control socket leads to the other end's process; `came`: we went to it.
    Meet { index: u32, generation: u32, control: i32, came: bool },
    /// Offer the stream on a link; `tried` links have declined.
    Offer { index: u32, generation: u32, link: &'static Link, tried: u32 },
    /// Continue what [`attach::flush`] began.
    Flush { index: u32, generation: u32 },
    /// Send a control message that did not fit.
    Tell { link: &'static Link, message: Message },
    /// Finish the re-send of a closed stream.
    Finish(Orphan),
}

/// What is left of a stream that was closed while its ring bytes were on their way to TCP.
pub struct Orphan {
    fd: i32,
    writer: Writer,
    link: &'static Link,
    slot: u32,
    bytes: Vec<u8>,
    start: u64,
}

/// A handshake under way.
struct Handshake {
    control: i32,
    index: u32,
    generation: u32,
    tuple: Tuple,
    state: State,
}

enum State {
    /// We went to the other end's rendezvous and wait to be greeted.
    Visiting,
    /// The other end came to ours, was greeted, and is to introduce itself.
    Visited,
    /// We have shown our end and wait for the welcome.
    Introduced { owner: Owner, own_bell: i32 },
}

struct Offered {
    id: u64,
    index: u32,
    generation: u32,
    link: &'static Link,
    owner: Owner,
    tuple: Tuple,
    slot: u32,
    tried: u32,
}

/// What program threads can reach of the service.
pub struct Service {
    epoll: i32,
    bell: i32,
    requests: Lock<Vec<Request>>,
    links: Lock<Vec<Known>>,
    /// Streams whose rings were found full by sends that may not wait.
    full: Lock<Vec<(u32, u32)>>,
    /// Control sockets of handshakes under way: a forked child closes them.
    meeting: Lock<Vec<i32>>,
}

struct Known {
    link: &'static Link,
    /// Server addresses of the streams it has carried: who else serves them is asked first.
    serves: Vec<Endpoint>,
}

/// What only the thread itself touches.
struct Work {
    service: &'static Service,
    diagnosis: Option<Diagnosis>,
    handshakes: Vec<Handshake>,
    offered: Vec<Offered>,
    orphans: Vec<Orphan>,
    by_ports: ByPorts,
    next_offer: u64,
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

/// Starts the service thread unless it runs. `None` when the kernel refuses.
pub fn start() -> Option<&'static Service> {
    if let Some(service) = running() {
        return Some(service);
    }
    let _held = STARTING.lock();
    if let Some(service) = running() {
        return Some(service);
    }
    let epoll = handles::epoll().ok()?;
    let bell = handles::eventfd().ok()?;
    handles::epoll_ctl(epoll, libc::EPOLL_CTL_ADD, bell, libc::EPOLLIN as u32, tag::BELL).ok()?;
    let service: &'static Service = Box::leak(Box::new(Service {
        epoll,
        bell,
        requests: Lock::new(Vec::new()),
        links: Lock::new(Vec::new()),
        full: Lock::new(Vec::new()),
        meeting: Lock::new(Vec::new()),
    }));
    if !spawn(service) {
        handles::close(epoll);
        handles::close(bell);
        return None;
    }
    SERVICE.store((&raw const *service).cast_mut(), Release);
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
        libc::pthread_attr_setstacksize(&mut attributes, STACK_BYTES);
        libc::pthread_attr_setdetachstate(&mut attributes, libc::PTHREAD_CREATE_DETACHED);
        let made = libc::pthread_create(&mut thread, &attributes, body, argument);
        libc::pthread_attr_destroy(&mut attributes);
        libc::pthread_sigmask(libc::SIG_SETMASK, &before, null_mut());
        made == 0
    }
}

extern "C" fn body(argument: *mut c_void) -> *mut c_void {
    // SAFETY: `spawn` passes a leaked service.
    let service: &'static Service = unsafe { &*argument.cast::<Service>() };
    let mut work = Work {
        service,
        diagnosis: None,
        handshakes: Vec::new(),
        offered: Vec::new(),
        orphans: Vec::new(),
        by_ports: ByPorts::default(),
        next_offer: 1,
    };
    work.run()
}

impl Service {
    /// Hands a request over.
    pub fn ask(&self, request: Request) {
        self.requests.lock().push(request);
        handles::ring(self.bell);
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

    /// Children ring this bell when they want a stream of ours.
    pub fn watch_family(&self, bell: i32) {
        let data = tag::FAMILY | bell as u64;
        let events = libc::EPOLLIN as u32;
        let _ = handles::epoll_ctl(self.epoll, libc::EPOLL_CTL_ADD, bell, events, data);
    }

    /// Ends, resets and bytes on an attached stream's kernel connection.
    pub fn watch_companion(&self, index: u32, socket: &Socket) {
        self.companion(libc::EPOLL_CTL_ADD, index, socket, 0);
    }

    /// A ring is full: if its reader takes nothing for long, the stream goes on over TCP.
    pub fn watch_full(&self, index: u32, generation: u32) {
        let mut full = self.full.lock();
        if !full.contains(&(index, generation)) {
            full.push((index, generation));
            if full.len() == 1 {
                handles::ring(self.bell);
            }
        }
    }

    /// The kernel serves the stream alone again.
    pub fn forget_companion(&self, socket: &Socket) {
        let fd = socket.fd.load(Relaxed);
        let _ = handles::epoll_ctl(self.epoll, libc::EPOLL_CTL_DEL, fd, 0, 0);
    }

    /// As before, and room in its send buffer.
    pub fn await_space(&self, index: u32, socket: &Socket) {
        self.companion(libc::EPOLL_CTL_MOD, index, socket, libc::EPOLLOUT as u32);
    }

    fn companion(&self, operation: i32, index: u32, socket: &Socket, more: u32) {
        let events = (libc::EPOLLIN | libc::EPOLLRDHUP | libc::EPOLLET) as u32 | more;
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

/// Live links to processes that serve `server`.
pub fn links_serving(server: &Endpoint) -> Vec<&'static Link> {
    let Some(service) = running() else { return Vec::new() };
    let links = service.links.lock();
    links
        .iter()
        .filter(|known| known.link.is_alive() && known.serves.contains(server))
        .map(|known| known.link)
        .collect()
}

/// One stream is done with its slot.
pub fn released(link: &'static Link, slot: u32) {
    if !link.is_alive() {
        return retire_if_empty(link);
    }
    attach::tell(link, Kind::Released, slot);
    free_if_last(link, slot);
}

/// The peer is gone: once no stream stands on the link, its descriptors and memory go.
pub fn retire_if_empty(link: &'static Link) {
    if !link.is_alive() && link.streams().next().is_none() {
        crate::wait::epoll::forget_link(link);
        link.retire();
    }
}

fn free_if_last(link: &'static Link, slot: u32) {
    if link.side == Side::Master && link.slots.release(slot) {
        link.memory.reset_slot(slot);
        link.slots.put_back(slot);
    }
}

/// The stream's descriptor closes while bytes of the ring are still on their way to TCP: the
/// service keeps a descriptor of its own, and the slot, until they are sent. False if it cannot.
pub fn resend_after_close(socket: &Socket, send: &mut SendSide) -> bool {
    let (Some(link), Some(producer)) = (socket.link(), &send.producer) else { return false };
    let WriterOn::Resend { from, to } = send.writer.on() else { return false };
    let Some(service) = running() else { return false };
    let Ok(fd) = handles::duplicate(socket.fd.load(Relaxed)) else { return false };
    let mut bytes = vec![0u8; (to - from) as usize];
    if producer.copy_back(from, &mut bytes).is_err() {
        handles::close(fd);
        return false;
    }
    let slot = socket.slot.load(Relaxed);
    let writer = core::mem::take(&mut send.writer);
    service.ask(Request::Finish(Orphan { fd, writer, link, slot, bytes, start: from }));
    true
}

impl Work {
    fn run(&mut self) -> ! {
        let mut looked_ns = 0;
        loop {
            let mut events = [libc::epoll_event { events: 0, u64: 0 }; 32];
            let some_full = !self.service.full.lock().is_empty();
            let timeout = if some_full { (FULL_NS_MAX / 1_000_000) as i32 } else { -1 };
            let Ok(count) = handles::epoll_wait(self.service.epoll, &mut events, timeout) else {
                continue;
            };
            if some_full && clock::now_ns() - looked_ns >= FULL_NS_MAX {
                looked_ns = clock::now_ns();
                self.look_at_full();
            }
            for event in &events[..count] {
                let (data, what) = (event.u64, event.events);
                self.dispatch(data, what);
            }
        }
    }

    /// Streams that stay full for two looks on end leave their rings.
    fn look_at_full(&mut self) {
        let mut full = core::mem::take(&mut *self.service.full.lock());
        full.retain(|&(index, generation)| {
            let socket = pool::get(index);
            socket.generation.load(Relaxed) == generation && still_full(index, socket)
        });
        self.service.full.lock().append(&mut full);
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
            }
            tag::HANDSHAKE => self.advance(index as i32),
            tag::LINK => self.listen(index as i32),
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
            tag::ORPHAN => self.finish_orphans(),
            tag::FAMILY => inherit::answer_children(index as i32),
            _ => {}
        }
    }

    fn serve(&mut self, request: Request) {
        match request {
            Request::Meet { index, generation, control, came } => {
                self.greet(index, generation, control, came);
            }
            Request::Offer { index, generation, link, tried } => {
                self.offer(index, generation, link, tried);
            }
            Request::Flush { index, generation } => {
                let socket = pool::get(index);
                if socket.generation.load(Relaxed) == generation {
                    attach::flush(index, socket);
                }
            }
            Request::Tell { link, message } => {
                // The channel is full only if the peer's service thread does not run; try again
                // when it does.
                let sent = handles::send_message(link.control, &message.encode(), &[]);
                if sent.is_err_and(|e| e.0 == libc::EAGAIN) && link.is_alive() {
                    shunt_os::raw::nanosleep(1_000_000);
                    self.service.ask(Request::Tell { link, message });
                }
            }
            Request::Finish(orphan) => {
                let data = tag::ORPHAN;
                let events = (libc::EPOLLOUT | libc::EPOLLET) as u32;
                let epoll = self.service.epoll;
                let _ = handles::epoll_ctl(epoll, libc::EPOLL_CTL_ADD, orphan.fd, events, data);
                self.orphans.push(orphan);
                self.finish_orphans();
            }
        }
    }

    fn companion_event(&mut self, index: u32, socket: &'static Socket, events: u32) {
        if socket.mode() != Mode::Attached {
            return;
        }
        socket.companion_stirred.store(true, Release);
        if events & libc::EPOLLOUT as u32 != 0 {
            attach::flush(index, socket);
        }
        attach::wake_own(index, socket);
    }

    // ---- handshake -------------------------------------------------------------------------

    fn greet(&mut self, index: u32, generation: u32, control: i32, came: bool) {
        let socket = pool::get(index);
        let tuple = *socket.tuple.lock();
        let (Some(tuple), true) = (tuple, socket.generation.load(Relaxed) == generation) else {
            return handles::close(control);
        };
        let state = if came {
            State::Visiting
        } else {
            let greeting = Message::of(Kind::Greet, NO_SLOT);
            let _ = handles::send_message(control, &greeting.encode(), &[]);
            State::Visited
        };
        let data = tag::HANDSHAKE | control as u64;
        let events = libc::EPOLLIN as u32;
        let watched =
            handles::epoll_ctl(self.service.epoll, libc::EPOLL_CTL_ADD, control, events, data);
        if watched.is_err() {
            handles::close(control);
            return settle(socket, generation, Reason::LinkFailed);
        }
        self.service.meeting.lock().push(control);
        self.handshakes.push(Handshake { control, index, generation, tuple, state });
    }

    fn hello(&mut self, socket: &Socket, tuple: &Tuple, control: i32) -> Result<State, Reason> {
        let owner = self.owner(tuple, control)?;
        let own_bell = handles::eventfd().map_err(|_| Reason::NoDescriptors)?;
        let message = Message { tuple: *tuple, ..Message::of(Kind::Hello, NO_SLOT) };
        let pass = [socket.fd.load(Relaxed), own_bell];
        match handles::send_message(control, &message.encode(), &pass) {
            Ok(()) => Ok(State::Introduced { owner, own_bell }),
            Err(_) => {
                handles::close(own_bell);
                Err(Reason::LinkFailed)
            }
        }
    }

    /// The owner of the other end, if that is the user at the control socket.
    fn owner(&mut self, tuple: &Tuple, control: i32) -> Result<Owner, Reason> {
        let who = handles::credentials(control).map_err(|_| Reason::NotTheOwner)?;
        self.owner_uid(tuple, who.uid)
    }

    fn owner_uid(&mut self, tuple: &Tuple, uid: u32) -> Result<Owner, Reason> {
        if self.diagnosis.is_none() {
            self.diagnosis = Diagnosis::open().ok();
        }
        let line = self.diagnosis.as_mut().ok_or(Reason::NoSocketDiagnosis)?;
        trust::owner_of_other_end(line, tuple, uid).map_err(|distrust| match distrust {
            Distrust::NoDiagnosis => Reason::NoSocketDiagnosis,
            _ => Reason::NotTheOwner,
        })
    }

    fn advance(&mut self, control: i32) {
        let Some(at) = self.handshakes.iter().position(|h| h.control == control) else { return };
        let mut buffer = [0u8; BYTES + 8];
        let received = match handles::receive_message(control, &mut buffer) {
            Err(error) if error.0 == libc::EAGAIN => return,
            Err(_) => None,
            Ok(received) => Some(received),
        };
        let handshake = self.handshakes.swap_remove(at);
        self.service.meeting.lock().retain(|known| *known != control);
        let _ = handles::epoll_ctl(self.service.epoll, libc::EPOLL_CTL_DEL, control, 0, 0);
        let message = received.as_ref().and_then(|r| Message::decode(&buffer[..r.bytes]));
        let outcome = match (&handshake.state, &message, &received) {
            (State::Visiting, Some(message), Some(_)) if message.kind == Kind::Greet => {
                self.greeted(&handshake)
            }
            (State::Visited, Some(message), Some(received)) if message.kind == Kind::Hello => {
                self.welcome(&handshake, message, received)
            }
            (State::Introduced { owner, own_bell }, Some(message), Some(received))
                if message.kind == Kind::Welcome =>
            {
                self.welcomed(&handshake, owner, *own_bell, message, received)
            }
            _ => Err(Reason::RefusedByPeer),
        };
        if let Err(reason) = outcome {
            if let State::Introduced { own_bell, .. } = handshake.state {
                handles::close(own_bell);
            }
            let refusal = Message::of(Kind::Refuse, NO_SLOT);
            let _ = handles::send_message(control, &refusal.encode(), &[]);
            handles::close(control);
            settle(pool::get(handshake.index), handshake.generation, reason);
        }
        if let Some(received) = received {
            close_passed(&received);
        }
    }

    /// The other end's service thread is there: show it our end, if it is the right user's.
    fn greeted(&mut self, handshake: &Handshake) -> Result<(), Reason> {
        let socket = pool::get(handshake.index);
        if socket.generation.load(Relaxed) != handshake.generation || socket.mode() != Mode::Plain {
            return Err(Reason::Closed);
        }
        let control = handshake.control;
        let state = self.hello(socket, &handshake.tuple, control)?;
        let data = tag::HANDSHAKE | control as u64;
        let events = libc::EPOLLIN as u32;
        let _ = handles::epoll_ctl(self.service.epoll, libc::EPOLL_CTL_ADD, control, events, data);
        self.service.meeting.lock().push(control);
        self.handshakes.push(Handshake { state, ..*handshake });
        Ok(())
    }

    /// The other end came to our rendezvous: we are the master.
    fn welcome(
        &mut self,
        handshake: &Handshake,
        message: &Message,
        received: &Received,
    ) -> Result<(), Reason> {
        let socket = pool::get(handshake.index);
        if received.passed_count != 2 || !same_connection(&message.tuple, &handshake.tuple) {
            return Err(Reason::RefusedByPeer);
        }
        let owner = self.owner(&handshake.tuple, handshake.control)?;
        trust::is_other_end(received.passed[0], &owner).map_err(|_| Reason::NotTheOwner)?;
        let who = handles::credentials(handshake.control).map_err(|_| Reason::NotTheOwner)?;
        let before = self.links_to(who.pid);
        let slots = (SLOTS_FIRST << (2 * before.min(3))).min(SLOTS_MAX);
        let (memory, memfd) =
            Memory::create(slots, process::ring_bytes()).map_err(|_| Reason::NoMemory)?;
        let opened =
            handles::eventfd().and_then(|own| Ok((own, handles::duplicate(received.passed[1])?)));
        let Ok((own_bell, peer_bell)) = opened else {
            handles::close(memfd);
            return Err(Reason::NoDescriptors);
        };
        let link = Link::new(
            memory,
            Side::Master,
            handshake.control,
            (own_bell, peer_bell),
            (who.uid, who.pid),
        );
        let link: &'static Link = Box::leak(Box::new(link));
        let slot = link.slots.take().unwrap_or(0);
        let welcome = Message { tuple: handshake.tuple, ..Message::of(Kind::Welcome, slot) };
        let pass = [memfd, socket.fd.load(Relaxed), own_bell];
        let sent = handles::send_message(handshake.control, &welcome.encode(), &pass);
        handles::close(memfd);
        if sent.is_err() {
            return Err(Reason::LinkFailed);
        }
        self.adopt(link, socket, &handshake.tuple);
        if !attach::attach(handshake.index, handshake.generation, link, slot) {
            released(link, slot);
        }
        Ok(())
    }

    /// The master has answered: its memory is the link's.
    fn welcomed(
        &mut self,
        handshake: &Handshake,
        owner: &Owner,
        own_bell: i32,
        message: &Message,
        received: &Received,
    ) -> Result<(), Reason> {
        let socket = pool::get(handshake.index);
        if received.passed_count != 3 || !same_connection(&message.tuple, &handshake.tuple) {
            return Err(Reason::RefusedByPeer);
        }
        trust::is_other_end(received.passed[1], owner).map_err(|_| Reason::NotTheOwner)?;
        let memory = Memory::open(received.passed[0]).map_err(|_| Reason::NoMemory)?;
        if message.slot >= memory.slots() {
            return Err(Reason::RefusedByPeer);
        }
        let who = handles::credentials(handshake.control).map_err(|_| Reason::NotTheOwner)?;
        let peer_bell =
            handles::duplicate(received.passed[2]).map_err(|_| Reason::NoDescriptors)?;
        let link = Link::new(
            memory,
            Side::Guest,
            handshake.control,
            (own_bell, peer_bell),
            (who.uid, who.pid),
        );
        let link: &'static Link = Box::leak(Box::new(link));
        self.adopt(link, socket, &handshake.tuple);
        if !attach::attach(handshake.index, handshake.generation, link, message.slot) {
            released(link, message.slot);
        }
        Ok(())
    }

    fn adopt(&mut self, link: &'static Link, socket: &Socket, tuple: &Tuple) {
        let server = if socket.connector.load(Relaxed) { tuple.remote } else { tuple.local };
        self.service.links.lock().push(Known { link, serves: vec![server] });
        let data = tag::LINK | link.control as u64;
        let events = libc::EPOLLIN as u32;
        let epoll = self.service.epoll;
        let _ = handles::epoll_ctl(epoll, libc::EPOLL_CTL_ADD, link.control, events, data);
        if socket.connector.load(Relaxed) {
            self.offer_waiting(link, &server);
        }
    }

    /// Other streams to the same server that wait at a rendezvous are offered on the new link.
    fn offer_waiting(&mut self, link: &'static Link, server: &Endpoint) {
        let mut waiting = Vec::new();
        pool::each(|index, socket| {
            let tuple = *socket.tuple.lock();
            let same = tuple.is_some_and(|tuple| tuple.remote == *server);
            let waits = socket.stage.load(Relaxed) == stage::WAITING;
            if same && waits && socket.connector.load(Relaxed) && socket.mode() == Mode::Plain {
                waiting.push((index, socket.generation.load(Relaxed)));
            }
        });
        for (index, generation) in waiting {
            let socket = pool::get(index);
            let (from, to) = (stage::WAITING, stage::MEETING);
            if socket.stage.compare_exchange(from, to, AcqRel, Relaxed).is_ok() {
                search::stop_waiting(socket);
                self.offer(index, generation, link, 0);
            }
        }
    }

    fn links_to(&self, pid: i32) -> u32 {
        let links = self.service.links.lock();
        links.iter().filter(|k| k.link.peer_pid == pid && k.link.is_alive()).count() as u32
    }

    // ---- live links ------------------------------------------------------------------------

    fn link_of(&self, control: i32) -> Option<&'static Link> {
        let links = self.service.links.lock();
        links.iter().map(|k| k.link).find(|l| l.control == control && l.is_alive())
    }

    fn listen(&mut self, control: i32) {
        let Some(link) = self.link_of(control) else { return };
        // A flood from a hostile peer must not keep the others waiting.
        for _ in 0..64 {
            let mut buffer = [0u8; BYTES + 8];
            let received = match handles::receive_message(control, &mut buffer) {
                Err(error) if error.0 == libc::EAGAIN => return,
                Err(error) if error.0 == libc::EINTR => continue,
                Err(_) => return self.lose(link),
                Ok(received) if received.bytes == 0 => return self.lose(link),
                Ok(received) => received,
            };
            let message = Message::decode(&buffer[..received.bytes]);
            let known = match message {
                Some(message) => self.hear(link, &message, &received),
                None => false,
            };
            close_passed(&received);
            if !known {
                return self.lose(link);
            }
        }
    }

    /// One message of a live link; false if it is nonsense.
    fn hear(&mut self, link: &'static Link, message: &Message, received: &Received) -> bool {
        match message.kind {
            Kind::Stopped => {
                if let Some(index) = link.stream(message.slot) {
                    attach::flush(index, pool::get(index));
                }
            }
            Kind::FinHeld => {
                if let Some(index) = link.stream(message.slot) {
                    attach::fin_is_held(index, pool::get(index));
                }
            }
            Kind::Drained => {
                if let Some(index) = link.stream(message.slot) {
                    attach::send_held_fin(index, pool::get(index));
                }
            }
            Kind::Released => free_if_last(link, message.slot),
            Kind::Offer => self.consider(link, message, received),
            Kind::Accept => return self.accepted(link, message, received),
            Kind::Decline => self.declined(link, message),
            Kind::Refuse => return false,
            Kind::Greet | Kind::Hello | Kind::Welcome => return false,
        }
        true
    }

    /// The peer is gone: its streams are finished by this side alone.
    fn lose(&mut self, link: &'static Link) {
        if !link.bury() {
            return;
        }
        handles::close(link.control);
        let streams: Vec<u32> = link.streams().collect();
        for index in streams {
            attach::peer_died(index, pool::get(index));
        }
        let lost: Vec<Offered>;
        (lost, self.offered) = core::mem::take(&mut self.offered)
            .into_iter()
            .partition(|o| core::ptr::eq(o.link, link));
        link.wake_own();
        self.service.links.lock().retain(|known| !core::ptr::eq(known.link, link));
        retire_if_empty(link);
        for offer in lost {
            self.try_elsewhere(offer.index, offer.generation, offer.tuple, 0);
        }
    }

    // ---- further streams on a link ---------------------------------------------------------

    fn offer(&mut self, index: u32, generation: u32, link: &'static Link, tried: u32) {
        let socket = pool::get(index);
        let tuple = *socket.tuple.lock();
        let (Some(tuple), true) = (tuple, socket.generation.load(Relaxed) == generation) else {
            return;
        };
        let offered = (|| {
            let owner = self.owner_uid(&tuple, link.peer_uid).ok()?;
            let slot = match link.side {
                Side::Master => link.slots.take()?,
                Side::Guest => NO_SLOT,
            };
            let id = self.next_offer;
            self.next_offer += 1;
            let message = Message { kind: Kind::Offer, slot, id, tuple };
            let fd = socket.fd.load(Relaxed);
            if handles::send_message(link.control, &message.encode(), &[fd]).is_err() {
                return_slot(link, slot);
                return None;
            }
            Some(Offered { id, index, generation, link, owner, tuple, slot, tried })
        })();
        match offered {
            Some(offered) => self.offered.push(offered),
            None => self.try_elsewhere(index, generation, tuple, tried),
        }
    }

    /// Another link that serves the same address, or the rendezvous.
    fn try_elsewhere(&mut self, index: u32, generation: u32, tuple: Tuple, tried: u32) {
        let socket = pool::get(index);
        if socket.generation.load(Relaxed) != generation || socket.mode() != Mode::Plain {
            return;
        }
        let next = links_serving(&tuple.remote).into_iter().nth(tried as usize + 1);
        match next {
            Some(link) => self.offer(index, generation, link, tried + 1),
            None => search::meet(index, socket, generation, &tuple),
        }
    }

    /// The peer offers a stream: is its other end ours?
    fn consider(&mut self, link: &'static Link, message: &Message, received: &Received) {
        let outcome = (|| -> Option<(u32, u32)> {
            if received.passed_count != 1 {
                return None;
            }
            let own = message.tuple.reversed();
            let (index, socket) = self.by_ports.find(&own)?;
            let generation = socket.generation.load(Relaxed);
            let owner = self.owner_uid(&own, link.peer_uid).ok()?;
            trust::is_other_end(received.passed[0], &owner).ok()?;
            if socket.mode() != Mode::Plain || !inherit::is_sole_holder(socket) {
                return None;
            }
            let slot = match link.side {
                Side::Master => link.slots.take()?,
                Side::Guest => (message.slot < link.memory.slots()).then_some(message.slot)?,
            };
            *socket.tuple.lock() = Some(own);
            if let Some(entry) = socket.entry() {
                search::publish_addresses(entry, &own);
            }
            if !attach::attach(index, generation, link, slot) {
                return_slot(link, slot);
                return None;
            }
            Some((slot, index))
        })();
        let (kind, slot) = match outcome {
            Some((slot, _)) => (Kind::Accept, slot),
            None => (Kind::Decline, NO_SLOT),
        };
        let answer = Message { kind, slot, id: message.id, tuple: Tuple::default() };
        let fd = outcome.map(|(_, index)| pool::get(index).fd.load(Relaxed));
        let pass: &[i32] = match &fd {
            Some(fd) => core::slice::from_ref(fd),
            None => &[],
        };
        let _ = handles::send_message(link.control, &answer.encode(), pass);
    }

    fn take_offer(&mut self, link: &'static Link, id: u64) -> Option<Offered> {
        let at = self.offered.iter().position(|o| o.id == id && core::ptr::eq(o.link, link))?;
        Some(self.offered.swap_remove(at))
    }

    fn accepted(&mut self, link: &'static Link, message: &Message, received: &Received) -> bool {
        let Some(offer) = self.take_offer(link, message.id) else { return false };
        let slot = match link.side {
            Side::Master => offer.slot,
            Side::Guest => message.slot,
        };
        let proven = received.passed_count == 1
            && slot < link.memory.slots()
            && trust::is_other_end(received.passed[0], &offer.owner).is_ok();
        if !proven {
            return false;
        }
        let server = if pool::get(offer.index).connector.load(Relaxed) {
            offer.tuple.remote
        } else {
            offer.tuple.local
        };
        if let Some(known) =
            self.service.links.lock().iter_mut().find(|k| core::ptr::eq(k.link, link))
        {
            if !known.serves.contains(&server) {
                known.serves.push(server);
            }
        }
        if !attach::attach(offer.index, offer.generation, link, slot) {
            released(link, slot);
        }
        true
    }

    fn declined(&mut self, link: &'static Link, message: &Message) {
        if let Some(offer) = self.take_offer(link, message.id) {
            return_slot(link, offer.slot);
            self.try_elsewhere(offer.index, offer.generation, offer.tuple, offer.tried);
        }
    }

    // ---- leftovers -------------------------------------------------------------------------

    fn finish_orphans(&mut self) {
        let epoll = self.service.epoll;
        self.orphans.retain_mut(|orphan| match orphan.advance() {
            Ok(false) => true,
            Ok(true) | Err(Broken) => {
                let _ = handles::epoll_ctl(epoll, libc::EPOLL_CTL_DEL, orphan.fd, 0, 0);
                handles::close(orphan.fd);
                released(orphan.link, orphan.slot);
                false
            }
        });
    }
}

impl Orphan {
    fn advance(&mut self) -> Result<bool, Broken> {
        let words = attach::outgoing(self.link, self.slot);
        while let WriterOn::Resend { from, to } = self.writer.on() {
            let rest = &self.bytes[(from - self.start) as usize..(to - self.start) as usize];
            // SAFETY: a slice of our own.
            match unsafe { tcp::Sender::new(self.fd).try_send([Part::of(rest)].into_iter()) } {
                Ok(Sent::Took(count)) => self.writer.resent(&words, from + count as u64)?,
                Ok(Sent::Full) => return Ok(false),
                Err(_) => return Ok(true),
            };
        }
        Ok(true)
    }
}

/// Gives a slot back that was never used by both sides.
fn return_slot(link: &'static Link, slot: u32) {
    if link.side == Side::Master && slot != NO_SLOT {
        link.slots.release(slot);
        free_if_last(link, slot);
    }
}

fn same_connection(theirs: &Tuple, ours: &Tuple) -> bool {
    let theirs = theirs.reversed();
    let same = |a: &Endpoint, b: &Endpoint| a.address == b.address && a.port == b.port;
    same(&theirs.local, &ours.local) && same(&theirs.remote, &ours.remote)
}

/// An attempt failed; what may be otherwise when the stream has carried twice as much is tried
/// again then.
fn settle(socket: &Socket, generation: u32, reason: Reason) {
    if socket.generation.load(Relaxed) == generation && socket.mode() == Mode::Plain {
        let passing =
            matches!(reason, Reason::LinkFailed | Reason::RefusedByPeer | Reason::PeerDied);
        let stage = if passing { stage::YOUNG } else { stage::SETTLED };
        socket.stage.store(stage, Relaxed);
        if let Some(entry) = socket.entry() {
            entry.set_reason(reason);
        }
    }
}

fn close_passed(received: &Received) {
    received.passed[..received.passed_count].iter().for_each(|fd| handles::close(*fd));
}

/// Plain sockets by their ports, as far as they were looked at: a link is asked for thousands of
/// streams at once.
#[derive(Default)]
struct ByPorts(HashMap<(u16, u16), u32>);

impl ByPorts {
    /// The plain socket with these addresses.
    fn find(&mut self, own: &Tuple) -> Option<(u32, &'static Socket)> {
        let ports = (own.local.port, own.remote.port);
        let known = |index: Option<&u32>| {
            let (index, socket) = index.map(|index| (*index, pool::get(*index)))?;
            (socket.mode() == Mode::Plain && same_ends(&tuple_of(socket)?, own))
                .then_some((index, socket))
        };
        if let Some(found) = known(self.0.get(&ports)) {
            return Some(found);
        }
        self.0.clear();
        let mut found = None;
        pool::each(|index, socket| {
            if socket.mode() != Mode::Plain {
                return;
            }
            let Some(tuple) = tuple_of(socket) else { return };
            // Addresses may differ where ports do not.
            if same_ends(&tuple, own) {
                found = Some((index, socket));
            }
            self.0.insert((tuple.local.port, tuple.remote.port), index);
        });
        found
    }
}

/// Each end has its own idea of the scope of an address.
fn same_ends(one: &Tuple, other: &Tuple) -> bool {
    let same = |a: &Endpoint, b: &Endpoint| a.address == b.address && a.port == b.port;
    same(&one.local, &other.local) && same(&one.remote, &other.remote)
}

/// A socket's addresses, asked for once.
fn tuple_of(socket: &Socket) -> Option<Tuple> {
    let mut known = socket.tuple.lock();
    if known.is_none() {
        *known = shunt_os::peer::tuple(socket.fd.load(Relaxed)).ok();
    }
    *known
}

/// In a forked child: the service and its links are the parent's. Their descriptors are closed,
/// so that the parent's death is seen by its peers.
///
/// # Safety
/// The process has one thread.
pub unsafe fn after_fork() {
    // SAFETY: one thread, by the caller's word.
    unsafe { STARTING.force_open() };
    let service = SERVICE.swap(null_mut(), AcqRel);
    if service.is_null() {
        return;
    }
    // SAFETY: leaked when made.
    let service = unsafe { &*service };
    // SAFETY: one thread.
    unsafe {
        service.links.force_open();
        service.requests.force_open();
        service.full.force_open();
        service.meeting.force_open();
    }
    service.meeting.lock().iter().for_each(|control| handles::close(*control));
    for known in service.links.lock().iter() {
        handles::close(known.link.control);
        known.link.with_bells(|bells| {
            handles::close(bells.own);
            handles::close(bells.peer);
        });
    }
    handles::close(service.epoll);
    handles::close(service.bell);
}
