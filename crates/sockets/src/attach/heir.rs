//! What a process that was killed has left of its sending half, finished by one of those who have the stream as well:
//! their own bytes come behind it.

use core::sync::atomic::Ordering::*;

use shunt_carriers::shm::{copy_published, incoming, outgoing};
use shunt_carriers::{Part, Sender as _, Sent};
use shunt_link::Link;
use shunt_os::{handles, raw, tcp};
use shunt_stream::{End, ReaderDied, Words, Writer, WriterOn, OFFSET_MAX};

use super::writer::PIECE_BYTES;
use super::Broken;
use crate::pool::{Mode, SendSide, Socket};

/// In a child whose parent died while it had the stream, by one process of the family at a time. It ends when TCP has
/// taken everything, or has ended itself; false if the stream was closed here before. Begun anew, it goes on where the
/// last one came to.
pub fn finish_for_dead_writer(socket: &Socket) -> bool {
    let generation = socket.generation.load(Acquire);
    let mut buffer = vec![0u8; PIECE_BYTES];
    loop {
        let fd = {
            // Who closes the number takes it, too.
            let mut send = socket.send.lock();
            let is_there =
                socket.generation.load(Acquire) == generation && socket.mode() == Mode::Inherited;
            if !is_there {
                return false;
            }
            match finish_some(socket, &mut send, &mut buffer) {
                Ok(Some(fd)) => fd,
                Ok(None) | Err(Broken) => return true,
            }
        };
        tcp::await_room(fd);
    }
}

/// Whether the process that read the ring was killed, and nobody shares its end: what is unread there nobody reads.
fn has_died(fd: i32, link: &Link, slot: u32) -> bool {
    tcp::peer_has_ended(fd)
        && !raw::runs(link.peer_pid)
        && !outgoing(link, slot).reader_shares()
        && !incoming(link, slot).writer_shut()
}

/// Ends the ring, and sends as much again as the kernel takes now: the descriptor, if it has no more room. The lock of
/// this process's own half, which has not begun, is held.
fn finish_some(
    socket: &Socket,
    send: &mut SendSide,
    buffer: &mut [u8],
) -> Result<Option<i32>, Broken> {
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
    if has_died(fd, link, slot) {
        let died = writer.reader_died(&words, tail)?;
        if matches!(died, ReaderDied::Lost { .. } | ReaderDied::On(WriterOn::Resend { .. })) {
            socket.kin.note_reset();
        }
    }
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
            // The connection has ended: nobody gets them. The kernel has told that once.
            Err(_) => {
                send.failed = socket.kin.was_reset().then_some(libc::EPIPE);
                return Ok(None);
            }
        };
    }
    tcp::push(fd);
    if words.fin_is_due() {
        handles::shut_writing(fd);
        words.fin_is_sent();
    }
    Ok(None)
}
