//! The genuine functions that ours stand in front of.

mod linux;
pub use linux::*;
