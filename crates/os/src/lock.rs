//! A small lock for state that the threads of this process share: spin a little, then sleep.
//!
//! Held while bytes are copied, never while anybody sleeps or waits for the peer. The program's signal
//! handlers do not run meanwhile ([`critical`]). After fork the
//! child's copies are opened anew by who forked, since their holders do not exist there.

use core::cell::UnsafeCell;
use core::ops::{Deref, DerefMut};
use core::sync::atomic::{AtomicU32, Ordering::*};

use crate::{critical, park, threads};

const FREE: u32 = 0;
const HELD: u32 = 1;
const CONTENDED: u32 = 2;

/// A mutual-exclusion lock without poisoning.
pub struct Lock<T> {
    state: AtomicU32,
    value: UnsafeCell<T>,
}

// SAFETY: only the holder reaches the value.
unsafe impl<T: Send> Sync for Lock<T> {}
// SAFETY: as above.
unsafe impl<T: Send> Send for Lock<T> {}

impl<T> Lock<T> {
    pub const fn new(value: T) -> Lock<T> {
        Lock { state: AtomicU32::new(FREE), value: UnsafeCell::new(value) }
    }

    /// Waits until the lock is free and takes it.
    #[inline]
    pub fn lock(&self) -> Guard<'_, T> {
        critical::enter();
        if threads::is_alone() && self.state.load(Relaxed) == FREE {
            self.state.store(HELD, Relaxed);
            return Guard { lock: self };
        }
        // SYNC lock -> Guard::drop: what the last holder did to the value is seen.
        if self.state.compare_exchange(FREE, HELD, Acquire, Relaxed).is_err() {
            self.wait();
        }
        Guard { lock: self }
    }

    /// Takes the lock if it is free.
    #[inline]
    pub fn try_lock(&self) -> Option<Guard<'_, T>> {
        critical::enter();
        // SYNC lock -> Guard::drop: as in `lock`.
        let taken = self.state.compare_exchange(FREE, HELD, Acquire, Relaxed).is_ok();
        if !taken {
            critical::leave();
            return None;
        }
        Some(Guard { lock: self })
    }

    #[cold]
    fn wait(&self) {
        for _ in 0..100 {
            core::hint::spin_loop();
            if self.state.compare_exchange_weak(FREE, HELD, Acquire, Relaxed).is_ok() {
                return;
            }
        }
        while self.state.swap(CONTENDED, Acquire) != FREE {
            let _ = park::wait(&self.state, CONTENDED, None);
        }
    }

    /// Where the value is, for who knows that its own thread holds the lock.
    pub fn as_ptr(&self) -> *mut T {
        self.value.get()
    }

    /// Opens the lock whoever held it.
    ///
    /// # Safety
    /// The holder must not exist any more (a thread of the parent, in a forked child).
    pub unsafe fn force_open(&self) {
        self.state.store(FREE, Release);
    }
}

/// Proof of holding the lock.
pub struct Guard<'a, T> {
    lock: &'a Lock<T>,
}

impl<T> Guard<'_, T> {
    /// Opens the lock in a forked child, whose parent's thread holds its own.
    pub fn end_in_child(self) {
        self.lock.state.store(FREE, Release);
        core::mem::forget(self);
        critical::leave();
    }
}

impl<T> Drop for Guard<'_, T> {
    #[inline]
    fn drop(&mut self) {
        if threads::is_alone() {
            self.lock.state.store(FREE, Relaxed);
        // SYNC lock -> Lock::lock: what this holder did to the value is seen by the next.
        } else if self.lock.state.swap(FREE, Release) == CONTENDED {
            park::wake_all(&self.lock.state);
        }
        critical::leave();
    }
}

impl<T> Deref for Guard<'_, T> {
    type Target = T;
    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: the guard holds the lock.
        unsafe { &*self.lock.value.get() }
    }
}

impl<T> DerefMut for Guard<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: the guard holds the lock.
        unsafe { &mut *self.lock.value.get() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn increments_of_many_threads_are_all_counted() {
        static COUNT: Lock<u64> = Lock::new(0);
        let threads: Vec<_> = (0..4)
            .map(|_| std::thread::spawn(|| (0..20_000).for_each(|_| *COUNT.lock() += 1)))
            .collect();
        threads.into_iter().for_each(|t| t.join().unwrap());
        assert_eq!(*COUNT.lock(), 80_000);
    }

    #[test]
    fn a_try_in_vain_leaves_the_lock_to_its_holder() {
        let lock = Lock::new(0);
        let _held = lock.lock();
        assert!(lock.try_lock().is_none());
        assert!(lock.try_lock().is_none(), "the first try opened it");
    }
}
