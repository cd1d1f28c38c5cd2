//! What the operating system gives to sleepers: a futex, and a bell that stays rung.

use loom::sync::{Condvar, Mutex};

use crate::sync::{AtomicU32, Relaxed};

/// The kernel's futex: it compares and sleeps under one lock, which wakers take as well.
pub(super) struct Futex {
    queue: Mutex<()>,
    woken: Condvar,
}

impl Futex {
    pub(super) fn new() -> Futex {
        Futex { queue: Mutex::new(()), woken: Condvar::new() }
    }

    pub(super) fn wait(&self, word: &AtomicU32, expected: u32) {
        let queue = self.queue.lock().unwrap();
        if word.load(Relaxed) == expected {
            drop(self.woken.wait(queue).unwrap());
        }
    }

    pub(super) fn wake(&self) {
        drop(self.queue.lock().unwrap());
        self.woken.notify_all();
    }
}

/// An eventfd: rung until somebody clears it.
pub(super) struct Bell {
    rung: Mutex<bool>,
    ringing: Condvar,
}

impl Bell {
    pub(super) fn new() -> Bell {
        Bell { rung: Mutex::new(false), ringing: Condvar::new() }
    }

    pub(super) fn ring(&self) {
        *self.rung.lock().unwrap() = true;
        self.ringing.notify_all();
    }

    pub(super) fn sleep_and_clear(&self) {
        let mut rung = self.rung.lock().unwrap();
        while !*rung {
            rung = self.ringing.wait(rung).unwrap();
        }
        *rung = false;
    }
}
