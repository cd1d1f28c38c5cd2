//! A DEL that the kernel has not been told yet. Some programs delete and add a stream for every
//! message, with nothing between: for these the two become one MOD.
//!
//! Only where nobody could tell: this thread is the process's only one, no other process has the set,
//! and whatever could show the set's state (a wait, a close, a fork) settles it first.

use core::sync::atomic::{AtomicBool, AtomicU64, Ordering::*};

use shunt_os::{handles, threads};

use super::set_at;

/// The set's index and the descriptor, plus one; 0 is none.
static PENDING: AtomicU64 = AtomicU64::new(0);
/// Another process may wait on a set of ours.
static SHARED: AtomicBool = AtomicBool::new(false);

fn word(set_index: u32, fd: i32) -> u64 {
    (u64::from(set_index) << 32 | u64::from(fd as u32)) + 1
}

/// Whether the kernel may be told later. The caller has settled what was put off before.
#[inline]
pub fn put_off(set_index: u32, fd: i32) -> bool {
    let may = threads::is_alone() && !SHARED.load(Relaxed) && PENDING.load(Relaxed) == 0;
    if may {
        PENDING.store(word(set_index, fd), Relaxed);
    }
    may
}

/// For an ADD: whether the kernel still has the registration, which a MOD will change then.
#[inline]
pub fn take(set_index: u32, fd: i32) -> bool {
    let pending = PENDING.load(Relaxed);
    if pending == word(set_index, fd) {
        return PENDING.swap(0, Relaxed) == pending;
    }
    settle();
    false
}

/// Tells the kernel what was put off.
#[inline]
pub fn settle() {
    if PENDING.load(Relaxed) != 0 {
        tell();
    }
}

#[cold]
fn tell() {
    let pending = PENDING.swap(0, Relaxed);
    if pending != 0 {
        let (set_index, fd) = (((pending - 1) >> 32) as u32, (pending - 1) as u32 as i32);
        let set_fd = set_at(set_index).fd.load(Relaxed);
        let errno = shunt_os::errno();
        let _ = handles::epoll_ctl(set_fd, libc::EPOLL_CTL_DEL, fd, 0, 0);
        shunt_os::set_errno(errno);
    }
}

/// Another process may come to wait on a set of ours: nothing is put off any more.
pub fn settle_for_good() {
    SHARED.store(true, SeqCst);
    settle();
}
