//! Streams that may yet be attached count the waits of the kernel's that name them (`native_recv`), so that nobody goes up to
//! a sleeper whom no bell reaches.

use libc::pollfd;
use shunt_os::threads;

use super::SMALL;
use crate::pool::{self, Mode};
use crate::receive::leave_native;
use crate::table::{self, Entry};

/// Which entries were counted as native waits, by position.
pub(super) struct Counted {
    /// One of them has been attached meanwhile: a bell will do for it.
    pub(super) some_attached: bool,
    /// Others were attached before.
    pub(super) some_skipped: bool,
    small: [u32; SMALL],
    large: Vec<u32>,
}

const NOT: u32 = u32::MAX;

impl Counted {
    /// Every stream of the list is counted, and none is attached.
    pub(super) fn is_all(&self) -> bool {
        !self.some_attached && !self.some_skipped
    }

    fn at(&self, position: usize) -> u32 {
        if self.large.is_empty() {
            self.small[position]
        } else {
            self.large[position]
        }
    }
}

/// Counts a native wait for the streams that no bell is known of.
pub(super) fn count_in(list: &[pollfd]) -> Counted {
    let large = if list.len() > SMALL { vec![NOT; list.len()] } else { Vec::new() };
    let mut counted =
        Counted { some_attached: false, some_skipped: false, small: [NOT; SMALL], large };
    for (position, entry) in list.iter().enumerate() {
        let Entry::Socket(index) = table::get(entry.fd) else { continue };
        let socket = pool::get(index);
        if socket.mode() == Mode::Attached {
            counted.some_skipped = true;
            continue;
        }
        threads::add(&socket.native_recv, 1);
        threads::add(&socket.native_polls, 1);
        if counted.large.is_empty() {
            counted.small[position] = index;
        } else {
            counted.large[position] = index;
        }
        if socket.mode() == Mode::Attached {
            counted.some_attached = true;
        }
    }
    counted
}

pub(super) fn count_out(list: &[pollfd], counted: &Counted) {
    for position in 0..list.len() {
        let index = counted.at(position);
        if index != NOT {
            let socket = pool::get(index);
            threads::take(&socket.native_polls);
            leave_native(index, socket);
        }
    }
}
