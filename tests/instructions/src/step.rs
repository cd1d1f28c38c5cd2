//! Steps a subject through its operations (ptrace(2)).
#![allow(unsafe_code)] // UNSAFETY: ptrace on a child that is stopped, waitpid, and what a child does before exec.

use std::collections::BTreeMap;
use std::ops::Range;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use libc::{c_long, c_void, pid_t, user_regs_struct};

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
        signal = match wait(pid) {
            Stop::Ended(status) => {
                assert_eq!(status, 0, "the subject failed");
                break;
            }
            Stop::Signal(libc::SIGTRAP) if is_breakpoint(pid) => {
                let number = registers(pid).rax as usize;
                let code = code.get_or_insert_with(|| Code::of(pid, library));
                raw[number].push(step_to_breakpoint(pid, code, &mut places[number]));
                0
            }
            // What exec gives a traced process.
            Stop::Signal(libc::SIGTRAP) => 0,
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
    // SAFETY: both are async-signal-safe, between fork and exec.
    unsafe {
        command.pre_exec(|| {
            libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
            match libc::ptrace(libc::PTRACE_TRACEME, 0, 0, 0) {
                0 => Ok(()),
                _ => Err(std::io::Error::last_os_error()),
            }
        });
    }
    let child = command.spawn().expect("the subject starts, and may be traced");
    let stop = wait(child.id() as pid_t);
    assert!(matches!(stop, Stop::Signal(libc::SIGTRAP)), "a traced program stops at exec");
    child
}

enum Stop {
    Signal(i32),
    /// By its own status, or the signal that killed it.
    Ended(i32),
}

fn wait(pid: pid_t) -> Stop {
    let mut status = 0;
    // SAFETY: a status for the kernel to fill.
    let got = unsafe { libc::waitpid(pid, &mut status, 0) };
    assert_eq!(got, pid, "waitpid: {}", std::io::Error::last_os_error());
    if libc::WIFSTOPPED(status) {
        Stop::Signal(libc::WSTOPSIG(status))
    } else {
        Stop::Ended(if libc::WIFSIGNALED(status) {
            libc::WTERMSIG(status)
        } else {
            libc::WEXITSTATUS(status)
        })
    }
}

fn go(request: libc::c_uint, pid: pid_t, signal: i32) {
    // SAFETY: the child is stopped.
    let result = unsafe { libc::ptrace(request, pid, 0, signal as c_long) };
    assert_eq!(result, 0, "ptrace: {}", std::io::Error::last_os_error());
}

fn registers(pid: pid_t) -> user_regs_struct {
    // SAFETY: zero is valid for registers, which the kernel fills.
    unsafe {
        let mut registers: user_regs_struct = core::mem::zeroed();
        let place = &mut registers as *mut _ as *mut c_void;
        assert_eq!(libc::ptrace(libc::PTRACE_GETREGS, pid, 0, place), 0, "PTRACE_GETREGS");
        registers
    }
}

/// Whether a trap is of the subject's own instruction, not of a step.
fn is_breakpoint(pid: pid_t) -> bool {
    const SI_KERNEL: i32 = 0x80;
    // SAFETY: zero is valid for a siginfo, which the kernel fills.
    unsafe {
        let mut info: libc::siginfo_t = core::mem::zeroed();
        let place = &mut info as *mut _ as *mut c_void;
        let got = libc::ptrace(libc::PTRACE_GETSIGINFO, pid, 0, place);
        got == 0 && info.si_code == SI_KERNEL
    }
}

/// From one breakpoint to the next, with what the library does between. What a repeated string
/// instruction repeats counts once.
fn step_to_breakpoint(pid: pid_t, code: &mut Code, places: &mut BTreeMap<u64, u64>) -> Steps {
    const SYSCALL: c_long = 0x050f;
    let mut steps = Steps::default();
    let mut at = 0;
    loop {
        let now = registers(pid).rip;
        if now != at {
            if code.library.contains(&now) {
                *places.entry(now - code.library.start).or_default() += 1;
                steps.instructions += 1;
            }
            let enters = code.system_calls.entry(now).or_insert_with(|| {
                // SAFETY: the child is stopped; the word is in its code.
                let word = unsafe { libc::ptrace(libc::PTRACE_PEEKTEXT, pid, now, 0) };
                word & 0xffff == SYSCALL
            });
            steps.system_calls += u64::from(*enters);
        }
        at = now;
        go(libc::PTRACE_SINGLESTEP, pid, 0);
        match wait(pid) {
            Stop::Signal(libc::SIGTRAP) if is_breakpoint(pid) => return steps,
            Stop::Signal(libc::SIGTRAP) => {}
            Stop::Signal(other) => panic!("signal {other} in the middle of an operation"),
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

impl Code {
    fn of(pid: pid_t, library: &Path) -> Code {
        let library = library.canonicalize().expect("the library is there");
        let maps = std::fs::read_to_string(format!("/proc/{pid}/maps"));
        let maps = maps.expect("the subject's maps");
        let mapped = maps.lines().filter(|line| line.ends_with(&*library.to_string_lossy()));
        let ends = mapped.filter_map(|line| line.split_whitespace().next()?.split_once('-'));
        let address = |text| u64::from_str_radix(text, 16).expect("an address");
        let ends: Vec<_> = ends.map(|(start, end)| (address(start), address(end))).collect();
        let (first, last) = (ends.first(), ends.last());
        let library = first.expect("it is mapped").0..last.expect("it has an end").1;
        Code { library, system_calls: BTreeMap::new() }
    }
}
