//! The exported functions by family.

mod descriptor;
mod io;
mod number;
mod process;
mod readiness;
mod socket;
