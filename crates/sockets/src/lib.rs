//! What each socket call means here. No exported symbols: `preload` calls [`calls`], each of which
//! answers with an [`Outcome`].
//!
//! | module | is |
//! |---|---|
//! | `table`, `pool` | descriptor to socket; the sockets |
//! | `calls` | the calls, one file a family |
//! | `receive`, `send` | the data path of an attached stream |
//! | `wait` | blocking, poll, select, epoll |
//! | `search` | when and how the other end is looked for |
//! | `service` | the one thread of ours: pairing, deaths, the peer's share of handovers |
//! | `attach` | putting a stream in a slot of a link, and taking it out |
//! | `inherit` | fork, exec, descriptors passed on |
//! | `quiet`, `uring` | where the library keeps still, or to TCP; io_uring |
//! | `process` | what this process is: settings, counters |

// UNSAFETY: works on the program's buffers and on shared memory that `link` has mapped.
#![allow(unsafe_code)]

pub mod attach;
pub mod calls;
pub mod inherit;
pub mod outcome;
pub mod pool;
pub mod process;
pub mod quiet;
pub mod receive;
pub mod search;
pub mod send;
pub mod service;
pub mod table;
pub mod uring;
pub mod wait;

pub use outcome::Outcome;
