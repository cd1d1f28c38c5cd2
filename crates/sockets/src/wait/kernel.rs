//! The wait of a blocking call that is the kernel's: an accept, or a receive of a stream that is too young for a ring.
//! To sleep costs more than the answers of most peers on one host take, so it looks at the kernel for a moment, if that
//! paid lately, before it makes the genuine call. Short connections end before they come to a ring.

use shunt_os::{clock, critical, handles, signals};
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
    let before = critical::handled();
    let has_time_out = || handles::option_timeout(fd, libc::SO_RCVTIMEO).is_some();
    // One that comes between the look and the sleep would be lost.
    let is_interrupted = || signals::may_interrupt() || signals::are_handled() && has_time_out();
    let limit = policy.spin_ns();
    if limit == 0 || is_interrupted() {
        let began = clock::now_ns();
        let result = genuine();
        policy.slept(clock::now_ns() - began);
        return Outcome::Genuine(result);
    }
    let is_there = || handles::poll_now(fd, libc::POLLIN) != 0;
    if is_there() {
        return Outcome::Genuine(genuine());
    }
    let began = clock::now_ns();
    // Who closes the number meanwhile lets the call come to its file before.
    let _entering = {
        let _held = socket.recv.lock();
        Entering::announce(socket)
    };
    let has_handled = || critical::handled() != before;
    let spun = spin_until(policy, began, limit, LOOKS, || is_there() || has_handled());
    match spun {
        Spun::Changed => {}
        Spun::LostCore => policy.overloaded(),
        Spun::InVain => policy.in_vain(),
    }
    // To the program it has slept meanwhile (signal(7)): another thread may have set such a handler since.
    if has_handled() && (!signals::restarts(before) || has_time_out()) && !is_there() {
        return Outcome::Failed(libc::EINTR);
    }
    let result = genuine();
    let waited = clock::now_ns() - began;
    if spun == Spun::Changed && waited <= limit {
        policy.caught();
    } else {
        policy.slept(waited);
    }
    Outcome::Genuine(result)
}
