//! Another process takes a descriptor out of this one (pidfd_getfd(2)) and knows nothing of its ring. If it runs under
//! Shunt it comes to our door, a Unix socket by our process number, shows what it took, and waits until the
//! stream is on TCP for good.

use shunt_os::{handles, proc};
use shunt_pairing::rendezvous::door_of;
use shunt_stats::Reason;

use super::offers::close_passed;
use crate::pool::{self, Mode};
use crate::{attach, inherit};

/// How long who comes may take to say what for, and how long we may take to answer, in ns.
const SAYS_NS_MAX: u64 = 20_000_000;
const ANSWERS_NS_MAX: u64 = 2_000_000_000;
/// What is said, either way: one byte.
const WORD: [u8; 1] = *b"L";

/// Opens the door of this process.
pub(super) fn open() -> shunt_os::Result<i32> {
    handles::listen_at(&door_of(shunt_os::raw::getpid()))
}

/// Somebody has come: a process of the same user, who holds a stream of ours.
pub(super) fn answer(door: i32) {
    let Ok(control) = handles::accept_from(door) else { return };
    if is_own_user(control) && says_something(control, SAYS_NS_MAX) {
        let mut buffer = [0u8; WORD.len()];
        if let Ok(received) = handles::receive_message(control, &mut buffer) {
            if received.passed_count == 1 {
                let _ =
                    handles::cookie(received.passed[0]).ok().and_then(pool::of_cookie).map(leave);
            }
            close_passed(&received);
        }
        let _ = handles::send_message(control, &WORD, &[]);
    }
    handles::close(control);
}

/// This process took `fd` out of the one that `pidfd` names: has that leave the ring, if it is on one.
pub fn ask(pidfd: i32, fd: i32) {
    let Some(pid) = proc::of_pidfd(pidfd) else { return };
    let Ok(control) = handles::connect_to(&door_of(pid)) else { return };
    if is_own_user(control) && handles::send_message(control, &WORD, &[fd]).is_ok() {
        says_something(control, ANSWERS_NS_MAX);
    }
    handles::close(control);
}

/// A name is anybody's to take: a descriptor is shown to its owner's user alone.
fn is_own_user(control: i32) -> bool {
    handles::credentials(control).is_ok_and(|who| who.uid == shunt_os::raw::geteuid())
}

fn says_something(control: i32, limit: u64) -> bool {
    let has_come = || handles::poll_now(control, libc::POLLIN) != 0;
    attach::wait_until(limit, has_come);
    has_come()
}

fn leave(index: u32) {
    pool::get(index).kin.note_passed();
    match pool::get(index).mode() {
        Mode::Inherited => inherit::touch(index),
        _ => while !attach::leave_soon(&[index], Reason::PassedDescriptor).is_empty() {},
    }
}
