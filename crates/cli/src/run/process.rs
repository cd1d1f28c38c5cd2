//! The system calls behind `shunt run`: signals, process ends, and who is still there.
// UNSAFETY: calls libc.
#![allow(unsafe_code)]

use std::ffi::CString;
use std::fs;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use crate::report::Ended;

pub type Pid = libc::pid_t;
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

/// Whether this user may execute the file.
pub fn may_execute(path: &Path) -> bool {
    let Ok(path) = CString::new(path.as_os_str().as_bytes()) else { return false };
    // SAFETY: the string is terminated and lives through the call.
    unsafe { libc::faccessat(libc::AT_FDCWD, path.as_ptr(), libc::X_OK, libc::AT_EACCESS) == 0 }
}

/// Gives the program the SIGPIPE setting that `shunt` was started with.
pub fn inherit_sigpipe(command: &mut Command) {
    if SIGPIPE_WAS_IGNORED.load(Relaxed) {
        // SAFETY: `signal` may be called between fork and exec.
        unsafe {
            command.pre_exec(|| {
                libc::signal(libc::SIGPIPE, libc::SIG_IGN);
                Ok(())
            })
        };
    }
}

/// The signals that `Waiter` takes, blocked in this process from now on.
pub struct Signals {
    blocked: libc::sigset_t,
    before: libc::sigset_t,
}

/// What happened.
pub enum Event {
    /// Somebody sent this to us alone, or we cannot tell that the program had it too.
    Forward(Signal),
    Child,
    Nothing,
}

impl Signals {
    pub fn block() -> io::Result<Signals> {
        let mut blocked = empty_set();
        for signal in FORWARDED.iter().chain(&[libc::SIGCHLD]) {
            // SAFETY: the set is initialised.
            unsafe { libc::sigaddset(&mut blocked, *signal) };
        }
        let mut before = empty_set();
        // SAFETY: both sets are initialised.
        check(unsafe { libc::sigprocmask(libc::SIG_BLOCK, &blocked, &mut before) })?;
        Ok(Signals { blocked, before })
    }

    /// The child starts with the mask that `shunt` was started with, and dies with `shunt`: who
    /// kills what he takes for the program shall find it gone.
    pub fn prepare(&self, command: &mut Command) {
        let before = self.before;
        let parent = std::process::id() as Pid;
        // SAFETY: all three calls may be made between fork and exec.
        unsafe {
            command.pre_exec(move || {
                check(libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL))?;
                if libc::getppid() != parent {
                    libc::raise(libc::SIGKILL);
                }
                check(libc::sigprocmask(libc::SIG_SETMASK, &before, ptr::null_mut())).map(drop)
            })
        };
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

fn empty_set() -> libc::sigset_t {
    let mut set = MaybeUninit::zeroed();
    // SAFETY: writes a set to valid memory.
    unsafe { libc::sigemptyset(set.as_mut_ptr()) };
    // SAFETY: initialised by zeroes and by `sigemptyset`.
    unsafe { set.assume_init() }
}

/// What a child did.
pub enum Change {
    Ended(Pid, Ended),
    Stopped(Pid, Signal),
    Other,
}

/// The next thing that any child did, if one did.
pub fn next_change() -> Option<Change> {
    let mut status = 0;
    // SAFETY: the status goes to valid memory.
    let pid = unsafe { libc::waitpid(-1, &mut status, libc::WNOHANG | libc::WUNTRACED) };
    if pid <= 0 {
        return None;
    }
    Some(if libc::WIFEXITED(status) {
        Change::Ended(pid, Ended::Status(libc::WEXITSTATUS(status)))
    } else if libc::WIFSIGNALED(status) {
        Change::Ended(pid, Ended::Signal(libc::WTERMSIG(status)))
    } else if libc::WIFSTOPPED(status) {
        Change::Stopped(pid, libc::WSTOPSIG(status))
    } else {
        Change::Other
    })
}

pub fn send(pid: Pid, signal: Signal) {
    // SAFETY: no memory is involved.
    unsafe { libc::kill(pid, signal) };
}

/// Stops this process as the terminal stopped the program, so that the shell sees it.
pub fn stop_self() {
    // SAFETY: no memory is involved.
    unsafe { libc::raise(libc::SIGSTOP) };
}

/// Descendants whose parents end become our children, so that we know of them.
pub fn adopt_orphans() {
    // SAFETY: no memory is involved.
    unsafe { libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1) };
}

/// Ends this process as the program ended.
pub fn end_as(ended: Ended) -> ! {
    if let Ended::Signal(signal) = ended {
        let no_core = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        let mut one = empty_set();
        // SAFETY: the arguments are initialised and live through the calls. The program's core, if
        // it left one, shall not be overwritten by ours.
        unsafe {
            libc::setrlimit(libc::RLIMIT_CORE, &no_core);
            libc::signal(signal, libc::SIG_DFL);
            libc::sigaddset(&mut one, signal);
            libc::raise(signal);
            libc::sigprocmask(libc::SIG_UNBLOCK, &one, ptr::null_mut());
        }
    }
    std::process::exit(match ended {
        Ended::Status(status) => status,
        Ended::Signal(signal) => 128 + signal,
    })
}

/// All descendants of `roots` that run now, the roots included.
pub fn descendants(roots: &[Pid]) -> Vec<Pid> {
    let parents: Vec<(Pid, Pid)> = running().filter_map(|pid| Some((pid, parent(pid)?))).collect();
    let is_there = |pid: &Pid| parents.iter().any(|(child, _)| child == pid);
    let mut family: Vec<Pid> = roots.iter().copied().filter(is_there).collect();
    let mut next = 0;
    while let Some(&one) = family.get(next) {
        let children = parents.iter().filter(|(_, parent)| *parent == one).map(|(child, _)| *child);
        let new: Vec<Pid> = children.filter(|child| !family.contains(child)).collect();
        family.extend(new);
        next += 1;
    }
    family
}

fn running() -> impl Iterator<Item = Pid> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

/// The parent of a process that has not ended.
fn parent(pid: Pid) -> Option<Pid> {
    let mut fields = stat_fields(pid)?.into_iter();
    let state = fields.next()?;
    (state != "Z" && state != "X").then(|| fields.next()?.parse().ok())?
}

/// When the process started, in clock ticks after boot.
pub fn start_time(pid: Pid) -> Option<u64> {
    stat_fields(pid)?.get(19)?.parse().ok()
}

/// The fields of `/proc/PID/stat` from the state on; the name before it may hold anything.
fn stat_fields(pid: Pid) -> Option<Vec<String>> {
    let text = fs::read(format!("/proc/{pid}/stat")).ok()?;
    let text = String::from_utf8_lossy(&text);
    Some(text.rsplit_once(") ")?.1.split_ascii_whitespace().map(str::to_owned).collect())
}

/// Sleeps until one of the processes ends or a file appears in the directory.
pub fn wait_for_end_of_any(pids: &[Pid], or_new_file_in: &OwnedFd) -> io::Result<()> {
    let handles: Vec<OwnedFd> = pids.iter().filter_map(|pid| open_process(*pid)).collect();
    if handles.len() < pids.len() {
        return Ok(());
    }
    let mut waits: Vec<libc::pollfd> = (handles.iter().chain([or_new_file_in]))
        .map(|fd| libc::pollfd { fd: fd.as_raw_fd(), events: libc::POLLIN, revents: 0 })
        .collect();
    // SAFETY: the array is valid for its length.
    check(unsafe { libc::poll(waits.as_mut_ptr(), waits.len() as libc::nfds_t, -1) })?;
    let mut events = [0u8; 4096];
    // SAFETY: the buffer is valid for its length; the descriptor does not block.
    unsafe { libc::read(or_new_file_in.as_raw_fd(), events.as_mut_ptr().cast(), events.len()) };
    Ok(())
}

fn open_process(pid: Pid) -> Option<OwnedFd> {
    // SAFETY: no memory is involved.
    let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) } as libc::c_int;
    // SAFETY: a new descriptor that nobody else owns.
    (fd >= 0).then(|| unsafe { OwnedFd::from_raw_fd(fd) })
}

/// A descriptor that is readable when a file was made in the directory.
pub fn watch_new_files(directory: &Path) -> io::Result<OwnedFd> {
    // SAFETY: no memory is involved.
    let fd = check(unsafe { libc::inotify_init1(libc::IN_CLOEXEC | libc::IN_NONBLOCK) })?;
    // SAFETY: a new descriptor that nobody else owns.
    let watch = unsafe { OwnedFd::from_raw_fd(fd) };
    let path = CString::new(directory.as_os_str().as_bytes())?;
    // SAFETY: the string is terminated and lives through the call.
    check(unsafe { libc::inotify_add_watch(fd, path.as_ptr(), libc::IN_CREATE) })?;
    Ok(watch)
}

/// Puts the command into a session of its own, so that what ends the caller's does not reach it.
pub fn in_own_session(command: &mut Command) {
    // SAFETY: `setsid` may be called between fork and exec.
    unsafe { command.pre_exec(|| check(libc::setsid()).map(drop)) };
}

fn check(result: libc::c_int) -> io::Result<libc::c_int> {
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(result)
}
