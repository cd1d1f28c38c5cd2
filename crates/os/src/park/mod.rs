//! Sleep on, and wake, a 32-bit word that may lie in memory shared with another process.

mod linux;
pub use linux::*;
