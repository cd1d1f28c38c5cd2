//! The two carriers that a receive takes bytes from.

use core::sync::atomic::Ordering::*;

use libc::iovec;
use shunt_carriers::parts::{behind, up_to};
use shunt_carriers::{tcp, Failure, How, Part, Received, Receiver};
use shunt_stats::Carrier;

use super::attempt::Attempt;
use super::peek::PEEK;
use super::Request;
use crate::attach::Broken;
use crate::pool::{RecvSide, Socket};
use crate::search;

pub(super) fn from_ring(
    socket: &Socket,
    recv: &mut RecvSide,
    request: Request<'_>,
    already: usize,
) -> Result<usize, Broken> {
    let Some(consumer) = &mut recv.consumer else { return Err(Broken) };
    let wanted = parts(request.vector, already);
    // SAFETY: the program's own buffer; a bad one faults as a genuine call would report.
    let received = unsafe { consumer.try_receive(wanted, how(request.flags)) }?;
    let Received::Bytes(total) = received else { return Ok(0) };
    if request.flags & PEEK == 0 {
        recv.offset += total as u64;
        recv.ring_only += total as u64;
        if let Some(entry) = socket.entry() {
            entry.received(Carrier::Shm, total as u64);
        }
    }
    Ok(total)
}

/// No program's memory lies here or above: the kernel's own half. A program of 32 bits on a kernel of 64
/// has all but the last two pages.
const ADDRESSES_END: usize =
    if cfg!(target_pointer_width = "64") { usize::MAX / 256 + 1 } else { usize::MAX - 8191 };

/// Whether a pointer is surely no program's memory. What is merely unmapped faults in our copy
/// where the kernel would answer EFAULT (docs/compatibility.md).
pub fn is_no_address(pointer: *mut libc::c_void) -> bool {
    !(4096..ADDRESSES_END).contains(&(pointer as usize))
}

/// Whether the kernel looks for memory there: in a list, a length may be none. To programs of 32 bits that is one
/// below 0 (Linux, copy_compat_iovec_from_user), whatever addresses it leads to.
#[inline]
pub fn is_part(part: &iovec) -> bool {
    if cfg!(target_pointer_width = "64") {
        has_addresses(part)
    } else {
        isize::try_from(part.iov_len).is_ok()
    }
}

/// As [`is_part`], of the one buffer of `read` or `write`, of which programs of 32 bits may give any length.
#[inline]
pub fn is_buffer(part: &iovec) -> bool {
    cfg!(target_pointer_width = "32") || has_addresses(part)
}

#[inline]
fn has_addresses(part: &iovec) -> bool {
    let end = (part.iov_base as usize).checked_add(part.iov_len);
    end.is_some_and(|end| end <= ADDRESSES_END)
}

/// The parts of `vector` behind its first `skip` bytes, empty ones left out.
#[inline]
pub fn parts(vector: &[iovec], skip: usize) -> impl Iterator<Item = Part> + '_ {
    let parts = vector.iter().map(|part| Part { base: part.iov_base.cast(), len: part.iov_len });
    behind(parts, skip)
}

pub(super) fn how(flags: i32) -> How {
    How { peek: flags & PEEK != 0, discard: flags & libc::MSG_TRUNC != 0 }
}

pub(super) fn from_tcp(
    socket: &Socket,
    recv: &mut RecvSide,
    request: Request<'_>,
    already: usize,
) -> Result<Attempt, Broken> {
    let limit = recv.reader.may_read_tcp(recv.offset).unwrap_or(0);
    if limit == 0 {
        return Ok(Attempt::Empty);
    }
    let mut companion = tcp::Receiver::new(socket.fd.load(Relaxed));
    let within = up_to(parts(request.vector, already), limit);
    // SAFETY: the program's own buffer; the kernel answers EFAULT if it is none.
    let total = match unsafe { companion.try_receive(within, how(request.flags)) } {
        Ok(Received::Bytes(count)) => count as u64,
        Ok(Received::Ended) => 0,
        Ok(Received::Empty) => return Ok(Attempt::Empty),
        Err(Failure::Kernel(error)) => return Ok(Attempt::Error(error.0)),
        Err(Failure::BadMemory) => return Ok(Attempt::Error(libc::EFAULT)),
        Err(Failure::Corrupt | Failure::Left | Failure::Lost) => return Err(Broken),
    };
    if request.flags & PEEK == 0 {
        recv.offset += total;
        if let (true, Some(entry)) = (total > 0, socket.entry()) {
            entry.received(Carrier::Tcp, total);
        }
        if total > 0 && socket.link().is_some_and(|link| !link.is_alive()) {
            search::note_anew(socket, total);
        }
    }
    Ok(Attempt::Got(total as usize))
}
