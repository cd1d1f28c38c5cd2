//! What the sizes of the kernel's buffers mean for a ring: who has set one wants a writer to wait when about so
//! much is on its way (socket(7)), and no more may lie in a ring than they take at once. A send buffer that nobody
//! has set begins beyond a ring over the loopback device, unless the host allows it less (`tcp_wmem`, tcp(7)).

use core::sync::atomic::Ordering::*;

use shunt_carriers::shm::UNEVEN;
use shunt_os::handles;

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

/// Bounds what lies unread in the outgoing ring.
pub fn bound_room(socket: &Socket, send: &mut SendSide) {
    let (Some(outgoing), Some(producer)) = (direction(socket, true), &mut send.producer) else {
        return;
    };
    let own = handles::send_buffer(socket.fd.load(Relaxed));
    let most = (producer.ring().capacity() - UNEVEN) as u64;
    let window = match outgoing.consumer.window.load(Relaxed) {
        0 => WINDOW_UNSET,
        // Half of a buffer is for what the kernel keeps beside bytes (tcp(7), tcp_adv_win_scale).
        window => window / 2,
    };
    // No more than the kernel takes at once, whose sizes count its own words as well: what another holder of the
    // stream writes comes behind it, when the stream leaves its ring.
    let room = own.map_or(most, |own| u64::from(own - own / 16).saturating_add(window));
    producer.set_room(room.max(ROOM_MIN).min(most));
    socket.room.store(producer.ring().room() as u32, Relaxed);
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
