//! Control sockets: abstract Unix sockets, and the descriptors and credentials that pass by them (unix(7)).

use core::mem::{size_of, zeroed};

use super::numbers::{close, keep_high, Numbers};
use crate::{sys, Errno, Result};

/// Name of a rendezvous: an abstract Unix address, scoped by the kernel to this network namespace.
#[derive(Clone, Copy)]
pub struct Name {
    address: libc::sockaddr_un,
    bytes: libc::socklen_t,
}

impl Name {
    /// At most 100 bytes of `text` are used.
    pub fn new(text: &[u8]) -> Name {
        // SAFETY: zero is a valid sockaddr_un.
        let mut address: libc::sockaddr_un = unsafe { zeroed() };
        address.sun_family = libc::AF_UNIX as libc::sa_family_t;
        let used = text.len().min(100);
        for (to, from) in address.sun_path[1..].iter_mut().zip(&text[..used]) {
            *to = *from as libc::c_char;
        }
        Name { address, bytes: (size_of::<libc::sa_family_t>() + 1 + used) as libc::socklen_t }
    }
}

fn control_socket() -> Result<i32> {
    let kind = libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    // SAFETY: no pointers.
    Ok(unsafe { sys!(libc::SYS_socket, libc::AF_UNIX, kind, 0)? } as i32)
}

/// Listens under `name`.
///
/// # Errors
/// EADDRINUSE: somebody else does.
pub fn listen_at(name: &Name) -> Result<i32> {
    let _numbers = Numbers::hold();
    let fd = control_socket()?;
    // SAFETY: the address is valid for `bytes`.
    let bound = unsafe { sys!(libc::SYS_bind, fd, &raw const name.address, name.bytes) };
    // SAFETY: no pointers.
    let listening = bound.and_then(|_| unsafe { sys!(libc::SYS_listen, fd, 4) });
    match listening {
        Ok(_) => keep_high(fd),
        Err(error) => {
            close(fd);
            Err(error)
        }
    }
}

/// Connects to whoever listens under `name`, without waiting.
///
/// # Errors
/// ECONNREFUSED: nobody does.
pub fn connect_to(name: &Name) -> Result<i32> {
    let _numbers = Numbers::hold();
    let fd = control_socket()?;
    // SAFETY: the address is valid for `bytes`.
    match unsafe { sys!(libc::SYS_connect, fd, &raw const name.address, name.bytes) } {
        Ok(_) => keep_high(fd),
        Err(error) => {
            close(fd);
            Err(error)
        }
    }
}

/// Accepts one connection of a rendezvous.
///
/// # Errors
/// EAGAIN: nobody has come.
pub fn accept_from(listener: i32) -> Result<i32> {
    let _numbers = Numbers::hold();
    let flags = libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    // SAFETY: null address pointers are allowed.
    keep_high(unsafe { sys!(libc::SYS_accept4, listener, 0, 0, flags)? } as i32)
}

/// Descriptors one message can carry.
pub const PASSED_MAX: usize = 4;

#[repr(C, align(8))]
struct ControlBuffer([u8; 64]);

/// Sends one message with descriptors.
///
/// # Errors
/// EAGAIN: the peer does not read. EPIPE: it is gone.
pub fn send_message(fd: i32, bytes: &[u8], pass: &[i32]) -> Result<()> {
    let mut control = ControlBuffer([0; 64]);
    let mut vector =
        libc::iovec { iov_base: bytes.as_ptr() as *mut libc::c_void, iov_len: bytes.len() };
    // SAFETY: zero is a valid msghdr.
    let mut message: libc::msghdr = unsafe { zeroed() };
    message.msg_iov = &raw mut vector;
    message.msg_iovlen = 1;
    let pass = &pass[..pass.len().min(PASSED_MAX)];
    if !pass.is_empty() {
        let header = libc::cmsghdr {
            cmsg_len: size_of::<libc::cmsghdr>() + size_of_val(pass),
            cmsg_level: libc::SOL_SOCKET,
            cmsg_type: libc::SCM_RIGHTS,
        };
        // SAFETY: the buffer is aligned for and larger than a header and four descriptors.
        unsafe { control.0.as_mut_ptr().cast::<libc::cmsghdr>().write(header) };
        // SAFETY: as above; the data starts right behind the 16-byte header.
        let data = unsafe { control.0.as_mut_ptr().add(size_of::<libc::cmsghdr>()) };
        // SAFETY: four descriptors fit into the rest of the buffer.
        unsafe { core::ptr::copy_nonoverlapping(pass.as_ptr(), data.cast::<i32>(), pass.len()) };
        message.msg_control = control.0.as_mut_ptr().cast();
        message.msg_controllen = size_of::<libc::cmsghdr>() + size_of_val(pass);
    }
    let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
    // SAFETY: every pointer in `message` is valid for the call.
    unsafe { sys!(libc::SYS_sendmsg, fd, &raw const message, flags) }.map(|_| ())
}

/// A received message: its length and the descriptors that came with it (now ours).
pub struct Received {
    pub bytes: usize,
    pub passed: [i32; PASSED_MAX],
    pub passed_count: usize,
}

/// Receives one message. Its descriptors are ours: close them.
///
/// # Errors
/// EAGAIN: none is there. Zero bytes: the other side is gone.
pub fn receive_message(fd: i32, buffer: &mut [u8]) -> Result<Received> {
    let _numbers = Numbers::hold();
    let mut control = ControlBuffer([0; 64]);
    let mut vector = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
    // SAFETY: zero is a valid msghdr.
    let mut message: libc::msghdr = unsafe { zeroed() };
    message.msg_iov = &raw mut vector;
    message.msg_iovlen = 1;
    message.msg_control = control.0.as_mut_ptr().cast();
    message.msg_controllen = size_of::<libc::cmsghdr>() + PASSED_MAX * size_of::<i32>();
    let flags = libc::MSG_DONTWAIT | libc::MSG_CMSG_CLOEXEC;
    // SAFETY: every pointer in `message` is valid for the call.
    let bytes = unsafe { sys!(libc::SYS_recvmsg, fd, &raw mut message, flags)? };
    let mut received = Received { bytes, passed: [-1; PASSED_MAX], passed_count: 0 };
    if message.msg_controllen >= size_of::<libc::cmsghdr>() {
        // SAFETY: the kernel wrote a header at the start of the aligned buffer.
        let header = unsafe { control.0.as_ptr().cast::<libc::cmsghdr>().read() };
        if header.cmsg_level == libc::SOL_SOCKET && header.cmsg_type == libc::SCM_RIGHTS {
            let payload = header.cmsg_len.saturating_sub(size_of::<libc::cmsghdr>());
            let count = (payload / size_of::<i32>()).min(PASSED_MAX);
            // SAFETY: within the buffer, behind the header.
            let data = unsafe { control.0.as_ptr().add(size_of::<libc::cmsghdr>()) };
            let target = received.passed.as_mut_ptr();
            // SAFETY: the kernel wrote `count` descriptors there.
            unsafe { core::ptr::copy_nonoverlapping(data.cast::<i32>(), target, count) };
            received.passed_count = count;
            for fd in &mut received.passed[..count] {
                *fd = keep_high(*fd).unwrap_or(-1);
            }
        }
    }
    Ok(received)
}

/// Who is at the other end of a Unix socket: process and user, as the kernel recorded them.
pub fn credentials(fd: i32) -> Result<libc::ucred> {
    let mut who = libc::ucred { pid: 0, uid: u32::MAX, gid: u32::MAX };
    let mut bytes = size_of::<libc::ucred>() as libc::socklen_t;
    let (level, name) = (libc::SOL_SOCKET, libc::SO_PEERCRED);
    // SAFETY: both pointers are valid.
    unsafe { sys!(libc::SYS_getsockopt, fd, level, name, &raw mut who, &raw mut bytes)? };
    if bytes as usize != size_of::<libc::ucred>() {
        return Err(Errno(libc::EINVAL));
    }
    Ok(who)
}
