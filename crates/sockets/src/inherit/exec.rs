//! What a process does before it becomes another program.

use core::sync::atomic::Ordering::*;

use shunt_os::handles;
use shunt_stats::Reason;

use super::bequest::{self, Image};
use super::{announce_on_tcp, is_sole_holder, touch};
use crate::pool::{self, Mode};
use crate::table::{self, Entry};
use crate::{attach, process, wait};

/// Before exec: streams that the new program will hold go back to TCP. Those that exec closes
/// need nothing: the link closes with them.
pub fn before_exec() {
    prepare_exec(None);
}

/// Before this very process becomes another program.
pub fn before_exec_in_place(image: Image) {
    prepare_exec(Some(image));
}

fn prepare_exec(in_place: Option<Image>) {
    if !process::enabled() || !pool::any() {
        return;
    }
    let vfork = process::in_vfork_child();
    let image = in_place.filter(|_| !vfork);
    let heirlooms = image.as_ref().map_or(Vec::new(), |_| bequest::heirlooms());
    if image.is_some() {
        // The new program does not hold them: the other processes of the family may know.
        let closed = closed_by_exec(socket_of);
        attach::settle_before_end();
        // Of this process, which lives on, no child is an heir.
        let is_awaited = |index: &u32| {
            let socket = pool::get(*index);
            !is_sole_holder(socket) && !attach::is_settled(socket)
        };
        let awaited: Vec<u32> = closed.iter().copied().filter(is_awaited).collect();
        attach::leave_all(&awaited, Reason::Exec);
        for index in closed {
            // For a child that has one and has not used it yet.
            let socket = pool::get(index);
            attach::reset_unread_at_exec(socket);
            if socket.mode() != Mode::Inherited {
                announce_on_tcp(socket);
            }
            socket.kin.hold(false);
        }
        // Who has one besides is not told of what closes.
        wait::epoll::each(|index, _| wait::epoll::leave_to_others(index));
        for index in closed_by_exec(set_of) {
            wait::epoll::kin(index).hold(false);
        }
    }
    let (mut leaving, mut left) = (Vec::new(), Vec::new());
    table::each(0, u32::MAX, |fd, entry| {
        let Entry::Socket(index) = entry else { return };
        let socket = pool::get(index);
        if socket.mode() == Mode::Free || !handles::survives_exec(fd) {
            return;
        }
        if image.is_none() {
            // A program that does not tell when it closes it.
            socket.kin.note_passed();
        }
        match socket.mode() {
            // In a vfork child this is the parent's memory: its stream leaves the ring, which is
            // what sharing the descriptor asks for anyway.
            Mode::Attached => leaving.push(index),
            // The parent's service thread runs on, and may be about to put it on a ring. (Its
            // rendezvous is the parent's descriptor: not ours to close.)
            Mode::Plain if vfork => socket.pinned.store(true, SeqCst),
            Mode::Plain => attach::leave(index, Reason::Exec),
            // Of one that is gone nobody can be the heir here.
            Mode::Inherited if !vfork || socket.kin.ask_owner() => touch(index),
            // It left with a set, or long ago: a child that has not used it yet could not ask any more.
            Mode::Left => {
                announce_on_tcp(socket);
                left.push(index);
            }
            _ => {}
        }
    });
    attach::leave_all(&leaving, Reason::Exec);
    if image.is_some() {
        let kept = leaving.iter().chain(&left).map(|index| pool::get(*index));
        kept.filter(|socket| is_sole_holder(socket)).for_each(attach::reset_if_stranded);
    }
    leaving.into_iter().for_each(|index| announce_on_tcp(pool::get(index)));
    if let Some(image) = image {
        bequest::leave(heirlooms, &image);
    }
}

/// The exec that was prepared for did not happen.
pub fn after_failed_exec() {
    if !process::enabled() || !pool::any() || process::in_vfork_child() {
        return;
    }
    bequest::take_back();
    for socket in closed_by_exec(socket_of).into_iter().map(pool::get) {
        attach::unread_stays(socket);
        socket.kin.hold(true);
    }
    closed_by_exec(set_of).into_iter().for_each(|index| wait::epoll::kin(index).hold(true));
}

fn socket_of(entry: Entry) -> Option<u32> {
    match entry {
        Entry::Socket(index) => Some(index),
        _ => None,
    }
}

fn set_of(entry: Entry) -> Option<u32> {
    match entry {
        Entry::Set(index) => Some(index),
        _ => None,
    }
}

/// Sockets, or sets, of which no descriptor survives exec.
fn closed_by_exec(chosen: fn(Entry) -> Option<u32>) -> Vec<u32> {
    let (mut all, mut kept) = (Vec::new(), Vec::new());
    table::each(0, u32::MAX, |fd, entry| {
        let Some(index) = chosen(entry) else { return };
        all.push(index);
        if handles::survives_exec(fd) {
            kept.push(index);
        }
    });
    all.sort_unstable();
    all.dedup();
    all.retain(|index| !kept.contains(index));
    all
}
