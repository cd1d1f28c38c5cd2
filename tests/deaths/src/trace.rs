//! Stops a victim at its system calls, or at its instructions in the library, and kills it there (ptrace(2)).
#![allow(unsafe_code)] // UNSAFETY: kill.

use std::collections::BTreeSet;
use std::path::Path;

use libc::pid_t;
use shunt_traced::{follow_threads, go, mapped, mark_at, registers, wait, Stop};

use crate::victim::place;

/// Where the victim is killed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Point {
    /// When its threads together have entered and left so many system calls.
    SystemCall(u64),
    /// When the call behind a place's mark, which it comes to for the so-manieth time, has carried out so many
    /// of the library's instructions.
    Instruction { place: usize, time: u64, number: u64 },
}

/// How the victim ended.
pub struct End {
    /// Where it was killed; nothing if it came to its own end before.
    pub killed: Option<String>,
    /// How many points it had come to.
    pub points: u64,
    /// By its own status, or the signal that ended it.
    pub status: i32,
}

/// Lets a victim run to the point, and kills it there; `before` is called just before that.
pub fn kill_at(victim: pid_t, point: Point, library: &Path, before: impl FnOnce()) -> End {
    let (begin, times) = match point {
        Point::SystemCall(_) => (place::BEGIN, 1),
        Point::Instruction { place, time, .. } => (place, time),
    };
    for _ in 0..times {
        if let Err(status) = run_to_mark(victim, begin) {
            return End { killed: None, points: 0, status };
        }
    }
    let mut end = match point {
        Point::SystemCall(number) => at_system_call(victim, number),
        Point::Instruction { number, .. } => at_instruction(victim, number, library),
    };
    if end.killed.is_some() {
        before();
        // SAFETY: no pointers; the victim is our child and has not been waited for.
        unsafe { libc::kill(victim, libc::SIGKILL) };
        end.status = run_to_end(victim);
    }
    end
}

fn run_to_mark(victim: pid_t, number: usize) -> Result<(), i32> {
    let mut signal = 0;
    loop {
        go(libc::PTRACE_CONT, victim, signal);
        signal = match wait(victim).1 {
            Stop::Ended(status) => return Err(status),
            Stop::Signal(libc::SIGTRAP) if mark_at(victim) == Some(number) => return Ok(()),
            Stop::Signal(libc::SIGTRAP) => 0,
            Stop::Signal(other) => other,
            Stop::SystemCall | Stop::Event => 0,
        };
    }
}

fn at_system_call(victim: pid_t, number: u64) -> End {
    follow_threads(victim);
    let (mut points, mut known) = (0, BTreeSet::from([victim]));
    go(libc::PTRACE_SYSCALL, victim, 0);
    loop {
        let (thread, stop) = wait(-1);
        let is_new = known.insert(thread);
        let signal = match stop {
            Stop::Ended(status) if thread == victim => return End { killed: None, points, status },
            Stop::Ended(_) => continue,
            Stop::SystemCall if points == number => {
                let who = if thread == victim { "the program" } else { "the service thread" };
                let registers = registers(thread);
                // The kernel puts ENOSYS where the result will be.
                let enters = registers.rax as i64 == -i64::from(libc::ENOSYS);
                let call = registers.orig_rax;
                let at = if enters { "before" } else { "behind" };
                return End {
                    killed: Some(format!("{at} system call {call} of {who}")),
                    points,
                    status: 0,
                };
            }
            Stop::SystemCall => {
                points += 1;
                0
            }
            Stop::Signal(libc::SIGTRAP) | Stop::Event => 0,
            // A new thread's first stop.
            Stop::Signal(libc::SIGSTOP) if is_new => 0,
            Stop::Signal(other) => other,
        };
        go(libc::PTRACE_SYSCALL, thread, signal);
    }
}

/// What a repeated string instruction repeats counts once.
fn at_instruction(victim: pid_t, number: u64, library: &Path) -> End {
    let library = mapped(victim, library);
    let (mut points, mut at) = (0, 0);
    loop {
        let now = registers(victim).rip;
        if now != at && library.contains(&now) {
            if points == number {
                let offset = now - library.start;
                let killed = Some(format!("before the instruction at {offset:#x}"));
                return End { killed, points, status: 0 };
            }
            points += 1;
        }
        at = now;
        go(libc::PTRACE_SINGLESTEP, victim, 0);
        match wait(victim).1 {
            Stop::Ended(status) => return End { killed: None, points, status },
            Stop::Signal(libc::SIGTRAP) if mark_at(victim).is_some() => {
                return End { killed: None, points, status: run_to_end(victim) };
            }
            Stop::Signal(libc::SIGTRAP) => {}
            Stop::Signal(other) => panic!("signal {other} in the middle of a call"),
            Stop::SystemCall | Stop::Event => {}
        }
    }
}

/// All its threads have their ends waited for.
fn run_to_end(victim: pid_t) -> i32 {
    let (mut thread, mut signal) = (victim, 0);
    loop {
        go(libc::PTRACE_CONT, thread, signal);
        let (stopped, stop) = wait(-1);
        thread = stopped;
        signal = match stop {
            Stop::Ended(status) if thread == victim => return status,
            Stop::Signal(libc::SIGTRAP) | Stop::SystemCall | Stop::Event | Stop::Ended(_) => 0,
            Stop::Signal(other) => other,
        };
    }
}
