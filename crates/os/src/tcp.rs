//! The stream offsets that the kernel keeps for a TCP socket (`tcp(7)` TCP_INFO, SIOCINQ,
//! SIOCOUTQ), however its bytes were read or written; and moving bytes without waiting.

use core::mem::size_of;

use crate::{handles, sys, Result};

/// The leading part of the kernel's `struct tcp_info` up to `tcpi_segs_in`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Info {
    state: u8,
    bytes: [u8; 7],
    words: [u32; 24],
    pacing_rate: u64,
    max_pacing_rate: u64,
    bytes_acked: u64,
    bytes_received: u64,
}

const TCP_SYN_SENT: u8 = 2;
const TCP_FIN_WAIT1: u8 = 4;
const TCP_FIN_WAIT2: u8 = 5;
const TCP_TIME_WAIT: u8 = 6;
const TCP_CLOSE: u8 = 7;
const TCP_CLOSE_WAIT: u8 = 8;
const TCP_LAST_ACK: u8 = 9;
const TCP_LISTEN: u8 = 10;
const TCP_CLOSING: u8 = 11;

fn info(fd: i32) -> Result<Info> {
    // SAFETY: zero is a valid `Info`.
    let mut value: Info = unsafe { core::mem::zeroed() };
    let mut bytes = size_of::<Info>() as libc::socklen_t;
    let (level, name) = (libc::IPPROTO_TCP, libc::TCP_INFO);
    // SAFETY: both pointers are valid for the size given.
    unsafe { sys!(libc::SYS_getsockopt, fd, level, name, &raw mut value, &raw mut bytes)? };
    Ok(value)
}

/// The state and the counts as of one moment: the kernel looks at the state before it locks the rest
/// (tcp_get_info in its net/ipv4/tcp.c), so that a FIN may be counted in a state that has not seen it.
fn info_at_once(fd: i32) -> Result<Info> {
    let mut before = info(fd)?;
    loop {
        let after = info(fd)?;
        if before.state == after.state {
            return Ok(before);
        }
        before = after;
    }
}

fn queue(fd: i32, request: libc::c_ulong) -> Result<u64> {
    let mut value = 0i32;
    // SAFETY: the request writes one int.
    unsafe { sys!(libc::SYS_ioctl, fd, request, &raw mut value)? };
    Ok(value.max(0) as u64)
}

/// Whether the connection goes over the loopback device, whatever addresses of this host its ends have: no other
/// device has packets as long as IP allows, as a rule.
pub fn goes_over_loopback(fd: i32) -> bool {
    // `tcpi_pmtu`, bytes.
    const PATH_MTU: usize = 13;
    const LOOPBACK: u32 = 65_535;
    info(fd).is_ok_and(|info| info.words[PATH_MTU] >= LOOPBACK)
}

/// Bytes that can be read now (SIOCINQ, the same request as FIONREAD).
pub fn readable(fd: i32) -> Result<u64> {
    queue(fd, libc::FIONREAD)
}

/// Bytes that were written and not sent yet (SIOCOUTQNSD).
fn unsent(fd: i32) -> Result<u64> {
    const SIOCOUTQNSD: libc::c_ulong = 0x894b;
    queue(fd, SIOCOUTQNSD)
}

/// Bytes that were written and not acknowledged yet (SIOCOUTQ).
pub fn unacknowledged(fd: i32) -> Result<u64> {
    queue(fd, libc::TIOCOUTQ)
}

/// Whether a close now finds nothing to answer with a reset. Urgent bytes count, which SIOCINQ leaves
/// out, taken or not, as long as the program has not read past them.
pub fn has_read_all(fd: i32) -> bool {
    const SO_MEMINFO: i32 = 55;
    // Its first word is the memory of the receive queue (SK_MEMINFO_RMEM_ALLOC).
    handles::option_int(fd, libc::SOL_SOCKET, SO_MEMINFO) == Ok(0)
}

/// Two calls are not one moment: repeat until the queue did not move in between.
fn steady(fd: i32, request: libc::c_ulong) -> Result<(u64, Info)> {
    let mut before = queue(fd, request)?;
    loop {
        let info = info_at_once(fd)?;
        let after = queue(fd, request)?;
        if before == after {
            return Ok((after, info));
        }
        before = after;
    }
}

/// How many bytes of the TCP connection this end has read. No thread may be reading meanwhile.
pub fn bytes_read(fd: i32) -> Result<u64> {
    let (unread, info) = steady(fd, libc::FIONREAD)?;
    let finished =
        matches!(info.state, TCP_CLOSE_WAIT | TCP_LAST_ACK | TCP_CLOSING | TCP_TIME_WAIT);
    Ok(info.bytes_received.saturating_sub(unread).saturating_sub(u64::from(finished)))
}

/// Whether the socket has, or had, a connection: it listens not, and is not new.
pub fn is_connected(fd: i32) -> bool {
    info(fd).is_ok_and(|info| !matches!(info.state, TCP_CLOSE | TCP_LISTEN | TCP_SYN_SENT))
}

/// Whether the peer has ended its direction (its FIN arrived) or the connection is gone. Unlike
/// POLLRDHUP this does not mistake a shutdown of our own for it.
pub fn peer_has_ended(fd: i32) -> bool {
    info(fd).map_or(true, |info| {
        matches!(
            info.state,
            TCP_CLOSE_WAIT | TCP_LAST_ACK | TCP_CLOSING | TCP_TIME_WAIT | TCP_CLOSE
        )
    })
}

/// Whether this end was shut down for reading, by whatever process.
pub fn is_shut_for_reading(fd: i32) -> bool {
    handles::poll_now(fd, libc::POLLRDHUP) & libc::POLLRDHUP != 0 && !peer_has_ended(fd)
}

/// Sends what Nagle's rule, MSG_MORE or TCP_CORK holds back. The last bytes before a ring may be unacknowledged still
/// (their acknowledgement would have come with the peer's next bytes, which took the ring), and
/// would delay the first ones after it. TCP_NODELAY pushes when it is set; it is put back.
pub fn push(fd: i32) {
    if unsent(fd) == Ok(0) {
        return;
    }
    let (level, name) = (libc::IPPROTO_TCP, libc::TCP_NODELAY);
    let values: &[i32] = match crate::handles::option_int(fd, level, name) {
        Ok(0) => &[1, 0],
        Ok(_) => &[1],
        Err(_) => &[],
    };
    for value in values {
        let bytes = size_of::<i32>();
        // SAFETY: a valid int.
        let _ = unsafe { sys!(libc::SYS_setsockopt, fd, level, name, &raw const value, bytes) };
    }
}

/// How many bytes of the TCP connection have arrived here, read or not. A FIN may count as one.
pub fn bytes_received(fd: i32) -> Result<u64> {
    info(fd).map(|info| info.bytes_received)
}

/// As [`bytes_received`] without the FIN. `was_reset`: a connection that is closed now was reset, and need not
/// have had one.
///
/// # Errors
/// As the kernel's.
pub fn bytes_arrived(fd: i32, was_reset: bool) -> Result<u64> {
    info_at_once(fd).map(|info| without_fin(&info, was_reset))
}

/// Those of them that this end has read.
///
/// # Errors
/// As the kernel's.
pub fn bytes_taken(fd: i32, was_reset: bool) -> Result<u64> {
    let (unread, info) = steady(fd, libc::FIONREAD)?;
    Ok(without_fin(&info, was_reset).saturating_sub(unread))
}

fn without_fin(info: &Info, was_reset: bool) -> u64 {
    let fin = match info.state {
        TCP_CLOSE_WAIT | TCP_LAST_ACK | TCP_CLOSING => true,
        TCP_CLOSE => !was_reset,
        _ => false,
    };
    info.bytes_received.saturating_sub(u64::from(fin))
}

/// How many bytes of the TCP connection this end has written. No thread may be writing
/// meanwhile, and its own FIN must not have been sent. `connector`: this end called connect,
/// and the kernel counts its SYN as acknowledged.
///
/// # Errors
/// ENOTCONN when the connection is not in a state in which the count is exact.
pub fn bytes_written(fd: i32, connector: bool) -> Result<u64> {
    let (unacknowledged, info) = steady(fd, libc::TIOCOUTQ)?;
    match info.state {
        TCP_SYN_SENT | TCP_FIN_WAIT1 | TCP_FIN_WAIT2 | TCP_CLOSE | TCP_CLOSING | TCP_LAST_ACK => {
            Err(crate::Errno(libc::ENOTCONN))
        }
        _ => Ok((info.bytes_acked + unacknowledged).saturating_sub(u64::from(connector))),
    }
}

/// Whether a receive would not find nothing: bytes, the end, or an error.
pub fn has_news(fd: i32) -> bool {
    handles::poll_now(fd, libc::POLLIN) & (libc::POLLIN | libc::POLLHUP | libc::POLLERR) != 0
}

/// Whether a send would not find the buffer full: room, or an error.
pub fn has_room(fd: i32) -> bool {
    handles::poll_now(fd, libc::POLLOUT) & (libc::POLLOUT | libc::POLLHUP | libc::POLLERR) != 0
}

/// Until that is so, or a handler ran, or some time has passed.
pub fn await_room(fd: i32) {
    const LOOK_NS: u64 = 10_000_000;
    handles::poll_within(fd, libc::POLLOUT, LOOK_NS);
}

/// Pieces for which there is room on any stack. A call for no bytes at all is not made.
const PIECES_FEW: usize = 32;

/// Sends what the kernel takes of `pieces`, without waiting and without SIGPIPE; `more` is to be sent together with
/// what follows (MSG_MORE).
///
/// # Errors
/// EAGAIN: nothing now. EFAULT: a piece is no memory. Anything else is the connection's.
///
/// # Safety
/// Every piece is readable, or no memory at all.
#[inline]
pub unsafe fn send_now(
    fd: i32,
    pieces: impl Iterator<Item = (*mut u8, usize)>,
    more: bool,
) -> Result<usize> {
    let more = if more { libc::MSG_MORE } else { 0 };
    // SAFETY: the caller's promise.
    unsafe {
        move_now(libc::SYS_sendmsg, fd, pieces, more | libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL)
    }
}

/// Receives what is there into `pieces`, without waiting; 0 is the end of the stream. `peek` leaves
/// the bytes there, `discard` counts them without giving them.
///
/// # Errors
/// As for [`send_now`].
///
/// # Safety
/// Every piece is writable, or no memory at all.
#[inline]
pub unsafe fn receive_now(
    fd: i32,
    pieces: impl Iterator<Item = (*mut u8, usize)>,
    peek: bool,
    discard: bool,
) -> Result<usize> {
    let peek = if peek { libc::MSG_PEEK } else { 0 };
    let discard = if discard { libc::MSG_TRUNC } else { 0 };
    // SAFETY: the caller's promise.
    unsafe { move_now(libc::SYS_recvmsg, fd, pieces, peek | discard | libc::MSG_DONTWAIT) }
}

/// One call for all pieces, because the kernel tells a connection's error only once: were a second
/// call to meet it, after a first had moved bytes, it would be lost.
#[inline]
unsafe fn move_now(
    number: libc::c_long,
    fd: i32,
    pieces: impl Iterator<Item = (*mut u8, usize)>,
    flags: i32,
) -> Result<usize> {
    let mut pieces = pieces.map(|(base, len)| libc::iovec { iov_base: base.cast(), iov_len: len });
    let mut few = [libc::iovec { iov_base: core::ptr::null_mut(), iov_len: 0 }; PIECES_FEW];
    let mut count = 0;
    for (slot, piece) in few.iter_mut().zip(&mut pieces) {
        *slot = piece;
        count += 1;
    }
    // SAFETY: the caller's promise.
    let call = |vector: &mut [libc::iovec]| unsafe { move_vector(number, fd, vector, flags) };
    match pieces.next() {
        None => call(&mut few[..count]),
        Some(next) => call(&mut with_more(&few, next, pieces)),
    }
}

/// All of many pieces, as far as the kernel takes them. A small stack has no room for these.
#[cold]
fn with_more(
    few: &[libc::iovec],
    next: libc::iovec,
    rest: impl Iterator<Item = libc::iovec>,
) -> Vec<libc::iovec> {
    const IOV_MAX: usize = 1024;
    few.iter().copied().chain([next]).chain(rest).take(IOV_MAX).collect()
}

/// # Safety
/// As for [`move_now`].
unsafe fn move_vector(
    number: libc::c_long,
    fd: i32,
    vector: &mut [libc::iovec],
    flags: i32,
) -> Result<usize> {
    if vector.iter().all(|piece| piece.iov_len == 0) {
        return Ok(0);
    }
    // SAFETY: zero is a valid msghdr.
    let mut message: libc::msghdr = unsafe { core::mem::zeroed() };
    message.msg_iov = vector.as_mut_ptr();
    message.msg_iovlen = vector.len();
    loop {
        // SAFETY: the message and its vector are valid; the pieces are the caller's promise.
        match unsafe { sys!(number, fd, &raw mut message, flags) } {
            Err(crate::Errno::INTR) => {}
            result => return result,
        }
    }
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsRawFd;

    #[test]
    fn a_connection_of_this_host_goes_over_the_loopback_device() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        assert!(!goes_over_loopback(listener.as_raw_fd()));
        let address = listener.local_addr().unwrap();
        let (one, (other, _)) = (TcpStream::connect(address).unwrap(), listener.accept().unwrap());
        assert!(goes_over_loopback(one.as_raw_fd()) && goes_over_loopback(other.as_raw_fd()));
    }
}
