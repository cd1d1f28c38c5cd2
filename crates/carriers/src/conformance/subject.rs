//! The carriers under test: how to connect a pair of each, and how to break it.
// UNSAFETY: attaches to shared memory of its own making, sets socket options.
#![allow(unsafe_code)]

use std::any::Any;
use std::cell::Cell;
use std::marker::PhantomData;
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsRawFd;

use shunt_link::{Link, Memory, Side};
use shunt_os::handles;
use shunt_ring::Direction;
use shunt_stream::{Reader, ReaderOn, Writer};

use crate::faulty::{Faults, Faulty, FaultyCarrier};
use crate::shm::{self, Shm};
use crate::tcp::{self, Tcp};
use crate::Carrier;

/// One process's end of a connection.
pub(crate) struct End<C: Carrier> {
    pub sender: C::Sender,
    pub receiver: C::Receiver,
    /// What the halves stand on.
    pub ground: Box<dyn Any + Send>,
}

pub(crate) trait Subject {
    type Carrier: Carrier<Sender: Send, Receiver: Send>;

    fn pair() -> (End<Self::Carrier>, End<Self::Carrier>);

    /// Ends `far` as badly as the carrier's peer can; both halves of the near end must tell.
    fn sever(far: End<Self::Carrier>);
}

/// Small, so that tests fill them soon.
const SOCKET_BUFFER_BYTES: i32 = 16 * 1024;
pub(crate) const RING_BYTES: u32 = 8192;
/// Not the first, so that a slot's place is computed.
pub(crate) const SLOT: u32 = 1;

pub(crate) struct TcpSubject;

/// A connection through the loopback device.
pub(crate) fn connection() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a listener");
    let near = TcpStream::connect(listener.local_addr().expect("an address")).expect("a way there");
    let (far, _) = listener.accept().expect("a connection");
    let bytes = SOCKET_BUFFER_BYTES;
    for stream in [&near, &far] {
        stream.set_nodelay(true).expect("an option");
        for option in [libc::SO_SNDBUF, libc::SO_RCVBUF] {
            let (fd, value) = (stream.as_raw_fd(), &raw const bytes);
            // SAFETY: an integer option of its size.
            unsafe { libc::setsockopt(fd, libc::SOL_SOCKET, option, value.cast(), 4) };
        }
    }
    (near, far)
}

impl Subject for TcpSubject {
    type Carrier = Tcp;

    fn pair() -> (End<Tcp>, End<Tcp>) {
        let (near, far) = connection();
        let end = |stream: TcpStream| End {
            sender: tcp::Sender::new(stream.as_raw_fd()),
            receiver: tcp::Receiver::new(stream.as_raw_fd()),
            ground: Box::new(stream),
        };
        (end(near), end(far))
    }

    fn sever(far: End<Tcp>) {
        let stream = far.ground.downcast::<TcpStream>().expect("a socket");
        handles::close_will_reset(stream.as_raw_fd());
    }
}

pub(crate) struct ShmSubject<const BYTES: u32 = RING_BYTES>;

/// The two ends of a link, which live for ever as links do. Each has mapped the memory by itself.
pub(crate) fn linked(ring_bytes: u32) -> (&'static Link, &'static Link) {
    let (ours, fd) = Memory::create(2, ring_bytes).expect("memory");
    let theirs = Memory::open(fd).expect("the same memory");
    assert!(ours.reach(SLOT) && theirs.reach(SLOT));
    handles::close(fd);
    let bells = (handles::eventfd().expect("a bell"), handles::eventfd().expect("a bell"));
    let master = Link::new(ours, Side::Master, -1, bells, (0, 0));
    let guest = Link::new(theirs, Side::Guest, -1, (bells.1, bells.0), (0, 0));
    (Box::leak(Box::new(master)), Box::leak(Box::new(guest)))
}

/// The ends of a slot before any direction has gone up.
pub(crate) fn slot_pair(ring_bytes: u32) -> (End<Shm>, End<Shm>) {
    let (master, guest) = linked(ring_bytes);
    let end = |link: &'static Link| End {
        // SAFETY: nobody unmaps the memory, and nobody else attaches to it.
        sender: unsafe { shm::Sender::attach(link, SLOT) },
        // SAFETY: as above.
        receiver: unsafe { shm::Receiver::attach(link, SLOT) },
        ground: Box::new(link),
    };
    (end(master), end(guest))
}

/// Takes one direction up to the ring at `offset`, as two sides of a stream do.
pub(crate) fn up(sender: &mut shm::Sender, receiver: &mut shm::Receiver, offset: u64) {
    let mut reader = Reader::new();
    assert_eq!(reader.agree(&receiver.words()), Ok(true));
    sender.ring().start_at(offset);
    assert!(Writer::new().go_up(&sender.words(), offset));
    assert_eq!(reader.observe(&receiver.words(), offset), Ok(ReaderOn::Ring));
    receiver.cross_to(offset);
}

/// The words of the direction that `link`'s side writes, as a hostile peer holds them.
fn words(link: &'static Link, writer: Side) -> &'static Direction {
    // SAFETY: nobody unmaps the memory; only atomics are reached.
    unsafe { link.memory.direction(SLOT, writer).as_ref() }
}

impl<const BYTES: u32> Subject for ShmSubject<BYTES> {
    type Carrier = Shm;

    fn pair() -> (End<Shm>, End<Shm>) {
        let (mut near, mut far) = slot_pair(BYTES);
        up(&mut near.sender, &mut far.receiver, 0);
        // Far along, and not at the start of the ring.
        up(&mut far.sender, &mut near.receiver, (1 << 40) + 4711);
        (near, far)
    }

    /// Dead processes write nothing; the worst is one that lives and lies.
    fn sever(far: End<Shm>) {
        let link = *far.ground.downcast::<&'static Link>().expect("a link");
        let own = words(link, link.side);
        own.set_tail(own.tail() + 2 * u64::from(BYTES));
        // More than was written, even when the ring has been filled up.
        let other = words(link, link.side.other());
        other.set_head(other.tail() + 2 * u64::from(BYTES));
    }
}

pub(crate) struct FaultySubject<S>(PhantomData<S>);

impl<S: Subject> Subject for FaultySubject<S> {
    type Carrier = FaultyCarrier<S::Carrier>;

    fn pair() -> (End<Self::Carrier>, End<Self::Carrier>) {
        let (near, far) = S::pair();
        (worsen(near, Faults::HARMLESS), worsen(far, Faults::HARMLESS))
    }

    fn sever(far: End<Self::Carrier>) {
        let (sender, receiver) = (far.sender.into_inner(), far.receiver.into_inner());
        S::sever(End { sender, receiver, ground: far.ground });
    }
}

pub(crate) fn worsen<C: Carrier>(end: End<C>, faults: Faults) -> End<FaultyCarrier<C>> {
    // Each test runs on a thread of its own, so its seeds are the same in every run.
    thread_local!(static SEED: Cell<u64> = const { Cell::new(0) });
    let seed = || SEED.replace(SEED.get() + 1);
    End {
        sender: Faulty::new(end.sender, faults, seed()),
        receiver: Faulty::new(end.receiver, faults, seed()),
        ground: end.ground,
    }
}
