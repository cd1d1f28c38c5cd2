//! What a process that was killed has left of its sending half, finished by one of those who have the stream as well:
//! their own bytes come behind it.

use core::sync::atomic::Ordering::*;

use shunt_carriers::shm::{copy_published, outgoing};
use shunt_carriers::{Part, Sender as _, Sent};
use shunt_os::{handles, tcp};
use shunt_stream::{End, Words, Writer, WriterOn, OFFSET_MAX};

use super::writer::PIECE_BYTES;
use super::Broken;
use crate::pool::{Mode, Socket};

/// In a child whose parent died while it had the stream, by one process of the family at a time. It ends when TCP has
/// taken everything, or has ended itself; false if the stream was closed here before. Begun anew, it goes on where the
/// last one came to.
pub fn finish_for_dead_writer(socket: &Socket) -> bool {
    let generation = socket.generation.load(Acquire);
    let mut buffer = vec![0u8; PIECE_BYTES];
    loop {
        let fd = {
            // Who closes the number takes it, too.
            let _held = socket.send.lock();
            let is_there =
                socket.generation.load(Acquire) == generation && socket.mode() == Mode::Inherited;
            if !is_there {
                return false;
            }
            match finish_some(socket, &mut buffer) {
                Ok(Some(fd)) => fd,
                Ok(None) | Err(Broken) => return true,
            }
        };
        tcp::await_room(fd);
    }
}

/// Ends the ring, and sends as much again as the kernel takes now: the descriptor, if it has no more room. The lock of
/// this process's own half, which has not begun, is held.
fn finish_some(socket: &Socket, buffer: &mut [u8]) -> Result<Option<i32>, Broken> {
    let Some(link) = socket.link() else { return Ok(None) };
    let slot = socket.slot.load(Relaxed);
    let words = outgoing(link, slot);
    words.show_held();
    let fd = socket.fd.load(Relaxed);
    let Ok(written) = tcp::bytes_written(fd, socket.connector.load(Relaxed)) else {
        // Its FIN is sent, and all before it.
        return Ok(None);
    };
    // Behind the bytes that the ring alone has carried.
    let ring_until = match End::decode(words.end())? {
        End::Stop(from) | End::Closed(from) => from,
        _ => words.up_at(),
    };
    let again = written.checked_sub(words.by_tcp()).ok_or(Broken)?;
    let mut writer = Writer::take_over(&words, ring_until.saturating_add(again))?;
    let tail = words.tail();
    if tail > OFFSET_MAX {
        return Err(Broken);
    }
    // The reader has perhaps done it at this moment: it ends the ring of a dead writer by itself.
    let has_ended = |_| match End::decode(words.end()) {
        Ok(End::Down(_) | End::Idle) => Ok(()),
        _ => Err(Broken),
    };
    writer.go_down(&words, tail).map(drop).or_else(has_ended)?;
    let mut companion = shunt_carriers::tcp::Sender::new(fd);
    while let WriterOn::Resend { from, to } = writer.on() {
        if to - from > u64::from(link.memory.ring_bytes()) {
            return Err(Broken);
        }
        if words.reader_resets() {
            break;
        }
        let length = (to - from).min(buffer.len() as u64) as usize;
        // SAFETY: the buffer is our own, and the ring's writer is no more.
        unsafe { copy_published(link, slot, link.side, from, buffer.as_mut_ptr(), length) };
        let part = Part::of(&buffer[..length]);
        // SAFETY: as above.
        match unsafe { companion.try_send([part].into_iter()) } {
            Ok(Sent::Took(count)) => writer.resent(&words, from + count as u64)?,
            Ok(Sent::Full) => return Ok(Some(fd)),
            // The connection has ended: nobody gets them.
            Err(_) => return Ok(None),
        };
    }
    tcp::push(fd);
    if words.fin_is_due() {
        handles::shut_writing(fd);
        words.fin_is_sent();
    }
    Ok(None)
}
