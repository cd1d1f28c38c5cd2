//! `NETLINK_SOCK_DIAG` (sock_diag(7)): an exact look-up of one 4-tuple.

use core::mem::{size_of, zeroed};

use crate::{handles, sys, Errno, Result};

/// An IP endpoint; IPv4 is held in its v4-mapped form, so one connection has one spelling
/// whatever family its sockets have. The port is in host order.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
#[repr(C)]
pub struct Endpoint {
    pub address: [u8; 16],
    pub port: u16,
    pub _zero: u16,
    pub scope: u32,
}

const MAPPED: [u8; 12] = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff];

impl Endpoint {
    /// Whether it is an IPv4 address.
    pub fn is_v4(&self) -> bool {
        self.address[..12] == MAPPED
    }

    /// Whether it is in 127.0.0.0/8 or ::1.
    pub fn is_loopback(&self) -> bool {
        if self.is_v4() {
            self.address[12] == 127
        } else {
            self.address[..15] == [0; 15] && self.address[15] == 1
        }
    }
}

/// The two ends of a connection as one of them sees it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
#[repr(C)]
pub struct Tuple {
    pub local: Endpoint,
    pub remote: Endpoint,
}

impl Tuple {
    /// The same connection as the other end sees it.
    pub fn reversed(&self) -> Tuple {
        Tuple { local: self.remote, remote: self.local }
    }

    /// Whether both ends are surely on this host.
    pub fn same_host(&self) -> bool {
        self.remote.is_loopback() || self.local.address == self.remote.address
    }
}

fn endpoint(storage: &libc::sockaddr_storage) -> Option<Endpoint> {
    let pointer = &raw const *storage;
    match i32::from(storage.ss_family) {
        libc::AF_INET => {
            // SAFETY: the family says what it is, and the storage is large enough.
            let v4 = unsafe { pointer.cast::<libc::sockaddr_in>().read() };
            let mut address = [0; 16];
            address[..12].copy_from_slice(&MAPPED);
            address[12..].copy_from_slice(&v4.sin_addr.s_addr.to_ne_bytes());
            Some(Endpoint { address, port: u16::from_be(v4.sin_port), _zero: 0, scope: 0 })
        }
        libc::AF_INET6 => {
            // SAFETY: as above.
            let v6 = unsafe { pointer.cast::<libc::sockaddr_in6>().read() };
            let port = u16::from_be(v6.sin6_port);
            let address = v6.sin6_addr.s6_addr;
            Some(Endpoint { address, port, _zero: 0, scope: v6.sin6_scope_id })
        }
        _ => None,
    }
}

/// The addresses of a connected TCP socket.
///
/// # Errors
/// ENOTCONN; EAFNOSUPPORT for anything but IPv4 and IPv6.
pub fn tuple(fd: i32) -> Result<Tuple> {
    let ask = |call: libc::c_long| -> Result<Endpoint> {
        // SAFETY: zero is a valid sockaddr_storage.
        let mut storage: libc::sockaddr_storage = unsafe { zeroed() };
        let mut bytes = size_of::<libc::sockaddr_storage>() as libc::socklen_t;
        // SAFETY: both pointers are valid.
        unsafe { sys!(call, fd, &raw mut storage, &raw mut bytes)? };
        endpoint(&storage).ok_or(Errno(libc::EAFNOSUPPORT))
    };
    Ok(Tuple { local: ask(libc::SYS_getsockname)?, remote: ask(libc::SYS_getpeername)? })
}

/// What the kernel says of the socket that has these addresses.
#[derive(Clone, Copy, Debug)]
pub struct Owner {
    pub uid: u32,
    pub cookie: u64,
    pub inode: u32,
}

/// An open question line to the kernel's socket diagnosis.
pub struct Diagnosis {
    fd: i32,
    sequence: u32,
}

const NETLINK_SOCK_DIAG: i32 = 4;
const SOCK_DIAG_BY_FAMILY: u16 = 20;

#[repr(C)]
struct SocketId {
    source_port: u16,
    destination_port: u16,
    source: [u8; 16],
    destination: [u8; 16],
    interface: u32,
    cookie: [u32; 2],
}

#[repr(C)]
struct Request {
    header: libc::nlmsghdr,
    family: u8,
    protocol: u8,
    extensions: u8,
    pad: u8,
    states: u32,
    id: SocketId,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct Answer {
    family: u8,
    state: u8,
    timer: u8,
    retransmissions: u8,
    ports: [u16; 2],
    addresses: [[u8; 16]; 2],
    interface: u32,
    cookie: [u32; 2],
    expires: u32,
    receive_queue: u32,
    write_queue: u32,
    uid: u32,
    inode: u32,
}

impl Diagnosis {
    /// Opens the line (about 6 us).
    pub fn open() -> Result<Diagnosis> {
        let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
        // SAFETY: no pointers.
        let fd = handles::keep_high_at_once(|| unsafe {
            sys!(libc::SYS_socket, libc::AF_NETLINK, kind, NETLINK_SOCK_DIAG).map(|fd| fd as i32)
        })?;
        Ok(Diagnosis { fd, sequence: 0 })
    }

    /// The owner of the socket whose own view of the connection is `end` (about 3 us).
    ///
    /// # Errors
    /// ENOENT: the namespace has no such socket.
    pub fn owner(&mut self, end: &Tuple) -> Result<Owner> {
        // In every namespace (Linux, loopback_net_init).
        const LOOPBACK: u32 = 1;
        let v4 = end.local.is_v4() && end.remote.is_v4();
        let interface = if v4 { 0 } else { end.local.scope };
        match self.owner_at(end, interface) {
            // One that is bound to an interface is found by it alone.
            Err(Errno(libc::ENOENT)) if interface == 0 => self.owner_at(end, LOOPBACK),
            found => found,
        }
    }

    fn owner_at(&mut self, end: &Tuple, interface: u32) -> Result<Owner> {
        self.sequence = self.sequence.wrapping_add(1);
        let v4 = end.local.is_v4() && end.remote.is_v4();
        let pick = |e: &Endpoint| {
            let mut out = [0u8; 16];
            if v4 {
                out[..4].copy_from_slice(&e.address[12..]);
            } else {
                out = e.address;
            }
            out
        };
        let request = Request {
            header: libc::nlmsghdr {
                nlmsg_len: size_of::<Request>() as u32,
                nlmsg_type: SOCK_DIAG_BY_FAMILY,
                nlmsg_flags: libc::NLM_F_REQUEST as u16,
                nlmsg_seq: self.sequence,
                nlmsg_pid: 0,
            },
            family: if v4 { libc::AF_INET } else { libc::AF_INET6 } as u8,
            protocol: libc::IPPROTO_TCP as u8,
            extensions: 0,
            pad: 0,
            states: u32::MAX,
            id: SocketId {
                // An exact look-up names the socket from its own side.
                source_port: end.local.port.to_be(),
                destination_port: end.remote.port.to_be(),
                source: pick(&end.local),
                destination: pick(&end.remote),
                interface,
                cookie: [u32::MAX; 2],
            },
        };
        // SAFETY: `request` is valid for its size.
        unsafe {
            sys!(libc::SYS_sendto, self.fd, &raw const request, size_of::<Request>(), 0, 0, 0)?
        };
        self.answer()
    }

    fn answer(&mut self) -> Result<Owner> {
        #[repr(C, align(8))]
        struct Buffer([u8; 2048]);
        let header_bytes = size_of::<libc::nlmsghdr>();
        loop {
            let mut buffer = Buffer([0; 2048]);
            let base = buffer.0.as_mut_ptr();
            // SAFETY: the buffer is valid for its size.
            let got = unsafe { sys!(libc::SYS_recvfrom, self.fd, base, 2048, 0, 0, 0)? };
            if got < header_bytes {
                return Err(Errno(libc::EPROTO));
            }
            // SAFETY: the aligned buffer holds at least a header.
            let header = unsafe { base.cast::<libc::nlmsghdr>().read() };
            if header.nlmsg_seq != self.sequence {
                continue;
            }
            // SAFETY: still within the buffer.
            let payload = unsafe { base.add(header_bytes) };
            if i32::from(header.nlmsg_type) == libc::NLMSG_ERROR {
                // SAFETY: an error message starts with an int; the buffer is zeroed behind.
                let code = unsafe { payload.cast::<i32>().read() };
                return Err(Errno(if code == 0 { libc::EPROTO } else { -code }));
            }
            if got < header_bytes + size_of::<Answer>() {
                return Err(Errno(libc::EPROTO));
            }
            // SAFETY: checked to be long enough.
            let answer = unsafe { payload.cast::<Answer>().read() };
            let cookie = u64::from(answer.cookie[0]) | u64::from(answer.cookie[1]) << 32;
            return Ok(Owner { uid: answer.uid, cookie, inode: answer.inode });
        }
    }
}

impl Drop for Diagnosis {
    fn drop(&mut self) {
        handles::close(self.fd);
    }
}
