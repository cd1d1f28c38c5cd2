//! Where actors come from: a process that was started once, with the library or without it, and
//! is forked for each program. That is some ten times faster than starting anew.

use crate::actor::{self, Controls, Table, SETS, SLOTS};
use crate::protocol::{hear_as, say};
use serde::{Deserialize, Serialize};
use shunt_differential::calls::{io, process, socket, Fd};
use shunt_differential::fast_path;
use std::cell::Cell;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

#[derive(Serialize, Deserialize)]
enum Request {
    /// Four descriptors follow.
    Fork,
    /// Wait for every process that came of the forks; all have been ended.
    Reap,
}

/// The conductor's view of one such process.
pub struct Server {
    control: OwnedFd,
    child: Child,
}

/// The sockets of one process, as the conductor holds them.
pub struct Ends {
    pub own: OwnedFd,
    pub thread: OwnedFd,
    pub child: OwnedFd,
}

#[allow(unsafe_code)] // UNSAFETY: takes ownership of descriptors that were just made.
pub fn owned(fd: Fd) -> OwnedFd {
    // SAFETY: the caller has just made the descriptor and uses it no more.
    unsafe { OwnedFd::from_raw_fd(fd) }
}

pub fn pair() -> (OwnedFd, OwnedFd) {
    let (one, other) = socket::socketpair(libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC);
    (owned(one), owned(other))
}

impl Server {
    /// `library` and the directory for counters; nothing starts it plain.
    pub fn start(library: Option<(&Path, &Path)>, ring_bytes: u32) -> Server {
        let (control, theirs) = pair();
        let mut command = Command::new("/proc/self/exe");
        command.arg("--serve").stdin(Stdio::from(theirs)).env_remove("LD_PRELOAD");
        command.env_remove("SHUNT_REPORT_DIR").env_remove("SHUNT_RING_BYTES");
        if let Some((library, reports)) = library {
            command.env("LD_PRELOAD", library).env("SHUNT_REPORT_DIR", reports);
            command.env("SHUNT_RING_BYTES", ring_bytes.to_string());
        }
        let child = command.spawn().expect("this binary starts");
        Server { control, child }
    }

    /// A fresh process with both actors; `pass` is its half of the way to the other process.
    pub fn fork(&self, pass: OwnedFd) -> Ends {
        let (own, thread, child) = (pair(), pair(), pair());
        say(self.control.as_raw_fd(), &Request::Fork);
        for theirs in [own.1, thread.1, child.1, pass] {
            io::pass_descriptor(self.control.as_raw_fd(), theirs.as_raw_fd()).value("pass");
        }
        Ends { own: own.0, thread: thread.0, child: child.0 }
    }

    pub fn reap(&self) {
        say(self.control.as_raw_fd(), &Request::Reap);
        hear_as::<()>(self.control.as_raw_fd());
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        socket::shutdown(self.control.as_raw_fd(), libc::SHUT_RDWR);
        // It ends by itself; there is nothing to do about a failure.
        let _ = self.child.wait();
    }
}

/// All servers of one job, and the directory where the library counts.
pub struct Servers {
    pub plain: Server,
    /// By the size of rings.
    pub accelerated: Vec<(u32, Server)>,
    pub reports: PathBuf,
    /// What a call may take. It is far above what any takes, and only ends what hangs.
    pub watchdog: Cell<Duration>,
    /// Every step and what it saw is printed.
    pub shows: Cell<bool>,
}

pub const WATCHDOG: Duration = Duration::from_secs(20);
pub const RING_BYTES: [u32; 3] = [4 << 20, 1 << 14, 1 << 12];

impl Servers {
    pub fn start(library: &Path, job: usize) -> Servers {
        let reports = fast_path::place().join(format!("shunt-fuzz-{}-{job}", process::pid()));
        std::fs::create_dir_all(&reports).expect("a directory for counters");
        let start = |bytes| (bytes, Server::start(Some((library, &reports)), bytes));
        let accelerated = RING_BYTES.into_iter().map(start).collect();
        let watchdog = Cell::new(WATCHDOG);
        Servers {
            plain: Server::start(None, 0),
            accelerated,
            reports,
            watchdog,
            shows: Cell::new(false),
        }
    }

    pub fn with_rings_of(&self, bytes: u32) -> &Server {
        let found = self.accelerated.iter().find(|(size, _)| *size == bytes);
        &found.unwrap_or(&self.accelerated[0]).1
    }

    /// Counters of the last program are of no use to the next.
    pub fn forget_counters(&self) {
        for entry in std::fs::read_dir(&self.reports).into_iter().flatten().flatten() {
            // One that stays is only looked at once more.
            let _ = std::fs::remove_file(entry.path());
        }
    }
}

impl Drop for Servers {
    fn drop(&mut self) {
        // Nothing depends on it: the directory is in a temporary place.
        let _ = std::fs::remove_dir_all(&self.reports);
    }
}

/// `--serve`: forks actors until the conductor is gone.
pub fn serve() -> i32 {
    adopt_orphans();
    process::end_with_parent();
    while let Some(request) = hear_as::<Request>(0) {
        match request {
            Request::Reap => {
                while process::wait_for(-1) != "errno 10" {}
                say(0, &());
            }
            Request::Fork => {
                let [own, thread, child, pass] =
                    [(); 4].map(|()| io::take_descriptor(0).fd("a control socket"));
                let controls = Controls { own, thread, child, pass };
                process::fork(|| {
                    socket::close(0);
                    socket::open_null();
                    actor::play(Table {
                        slots: [None; SLOTS],
                        sets: [None; SETS],
                        listener: None,
                        controls,
                    })
                });
                for fd in [own, thread, child, pass] {
                    socket::close(fd);
                }
            }
        }
    }
    0
}

/// Children that outlive their parents are waited for here.
#[allow(unsafe_code)] // UNSAFETY: one call that changes an attribute of this process.
fn adopt_orphans() {
    // SAFETY: the call takes no pointers.
    unsafe { libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1) };
}
