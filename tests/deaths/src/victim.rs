//! The process that is killed. Each script is one thread's, and its calls are always the same.
#![allow(unsafe_code)] // UNSAFETY: fork, dup2, a send that does not wait, a breakpoint.

use std::io::{PipeReader, PipeWriter, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use crate::frame::{frames, Checker, BYTES, CHILD, SURVIVOR, VICTIM};
use crate::page::{self, Page};
use crate::script::Script;

/// The longest that any script may take.
const SECONDS_MAX: u32 = 20;

/// Ends in spite of whatever it waits for.
pub fn end_in_time() {
    // SAFETY: no pointers.
    unsafe { libc::alarm(SECONDS_MAX) };
}

/// Nobody takes the traps of a forked child.
static IS_TRACED: AtomicBool = AtomicBool::new(true);

/// Tells the tracer where the victim is: the register holds the number of the place.
#[inline(always)]
fn mark(place: usize) {
    if !IS_TRACED.load(Relaxed) {
        return;
    }
    #[cfg(target_arch = "x86_64")]
    // SAFETY: the tracer takes the trap; it changes nothing.
    unsafe {
        core::arch::asm!("int3", in("rax") place, options(nostack))
    };
}

/// Places of which every instruction is looked at, from the mark of a number to the next.
pub mod place {
    pub const BEGIN: usize = 0;
    pub const SEND: usize = 1;
    pub const RECEIVE: usize = 2;
    pub const FILL: usize = 3;
    pub const SHUTDOWN: usize = 4;
    pub const CLOSE: usize = 5;
    pub const OTHER: usize = 6;
}

pub struct Victim {
    page: &'static Page,
    page_fd: i32,
    script: &'static Script,
    /// Which of the page's streams, and as whom.
    number: usize,
    writer: usize,
    stream: Option<TcpStream>,
    checker: Checker,
}

pub fn run(script: &'static Script, page_fd: i32) -> ExitCode {
    end_in_time();
    let mut victim = Victim {
        page: page::map(page_fd),
        page_fd,
        script,
        number: 0,
        writer: VICTIM,
        stream: None,
        checker: Checker::default(),
    };
    let listener = script.victim_accepts.then(|| {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port of loopback");
        victim.page.port.set(listener.local_addr().expect("it is bound").port().into());
        // Kernel TCP (Linux 6.18) loses the reset when the only listener is killed while another connects: of
        // 20,000 plain connections 33 stayed without an end.
        while victim.page.is_connected.get() == 0 {
            std::thread::yield_now();
        }
        listener
    });
    while victim.page.port.get() == 0 {
        std::thread::yield_now();
    }
    mark(place::BEGIN);
    match listener {
        Some(listener) => victim.take(listener.accept().expect("accept").0),
        None => victim.connect(),
    }
    (script.run)(&mut victim);
    ExitCode::SUCCESS
}

/// The program that the victim becomes.
pub fn go_on(script: &'static Script, page_fd: i32, stream: i32) -> ExitCode {
    let page = page::map(page_fd);
    // SAFETY: the descriptor was given to this program for this.
    let stream = unsafe { TcpStream::from_raw_fd(stream) };
    let mut victim = Victim {
        page,
        page_fd,
        script,
        number: 0,
        writer: VICTIM,
        stream: Some(stream),
        checker: Checker::default(),
    };
    victim.words().moving.set(0);
    victim.check_from_here();
    victim.receive(3);
    victim.ask(4);
    victim.close();
    ExitCode::SUCCESS
}

impl Victim {
    fn connect(&mut self) {
        let port = self.page.port.get() as u16;
        self.take(TcpStream::connect(("127.0.0.1", port)).expect("connect"));
    }

    fn take(&mut self, stream: TcpStream) {
        stream.set_nodelay(true).expect("TCP_NODELAY");
        self.stream = Some(stream);
    }

    fn words(&self) -> &'static page::Stream {
        &self.page.streams[self.number]
    }

    fn stream(&self) -> &TcpStream {
        self.stream.as_ref().expect("it is open")
    }

    /// One call.
    fn send(&mut self, count: u64) {
        let (begun, done) = (&self.words().begun[self.writer], &self.words().done[self.writer]);
        let bytes = frames(self.writer, begun.get() / BYTES as u64, count);
        begun.add(bytes.len() as u64);
        mark(place::SEND);
        let sent = self.stream().write(&bytes).expect("send");
        mark(place::OTHER);
        assert_eq!(sent, bytes.len(), "a blocking send sends all");
        done.add(bytes.len() as u64);
    }

    /// Until the stream takes no more.
    fn fill(&mut self) {
        let (begun, done) = (&self.words().begun[self.writer], &self.words().done[self.writer]);
        self.page.hold.set(1);
        loop {
            let bytes = frames(self.writer, done.get() / BYTES as u64, 100);
            begun.set(done.get() + bytes.len() as u64);
            mark(place::FILL);
            // SAFETY: the buffer is of that length.
            let sent = unsafe {
                let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
                libc::send(self.stream().as_raw_fd(), bytes.as_ptr().cast(), bytes.len(), flags)
            };
            mark(place::OTHER);
            if sent < 0 {
                break;
            }
            done.add(sent as u64);
            if (sent as usize) < bytes.len() {
                break;
            }
        }
        // The next frame may have been begun.
        let tail = done.get() % BYTES as u64;
        begun.set(done.get());
        self.page.hold.set(0);
        if tail != 0 {
            let number = done.get() / BYTES as u64;
            let rest = &frames(self.writer, number, 1)[tail as usize..];
            begun.add(rest.len() as u64);
            self.stream().write_all(rest).expect("send");
            done.add(rest.len() as u64);
        }
    }

    /// What others have read before is not missing.
    fn check_from_here(&mut self) {
        let frames = |word: &page::Word| word.get() / BYTES as u64;
        let words = self.words();
        self.checker = Checker::between(frames(&words.taken), frames(&words.taken_at_most));
    }

    /// Reads until so many more frames have come.
    fn receive(&mut self, count: u64) {
        let wanted = self.checker.counts[SURVIVOR] + count;
        while self.checker.counts[SURVIVOR] < wanted {
            let missing = (wanted - self.checker.counts[SURVIVOR]) as usize * BYTES;
            self.receive_up_to(missing - self.checker.tail.len());
        }
    }

    fn receive_up_to(&mut self, most: usize) {
        let words = self.words();
        let mut room = vec![0; most];
        words.taken_at_most.set(words.taken.get() + most as u64);
        mark(place::RECEIVE);
        let got = self.stream().read(&mut room).expect("receive");
        mark(place::OTHER);
        words.taken.add(got as u64);
        words.taken_at_most.set(words.taken.get());
        assert_ne!(got, 0, "the survivor does not end first");
        self.checker.take(&room[..got]);
        if !self.checker.ends_well() {
            self.page.victim_read_wrong.set(1);
        }
    }

    fn ask(&mut self, rounds: u64) {
        for _ in 0..rounds {
            self.send(1);
            self.receive(1);
        }
    }

    fn shutdown(&mut self) {
        self.words().shut.set(1);
        mark(place::SHUTDOWN);
        self.stream().shutdown(Shutdown::Write).expect("shutdown");
        mark(place::OTHER);
    }

    fn close(&mut self) {
        self.words().shut.set(1);
        mark(place::CLOSE);
        self.stream = None;
        mark(place::OTHER);
    }
}

pub fn sends(v: &mut Victim) {
    (0..8).for_each(|_| v.send(1));
    v.send(60);
    v.fill();
    v.send(2000);
    v.shutdown();
    // The survivor writes when it has read the end.
    v.receive(10);
    v.close();
}

pub fn asks(v: &mut Victim) {
    v.ask(10);
    v.send(5);
    v.receive(2);
    v.shutdown();
    v.receive(3);
    v.close();
}

/// Ends with bytes unread.
pub fn receives(v: &mut Victim) {
    v.send(1);
    // So many that a ring is found before they have all come.
    v.receive(20_000);
    v.send(1);
    v.close();
}

/// A standard stream is the kernel's for good.
pub fn leaves(v: &mut Victim) {
    v.ask(6);
    v.send(4);
    v.receive(1);
    v.words().moving.set(1);
    // SAFETY: no pointers.
    unsafe { libc::dup2(v.stream().as_raw_fd(), 0) };
    v.words().moving.set(0);
    v.receive(3);
    v.ask(4);
    v.send(2);
    // Ends by exit, with answers unread.
    std::process::exit(0);
}

pub fn execs(v: &mut Victim) {
    v.ask(6);
    v.send(4);
    v.receive(1);
    let stream = v.stream().as_raw_fd();
    // SAFETY: no pointers.
    unsafe { libc::fcntl(stream, libc::F_SETFD, 0) };
    let own = std::env::current_exe().expect("this program has a path");
    let words = [v.page_fd.to_string(), stream.to_string()];
    v.words().moving.set(1);
    let error = Command::new(own).args(["--go-on", v.script.name]).args(words).exec();
    panic!("exec: {error}");
}

pub fn opens_two(v: &mut Victim) {
    v.ask(6);
    let page = v.page;
    let mut second = Victim {
        page,
        page_fd: v.page_fd,
        script: v.script,
        number: 1,
        writer: VICTIM,
        stream: None,
        checker: Checker::default(),
    };
    second.connect();
    second.ask(4);
    v.ask(4);
    v.close();
    second.ask(2);
    second.close();
}

/// A pipe for turns: who reads it goes on when it is told to, or when nobody is left who could.
struct Turn {
    taken: PipeReader,
    given: PipeWriter,
}

impl Turn {
    fn new() -> Turn {
        let (taken, given) = std::io::pipe().expect("a pipe");
        Turn { taken, given }
    }
}

/// The child has its turn, then the parent, then the child alone. If the parent is killed, the child does all
/// of its part all the same.
pub fn forks(v: &mut Victim) {
    v.ask(6);
    v.send(4);
    while v.words().done[SURVIVOR].get() < 10 * BYTES as u64 {
        std::thread::sleep(std::time::Duration::from_micros(50));
    }
    share_with_child(v);
}

/// As [`forks`], while the survivor may not have read all.
pub fn forks_at_once(v: &mut Victim) {
    v.ask(6);
    v.send(4);
    share_with_child(v);
}

fn share_with_child(v: &mut Victim) {
    let mut turns = fork(v, be_the_child);
    assert!(turns.give(), "a turn");
    assert!(turns.take(), "a turn");
    // The child has read the answers to the parent's frames.
    v.check_from_here();
    v.ask(3);
    v.stream = None;
}

/// The stream leaves its ring and comes to it again, twice, before its child does anything.
pub fn fills_beside_child(v: &mut Victim) {
    const FRAMES: u64 = 2000;
    v.ask(6);
    let turns = fork(v, follow);
    for _ in 0..2 {
        v.page.hold.set(1);
        // More than the ring has: it waits, and the rest goes by TCP.
        v.send(FRAMES);
        v.page.hold.set(0);
        v.receive(FRAMES);
        v.ask(6);
    }
    v.page.hold.set(1);
    v.send(3);
    v.stream = None;
    drop(turns);
    v.page.hold.set(0);
}

/// What a process has of the turns.
struct Turns {
    taken: PipeReader,
    given: PipeWriter,
}

impl Turns {
    fn give(&mut self) -> bool {
        self.given.write_all(b"t").is_ok()
    }

    /// False if nobody is left to give one.
    fn take(&mut self) -> bool {
        self.taken.read(&mut [0]).unwrap_or(0) > 0
    }
}

/// A child that is not traced.
fn fork(v: &mut Victim, child: fn(&mut Victim, Turns)) -> Turns {
    let (to_child, to_parent) = (Turn::new(), Turn::new());
    v.words().moving.set(1);
    // SAFETY: this thread is the program's only one.
    if unsafe { libc::fork() } != 0 {
        return Turns { taken: to_parent.taken, given: to_child.given };
    }
    let turns = Turns { taken: to_child.taken, given: to_parent.given };
    drop(to_child.given);
    drop(to_parent.taken);
    IS_TRACED.store(false, Relaxed);
    end_in_time();
    let ended = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        v.page.child_began.set(1);
        v.writer = CHILD;
        child(v, turns);
        v.page.child_finished.set(1);
        v.stream = None;
    }));
    // SAFETY: ends the process.
    unsafe { libc::_exit(i32::from(ended.is_err())) };
}

/// Nobody writes before it any more.
fn be_alone(v: &mut Victim) {
    v.words().alone_from.set(v.words().begun[CHILD].get() + 1);
    v.check_from_here();
}

fn be_the_child(v: &mut Victim, mut turns: Turns) {
    let told = turns.take();
    match told {
        true => v.check_from_here(),
        false => be_alone(v),
    }
    v.send(3);
    // Those to the parent's four, too.
    v.receive(7);
    if told && turns.give() {
        // The parent ends, or is dead.
        turns.take();
        be_alone(v);
    }
    v.ask(2);
    v.words().shut.set(1);
}

/// The parent's part is over, or it is dead.
fn follow(v: &mut Victim, mut turns: Turns) {
    turns.take();
    v.page.hold.set(0);
    be_alone(v);
    v.send(3);
    v.shutdown();
    // The survivor writes when it has read the end.
    v.receive(10);
}
