//! How two Shunt processes of one host find each other, prove that they hold the two ends of one
//! TCP connection, and put a stream on a link.
//!
//! [`rendezvous`] is the meeting under a name made of the connection's addresses, [`message`]
//! what is said on the control channel, [`trust`] the proof. See docs/design/pairing.md.

pub mod message;
pub mod rendezvous;
pub mod trust;
