//! Whether an interrupted wait of ours is to be taken up again.

use crate::sys;

#[repr(C)]
struct KernelAction {
    handler: usize,
    flags: u64,
    restorer: usize,
    mask: u64,
}

const SIG_IGN: usize = 1;

/// True if the program has a handler without SA_RESTART: then a wait that a signal interrupted
/// may have to end with EINTR. Asked only after an interruption (64 calls of 0.1 us).
pub fn some_handler_interrupts() -> bool {
    (1..=64).any(|signal| {
        let mut action = KernelAction { handler: 0, flags: 0, restorer: 0, mask: 0 };
        // SAFETY: only reads the disposition into a buffer of the kernel's layout.
        let asked = unsafe { sys!(libc::SYS_rt_sigaction, signal, 0, &raw mut action, 8) };
        asked.is_ok() && action.handler > SIG_IGN && action.flags & libc::SA_RESTART as u64 == 0
    })
}

/// SIGPIPE to the calling thread, as the kernel sends it for a write to a closed stream.
pub fn raise_sigpipe() {
    let (process, thread) = (crate::raw::getpid(), crate::raw::gettid());
    // SAFETY: no pointers.
    let _ = unsafe { sys!(libc::SYS_tgkill, process, thread, libc::SIGPIPE) };
}
