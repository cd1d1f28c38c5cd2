//! MSG_PEEK, also over the seam between the carriers.

use core::sync::atomic::Ordering::*;

use shunt_carriers::shm::copy_published;
use shunt_carriers::{tcp, Part, Received, Receiver};
use shunt_stream::{End, ReaderOn};

use super::attempt::{ahead, Ahead, Attempt};
use super::sources::{from_ring, from_tcp, how, parts};
use super::Request;
use crate::attach::Broken;
use crate::pool::{RecvSide, Socket};
use crate::wait::blocking::{self};

pub(super) const PEEK: i32 = libc::MSG_PEEK;

/// A peek where one carrier's last bytes and the next one's first lie side by side: TCP before the
/// crossing, or a ring that has ended. `None`: no seam, or nothing on the near side.
pub(super) fn peek_over_the_seam(
    socket: &Socket,
    recv: &mut RecvSide,
    request: Request<'_>,
) -> Result<Option<usize>, Broken> {
    let Some(direction) = blocking::direction(socket, false) else { return Ok(None) };
    let near = match recv.reader.on() {
        ReaderOn::Crossing { .. } => match from_tcp(socket, recv, request, 0)? {
            Attempt::Got(count) if count > 0 => count,
            _ => return Ok(None),
        },
        ReaderOn::Ring => match End::decode(direction.end()) {
            Ok(End::Down(_)) => from_ring(socket, recv, request, 0)?,
            _ => return Ok(None),
        },
        _ => return Ok(None),
    };
    if near == 0 {
        return Ok(None);
    }
    let far = recv.offset + near as u64;
    let count = match recv.reader.on() {
        ReaderOn::Crossing { up_at } if far == up_at => peek_ahead(socket, recv, request, near)?,
        // An error is left to the call that finds nothing before it.
        ReaderOn::Ring if far == direction.tail() && ahead(request.fd) == Ahead::More => {
            let mut companion = tcp::Receiver::new(socket.fd.load(Relaxed));
            // SAFETY: the program's own buffer.
            match unsafe { companion.try_receive(parts(request.vector, near), how(request.flags)) }
            {
                Ok(Received::Bytes(count)) => count,
                _ => 0,
            }
        }
        _ => 0,
    };
    Ok(Some(near + count))
}

/// Peeks at the ring's first bytes before the reader has crossed to it.
pub(super) fn peek_ahead(
    socket: &Socket,
    recv: &RecvSide,
    request: Request<'_>,
    already: usize,
) -> Result<usize, Broken> {
    let (Some(link), ReaderOn::Crossing { up_at }) = (socket.link(), recv.reader.on()) else {
        return Ok(0);
    };
    let (slot, writer) = (socket.slot.load(Relaxed), link.side.other());
    let Some(direction) = blocking::direction(socket, false) else { return Ok(0) };
    let capacity = u64::from(link.memory.ring_bytes());
    let published = direction.tail().checked_sub(up_at).ok_or(Broken)?;
    if published > capacity {
        return Err(Broken);
    }
    let mut total = 0u64;
    for Part { base, len: length } in parts(request.vector, already) {
        let count = (length as u64).min(published - total);
        // MSG_TRUNC counts them alone.
        if !how(request.flags).discard {
            // SAFETY: within the program's buffer.
            unsafe { copy_published(link, slot, writer, up_at + total, base, count as usize) };
        }
        total += count;
    }
    Ok(total as usize)
}
