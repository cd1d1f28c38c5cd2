//! Finds the counters of running processes among their open descriptors.

use std::fs::{self, File};
use std::io::ErrorKind;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use shunt_stats::{Snapshot, MEMFD_NAME};

use crate::run::{start_time, DIRECTORY_PREFIX};

#[derive(Default)]
pub struct Found {
    pub processes: Vec<Snapshot>,
    /// Processes of other users, into which this one may not look.
    pub forbidden: Vec<i32>,
    /// Processes that were asked for and do not exist.
    pub missing: Vec<i32>,
    pub unreadable: Vec<String>,
}

/// Looks at the processes named, or at all.
pub fn scan(pids: &[i32]) -> Found {
    let mut found = Found::default();
    let named = !pids.is_empty();
    for pid in if named { pids.to_vec() } else { all() } {
        match descriptors(pid) {
            Ok(descriptors) => found.look_at(pid, &descriptors),
            Err(ErrorKind::PermissionDenied) => found.forbidden.push(pid),
            Err(_) if named => found.missing.push(pid),
            Err(_) => {}
        }
    }
    found
}

impl Found {
    fn look_at(&mut self, pid: i32, descriptors: &[PathBuf]) {
        for descriptor in descriptors.iter().filter(|path| holds_counters(path)) {
            match read(descriptor) {
                Ok(process) if is_of(&process, pid) => {
                    self.processes.push(Snapshot { pid: pid as u32, ..process });
                    return;
                }
                // A forked child holds its parent's counters until it makes its own.
                Ok(_) => {}
                Err(error) => self.unreadable.push(format!("{}: {error:#}", descriptor.display())),
            }
        }
    }
}

fn all() -> Vec<i32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let mut pids: Vec<i32> =
        entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
    pids.sort_unstable();
    pids
}

fn descriptors(pid: i32) -> Result<Vec<PathBuf>, ErrorKind> {
    let entries = fs::read_dir(format!("/proc/{pid}/fd")).map_err(|error| error.kind())?;
    // A process that ends while we look is as good as one without descriptors.
    Ok(entries.flatten().map(|entry| entry.path()).collect())
}

fn holds_counters(descriptor: &Path) -> bool {
    let Ok(target) = fs::read_link(descriptor) else { return false };
    let text = target.to_string_lossy();
    let folder = target.parent().and_then(Path::file_name).unwrap_or_default();
    text.starts_with(&format!("/memfd:{MEMFD_NAME} "))
        || folder.to_string_lossy().starts_with(DIRECTORY_PREFIX)
}

fn read(descriptor: &Path) -> anyhow::Result<Snapshot> {
    let file = File::options().read(true).custom_flags(libc::O_NONBLOCK).open(descriptor)?;
    Ok(shunt_stats::read_file(&file)?)
}

/// Whether the process wrote these counters itself. In another PID namespace it knows itself by
/// another number, but started at the same time.
fn is_of(process: &Snapshot, pid: i32) -> bool {
    start_time(pid) == Some(process.start_time) && own_number(pid) == Some(process.pid)
}

fn own_number(pid: i32) -> Option<u32> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("NSpid:"))?;
    line.split_ascii_whitespace().last()?.parse().ok()
}
