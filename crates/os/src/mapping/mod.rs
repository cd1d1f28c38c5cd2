//! Shared memory between two processes: made by one, sealed against shrinking, mapped by both.

mod linux;
pub use linux::*;
