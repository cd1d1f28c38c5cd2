//! Before a process is stopped (SIGSTOP; signal(7)). What it has on rings and shares with others of its family goes
//! to the kernel first: its service, which they would ask for it, is stopped as well.

use shunt_stats::Reason;

use super::{kin, share_with_others, touch};
use crate::pool::{self, Mode};
use crate::{attach, process, wait};

/// A signal is about to be sent to `process`, which is a number as kill(2) takes it.
pub fn before_signal(process: i32, signal: i32) {
    // A program may handle the others, and has lost a ring for nothing then.
    let stops = [libc::SIGSTOP, libc::SIGTSTP, libc::SIGTTIN, libc::SIGTTOU].contains(&signal);
    if stops && kin::is_there() && !process::in_vfork_child() {
        before_stop(process);
    }
}

#[cold]
fn before_stop(process: i32) {
    // Which processes a group has is not asked.
    let is_meant = |it: i32| process <= 0 || process == it;
    let errno = shunt_os::errno();
    if is_meant(process::pid()) {
        let shared = pool::chosen(|it| it.mode() == Mode::Attached && !it.kin.is_sole_holder());
        attach::leave_all(&shared, Reason::SharedWithOtherProcess);
        shared.into_iter().map(pool::get).for_each(share_with_others);
    }
    let inherited = pool::chosen(|it| it.mode() == Mode::Inherited && is_meant(it.kin.owner()));
    inherited.into_iter().for_each(touch);
    wait::epoll::each(|index, set| {
        if is_meant(set.kin.owner()) {
            wait::epoll::take_over(index);
        }
        if is_meant(process::pid()) {
            wait::epoll::leave_to_others(index);
        }
    });
    shunt_os::set_errno(errno);
}
