//! What the programs inherit that `demo` and `bench` start.
// UNSAFETY: runs code between fork and exec, and calls libc.
#![allow(unsafe_code)]

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::AsRawFd;
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdout, Command};
use std::ptr;
use std::time::Duration;

/// The child ends when this process does, however that happens.
pub fn ends_with_us(command: &mut Command) {
    let die = || match prctl_die_with_parent() {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    };
    // SAFETY: `prctl` may be called between fork and exec.
    unsafe { command.pre_exec(die) };
}

fn prctl_die_with_parent() -> libc::c_int {
    // SAFETY: no memory is involved.
    unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) }
}

/// The child runs on the n-th of the cores that this process may use, counted round.
pub fn on_core(command: &mut Command, core: usize) {
    let cores = cores();
    let Some(&core) = cores.get(core % cores.len().max(1)) else { return };
    let pin = move || {
        pin_to(core);
        Ok(())
    };
    // SAFETY: `sched_setaffinity` may be called between fork and exec.
    unsafe { command.pre_exec(pin) };
}

/// The calling thread runs on this core from now on, which the kernel has named, if it still may.
pub fn pin_to(core: usize) {
    let mut set = empty_set();
    // SAFETY: the set is initialised, and the core is one that the kernel named.
    unsafe { libc::CPU_SET(core, &mut set) };
    // SAFETY: the set is initialised and lives through the call.
    unsafe { libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &set) };
}

/// Whether the child closes its output within this time, as it does when it ends. It is ended otherwise,
/// and nothing of it stays behind: no process, and no signal that says that it ended.
pub fn ends_within(mut child: Child, time: Duration) -> bool {
    let ended = child.stdout.take().is_some_and(|output| is_closed_within(&output, time));
    if !ended {
        let _ = child.kill();
    }
    // Where SIGCHLD is ignored, there is nothing to wait for.
    let _ = child.wait();
    let mut set = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: the set is valid memory, which this call initialises.
    unsafe { libc::sigemptyset(set.as_mut_ptr()) };
    // SAFETY: as above.
    unsafe { libc::sigaddset(set.as_mut_ptr(), libc::SIGCHLD) };
    let no_time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: set and time are initialised and live through the call; nobody asks for details.
    unsafe { libc::sigtimedwait(set.as_ptr(), ptr::null_mut(), &no_time) };
    ended
}

fn is_closed_within(output: &ChildStdout, time: Duration) -> bool {
    let mut entry = libc::pollfd { fd: output.as_raw_fd(), events: 0, revents: 0 };
    // SAFETY: one entry.
    let found = unsafe { libc::poll(&mut entry, 1, time.as_millis() as libc::c_int) };
    found == 1 && entry.revents & libc::POLLHUP != 0
}

/// The cores that this process may use.
pub fn cores() -> Vec<usize> {
    let mut set = empty_set();
    // SAFETY: the set is valid memory of the size given.
    unsafe { libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), &mut set) };
    // SAFETY: the set is initialised, and the numbers are within its size.
    (0..libc::CPU_SETSIZE as usize).filter(|core| unsafe { libc::CPU_ISSET(*core, &set) }).collect()
}

fn empty_set() -> libc::cpu_set_t {
    // SAFETY: a set of cores is an array of bits.
    unsafe { MaybeUninit::zeroed().assume_init() }
}

pub fn send(pid: i32, signal: libc::c_int) {
    // SAFETY: no memory is involved.
    unsafe { libc::kill(pid, signal) };
}

pub fn is_root() -> bool {
    // SAFETY: no memory is involved.
    unsafe { libc::geteuid() == 0 }
}

/// This process is ended if it still runs after so many seconds.
pub fn end_after(seconds: f64) {
    // SAFETY: no memory is involved; the signal's usual effect is the end.
    unsafe { libc::alarm(seconds.ceil() as libc::c_uint) };
}

/// A sleep of this thread ends when it should, and not up to 50 us later.
pub fn wake_exactly() {
    const NANOSECOND: libc::c_ulong = 1;
    // SAFETY: no memory is involved.
    unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, NANOSECOND) };
}

/// CPU time of this process with all its threads, in the kernel and outside.
pub fn cpu_seconds() -> f64 {
    let mut usage = MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: the result goes to valid memory.
    unsafe { libc::getrusage(libc::RUSAGE_SELF, usage.as_mut_ptr()) };
    // SAFETY: zeroed above, so initialised whatever the call did.
    let usage = unsafe { usage.assume_init() };
    let seconds = |time: libc::timeval| time.tv_sec as f64 + time.tv_usec as f64 / 1e6;
    seconds(usage.ru_utime) + seconds(usage.ru_stime)
}
