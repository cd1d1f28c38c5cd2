//! How many instructions a call takes, counted by stepping through it, and compared with `budget.txt`.
//!
//!     cargo run -p shunt-instructions [-- --only NAME] [--where NAME]
//!
//! The library must be built before (`cargo build --release -p shunt-preload`), or be named in
//! `SHUNT_LIBRARY`. Only the library's own instructions count: those of the C library and of the kernel's
//! clock page depend on the processor (`memcpy` has many forms) and on when the clock ticks. So the figures
//! are those of one build, whatever machine it runs on and whatever else that does. `--where` tells the
//! addresses in the library at which an operation's instructions are, for `addr2line`.

mod operations;
mod peer;
mod ring;
mod step;
mod subject;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use operations::{Operation, OPERATIONS};
use step::Count;

/// What stands in `budget.txt`: the library's instructions in an operation.
const BUDGET: &str = include_str!("../budget.txt");

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.first().map(String::as_str) {
        Some("--subject") => subject::run(&arguments[1..]),
        Some("--peer") => peer::run(&arguments[1..]),
        _ => compare(&arguments),
    }
}

fn compare(arguments: &[String]) -> ExitCode {
    let option = |name| {
        arguments.iter().position(|given| given == name).and_then(|at| arguments.get(at + 1))
    };
    let place = option("--where");
    let only = option("--only").or(place).map_or("", String::as_str);
    let library = library();
    if !library.is_file() {
        eprintln!("shunt-instructions: no library; build it, or set SHUNT_LIBRARY");
        return ExitCode::from(2);
    }
    let counts = step::count(&library, only);
    if place.is_some() {
        return tell_where(&counts);
    }
    let budget = budget();
    println!("{:46} {:>6} {:>6}  {:>6}", "instructions of", "median", "most", "budget");
    let asked: Vec<_> =
        OPERATIONS.iter().filter(|operation| operation.name.contains(only)).collect();
    let fails = |operation: &&&Operation| !passes(operation, &counts, &budget);
    let (failed, all) = (asked.iter().filter(fails).count(), asked.len());
    println!("{} passed, {failed} failed", all - failed);
    ExitCode::from(u8::from(failed > 0 || all == 0))
}

type Counts = BTreeMap<&'static str, Count>;

fn passes(operation: &Operation, counts: &Counts, budget: &BTreeMap<&str, u64>) -> bool {
    let name = operation.name;
    let Some(Count { median, most, system_calls, .. }) = counts.get(name) else {
        println!("{name:46} did not run");
        return false;
    };
    let allowed = budget.get(name).copied();
    let over = allowed.is_none_or(|allowed| *median > allowed);
    let enters = *system_calls > operation.system_calls;
    let verdict = match (over, enters) {
        (_, true) => format!("FAILED: {system_calls} system calls"),
        (true, _) => "FAILED".to_owned(),
        _ => "ok".to_owned(),
    };
    let allowed = allowed.map_or("none".to_owned(), |allowed| allowed.to_string());
    println!("{name:46} {median:6} {most:6}  {allowed:>6}  {verdict}");
    !over && !enters
}

/// `name = instructions`, one a line.
fn budget() -> BTreeMap<&'static str, u64> {
    let lines = BUDGET.lines().filter(|line| !line.trim_start().starts_with('#'));
    lines
        .filter_map(|line| line.split_once('='))
        .map(|(name, most)| (name.trim(), most.trim().parse().expect("a budget is a number")))
        .collect()
}

fn tell_where(counts: &Counts) -> ExitCode {
    for (name, count) in counts {
        println!("# {name}");
        for (address, times) in &count.places {
            println!("{address:#x} {times}");
        }
    }
    ExitCode::SUCCESS
}

fn library() -> PathBuf {
    if let Some(path) = std::env::var_os("SHUNT_LIBRARY") {
        return PathBuf::from(path);
    }
    // This binary lies in <target>/<profile>/.
    let own = std::env::current_exe().expect("this program has a path");
    let target = own.parent().and_then(Path::parent).expect("a target folder");
    target.join("release/libshunt.so")
}
