//! Bytes that the program has sent and wants held back, by MSG_MORE or TCP_CORK: to be received together with those
//! that follow. They are in the ring, and not shown.
//!
//! They are shown by the next send without such a wish, by a shutdown, a close, a leave, and by whoever finds that
//! this process is gone; and by the service thread after as long as the kernel holds bytes back (tcp(7)).

use core::sync::atomic::Ordering::*;

use shunt_carriers::Part;
use shunt_os::clock;

use crate::attach::Broken;
use crate::pool::{self, Mode, SendSide, Socket};
use crate::service;

/// The kernel's ceiling, in ns.
pub const HELD_NS_MAX: u64 = 200_000_000;

/// Whether a send with these flags wants its bytes held back.
#[inline]
pub(super) fn is_wanted(socket: &Socket, flags: i32) -> bool {
    flags & libc::MSG_MORE != 0 || socket.is_corked.load(Relaxed)
}

/// Takes all of a send's bytes, `len` of them, to be held back. False if they are to be sent as any: many are.
///
/// # Safety
/// The program's own buffers.
pub(super) unsafe fn hold(
    (index, socket): (u32, &Socket),
    side: &mut SendSide,
    parts: impl Iterator<Item = Part>,
    len: usize,
) -> Result<bool, Broken> {
    let (Some(service), Some(producer)) = (service::running(), &mut side.producer) else {
        return Ok(false);
    };
    let held_some = producer.holds();
    // SAFETY: the caller's promise, and the program's memory is not the link's.
    if !unsafe { producer.try_hold(parts, len) }? {
        return Ok(false);
    }
    if !held_some {
        side.held_since_ns = clock::now_ns();
    }
    if !core::mem::replace(&mut side.is_held_watched, true) {
        service.watch_held(index, socket.generation.load(Relaxed));
    }
    Ok(true)
}

/// Shows what is held back.
pub fn show(socket: &Socket) {
    let mut side = socket.send.lock();
    if socket.mode() == Mode::Attached {
        show_locked(&mut side);
    }
}

/// As [`show`], of a stream that is attached and locked.
pub fn show_locked(side: &mut SendSide) {
    if let Some(producer) = &mut side.producer {
        producer.show_held();
    }
}

/// In the service thread: shows what was held back for long. True if the stream must be looked at again.
pub fn look(index: u32, generation: u32) -> bool {
    let socket = pool::get(index);
    let mut side = socket.send.lock();
    if socket.generation.load(Relaxed) != generation || socket.mode() != Mode::Attached {
        return false;
    }
    if clock::now_ns().saturating_sub(side.held_since_ns) >= HELD_NS_MAX {
        show_locked(&mut side);
    }
    let holds = side.producer.as_ref().is_some_and(|producer| producer.holds());
    side.is_held_watched = holds;
    holds
}
