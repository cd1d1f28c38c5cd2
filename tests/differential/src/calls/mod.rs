//! The calls under test, one thin wrapper each. They go through libc's symbols, so a preloaded
//! library sees them as it would see any program's. A wrapper decides nothing: it returns what
//! the call returned, as [`Got`].

// UNSAFETY: foreign calls are the job of this folder; everything above it is safe code.
#![allow(unsafe_code)]

use std::fmt;

/// Makes one foreign call and takes its return value and errno.
macro_rules! call {
    ($call:expr) => {{
        $crate::calls::mark_errno();
        // SAFETY: every pointer in the call comes from a borrow that outlives it, or is an
        // address whose refusal with EFAULT is what the scenario tests.
        let value = unsafe { $call };
        $crate::calls::Got::from_return(value as i64)
    }};
}

pub mod io;
pub mod io_uring;
pub mod listing;
pub mod other_ways;
pub mod process;
pub mod sandbox;
pub mod socket;
pub mod stdio;
pub mod strange;
pub mod successors;
pub mod unusual;
pub mod wait;

pub type Fd = libc::c_int;

/// What a call gave: its value, or the errno of its failure.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Got {
    Value(i64),
    /// Succeeded and changed errno all the same, which a careful guest never does.
    ValueTouchedErrno(i64),
    Errno(i32),
}

/// No errno has this value, so finding it after a call shows that the call left errno alone.
const UNTOUCHED: i32 = 4090;

fn mark_errno() {
    // SAFETY: __errno_location returns this thread's valid errno address.
    unsafe { *libc::__errno_location() = UNTOUCHED };
}

fn errno() -> i32 {
    // SAFETY: __errno_location returns this thread's valid errno address.
    unsafe { *libc::__errno_location() }
}

impl Got {
    fn from_return(value: i64) -> Got {
        match (value, errno()) {
            (-1, error) => Got::Errno(error),
            (_, UNTOUCHED) => Got::Value(value),
            _ => Got::ValueTouchedErrno(value),
        }
    }

    /// The value of a call that a scenario needs to succeed.
    pub fn value(self, call: &str) -> i64 {
        match self {
            Got::Value(value) | Got::ValueTouchedErrno(value) => value,
            Got::Errno(_) => panic!("{call}: {self}"),
        }
    }

    pub fn fd(self, call: &str) -> Fd {
        self.value(call) as Fd
    }

    /// The count moved, or nothing.
    pub fn count(self) -> Option<usize> {
        match self {
            Got::Value(value) | Got::ValueTouchedErrno(value) => usize::try_from(value).ok(),
            Got::Errno(_) => None,
        }
    }

    pub fn is(self, error: i32) -> bool {
        self == Got::Errno(error)
    }
}

impl fmt::Display for Got {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Got::Value(value) => write!(f, "{value}"),
            Got::ValueTouchedErrno(value) => write!(f, "{value} (and errno was changed)"),
            Got::Errno(error) => write!(f, "{}", errno_name(*error)),
        }
    }
}

/// The symbolic name; numbers without one here are shown as they are.
pub fn errno_name(error: i32) -> String {
    const NAMES: &[(i32, &str)] = &[
        (0, "0"),
        (libc::EAGAIN, "EAGAIN"),
        (libc::EBADF, "EBADF"),
        (libc::ECONNABORTED, "ECONNABORTED"),
        (libc::ECONNREFUSED, "ECONNREFUSED"),
        (libc::ECONNRESET, "ECONNRESET"),
        (libc::EDESTADDRREQ, "EDESTADDRREQ"),
        (libc::EEXIST, "EEXIST"),
        (libc::EFAULT, "EFAULT"),
        (libc::EINPROGRESS, "EINPROGRESS"),
        (libc::EINTR, "EINTR"),
        (libc::EINVAL, "EINVAL"),
        (libc::EISCONN, "EISCONN"),
        (libc::EMSGSIZE, "EMSGSIZE"),
        (libc::ENOENT, "ENOENT"),
        (libc::ENOPROTOOPT, "ENOPROTOOPT"),
        (libc::ENOSPC, "ENOSPC"),
        (libc::ENOSYS, "ENOSYS"),
        (libc::ENOTCONN, "ENOTCONN"),
        (libc::ENOTSOCK, "ENOTSOCK"),
        (libc::EOPNOTSUPP, "EOPNOTSUPP"),
        (libc::EPERM, "EPERM"),
        (libc::EPIPE, "EPIPE"),
        (libc::ESPIPE, "ESPIPE"),
        (libc::ETIMEDOUT, "ETIMEDOUT"),
    ];
    NAMES
        .iter()
        .find(|(number, _)| *number == error)
        .map_or_else(|| format!("errno {error}"), |(_, name)| (*name).to_owned())
}
