//! What `shunt run` does about the calibration: reads what is kept, and has the quick part measured if
//! nothing is.
//!
//! A run never fails for this, says nothing of it, and waits a limited time once. So another process
//! measures, which may die of a seccomp filter or be ended; what comes of it is a file or nothing.

use std::env;
use std::process::{Command, Stdio};
use std::time::Duration;

use super::calibration::Calibration;
use super::store::Store;
use crate::child;
use crate::library::{PRELOAD_VARIABLE, SPIN_VARIABLE, SWITCH_VARIABLE};

/// A program's start is held up so long at most, besides what it takes to start a process.
const TIME_MAX: Duration = Duration::from_millis(150);

/// How long waits of programs may spin, in nanoseconds. `None`: the library's usual time, or what the
/// user has set.
pub fn spin_ns_for_programs() -> Option<u32> {
    if is_settled() {
        return None;
    }
    let store = Store::find()?;
    store.load().or_else(|| first(&store))?.useful_spin_ns
}

/// As above, without measuring.
pub fn kept_spin_ns() -> Option<u32> {
    if is_settled() {
        return None;
    }
    Store::find()?.load()?.useful_spin_ns
}

/// Whether the user has set it, or an outer `shunt run`, or the library is to do nothing.
fn is_settled() -> bool {
    env::var_os(SPIN_VARIABLE).is_some()
        || env::var_os(SWITCH_VARIABLE).is_some_and(|value| value == "off")
}

/// For the first run on a machine, and while attempts fail for one now and then.
fn first(store: &Store) -> Option<Calibration> {
    if !store.begin_attempt() {
        return None;
    }
    // Another one may have been quicker.
    let kept = store.load().or_else(|| {
        measure_apart();
        store.load()
    });
    // An attempt that came to nothing stays, so that the next runs need not wait for theirs.
    if kept.is_some() {
        store.end_attempt();
    }
    kept
}

fn measure_apart() {
    let mut command = Command::new("/proc/self/exe");
    command.args(["calibrate", "--quick"]).env_remove(PRELOAD_VARIABLE);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    child::ends_with_us(&mut command);
    if let Ok(measuring) = command.spawn() {
        child::ends_within(measuring, TIME_MAX);
    }
}
