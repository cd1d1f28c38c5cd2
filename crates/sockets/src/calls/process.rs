//! fork, exec and spawn.

pub use crate::inherit::{before_exec, before_passing, fork};
