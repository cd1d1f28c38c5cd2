//! Waiting: a blocking call ([`blocking`]), poll and select ([`poll`]), epoll ([`epoll`]). Each spins
//! as its policy says, announces that it will sleep, looks once more, and sleeps in the kernel.

pub mod blocking;
pub mod epoll;
pub mod poll;
pub mod state;
