//! fork, exec and spawn, and signals that stop.

pub use crate::inherit::{
    after_failed_exec, bare_fork, be_first_at_fork, before_exec, before_exec_in_place,
    before_passing, before_signal, begin_child, exiting, fork, Image,
};
