//! Signals between `shunt`, its program and whoever sends them.
// UNSAFETY: calls libc, and runs code between fork and exec.
#![allow(unsafe_code)]

use std::io;
use std::mem::MaybeUninit;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use super::process::{check, Pid};

pub type Signal = libc::c_int;

/// Signals that somebody may send to `shunt` and mean the program.
const FORWARDED: [Signal; 10] = [
    libc::SIGINT,
    libc::SIGTERM,
    libc::SIGHUP,
    libc::SIGQUIT,
    libc::SIGUSR1,
    libc::SIGUSR2,
    libc::SIGALRM,
    libc::SIGWINCH,
    libc::SIGTSTP,
    libc::SIGCONT,
];

static SIGPIPE_WAS_IGNORED: AtomicBool = AtomicBool::new(false);

/// Runs before `main`, because Rust's start-up ignores SIGPIPE and the program shall inherit what
/// `shunt` inherited.
extern "C" fn note_sigpipe() {
    let mut action = MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: a null new action only asks; the old one is written to valid memory.
    let asked = unsafe { libc::sigaction(libc::SIGPIPE, ptr::null(), action.as_mut_ptr()) };
    // SAFETY: zeroed above, so initialised whatever the call did.
    let action = unsafe { action.assume_init() };
    SIGPIPE_WAS_IGNORED.store(asked == 0 && action.sa_sigaction == libc::SIG_IGN, Relaxed);
}

#[used]
#[link_section = ".init_array"]
static NOTE_SIGPIPE: extern "C" fn() = note_sigpipe;

/// Gives the program the SIGPIPE setting that `shunt` was started with.
pub fn inherit_sigpipe(command: &mut Command) {
    let ignore = || {
        if SIGPIPE_WAS_IGNORED.load(Relaxed) {
            set_action(libc::SIGPIPE, libc::SIG_IGN);
        }
        Ok(())
    };
    // SAFETY: `signal` may be called between fork and exec.
    unsafe { command.pre_exec(ignore) };
}

/// The signals that `wait` takes, blocked in this process from now on.
pub struct Signals {
    blocked: libc::sigset_t,
    before: libc::sigset_t,
}

/// What happened.
pub enum Event {
    /// Somebody sent this, to us alone as far as we can tell.
    Forward(Signal),
    Child,
    Nothing,
}

impl Signals {
    pub fn block() -> io::Result<Signals> {
        let blocked = set_of(FORWARDED.iter().chain(&[libc::SIGCHLD]));
        let before = change_mask(libc::SIG_BLOCK, &blocked)?;
        Ok(Signals { blocked, before })
    }

    /// The child starts with the mask that `shunt` was started with, and dies with `shunt`: who
    /// kills what he takes for the program shall find it gone.
    pub fn prepare(&self, command: &mut Command) {
        let before = self.before;
        let shunt = std::process::id() as Pid;
        let prepare = move || {
            die_with_parent()?;
            if parent() != shunt {
                raise(libc::SIGKILL);
            }
            change_mask(libc::SIG_SETMASK, &before).map(drop)
        };
        // SAFETY: all these calls may be made between fork and exec.
        unsafe { command.pre_exec(prepare) };
    }

    pub fn wait(&self) -> Event {
        let mut info = MaybeUninit::<libc::siginfo_t>::zeroed();
        // SAFETY: the set is initialised, and the result goes to valid memory.
        let signal = unsafe { libc::sigwaitinfo(&self.blocked, info.as_mut_ptr()) };
        // SAFETY: zeroed above, so initialised whatever the call did.
        let info = unsafe { info.assume_init() };
        match signal {
            libc::SIGCHLD => Event::Child,
            // A key was pressed: the terminal sent this to the program too.
            _ if info.si_code == libc::SI_KERNEL => Event::Nothing,
            signal if signal > 0 => Event::Forward(signal),
            _ => Event::Nothing,
        }
    }
}

pub fn send(pid: Pid, signal: Signal) {
    // SAFETY: no memory is involved.
    unsafe { libc::kill(pid, signal) };
}

/// Stops this process as the terminal stopped the program, so that the shell sees it.
pub fn stop_self() {
    raise(libc::SIGSTOP);
}

/// Ends this process by the signal, unless the signal ends nobody.
pub fn die_by(signal: Signal) {
    set_action(signal, libc::SIG_DFL);
    raise(signal);
    let _ = change_mask(libc::SIG_UNBLOCK, &set_of([&signal]));
}

fn raise(signal: Signal) {
    // SAFETY: no memory is involved.
    unsafe { libc::raise(signal) };
}

fn parent() -> Pid {
    // SAFETY: no memory is involved.
    unsafe { libc::getppid() }
}

fn die_with_parent() -> io::Result<()> {
    // SAFETY: no memory is involved.
    check(unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) }).map(drop)
}

fn set_action(signal: Signal, action: libc::sighandler_t) {
    // SAFETY: called with SIG_DFL or SIG_IGN, which run no code.
    unsafe { libc::signal(signal, action) };
}

/// Gives the mask before the change.
fn change_mask(how: libc::c_int, set: &libc::sigset_t) -> io::Result<libc::sigset_t> {
    let mut before = set_of([]);
    // SAFETY: both sets are initialised.
    check(unsafe { libc::sigprocmask(how, set, &mut before) })?;
    Ok(before)
}

fn set_of<'a>(signals: impl IntoIterator<Item = &'a Signal>) -> libc::sigset_t {
    let mut set = MaybeUninit::zeroed();
    // SAFETY: writes a set to valid memory.
    unsafe { libc::sigemptyset(set.as_mut_ptr()) };
    // SAFETY: initialised by zeroes and by `sigemptyset`.
    let mut set = unsafe { set.assume_init() };
    for signal in signals {
        // SAFETY: the set is initialised.
        unsafe { libc::sigaddset(&mut set, *signal) };
    }
    set
}
