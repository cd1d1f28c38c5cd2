//! Descriptors of our own: bells (eventfd), control sockets, and passing them between processes.
//! All of ours are CLOEXEC and lie above the numbers a program uses.

mod linux;
mod own;

pub use linux::*;
pub use own::is_own;
