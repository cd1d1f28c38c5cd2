//! What a process that was killed had still to send again by TCP, sent by one of those who have the stream as well:
//! their own bytes come behind it.

use core::sync::atomic::Ordering::*;

use shunt_carriers::shm::outgoing;
use shunt_carriers::{Part, Sender as _, Sent};
use shunt_os::{handles, tcp};
use shunt_stream::{End, Words, WriterOn};

use super::writer::PIECE_BYTES;
use crate::pool::{Mode, SendSide, Socket};
use crate::wait::blocking::direction;

/// In a child whose parent died while it had the stream, by one process of the family at a time. It ends when TCP has
/// taken everything, or has ended itself, or the stream is closed here. Begun anew, it goes on where the last one came to.
pub fn resend_for_dead(socket: &Socket) {
    let generation = socket.generation.load(Acquire);
    let mut buffer = vec![0u8; PIECE_BYTES];
    loop {
        let fd = {
            // Who closes the number takes it, too.
            let send = socket.send.lock();
            let is_there =
                socket.generation.load(Acquire) == generation && socket.mode() == Mode::Inherited;
            if !is_there {
                return;
            }
            match resend_some(socket, &send, &mut buffer) {
                Some(fd) => fd,
                None => return,
            }
        };
        tcp::await_room(fd);
    }
}

/// Sends as much as the kernel takes now: the descriptor, if it has no more room.
fn resend_some(socket: &Socket, send: &SendSide, buffer: &mut [u8]) -> Option<i32> {
    let link = socket.link()?;
    let slot = socket.slot.load(Relaxed);
    let (direction, words) = (direction(socket, true)?, outgoing(link, slot));
    let (data, ring_bytes) = (link.memory.data(slot, link.side), link.memory.ring_bytes());
    let fd = socket.fd.load(Relaxed);
    let mut companion = shunt_carriers::tcp::Sender::new(fd);
    let (mut at, to) = missing(socket, send)?;
    while at < to && !words.reader_resets() {
        let length = (to - at).min(buffer.len() as u64) as usize;
        for (offset, byte) in (at..).zip(&mut buffer[..length]) {
            let place = direction.position(offset, ring_bytes);
            // SAFETY: within the ring, whose writer is no more.
            *byte = unsafe { data.add(place).as_ptr().read_volatile() };
        }
        let part = Part::of(&buffer[..length]);
        // SAFETY: the buffer is our own.
        match unsafe { companion.try_send([part].into_iter()) } {
            Ok(Sent::Took(count)) => at += count as u64,
            Ok(Sent::Full) => return Some(fd),
            // The connection has ended: nobody gets them.
            Err(_) => return None,
        }
    }
    tcp::push(fd);
    if words.fin_is_due() {
        handles::shut_writing(fd);
        words.fin_is_sent();
    }
    None
}

/// From where to where, if anything. The kernel has counted what TCP took since the fork at which this process got the
/// stream; what rings carried in segments that began later is not known here.
fn missing(socket: &Socket, send: &SendSide) -> Option<(u64, u64)> {
    let words = outgoing(socket.link()?, socket.slot.load(Relaxed));
    words.show_held();
    let (from, to) = match End::decode(words.end()) {
        Ok(End::Stop(from)) => (from, words.tail()),
        Ok(End::Recalled(to)) => (words.up_at(), to),
        _ => return None,
    };
    let by_ring = match send.writer.on() {
        _ if send.up_at != words.up_at() => return None,
        WriterOn::Ring => send.ring_only + from.checked_sub(send.up_at)?,
        WriterOn::Resend { .. } => send.ring_only,
        WriterOn::Tcp => return None,
    };
    let fd = socket.fd.load(Relaxed);
    let at = tcp::bytes_written(fd, socket.connector.load(Relaxed)).ok()? + by_ring;
    let capacity = u64::from(socket.link()?.memory.ring_bytes());
    (from <= at && at < to && to - from <= capacity).then_some((at, to))
}
