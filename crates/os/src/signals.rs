//! Whether an interrupted wait of ours is to be taken up again.

use crate::critical::{handled, Handled};
use crate::handlers::{self, KernelAction};
use crate::{memory, sys};

/// After a sleep that a signal ended: whether all handlers that the thread has run since `before` were
/// set with SA_RESTART (signal(7)). One that was set by the system call's number is not counted; then
/// it is whether all that there are were.
pub fn restarts(before: Handled) -> bool {
    let now = handled();
    if now.all == before.all {
        return !some_handler_interrupts();
    }
    now.interrupting == before.interrupting
}

/// Whether a signal may end a call of the program's: it has set a handler without SA_RESTART at some time.
pub fn may_interrupt() -> bool {
    handlers::interrupt()
}

/// Whether it has set a handler at some time. With SA_RESTART, too, one ends a call that has a time-out.
pub fn are_handled() -> bool {
    handlers::are_set()
}

/// Whether a wait with this `mask` lets in every signal that the thread lets in now: what the thread has just handled, it
/// would have handled in the kernel's sleep. Null is no mask of its own; one that is not there is the kernel's to refuse.
pub fn lets_in_as_much(mask: *const libc::sigset_t) -> bool {
    if mask.is_null() {
        return true;
    }
    let (mut held_back, bytes) = (0u64, size_of::<u64>());
    if !memory::is_there(mask, bytes) {
        return false;
    }
    // SAFETY: a place for the kernel's set of signals, which has 8 bytes.
    let known = unsafe { sys!(libc::SYS_rt_sigprocmask, 0, 0, &raw mut held_back, bytes) };
    // SAFETY: the first 8 bytes of what is there.
    let asked = unsafe { mask.cast::<u64>().read_unaligned() };
    known.is_ok() && asked & !held_back == 0
}

/// 64 calls of 0.1 us.
fn some_handler_interrupts() -> bool {
    (1..=64).filter_map(KernelAction::of).any(|action| {
        action.handler > libc::SIG_IGN && action.flags & libc::SA_RESTART as libc::c_ulong == 0
    })
}

/// SIGPIPE to the calling thread, as the kernel sends it for a write to a closed stream.
pub fn raise_sigpipe() {
    let (process, thread) = (crate::raw::getpid(), crate::raw::gettid());
    // SAFETY: no pointers.
    let _ = unsafe { sys!(libc::SYS_tgkill, process, thread, libc::SIGPIPE) };
}
