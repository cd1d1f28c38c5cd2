//! One actor: a thread that executes what the conductor says, one command after the other, and
//! tells what the calls returned. The threads of a process share its table of slots.

mod bytes;
mod descriptors;
pub mod processes;
mod readiness;

use crate::operation::{Family, Operation};
use crate::protocol::{hear_as, say, Command, Hello, Job, Reply, BEGINS};
use shunt_differential::calls::socket::{self, Address};
use shunt_differential::calls::{io, process, wait, Fd, Got};
use std::sync::{Mutex, MutexGuard};

pub const SLOTS: usize = 8;
pub const SETS: usize = 2;

/// The sockets of one process, made by the conductor.
#[derive(Clone, Copy, Debug)]
pub struct Controls {
    pub own: Fd,
    /// For the second thread, or -1.
    pub thread: Fd,
    /// For a child, or -1.
    pub child: Fd,
    /// Descriptors are passed to the other process here.
    pub pass: Fd,
}

#[derive(Clone, Debug)]
pub struct Table {
    pub slots: [Option<Fd>; SLOTS],
    pub sets: [Option<Fd>; SETS],
    pub listener: Option<Fd>,
    pub controls: Controls,
}

static TABLE: Mutex<Option<Table>> = Mutex::new(None);

/// A number that no descriptor has.
const NO_DESCRIPTOR: Fd = 2999;

fn table() -> MutexGuard<'static, Option<Table>> {
    TABLE.lock().expect("no thread panics with the table")
}

fn with_table<T>(change: impl FnOnce(&mut Table) -> T) -> T {
    change(table().as_mut().expect("the table is made before any actor"))
}

fn fd_of(slot: u8) -> Fd {
    with_table(|table| table.slots[usize::from(slot) % SLOTS]).unwrap_or(NO_DESCRIPTOR)
}

fn put(slot: u8, fd: Option<Fd>) -> Option<Fd> {
    with_table(|table| std::mem::replace(&mut table.slots[usize::from(slot) % SLOTS], fd))
}

/// Plays the first thread of a process, with a second one beside it.
pub fn play(table_of_process: Table) -> i32 {
    let controls = table_of_process.controls;
    *table() = Some(table_of_process);
    for signal in [libc::SIGUSR1, libc::SIGPIPE] {
        wait::catch_signal(signal, 0);
    }
    wait::catch_signal(libc::SIGUSR2, libc::SA_RESTART);
    if controls.thread >= 0 {
        std::thread::spawn(move || follow(controls.thread));
    }
    follow(controls.own)
}

/// Does what comes until the conductor is gone.
fn follow(control: Fd) -> i32 {
    say(control, &Hello { process: process::pid(), thread: process::thread_id() });
    while let Some(command) = hear_as::<Command>(control) {
        if command.may_sleep {
            io::send(control, BEGINS, libc::MSG_NOSIGNAL);
        }
        let pipes = wait::caught(libc::SIGPIPE);
        let mut reply = execute(&command);
        if wait::caught(libc::SIGPIPE) != pipes {
            reply.said.push_str(" and SIGPIPE");
        }
        say(control, &reply);
    }
    0
}

fn execute(command: &Command) -> Reply {
    match &command.job {
        Job::Do(operation) => perform(operation, command),
        Job::Listen { family } => listen(*family),
        Job::Open { slot, family, port, nagle } => open(*slot, *family, *port, *nagle),
        Job::Accept { slot, nagle } => accept(*slot, *nagle),
        Job::Ping { slot, rounds } => bytes::ping(fd_of(*slot), *rounds),
        Job::Pong { slot, rounds } => bytes::pong(fd_of(*slot), *rounds),
        Job::Drain { slot, piece } => bytes::drain(fd_of(*slot), *piece, command),
        Job::TakeUrgent { slot } => bytes::take_urgent(fd_of(*slot)),
        Job::Take { slot } => descriptors::take(*slot),
    }
}

fn perform(operation: &Operation, command: &Command) -> Reply {
    use Operation::*;
    match operation {
        Send { slot, size, call, flags } => bytes::send(fd_of(*slot), *size, *call, flags, command),
        Receive { slot, size, call, flags } => {
            bytes::receive(fd_of(*slot), *size, *call, flags, command)
        }
        Fill { slot } => bytes::fill(fd_of(*slot), command),
        Transfer { slot, size, piece, .. } => {
            bytes::send_pieces(fd_of(*slot), *size, *piece, command)
        }
        Urgent { slot } => Reply::said(io::send(fd_of(*slot), b"!", libc::MSG_OOB)),
        Shutdown { slot, how } => descriptors::shutdown(fd_of(*slot), *how),
        Close { slot } => descriptors::close(*slot),
        Copy { from, to, call } => descriptors::copy(*from, *to, *call),
        Poll { slots, events, call } => readiness::poll(slots, *events, *call),
        AwaitReadable { slot } => readiness::await_readable(fd_of(*slot)),
        EpollControl { set, slot, register, events } => {
            readiness::control(*set, *slot, *register, *events)
        }
        EpollWait { set } => readiness::wait_now(*set),
        EpollNest => readiness::nest(),
        EpollAwait { slot, events } => readiness::await_epoll(fd_of(*slot), *events),
        BytesWaiting { slot } => descriptors::bytes_waiting(fd_of(*slot)),
        Nonblocking { slot, on, by_ioctl } => {
            descriptors::nonblocking(fd_of(*slot), *on, *by_ioctl)
        }
        Set { slot, setting } => descriptors::set(fd_of(*slot), *setting),
        Get { slot, setting } => descriptors::get(fd_of(*slot), *setting),
        Names { slot } => descriptors::names(fd_of(*slot)),
        SocketError { slot } => Reply::said(socket::so_error(fd_of(*slot))),
        StatusFlags { slot } => descriptors::status_flags(fd_of(*slot)),
        Fork => processes::fork(),
        Exec { with_library } => processes::exec(*with_library),
        Pass { slot, .. } => descriptors::pass(fd_of(*slot)),
        Exit { at_once } => processes::exit(*at_once),
        // The conductor does these by itself or by several jobs.
        Rise { .. } | Connect { .. } | Interrupt { .. } | Kill { .. } => Reply::default(),
    }
}

fn wire(family: Family) -> socket::Family {
    match family {
        Family::V4 => socket::Family::V4,
        Family::V6 => socket::Family::V6,
        Family::Mapped => socket::Family::Mapped,
    }
}

/// Tells the port.
fn listen(family: Family) -> Reply {
    let domain = if family == Family::V4 { libc::AF_INET } else { libc::AF_INET6 };
    let fd = socket::socket(domain, libc::SOCK_STREAM).fd("socket");
    if family == Family::Mapped {
        socket::set_int(fd, libc::IPPROTO_IPV6, libc::IPV6_V6ONLY, 0).value("V6ONLY");
    }
    socket::bind(fd, &Address::of_server(wire(family), 0)).value("bind");
    socket::listen(fd, 16).value("listen");
    with_table(|table| table.listener = Some(fd));
    Reply { said: String::new(), moved: socket::getsockname(fd).1.port().into() }
}

fn open(slot: u8, family: Family, port: u16, nagle: bool) -> Reply {
    let domain = if family == Family::V6 { libc::AF_INET6 } else { libc::AF_INET };
    let fd = socket::socket(domain, libc::SOCK_STREAM).fd("socket");
    let got = socket::connect(fd, &Address::as_seen_by_client(wire(family), port));
    begin(slot, fd, nagle);
    Reply { said: got.to_string(), moved: socket::getsockname(fd).1.port().into() }
}

fn accept(slot: u8, nagle: bool) -> Reply {
    let listener = with_table(|table| table.listener).unwrap_or(NO_DESCRIPTOR);
    let got = socket::accept(listener);
    if let Got::Value(fd) = got {
        begin(slot, fd as Fd, nagle);
    }
    Reply::said(if got.count().is_some() { "accepted".to_owned() } else { got.to_string() })
}

fn begin(slot: u8, fd: Fd, nagle: bool) {
    socket::set_int(fd, libc::IPPROTO_TCP, libc::TCP_NODELAY, i32::from(!nagle));
    put(slot, Some(fd));
}
