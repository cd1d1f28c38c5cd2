//! What the sizes of the kernel's buffers mean for a ring: who has set one wants a writer to wait when about so
//! much is on its way (socket(7)), and no more may lie in a ring than they take at once. A send buffer that nobody
//! has set begins beyond a ring over the loopback device, unless the host allows it less (`tcp_wmem`, tcp(7)).

use core::sync::atomic::Ordering::*;

use shunt_carriers::shm::UNEVEN;
use shunt_os::{handles, tcp};

use super::stop::is_seen;
use crate::pool::{Mode, SendSide, Socket};
use crate::wait::blocking::direction;

/// What the kernel's receive buffer takes while nobody has set its size and nobody reads.
pub const WINDOW_UNSET: u64 = 64 * 1024;
/// A ring has room for a message or two whatever the sizes are.
const ROOM_MIN: u64 = 4096;

/// Tells the writer how much this end would have unread.
pub fn announce_window(socket: &Socket) {
    if let Some(incoming) = direction(socket, false) {
        let window = handles::receive_buffer_set(socket.fd.load(Relaxed)).unwrap_or(0);
        incoming.consumer.window.store(window.into(), Relaxed);
    }
}

/// How much may lie unread in the outgoing ring: no more than the kernel takes at once, whose sizes count its own words
/// as well. What another holder of the stream writes comes behind it, when the stream leaves its ring.
///
/// Until the reader has come to the ring, what it has not read by TCP is in the kernel's buffers, too.
fn room(socket: &Socket, has_crossed: bool) -> Option<u64> {
    let window = match direction(socket, true)?.consumer.window.load(Relaxed) {
        0 => WINDOW_UNSET,
        // Half of a buffer is for what the kernel keeps beside bytes (tcp(7), tcp_adv_win_scale).
        window => window / 2,
    };
    let fd = socket.fd.load(Relaxed);
    let Some(own) = handles::send_buffer(fd) else { return Some(u64::MAX) };
    let own = u64::from(own - own / 16);
    Some(if has_crossed {
        own.saturating_add(window)
    } else {
        own.saturating_sub(tcp::unacknowledged(fd).unwrap_or(0))
    })
}

/// Before the stream goes up: how much may lie in the ring until its reader comes to it; `None` if that is no message
/// or two, as TCP could not take them now.
pub fn room_to_go_up(socket: &Socket) -> Option<u64> {
    room(socket, false).filter(|room| *room >= ROOM_MIN)
}

/// Bounds what lies unread in the outgoing ring by what was reckoned before its reader came to it.
pub fn bound_room_narrowly(send: &mut SendSide, room: u64) {
    set_room(send, room);
    send.is_narrow = true;
}

/// Bounds what lies unread in the outgoing ring.
fn bound_room(socket: &Socket, send: &mut SendSide) {
    let has_crossed = has_crossed(socket);
    if let Some(room) = room(socket, has_crossed) {
        set_room(send, room);
        send.is_narrow = !has_crossed;
    }
}

fn set_room(send: &mut SendSide, room: u64) {
    if let Some(producer) = &mut send.producer {
        let most = (producer.ring().capacity() - UNEVEN) as u64;
        producer.set_room(room.max(ROOM_MIN).min(most));
    }
}

/// The ring has no more room: whether it has, since its reader came to it.
#[cold]
pub fn widen_room(socket: &Socket, send: &mut SendSide) -> bool {
    let may_widen = send.is_narrow && has_crossed(socket);
    if may_widen {
        bound_room(socket, send);
    }
    may_widen
}

/// Whether the reader has taken all that came by TCP before the ring.
fn has_crossed(socket: &Socket) -> bool {
    let (Some(link), Some(outgoing)) = (socket.link(), direction(socket, true)) else {
        return false;
    };
    is_seen(link, socket.slot.load(Relaxed)) && outgoing.head() >= outgoing.up_at()
}

/// SO_SNDBUF or SO_RCVBUF was set.
pub fn sizes_changed(socket: &Socket) {
    let _recv = socket.recv.lock();
    let mut send = socket.send.lock();
    if socket.mode() == Mode::Attached {
        announce_window(socket);
        bound_room(socket, &mut send);
    }
}
