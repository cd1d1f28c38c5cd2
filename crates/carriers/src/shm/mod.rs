//! Shared memory: a ring each way in a slot of a link, and the bells of the link.
//!
//! A half is a ring's end that also wakes: whoever publishes rings, and only for a peer that said it
//! waits. Bytes are moved between `stream`'s going up and going down; a half knows the segment's end
//! word only as far as a carrier must, to tell an end or a receiver that left from mere silence, and
//! looks at it only when there is nothing else to say.
//!
//! It does not notice the peer's death. The companion does, and `link`.

mod piece;
mod receiver;
mod sender;
#[cfg(all(test, not(miri)))]
mod tests;
mod words;

use core::sync::atomic::AtomicU32;

use shunt_link::Link;
use shunt_os::park;
use shunt_ring::{FUTEX, WAIT_SET};

use crate::{Capabilities, Carrier};

pub use piece::{UNEVEN, WHOLE};
pub use receiver::{copy_published, Receiver};
pub use sender::Sender;
pub use words::{incoming, outgoing, Close, SlotWords};

pub struct Shm;

impl Carrier for Shm {
    const CAPABILITIES: Capabilities = Capabilities {
        keeps_bytes: true,
        flow_control: true,
        coalesces: true,
        integrity: true,
        completions: true,
        ordered: true,
        registration: false,
        tells_of_death: false,
        exact_readiness: true,
    };
    type Sender = Sender;
    type Receiver = Receiver;
}

/// Free bytes of a full ring that are worth a wake-up, as the kernel judges a send buffer: a quarter.
#[inline]
pub const fn worth_telling(capacity: usize) -> usize {
    capacity / 4
}

/// Wakes the peer in the ways that it asked for.
#[cold]
fn wake(link: &Link, slot: u32, bits: u32, word: &AtomicU32) {
    if bits & FUTEX != 0 {
        park::wake_all(word);
    }
    if bits & WAIT_SET != 0 {
        link.notify(slot);
    }
}
