//! What proc(5) tells of processes.

use crate::handles::{close, place_high, place_high_at_once, Numbers};
use crate::sys;

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

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;
    use crate::handles::{epoll, epoll_ctl, eventfd};

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
