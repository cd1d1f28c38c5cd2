//! Who descends from a program and still runs.
// UNSAFETY: calls libc.
#![allow(unsafe_code)]

use std::ffi::CString;
use std::fs;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use super::process::{check, Pid};

/// All descendants of `roots` that run now, the roots included.
pub fn descendants(roots: &[Pid]) -> Vec<Pid> {
    let parents: Vec<(Pid, Pid)> = running().filter_map(|pid| Some((pid, parent(pid)?))).collect();
    let is_there = |pid: &Pid| parents.iter().any(|(child, _)| child == pid);
    let mut family: Vec<Pid> = roots.iter().copied().filter(is_there).collect();
    family.sort_unstable();
    family.dedup();
    let mut next = 0;
    while let Some(&one) = family.get(next) {
        let children = parents.iter().filter(|(_, parent)| *parent == one).map(|(child, _)| *child);
        let new: Vec<Pid> = children.filter(|child| !family.contains(child)).collect();
        family.extend(new);
        next += 1;
    }
    family
}

/// When the process started, in clock ticks after boot.
pub fn start_time(pid: Pid) -> Option<u64> {
    stat_fields(pid)?.get(19)?.parse().ok()
}

/// Sleeps until one of the processes ends or a file appears in the directory.
pub fn wait_for_end_of_any(pids: &[Pid], or_new_file_in: &OwnedFd) -> io::Result<()> {
    let mut handles = Vec::new();
    for pid in pids {
        match open_process(*pid) {
            Ok(handle) => handles.push(handle),
            Err(error) if error.raw_os_error() == Some(libc::ESRCH) => return Ok(()),
            Err(error) => return Err(error),
        }
    }
    let mut waits: Vec<libc::pollfd> = (handles.iter().chain([or_new_file_in]))
        .map(|fd| libc::pollfd { fd: fd.as_raw_fd(), events: libc::POLLIN, revents: 0 })
        .collect();
    // SAFETY: the array is valid for its length.
    check(unsafe { libc::poll(waits.as_mut_ptr(), waits.len() as libc::nfds_t, -1) })?;
    let mut events = [0u8; 4096];
    // SAFETY: the buffer is valid for its length; the descriptor does not block.
    unsafe { libc::read(or_new_file_in.as_raw_fd(), events.as_mut_ptr().cast(), events.len()) };
    Ok(())
}

/// A descriptor that is readable when a file was made in the directory.
pub fn watch_new_files(directory: &Path) -> io::Result<OwnedFd> {
    // SAFETY: no memory is involved.
    let fd = check(unsafe { libc::inotify_init1(libc::IN_CLOEXEC | libc::IN_NONBLOCK) })?;
    // SAFETY: a new descriptor that nobody else owns.
    let watch = unsafe { OwnedFd::from_raw_fd(fd) };
    let path = CString::new(directory.as_os_str().as_bytes())?;
    // SAFETY: the string is terminated and lives through the call.
    check(unsafe { libc::inotify_add_watch(fd, path.as_ptr(), libc::IN_CREATE) })?;
    Ok(watch)
}

fn open_process(pid: Pid) -> io::Result<OwnedFd> {
    // SAFETY: no memory is involved.
    let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) } as libc::c_int;
    // SAFETY: a new descriptor that nobody else owns.
    check(fd).map(|fd| unsafe { OwnedFd::from_raw_fd(fd) })
}

fn running() -> impl Iterator<Item = Pid> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

/// The parent of a process that has not ended.
fn parent(pid: Pid) -> Option<Pid> {
    let mut fields = stat_fields(pid)?.into_iter();
    let state = fields.next()?;
    (state != "Z" && state != "X").then(|| fields.next()?.parse().ok())?
}

/// The fields of `/proc/PID/stat` from the state on; the name before it may hold anything.
fn stat_fields(pid: Pid) -> Option<Vec<String>> {
    let text = fs::read(format!("/proc/{pid}/stat")).ok()?;
    let text = String::from_utf8_lossy(&text);
    Some(text.rsplit_once(") ")?.1.split_ascii_whitespace().map(str::to_owned).collect())
}
