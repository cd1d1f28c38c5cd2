//! A small lock for state that the threads of this process share: spin a little, then sleep. And a count of those
//! who use what another thread may take away ([`Users`]).
//!
//! Held while bytes are copied, never while anybody sleeps or waits for the peer. The program's signal
//! handlers do not run meanwhile ([`critical`]). After fork the
//! child's copies are opened anew by who forked, since their holders do not exist there.

use core::cell::UnsafeCell;
use core::ops::{Deref, DerefMut};
use core::sync::atomic::{AtomicU32, Ordering::*};

use crate::critical::{self, Section};
use crate::{park, threads};

const FREE: u32 = 0;
const HELD: u32 = 1;

/// A thread that sleeps for a lock looks again after this time. Who opens a lock looks for sleepers without
/// a fence, which would cost every call as much as taking the lock: it may miss one that goes to sleep in the
/// same nanoseconds.
const MISSED_NS: u64 = 100_000;

/// A mutual-exclusion lock without poisoning.
pub struct Lock<T> {
    state: AtomicU32,
    /// Threads that sleep for it, or are about to.
    sleepers: AtomicU32,
    value: UnsafeCell<T>,
}

// SAFETY: only the holder reaches the value.
unsafe impl<T: Send> Sync for Lock<T> {}
// SAFETY: as above.
unsafe impl<T: Send> Send for Lock<T> {}

impl<T> Lock<T> {
    pub const fn new(value: T) -> Lock<T> {
        Lock {
            state: AtomicU32::new(FREE),
            sleepers: AtomicU32::new(0),
            value: UnsafeCell::new(value),
        }
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
        self.sleepers.fetch_add(1, SeqCst);
        while self.state.compare_exchange(FREE, HELD, Acquire, Relaxed).is_err() {
            let _ = park::wait(&self.state, HELD, Some(MISSED_NS));
        }
        self.sleepers.fetch_sub(1, Relaxed);
    }

    /// Where the value is, for who knows that its own thread holds the lock.
    pub fn as_ptr(&self) -> *mut T {
        self.value.get()
    }

    /// The proof anew, for who has forgotten it ([`core::mem::forget`]).
    ///
    /// # Safety
    /// The calling thread holds the lock, and has no other proof.
    pub unsafe fn held(&self) -> Guard<'_, T> {
        Guard { lock: self }
    }

    /// Opens the lock whoever held it.
    ///
    /// # Safety
    /// The holder must not exist any more (a thread of the parent, in a forked child).
    pub unsafe fn force_open(&self) {
        self.sleepers.store(0, Relaxed);
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
        // SAFETY: who slept for it was a thread of the parent.
        unsafe { self.lock.force_open() };
        core::mem::forget(self);
        critical::leave();
    }
}

impl<T> Drop for Guard<'_, T> {
    #[inline]
    fn drop(&mut self) {
        // SYNC lock -> Lock::lock: what this holder did to the value is seen by the next.
        self.lock.state.store(FREE, Release);
        if self.lock.sleepers.load(Relaxed) > 0 {
            park::wake_one(&self.lock.state);
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

/// Threads that use something at this moment, many at once, and do not sleep meanwhile. Who takes it away makes that
/// seen, and then waits for them.
pub struct Users(AtomicU32);

impl Users {
    pub const fn new() -> Users {
        Users(AtomicU32::new(0))
    }

    /// Before a look whether it is still there.
    #[inline]
    pub fn enter(&self) -> Use<'_> {
        let section = Section::begin();
        // SYNC users -> Users::wait_until_none: it is seen to be gone, or this use is.
        self.0.fetch_add(1, SeqCst);
        Use { users: self, _section: section }
    }

    /// Behind a SeqCst store that says that it is gone: nobody uses it any more when this returns.
    pub fn wait_until_none(&self) {
        loop {
            // SYNC users -> Users::enter: as there.
            let count = self.0.load(SeqCst);
            if count == 0 {
                return;
            }
            let _ = park::wait(&self.0, count, Some(MISSED_NS));
        }
    }

    /// There are none.
    ///
    /// # Safety
    /// They must not exist any more (threads of the parent, in a forked child).
    pub unsafe fn forget(&self) {
        self.0.store(0, Release);
    }
}

impl Default for Users {
    fn default() -> Users {
        Users::new()
    }
}

/// One use, until it is dropped.
pub struct Use<'a> {
    users: &'a Users,
    /// Ends behind the use.
    _section: Section,
}

impl Drop for Use<'_> {
    #[inline]
    fn drop(&mut self) {
        self.users.0.fetch_sub(1, Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::sync::atomic::AtomicBool;

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
    fn who_takes_something_away_waits_for_those_who_use_it() {
        static USERS: Users = Users::new();
        static IS_THERE: AtomicBool = AtomicBool::new(true);
        static IS_FREED: AtomicBool = AtomicBool::new(false);
        let threads: Vec<_> = (0..3)
            .map(|_| {
                std::thread::spawn(|| loop {
                    let _use = USERS.enter();
                    if !IS_THERE.load(SeqCst) {
                        return;
                    }
                    (0..20).for_each(|_| assert!(!IS_FREED.load(Relaxed)));
                })
            })
            .collect();
        std::thread::yield_now();
        IS_THERE.store(false, SeqCst);
        USERS.wait_until_none();
        IS_FREED.store(true, Relaxed);
        threads.into_iter().for_each(|t| t.join().unwrap());
    }

    #[test]
    fn a_try_in_vain_leaves_the_lock_to_its_holder() {
        let lock = Lock::new(0);
        let _held = lock.lock();
        assert!(lock.try_lock().is_none());
        assert!(lock.try_lock().is_none(), "the first try opened it");
    }
}
