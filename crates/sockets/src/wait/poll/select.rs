//! `select` and `pselect`, by way of [`poll`](super::poll()).

use core::ffi::c_ulong;

use libc::{nfds_t, pollfd, sigset_t};
use shunt_os::{clock, memory, real};

use super::poll;
use crate::outcome::Outcome;
use crate::table::{self, Entry};

/// Bits of a word of a descriptor set: the kernel reads and writes whole ones.
const WORD_BITS: usize = c_ulong::BITS as usize;

/// The word of `set` that has the bit of `fd`.
fn word_of(set: *mut libc::fd_set, fd: i32) -> *mut c_ulong {
    set.cast::<c_ulong>().wrapping_add(fd as usize / WORD_BITS)
}

fn bit_of(fd: i32) -> c_ulong {
    1 << (fd as usize % WORD_BITS)
}

/// `select` and `pselect`, by way of poll. `None`: nothing of ours is in the sets.
///
/// # Safety
/// The sets are what the program passed for `count`.
pub unsafe fn select(
    count: i32,
    sets: [*mut libc::fd_set; 3],
    timeout: Option<u64>,
    mask: *const sigset_t,
) -> Option<Outcome> {
    if !(1..=1 << 20).contains(&count) {
        return None;
    }
    let words = (count as usize).div_ceil(WORD_BITS);
    // The kernel reads whole words.
    let bytes = words * WORD_BITS / 8;
    if sets.iter().any(|set| !set.is_null() && !memory::is_readable(*set, bytes)) {
        return None;
    }
    let bit = |set: *mut libc::fd_set, fd: i32| -> bool {
        // SAFETY: the program's sets hold at least `count` bits.
        !set.is_null() && unsafe { *word_of(set, fd) } & bit_of(fd) != 0
    };
    let mut ours = false;
    let mut list = Vec::new();
    for fd in 0..count {
        let wanted = sets.map(|set| bit(set, fd));
        if wanted == [false; 3] {
            continue;
        }
        ours |= matches!(table::get(fd), Entry::Socket(_) | Entry::Set(_));
        let events = [libc::POLLIN, libc::POLLOUT, libc::POLLPRI];
        let asked = (0..3).filter(|i| wanted[*i]).fold(0, |all, i| all | events[i]);
        list.push(pollfd { fd, events: asked, revents: 0 });
    }
    if !ours {
        return None;
    }
    let (base, length) = (list.as_mut_ptr(), list.len() as nfds_t);
    let span = timeout.map(clock::span);
    let genuine = || {
        let span = span.as_ref().map_or(core::ptr::null(), |s| &raw const *s);
        // SAFETY: our own list.
        unsafe { real::ppoll(base, length, span, mask) as isize }
    };
    // SAFETY: our own list.
    let outcome = unsafe { poll(base, length, timeout, mask, genuine) };
    let ready = match outcome {
        Outcome::Handled(count) | Outcome::Genuine(count) if count >= 0 => count,
        Outcome::PassThrough => genuine(),
        other => return Some(other),
    };
    if ready < 0 {
        return Some(Outcome::Genuine(-1));
    }
    // select reports bad descriptors as an error of the call; the kernel's own words for it.
    if list.iter().any(|entry| entry.revents & libc::POLLNVAL != 0) {
        return None;
    }
    let meaning = [
        libc::POLLIN | libc::POLLRDNORM | libc::POLLHUP | libc::POLLERR,
        libc::POLLOUT | libc::POLLWRNORM | libc::POLLERR,
        libc::POLLPRI,
    ];
    let mut total = 0;
    for (which, set) in sets.iter().enumerate() {
        if set.is_null() {
            continue;
        }
        let before: Vec<bool> = list.iter().map(|entry| bit(*set, entry.fd)).collect();
        for word in 0..words {
            // SAFETY: within the program's set.
            unsafe { *set.cast::<c_ulong>().add(word) = 0 };
        }
        for (entry, wanted) in list.iter().zip(before) {
            if wanted && entry.revents & meaning[which] != 0 {
                // SAFETY: within the program's set.
                unsafe { *word_of(*set, entry.fd) |= bit_of(entry.fd) };
                total += 1;
            }
        }
    }
    Some(Outcome::Handled(total))
}
