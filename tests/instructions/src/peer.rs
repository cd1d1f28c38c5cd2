//! The other end of the subject's streams. It does what it is told by a word in shared memory: a peer that
//! waited in a stream would have to be woken, or would spin beside the count; one that was told by a
//! descriptor would have done something that the kernel tells of, which the subject would ask it for.
#![allow(unsafe_code)] // UNSAFETY: a page that two processes share.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, ExitCode};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::*};
use std::time::Duration;

/// Between two looks at the page.
const PAUSE: Duration = Duration::from_micros(20);

/// What the subject wants, by number, so that zero is none.
mod order {
    pub const SEND: u32 = 1;
    pub const READ: u32 = 2;
    pub const END: u32 = 3;
}

/// The page.
#[derive(Default)]
struct Orders {
    /// An order, which the peer takes away when it is done.
    order: AtomicU32,
    bytes: AtomicU64,
    port: AtomicU32,
}

impl Orders {
    /// The page behind a descriptor, for as long as the process lives.
    fn map(fd: i32) -> &'static Orders {
        let access = libc::PROT_READ | libc::PROT_WRITE;
        let null = std::ptr::null_mut();
        // SAFETY: a new mapping of a page that the file has; zeroes are orders.
        unsafe {
            let page = libc::mmap(null, 4096, access, libc::MAP_SHARED, fd, 0);
            assert_ne!(page, libc::MAP_FAILED, "mmap: {}", std::io::Error::last_os_error());
            &*page.cast::<Orders>()
        }
    }

    fn wait_until(&self, ready: impl Fn() -> bool) {
        while !ready() {
            std::thread::sleep(PAUSE);
        }
    }
}

/// Takes one stream, then does as it is told.
pub fn run(arguments: &[String]) -> ExitCode {
    let page = arguments.first().and_then(|fd| fd.parse().ok()).expect("a descriptor");
    // A subject that fails leaves nobody behind.
    // SAFETY: no pointers.
    unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
    let orders = Orders::map(page);
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port of loopback");
    let port = listener.local_addr().expect("it is bound").port();
    orders.port.store(port.into(), Release);
    let (mut stream, _) = listener.accept().expect("the subject connects");
    loop {
        orders.wait_until(|| orders.order.load(Acquire) != 0);
        let mut bytes = vec![b'p'; orders.bytes.load(Relaxed) as usize];
        match orders.order.load(Relaxed) {
            order::SEND => stream.write_all(&bytes).expect("send"),
            order::READ => stream.read_exact(&mut bytes).expect("read"),
            _ => return ExitCode::SUCCESS,
        }
        orders.order.store(0, Release);
    }
}

/// A peer, as the subject has it.
pub struct Peer {
    pub stream: TcpStream,
    orders: &'static Orders,
    process: Child,
}

impl Peer {
    /// `shunts`: it is under Shunt if the subject is.
    pub fn start(shunts: bool) -> Peer {
        // SAFETY: a name; the file is one page long.
        let page = unsafe {
            let page = libc::memfd_create(c"orders".as_ptr(), 0);
            assert_eq!(libc::ftruncate(page, 4096), 0, "memfd: {page}");
            page
        };
        let orders = Orders::map(page);
        let own = std::env::current_exe().expect("this program has a path");
        let mut command = Command::new(own);
        command.arg("--peer").arg(page.to_string());
        if !shunts {
            command.env("SHUNT", "off");
        }
        let process = command.spawn().expect("a peer starts");
        // SAFETY: nobody else uses it; both have the page.
        unsafe { libc::close(page) };
        orders.wait_until(|| orders.port.load(Acquire) != 0);
        let port = orders.port.load(Relaxed) as u16;
        let stream = TcpStream::connect(("127.0.0.1", port)).expect("connect");
        stream.set_nodelay(true).expect("TCP_NODELAY");
        Peer { stream, orders, process }
    }

    /// It sends so many bytes, which have left it when this returns.
    pub fn sends(&mut self, bytes: usize) {
        self.order(order::SEND, bytes);
    }

    /// It takes so many bytes.
    pub fn reads(&mut self, bytes: usize) {
        self.order(order::READ, bytes);
    }

    fn order(&self, what: u32, bytes: usize) {
        self.orders.bytes.store(bytes as u64, Relaxed);
        self.orders.order.store(what, Release);
        self.orders.wait_until(|| self.orders.order.load(Acquire) == 0);
    }

    pub fn end(mut self) {
        self.orders.order.store(order::END, Release);
        self.process.wait().expect("the peer ends");
    }
}
