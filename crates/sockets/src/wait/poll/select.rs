//! `select` and `pselect`, by way of [`poll`](super::poll()).

use core::ffi::c_ulong;
use core::sync::atomic::{AtomicI32, Ordering::Relaxed};

use libc::{nfds_t, pollfd, sigset_t};
use shunt_os::{clock, handles, memory, real};

use super::poll_with;
use crate::outcome::Outcome;
use crate::process;
use crate::table::{self, Entry};
use crate::wait::Signals;

/// Bits of a word of a descriptor set: the kernel reads and writes whole ones.
const WORD_BITS: usize = c_ulong::BITS as usize;

/// The word of `set` that has the bit of `fd`.
fn word_of(set: *mut libc::fd_set, fd: i32) -> *mut c_ulong {
    set.cast::<c_ulong>().wrapping_add(fd as usize / WORD_BITS)
}

fn bit_of(fd: i32) -> c_ulong {
    1 << (fd as usize % WORD_BITS)
}

/// Bits of an `fd_set`.
const USUAL: i32 = 1024;
/// Beyond it no number is looked for that a program may have.
const LARGEST: i32 = 1 << 16;
/// The places that the program's table of descriptors has without our numbers, as far as it was seen.
static PLACES: AtomicI32 = AtomicI32::new(USUAL);

/// The count with which the kernel is asked, and we. It looks at no more bits than the table of descriptors has
/// places (Linux, core_sys_select): so programs pass getdtablesize(3), and sets that are much smaller. Our numbers
/// make the table larger: bits behind those of an `fd_set` count only if an open number of the program's was seen
/// there.
///
/// # Safety
/// The sets are what the program passed for `count`.
pub unsafe fn bounded(count: i32, sets: [*mut libc::fd_set; 3]) -> i32 {
    let places = PLACES.load(Relaxed);
    if count <= places || !process::enabled() {
        return count;
    }
    let named = |set: &*mut libc::fd_set| {
        let mut found = None;
        let mut fd = places;
        while fd < count.min(LARGEST) {
            let word = word_of(*set, fd);
            if !memory::is_readable(word, WORD_BITS / 8) {
                break;
            }
            // SAFETY: it is there.
            let mut bits = unsafe { word.read_unaligned() };
            while bits != 0 {
                let named = fd + bits.trailing_zeros() as i32;
                if handles::is_open(named) && !handles::is_own(named) {
                    found = Some(named);
                }
                bits &= bits - 1;
            }
            fd += WORD_BITS as i32;
        }
        found
    };
    if let Some(last) = sets.iter().filter(|set| !set.is_null()).filter_map(named).max() {
        // As the kernel lets the table grow (alloc_fdtable).
        PLACES.fetch_max((last as u32 + 1).next_power_of_two() as i32, Relaxed);
    }
    count.min(PLACES.load(Relaxed))
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
    if !(1..=1 << 20).contains(&count) || table::has_had_none() {
        return None;
    }
    // Before the sets are looked at, which takes a 32-bit program as long as a short wait.
    let signals = Signals::begin(mask);
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
    // Of those that are none of ours, which a call may begin with closed.
    let mut others = Vec::new();
    let mut list = Vec::new();
    for fd in 0..count {
        let wanted = sets.map(|set| bit(set, fd));
        if wanted == [false; 3] {
            continue;
        }
        if !matches!(table::get(fd), Entry::Socket(_) | Entry::Set(_)) {
            others.push(fd);
        }
        let events = [libc::POLLIN, libc::POLLOUT, libc::POLLPRI];
        let asked = (0..3).filter(|i| wanted[*i]).fold(0, |all, i| all | events[i]);
        list.push(pollfd { fd, events: asked, revents: 0 });
    }
    if others.len() == list.len() {
        return None;
    }
    let meaning = [
        libc::POLLIN | libc::POLLRDNORM | libc::POLLHUP | libc::POLLERR | libc::POLLNVAL,
        libc::POLLOUT | libc::POLLWRNORM | libc::POLLERR | libc::POLLNVAL,
        libc::POLLPRI | libc::POLLNVAL,
    ];
    let began = clock::now_ns();
    loop {
        let left = timeout.map(|limit| limit.saturating_sub(clock::now_ns() - began));
        // SAFETY: our own list, and the caller's mask.
        let ready = match unsafe { poll_all(&mut list, left, signals) } {
            Ok(ready) => ready,
            Err(outcome) => return Some(outcome),
        };
        // select reports bad descriptors as an error of the call; the kernel's own words for it. One that was closed since
        // counts as ready (Linux, do_select).
        let is_bad =
            |entry: &pollfd| entry.revents & libc::POLLNVAL != 0 && others.contains(&entry.fd);
        if list.iter().any(is_bad) {
            return None;
        }
        let tells = |entry: &pollfd| {
            let asked =
                |which: usize| bit(sets[which], entry.fd) && entry.revents & meaning[which] != 0;
            entry.revents != 0 && (0..3).any(asked)
        };
        if ready == 0 || list.iter().any(tells) {
            break;
        }
        // poll tells of an end that no set asks for; select waits on for the others.
        list.retain(|entry| entry.revents == 0);
    }
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

/// How many entries of the list poll(2) has something to tell of; or how the call ends.
///
/// # Safety
/// The mask is null or the program's.
unsafe fn poll_all(
    list: &mut [pollfd],
    timeout: Option<u64>,
    signals: Signals,
) -> Result<isize, Outcome> {
    let (base, length) = (list.as_mut_ptr(), list.len() as nfds_t);
    let span = timeout.map(clock::span);
    let genuine = || {
        let span = span.as_ref().map_or(core::ptr::null(), |s| &raw const *s);
        // SAFETY: our own list.
        unsafe { real::ppoll(base, length, span, signals.mask) as isize }
    };
    // SAFETY: our own list.
    let ready = match unsafe { poll_with(|| signals, base, length, timeout, genuine) } {
        Outcome::Handled(count) | Outcome::Genuine(count) if count >= 0 => count,
        Outcome::PassThrough => genuine(),
        other => return Err(other),
    };
    if ready < 0 {
        return Err(Outcome::Genuine(-1));
    }
    Ok(ready)
}
