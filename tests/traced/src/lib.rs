//! A child that is stopped, stepped and looked at (ptrace(2)). The thread that started it alone can trace it.
#![allow(unsafe_code)] // UNSAFETY: ptrace on a child that is stopped, waitpid, and what a child does before exec.

use std::ops::Range;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command};

use libc::{c_long, c_uint, c_void, pid_t, user_regs_struct};

/// Why a thread stands still.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stop {
    /// It would be given this one. SIGTRAP: a step, exec, or an `int3` of its own ([`mark_at`]).
    Signal(i32),
    /// On its way into or out of one.
    SystemCall,
    /// A thread has been made.
    Event,
    /// By its own status, or the signal that killed it.
    Ended(i32),
}

/// A child, stopped at exec, which dies with this thread.
pub fn start(command: &mut Command) -> Child {
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
    let child = command.spawn().expect("the child starts, and may be traced");
    let (_, stop) = wait(child.id() as pid_t);
    assert_eq!(stop, Stop::Signal(libc::SIGTRAP), "a traced program stops at exec");
    child
}

/// For one of this thread's children, or (-1) for any that it traces.
pub fn wait(thread: pid_t) -> (pid_t, Stop) {
    let mut status = 0;
    // SAFETY: a status for the kernel to fill.
    let got = unsafe { libc::waitpid(thread, &mut status, libc::__WALL | libc::__WNOTHREAD) };
    assert!(got > 0, "waitpid: {}", std::io::Error::last_os_error());
    let stop = if libc::WIFEXITED(status) {
        Stop::Ended(libc::WEXITSTATUS(status))
    } else if libc::WIFSIGNALED(status) {
        Stop::Ended(libc::WTERMSIG(status))
    } else if status >> 16 != 0 {
        Stop::Event
    } else if libc::WSTOPSIG(status) == libc::SIGTRAP | 0x80 {
        Stop::SystemCall
    } else {
        Stop::Signal(libc::WSTOPSIG(status))
    };
    (got, stop)
}

/// Lets a thread that is stopped run on (PTRACE_CONT, PTRACE_SYSCALL, PTRACE_SINGLESTEP), with a signal if it is
/// not 0. A thread that has been killed meanwhile has its end waited for.
pub fn go(request: c_uint, thread: pid_t, signal: i32) {
    // SAFETY: the thread is stopped, or dead.
    let result = unsafe { libc::ptrace(request, thread, 0, c_long::from(signal)) };
    let error = std::io::Error::last_os_error();
    assert!(result == 0 || error.raw_os_error() == Some(libc::ESRCH), "ptrace: {error}");
}

/// Has system calls told from signals, and new threads traced.
pub fn follow_threads(thread: pid_t) {
    let options = libc::PTRACE_O_TRACESYSGOOD | libc::PTRACE_O_TRACECLONE;
    // SAFETY: the thread is stopped.
    let set = unsafe { libc::ptrace(libc::PTRACE_SETOPTIONS, thread, 0, options as c_long) };
    assert_eq!(set, 0, "PTRACE_SETOPTIONS: {}", std::io::Error::last_os_error());
}

/// Of a thread that is stopped; all zero if it has been killed.
pub fn registers(thread: pid_t) -> user_regs_struct {
    // SAFETY: zero is valid for registers, which the kernel fills.
    unsafe {
        let mut registers: user_regs_struct = core::mem::zeroed();
        let place = &mut registers as *mut _ as *mut c_void;
        libc::ptrace(libc::PTRACE_GETREGS, thread, 0, place);
        registers
    }
}

/// The number, in rax, of the `int3` in the child's code at which it stands, if it does not stand behind a step.
pub fn mark_at(thread: pid_t) -> Option<usize> {
    const SI_KERNEL: i32 = 0x80;
    // SAFETY: zero is valid for a siginfo, which the kernel fills.
    let is_mark = unsafe {
        let mut info: libc::siginfo_t = core::mem::zeroed();
        let place = &mut info as *mut _ as *mut c_void;
        libc::ptrace(libc::PTRACE_GETSIGINFO, thread, 0, place) == 0 && info.si_code == SI_KERNEL
    };
    is_mark.then(|| registers(thread).rax as usize)
}

/// Whether the child's code at an address is a system call.
pub fn is_system_call(thread: pid_t, address: u64) -> bool {
    const SYSCALL: c_long = 0x050f;
    // SAFETY: the thread is stopped; the word is in its code.
    let word = unsafe { libc::ptrace(libc::PTRACE_PEEKTEXT, thread, address, 0) };
    word & 0xffff == SYSCALL
}

/// Where a file is mapped in the child.
pub fn mapped(child: pid_t, file: &Path) -> Range<u64> {
    let file = file.canonicalize().expect("the file is there");
    let maps = std::fs::read_to_string(format!("/proc/{child}/maps"));
    let maps = maps.expect("the child's maps");
    let mapped = maps.lines().filter(|line| line.ends_with(&*file.to_string_lossy()));
    let ends = mapped.filter_map(|line| line.split_whitespace().next()?.split_once('-'));
    let address = |text| u64::from_str_radix(text, 16).expect("an address");
    let ends: Vec<_> = ends.map(|(start, end)| (address(start), address(end))).collect();
    let (first, last) = (ends.first(), ends.last());
    first.expect("it is mapped").0..last.expect("it has an end").1
}
