//! What proc(5) tells of processes.

use core::ffi::CStr;
use core::mem::zeroed;

use crate::handles::{close, place_high, place_high_at_once, Numbers};
use crate::{raw, sys};

/// Whether a process is stopped, by a signal or a debugger (proc(5)). False also if that cannot be
/// seen.
pub fn is_stopped(pid: i32) -> bool {
    if pid <= 0 {
        return false;
    }
    let Ok(path) = std::ffi::CString::new(format!("/proc/{pid}/stat")) else { return false };
    let flags = libc::O_RDONLY | libc::O_CLOEXEC;
    let opened = place_high_at_once(|| {
        // SAFETY: a NUL-terminated path.
        unsafe { sys!(libc::SYS_openat, libc::AT_FDCWD, path.as_ptr(), flags) }.map(|fd| fd as i32)
    });
    let Ok(fd) = opened else { return false };
    let mut text = [0u8; 256];
    // SAFETY: as many writable bytes.
    let read = unsafe { sys!(libc::SYS_read, fd, text.as_mut_ptr(), text.len()) };
    close(fd);
    let text = &text[..read.unwrap_or(0)];
    // The state stands behind the name, which is in brackets and may hold anything.
    let state = text.iter().rposition(|byte| *byte == b')').and_then(|at| text.get(at + 2));
    matches!(state, Some(b'T' | b't'))
}

/// An entry of an epoll set, as the kernel has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EpollEntry {
    pub fd: i32,
    pub events: u32,
    pub data: u64,
}

/// What is in an epoll set of this process; `None` if that cannot be seen.
pub fn entries_of_epoll(set: i32) -> Option<Vec<EpollEntry>> {
    let path = std::ffi::CString::new(format!("/proc/self/fdinfo/{set}")).ok()?;
    let flags = libc::O_RDONLY | libc::O_CLOEXEC;
    let opened = place_high_at_once(|| {
        // SAFETY: a NUL-terminated path.
        unsafe { sys!(libc::SYS_openat, libc::AT_FDCWD, path.as_ptr(), flags) }.map(|fd| fd as i32)
    });
    let fd = opened.ok()?;
    let mut text = Vec::new();
    let mut piece = [0u8; 1024];
    // SAFETY: as many writable bytes.
    while let Ok(bytes @ 1..) = unsafe { sys!(libc::SYS_read, fd, piece.as_mut_ptr(), piece.len()) }
    {
        text.extend_from_slice(&piece[..bytes]);
    }
    close(fd);
    let text = core::str::from_utf8(&text).ok()?;
    text.lines().filter(|line| line.starts_with("tfd:")).map(epoll_entry).collect()
}

/// `tfd: 5 events: 19 data: ffff ...`, the two last in hexadecimal digits.
fn epoll_entry(line: &str) -> Option<EpollEntry> {
    let mut words = line.split_ascii_whitespace();
    let fd = words.nth(1)?.parse().ok()?;
    let events = u32::from_str_radix(words.nth(1)?, 16).ok()?;
    let data = u64::from_str_radix(words.nth(1)?, 16).ok()?;
    Some(EpollEntry { fd, events, data })
}

/// Whether some descriptor of this process is `name` to readlink(2), as `anon_inode:[io_uring]` is.
pub fn some_leads_to(name: &str) -> bool {
    let path = c"/proc/self/fd".as_ptr();
    let opened = {
        let _numbers = Numbers::hold();
        let flags = libc::O_DIRECTORY | libc::O_CLOEXEC;
        // SAFETY: a literal path.
        unsafe { sys!(libc::SYS_openat, libc::AT_FDCWD, path, flags, 0) }
            .and_then(|fd| place_high(fd as i32))
    };
    let Ok(folder) = opened else { return false };
    let mut found = false;
    let mut entries = [0u8; 4096];
    while !found {
        // SAFETY: a writable buffer.
        let got =
            unsafe { sys!(libc::SYS_getdents64, folder, entries.as_mut_ptr(), entries.len()) };
        match got {
            Ok(bytes) if bytes > 0 => found = some_entry_leads_to(folder, &entries[..bytes], name),
            _ => break,
        }
    }
    close(folder);
    found
}

/// As above, for what getdents64(2) gave: 8 bytes of inode, 8 of offset, 2 of length, 1 of type, name.
fn some_entry_leads_to(folder: i32, mut entries: &[u8], name: &str) -> bool {
    while let Some(length) = entries.get(16..18) {
        let length = usize::from(u16::from_ne_bytes([length[0], length[1]]));
        let Some(entry) = entries.get(19..length) else { break };
        let mut target = [0u8; 64];
        // SAFETY: the kernel ends the name with NUL; the buffer is writable.
        let got = unsafe {
            sys!(libc::SYS_readlinkat, folder, entry.as_ptr(), target.as_mut_ptr(), target.len())
        };
        if got.is_ok_and(|bytes| &target[..bytes] == name.as_bytes()) {
            return true;
        }
        entries = &entries[length..];
    }
    false
}

/// Whether this folder is a list of the descriptors of this process: /proc/self/fd or fdinfo, by whatever
/// path and of whatever thread. In such a list the folder's own number leads back to the folder.
pub fn lists_numbers_here(folder: i32) -> bool {
    if !is_on_proc(folder) {
        return false;
    }
    let Some(this) = identity(folder, c"") else { return false };
    let mut path = *b"../fd/\0\0\0\0\0\0\0\0\0\0\0\0";
    put_digits(&mut path[6..], folder);
    let at = |path: &CStr| identity(folder, path) == Some(this);
    // So does /proc/self/task: it is neither of the two.
    CStr::from_bytes_until_nul(&path).is_ok_and(at) && (at(c"../fd") || at(c"../fdinfo"))
}

/// As before, of a path from a folder.
pub fn is_list_of_numbers_here(folder: i32, path: &CStr) -> bool {
    let flags = libc::O_DIRECTORY | libc::O_CLOEXEC;
    let opened = place_high_at_once(|| {
        // SAFETY: a NUL-terminated path.
        unsafe { sys!(libc::SYS_openat, folder, path.as_ptr(), flags) }.map(|fd| fd as i32)
    });
    opened.is_ok_and(|fd| {
        let is_list = lists_numbers_here(fd);
        close(fd);
        is_list
    })
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

/// A number that is not negative in decimal digits. A handler of a signal may call this: nothing is allocated.
fn put_digits(into: &mut [u8], number: i32) {
    let mut rest = number;
    let mut count = 1;
    while rest >= 10 {
        rest /= 10;
        count += 1;
    }
    rest = number;
    for digit in into[..count].iter_mut().rev() {
        *digit = b'0' + (rest % 10) as u8;
        rest /= 10;
    }
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;
    use crate::handles::{epoll, epoll_ctl, eventfd};
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
    fn digits_are_those_of_the_number() {
        for number in [0, 7, 10, 3600, i32::MAX] {
            let mut digits = [0; 12];
            put_digits(&mut digits, number);
            let text = CStr::from_bytes_until_nul(&digits).expect("room").to_str();
            assert_eq!(text, Ok(number.to_string().as_str()));
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
        assert!(some_leads_to("anon_inode:[eventpoll]"));
        assert!(!some_leads_to("anon_inode:[eventpol"));
        assert!(!some_leads_to("anon_inode:[io_uring]"));
        close(set);
    }
}
