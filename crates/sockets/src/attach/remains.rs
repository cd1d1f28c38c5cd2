//! Bytes that a writer has left in a ring for good, when several processes have the stream: none of them
//! can put these on TCP before what is there. They stay where they are, and each process takes them from
//! there (`receive::remains`); all else is the kernel's.

use core::sync::atomic::Ordering::*;

use shunt_carriers::shm::{self, incoming};
use shunt_os::tcp;
use shunt_stream::{End, ReaderOn, Words, WriterOn};

use super::leave::has_left;
use super::{restart_consumer, Broken};
use crate::pool::{Mode, RecvSide, Socket};

/// After [`leave`](super::leave) for another process that has the stream: the ring's last bytes are for
/// whoever comes first.
pub fn share_remains(socket: &'static Socket) {
    {
        let mut recv = socket.recv.lock();
        let send = socket.send.lock();
        let settled = socket.mode() == Mode::Attached
            && socket.pinned.load(SeqCst)
            && send.writer.on() == WriterOn::Tcp
            && !socket.closing.load(SeqCst)
            && finish_for_dead(socket, &mut recv).unwrap_or(false);
        if !settled {
            return;
        }
        socket.remains.store(true, Release);
        socket.set_mode(Mode::Left);
    }
    has_left(socket);
}

/// Whether there are such bytes for the reader. A writer that died before it had sent again what the
/// reader left has left them, if none of them is on TCP.
pub(super) fn finish_for_dead(socket: &Socket, recv: &mut RecvSide) -> Result<bool, Broken> {
    let Some(link) = socket.link() else { return Ok(false) };
    let words = incoming(link, socket.slot.load(Relaxed));
    let (fd, offset) = (socket.fd.load(Relaxed), recv.offset);
    if recv.reader.on() != ReaderOn::Ring && tcp::peer_has_ended(fd) {
        let none_on_tcp = tcp::readable(fd).is_ok_and(|bytes| bytes == 0);
        if none_on_tcp && recv.reader.tcp_ended(&words, offset)? == ReaderOn::Ring {
            restart_consumer(recv);
        }
    }
    if !is_left(&words) {
        return Ok(false);
    }
    Ok(recv.reader.on() == ReaderOn::Ring
        || tcp::peer_has_ended(fd) && put_behind_tcp(&words, recv))
}

/// A reader that had not come to the ring: what is there comes behind TCP's bytes.
pub(super) fn put_behind_tcp(words: &shm::SlotWords, recv: &mut RecvSide) -> bool {
    let (ReaderOn::Crossing { up_at }, Some(consumer)) = (recv.reader.on(), &mut recv.consumer)
    else {
        return false;
    };
    consumer.cross_to(up_at);
    words.set_behind_tcp();
    true
}

fn is_left(words: &shm::SlotWords) -> bool {
    matches!(End::decode(words.end()), Ok(End::Down(_)))
}

/// In a child to which its parent has left the stream, or that has outlived it: what the ring has still
/// is its as well.
pub fn take_up_remains(socket: &Socket) {
    let mut recv = socket.recv.lock();
    // What the parent owed to its program.
    recv.reset_pending = false;
    if let Some(link) = socket.link() {
        let left = is_left(&incoming(link, socket.slot.load(Relaxed)));
        socket.remains.store(left, Release);
    }
}
