//! fork, exec, and descriptors that other processes hold too.
//!
//! | event | what happens |
//! |---|---|
//! | fork | the parent keeps its streams on the ring; the child's copies are marked `Inherited` |
//! | the child closes an inherited stream | nothing but the close |
//! | the child uses one | the parent's service thread takes it back to TCP; the child waits for it |
//! | the parent is killed meanwhile | a child that uses the stream sends by TCP what the parent had still to send |
//! | the parent closes one that the child holds | taken back to TCP first; the child has it alone |
//! | the owner stops itself, or a child stops it | taken back to TCP first |
//! | the child uses an inherited epoll set | as a stream: its streams go back to TCP, and it is the kernel's |
//! | exec, death | the link's control channel closes; the peer finishes both directions by itself |

use core::sync::atomic::{AtomicBool, Ordering::*};

use shunt_os::handles;
use shunt_stats::Reason;

use crate::pool::{self, Mode, Socket};
use crate::table::{self, Entry};
use crate::{attach, process, service, wait};

mod bequest;
mod exec;
mod fork;
mod kin;
mod stop;

pub use bequest::{digest, read_bequest, Image};
pub use exec::{after_failed_exec, before_exec, before_exec_in_place};
pub use fork::{bare_fork, be_first_at_fork, begin_child, fork, no_fork, watch_children};
pub use kin::Kin;
pub use stop::before_signal;

/// Whether no other process that we know of holds the stream.
pub fn is_sole_holder(socket: &Socket) -> bool {
    socket.kin.is_sole_holder()
}

/// Whether another process that we know of held the stream at any time.
pub fn was_shared(socket: &Socket) -> bool {
    socket.kin.was_shared()
}

/// This process ends without a close: what it inherited or shared is the others'. It may be in a
/// signal handler.
pub fn exiting() {
    if !process::enabled() || process::in_vfork_child() {
        return;
    }
    if kin::is_there() {
        wait::epoll::leave_to_others_at_end();
    }
    attach::settle_before_end();
    attach::reset_unread();
    if kin::is_there() {
        // What is not settled is as of a process that is killed: an heir does it.
        pool::try_each(|socket| match attach::is_settled(socket) {
            true => attach::let_go_at_end(socket),
            false => socket.kin.leave_behind(),
        });
        wait::epoll::try_each(|_, set| _ = set.kin.let_go());
    }
}

/// Options under which a stream must stay on TCP: who set them watches what only TCP shows.
pub fn has_strange_options(fd: i32) -> bool {
    const SO_ZEROCOPY: i32 = 60;
    const SO_TIMESTAMPING: i32 = 37;
    const TCP_REPAIR: i32 = 19;
    [SO_ZEROCOPY, SO_TIMESTAMPING].iter().any(|name| is_on(fd, libc::SOL_SOCKET, *name))
        || is_on(fd, libc::IPPROTO_TCP, TCP_REPAIR)
        || handles::option_int(fd, libc::SOL_SOCKET, libc::SO_RCVLOWAT).is_ok_and(|bytes| bytes > 1)
        || handles::option_int(fd, libc::SOL_SOCKET, libc::SO_PEEK_OFF).is_ok_and(|at| at >= 0)
}

fn is_on(fd: i32, level: i32, name: i32) -> bool {
    handles::option_int(fd, level, name).is_ok_and(|value| value != 0)
}

/// A stream that was accepted has those of its listener that [`note_options`] notes.
pub fn take_options(socket: &Socket, listener: &Socket) {
    let take = |own: &AtomicBool, from: &AtomicBool| {
        if from.load(Relaxed) {
            own.store(true, Relaxed);
        }
    };
    take(&socket.messages_tell_times, &listener.messages_tell_times);
    take(&socket.messages_tell_unread, &listener.messages_tell_unread);
    take(&socket.is_corked, &listener.is_corked);
}

/// Notes the options with which `recvmsg` tells more than bytes, and sends are held back: another program, or a
/// listener, may have set them.
pub fn note_options(socket: &Socket, fd: i32) {
    const SO_TIMESTAMP: [i32; 4] = [29, 35, 63, 64];
    const TCP_INQ: i32 = 36;
    let tells_times = SO_TIMESTAMP.iter().any(|name| is_on(fd, libc::SOL_SOCKET, *name));
    socket.messages_tell_times.fetch_or(tells_times, Relaxed);
    socket.messages_tell_unread.store(is_on(fd, libc::IPPROTO_TCP, TCP_INQ), Relaxed);
    socket.is_corked.store(is_on(fd, libc::IPPROTO_TCP, libc::TCP_CORK), Relaxed);
}

/// The child is about to use a stream that its parent has on a ring: it goes back to TCP.
#[cold]
pub fn touch(index: u32) {
    let socket = pool::get(index);
    if socket.mode() != Mode::Inherited {
        return;
    }
    let errno = shunt_os::errno();
    let by_owner = socket.kin.ask_owner();
    if !by_owner {
        socket.kin.act_for_dead_owner(|| attach::finish_for_dead_writer(socket));
    }
    attach::take_up_remains(socket, by_owner || !shunt_os::raw::runs(socket.kin.owner()));
    if by_owner {
        // The owner has given the kernel its registrations back, as they are by now.
        wait::epoll::disown_all(socket);
    } else {
        wait::epoll::release_all(socket);
    }
    if socket.kin.was_reset() {
        attach::owe_reset(socket);
    }
    socket.pinned.store(true, Relaxed);
    socket.set_mode(Mode::Left);
    process::count(Reason::ForkChild);
    shunt_os::set_errno(errno);
}

/// In the parent's service thread: children asked for streams or sets.
pub fn answer_children(bell: i32) {
    handles::silence(bell);
    let mut asked = pool::chosen(|it| it.mode() != Mode::Inherited && it.kin.is_asked_for());
    let undone = attach::leave_soon(&asked, Reason::SharedWithOtherProcess);
    let mut again = !undone.is_empty();
    wait::epoll::each(|index, set| {
        again |= set.kin.is_asked_for() && !wait::epoll::leave_set_soon(index);
    });
    if again {
        // Again, after whatever else there is to do.
        handles::ring(bell);
    }
    asked.retain(|index| !undone.contains(index));
    for index in asked {
        let socket = pool::get(index);
        if let (Some(service), true) = (service::running(), attach::is_resending(socket)) {
            service.watch_full(index, socket.generation.load(Relaxed));
        } else {
            share_with_others(socket);
        }
    }
}

/// A while after [`answer_children`], in the service thread: a child's bytes come behind those that were in the ring, so
/// it waits until the kernel has taken all of these. True if it must be looked at again.
pub fn is_to_be_answered(socket: &'static Socket) -> bool {
    if !socket.kin.is_asked_for() {
        return false;
    }
    if attach::is_down(socket) {
        share_with_others(socket);
        return false;
    }
    attach::is_resending(socket)
}

/// A stream has left its ring for whoever else holds it.
fn share_with_others(socket: &'static Socket) {
    attach::share_remains(socket);
    announce_on_tcp(socket);
}

/// Marks a stream as being on TCP for whoever else holds it.
pub fn announce_on_tcp(socket: &Socket) {
    socket.kin.announce();
}

/// A descriptor goes to another process, which may be a stranger.
pub fn before_passing(fd: i32) {
    let Entry::Socket(index) = table::get(fd) else { return leave_to_kernel(fd) };
    let socket = pool::get(index);
    // It counts as given away from here on.
    let is_sole = is_sole_holder(socket);
    leave_to_kernel(fd);
    if is_sole {
        attach::reset_if_stranded(socket);
    }
}

/// Somebody is about to have a descriptor who knows what the kernel tells of it, and no more.
pub fn leave_to_kernel(fd: i32) {
    if let Entry::Set(set) = table::get(fd) {
        wait::epoll::share(set);
        wait::epoll::leave_set(set, Reason::PassedDescriptor);
    }
    if let Entry::Socket(index) = table::get(fd) {
        let socket = pool::get(index);
        socket.kin.note_passed();
        match socket.mode() {
            Mode::Plain | Mode::Attached => attach::leave(index, Reason::PassedDescriptor),
            Mode::Inherited => touch(index),
            _ => {}
        }
    }
}
