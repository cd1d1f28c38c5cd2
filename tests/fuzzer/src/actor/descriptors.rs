//! What happens to descriptors rather than to bytes.

use super::{fd_of, put, with_table, NO_DESCRIPTOR};
use crate::operation::{CopyCall, How, Setting};
use crate::protocol::Reply;
use shunt_differential::calls::{io, socket, Fd, Got};

pub fn shutdown(fd: Fd, how: How) -> Reply {
    let how = match how {
        How::Read => libc::SHUT_RD,
        How::Write => libc::SHUT_WR,
        How::Both => libc::SHUT_RDWR,
    };
    Reply::said(socket::shutdown(fd, how))
}

pub fn close(slot: u8) -> Reply {
    let fd = put(slot, None).unwrap_or(NO_DESCRIPTOR);
    Reply::said(socket::close(fd))
}

/// The copy's number differs with the call: the lowest free one, or the one that the slot had.
pub fn copy(from: u8, to: u8, call: CopyCall) -> Reply {
    let source = fd_of(from);
    if !matches!(call, CopyCall::Dup2 | CopyCall::Dup3) {
        if let Some(old) = put(to, None) {
            socket::close(old);
        }
    }
    let target = match fd_of(to) {
        NO_DESCRIPTOR => 500 + Fd::from(to),
        fd => fd,
    };
    let got = match call {
        CopyCall::Dup => socket::dup(source),
        CopyCall::Dup2 => socket::dup2(source, target),
        CopyCall::Dup3 => socket::dup3(source, target, libc::O_CLOEXEC),
        CopyCall::Fcntl => socket::fcntl(source, libc::F_DUPFD, 100),
        CopyCall::FcntlCloexec => socket::fcntl(source, libc::F_DUPFD_CLOEXEC, 100),
    };
    if let Some(fd) = got.count() {
        put(to, Some(fd as Fd));
        return Reply::said("copied");
    }
    Reply::said(got)
}

pub fn bytes_waiting(fd: Fd) -> Reply {
    let (got, value) = socket::ioctl(fd, libc::FIONREAD, 0);
    Reply::said(if got.count().is_some() { value.to_string() } else { got.to_string() })
}

pub fn nonblocking(fd: Fd, on: bool, by_ioctl: bool) -> Reply {
    if by_ioctl {
        return Reply::said(socket::ioctl(fd, libc::FIONBIO, i32::from(on)).0);
    }
    let got = socket::fcntl(fd, libc::F_GETFL, 0);
    let Some(flags) = got.count() else { return Reply::said(got) };
    let flags = flags as i32 & !libc::O_NONBLOCK;
    let wanted = if on { flags | libc::O_NONBLOCK } else { flags };
    Reply::said(socket::fcntl(fd, libc::F_SETFL, wanted))
}

pub fn status_flags(fd: Fd) -> Reply {
    let got = socket::fcntl(fd, libc::F_GETFL, 0);
    let Some(flags) = got.count() else { return Reply::said(got) };
    Reply::said(format!("{:o}, a {}", flags, socket::kind_of(fd)))
}

/// Level, name and value of an option that is an int.
fn int_option(setting: Setting) -> Option<(i32, i32, i32)> {
    let of_socket = |name, value: u32| Some((libc::SOL_SOCKET, name, value as i32));
    match setting {
        Setting::NoDelay(on) => Some((libc::IPPROTO_TCP, libc::TCP_NODELAY, on.into())),
        Setting::KeepAlive(on) => of_socket(libc::SO_KEEPALIVE, on.into()),
        Setting::SendBuffer(bytes) => of_socket(libc::SO_SNDBUF, bytes),
        Setting::ReceiveBuffer(bytes) => of_socket(libc::SO_RCVBUF, bytes),
        Setting::LowWater(bytes) => of_socket(libc::SO_RCVLOWAT, bytes),
        Setting::UrgentInLine(on) => of_socket(libc::SO_OOBINLINE, on.into()),
        Setting::Cork(on) => Some((libc::IPPROTO_TCP, libc::TCP_CORK, on.into())),
        Setting::LingerZero(_) | Setting::ReceiveTimeoutMs(_) | Setting::SendTimeoutMs(_) => None,
    }
}

pub fn set(fd: Fd, setting: Setting) -> Reply {
    if let Some((level, name, value)) = int_option(setting) {
        return Reply::said(socket::set_int(fd, level, name, value));
    }
    Reply::said(match setting {
        Setting::LingerZero(on) => socket::set_linger(fd, on, 0),
        Setting::ReceiveTimeoutMs(time) => socket::set_timeout(fd, libc::SO_RCVTIMEO, time.into()),
        Setting::SendTimeoutMs(time) => socket::set_timeout(fd, libc::SO_SNDTIMEO, time.into()),
        _ => Got::Value(0),
    })
}

pub fn get(fd: Fd, setting: Setting) -> Reply {
    let (level, name) = match setting {
        Setting::LingerZero(_) => (libc::SOL_SOCKET, libc::SO_LINGER),
        Setting::ReceiveTimeoutMs(_) => (libc::SOL_SOCKET, libc::SO_RCVTIMEO),
        Setting::SendTimeoutMs(_) => (libc::SOL_SOCKET, libc::SO_SNDTIMEO),
        other => int_option(other).map_or((0, 0), |(level, name, _)| (level, name)),
    };
    let (got, value) = socket::getsockopt(fd, level, name, 16);
    Reply::said(format!("{got} {value:?}"))
}

pub fn names(fd: Fd) -> Reply {
    let ((own_got, own), (peer_got, peer)) = (socket::getsockname(fd), socket::getpeername(fd));
    let name = |got: Got, address: socket::Address| match got.count() {
        Some(_) => address.without_port(),
        None => got.to_string(),
    };
    Reply::said(format!("{}, {}", name(own_got, own), name(peer_got, peer)))
}

pub fn pass(fd: Fd) -> Reply {
    Reply::said(io::pass_descriptor(with_table(|table| table.controls.pass), fd))
}

pub fn take(slot: u8) -> Reply {
    let got = io::take_descriptor(with_table(|table| table.controls.pass));
    if let Some(fd) = got.count() {
        if let Some(old) = put(slot, Some(fd as Fd)) {
            socket::close(old);
        }
        return Reply::said("taken");
    }
    Reply::said(got)
}
