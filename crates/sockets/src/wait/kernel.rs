//! The wait of a blocking call that is the kernel's: an accept, or a receive of a stream that is too young for a ring.
//! To sleep costs more than the answers of most peers on one host take, so it looks at the kernel for a moment, if that
//! paid lately, before it makes the genuine call. Short connections end before they come to a ring.

use core::sync::atomic::Ordering::Relaxed;

use shunt_os::critical::{self, Handled};
use shunt_os::{clock, handles};
use shunt_readiness::policy::Policy;

use super::blocking::{spin_until, Spun};
use crate::outcome::Outcome;
use crate::pool::Socket;
use crate::receive::Entering;

/// Looks between two yields of the core. Each is a system call.
const LOOKS: u32 = 16;

/// Of all streams of the process, which live too short to be known by themselves.
pub static RECEIVES: Policy = Policy::new();
pub static ACCEPTS: Policy = Policy::new();

/// Makes the genuine call of a blocking one by `fd`, which finds something when that is readable.
pub fn wait(
    socket: &'static Socket,
    fd: i32,
    policy: &Policy,
    genuine: impl FnOnce() -> isize,
) -> Outcome {
    let limit = policy.spin_ns();
    let before = critical::handled();
    let is_there = || handles::poll_now(fd, libc::POLLIN) != 0;
    if limit > 0 && is_there() {
        return Outcome::Genuine(genuine());
    }
    let began = clock::now_ns();
    let mut found = false;
    // Who closes the number meanwhile lets the call come to its file before.
    let _entering = (limit > 0).then(|| {
        let _held = socket.recv.lock();
        Entering::announce(socket)
    });
    if limit > 0 {
        let stirred = || is_there() || critical::handled() != before;
        match spin_until(policy, began, limit, LOOKS, stirred) {
            Spun::Changed => found = true,
            Spun::LostCore => policy.overloaded(),
            Spun::InVain => policy.in_vain(),
        }
        if critical::handled() != before && ends(before, fd) && !is_there() {
            return Outcome::Failed(libc::EINTR);
        }
    }
    let result = genuine();
    let waited = clock::now_ns() - began;
    if found && waited <= limit {
        policy.caught();
    } else {
        policy.slept(waited);
    }
    Outcome::Genuine(result)
}

/// Whether what the thread has handled since `before` ends the sleep in which it was to the program (signal(7)): a
/// handler without SA_RESTART does, and any if the sleep has a time-out.
fn ends(before: Handled, fd: i32) -> bool {
    critical::handled().interrupting != before.interrupting
        || handles::option_timeout(fd, libc::SO_RCVTIMEO).is_some()
}

/// Whether a call on the socket may sleep.
pub fn may_sleep(socket: &Socket) -> bool {
    !socket.nonblocking.load(Relaxed)
}
