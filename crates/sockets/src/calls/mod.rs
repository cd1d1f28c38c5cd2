//! The calls, one file a family. Each answers with an [`Outcome`](crate::Outcome); none sets
//! `errno` or touches anything before it knows that the call is ours.

mod counts;
pub mod descriptor;
pub mod file;
pub mod io;
pub mod listing;
pub mod messages;
pub mod process;
pub mod several;
pub mod socket;
pub mod splice;
pub mod wait;
