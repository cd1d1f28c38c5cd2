//! Numbers that were given up while a poll slept in the kernel by them. One that is woken looks its numbers
//! up anew, and there no ring is seen: whatever gets such a number stays on TCP.

use core::sync::atomic::{AtomicBool, Ordering::*};

use shunt_os::lock::Lock;

use crate::pool;

#[derive(PartialEq, Eq)]
struct GivenUp {
    fd: i32,
    /// The socket that had the number.
    index: u32,
}

impl GivenUp {
    /// Whether a poll that found the socket sleeps still, or another one of a stream that got the socket since:
    /// then one more stays on TCP.
    fn is_polled(&self) -> bool {
        pool::get(self.index).native_polls.load(SeqCst) > 0
    }
}

static LIST: Lock<Vec<GivenUp>> = Lock::new(Vec::new());
static ANY: AtomicBool = AtomicBool::new(false);

/// The socket is about to lose the number.
pub fn give_up(fd: i32, index: u32) {
    let given_up = GivenUp { fd, index };
    if !given_up.is_polled() {
        return;
    }
    let mut list = LIST.lock();
    if !list.contains(&given_up) {
        list.push(given_up);
    }
    ANY.store(true, SeqCst);
}

/// Whether a poll may sleep in the kernel by a number that has just got another meaning.
pub fn is_polled(fd: i32) -> bool {
    if !ANY.load(SeqCst) {
        return false;
    }
    let mut list = LIST.lock();
    list.retain(GivenUp::is_polled);
    ANY.store(!list.is_empty(), SeqCst);
    list.iter().any(|given_up| given_up.fd == fd)
}

/// In a forked child: whoever slept is the parent's.
///
/// # Safety
/// The process has one thread.
pub unsafe fn after_fork() {
    // SAFETY: one thread, by the caller's word.
    unsafe { LIST.force_open() };
    LIST.lock().clear();
    ANY.store(false, SeqCst);
}
