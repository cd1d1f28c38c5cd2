//! Ctrl-C ends the demo in order, so that nothing it started stays.
// UNSAFETY: installs a signal handler, and sets what children inherit.
#![allow(unsafe_code)]

use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use anyhow::{bail, Result};

static INTERRUPTED: AtomicBool = AtomicBool::new(false);

extern "C" fn note(_: libc::c_int) {
    INTERRUPTED.store(true, Relaxed);
}

pub fn watch() {
    let handler: extern "C" fn(libc::c_int) = note;
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
        // SAFETY: the handler does one atomic store, which is allowed at any moment.
        unsafe { libc::signal(signal, handler as libc::sighandler_t) };
    }
}

/// Fails once somebody wanted the demo to end.
pub fn check() -> Result<()> {
    if INTERRUPTED.load(Relaxed) {
        bail!("interrupted");
    }
    Ok(())
}

/// The child ends when this process does, however that happens, and runs on `core` if one is given
/// and exists.
pub fn prepare(command: &mut Command, core: Option<usize>) {
    // SAFETY: both functions may be called between fork and exec.
    unsafe {
        command.pre_exec(move || {
            if libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) < 0 {
                return Err(io::Error::last_os_error());
            }
            if let Some(core) = core {
                let mut set = std::mem::zeroed::<libc::cpu_set_t>();
                libc::CPU_SET(core, &mut set);
                // A machine without that core shows what it can.
                libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &set);
            }
            Ok(())
        })
    };
}

pub fn send(pid: i32, signal: libc::c_int) {
    // SAFETY: no memory is involved.
    unsafe { libc::kill(pid, signal) };
}

pub fn is_root() -> bool {
    // SAFETY: no memory is involved.
    unsafe { libc::geteuid() == 0 }
}
