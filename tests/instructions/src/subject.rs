//! The program whose calls are counted. It stops at a breakpoint before and behind each.
#![allow(unsafe_code)] // UNSAFETY: calls of libc on buffers of their length; a breakpoint.

use std::os::fd::AsRawFd;
use std::process::ExitCode;

use crate::operations::number;
use crate::peer::Peer;
use crate::ring;

/// How often each operation is done.
const TIMES: usize = 64;
/// What so many sends leave in a ring is far from filling it.
const BATCH: usize = 32;

/// The tracer sees `number` in a register when the breakpoint is hit.
#[inline(always)]
fn mark(number: usize) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: the tracer takes the trap; it changes nothing.
    unsafe {
        core::arch::asm!("int3", in("rax") number, options(nostack))
    };
}

#[derive(Clone, Copy)]
struct Subject<'a> {
    only: &'a str,
    /// So many operations between two orders to the peer.
    batch: usize,
}

impl Subject<'_> {
    /// Does an operation many times; `before` each batch and `after`, of how many, nothing is counted.
    fn count(
        &self,
        name: &str,
        peer: &mut Peer,
        before: impl Fn(&mut Peer, usize),
        mut operation: impl FnMut() -> isize,
        answer: isize,
        after: impl Fn(&mut Peer, usize),
    ) {
        if !name.contains(self.only) {
            return;
        }
        let number = number(name);
        for _ in 0..TIMES / self.batch {
            before(peer, self.batch);
            for _ in 0..self.batch {
                mark(number);
                let result = operation();
                mark(number);
                assert_eq!(result, answer, "{name}: {}", std::io::Error::last_os_error());
            }
            after(peer, self.batch);
        }
    }
}

fn nothing(_: &mut Peer, _: usize) {}

fn send(fd: i32, bytes: &[u8]) -> isize {
    // SAFETY: the buffer is of that length.
    unsafe { libc::send(fd, bytes.as_ptr().cast(), bytes.len(), libc::MSG_NOSIGNAL) }
}

fn write(fd: i32, bytes: &[u8]) -> isize {
    // SAFETY: the buffer is of that length.
    unsafe { libc::write(fd, bytes.as_ptr().cast(), bytes.len()) }
}

fn recv(fd: i32, bytes: &mut [u8], flags: i32) -> isize {
    // SAFETY: the buffer is of that length.
    unsafe { libc::recv(fd, bytes.as_mut_ptr().cast(), bytes.len(), flags) }
}

fn read(fd: i32, bytes: &mut [u8]) -> isize {
    // SAFETY: the buffer is of that length.
    unsafe { libc::read(fd, bytes.as_mut_ptr().cast(), bytes.len()) }
}

fn sendmsg(fd: i32, parts: &mut [libc::iovec]) -> isize {
    // SAFETY: zero is a valid msghdr; the parts are buffers of their length.
    unsafe {
        let mut message: libc::msghdr = core::mem::zeroed();
        message.msg_iov = parts.as_mut_ptr();
        message.msg_iovlen = parts.len() as _;
        libc::sendmsg(fd, &message, libc::MSG_NOSIGNAL)
    }
}

/// For at most `time` milliseconds.
fn poll(fd: i32, time: i32) -> isize {
    let mut asked = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    // SAFETY: one entry.
    unsafe { libc::poll(&mut asked, 1, time) as isize }
}

/// A message, which has arrived when this returns: the kernel may take its time.
fn message(peer: &mut Peer) {
    peer.sends(8);
    assert_eq!(poll(peer.stream.as_raw_fd(), 60_000), 1, "a message arrives");
}

/// For at most `time` milliseconds.
fn epoll_wait(set: i32, time: i32) -> isize {
    let mut events = [libc::epoll_event { events: 0, u64: 0 }; 4];
    // SAFETY: there is room for that many.
    unsafe { libc::epoll_wait(set, events.as_mut_ptr(), 4, time) as isize }
}

fn epoll_control(set: i32, what: i32, fd: i32) -> isize {
    let mut event = libc::epoll_event { events: libc::EPOLLIN as u32, u64: fd as u64 };
    // SAFETY: the event is valid.
    unsafe { libc::epoll_ctl(set, what, fd, &mut event) as isize }
}

/// A set in which these are.
fn set_of(members: &[i32]) -> i32 {
    // SAFETY: no pointers.
    let set = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
    for fd in members {
        assert_eq!(epoll_control(set, libc::EPOLL_CTL_ADD, *fd), 0, "EPOLL_CTL_ADD");
    }
    set
}

pub fn run(arguments: &[String]) -> ExitCode {
    let subject = Subject { only: arguments.first().map_or("", String::as_str), batch: BATCH };
    let mut upgraded = Peer::start(true);
    ring::upgrade(&mut upgraded);
    subject.on_ring(&mut upgraded);
    upgraded.end();
    let mut plain = Peer::start(false);
    (0..100).for_each(|_| ring::exchange(&mut plain));
    subject.on_kernel(&mut plain);
    plain.end();
    ExitCode::SUCCESS
}

impl Subject<'_> {
    fn on_ring(&self, peer: &mut Peer) {
        let fd = peer.stream.as_raw_fd();
        let small = |peer: &mut Peer, count: usize| peer.sends(8 * count);
        let taken = |peer: &mut Peer, count: usize| peer.reads(8 * count);
        let mut room = [0; 8];
        let sends = || send(fd, b"question");
        self.count("ring: send 8 bytes", peer, nothing, sends, 8, taken);
        let receives = || recv(fd, &mut room, 0);
        self.count("ring: recv 8 bytes", peer, small, receives, 8, nothing);
        let writes = || write(fd, b"question");
        self.count("ring: write 8 bytes", peer, nothing, writes, 8, taken);
        let reads = || read(fd, &mut room);
        self.count("ring: read 8 bytes", peer, small, reads, 8, nothing);
        let part = libc::iovec { iov_base: b"word".as_ptr() as *mut _, iov_len: 4 };
        let mut parts = [part, part];
        let two = || sendmsg(fd, &mut parts);
        self.count("ring: sendmsg 2 x 4 bytes", peer, nothing, two, 8, taken);
        let large = [b'l'; 1024];
        let kilobyte = |peer: &mut Peer, count: usize| peer.reads(1024 * count);
        let sends = || send(fd, &large);
        self.count("ring: send 1024 bytes", peer, nothing, sends, 1024, kilobyte);

        let set = set_of(&[fd]);
        let no_wait = || recv(fd, &mut [0; 8], libc::MSG_DONTWAIT);
        self.count("ring: recv, nothing there", peer, nothing, no_wait, -1, nothing);
        let looks = || epoll_wait(set, 0);
        let waits = || epoll_wait(set, 60_000);
        let name = "ring: epoll_wait of no time, nothing ready";
        self.count(name, peer, nothing, looks, 0, nothing);
        message(peer);
        self.count("ring: poll, ready", peer, nothing, || poll(fd, 0), 1, nothing);
        self.count("ring: epoll_wait of no time, ready", peer, nothing, looks, 1, nothing);
        self.count("ring: epoll_wait, ready", peer, nothing, waits, 1, nothing);
        assert_eq!(recv(fd, &mut room, 0), 8, "the last message");
        let told = || epoll_wait(set, 60_000) + recv(fd, &mut [0; 8], 0);
        let one_by_one = Subject { batch: 1, ..*self };
        one_by_one.count("ring: message, epoll_wait, recv", peer, small, told, 9, nothing);
    }

    fn on_kernel(&self, peer: &mut Peer) {
        let fd = peer.stream.as_raw_fd();
        let small = |peer: &mut Peer, count: usize| peer.sends(8 * count);
        let taken = |peer: &mut Peer, count: usize| peer.reads(8 * count);
        let mut room = [0; 8];
        let sends = || send(fd, b"question");
        self.count("kernel: send 8 bytes", peer, nothing, sends, 8, taken);
        let receives = || recv(fd, &mut room, 0);
        self.count("kernel: recv 8 bytes", peer, small, receives, 8, nothing);
        let set = set_of(&[fd]);
        let changes = || epoll_control(set, libc::EPOLL_CTL_MOD, fd);
        self.count("kernel: epoll_ctl MOD", peer, nothing, changes, 0, nothing);
        let renews = || {
            epoll_control(set, libc::EPOLL_CTL_DEL, fd)
                + epoll_control(set, libc::EPOLL_CTL_ADD, fd)
        };
        self.count("kernel: epoll_ctl DEL and ADD", peer, nothing, renews, 0, nothing);
        message(peer);
        self.count("kernel: epoll_wait, ready", peer, nothing, || epoll_wait(set, 0), 1, nothing);
        assert_eq!(recv(fd, &mut room, 0), 8, "the last message");

        let zero = std::fs::File::open("/dev/zero").expect("/dev/zero");
        let null = std::fs::File::create("/dev/null").expect("/dev/null");
        let (zero, null) = (zero.as_raw_fd(), null.as_raw_fd());
        let reads = || read(zero, &mut room);
        self.count("no socket: read 8 bytes", peer, nothing, reads, 8, nothing);
        let writes = || write(null, b"question");
        self.count("no socket: write 8 bytes", peer, nothing, writes, 8, nothing);
        // SAFETY: no pointers.
        let event = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC) };
        let set = set_of(&[event]);
        let waits = || epoll_wait(set, 0);
        self.count("no socket: epoll_wait of no time", peer, nothing, waits, 0, nothing);
        self.count("no socket: poll", peer, nothing, || poll(event, 0), 0, nothing);
        // SAFETY: no pointers.
        let asks = || unsafe { libc::fcntl(event, libc::F_GETFD) as isize };
        self.count("no socket: fcntl", peer, nothing, asks, 1, nothing);
    }
}
