//! fork, exec and spawn.

pub use crate::inherit::{
    after_failed_exec, bare_fork, be_first_at_fork, before_exec, before_exec_in_place,
    before_passing, exiting, fork, Image,
};
