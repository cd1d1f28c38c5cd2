//! What moves a stream's bytes: one trait, several carriers, one suite that all must pass.
//!
//! A carrier takes bytes at one end and gives them, once and in order, at the other; it knows nothing
//! of streams. Which carrier holds the byte at which offset is `stream`'s to say, waiting and spinning
//! is `sockets`' and `readiness`'. Here is only what differs between kernel TCP, shared memory, and
//! later RDMA: how bytes get in and out, when an end is ready, what tells of news, how it breaks.
//!
//! | module | is |
//! |---|---|
//! | [`carrier`] | the contract: [`Carrier`], [`Sender`], [`Receiver`] |
//! | [`capabilities`] | what a carrier does by itself, so that nobody does it twice |
//! | [`parts`] | the program's memory, piece by piece |
//! | [`tcp`] | the kernel socket: where every stream starts, and can always go back to |
//! | [`shm`] | a ring each way in a slot of a link, and their bells |
//! | [`faulty`] | any other carrier, made worse on purpose |
//!
//! Nothing here is dispatched at run time, allocates, or waits. The two ends of one direction are
//! separate values, because a program sends and receives on one stream from two threads.
//!
//! To add a carrier (`verbs`, `iwarp`): write its two halves, declare its capabilities, and
//! instantiate `conformance` for it, bare and in [`faulty`].

pub mod capabilities;
pub mod carrier;
pub mod faulty;
pub mod parts;
pub mod shm;
pub mod tcp;

#[cfg(all(test, not(miri)))]
mod conformance;
#[cfg(all(test, not(miri)))]
mod law;

pub use capabilities::Capabilities;
pub use carrier::{
    Carrier, Event, Failure, Half, How, Received, Receiver, Sender, Sent, Shut, Wait,
};
pub use parts::Part;
