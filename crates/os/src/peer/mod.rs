//! Who holds the other end of a TCP connection of this host, by the kernel's own word.

mod linux;
pub use linux::*;
