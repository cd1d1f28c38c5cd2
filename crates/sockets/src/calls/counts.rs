//! What the kernel counts of a stream, with what went by its ring.
// UNSAFETY: writes to the program's memory.
#![allow(unsafe_code)]

use core::ffi::{c_int, c_void};
use core::mem::size_of;
use core::sync::atomic::Ordering::Relaxed;

use shunt_carriers::shm;
use shunt_os::{clock, tcp};
use shunt_stream::{End, ReaderOn, WriterOn};

use crate::pool::{Mode, RecvSide, SendSide, Socket, Told};
use crate::{attach, receive};

/// What SIOCOUTQ says of the ring; `None` if the kernel knows.
pub(super) fn on_its_way(socket: &Socket) -> Option<c_int> {
    let mut send = socket.send.lock();
    let on_ring = socket.mode() == Mode::Attached && send.writer.on() == WriterOn::Ring;
    on_ring.then(|| unacknowledged(&mut send) as c_int)
}

/// TCP counts what the peer's kernel has not taken yet, so a first part of what is in the ring, of a small one the
/// half, stands for the peer's receive buffer. What is held back it has not.
fn unacknowledged(send: &mut SendSide) -> u64 {
    let Some(producer) = &mut send.producer else { return 0 };
    let taken = attach::WINDOW_UNSET.min(producer.ring().room() as u64 / 2);
    let held = producer.ring().held() as u64;
    producer.ring().unread().unwrap_or(0).saturating_sub(taken).max(held)
}

/// Bytes that receives could give now, on whichever carriers; `None` if the kernel knows.
pub(super) fn unread(socket: &Socket) -> Option<c_int> {
    let remaining = receive::remaining(socket);
    if remaining > 0 {
        let all = remaining + tcp::readable(socket.fd.load(Relaxed)).unwrap_or(0);
        return Some(all.min(i32::MAX as u64) as c_int);
    }
    let mut recv = socket.recv.lock();
    if socket.mode() != Mode::Attached {
        return None;
    }
    let fd = socket.fd.load(Relaxed);
    let direction = crate::wait::blocking::direction(socket, false)?;
    let on = if recv.offset_known {
        attach::observe_reader(socket, &mut recv).ok()?
    } else {
        recv.reader.on()
    };
    let owed = if receive::owes(socket, &recv) { recv.owed - recv.offset } else { 0 };
    let bytes = match on {
        ReaderOn::Ring => {
            let ring = recv.consumer.as_mut()?.settled(usize::MAX).ok()? as u64;
            let ended = matches!(End::decode(direction.end()), Ok(End::Down(_)));
            ring + if ended { tcp::readable(fd).unwrap_or(0) } else { 0 }
        }
        ReaderOn::Crossing { up_at } => {
            let by_tcp = tcp::readable(fd).ok()?;
            let is_here = recv.offset + by_tcp >= up_at;
            let all = (up_at - recv.offset.min(up_at)) + direction.tail().saturating_sub(up_at);
            // What the ring has is behind all of TCP's, of which a receive waits only for what is owed.
            if is_here {
                all
            } else {
                by_tcp.max(owed)
            }
        }
        _ if owed == 0 => return None,
        _ => tcp::readable(fd).ok()?.max(owed),
    };
    Some(bytes.min(i32::MAX as u64) as c_int)
}

/// As [`unread`], whoever knows; 1 at the end of the stream, to which a program is to read on (Linux, tcp_inq_hint).
pub(super) fn unread_or_end(socket: &Socket) -> c_int {
    let fd = socket.fd.load(Relaxed);
    let by_kernel = || tcp::readable(fd).unwrap_or(0).min(i32::MAX as u64) as c_int;
    match unread(socket).unwrap_or_else(by_kernel) {
        0 => {
            let is_shut = socket.recv.lock().peer_shut;
            let has_ended = || socket.companion_stirred.is_set() && tcp::peer_has_ended(fd);
            c_int::from(is_shut || has_ended())
        }
        bytes => bytes,
    }
}

/// What getsockopt has told, at the program's address.
pub(super) struct Answer {
    base: *mut u8,
    bytes: usize,
}

impl Answer {
    /// # Safety
    /// As many bytes were written to `value`, and nobody else uses them.
    pub(super) unsafe fn new(value: *mut c_void, bytes: usize) -> Answer {
        Answer { base: value.cast(), bytes }
    }

    /// Changes what stands at an offset, if that was told.
    fn change<T: Copy>(&self, offset: usize, by: impl FnOnce(T) -> T) {
        if offset + size_of::<T>() <= self.bytes {
            let at = self.base.wrapping_add(offset).cast::<T>();
            // SAFETY: within what was written, by the word of `new`'s caller.
            unsafe { at.write_unaligned(by(at.read_unaligned())) };
        }
    }
}

/// What a stream has carried by rings alone in one direction.
#[derive(Clone, Copy)]
struct Share {
    bytes: u64,
    /// Those that the other side has not acknowledged, or this one not taken.
    pending: u64,
}

fn sent(socket: &Socket, send: &mut SendSide) -> Share {
    let on_ring = socket.mode() == Mode::Attached && send.writer.on() == WriterOn::Ring;
    let tail = send.producer.as_ref().filter(|_| on_ring).map(shm::Sender::tail);
    let segment = tail.map_or(0, |tail| tail.saturating_sub(send.up_at));
    let pending = if on_ring { unacknowledged(send) } else { 0 };
    Share { bytes: send.before + send.ring_only + segment, pending }
}

fn received(socket: &Socket, recv: &mut RecvSide) -> Share {
    let attached = socket.mode() == Mode::Attached;
    // Also those behind bytes of TCP that the program has not taken.
    let pending = if attached { attach::ring_bytes(socket, recv) } else { 0 };
    Share { bytes: recv.before + recv.ring_only + pending, pending }
}

/// Milliseconds since a share grew, as far as it was asked: growth since it was asked last is now.
fn since_growth(told: &mut Told, share: Share) -> Option<u32> {
    let now = clock::now_ns();
    if share.bytes != told.bytes {
        *told = Told { bytes: share.bytes, at_ns: now };
    }
    let ms = (now - told.at_ns) / 1_000_000;
    (told.bytes != 0).then(|| u32::try_from(ms).unwrap_or(u32::MAX))
}

/// After SO_ERROR: an error that the kernel does not know of.
pub(super) fn add_error(socket: &Socket, answer: &Answer) {
    answer.change(0, |error: c_int| attach::error_told(socket, error));
}

/// After TCP_INFO (tcp(7), `struct tcp_info` of <linux/tcp.h>): bytes are those of both carriers, and times
/// those since the last of either.
pub(super) fn add_to_info(socket: &Socket, answer: &Answer) {
    const LAST_DATA_SENT: usize = 44;
    const LAST_DATA_RECV: usize = 52;
    const LAST_ACK_RECV: usize = 56;
    const BYTES_ACKED: usize = 120;
    const BYTES_RECEIVED: usize = 128;
    const BYTES_SENT: usize = 200;
    let (share, since) = {
        let mut recv = socket.recv.lock();
        let share = received(socket, &mut recv);
        (share, since_growth(&mut recv.told, share))
    };
    answer.change(BYTES_RECEIVED, |bytes: u64| bytes + share.bytes);
    answer.change(LAST_DATA_RECV, |ms: u32| ms.min(since.unwrap_or(ms)));
    let (share, since) = {
        let mut send = socket.send.lock();
        let share = sent(socket, &mut send);
        (share, since_growth(&mut send.told, share))
    };
    answer.change(BYTES_SENT, |bytes: u64| bytes + share.bytes);
    answer.change(BYTES_ACKED, |bytes: u64| bytes + share.bytes - share.pending);
    for time in [LAST_DATA_SENT, LAST_ACK_RECV] {
        answer.change(time, |ms: u32| ms.min(since.unwrap_or(ms)));
    }
}

/// After SO_MEMINFO (socket(7), `SK_MEMINFO_*` of <linux/sock_diag.h>): what is unread takes memory.
pub(super) fn add_to_memory(socket: &Socket, answer: &Answer) {
    const RMEM_ALLOC: usize = 0;
    let unread = received(socket, &mut socket.recv.lock()).pending;
    answer.change(RMEM_ALLOC, |bytes: u32| bytes.saturating_add(unread as u32));
}
