//! Whether the caller is a thread of libc's at all, and whether this process has one only: then nobody can be in each other's way, and a word that
//! threads share needs no locked instruction.

#[cfg(target_arch = "x86_64")]
use core::arch::asm;
use core::ffi::{c_char, c_void};
use core::ptr::null_mut;
use core::sync::atomic::{AtomicPtr, AtomicU32, Ordering::*};

/// glibc's own mark (`__libc_single_threaded`, since 2.32), which its first `pthread_create` takes
/// away for good.
static MARK: AtomicPtr<c_char> = AtomicPtr::new(null_mut());

/// The same, also where it says nothing any more.
static GLIBCS_MARK: AtomicPtr<c_char> = AtomicPtr::new(null_mut());

/// How many threads glibc counts (`__nptl_nthreads`): one that ends and finds itself the last ends the
/// process.
static COUNT: AtomicPtr<AtomicU32> = AtomicPtr::new(null_mut());

/// Finds the mark and the count. Without the mark, or before this, every process counts as threaded.
pub fn start() {
    // SAFETY: a NUL-terminated name.
    let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"__libc_single_threaded".as_ptr()) };
    MARK.store(found.cast(), Relaxed);
    GLIBCS_MARK.store(found.cast(), Relaxed);
    let name = c"__nptl_nthreads".as_ptr();
    // SAFETY: two NUL-terminated names.
    let found = unsafe { libc::dlvsym(libc::RTLD_DEFAULT, name, c"GLIBC_PRIVATE".as_ptr()) };
    COUNT.store(found.cast(), Relaxed);
}

/// The size of a thread's stack, in bytes, of which `own` are the thread's: glibc takes the thread-local storage of the
/// program and its libraries from there, too, which may be more than a small stack has (pthread_attr_setstacksize(3)).
pub fn stack_with(own: usize) -> usize {
    const PTHREAD_STACK_MIN: usize = 16 * 1024;
    let name = c"__pthread_get_minstack".as_ptr();
    // SAFETY: two NUL-terminated names.
    let found = unsafe { libc::dlvsym(libc::RTLD_DEFAULT, name, c"GLIBC_PRIVATE".as_ptr()) };
    if found.is_null() {
        return own;
    }
    // SAFETY: glibc's function, of which the name is known; it looks at no attribute.
    let least = unsafe {
        core::mem::transmute::<*mut c_void, extern "C" fn(*const libc::pthread_attr_t) -> usize>(
            found,
        )
    };
    own + least(core::ptr::null()).saturating_sub(PTHREAD_STACK_MIN)
}

/// Whether the caller has a thread's data. A child that clone(2) gave a thread pointer to zeros of its own
/// (CLONE_VM with CLONE_SETTLS, as Chromium's sandbox does) has none, and can call nothing that uses them, such as
/// `errno`. On x86 it could make no system call by way of libc.
#[inline(always)]
pub fn has_data() -> bool {
    #[cfg(target_arch = "x86_64")]
    {
        let own: usize;
        // SAFETY: reads the first word of a thread's data, which is its own address by the ABI.
        unsafe {
            asm!("mov {}, fs:[0]", out(reg) own, options(nostack, pure, readonly, preserves_flags));
        }
        own != 0
    }
    #[cfg(not(target_arch = "x86_64"))]
    true
}

/// Whether no other thread of this process runs, nor will before the caller makes one.
#[inline(always)]
pub fn is_alone() -> bool {
    let mark = MARK.load(Relaxed);
    // SAFETY: glibc's variable, which only the last thread left changes.
    !mark.is_null() && unsafe { mark.read_volatile() } != 0
}

/// Whether the program has made no thread that runs: one of ours does not count.
pub fn program_is_alone() -> bool {
    // SAFETY: glibc's variable, or none.
    unsafe { COUNT.load(Relaxed).as_ref() }.is_some_and(|count| count.load(Relaxed) == 1)
}

/// Adds to a counter that threads share; sequentially consistent between threads.
#[inline(always)]
pub fn add(counter: &AtomicU32, more: u32) {
    if is_alone() {
        // A signal handler that runs in between leaves the counter as it found it.
        counter.store(counter.load(Relaxed).wrapping_add(more), Relaxed);
    } else {
        counter.fetch_add(more, SeqCst);
    }
}

/// Takes one away; returns what was there before.
#[inline(always)]
pub fn take(counter: &AtomicU32) -> u32 {
    if is_alone() {
        let before = counter.load(Relaxed);
        counter.store(before.wrapping_sub(1), Relaxed);
        before
    } else {
        counter.fetch_sub(1, SeqCst)
    }
}

/// A thread of ours was made: the program's last to end is to end the process nonetheless. By a thread
/// of the program's, so that the count does not come to nothing meanwhile.
pub fn leave_uncounted() {
    // From here on the mark may say that the program is alone, and so is not ours to look at.
    MARK.store(null_mut(), Relaxed);
    // SAFETY: glibc's variable, of this type, which it changes atomically.
    if let Some(count) = unsafe { COUNT.load(Relaxed).as_ref() } {
        count.fetch_sub(1, Relaxed);
    }
}

/// A fork in which glibc does not ask for the locks of malloc(3) and stdio(3) if the program has one thread
/// only, as it would without one of ours: a signal handler may fork where that thread has them. Ours takes
/// none of them.
pub fn fork_as_alone(fork: impl FnOnce() -> i32) -> i32 {
    let mark = GLIBCS_MARK.load(Relaxed);
    if mark.is_null() || !program_is_alone() {
        return fork();
    }
    // SAFETY: glibc's variable; no other thread makes threads, or ends, meanwhile.
    if unsafe { mark.read_volatile() } != 0 {
        return fork();
    }
    // SAFETY: as above.
    unsafe { mark.write_volatile(1) };
    let own = own_mark::take();
    let child = fork();
    // The child has one thread indeed.
    if child != 0 {
        // SAFETY: as above.
        unsafe { mark.write_volatile(0) };
        own_mark::put_back(own);
    }
    child
}

/// What some glibcs ask in the mark's place: `multiple_threads`, at the same place in the head of each
/// thread's control block (`tcbhead_t`) for ever.
mod own_mark {
    #[cfg(any(target_arch = "x86_64", target_arch = "x86"))]
    use core::arch::asm;

    /// Takes it away; returns what it was.
    pub fn take() -> u32 {
        let own: u32;
        // SAFETY: a word of glibc's in this thread's own block.
        #[cfg(target_arch = "x86_64")]
        unsafe {
            asm!("mov {0:e}, fs:[0x18]", out(reg) own, options(nostack, preserves_flags));
        }
        // SAFETY: as above.
        #[cfg(target_arch = "x86")]
        unsafe {
            asm!("mov {0:e}, gs:[0xc]", out(reg) own, options(nostack, preserves_flags));
        }
        #[cfg(not(any(target_arch = "x86_64", target_arch = "x86")))]
        {
            own = 0;
        }
        if own != 0 {
            write(0);
        }
        own
    }

    /// Makes it what it was; a thread that was made meanwhile stays known.
    pub fn put_back(own: u32) {
        if own != 0 {
            write(own);
        }
    }

    fn write(own: u32) {
        // SAFETY: as above.
        #[cfg(target_arch = "x86_64")]
        unsafe {
            asm!("mov dword ptr fs:[0x18], {0:e}", in(reg) own, options(nostack, preserves_flags));
        }
        // SAFETY: as above.
        #[cfg(target_arch = "x86")]
        unsafe {
            asm!("mov dword ptr gs:[0xc], {0:e}", in(reg) own, options(nostack, preserves_flags));
        }
        #[cfg(not(any(target_arch = "x86_64", target_arch = "x86")))]
        let _ = own;
    }
}

/// That thread is about to end, and glibc will take it off. By a thread of the program's, too.
pub fn count_again() {
    // SAFETY: as above.
    if let Some(count) = unsafe { COUNT.load(Relaxed).as_ref() } {
        count.fetch_add(1, Relaxed);
    }
}

/// Names this thread at no cost, among those that live. A signal handler has the name of the thread
/// that it interrupted.
#[inline]
pub fn name() -> usize {
    // SAFETY: always valid, and one per thread.
    unsafe { libc::__errno_location() as usize }
}
