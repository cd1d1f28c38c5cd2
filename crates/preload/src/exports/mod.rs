//! The exported functions by family.

mod descriptor;
mod formatted;
mod io;
mod number;
mod numbers;
mod process;
mod readiness;
mod socket;
