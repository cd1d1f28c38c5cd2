//! What a connection is, whatever carries it: each direction is a sequence of bytes with absolute
//! offsets, and this crate decides which carrier holds the byte at which offset.
//!
//! Pure: no I/O, no clock, no allocation, no unsafe. [`Writer`] and [`Reader`] are the two ends of
//! one direction, in two processes that share a few words of memory ([`Words`]). Their methods say
//! what must be done; the caller does it (sends, reads, wakes). The argument, and what the model
//! explores, is in `docs/design/handover.md`.
//!
//! # The word `end`
//! Every decision of a handover is one compare-exchange on one word, so two sides that decide at
//! the same time always agree on who was first. Zeroed memory is `Idle`.
//!
//! A segment's life is `Idle`, `Agreed`, `Open`, `Seen`, then `Down`, `Stop` or `Closed` (or
//! `Recalled` before it was seen), and `Idle` again; [`TRANSITIONS`] has every row, who makes the
//! change, and when. A survivor makes the changes of the dead.
//!
//! # Locks
//! A [`Writer`] is used under the direction's send lock, a [`Reader`] under its receive lock; a
//! program's thread and the service thread take the same ones. A genuine send or receive of the
//! stream happens only with that lock held, and a genuine sleep only while
//! [`Reader::may_sleep_natively`].

mod end;
mod reader;
mod state;
mod transitions;
mod violation;
mod words;
mod writer;

pub use end::{End, OFFSET_MAX};
pub use reader::{CloseOutcome, Reader, ReaderOn, StopOutcome};
pub use state::{Carrier, Event, Receiving, Sending, Snapshot};
pub use transitions::{Side, Transition, TRANSITIONS};
pub use violation::Violation;
pub use words::Words;
pub use writer::{ReaderDied, Writer, WriterOn};
