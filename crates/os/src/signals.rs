//! Whether an interrupted wait of ours is to be taken up again.

use crate::handlers::KernelAction;
use crate::sys;

/// True if the program has a handler without SA_RESTART: then a wait that a signal interrupted
/// may have to end with EINTR. Asked only after an interruption (64 calls of 0.1 us).
pub fn some_handler_interrupts() -> bool {
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
