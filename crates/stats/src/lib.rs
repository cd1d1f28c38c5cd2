//! Counters of one process, in memory that other processes can read.
//!
//! The library writes a *segment*: one header, totals, and one entry for each open stream. It does so
//! without allocation, system calls or locks, so that it may count anywhere. `shunt stat` and
//! `shunt run --report` read segments, also those of processes that were killed; the reader believes
//! nothing that it reads. `docs/design/stats.md` gives the bytes.
//!
//! The writer needs nothing but `core`; the reader comes with the feature `reader`.
#![cfg_attr(not(any(test, feature = "reader")), no_std)]

mod catalog;
mod layout;
#[cfg(any(test, feature = "reader"))]
mod reader;
mod writer;

pub use catalog::{Carrier, Reason};
pub use layout::{MEMFD_NAME, PROGRAM_BYTES_MAX, SEGMENT_BYTES, STREAMS_MAX, VERSION};
#[cfg(any(test, feature = "reader"))]
pub use reader::{read_file, Invalid, Snapshot, Stream, Totals};
pub use writer::{Segment, StreamEntry};
