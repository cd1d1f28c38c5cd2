//! Steps a subject through its operations (ptrace(2)).

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use libc::pid_t;
use shunt_traced::{go, is_system_call, mapped, mark_at, registers, wait, Stop};

use crate::operations::OPERATIONS;

/// The library's instructions in one operation.
#[derive(Default)]
pub struct Count {
    pub median: u64,
    pub most: u64,
    /// At the median.
    pub system_calls: u64,
    /// Addresses in the library's file, with how often each was met in all operations of the kind.
    pub places: BTreeMap<u64, u64>,
}

/// One operation, once.
#[derive(Default, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Steps {
    instructions: u64,
    system_calls: u64,
}

/// Counts those operations whose name holds `only`, in a program with the library.
pub fn count(library: &Path, only: &str) -> BTreeMap<&'static str, Count> {
    let reports = std::env::temp_dir().join(format!("shunt-instructions-{}", std::process::id()));
    std::fs::create_dir_all(&reports).expect("a folder for reports");
    let mut child = start(library, &reports, only);
    let pid = child.id() as pid_t;
    let mut raw: Vec<Vec<Steps>> = OPERATIONS.iter().map(|_| Vec::new()).collect();
    let mut places: Vec<BTreeMap<u64, u64>> = vec![BTreeMap::new(); OPERATIONS.len()];
    let mut code = None;
    let mut signal = 0;
    loop {
        go(libc::PTRACE_CONT, pid, signal);
        signal = match wait(pid).1 {
            Stop::Ended(status) => {
                assert_eq!(status, 0, "the subject failed");
                break;
            }
            Stop::Signal(libc::SIGTRAP) => {
                // Without a mark it is what exec gives a traced process.
                if let Some(number) = mark_at(pid) {
                    let code = code.get_or_insert_with(|| Code {
                        library: mapped(pid, library),
                        system_calls: BTreeMap::new(),
                    });
                    raw[number].push(step_to_breakpoint(pid, code, &mut places[number]));
                }
                0
            }
            Stop::SystemCall | Stop::Event => 0,
            Stop::Signal(other) => other,
        };
    }
    child.wait().ok();
    std::fs::remove_dir_all(&reports).ok();
    summarise(raw, places)
}

fn summarise(
    raw: Vec<Vec<Steps>>,
    places: Vec<BTreeMap<u64, u64>>,
) -> BTreeMap<&'static str, Count> {
    let mut counts = BTreeMap::new();
    for ((operation, mut all), places) in OPERATIONS.iter().zip(raw).zip(places) {
        all.sort();
        let (Some(median), Some(most)) = (all.get(all.len() / 2), all.last()) else { continue };
        let count = Count {
            median: median.instructions,
            most: most.instructions,
            system_calls: median.system_calls,
            places,
        };
        counts.insert(operation.name, count);
    }
    counts
}

fn start(library: &Path, reports: &Path, only: &str) -> Child {
    let own = std::env::current_exe().expect("this program has a path");
    let mut command = Command::new(own);
    command.arg("--subject").arg(only).stdin(Stdio::null());
    command.env_remove("SHUNT");
    command.env("LD_PRELOAD", library).env("SHUNT_REPORT_DIR", reports);
    command.env("SHUNT_PAIR", "at_once");
    shunt_traced::start(&mut command)
}

/// From one breakpoint to the next, with what the library does between. What a repeated string
/// instruction repeats counts once.
fn step_to_breakpoint(pid: pid_t, code: &mut Code, places: &mut BTreeMap<u64, u64>) -> Steps {
    let mut steps = Steps::default();
    let mut at = 0;
    loop {
        let now = registers(pid).rip;
        if now != at {
            if code.library.contains(&now) {
                *places.entry(now - code.library.start).or_default() += 1;
                steps.instructions += 1;
            }
            let is_one = || is_system_call(pid, now);
            let enters = code.system_calls.entry(now).or_insert_with(is_one);
            steps.system_calls += u64::from(*enters);
        }
        at = now;
        go(libc::PTRACE_SINGLESTEP, pid, 0);
        match wait(pid).1 {
            Stop::Signal(libc::SIGTRAP) if mark_at(pid).is_some() => return steps,
            Stop::Signal(libc::SIGTRAP) => {}
            Stop::Signal(other) => panic!("signal {other} in the middle of an operation"),
            Stop::SystemCall | Stop::Event => {}
            Stop::Ended(status) => panic!("the subject ended with {status} in an operation"),
        }
    }
}

/// The subject's code.
struct Code {
    /// Where the library is.
    library: Range<u64>,
    /// Whether the instruction at an address is one: code does not change.
    system_calls: BTreeMap<u64, bool>,
}
