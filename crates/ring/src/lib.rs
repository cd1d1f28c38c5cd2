//! One direction of bytes between two processes, in memory that both map.
//!
//! A [`Direction`] is three cache lines of words beside a power-of-two array of bytes. The one
//! [`Producer`] moves `tail`, the one [`Consumer`] moves `head`; both are absolute stream offsets,
//! so a position in the array is `offset & (capacity - 1)` and nothing ever wraps. The last bytes lie
//! in the producer's line as well, so that a small message moves one line (`latest`). Who finds nothing
//! to do says so in a wake word before sleeping (`doorbell`), and a link collects which of its
//! streams became ready in a [`ReadyMap`]. The words by which a stream enters and leaves the ring
//! are here as well (`handover`); what they mean is decided in `stream`.
//!
//! There is no I/O, no clock, no allocation and no operating system in this crate: it says who must
//! be woken, and the caller does it. The peer may be hostile: every index read from shared memory is
//! checked after it was read ([`Corrupt`]), and every access is masked into the array.
//!
//! `docs/design/ring.md` has the bytes and the arguments. Each ordering stronger than `Relaxed`
//! carries a `SYNC` label at both ends, and `models` shows by mutants that each is needed.
#![cfg_attr(not(any(test, loom)), no_std)]

mod bitmap;
mod bytes;
mod consumer;
mod copy;
mod doorbell;
mod handover;
mod latest;
mod layout;
mod producer;
mod sync;

#[cfg(all(test, not(loom)))]
mod hostile;
#[cfg(all(test, loom))]
mod models;
#[cfg(all(test, not(loom)))]
mod oracle;
#[cfg(all(test, not(loom)))]
mod rig;
#[cfg(all(test, not(loom)))]
mod small_messages;
#[cfg(all(test, not(loom)))]
mod threads;

pub use bitmap::{ReadyMap, BELLS, SLOTS};
pub use bytes::Byte;
pub use consumer::Consumer;
pub use copy::copy;
pub use doorbell::{FUTEX, WAIT_SET};
pub use layout::{ConsumerLine, Direction, ProducerLine, WakeLine};
pub use producer::Producer;
pub use sync::{AtomicU32, AtomicU64};

/// The peer's words make no sense: they were scribbled over, or the peer does not keep the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Corrupt;

impl core::fmt::Display for Corrupt {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("the peer's ring indices make no sense")
    }
}

impl core::error::Error for Corrupt {}
