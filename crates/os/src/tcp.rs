//! The stream offsets that the kernel keeps for a TCP socket (`tcp(7)` TCP_INFO, SIOCINQ,
//! SIOCOUTQ), however its bytes were read or written.

use core::mem::size_of;

use crate::{sys, Result};

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

fn queue(fd: i32, request: libc::c_ulong) -> Result<u64> {
    let mut value = 0i32;
    // SAFETY: the request writes one int.
    unsafe { sys!(libc::SYS_ioctl, fd, request, &raw mut value)? };
    Ok(value.max(0) as u64)
}

/// Bytes that can be read now (SIOCINQ, the same request as FIONREAD).
pub fn readable(fd: i32) -> Result<u64> {
    queue(fd, libc::FIONREAD)
}

/// Two calls are not one moment: repeat until the queue did not move in between.
fn steady(fd: i32, request: libc::c_ulong) -> Result<(u64, Info)> {
    let mut before = queue(fd, request)?;
    loop {
        let info = info(fd)?;
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

/// How many bytes of the TCP connection have arrived here, read or not. A FIN may count as one.
pub fn bytes_received(fd: i32) -> Result<u64> {
    info(fd).map(|info| info.bytes_received)
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
