//! `passthrough`: what calls cost on descriptors that are no streams, and what a fork costs.
//!
//! The calls are made in a process of their own, which is this executable with a hidden command,
//! plain or with the library. They go through the symbols that the library puts itself before. They
//! are made twice: while the process has no stream, and beside one that was upgraded.
// UNSAFETY: calls libc, on descriptors and buffers of its own.
#![allow(unsafe_code)]

use std::hint::black_box;
use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::RawFd;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use super::{Mode, Timing};
use crate::args::bench::CallsAlone;
use crate::bench::pair::{preload, Peer};
use crate::child;
use crate::figures::median;
use crate::library::{PRELOAD_VARIABLE, REPORT_DIR_VARIABLE};
use crate::report;
use crate::run::ReportDir;

/// Calls between two looks at the clock.
const BATCH: u32 = 64;
/// Bytes that are read and written.
const BYTES: usize = 8;
/// Beyond its own duration a process that hangs ends itself.
const PATIENCE_SECONDS: f64 = 10.0;

/// What is done with two descriptors.
struct Call {
    what: &'static str,
    open: fn() -> io::Result<[RawFd; 2]>,
    once: fn([RawFd; 2], &mut [u8; BYTES]),
}

const CALLS: [Call; 11] = [
    Call { what: "write to /dev/null", open: null, once: |fds, buffer| write(fds[1], buffer) },
    Call { what: "read from /dev/zero", open: zero, once: |fds, buffer| read(fds[0], buffer) },
    Call { what: "write and read, pipe", open: pipe, once: write_and_read },
    Call { what: "write and read, Unix socket", open: unix, once: write_and_read },
    Call { what: "send and recv, Unix socket", open: unix, once: send_and_recv },
    Call { what: "poll of a pipe, no wait", open: pipe, once: |fds, _| poll(fds[0]) },
    Call {
        what: "epoll_wait of a pipe, no wait",
        open: pipe_in_epoll,
        once: |fds, _| wait(fds[1]),
    },
    Call { what: "fcntl F_GETFL, pipe", open: pipe, once: |fds, _| get_flags(fds[0]) },
    Call { what: "dup and close, pipe", open: pipe, once: |fds, _| dup_and_close(fds[0]) },
    Call { what: "open and close /dev/null", open: null, once: |_, _| open_and_close() },
    Call { what: "fork of a child that ends, waitpid", open: null, once: |_, _| fork_and_wait() },
];

/// Behind the names of calls that were made beside a stream.
pub const BESIDE: &str = ", beside a stream";
/// Messages on that stream, and after how many of them the library gets time to upgrade it.
const MESSAGES: usize = 200;
const MESSAGES_AT_A_TIME: usize = 10;
const PAUSE: Duration = Duration::from_millis(2);

/// Starts the process and reads what it found.
pub fn take(mode: Mode, seconds: f64) -> Result<Vec<Timing>> {
    let counters = ReportDir::create()?;
    let outcome = take_counted(mode, seconds, &counters);
    let streams_upgraded = report::sum(&counters.read().processes, None).streams_upgraded;
    counters.remove();
    let plain = CALLS.iter().map(|call| (call.what.to_owned(), 0));
    let beside = CALLS.iter().map(|call| (format!("{}{BESIDE}", call.what), streams_upgraded));
    let timing =
        |((what, streams_upgraded), value)| Timing { what, value, unit: "ns", streams_upgraded };
    Ok(plain.chain(beside).zip(outcome?).map(timing).collect())
}

fn take_counted(mode: Mode, seconds: f64, counters: &ReportDir) -> Result<Vec<f64>> {
    let mut command = Command::new("/proc/self/exe");
    command.args(["bench-calls", &seconds.to_string()]);
    command.stdin(Stdio::null()).stdout(Stdio::piped());
    command.env_remove(PRELOAD_VARIABLE).env_remove(REPORT_DIR_VARIABLE);
    if mode == Mode::Shunt {
        command.env(PRELOAD_VARIABLE, preload()?).env(REPORT_DIR_VARIABLE, counters.path());
    }
    child::ends_with_us(&mut command);
    child::on_core(&mut command, 0);
    let line = Peer::start(command)?.line().context("the calls failed")?;
    Ok(serde_json::from_str(&line)?)
}

/// The hidden command: ns for each of the calls, then for each beside a stream.
pub fn alone(args: &CallsAlone) -> Result<()> {
    child::end_after(args.seconds + PATIENCE_SECONDS);
    let each = args.seconds / (2 * CALLS.len()) as f64;
    let time_all = || CALLS.iter().map(|call| time(call, each)).collect::<io::Result<Vec<f64>>>();
    let mut times = time_all()?;
    let _stream = stream_to_itself()?;
    times.extend(time_all()?);
    println!("{}", serde_json::to_string(&times)?);
    Ok(())
}

/// Both ends of a stream that has carried enough to be upgraded.
fn stream_to_itself() -> io::Result<[TcpStream; 2]> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let mut ends = [TcpStream::connect(listener.local_addr()?)?, listener.accept()?.0];
    let mut message = [0; BYTES];
    for number in 1..=MESSAGES {
        let [one, other] = &mut ends;
        let (from, to) = if number % 2 == 0 { (one, other) } else { (other, one) };
        from.write_all(&message)?;
        to.read_exact(&mut message)?;
        if number % MESSAGES_AT_A_TIME == 0 {
            std::thread::sleep(PAUSE);
        }
    }
    Ok(ends)
}

/// The median over batches, so that what interrupts one of them does not count.
fn time(call: &Call, seconds: f64) -> io::Result<f64> {
    let fds = (call.open)()?;
    let mut buffer = [0; BYTES];
    let (start, mut times) = (Instant::now(), Vec::new());
    while start.elapsed().as_secs_f64() < seconds || times.is_empty() {
        let before = Instant::now();
        (0..BATCH).for_each(|_| (call.once)(fds, black_box(&mut buffer)));
        times.push(before.elapsed().as_nanos() as f64 / f64::from(BATCH));
    }
    fds.into_iter().for_each(close);
    Ok(median(&times).unwrap_or(0.0))
}

fn null() -> io::Result<[RawFd; 2]> {
    Ok([open(c"/dev/null", libc::O_RDWR)?, open(c"/dev/null", libc::O_RDWR)?])
}

fn zero() -> io::Result<[RawFd; 2]> {
    Ok([open(c"/dev/zero", libc::O_RDWR)?, open(c"/dev/zero", libc::O_RDWR)?])
}

fn pipe() -> io::Result<[RawFd; 2]> {
    let mut fds = [0; 2];
    // SAFETY: there is room for two descriptors.
    checked(unsafe { libc::pipe2(fds.as_mut_ptr(), libc::O_CLOEXEC) })?;
    Ok(fds)
}

fn unix() -> io::Result<[RawFd; 2]> {
    let mut fds = [0; 2];
    let kind = libc::SOCK_STREAM | libc::SOCK_CLOEXEC;
    // SAFETY: there is room for two descriptors.
    checked(unsafe { libc::socketpair(libc::AF_UNIX, kind, 0, fds.as_mut_ptr()) })?;
    Ok(fds)
}

/// The reading end of a pipe, and an epoll set that has it as its member.
fn pipe_in_epoll() -> io::Result<[RawFd; 2]> {
    let [reader, _writer] = pipe()?;
    // SAFETY: no memory is involved.
    let set = checked(unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) })?;
    let mut event = libc::epoll_event { events: libc::EPOLLIN as u32, u64: 0 };
    // SAFETY: the event is initialised and lives through the call.
    checked(unsafe { libc::epoll_ctl(set, libc::EPOLL_CTL_ADD, reader, &mut event) })?;
    Ok([reader, set])
}

fn open(path: &std::ffi::CStr, flags: libc::c_int) -> io::Result<RawFd> {
    // SAFETY: the path is terminated and lives through the call.
    checked(unsafe { libc::open(path.as_ptr(), flags | libc::O_CLOEXEC) })
}

fn checked(result: libc::c_int) -> io::Result<libc::c_int> {
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(result)
}

fn write(fd: RawFd, buffer: &mut [u8; BYTES]) {
    // SAFETY: the buffer is readable, as many bytes as is said.
    unsafe { libc::write(fd, buffer.as_ptr().cast(), BYTES) };
}

fn read(fd: RawFd, buffer: &mut [u8; BYTES]) {
    // SAFETY: the buffer is writable, as many bytes as is said.
    unsafe { libc::read(fd, buffer.as_mut_ptr().cast(), BYTES) };
}

fn write_and_read(fds: [RawFd; 2], buffer: &mut [u8; BYTES]) {
    write(fds[1], buffer);
    read(fds[0], buffer);
}

fn send_and_recv(fds: [RawFd; 2], buffer: &mut [u8; BYTES]) {
    // SAFETY: the buffer is readable, as many bytes as is said.
    unsafe { libc::send(fds[1], buffer.as_ptr().cast(), BYTES, 0) };
    // SAFETY: the buffer is writable, as many bytes as is said.
    unsafe { libc::recv(fds[0], buffer.as_mut_ptr().cast(), BYTES, 0) };
}

fn poll(fd: RawFd) {
    let mut entry = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    // SAFETY: one entry, which is writable.
    unsafe { libc::poll(&mut entry, 1, 0) };
}

fn wait(set: RawFd) {
    let mut event = libc::epoll_event { events: 0, u64: 0 };
    // SAFETY: room for one event.
    unsafe { libc::epoll_wait(set, &mut event, 1, 0) };
}

fn get_flags(fd: RawFd) {
    // SAFETY: no memory is involved.
    unsafe { libc::fcntl(fd, libc::F_GETFL) };
}

fn dup_and_close(fd: RawFd) {
    // SAFETY: no memory is involved.
    close(unsafe { libc::dup(fd) });
}

fn open_and_close() {
    if let Ok(fd) = open(c"/dev/null", libc::O_RDWR) {
        close(fd);
    }
}

fn fork_and_wait() {
    // SAFETY: the child makes one call, which ends it.
    unsafe {
        match libc::fork() {
            0 => libc::_exit(0),
            child => libc::waitpid(child, std::ptr::null_mut(), 0),
        }
    };
}

fn close(fd: RawFd) {
    // SAFETY: the descriptor is this module's own, and nothing uses it any more.
    unsafe { libc::close(fd) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_call_can_be_timed() {
        for call in &CALLS {
            assert!(time(call, 0.0).unwrap() > 0.0, "{}", call.what);
        }
    }
}
