//! The exported functions by family.

mod descriptor;
mod io;
mod process;
mod readiness;
mod socket;
