//! What proc(5) tells of processes.

use core::ffi::CStr;
use core::mem::zeroed;
use std::io::Write;

use crate::handles::for_a_moment;
use crate::{raw, sys, Result};

/// Opens a file for `act` to read.
fn with_open<T>(folder: i32, path: &CStr, flags: i32, act: impl FnOnce(i32) -> T) -> Result<T> {
    let flags = flags | libc::O_RDONLY | libc::O_CLOEXEC;
    let open = || {
        // SAFETY: a NUL-terminated path.
        unsafe { sys!(libc::SYS_openat, folder, path.as_ptr(), flags) }.map(|fd| fd as i32)
    };
    for_a_moment(open, act)
}

/// The first bytes of a file, as many as there are and fit.
fn start_of<'a>(path: &CStr, text: &'a mut [u8]) -> Result<&'a [u8]> {
    let read = with_open(libc::AT_FDCWD, path, 0, |fd| {
        // SAFETY: as many writable bytes.
        unsafe { sys!(libc::SYS_read, fd, text.as_mut_ptr(), text.len()) }
    })?;
    Ok(&text[..read?])
}

/// Behind the name in a stat file, which is in brackets and may hold anything: the third field on, the state.
fn behind_name(stat: &[u8]) -> &[u8] {
    let end = stat.iter().rposition(|byte| *byte == b')');
    end.and_then(|at| stat.get(at + 2..)).unwrap_or_default()
}

/// What `find` finds behind the name in a stat file, whose path ends with NUL. Allocates nothing: a signal handler may
/// ask.
fn in_stat<T>(path: core::fmt::Arguments, find: impl FnOnce(&[u8]) -> Option<T>) -> Option<T> {
    let (mut bytes, mut text) = ([0; 64], [0; 256]);
    bytes.as_mut_slice().write_fmt(path).ok()?;
    let path = CStr::from_bytes_until_nul(&bytes).ok()?;
    find(behind_name(start_of(path, &mut text).ok()?))
}

fn state(path: core::fmt::Arguments) -> Option<u8> {
    in_stat(path, |fields| fields.first().copied())
}

/// A field of a stat file, by its place behind the name; 0 if there is none.
fn number(fields: &[u8], place: usize) -> u64 {
    let field = fields.split(|byte| *byte == b' ').nth(place).unwrap_or(b"0");
    field.iter().fold(0, |sum, digit| sum * 10 + u64::from(digit.wrapping_sub(b'0')))
}

/// When this process was started, in clock ticks since boot (field 22 of /proc/self/stat); 0 if that cannot be
/// seen.
pub fn own_start_time() -> u64 {
    let mut text = [0; 1024];
    let Ok(stat) = start_of(c"/proc/self/stat", &mut text) else { return 0 };
    number(behind_name(stat), 19)
}

/// Whether a process is ending, or gone (PF_EXITING of <linux/sched.h> in field 9 of proc(5)'s stat). False also if
/// that cannot be seen.
pub fn is_ending(pid: i32) -> bool {
    const PF_EXITING: u64 = 4;
    let flags = in_stat(format_args!("/proc/{pid}/stat\0"), |fields| Some(number(fields, 6)));
    pid > 0 && flags.map_or_else(|| !raw::runs(pid), |flags| flags & PF_EXITING != 0)
}

/// Whether a process is stopped, by a signal or a debugger (proc(5)). False also if that cannot be
/// seen.
pub fn is_stopped(pid: i32) -> bool {
    if pid <= 0 {
        return false;
    }
    matches!(state(format_args!("/proc/{pid}/stat\0")), Some(b'T' | b't'))
}

/// Whether a thread of this process sleeps in a call, by its number (proc(5)): it does not run, is not about to, and
/// is not stopped. True also if it is gone, or that cannot be seen.
pub fn is_asleep(thread: i32) -> bool {
    let state = state(format_args!("/proc/self/task/{thread}/stat\0"));
    !matches!(state, Some(b'R' | b'D' | b'T' | b't'))
}

/// An entry of an epoll set, as the kernel has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EpollEntry {
    pub fd: i32,
    pub events: u32,
    pub data: u64,
}

/// The process that a pidfd names, as this one knows it; `None` if it is gone, or that is no pidfd
/// (pidfd_open(2)).
pub fn of_pidfd(pidfd: i32) -> Option<i32> {
    let text = descriptor_info(pidfd)?;
    let line = text.lines().find_map(|line| line.strip_prefix("Pid:"))?;
    line.trim().parse().ok().filter(|pid| *pid > 0)
}

/// What is in an epoll set of this process; `None` if that cannot be seen.
pub fn entries_of_epoll(set: i32) -> Option<Vec<EpollEntry>> {
    let text = descriptor_info(set)?;
    text.lines().filter(|line| line.starts_with("tfd:")).map(epoll_entry).collect()
}

/// What the kernel says of a descriptor of this process.
fn descriptor_info(fd: i32) -> Option<String> {
    let path = std::ffi::CString::new(format!("/proc/self/fdinfo/{fd}")).ok()?;
    let mut text = Vec::new();
    with_open(libc::AT_FDCWD, &path, 0, |fd| {
        let mut piece = [0u8; 1024];
        let (start, room) = (piece.as_mut_ptr(), piece.len());
        // SAFETY: as many writable bytes.
        while let Ok(bytes @ 1..) = unsafe { sys!(libc::SYS_read, fd, start, room) } {
            text.extend_from_slice(&piece[..bytes]);
        }
    })
    .ok()?;
    String::from_utf8(text).ok()
}

/// `tfd: 5 events: 19 data: ffff ...`, the two last in hexadecimal digits.
fn epoll_entry(line: &str) -> Option<EpollEntry> {
    let mut words = line.split_ascii_whitespace();
    let fd = words.nth(1)?.parse().ok()?;
    let events = u32::from_str_radix(words.nth(1)?, 16).ok()?;
    let data = u64::from_str_radix(words.nth(1)?, 16).ok()?;
    Some(EpollEntry { fd, events, data })
}

/// Whether some descriptor of this process is `name` to readlink(2), as `anon_inode:[io_uring]` is, and none of those
/// that are `known`.
pub fn some_leads_to(name: &str, known: impl Fn(i32) -> bool) -> bool {
    let look = |folder| {
        let mut found = false;
        let mut entries = [0u8; 4096];
        while !found {
            let (start, bytes) = (entries.as_mut_ptr(), entries.len());
            // SAFETY: a writable buffer.
            match unsafe { sys!(libc::SYS_getdents64, folder, start, bytes) } {
                Ok(bytes @ 1..) => {
                    found = some_entry_leads_to(folder, &entries[..bytes], name, &known);
                }
                _ => break,
            }
        }
        found
    };
    with_open(libc::AT_FDCWD, c"/proc/self/fd", libc::O_DIRECTORY, look).unwrap_or(false)
}

/// As above, for what getdents64(2) gave: 8 bytes of inode, 8 of offset, 2 of length, 1 of type, name.
fn some_entry_leads_to(
    folder: i32,
    mut entries: &[u8],
    name: &str,
    known: &impl Fn(i32) -> bool,
) -> bool {
    while let Some(length) = entries.get(16..18) {
        let length = usize::from(u16::from_ne_bytes([length[0], length[1]]));
        let Some(entry) = entries.get(19..length) else { break };
        let mut target = [0u8; 64];
        // SAFETY: the kernel ends the name with NUL; the buffer is writable.
        let got = unsafe {
            sys!(libc::SYS_readlinkat, folder, entry.as_ptr(), target.as_mut_ptr(), target.len())
        };
        if got.is_ok_and(|bytes| &target[..bytes] == name.as_bytes())
            && !descriptor(entry).is_some_and(known)
        {
            return true;
        }
        entries = &entries[length..];
    }
    false
}

/// A descriptor by its NUL-terminated name in a list of them.
fn descriptor(name: &[u8]) -> Option<i32> {
    CStr::from_bytes_until_nul(name).ok()?.to_str().ok()?.parse().ok()
}

/// Whether this folder is a list of the descriptors of this process: /proc/self/fd or fdinfo, by whatever
/// path and of whatever thread. In such a list the folder's own number leads back to the folder.
pub fn lists_numbers_here(folder: i32) -> bool {
    if !is_on_proc(folder) {
        return false;
    }
    let Some(this) = identity(folder, c"") else { return false };
    let mut path = *b"../fd/\0\0\0\0\0\0\0\0\0\0\0\0";
    put_digits(&mut path[6..], u64::try_from(folder).unwrap_or(0));
    let at = |path: &CStr| identity(folder, path) == Some(this);
    // So does /proc/self/task: it is neither of the two.
    CStr::from_bytes_until_nul(&path).is_ok_and(at) && (at(c"../fd") || at(c"../fdinfo"))
}

/// As before, of a path from a folder.
pub fn is_list_of_numbers_here(folder: i32, path: &CStr) -> bool {
    with_open(folder, path, libc::O_DIRECTORY, lists_numbers_here).unwrap_or(false)
}

/// What a descriptor, or what lies at a path from it, is: the numbers of its file system and of its inode.
fn identity(folder: i32, path: &CStr) -> Option<(u64, u64)> {
    // SAFETY: zero is a valid stat buffer.
    let mut stat: libc::stat64 = unsafe { zeroed() };
    let (path, flags) = (path.as_ptr(), libc::AT_EMPTY_PATH);
    // SAFETY: a NUL-terminated path, and a buffer of the form that this call fills.
    unsafe { sys!(raw::number::FSTATAT, folder, path, &raw mut stat, flags) }.ok()?;
    Some((stat.st_dev as u64, stat.st_ino as u64))
}

#[cfg(target_pointer_width = "64")]
fn is_on_proc(fd: i32) -> bool {
    // SAFETY: zero is a valid buffer.
    let mut told: libc::statfs = unsafe { zeroed() };
    // SAFETY: `told` is what the call fills.
    let got = unsafe { sys!(libc::SYS_fstatfs, fd, &raw mut told) };
    got.is_ok() && told.f_type == libc::PROC_SUPER_MAGIC
}

#[cfg(target_arch = "x86")]
fn is_on_proc(fd: i32) -> bool {
    // SAFETY: zero is a valid buffer.
    let mut told: libc::statfs64 = unsafe { zeroed() };
    // SAFETY: `told` is what the call fills, and as large as is said.
    let got = unsafe { sys!(libc::SYS_fstatfs64, fd, size_of_val(&told), &raw mut told) };
    got.is_ok() && told.f_type == libc::PROC_SUPER_MAGIC
}

/// A number in decimal digits, without a NUL; gives how many. There must be room. A handler of a signal may call
/// this: nothing is allocated.
pub fn put_digits(into: &mut [u8], number: u64) -> usize {
    let count = number.checked_ilog10().unwrap_or(0) as usize + 1;
    let mut rest = number;
    for digit in into[..count].iter_mut().rev() {
        *digit = b'0' + (rest % 10) as u8;
        rest /= 10;
    }
    count
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;
    use crate::handles::{close, epoll, epoll_ctl, eventfd};
    use std::os::fd::AsRawFd;

    #[test]
    fn lists_of_descriptors_are_known_by_any_path() {
        let here = std::process::id();
        let open = |path: &str| std::fs::File::open(path).expect("a folder");
        let is_list = |path: &str| lists_numbers_here(open(path).as_raw_fd());
        for path in ["/proc/self/fd", "/proc/thread-self/fd", "/proc/self/fdinfo", "/dev/fd"] {
            assert!(is_list(path), "{path}");
        }
        for path in [format!("/proc/{here}/fd"), format!("/proc/self/task/{here}/fdinfo")] {
            assert!(is_list(&path), "{path}");
        }
        for path in ["/proc/self/task", "/proc/self", "/proc", "/proc/self/attr", "/"] {
            assert!(!is_list(path), "{path}");
        }
        let parents = std::fs::File::open(format!("/proc/{}/fd", crate::raw::getppid()));
        assert!(parents.is_err() || !lists_numbers_here(parents.unwrap().as_raw_fd()));
        assert!(!lists_numbers_here(-1));
    }

    #[test]
    fn a_process_that_has_ended_is_ending() {
        let mut child = std::process::Command::new("cat")
            .stdin(std::process::Stdio::piped())
            .spawn()
            .expect("a child");
        let pid = child.id() as i32;
        assert!(!is_ending(pid));
        drop(child.stdin.take());
        while state(format_args!("/proc/{pid}/stat\0")) != Some(b'Z') {
            std::thread::yield_now();
        }
        assert!(is_ending(pid), "it waits to be asked for");
        child.wait().expect("its status");
        assert!(is_ending(pid), "it is gone");
        assert!(!is_ending(raw::getpid()));
        assert!(!is_ending(0));
    }

    #[test]
    fn digits_are_those_of_the_number() {
        for number in [0, 7, 10, 3600, i32::MAX as u64, u64::MAX] {
            let mut digits = [0; 20];
            let count = put_digits(&mut digits, number);
            assert_eq!(str::from_utf8(&digits[..count]), Ok(number.to_string().as_str()));
        }
    }

    #[test]
    fn the_entries_of_a_set_are_seen() {
        let (set, member) = (epoll().unwrap(), eventfd().unwrap());
        let events = (libc::EPOLLIN | libc::EPOLLET) as u32;
        epoll_ctl(set, libc::EPOLL_CTL_ADD, member, events, u64::MAX - 1).unwrap();
        let always = (libc::EPOLLERR | libc::EPOLLHUP) as u32;
        let entry = EpollEntry { fd: member, events: events | always, data: u64::MAX - 1 };
        assert_eq!(entries_of_epoll(set), Some(vec![entry]));
        close(member);
        assert_eq!(entries_of_epoll(set), Some(Vec::new()));
        close(set);
    }

    #[test]
    fn descriptors_are_known_by_what_they_lead_to() {
        let set = epoll().unwrap();
        let none_is_known = |_| false;
        assert!(some_leads_to("anon_inode:[eventpoll]", none_is_known));
        assert!(!some_leads_to("anon_inode:[eventpol", none_is_known));
        assert!(!some_leads_to("anon_inode:[io_uring]", none_is_known));
        assert!(!some_leads_to("anon_inode:[eventpoll]", crate::handles::is_open));
        close(set);
    }
}
