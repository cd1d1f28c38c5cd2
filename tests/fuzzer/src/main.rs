//! Runs random programs on kernel TCP and with the library, and compares what POSIX promises.
//!
//! `cargo run -p shunt-fuzzer -- [--seconds N] [--operations N] [--seed S] [--jobs N] [--again N]
//! [--mode both|server|client] [--replay FILE] [--failures DIR]`. The library is taken from
//! `SHUNT_LIBRARY`. Before random programs come those of `found/`, which failed once. The same
//! binary plays all processes of a program (`--serve`, `--resume`).

mod actor;
mod check;
mod conductor;
mod generate;
mod harness;
mod operation;
mod protocol;
mod random;
mod servers;
mod shrink;
mod stacks;
mod world;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let status = match arguments.first().map(String::as_str) {
        Some("--serve") => servers::serve(),
        Some("--resume") => match actor::processes::resumed(&arguments[1..]) {
            Some(table) => actor::play(table),
            None => 2,
        },
        _ => harness::main(&arguments),
    };
    std::process::exit(status);
}
