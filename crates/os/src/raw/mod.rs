//! System calls made directly, so that no interposed symbol (ours or another preload's) is in
//! the way and `errno` stays untouched. For internal descriptors only; what the program asked
//! for goes through [`crate::real`], which keeps cancellation points and other preloads intact.

mod linux;
pub use linux::*;
