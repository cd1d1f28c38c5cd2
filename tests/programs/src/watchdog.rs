//! Waiting with an end: nothing here waits for ever, and what was awaited in vain is named.

use crate::Failure;
use std::process::{Child, ExitStatus};
use std::time::{Duration, Instant};

const STEP: Duration = Duration::from_millis(10);

/// Asks again and again until it is so.
pub fn until(what: &str, seconds: u64, mut is_so: impl FnMut() -> bool) -> Result<(), Failure> {
    let give_up = Instant::now() + Duration::from_secs(seconds);
    while !is_so() {
        if Instant::now() > give_up {
            return Err(format!("waited {seconds} s in vain until {what}"));
        }
        std::thread::sleep(STEP);
    }
    Ok(())
}

/// Looks into the kernel's table: a connection made to try would be a client to the program.
pub fn until_listening(port: u16, child: &mut Child) -> Result<(), Failure> {
    let mut ended = false;
    until(&format!("somebody listens on port {port}"), 30, || {
        ended = child.try_wait().is_ok_and(|status| status.is_some());
        ended || is_listening(port)
    })?;
    if ended {
        Err(format!("ended before it listened on port {port}"))
    } else {
        Ok(())
    }
}

fn is_listening(port: u16) -> bool {
    let v4 = format!(":{port:04X} 00000000:0000 0A");
    let v6 = format!(":{port:04X} {}:0000 0A", "0".repeat(32));
    let has = |table: &str, entry: &str| {
        std::fs::read_to_string(table).is_ok_and(|table| table.contains(entry))
    };
    has("/proc/net/tcp", &v4) || has("/proc/net/tcp6", &v6)
}

/// Waits for the end of a child; one that does not end in time is killed with its group.
pub fn until_ended(child: &mut Child, what: &str, seconds: u64) -> Result<ExitStatus, Failure> {
    let mut status = None;
    let waited = until(&format!("{what} ended"), seconds, || {
        status = child.try_wait().ok().flatten();
        status.is_some()
    });
    match (waited, status) {
        (Ok(()), Some(status)) => Ok(status),
        (Err(failure), _) => {
            let places = describe_group(child.id());
            end_group(child.id(), libc::SIGKILL);
            Err(format!("{failure}\n{places}"))
        }
        (Ok(()), None) => Err(format!("{what} cannot be waited for")),
    }
}

/// Signals a program and everything that it started.
#[allow(unsafe_code)] // UNSAFETY: one call of kill, which takes numbers only.
pub fn end_group(leader: u32, signal: i32) {
    // SAFETY: the group was made for this child alone.
    unsafe { libc::kill(-(leader as i32), signal) };
}

#[allow(unsafe_code)] // UNSAFETY: one call of kill, which takes numbers only.
pub fn signal(process: u32, signal: i32) {
    // SAFETY: the process is our child and has not been waited for.
    unsafe { libc::kill(process as i32, signal) };
}

/// Whether any process of the group still exists.
#[allow(unsafe_code)] // UNSAFETY: one call of kill, which takes numbers only.
pub fn group_exists(leader: u32) -> bool {
    // SAFETY: signal 0 only asks.
    unsafe { libc::kill(-(leader as i32), 0) == 0 }
}

/// Where each thread of the group is.
fn describe_group(leader: u32) -> String {
    let mut text = String::new();
    for entry in std::fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Ok(stat) = std::fs::read_to_string(entry.path().join("stat")) else { continue };
        let Some((name, rest)) = stat.rsplit_once(") ") else { continue };
        if rest.split(' ').nth(2) != Some(&leader.to_string()) {
            continue;
        }
        for task in std::fs::read_dir(entry.path().join("task")).into_iter().flatten().flatten() {
            let read =
                |file: &str| std::fs::read_to_string(task.path().join(file)).unwrap_or_default();
            let (place, call) = (read("wchan"), read("syscall"));
            let thread = task.file_name().to_string_lossy().into_owned();
            text.push_str(&format!("{name}) thread {thread}: {place}, {}\n", call.trim()));
        }
    }
    text
}
