//! Ctrl-C ends `demo` and `bench` in order, so that nothing they started stays.
// UNSAFETY: installs a signal handler.
#![allow(unsafe_code)]

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
