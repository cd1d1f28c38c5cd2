//! What a scenario sees: one of the two sides, its transcript, and the steps that keep both sides
//! in time with each other. Nothing here sleeps to synchronise; the sides meet over a Unix socket.

use crate::calls::process::{self, Pid};
use crate::calls::socket::{self, Address, Family};
use crate::calls::{io, wait, Fd, Got};
use std::cell::RefCell;
use std::collections::HashMap;
use std::fmt::Display;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::{Scope, ScopedJoinHandle};
use std::time::{Duration, Instant};

/// Leads to the other side; out of the way of the numbers that scenarios look at.
const BESIDE: Fd = 700;
/// Leads to the harness.
const CONTROL: Fd = 701;
/// What a side says between notes, so that nobody takes it for hung.
pub const GOES_ON: &[u8] = b".";
/// Longer than any state needs to settle, shorter than the watchdog's patience.
const SETTLE_SECONDS_MAX: u64 = 4;
const EXCHANGES: u64 = 64;
const EXCHANGES_MAX: u64 = 200_000;
/// Of eight exchanges, where many streams are warmed at once.
const ROUNDS_MAX: u64 = 100;

/// The note that a warm-up leaves when it failed; the harness judges it, not the comparison.
pub const WARM_UP: &str = "warm-up";

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Side {
    Client,
    Server,
}

/// What a stream has been through before the scenario uses it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Carrier {
    /// Nothing: the scenario's own bytes are the first.
    Tcp,
    /// A few exchanges, so that an upgrade may happen under the scenario's feet.
    Changing,
    /// Exchanges until the harness has seen both directions on the ring.
    Ring,
}

/// Names the file with what this side noted on kernel TCP.
pub const ORACLE_VARIABLE: &str = "SHUNT_DIFFERENTIAL_ORACLE";

static GAVE_UP: AtomicBool = AtomicBool::new(false);

thread_local! {
    static WHO: RefCell<String> = const { RefCell::new(String::new()) };
}

pub struct Actor {
    pub side: Side,
    pub carrier: Carrier,
    pub family: Family,
    blocks: bool,
}

/// Whether `SHUNT_PAIR` asks for streams on rings from their first byte on: for whole runs by hand.
pub fn pairs_at_once() -> bool {
    std::env::var_os("SHUNT_PAIR").is_some()
}

/// A listening socket: its descriptor at the server (-1 at the client) and its port at both.
#[derive(Clone, Copy)]
pub struct Place {
    pub fd: Fd,
    pub port: u16,
}

impl Actor {
    /// Takes over the two sockets that the harness passed as standard input and output.
    pub fn start(side: Side, carrier: Carrier, family: Family, blocks: bool) -> Actor {
        for (from, to) in [(0, BESIDE), (1, CONTROL)] {
            socket::dup3(from, to, libc::O_CLOEXEC).value("dup3");
        }
        let null = socket::open_null();
        for standard in [0, 1] {
            socket::dup2(null, standard).value("dup2");
        }
        socket::close(null);
        process::end_with_parent();
        wait::default_signal(libc::SIGPIPE);
        let actor = Actor { side, carrier, family, blocks };
        rename(if actor.is_client() { "client" } else { "server" });
        actor
    }

    /// For scenarios about what is told first: while a stream changes its carrier, nobody knows the order of
    /// its bytes and of what the kernel tells. So no stream of theirs does.
    pub fn settled(&self) -> Actor {
        let changes = self.carrier == Carrier::Changing || pairs_at_once();
        Actor { carrier: if changes { Carrier::Ring } else { self.carrier }, ..*self }
    }

    pub fn is_client(&self) -> bool {
        self.side == Side::Client
    }

    /// One line of the transcript.
    pub fn note(&self, what: impl Display, got: impl Display) {
        let who = WHO.with_borrow(|who| who.clone());
        let line = serde_json::json!({
            "who": who, "what": what.to_string(), "got": got.to_string(),
        });
        io::send(CONTROL, line.to_string().as_bytes(), libc::MSG_NOSIGNAL).value("transcript");
    }

    /// Tells the harness that this side does not hang.
    fn go_on(&self) {
        io::send(CONTROL, GOES_ON, libc::MSG_NOSIGNAL).value("a sign of life");
    }

    /// What this side noted on kernel TCP; nothing in the run on kernel TCP itself. For scenarios that wait
    /// until the library has done what TCP did, and do not know themselves what that is.
    pub fn oracle(&self) -> Option<HashMap<String, String>> {
        let text = std::fs::read_to_string(std::env::var_os(ORACLE_VARIABLE)?).ok()?;
        let notes: Vec<(String, String)> = serde_json::from_str(&text).expect("what was noted");
        Some(notes.into_iter().collect())
    }

    /// A step of the client; the server waits until it is done.
    pub fn client(&self, step: impl FnOnce()) {
        if self.is_client() {
            step();
        }
        self.meet();
    }

    /// A step of the server; the client waits until it is done.
    pub fn server(&self, step: impl FnOnce()) {
        if !self.is_client() {
            step();
        }
        self.meet();
    }

    /// Both sides at once; each then waits for the other.
    pub fn at_once(&self, client: impl FnOnce(), server: impl FnOnce()) {
        match self.side {
            Side::Client => client(),
            Side::Server => server(),
        }
        self.meet();
    }

    /// Both sides reach this point before either goes on.
    pub fn meet(&self) {
        self.go_on();
        self.tell("here");
        assert_eq!(self.hear(), "here", "the two sides are at different steps");
    }

    /// A word to the other side, in the middle of a step.
    pub fn tell(&self, word: &str) {
        io::send(BESIDE, word.as_bytes(), libc::MSG_NOSIGNAL).value("the other side is gone");
    }

    pub fn hear(&self) -> String {
        let mut room = [0; 256];
        let count = loop {
            match io::recv(BESIDE, &mut room, 0) {
                Got::Errno(libc::EINTR) => {}
                got => break got.value("the other side is gone") as usize,
            }
        };
        assert_ne!(count, 0, "the other side has ended");
        String::from_utf8_lossy(&room[..count]).into_owned()
    }

    /// A number that one side's step finds, known to both afterwards.
    pub fn number_from(&self, side: Side, step: impl FnOnce() -> u64) -> u64 {
        if self.side != side {
            return self.hear().parse().expect("a number from the other side");
        }
        let number = step();
        self.tell(&number.to_string());
        number
    }

    pub fn told_by_server(&self, step: impl FnOnce() -> u64) -> u64 {
        self.number_from(Side::Server, step)
    }

    pub fn told_by_client(&self, step: impl FnOnce() -> u64) -> u64 {
        self.number_from(Side::Client, step)
    }

    pub fn listen(&self) -> Place {
        let mut fd = -1;
        let port = self.told_by_server(|| {
            let (listener, port) = listener(self.family);
            fd = listener;
            u64::from(port)
        });
        Place { fd, port: port as u16 }
    }

    /// The client connects, the server accepts, and the stream gets its history.
    pub fn pair(&self, place: &Place) -> Fd {
        let fd = self.new_stream(place);
        self.warm(fd);
        if !self.blocks {
            socket::set_nonblocking(fd, true);
        }
        fd
    }

    /// One that has carried nothing.
    pub fn new_stream(&self, place: &Place) -> Fd {
        match self.side {
            Side::Client => self.connect(place),
            Side::Server => socket::accept(place.fd).fd("accept"),
        }
    }

    pub fn connect(&self, place: &Place) -> Fd {
        let fd = self.tcp_socket();
        let address = Address::as_seen_by_client(self.family, place.port);
        socket::connect(fd, &address).value("connect");
        fd
    }

    pub fn tcp_socket(&self) -> Fd {
        let domain = if self.family == Family::V6 { libc::AF_INET6 } else { libc::AF_INET };
        socket::socket(domain, libc::SOCK_STREAM).fd("socket")
    }

    /// The one stream that most scenarios need.
    pub fn stream(&self) -> Fd {
        let place = self.listen();
        let fd = self.pair(&place);
        if place.fd >= 0 {
            socket::close(place.fd);
        }
        self.meet();
        fd
    }

    pub fn warm(&self, fd: Fd) {
        match self.side {
            Side::Client => self.warm_as_client(fd),
            Side::Server => self.warm_as_server(fd),
        }
    }

    /// Exchanges of 8 bytes, until the harness has seen what the carrier asks for.
    pub fn warm_as_client(&self, fd: Fd) {
        let rounds = match self.carrier {
            Carrier::Tcp => return,
            Carrier::Changing => 10,
            Carrier::Ring => EXCHANGES_MAX,
        };
        // One stream that never gets there is enough to fail; the others need not try as long.
        let rounds = if GAVE_UP.load(Relaxed) { EXCHANGES } else { rounds };
        let (mut last, mut there) = (false, false);
        let mut round = 0;
        while !last {
            round += 1;
            there = self.carrier == Carrier::Ring && round % EXCHANGES == 0 && self.is_on_ring(fd);
            last = there || round >= rounds;
            io::send(fd, if last { b"lastping" } else { b"pingping" }, 0).value("warm-up");
            let answer = crate::pattern::receive_text(fd, 8);
            assert_eq!(answer, "pongpong", "warm-up answer");
        }
        // The server may be beyond the warm-up already, and have its stream leave.
        let settled = || GAVE_UP.load(Relaxed) || self.settle(|| self.is_on_ring(fd));
        if self.carrier == Carrier::Ring && !there && !settled() {
            GAVE_UP.store(true, Relaxed);
            self.note(WARM_UP, "not on the ring");
        }
    }

    pub fn warm_as_server(&self, fd: Fd) {
        if self.carrier == Carrier::Tcp {
            return;
        }
        loop {
            let word = crate::pattern::receive_text(fd, 8);
            io::send(fd, b"pongpong", 0).value("warm-up");
            match word.as_str() {
                "lastping" => return,
                "pingping" => {}
                other => panic!("warm-up got {other:?}"),
            }
        }
    }

    /// Whether both directions are; true where the library is not at both ends, as for the next question.
    pub fn is_on_ring(&self, fd: Fd) -> bool {
        self.ask_about(fd, "?upgraded", "")
    }

    /// Whether both directions went back to TCP, as this end says for this reason.
    pub fn has_left(&self, fd: Fd, reason: &str) -> bool {
        self.ask_about(fd, "?left", reason)
    }

    fn ask_about(&self, fd: Fd, question: &str, more: &str) -> bool {
        let (_, own) = socket::getsockname(fd);
        let (_, peer) = socket::getpeername(fd);
        self.ask(&format!("{question} {} {} {more}", own.port(), peer.port()))
    }

    /// Asks the harness, which reads the stats segments of both sides.
    pub fn ask(&self, question: &str) -> bool {
        // One at a time: the answer must come to the thread that asked.
        static ASKING: std::sync::Mutex<()> = std::sync::Mutex::new(());
        let _asking = ASKING.lock().expect("no thread panics while it asks");
        io::send(CONTROL, question.as_bytes(), libc::MSG_NOSIGNAL).value("question");
        let mut answer = [0; 8];
        let count = io::recv(CONTROL, &mut answer, 0).value("answer") as usize;
        &answer[..count] == b"yes"
    }

    /// A question of the client's on each stream, and then the answers.
    pub fn exchange_on(&self, streams: &[Fd]) {
        self.go_on();
        for &fd in streams {
            if self.is_client() {
                assert_eq!(io::send(fd, b"pingping", 0).count(), Some(8), "question");
            } else {
                assert_eq!(crate::pattern::receive_text(fd, 8), "pingping", "question");
                assert_eq!(io::send(fd, b"pongpong", 0).count(), Some(8), "answer");
            }
        }
        if self.is_client() {
            for &fd in streams {
                assert_eq!(crate::pattern::receive_text(fd, 8), "pongpong", "answer");
            }
        }
    }

    /// Warms all streams of one listener at once; they were made in the same order at both sides.
    pub fn warm_all(&self, place: &Place, streams: &[Fd]) {
        let question = format!("?all-upgraded {} {}", place.port, streams.len());
        for _ in 0..ROUNDS_MAX {
            (0..8).for_each(|_| self.exchange_on(streams));
            if self.told_by_client(|| u64::from(self.ask(&question))) == 1 {
                return;
            }
        }
        self.note(WARM_UP, "not on the ring");
    }

    /// Waits, boundedly, for something that the kernel or the other side will make true.
    pub fn settle(&self, mut state: impl FnMut() -> bool) -> bool {
        let give_up = Instant::now() + Duration::from_secs(SETTLE_SECONDS_MAX);
        loop {
            if state() {
                return true;
            }
            if Instant::now() > give_up {
                return false;
            }
            wait::poll(&[], 1);
        }
    }

    /// Notes the poll mask of a stream once it is the one wanted; if it never is, as it stays.
    pub fn note_mask(&self, what: &str, fd: Fd, wanted: i16) {
        let now = || wait::poll(&[(fd, EVERYTHING)], 0).1[0];
        self.settle(|| now() == wanted as u16 as u32);
        self.note(format!("poll {what}"), wait::mask(now()));
    }

    /// Waits until poll shows at least these events.
    pub fn until(&self, fd: Fd, events: i16) {
        let has = || wait::poll(&[(fd, events)], 0).1[0] & events as u16 as u32 != 0;
        if !self.settle(has) {
            self.note("waiting for", format!("{} never came", wait::mask(events as u32)));
        }
    }

    /// Waits until this many bytes can be read without blocking.
    pub fn until_readable(&self, fd: Fd, count: usize) {
        let mut room = vec![0; count];
        let flags = libc::MSG_PEEK | libc::MSG_DONTWAIT;
        let mut peek = || io::recv(fd, &mut room, flags).count().unwrap_or(0);
        let give_up = Instant::now() + Duration::from_secs(SETTLE_SECONDS_MAX);
        while peek() < count && Instant::now() < give_up {
            wait::poll(&[], 1);
        }
    }

    /// A named child that runs the step and ends.
    pub fn child(&self, name: &str, step: impl FnOnce()) -> Pid {
        let name = format!("{}/{name}", WHO.with_borrow(|who| who.clone()));
        process::fork(|| {
            rename(&name);
            process::end_with_parent();
            process::alarm(18);
            step();
            0
        })
    }

    /// A named thread.
    pub fn thread<'scope, T: Send + 'scope>(
        &self,
        scope: &'scope Scope<'scope, '_>,
        name: &str,
        step: impl FnOnce() -> T + Send + 'scope,
    ) -> ScopedJoinHandle<'scope, T> {
        let name = format!("{}/{name}", WHO.with_borrow(|who| who.clone()));
        scope.spawn(move || {
            rename(&name);
            step()
        })
    }

    /// Waits until every thread of these processes sleeps, but for the one that asks, or they have ended, and
    /// nothing that they woke runs.
    pub fn until_at_rest(&self, processes: &[Pid]) {
        let at_rest = || {
            processes.iter().all(|process| {
                let tasks = std::fs::read_dir(format!("/proc/{process}/task"));
                tasks.into_iter().flatten().flatten().all(|task| {
                    let stat =
                        std::fs::read_to_string(task.path().join("stat")).unwrap_or_default();
                    let asks =
                        task.file_name().to_string_lossy() == process::thread_id().to_string();
                    asks || !stat.contains(") R")
                })
            })
        };
        self.settle(|| (0..20).all(|_| at_rest() && wait::poll(&[], 1).0 == Got::Value(0)));
    }

    /// Sends a signal to this thread once it sleeps in the call.
    pub fn interrupted<T>(&self, call: impl FnOnce() -> T) -> T {
        let signal = |_, thread| {
            process::kill_thread(thread, libc::SIGUSR1).value("tgkill");
        };
        self.once_asleep("signaller", signal, call)
    }

    /// This thread does something once another one sleeps in the call.
    pub fn beside_a_sleeper(&self, call: impl FnOnce() + Send, act: impl FnOnce()) {
        let (tell, told) = std::sync::mpsc::channel();
        std::thread::scope(|scope| {
            self.thread(scope, "sleeper", move || {
                tell.send(process::thread_id()).expect("the other thread listens");
                call();
            });
            self.until_asleep(process::pid(), told.recv().expect("a thread id"));
            act();
        });
    }

    /// Another thread, of this name, does something once this one sleeps in the call: it is given this process and
    /// thread.
    pub fn once_asleep<T>(
        &self,
        name: &str,
        act: impl FnOnce(Pid, Pid) + Send,
        call: impl FnOnce() -> T,
    ) -> T {
        let (own, thread) = (process::pid(), process::thread_id());
        std::thread::scope(|scope| {
            self.thread(scope, name, || {
                self.until_asleep(own, thread);
                act(own, thread);
            });
            call()
        })
    }

    /// Waits until a thread of some process sleeps in the kernel and stays asleep.
    pub fn until_asleep(&self, process: Pid, thread: Pid) {
        let path = format!("/proc/{process}/task/{thread}/stat");
        let asleep = || {
            let stat = std::fs::read_to_string(&path).unwrap_or_default();
            stat.rsplit(") ").next().is_some_and(|rest| rest.starts_with(['S', 'D']))
        };
        self.settle(|| (0..8).all(|_| asleep() && wait::poll(&[], 1).0 == Got::Value(0)));
    }
}

/// Every event that poll may be asked for.
pub const EVERYTHING: i16 = libc::POLLIN | libc::POLLPRI | libc::POLLOUT | libc::POLLRDHUP;

fn rename(name: &str) {
    WHO.with_borrow_mut(|who| name.clone_into(who));
}

/// A listening socket on a free port.
pub fn listener(family: Family) -> (Fd, u16) {
    let domain = if family == Family::V4 { libc::AF_INET } else { libc::AF_INET6 };
    let fd = socket::socket(domain, libc::SOCK_STREAM).fd("socket");
    if family == Family::Mapped {
        socket::set_int(fd, libc::IPPROTO_IPV6, libc::IPV6_V6ONLY, 0).value("V6ONLY");
    }
    socket::bind(fd, &Address::of_server(family, 0)).value("bind");
    socket::listen(fd, 256).value("listen");
    (fd, socket::getsockname(fd).1.port())
}
