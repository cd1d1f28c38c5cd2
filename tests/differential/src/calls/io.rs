//! Moving bytes: every way that libc offers to read or write a stream.

use super::socket::Address;
use super::{Fd, Got};
use std::mem::{size_of, zeroed};
use std::ptr::null_mut;

extern "C" {
    fn __read_chk(fd: Fd, buffer: *mut libc::c_void, len: usize, room: usize) -> isize;
    fn __recv_chk(fd: Fd, buffer: *mut libc::c_void, len: usize, room: usize, flags: i32) -> isize;
    fn __recvfrom_chk(
        fd: Fd,
        buffer: *mut libc::c_void,
        len: usize,
        room: usize,
        flags: i32,
        name: *mut libc::sockaddr,
        name_len: *mut libc::socklen_t,
    ) -> isize;
}

pub fn send(fd: Fd, bytes: &[u8], flags: i32) -> Got {
    call!(libc::send(fd, bytes.as_ptr().cast(), bytes.len(), flags))
}

pub fn recv(fd: Fd, buffer: &mut [u8], flags: i32) -> Got {
    call!(libc::recv(fd, buffer.as_mut_ptr().cast(), buffer.len(), flags))
}

pub fn write(fd: Fd, bytes: &[u8]) -> Got {
    call!(libc::write(fd, bytes.as_ptr().cast(), bytes.len()))
}

pub fn read(fd: Fd, buffer: &mut [u8]) -> Got {
    call!(libc::read(fd, buffer.as_mut_ptr().cast(), buffer.len()))
}

pub fn read_checked(fd: Fd, buffer: &mut [u8]) -> Got {
    let len = buffer.len();
    call!(__read_chk(fd, buffer.as_mut_ptr().cast(), len, len))
}

pub fn recv_checked(fd: Fd, buffer: &mut [u8], flags: i32) -> Got {
    let len = buffer.len();
    call!(__recv_chk(fd, buffer.as_mut_ptr().cast(), len, len, flags))
}

pub fn recvfrom_checked(fd: Fd, buffer: &mut [u8], flags: i32) -> Got {
    let (start, len) = (buffer.as_mut_ptr().cast(), buffer.len());
    call!(__recvfrom_chk(fd, start, len, len, flags, null_mut(), null_mut()))
}

/// The address is the scenario's own: it may be one that no program can read.
pub fn send_from(fd: Fd, address: usize, len: usize) -> Got {
    call!(libc::send(fd, address as *const _, len, libc::MSG_NOSIGNAL))
}

/// The address is the scenario's own: it may be one that no program can write.
pub fn recv_into(fd: Fd, address: usize, len: usize, flags: i32) -> Got {
    call!(libc::recv(fd, address as *mut _, len, flags))
}

pub fn sendto(fd: Fd, bytes: &[u8], flags: i32, to: Option<&Address>) -> Got {
    let (name, len) = to.map_or((std::ptr::null(), 0), Address::parts);
    call!(libc::sendto(fd, bytes.as_ptr().cast(), bytes.len(), flags, name, len))
}

/// What came, and the length that the call left for the sender's name.
pub fn recvfrom(fd: Fd, buffer: &mut [u8], flags: i32) -> (Got, u32) {
    let mut name = [0u8; size_of::<libc::sockaddr_storage>()];
    let mut len = name.len() as libc::socklen_t;
    let (start, room) = (buffer.as_mut_ptr().cast(), buffer.len());
    let name = name.as_mut_ptr().cast();
    let got = call!(libc::recvfrom(fd, start, room, flags, name, &raw mut len));
    (got, len)
}

/// An I/O vector from borrowed parts; an empty part has a NULL base, as programs do it.
fn gather(parts: &[&[u8]]) -> Vec<libc::iovec> {
    let base = |part: &[u8]| if part.is_empty() { null_mut() } else { part.as_ptr() as *mut _ };
    parts.iter().map(|part| libc::iovec { iov_base: base(part), iov_len: part.len() }).collect()
}

fn scatter(parts: &mut [Vec<u8>]) -> Vec<libc::iovec> {
    let part = |part: &mut Vec<u8>| match part.len() {
        0 => libc::iovec { iov_base: null_mut(), iov_len: 0 },
        len => libc::iovec { iov_base: part.as_mut_ptr().cast(), iov_len: len },
    };
    parts.iter_mut().map(part).collect()
}

pub fn writev(fd: Fd, parts: &[&[u8]]) -> Got {
    let vector = gather(parts);
    call!(libc::writev(fd, vector.as_ptr(), vector.len() as i32))
}

pub fn readv(fd: Fd, parts: &mut [Vec<u8>]) -> Got {
    let vector = scatter(parts);
    call!(libc::readv(fd, vector.as_ptr(), vector.len() as i32))
}

/// A vector whose second part lies at an address that cannot be used.
pub fn writev_with_bad_part(fd: Fd, good: &[u8]) -> Got {
    let mut vector = gather(&[good]);
    vector.push(libc::iovec { iov_base: 8 as *mut _, iov_len: 16 });
    call!(libc::writev(fd, vector.as_ptr(), 2))
}

pub fn writev_of_count(fd: Fd, count: i32) -> Got {
    call!(libc::writev(fd, std::ptr::null(), count))
}

fn header(vector: &mut [libc::iovec]) -> libc::msghdr {
    // SAFETY: msghdr is plain data, for which zero is a value.
    let mut header: libc::msghdr = unsafe { zeroed() };
    header.msg_iov = vector.as_mut_ptr();
    header.msg_iovlen = vector.len() as _;
    header
}

pub fn sendmsg(fd: Fd, parts: &[&[u8]], flags: i32) -> Got {
    let mut vector = gather(parts);
    let header = header(&mut vector);
    call!(libc::sendmsg(fd, &raw const header, flags))
}

/// What recvmsg gave, with everything it writes back into the header.
pub struct Message {
    pub got: Got,
    pub parts: Vec<Vec<u8>>,
    pub flags: i32,
    pub control_len: usize,
    /// How many bytes follow, if that was told (TCP_INQ).
    pub unread: Option<i32>,
    pub name_len: u32,
}

/// Receives into parts of the given sizes, with room for a name and for control data.
pub fn recvmsg(fd: Fd, sizes: &[usize], flags: i32) -> Message {
    recvmsg_with_room(fd, sizes, flags, 128)
}

/// With room for so many bytes of control data, 128 at most.
pub fn recvmsg_with_room(fd: Fd, sizes: &[usize], flags: i32, room: usize) -> Message {
    let mut parts: Vec<Vec<u8>> = sizes.iter().map(|&size| vec![0; size]).collect();
    let mut vector = scatter(&mut parts);
    let mut header = header(&mut vector);
    let (mut name, mut control) = ([0u8; 128], [0u64; 16]);
    header.msg_name = name.as_mut_ptr().cast();
    header.msg_namelen = name.len() as u32;
    header.msg_control = control.as_mut_ptr().cast();
    header.msg_controllen = room.min(size_of_val(&control)) as _;
    header.msg_flags = 0x5555;
    let got = call!(libc::recvmsg(fd, &raw mut header, flags));
    Message {
        got,
        parts,
        flags: header.msg_flags,
        control_len: header.msg_controllen as _,
        unread: unread_of(&header),
        name_len: header.msg_namelen,
    }
}

/// The option, and the message that it asks for (<linux/tcp.h>).
pub const TCP_INQ: i32 = 36;

fn unread_of(message: &libc::msghdr) -> Option<i32> {
    // SAFETY: filled in by the kernel, and within the control buffer.
    unsafe {
        let head = libc::CMSG_FIRSTHDR(message);
        let is_it = !head.is_null()
            && ((*head).cmsg_level, (*head).cmsg_type) == (libc::IPPROTO_TCP, TCP_INQ)
            && (*head).cmsg_len as usize >= libc::CMSG_LEN(4) as usize;
        is_it.then(|| libc::CMSG_DATA(head).cast::<i32>().read_unaligned())
    }
}

/// One message for each part.
pub fn sendmmsg(fd: Fd, parts: &[&[u8]]) -> (Got, Vec<u32>) {
    let mut vector = gather(parts);
    let message = |part: &mut libc::iovec| libc::mmsghdr {
        msg_hdr: header(std::slice::from_mut(part)),
        msg_len: 0,
    };
    let mut messages: Vec<libc::mmsghdr> = vector.iter_mut().map(message).collect();
    let got = call!(libc::sendmmsg(fd, messages.as_mut_ptr(), messages.len() as u32, 0));
    (got, messages.iter().map(|message| message.msg_len).collect())
}

/// One message for each size.
pub fn recvmmsg(fd: Fd, sizes: &[usize], flags: i32) -> (Got, Vec<u32>, Vec<Vec<u8>>) {
    recvmmsg_within(fd, sizes, flags, None)
}

/// What is left of the time is put to `time`.
pub fn recvmmsg_within(
    fd: Fd,
    sizes: &[usize],
    flags: i32,
    time: Option<&mut libc::timespec>,
) -> (Got, Vec<u32>, Vec<Vec<u8>>) {
    let time = time.map_or(null_mut(), |time| &raw mut *time);
    let mut parts: Vec<Vec<u8>> = sizes.iter().map(|&size| vec![0; size]).collect();
    let mut vector = scatter(&mut parts);
    let message = |part: &mut libc::iovec| libc::mmsghdr {
        msg_hdr: header(std::slice::from_mut(part)),
        msg_len: 0,
    };
    let mut messages: Vec<libc::mmsghdr> = vector.iter_mut().map(message).collect();
    let count = messages.len() as u32;
    let got = call!(libc::recvmmsg(fd, messages.as_mut_ptr(), count, flags as _, time));
    (got, messages.iter().map(|message| message.msg_len).collect(), parts)
}

/// The count, and the offset that the call left behind.
pub fn sendfile(to: Fd, from: Fd, offset: i64, len: usize) -> (Got, i64) {
    let mut offset = offset as libc::off_t;
    let got = call!(libc::sendfile(to, from, &raw mut offset, len));
    (got, offset as _)
}

pub fn splice(from: Fd, to: Fd, len: usize, flags: u32) -> Got {
    call!(libc::splice(from, null_mut(), to, null_mut(), len, flags))
}

pub fn pread(fd: Fd, buffer: &mut [u8], offset: libc::off_t) -> Got {
    call!(libc::pread(fd, buffer.as_mut_ptr().cast(), buffer.len(), offset))
}

pub fn lseek(fd: Fd) -> Got {
    call!(libc::lseek(fd, 0, libc::SEEK_CUR))
}

/// The same calls by number, through libc's `syscall`.
pub fn send_by_number(fd: Fd, bytes: &[u8]) -> Got {
    let none = std::ptr::null::<u8>();
    call!(libc::syscall(libc::SYS_sendto, fd, bytes.as_ptr(), bytes.len(), 0, none, 0))
}

pub fn recv_by_number(fd: Fd, buffer: &mut [u8]) -> Got {
    let (start, len, none) = (buffer.as_mut_ptr(), buffer.len(), std::ptr::null::<u8>());
    call!(libc::syscall(libc::SYS_recvfrom, fd, start, len, 0, none, none))
}

pub fn write_by_number(fd: Fd, bytes: &[u8]) -> Got {
    call!(libc::syscall(libc::SYS_write, fd, bytes.as_ptr(), bytes.len()))
}

pub fn read_by_number(fd: Fd, buffer: &mut [u8]) -> Got {
    call!(libc::syscall(libc::SYS_read, fd, buffer.as_mut_ptr(), buffer.len()))
}

/// Room for one control message that carries one descriptor.
type OneDescriptor = [u64; 3];

/// Passes a descriptor over a Unix socket, with one byte beside it.
pub fn pass_descriptor(unix: Fd, fd: Fd) -> Got {
    let mut control: OneDescriptor = [0; 3];
    let mut vector = gather(&[b"d"]);
    let mut header = header(&mut vector);
    header.msg_control = control.as_mut_ptr().cast();
    // SAFETY: only computes. Behind the message nothing may stand that could be another.
    header.msg_controllen = unsafe { libc::CMSG_SPACE(size_of::<Fd>() as u32) } as _;
    let start = control.as_mut_ptr().cast::<libc::cmsghdr>();
    // SAFETY: CMSG_LEN only computes.
    let len = unsafe { libc::CMSG_LEN(size_of::<Fd>() as u32) };
    let message = libc::cmsghdr {
        cmsg_len: len as _,
        cmsg_level: libc::SOL_SOCKET,
        cmsg_type: libc::SCM_RIGHTS,
    };
    // SAFETY: the control area is aligned, zeroed, and holds a header and one descriptor.
    unsafe {
        start.write(message);
        libc::CMSG_DATA(start).cast::<Fd>().write(fd);
    }
    call!(libc::sendmsg(unix, &raw const header, 0))
}

/// Takes the descriptor that [`pass_descriptor`] sent.
pub fn take_descriptor(unix: Fd) -> Got {
    let mut control: OneDescriptor = [0; 3];
    let mut byte = [vec![0u8; 1]];
    let mut vector = scatter(&mut byte);
    let mut header = header(&mut vector);
    header.msg_control = control.as_mut_ptr().cast();
    header.msg_controllen = size_of::<OneDescriptor>() as _;
    let got = call!(libc::recvmsg(unix, &raw mut header, 0));
    if got != Got::Value(1) || header.msg_controllen == 0 {
        return if got.count().is_some() { Got::Errno(libc::ENOENT) } else { got };
    }
    // SAFETY: the kernel put one SCM_RIGHTS message with one descriptor into the area.
    Got::Value(unsafe { libc::CMSG_DATA(control.as_ptr().cast()).cast::<Fd>().read() }.into())
}
