//! Waiting: a blocking call ([`blocking`]), poll and select ([`poll`]), epoll ([`epoll`]). Each spins
//! as its policy says, announces that it will sleep, looks once more, and sleeps in the kernel.

pub mod blocking;
pub mod epoll;
pub mod poll;
pub mod state;

use core::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use shunt_os::clock;

/// While the rings satisfy every wait, the kernel is asked once in this time, and at once after
/// this process has written to anything that is not a stream.
const KERNEL_EVERY_NS: u64 = 20_000;
static WROTE_ELSEWHERE: AtomicBool = AtomicBool::new(false);

/// The process wrote to a pipe, an eventfd or the like: something may have become ready by it.
#[inline]
pub fn wrote_elsewhere() {
    if !WROTE_ELSEWHERE.load(Relaxed) {
        WROTE_ELSEWHERE.store(true, Relaxed);
    }
}

/// Whose turn it is: that of kernel descriptors, which must not starve beside busy rings.
pub struct KernelTurn {
    asked_ns: AtomicU64,
    /// The last answer named something: it may still be ready, and must be told again.
    found: AtomicBool,
}

impl KernelTurn {
    pub const fn new() -> KernelTurn {
        KernelTurn { asked_ns: AtomicU64::new(0), found: AtomicBool::new(false) }
    }

    /// What the kernel answered.
    pub fn answered(&self, anything: bool) {
        self.found.store(anything, Relaxed);
    }

    /// Whether the kernel is to be asked although the rings have events.
    pub fn is_due(&self) -> bool {
        let wrote = WROTE_ELSEWHERE.load(Relaxed) && WROTE_ELSEWHERE.swap(false, Relaxed);
        let now = clock::now_ns();
        if !wrote
            && !self.found.load(Relaxed)
            && now - self.asked_ns.load(Relaxed) < KERNEL_EVERY_NS
        {
            return false;
        }
        self.asked_ns.store(now, Relaxed);
        true
    }
}

impl Default for KernelTurn {
    fn default() -> KernelTurn {
        KernelTurn::new()
    }
}
