//! Sections in which a signal handler of the program's must not run on this thread: it might use what
//! the section is changing, and would wait for its own thread. A signal that comes there is put off
//! until the section ends (`handlers`), mostly some hundred nanoseconds later; an answer of `epoll_wait` is one, of
//! as many streams as there is room for. No section lasts for a sleep.
//!
//! To enter and to leave are two or three instructions on a word of the thread's, in the static part of
//! its thread-local storage: the library is loaded at start, and a handler must not find it unmade.

use core::ptr::null_mut;
use core::sync::atomic::{compiler_fence, Ordering::SeqCst};

use libc::timespec;

use crate::handlers::Deferred;

/// What each thread has.
#[repr(C)]
pub struct Thread {
    /// How many sections it is in; [`DEFERRED`] if a signal waits for the last one's end.
    depth: u32,
    handled: Handled,
    /// The signal that waits.
    pub deferred: Deferred,
    /// How long the sleep may be that the thread is about to begin; null if it is not.
    limit: *mut timespec,
    /// The fork that it has prepared last, or 0.
    fork: u32,
}

/// How many handlers of the program's have interrupted what a thread does, modulo 2^32: one that runs within another
/// has interrupted that.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
#[repr(C)]
pub struct Handled {
    pub all: u32,
    /// Those set without SA_RESTART.
    pub interrupting: u32,
}

const DEFERRED: u32 = 1 << 31;

#[cfg(all(target_arch = "x86_64", not(miri)))]
mod local {
    use super::Thread;
    use core::arch::{asm, global_asm};

    global_asm!(
        ".section .tbss.shunt_thread,\"awT\",@nobits",
        ".globl shunt_thread",
        ".hidden shunt_thread",
        ".type shunt_thread,@object",
        ".size shunt_thread,{size}",
        ".p2align 4",
        "shunt_thread:",
        ".zero {size}",
        ".text",
        size = const size_of::<Thread>(),
    );

    #[inline(always)]
    pub fn thread() -> *mut Thread {
        let at: *mut Thread;
        // SAFETY: the address of the calling thread's own block (ELF TLS, initial-exec model).
        unsafe {
            asm!(
                "mov {at}, qword ptr [rip + shunt_thread@GOTTPOFF]",
                "add {at}, qword ptr fs:[0]",
                at = out(reg) at,
                options(pure, readonly, nostack, preserves_flags)
            );
        }
        at
    }

    /// One instruction, so that no handler comes between.
    #[inline(always)]
    pub fn enter() {
        // SAFETY: a word of the calling thread's own. What follows is not moved before it.
        unsafe {
            asm!(
                "mov {offset}, qword ptr [rip + shunt_thread@GOTTPOFF]",
                "inc dword ptr fs:[{offset}]",
                offset = out(reg) _,
                options(nostack)
            );
        }
    }

    /// Returns what is left.
    #[inline(always)]
    pub fn leave() -> u32 {
        let left: u32;
        // SAFETY: as in `enter`. What came before is not moved behind it.
        unsafe {
            asm!(
                "mov {offset}, qword ptr [rip + shunt_thread@GOTTPOFF]",
                "dec dword ptr fs:[{offset}]",
                "mov {left:e}, dword ptr fs:[{offset}]",
                offset = out(reg) _,
                left = out(reg) left,
                options(nostack)
            );
        }
        left
    }
}

#[cfg(all(target_arch = "x86", not(miri)))]
mod local {
    use super::Thread;
    use core::arch::{asm, global_asm};

    global_asm!(
        ".section .tbss.shunt_thread,\"awT\",@nobits",
        ".globl shunt_thread",
        ".hidden shunt_thread",
        ".type shunt_thread,@object",
        ".size shunt_thread,{size}",
        ".p2align 4",
        "shunt_thread:",
        ".zero {size}",
        ".text",
        size = const size_of::<Thread>(),
    );

    /// From the thread pointer. The loader has put it in the table of addresses, which is found from that
    /// of the next instruction: there are no addresses relative to it.
    #[inline(always)]
    fn offset() -> usize {
        let offset: usize;
        // SAFETY: a word of the table that does not change.
        unsafe {
            asm!(
                "call 2f",
                "2: popl {offset}",
                "addl $_GLOBAL_OFFSET_TABLE_ + (. - 2b), {offset}",
                "movl shunt_thread@GOTNTPOFF({offset}), {offset}",
                offset = out(reg) offset,
                options(att_syntax, pure, nomem)
            );
        }
        offset
    }

    #[inline(always)]
    pub fn thread() -> *mut Thread {
        let base: usize;
        // SAFETY: the thread pointer, which lies where it points to (ELF TLS, initial-exec model).
        unsafe {
            asm!(
                "mov {base}, dword ptr gs:[0]",
                base = out(reg) base,
                options(pure, readonly, nostack, preserves_flags)
            );
        }
        base.wrapping_add(offset()) as *mut Thread
    }

    /// One instruction, so that no handler comes between.
    #[inline(always)]
    pub fn enter() {
        // SAFETY: a word of the calling thread's own. What follows is not moved before it.
        unsafe {
            asm!(
                "inc dword ptr gs:[{offset}]",
                offset = in(reg) offset(),
                options(nostack)
            );
        }
    }

    /// Returns what is left.
    #[inline(always)]
    pub fn leave() -> u32 {
        let left: u32;
        // SAFETY: as in `enter`. What came before is not moved behind it.
        unsafe {
            asm!(
                "dec dword ptr gs:[{offset}]",
                "mov {left}, dword ptr gs:[{offset}]",
                offset = in(reg) offset(),
                left = out(reg) left,
                options(nostack)
            );
        }
        left
    }
}

#[cfg(not(all(any(target_arch = "x86_64", target_arch = "x86"), not(miri))))]
mod local {
    use super::Thread;
    use core::cell::UnsafeCell;
    use core::sync::atomic::{compiler_fence, Ordering::SeqCst};

    thread_local! {
        static THREAD: UnsafeCell<Thread> = const { UnsafeCell::new(Thread::NEW) };
    }

    pub fn thread() -> *mut Thread {
        THREAD.with(UnsafeCell::get)
    }

    /// A handler that runs in between leaves the count as it found it.
    pub fn enter() {
        // SAFETY: the calling thread's own.
        unsafe { (&raw mut (*thread()).depth).write_volatile((*thread()).depth + 1) };
        compiler_fence(SeqCst);
    }

    pub fn leave() -> u32 {
        compiler_fence(SeqCst);
        // SAFETY: as above.
        unsafe {
            (&raw mut (*thread()).depth).write_volatile((*thread()).depth - 1);
            (&raw const (*thread()).depth).read_volatile()
        }
    }
}

#[cfg(not(all(any(target_arch = "x86_64", target_arch = "x86"), not(miri))))]
impl Thread {
    const NEW: Thread = Thread {
        depth: 0,
        handled: Handled { all: 0, interrupting: 0 },
        deferred: Deferred::NONE,
        limit: null_mut(),
        fork: 0,
    };
}

/// From here to [`leave`], handlers wait.
#[inline(always)]
pub fn enter() {
    local::enter();
}

/// Ends what [`enter`] began; if it was the outermost section, what waited runs before the return.
#[inline(always)]
pub fn leave() {
    if local::leave() == DEFERRED {
        end_deferral();
    }
}

/// From here to its end, handlers wait.
pub struct Section(());

impl Section {
    #[inline(always)]
    pub fn begin() -> Section {
        enter();
        Section(())
    }
}

impl Drop for Section {
    #[inline(always)]
    fn drop(&mut self) {
        leave();
    }
}

#[cold]
fn end_deferral() {
    // SAFETY: the calling thread's own; every signal is blocked until they are let in again.
    let thread = unsafe { &mut *local::thread() };
    thread.depth = 0;
    let mut deferred = core::mem::replace(&mut thread.deferred, Deferred::NONE);
    deferred.send();
}

/// The handlers that the calling thread has run so far, as far as they were set through libc.
pub fn handled() -> Handled {
    // SAFETY: the calling thread's own; a handler changes it between two instructions at most.
    unsafe { (&raw const (*local::thread()).handled).read_volatile() }
}

/// Notes which fork the calling thread has prepared; returns what was noted before. A handler that forks leaves the
/// note as it found it.
pub fn swap_fork(number: u32) -> u32 {
    // SAFETY: the calling thread's own.
    let noted = unsafe { &mut (*local::thread()).fork };
    core::mem::replace(noted, number)
}

/// Makes a call that sleeps for at most `*limit`, unless the thread has run a handler since it had `before`,
/// and then it is `None`. One that runs from here on ends the sleep: either in it, or by taking the limit away
/// before it begins, where a signal would be missed otherwise (and is only in the few instructions between a
/// copy that libc makes of the limit and the system call).
pub fn sleep_unless_handled<T>(
    before: Handled,
    mut limit: timespec,
    call: impl FnOnce(*const timespec) -> T,
) -> Option<T> {
    let place: *mut *mut timespec = {
        // SAFETY: the calling thread's own.
        unsafe { &raw mut (*local::thread()).limit }
    };
    let at = &raw mut limit;
    // SAFETY: the calling thread's own; a handler writes there as long as `limit` lives.
    unsafe { place.write_volatile(at) };
    compiler_fence(SeqCst);
    let result = (handled() == before).then(|| call(at));
    compiler_fence(SeqCst);
    // SAFETY: as above.
    unsafe { place.write_volatile(null_mut()) };
    result
}

/// The calling thread does not come back from [`sleep_unless_handled`]: it was cancelled in its sleep.
pub fn forget_limit() {
    // SAFETY: the calling thread's own.
    unsafe { (&raw mut (*local::thread()).limit).write_volatile(null_mut()) };
}

/// A handler is about to run. It may not come back to where the thread was (longjmp(3)). Returns what is
/// [handled] once it does.
pub(crate) fn note_handler(restarts: bool) -> Handled {
    end_limit();
    let Handled { all, interrupting } = handled();
    let interrupting = interrupting.wrapping_add(u32::from(!restarts));
    let noted = Handled { all: all.wrapping_add(1), interrupting };
    set_handled(noted);
    noted
}

/// As [`note_handler`], of one that stands before another that has not begun: it is of no account to the call that
/// this one has interrupted.
pub(crate) fn note_handler_on_top() -> Handled {
    end_limit();
    handled()
}

/// A handler has run. Those that came while it ran have interrupted it, and not what it interrupted itself.
pub(crate) fn set_handled(noted: Handled) {
    // SAFETY: the calling thread's own; a handler that interrupts this one has finished by then.
    unsafe { (&raw mut (*local::thread()).handled).write_volatile(noted) };
}

/// The sleep that the thread is about to begin ends at once.
fn end_limit() {
    // SAFETY: the calling thread's own, and what it points to lives while it is not null.
    unsafe {
        let place = &raw mut (*local::thread()).limit;
        let limit = place.read_volatile();
        if !limit.is_null() {
            limit.write_volatile(timespec { tv_sec: 0, tv_nsec: 0 });
            place.write_volatile(null_mut());
        }
    }
}

/// For a handler: where to put the signal off to, if the thread that it interrupted is in a section.
pub(crate) fn interrupted() -> Option<&'static mut Deferred> {
    // SAFETY: the calling thread's own.
    let thread = unsafe { &mut *local::thread() };
    if thread.depth & !DEFERRED == 0 {
        return None;
    }
    thread.depth |= DEFERRED;
    Some(&mut thread.deferred)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_handler_takes_the_limit_of_a_sleep_away_and_leaves_nothing_behind() {
        let limit = timespec { tv_sec: 5, tv_nsec: 7 };
        // SAFETY: the limit of this call.
        let seconds = |at: *const timespec| unsafe { (*at).tv_sec };
        let before = handled();
        assert_eq!(sleep_unless_handled(before, limit, seconds), Some(5));
        let interrupted = |at| {
            note_handler(true);
            seconds(at)
        };
        assert_eq!(sleep_unless_handled(before, limit, interrupted), Some(0));
        assert_eq!(sleep_unless_handled(before, limit, seconds), None, "one has run since");
        // SAFETY: the calling thread's own.
        assert!(unsafe { (*local::thread()).limit.is_null() });
    }

    #[test]
    fn sections_nest_and_end() {
        assert!(interrupted().is_none());
        enter();
        enter();
        leave();
        leave();
        assert!(interrupted().is_none());
    }
}
