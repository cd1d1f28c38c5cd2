//! Many descriptors waited for at once.
// UNSAFETY: calls epoll, and owns the descriptor of its set.
#![allow(unsafe_code)]

use std::io::{self, ErrorKind};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::time::Duration;

/// Events taken at a time.
const EVENTS: usize = 256;

pub struct Epoll {
    set: OwnedFd,
    events: Vec<libc::epoll_event>,
}

impl Epoll {
    pub fn new() -> io::Result<Epoll> {
        // SAFETY: no memory is involved.
        let set = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
        if set < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: a new descriptor that nobody else owns.
        let set = unsafe { OwnedFd::from_raw_fd(set) };
        Ok(Epoll { set, events: vec![libc::epoll_event { events: 0, u64: 0 }; EVENTS] })
    }

    /// Tells of bytes to read, as long as there are any, under this name.
    pub fn add(&self, file: &impl AsRawFd, name: usize) -> io::Result<()> {
        let mut event = libc::epoll_event { events: libc::EPOLLIN as u32, u64: name as u64 };
        let (set, fd) = (self.set.as_raw_fd(), file.as_raw_fd());
        // SAFETY: the event is initialised and lives through the call.
        match unsafe { libc::epoll_ctl(set, libc::EPOLL_CTL_ADD, fd, &mut event) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// Puts the names of what is ready into `ready`, none if the time is over; without a time-out it
    /// waits for ever.
    pub fn wait(&mut self, ready: &mut Vec<usize>, time_out: Option<Duration>) -> io::Result<()> {
        let time_out_ms = time_out.map_or(-1, |time| time.as_millis() as libc::c_int);
        let (set, events) = (self.set.as_raw_fd(), &mut self.events);
        // SAFETY: the events are writable, as many as is said.
        let count =
            unsafe { libc::epoll_wait(set, events.as_mut_ptr(), EVENTS as i32, time_out_ms) };
        ready.clear();
        match usize::try_from(count) {
            Ok(count) => ready.extend(events[..count].iter().map(|event| event.u64 as usize)),
            Err(_) => match io::Error::last_os_error() {
                error if error.kind() == ErrorKind::Interrupted => {}
                error => return Err(error),
            },
        }
        Ok(())
    }
}
