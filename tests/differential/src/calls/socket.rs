//! Making, naming, tuning, copying and closing descriptors.

use super::{Fd, Got};
use std::mem::{size_of, zeroed};

/// Which addresses a stream has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Family {
    V4,
    V6,
    /// The server listens on an IPv6 socket bound to `::ffff:127.0.0.1`, the client uses IPv4.
    Mapped,
}

/// A socket address in the kernel's form.
pub struct Address {
    storage: libc::sockaddr_storage,
    len: libc::socklen_t,
}

impl Address {
    fn empty() -> Address {
        // SAFETY: sockaddr_storage is plain data, for which zero is a value.
        Address { storage: unsafe { zeroed() }, len: size_of::<libc::sockaddr_storage>() as u32 }
    }

    pub fn v4(port: u16) -> Address {
        let mut address = Address::empty();
        let name = libc::sockaddr_in {
            sin_family: libc::AF_INET as u16,
            sin_port: port.to_be(),
            sin_addr: libc::in_addr { s_addr: u32::from_be_bytes([127, 0, 0, 1]).to_be() },
            sin_zero: [0; 8],
        };
        // SAFETY: sockaddr_storage is large enough and aligned for every socket address.
        unsafe { (&raw mut address.storage).cast::<libc::sockaddr_in>().write(name) };
        address.len = size_of::<libc::sockaddr_in>() as u32;
        address
    }

    fn v6_of(port: u16, ip: [u8; 16]) -> Address {
        let mut address = Address::empty();
        let name = libc::sockaddr_in6 {
            sin6_family: libc::AF_INET6 as u16,
            sin6_port: port.to_be(),
            sin6_flowinfo: 0,
            sin6_addr: libc::in6_addr { s6_addr: ip },
            sin6_scope_id: 0,
        };
        // SAFETY: sockaddr_storage is large enough and aligned for every socket address.
        unsafe { (&raw mut address.storage).cast::<libc::sockaddr_in6>().write(name) };
        address.len = size_of::<libc::sockaddr_in6>() as u32;
        address
    }

    pub fn of_server(family: Family, port: u16) -> Address {
        match family {
            Family::V4 => Address::v4(port),
            Family::V6 => Address::v6_of(port, std::net::Ipv6Addr::LOCALHOST.octets()),
            Family::Mapped => {
                Address::v6_of(port, std::net::Ipv4Addr::LOCALHOST.to_ipv6_mapped().octets())
            }
        }
    }

    pub fn as_seen_by_client(family: Family, port: u16) -> Address {
        match family {
            Family::V6 => Address::of_server(Family::V6, port),
            Family::V4 | Family::Mapped => Address::v4(port),
        }
    }

    pub fn parts(&self) -> (*const libc::sockaddr, libc::socklen_t) {
        ((&raw const self.storage).cast(), self.len)
    }

    pub fn port(&self) -> u16 {
        // SAFETY: the storage is initialised; the port of both families is at the same place.
        let name = unsafe { &*(&raw const self.storage).cast::<libc::sockaddr_in>() };
        u16::from_be(name.sin_port)
    }

    /// Everything but the port, which differs from run to run.
    pub fn without_port(&self) -> String {
        match i32::from(self.storage.ss_family) {
            libc::AF_INET => {
                // SAFETY: the family says that the storage holds an IPv4 name.
                let name = unsafe { &*(&raw const self.storage).cast::<libc::sockaddr_in>() };
                let ip = std::net::Ipv4Addr::from(u32::from_be(name.sin_addr.s_addr));
                format!("{ip} length {}", self.len)
            }
            libc::AF_INET6 => {
                // SAFETY: the family says that the storage holds an IPv6 name.
                let name = unsafe { &*(&raw const self.storage).cast::<libc::sockaddr_in6>() };
                let ip = std::net::Ipv6Addr::from(name.sin6_addr.s6_addr);
                format!("{ip} length {}", self.len)
            }
            other => format!("family {other} length {}", self.len),
        }
    }
}

/// <asm-generic/socket.h>.
pub const SO_ZEROCOPY: i32 = 60;

pub fn socket(domain: i32, kind: i32) -> Got {
    call!(libc::socket(domain, kind, 0))
}

pub fn bind(fd: Fd, address: &Address) -> Got {
    let (name, len) = address.parts();
    call!(libc::bind(fd, name, len))
}

pub fn listen(fd: Fd, backlog: i32) -> Got {
    call!(libc::listen(fd, backlog))
}

pub fn connect(fd: Fd, address: &Address) -> Got {
    let (name, len) = address.parts();
    call!(libc::connect(fd, name, len))
}

pub fn accept(fd: Fd) -> Got {
    call!(libc::accept(fd, std::ptr::null_mut(), std::ptr::null_mut()))
}

pub fn accept4(fd: Fd, flags: i32) -> Got {
    call!(libc::accept4(fd, std::ptr::null_mut(), std::ptr::null_mut(), flags))
}

pub fn accept_with_name(fd: Fd) -> (Got, Address) {
    let mut address = Address::empty();
    let name = (&raw mut address.storage).cast();
    let got = call!(libc::accept(fd, name, &raw mut address.len));
    (got, address)
}

pub fn getsockname(fd: Fd) -> (Got, Address) {
    let mut address = Address::empty();
    let name = (&raw mut address.storage).cast();
    let got = call!(libc::getsockname(fd, name, &raw mut address.len));
    (got, address)
}

pub fn getpeername(fd: Fd) -> (Got, Address) {
    let mut address = Address::empty();
    let name = (&raw mut address.storage).cast();
    let got = call!(libc::getpeername(fd, name, &raw mut address.len));
    (got, address)
}

pub fn shutdown(fd: Fd, how: i32) -> Got {
    call!(libc::shutdown(fd, how))
}

pub fn close(fd: Fd) -> Got {
    call!(libc::close(fd))
}

pub fn close_range(first: Fd, last: Fd) -> Got {
    call!(libc::close_range(first as u32, last as u32, 0))
}

pub fn dup(fd: Fd) -> Got {
    call!(libc::dup(fd))
}

pub fn dup2(fd: Fd, to: Fd) -> Got {
    call!(libc::dup2(fd, to))
}

pub fn dup3(fd: Fd, to: Fd, flags: i32) -> Got {
    call!(libc::dup3(fd, to, flags))
}

pub fn fcntl(fd: Fd, command: i32, argument: i32) -> Got {
    call!(libc::fcntl(fd, command, argument))
}

pub fn set_nonblocking(fd: Fd, on: bool) {
    let flags = fcntl(fd, libc::F_GETFL, 0).value("F_GETFL") as i32;
    let wanted = if on { flags | libc::O_NONBLOCK } else { flags & !libc::O_NONBLOCK };
    fcntl(fd, libc::F_SETFL, wanted).value("F_SETFL");
}

/// An ioctl that takes or gives one int.
pub fn ioctl(fd: Fd, request: libc::c_ulong, mut value: i32) -> (Got, i32) {
    let got = call!(libc::ioctl(fd, request as _, &raw mut value));
    (got, value)
}

pub fn setsockopt(fd: Fd, level: i32, name: i32, value: &[u8]) -> Got {
    call!(libc::setsockopt(fd, level, name, value.as_ptr().cast(), value.len() as u32))
}

pub fn set_int(fd: Fd, level: i32, name: i32, value: i32) -> Got {
    setsockopt(fd, level, name, &value.to_ne_bytes())
}

/// The option's bytes, shortened to the length that the call gave.
pub fn getsockopt(fd: Fd, level: i32, name: i32, room: usize) -> (Got, Vec<u8>) {
    let mut value = vec![0xAA; room];
    let mut len = room as libc::socklen_t;
    let got = call!(libc::getsockopt(fd, level, name, value.as_mut_ptr().cast(), &raw mut len));
    value.truncate(len as usize);
    (got, value)
}

/// An int option and the length given with it, as a scenario notes it.
pub fn get_int(fd: Fd, level: i32, name: i32) -> String {
    let (got, value) = getsockopt(fd, level, name, 4);
    match <[u8; 4]>::try_from(value.as_slice()) {
        Ok(bytes) if got.count().is_some() => format!("{}", i32::from_ne_bytes(bytes)),
        _ => format!("{got} with {} bytes", value.len()),
    }
}

pub fn so_error(fd: Fd) -> String {
    let (got, value) = getsockopt(fd, libc::SOL_SOCKET, libc::SO_ERROR, 4);
    match <[u8; 4]>::try_from(value.as_slice()) {
        Ok(bytes) => super::errno_name(i32::from_ne_bytes(bytes)),
        Err(_) => format!("{got} with {} bytes", value.len()),
    }
}

pub fn set_linger(fd: Fd, on: bool, seconds: i32) -> Got {
    let bytes = [i32::from(on).to_ne_bytes(), seconds.to_ne_bytes()].concat();
    setsockopt(fd, libc::SOL_SOCKET, libc::SO_LINGER, &bytes)
}

pub fn set_timeout(fd: Fd, name: i32, milliseconds: i64) -> Got {
    let seconds = (milliseconds / 1000) as libc::time_t;
    let microseconds = (milliseconds % 1000 * 1000) as libc::suseconds_t;
    let bytes = [seconds.to_ne_bytes(), microseconds.to_ne_bytes()].concat();
    setsockopt(fd, libc::SOL_SOCKET, name, &bytes)
}

pub fn pipe() -> (Fd, Fd) {
    let mut ends = [0; 2];
    call!(libc::pipe(ends.as_mut_ptr())).value("pipe");
    (ends[0], ends[1])
}

pub fn socketpair(kind: i32) -> (Fd, Fd) {
    let mut ends = [0; 2];
    call!(libc::socketpair(libc::AF_UNIX, kind, 0, ends.as_mut_ptr())).value("socketpair");
    (ends[0], ends[1])
}

/// What fstat says the descriptor is.
pub fn kind_of(fd: Fd) -> String {
    // SAFETY: stat is plain data, for which zero is a value.
    let mut stat: libc::stat = unsafe { zeroed() };
    match call!(libc::fstat(fd, &raw mut stat)) {
        Got::Errno(error) => super::errno_name(error),
        _ if stat.st_mode & libc::S_IFMT == libc::S_IFSOCK => "socket".to_owned(),
        _ => format!("mode {:o}", stat.st_mode & libc::S_IFMT),
    }
}

pub fn open_null() -> Fd {
    call!(libc::open(c"/dev/null".as_ptr(), libc::O_RDWR | libc::O_CLOEXEC)).fd("open /dev/null")
}

/// The file of this program.
pub fn open_self() -> Fd {
    call!(libc::open(c"/proc/self/exe".as_ptr(), libc::O_RDONLY | libc::O_CLOEXEC))
        .fd("open /proc/self/exe")
}

/// A named pipe of this process, gone with the value.
pub struct Fifo(std::ffi::CString);

impl Default for Fifo {
    fn default() -> Fifo {
        Fifo::new()
    }
}

impl Fifo {
    pub fn new() -> Fifo {
        let name = format!("shunt-fifo-{}", std::process::id());
        let path = std::env::temp_dir().join(name).into_os_string().into_encoded_bytes();
        let path = std::ffi::CString::new(path).expect("a path without NUL");
        call!(libc::mkfifo(path.as_ptr(), 0o600)).value("mkfifo");
        Fifo(path)
    }

    /// Waits for the other end.
    pub fn open(&self, flags: i32) -> Fd {
        call!(libc::open(self.0.as_ptr(), flags)).fd("open a FIFO")
    }
}

impl Drop for Fifo {
    fn drop(&mut self) {
        call!(libc::unlink(self.0.as_ptr()));
    }
}

pub fn memfd() -> Fd {
    call!(libc::memfd_create(c"differential".as_ptr(), libc::MFD_CLOEXEC)).fd("memfd_create")
}

/// Sleeps until a signal ends this process: nobody writes to this pipe.
pub fn pipe_wait_for_ever(out: Fd) {
    let mut room = [0u8; 1];
    loop {
        call!(libc::read(out, room.as_mut_ptr().cast(), 1));
    }
}
