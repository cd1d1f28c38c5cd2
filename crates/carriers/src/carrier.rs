//! The contract between what moves bytes and who decides which bytes.
//!
//! Nothing here waits: a try does what can be done now and says so. Who finds [`Full`](Sent::Full) or
//! [`Empty`](Received::Empty) announces that it will wait, looks once more, and waits as told by
//! [`Wait`]; because of the second look no news is missed.
// UNSAFETY: declares methods that reach the program's memory.
#![allow(unsafe_code)]

use core::fmt;
use core::sync::atomic::AtomicU32;

use shunt_os::Errno;

use crate::{Capabilities, Part};

/// A carrier by its two halves. Each direction has one sender and one receiver, in two processes;
/// each half is used by one thread at a time, the halves of one process independently.
pub trait Carrier {
    const CAPABILITIES: Capabilities;
    type Sender: Sender;
    type Receiver: Receiver;
}

/// What the two halves have in common.
pub trait Half {
    /// Whether a try now would give anything but `Full` or `Empty`; an end or a failure counts.
    fn ready(&mut self) -> Result<bool, Failure>;

    /// Announces that the caller will wait for this half to become ready. It looks at
    /// [`ready`](Half::ready) once more, and only then waits.
    fn announce(&mut self) -> Wait;
}

/// The end that bytes go in at.
pub trait Sender: Half {
    /// Sends what the carrier takes now of `parts`, in order. Nothing asked is nothing taken.
    ///
    /// # Safety
    /// Every part is readable, or no memory at all where the carrier can tell
    /// ([`Failure::BadMemory`]).
    unsafe fn try_send(&mut self, parts: impl Iterator<Item = Part>) -> Result<Sent, Failure>;

    /// No byte follows on this carrier; the receiver gets [`Ended`](Received::Ended) behind the last.
    fn try_shut(&mut self) -> Result<Shut, Failure>;

    /// Bytes accepted that the peer has not taken. `None` without the capability `completions`.
    fn unread(&mut self) -> Result<Option<u64>, Failure>;
}

/// The end that bytes come out at.
pub trait Receiver: Half {
    /// Receives what is there into `parts`, in order. Nothing asked is no bytes.
    ///
    /// # Safety
    /// Every part is writable, or no memory at all where the carrier can tell.
    unsafe fn try_receive(
        &mut self,
        parts: impl Iterator<Item = Part>,
        how: How,
    ) -> Result<Received, Failure>;
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sent {
    /// The first so many bytes of the parts.
    Took(usize),
    /// None now.
    Full,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Received {
    Bytes(usize),
    /// None now.
    Empty,
    /// Every byte was taken, and no other follows on this carrier.
    Ended,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shut {
    Done,
    /// Not yet: the receiver has not arrived at this carrier. To be tried again.
    Later,
}

/// What becomes of the bytes received.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct How {
    /// They stay, to be received again.
    pub peek: bool,
    /// They are counted, and written nowhere.
    pub discard: bool,
}

impl How {
    /// Given to the caller and gone.
    pub const TAKE: How = How { peek: false, discard: false };
    pub const PEEK: How = How { peek: true, discard: false };
}

/// Why a half moves no more bytes. Bytes given before a failure are right; with it there are none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// The peer's words make no sense: nothing it wrote is to be believed any more.
    Corrupt,
    /// The receiver has left this carrier; where it stands is in `stream`'s words.
    Left,
    /// The carrier itself broke: a device, a cable, an injected fault.
    Lost,
    /// What the kernel says of the connection. It may say it only once.
    Kernel(Errno),
    /// A part is no memory of the program's. Says nothing about the carrier, which goes on.
    BadMemory,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Failure::Corrupt => f.write_str("the peer's words make no sense"),
            Failure::Left => f.write_str("the receiver has left the carrier"),
            Failure::Lost => f.write_str("the carrier broke"),
            Failure::Kernel(errno) => write!(f, "the kernel reports error {}", errno.0),
            Failure::BadMemory => f.write_str("the buffer is no memory"),
        }
    }
}

impl std::error::Error for Failure {}

impl From<shunt_ring::Corrupt> for Failure {
    fn from(_: shunt_ring::Corrupt) -> Failure {
        Failure::Corrupt
    }
}

/// What a half waits for on a descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    Readable,
    Writable,
}

/// How a half that was announced can be waited for.
#[derive(Clone, Copy, Debug)]
pub enum Wait {
    /// Sleep on this word while it holds the value (`os::park`).
    Word { word: &'static AtomicU32, value: u32 },
    /// Sleep until the kernel says this of the descriptor.
    Descriptor { fd: i32, event: Event },
    /// Not at all: look again.
    Now,
}
