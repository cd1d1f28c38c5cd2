//! What waiting means, as pure code: how long to spin before sleeping ([`policy`]) and what a
//! registration in an epoll set reports when ([`interest`]).
//!
//! The waits themselves, which need descriptors and streams, are in `sockets::wait` and use these.

pub mod interest;
pub mod policy;
