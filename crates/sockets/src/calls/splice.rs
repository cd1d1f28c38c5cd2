//! splice(2), which moves pages that a ring does not have: the stream goes back to TCP first.
//! Mostly that is all; what TCP cannot be given again is moved by a pipe of our own.

use core::ffi::{c_int, c_uint};
use core::sync::atomic::Ordering::*;

use shunt_link::elsewhere;
use shunt_os::critical::{self, Handled};
use shunt_os::{handles, real, tcp};
use shunt_stats::Reason;

use super::io::{self, single};
use crate::pool::{self, Mode};
use crate::send::{self, Delivery};
use crate::table::{self, Entry};
use crate::{attach, inherit, process, receive, wait, Outcome};

/// Bytes that one call takes off a stream that cannot leave its ring whole.
const PIECE: usize = 16 * 1024;

/// `splice` without offsets, which a stream has none of.
pub fn splice(
    input: c_int,
    out: c_int,
    len: usize,
    flags: c_uint,
    genuine: impl FnMut(c_int) -> isize,
) -> Outcome {
    elsewhere::note();
    let began = critical::handled();
    if is_reset_by_death(input) {
        return Outcome::Failed(libc::ECONNRESET);
    }
    let from_a_ring = leave(input).is_some() || may_come_to_a_ring(input);
    let to = leave(out);
    match to {
        _ if from_a_ring => from_ring(input, out, len, flags),
        Some(index) => behind_ring(index, out, len, genuine),
        None if ends_before_its_wait(began, input, out, flags) => Outcome::Failed(libc::EINTR),
        None => Outcome::PassThrough,
    }
}

/// Whether a stream that has left its ring may have to take from there what its writer does not send again.
fn may_come_to_a_ring(fd: c_int) -> bool {
    matches!(table::get(fd), Entry::Socket(index) if pool::get(index).unanswered.load(Relaxed))
}

fn ends_before_its_wait(began: Handled, input: c_int, out: c_int, flags: c_uint) -> bool {
    let waits = |fd, events| {
        matches!(table::get(fd), Entry::Socket(_)) && wait::is_interrupted(began, fd, events)
    };
    flags & libc::SPLICE_F_NONBLOCK == 0
        && (waits(input, libc::POLLIN) || waits(out, libc::POLLOUT))
}

/// Whether the next receive is told that the peer died with bytes unread in the ring, of which the kernel does
/// not know: it knows of an end.
fn is_reset_by_death(stream: c_int) -> bool {
    let Entry::Socket(index) = table::get(stream) else { return false };
    if !matches!(pool::get(index).mode(), Mode::Attached | Mode::Left)
        || !tcp::peer_has_ended(stream)
    {
        return false;
    }
    let mut byte = 0u8;
    let (buffer, flags) = ((&raw mut byte).cast(), libc::MSG_PEEK | libc::MSG_DONTWAIT);
    // SAFETY: one writable byte.
    let peek = || unsafe { real::recv(stream, buffer, 1, flags) };
    matches!(
        io::receive(stream, &single(buffer, 1), flags, peek),
        Outcome::Failed(libc::ECONNRESET)
    )
}

/// Takes a stream back to TCP; its place if something of it is on a ring still.
fn leave(fd: c_int) -> Option<u32> {
    let Entry::Socket(index) = table::get(fd) else { return None };
    let socket = pool::get(index);
    match socket.mode() {
        Mode::Inherited => inherit::touch(index),
        _ => {
            attach::leave(index, Reason::Splice);
            process::count(Reason::Splice);
        }
    }
    (socket.mode() == Mode::Attached || receive::remaining(socket) > 0).then_some(index)
}

/// Off a stream that has bytes in its ring, since its writer is gone and TCP takes nothing more, or
/// whose TCP bytes are behind such: looks at them, moves them, and then discards what was moved.
fn from_ring(stream: c_int, out: c_int, len: usize, flags: c_uint) -> Outcome {
    // Not on the program's stack, which may have little room. (A thread that is cancelled leaves it.)
    let mut room = vec![0u8; PIECE];
    let length = len.min(PIECE);
    let buffer = room.as_mut_ptr().cast();
    // SAFETY: `length` writable bytes.
    let peek = || unsafe { real::recv(stream, buffer, length, libc::MSG_PEEK) };
    let seen = match io::receive(stream, &single(buffer, length), libc::MSG_PEEK, peek) {
        Outcome::Handled(seen) | Outcome::Genuine(seen) if seen > 0 => seen as usize,
        other => return other,
    };
    let moved = match handles::move_through_pipe(&room[..seen], out, flags) {
        Ok(moved) => moved,
        Err(error) => return Outcome::Failed(error.0),
    };
    let flags = libc::MSG_DONTWAIT;
    // SAFETY: `moved` writable bytes, at most `length`.
    let discard = || unsafe { real::recv(stream, buffer, moved, flags) };
    io::receive(stream, &single(buffer, moved), flags, discard);
    Outcome::Handled(moved as isize)
}

/// To a stream that has bytes to send again: behind them.
fn behind_ring(
    index: u32,
    stream: c_int,
    len: usize,
    mut genuine: impl FnMut(c_int) -> isize,
) -> Outcome {
    let socket = pool::get(index);
    let mut delivery = Delivery::new(index, socket, socket.generation.load(Acquire), stream);
    let outcome = send::on_tcp(&mut delivery, len, &mut genuine);
    let errno = shunt_os::errno();
    delivery.end();
    shunt_os::set_errno(errno);
    outcome
}
