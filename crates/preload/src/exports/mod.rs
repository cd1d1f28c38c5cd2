//! The exported functions by family.

mod aio;
mod descriptor;
mod exec_list;
mod formatted;
mod io;
mod listing;
mod modules;
mod number;
mod numbers;
mod process;
mod quiet;
mod readiness;
mod signals;
mod socket;
mod uring;
