//! Real programs, each with the library on both sides and on one side only. A test checks content
//! and exit codes; the counters then prove that the fast path ran, or that it could not.
//!
//! `cargo run -p shunt-programs -- [--only TEXT] [--mode plain|both|server|client] [--list]`.
//! The library is taken from `SHUNT_LIBRARY`. A test whose program is not installed fails with the
//! name of the package that has it.

mod application;
mod peer;
mod stage;
mod tests;
mod watchdog;

use stage::{Mode, Stage};
use std::path::PathBuf;
use std::time::Instant;

/// Why a test failed, for a person.
pub type Failure = String;
pub type Outcome = Result<(), Failure>;

struct Options {
    only: Vec<String>,
    modes: Vec<Mode>,
}

fn main() {
    let options = match parse(std::env::args().skip(1)) {
        Ok(options) => options,
        Err(message) => {
            eprintln!("{message}");
            std::process::exit(2);
        }
    };
    let library = library();
    if options.modes != [Mode::Plain] && !library.is_file() {
        eprintln!(
            "{} is not there: build it with `cargo build --release -p shunt-preload`, or name it \
             in SHUNT_LIBRARY",
            library.display()
        );
        println!("0 passed, 1 failed");
        std::process::exit(1);
    }
    let (mut passed, mut failed) = (0, Vec::new());
    for (name, test) in tests::ALL {
        if !options.only.is_empty() && !options.only.iter().any(|text| name.contains(text)) {
            continue;
        }
        for &mode in &options.modes {
            let started = Instant::now();
            let stage = Stage::set(mode, &library);
            let outcome = test(&stage).and_then(|()| stage.judge());
            let seconds = started.elapsed().as_secs_f64();
            match outcome {
                Ok(()) => {
                    passed += 1;
                    println!("ok     {name} ({mode:?}, {seconds:.1} s) {}", stage.counters());
                }
                Err(failure) => {
                    println!("FAILED {name} ({mode:?}, {seconds:.1} s)");
                    println!("  {}", failure.replace('\n', "\n  "));
                    println!("{}", stage.circumstances());
                    failed.push(format!("{name} ({mode:?})"));
                }
            }
        }
    }
    if !failed.is_empty() {
        println!("failed:");
        failed.iter().for_each(|name| println!("  {name}"));
    }
    println!("{passed} passed, {} failed", failed.len());
    std::process::exit(i32::from(!failed.is_empty() || passed == 0));
}

fn library() -> PathBuf {
    if let Some(path) = std::env::var_os("SHUNT_LIBRARY") {
        return PathBuf::from(path);
    }
    // This binary lies in <target>/<profile>/.
    let own = std::env::current_exe().expect("this program has a path");
    let target = own.parent().and_then(|profile| profile.parent()).expect("a target folder");
    target.join("release/libshunt.so")
}

fn parse(mut arguments: impl Iterator<Item = String>) -> Result<Options, String> {
    let mut options =
        Options { only: Vec::new(), modes: vec![Mode::Both, Mode::Server, Mode::Client] };
    while let Some(argument) = arguments.next() {
        let mut value = || arguments.next().ok_or(format!("{argument} needs a value after it"));
        match argument.as_str() {
            "--only" => options.only.push(value()?),
            "--mode" => options.modes = vec![Mode::named(&value()?)?],
            "--list" => {
                tests::ALL.iter().for_each(|(name, _)| println!("{name}"));
                std::process::exit(0);
            }
            other => return Err(format!("{other} is not an option; see the head of src/main.rs")),
        }
    }
    Ok(options)
}
