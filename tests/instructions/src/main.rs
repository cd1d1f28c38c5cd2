//! How many instructions a call takes, counted by stepping through it, and compared with `budget.txt`.
//!
//!     cargo run -p shunt-instructions [-- --only NAME] [--where NAME]
//!
//! The library must be built before (`cargo build --release -p shunt-preload`), or be named in
//! `SHUNT_LIBRARY`. Unlike times, the figures do not depend on what else the machine does. `--where`
//! tells the addresses in the library at which an operation's instructions are, for `addr2line`.

mod operations;
mod peer;
mod ring;
mod step;
mod subject;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use operations::{Counted, Operation, NOTHING, OPERATIONS};
use step::Count;

/// What stands in `budget.txt`: instructions of an operation, or those that Shunt adds to it.
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
    let plain = step::count(None, only);
    let accelerated = step::count(Some(&library), only);
    if place.is_some() {
        return tell_where(&accelerated);
    }
    let budget = budget();
    println!(
        "{:46} {:>6} {:>6} {:>6}  {:>6}",
        "instructions of", "plain", "Shunt", "most", "budget"
    );
    let asked: Vec<_> = OPERATIONS
        .iter()
        .filter(|operation| operation.name != NOTHING && operation.name.contains(only))
        .collect();
    let fails = |operation: &&&Operation| !passes(operation, &plain, &accelerated, &budget);
    let (failed, all) = (asked.iter().filter(fails).count(), asked.len());
    println!("{} passed, {failed} failed", all - failed);
    ExitCode::from(u8::from(failed > 0 || all == 0))
}

type Counts = BTreeMap<&'static str, Count>;

fn passes(
    operation: &Operation,
    plain: &Counts,
    accelerated: &Counts,
    budget: &BTreeMap<&str, u64>,
) -> bool {
    let name = operation.name;
    let (Some(before), Some(now)) = (plain.get(name), accelerated.get(name)) else {
        println!("{name:46} did not run");
        return false;
    };
    let counted = match operation.counted {
        Counted::All => now.median,
        Counted::Added => now.median.saturating_sub(before.median),
    };
    let allowed = budget.get(name).copied();
    let over = allowed.is_none_or(|allowed| counted > allowed);
    let enters = now.system_calls > operation.system_calls;
    let verdict = match (over, enters) {
        (_, true) => format!("FAILED: {} system calls", now.system_calls),
        (true, _) => "FAILED".to_owned(),
        _ => "ok".to_owned(),
    };
    let sign = if operation.counted == Counted::Added { "+" } else { "" };
    let allowed = allowed.map_or("none".to_owned(), |allowed| format!("{sign}{allowed}"));
    println!(
        "{name:46} {:6} {:6} {:6}  {allowed:>6}  {verdict}",
        before.median, now.median, now.most
    );
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
