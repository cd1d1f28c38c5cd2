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
//! | from | to | by | when |
//! |---|---|---|---|
//! | `Idle` | `Agreed` | reader | no thread of its process sleeps natively for the stream |
//! | `Agreed` | `Idle` | reader | it withdraws: stop, close |
//! | `Agreed` | `Open` | writer | up: bytes from `up_at` on are in the ring |
//! | `Open` | `Seen` | reader | it knows: it will not take a byte beyond `up_at` from TCP |
//! | `Open` | `Recalled(R)` | writer | down, and the reader has not noticed: TCP gets `[up_at, R)` again |
//! | `Open`, `Seen` | `Stop(C)` | reader | it leaves the ring at C: TCP gets `[C, tail)` again |
//! | `Open`, `Seen` | `Closed(C)` | reader | its descriptor is closed at C; otherwise as `Stop` |
//! | `Seen` | `Down(R)` | writer | the ring ends at R, later bytes are on TCP |
//! | `Down(R)` | `Idle` | reader | it has taken every byte before R |
//! | `Recalled(R)`, `Stop(C)` | `Idle` | writer | everything is on TCP again |
//!
//! A survivor acts for the dead: the writer sets `Stop` (from `Open`, `Seen`), the reader sets `Down`
//! (from `Open`, `Seen`, and, when it has found where TCP ended, from `Recalled`, `Stop`).
//!
//! # Locks
//! A [`Writer`] is used under the direction's send lock, a [`Reader`] under its receive lock; a
//! program's thread and the service thread take the same ones. A genuine send or receive of the
//! stream happens only with that lock held, and a genuine sleep only while
//! [`Reader::may_sleep_natively`].

mod end;
mod reader;
mod violation;
mod words;
mod writer;

pub use end::{End, OFFSET_MAX};
pub use reader::{CloseOutcome, Reader, ReaderOn, StopOutcome};
pub use violation::Violation;
pub use words::Words;
pub use writer::{ReaderDied, Writer, WriterOn};
