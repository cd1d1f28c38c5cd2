//! The ends of processes: what children did, and how this one ends.
// UNSAFETY: calls libc, and runs code between fork and exec.
#![allow(unsafe_code)]

use std::ffi::CString;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use super::signals::{die_by, Signal};
use crate::report::Ended;

pub type Pid = libc::pid_t;

/// What a child did.
pub enum Change {
    Ended(Pid, Ended),
    Stopped(Pid, Signal),
    Other,
}

/// The next thing that any child did, if one did.
pub fn next_change() -> Option<Change> {
    let mut status = 0;
    // SAFETY: the status goes to valid memory.
    let pid = unsafe { libc::waitpid(-1, &mut status, libc::WNOHANG | libc::WUNTRACED) };
    if pid <= 0 {
        return None;
    }
    Some(if libc::WIFEXITED(status) {
        Change::Ended(pid, Ended::Status(libc::WEXITSTATUS(status)))
    } else if libc::WIFSIGNALED(status) {
        Change::Ended(pid, Ended::Signal(libc::WTERMSIG(status)))
    } else if libc::WIFSTOPPED(status) {
        Change::Stopped(pid, libc::WSTOPSIG(status))
    } else {
        Change::Other
    })
}

/// Descendants whose parents end become our children, so that we know of them.
pub fn adopt_orphans() {
    // SAFETY: no memory is involved.
    unsafe { libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1) };
}

/// Ends this process as the program ended.
pub fn end_as(ended: Ended) -> ! {
    if let Ended::Signal(signal) = ended {
        leave_no_core();
        die_by(signal);
    }
    std::process::exit(match ended {
        Ended::Status(status) => status,
        Ended::Signal(signal) => 128 + signal,
    })
}

/// The program's core, if it left one, shall not be overwritten by ours.
fn leave_no_core() {
    let none = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the limit is initialised and lives through the call.
    unsafe { libc::setrlimit(libc::RLIMIT_CORE, &none) };
}

/// Whether this user may execute the file.
pub fn may_execute(path: &Path) -> bool {
    let Ok(path) = CString::new(path.as_os_str().as_bytes()) else { return false };
    // SAFETY: the string is terminated and lives through the call.
    unsafe { libc::faccessat(libc::AT_FDCWD, path.as_ptr(), libc::X_OK, libc::AT_EACCESS) == 0 }
}

/// Puts the command into a session of its own, so that what ends the caller's does not reach it.
pub fn in_own_session(command: &mut Command) {
    let leave = || {
        // SAFETY: no memory is involved.
        check(unsafe { libc::setsid() }).map(drop)
    };
    // SAFETY: `setsid` may be called between fork and exec.
    unsafe { command.pre_exec(leave) };
}

pub(super) fn check(result: libc::c_int) -> io::Result<libc::c_int> {
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(result)
}
