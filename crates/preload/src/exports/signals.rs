//! Signal dispositions: ours stands before the program's handlers (`os::handlers`). And signals that stop a process,
//! which may have streams that others are to use meanwhile.

use core::ffi::c_int;
use core::mem::MaybeUninit;

use libc::{pid_t, pthread_t, sigaction as Action, sighandler_t};
use shunt_os::{handlers, real};
use shunt_sockets::calls::process as calls;
use shunt_sockets::process;

use crate::boundary::before;

#[no_mangle]
pub unsafe extern "C" fn sigaction(signal: c_int, new: *const Action, old: *mut Action) -> c_int {
    let mut was = MaybeUninit::<Action>::zeroed();
    let mut result = -1;
    let mut ask = |new: *const Action| {
        result = unsafe { real::sigaction(signal, new, was.as_mut_ptr()) };
        if result == 0 {
            unsafe { (*was.as_ptr()).sa_sigaction }
        } else {
            libc::SIG_ERR
        }
    };
    let shown = if new.is_null() || process::in_vfork_child() {
        handlers::shown(signal, ask(new))
    } else {
        let mut action = unsafe { new.read() };
        handlers::set(signal, action.sa_sigaction, action.sa_flags, |disposition| {
            action.sa_sigaction = disposition;
            ask(&raw const action)
        })
    };
    if result == 0 && !old.is_null() {
        unsafe {
            old.write(was.assume_init());
            (*old).sa_sigaction = shown;
        }
    }
    result
}

#[no_mangle]
pub unsafe extern "C" fn __sigaction(signal: c_int, new: *const Action, old: *mut Action) -> c_int {
    unsafe { sigaction(signal, new, old) }
}

/// For the older forms, which name a function alone.
macro_rules! by_function {
    ($($name:ident),*) => { $(
        #[no_mangle]
        pub unsafe extern "C" fn $name(signal: c_int, handler: sighandler_t) -> sighandler_t {
            let ask = |disposition| unsafe { real::$name(signal, disposition) };
            if process::in_vfork_child() {
                return handlers::shown(signal, ask(handler));
            }
            let was = handlers::set(signal, handler, 0, ask);
            // They do not say which flags they set.
            handlers::note_flags(signal);
            was
        }
    )* };
}

by_function!(signal, bsd_signal, ssignal, sysv_signal, __sysv_signal, sigset);

#[no_mangle]
pub unsafe extern "C" fn siginterrupt(signal: c_int, interrupts: c_int) -> c_int {
    let result = unsafe { real::siginterrupt(signal, interrupts) };
    if result == 0 && !process::in_vfork_child() {
        handlers::note_flags(signal);
    }
    result
}

/// For whoever sends a signal to `$process`: by that number, as kill(2) takes it.
macro_rules! may_stop {
    ($($name:ident($($argument:ident: $kind:ty),*) of $process:expr;)*) => { $(
        #[no_mangle]
        pub unsafe extern "C" fn $name($($argument: $kind,)* signal: c_int) -> c_int {
            before(|| calls::before_signal($process, signal));
            unsafe { real::$name($($argument,)* signal) }
        }
    )* };
}

may_stop! {
    raise() of process::pid();
    pthread_kill(thread: pthread_t) of process::pid();
    kill(process: pid_t) of process;
    killpg(group: pid_t) of -group;
    tgkill(process: pid_t, _thread: pid_t) of process;
}

#[no_mangle]
pub unsafe extern "C" fn gsignal(signal: c_int) -> c_int {
    unsafe { raise(signal) }
}
