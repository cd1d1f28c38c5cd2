//! Calls whose arguments make no sense, or that few programs make.

use std::ptr::{null_mut, without_provenance_mut};

use super::{Fd, Got};

/// connect(2) with AF_UNSPEC: "dissolve the association".
pub fn dissolve(fd: Fd) -> Got {
    // SAFETY: zero is a valid name, of no family.
    let name: libc::sockaddr = unsafe { std::mem::zeroed() };
    call!(libc::connect(fd, &raw const name, size_of_val(&name) as u32))
}

/// A page that nobody may read.
pub fn closed_page() -> usize {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: a new mapping.
    unsafe { libc::mmap(null_mut(), 4096, libc::PROT_NONE, flags, -1, 0) as usize }
}

pub fn sendto_name(fd: Fd, bytes: &[u8], name: usize, length: u32) -> Got {
    let name = without_provenance_mut::<libc::sockaddr>(name);
    call!(libc::sendto(fd, bytes.as_ptr().cast(), bytes.len(), 0, name, length))
}

/// `length`: what stands where the name's length is to be; nothing stands there if there is no place.
pub fn recvfrom_name(fd: Fd, room: &mut [u8], length: Option<u32>) -> Got {
    // SAFETY: zero is a valid name.
    let mut name: libc::sockaddr_in6 = unsafe { std::mem::zeroed() };
    let mut length = length;
    let place = length.as_mut().map_or(null_mut(), |length| length as *mut u32);
    let name = (&raw mut name).cast();
    call!(libc::recvfrom(fd, room.as_mut_ptr().cast(), room.len(), libc::MSG_DONTWAIT, name, place))
}

fn message(part: &mut libc::iovec, name_length: u32, parts: usize) -> libc::msghdr {
    // SAFETY: zero is a valid start.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_name = (&raw mut message).cast();
    message.msg_namelen = name_length;
    message.msg_iov = part;
    message.msg_iovlen = parts;
    message
}

pub fn sendmsg_name(fd: Fd, bytes: &[u8], name_length: u32, parts: usize) -> Got {
    let base = bytes.as_ptr().cast_mut().cast();
    let mut part = libc::iovec { iov_base: base, iov_len: bytes.len() };
    let message = message(&mut part, name_length, parts);
    call!(libc::sendmsg(fd, &raw const message, 0))
}

pub fn recvmsg_name(fd: Fd, room: &mut [u8], name_length: u32, parts: usize) -> Got {
    let mut part = libc::iovec { iov_base: room.as_mut_ptr().cast(), iov_len: room.len() };
    let mut message = message(&mut part, name_length, parts);
    call!(libc::recvmsg(fd, &raw mut message, libc::MSG_DONTWAIT))
}

pub fn sendmsg_at(fd: Fd, address: usize) -> Got {
    call!(libc::sendmsg(fd, without_provenance_mut(address), 0))
}

pub fn sendmmsg_at(fd: Fd, address: usize) -> Got {
    call!(libc::sendmmsg(fd, without_provenance_mut(address), 1, 0))
}

/// sendmsg(2) whose ancillary data stands at `address`.
pub fn sendmsg_control_at(fd: Fd, address: usize, length: usize) -> Got {
    // SAFETY: zero is a valid start.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_control = without_provenance_mut(address);
    message.msg_controllen = length;
    call!(libc::sendmsg(fd, &raw const message, 0))
}

/// Ancillary data of `length` bytes that says it has `says`.
pub fn sendmsg_control_that_says(fd: Fd, length: usize, says: usize) -> Got {
    let mut control = [0u64; 8];
    control[0] = says as u64;
    // Level SOL_SOCKET, type SCM_RIGHTS.
    control[1] = (libc::SCM_RIGHTS as u64) << 32 | libc::SOL_SOCKET as u64;
    sendmsg_control_at(fd, control.as_ptr() as usize, length)
}

/// select(2) of 64 numbers for reading, whose set stands at `address`.
pub fn select_at(address: usize) -> Got {
    let mut at_once = libc::timeval { tv_sec: 0, tv_usec: 0 };
    let (set, none) = (without_provenance_mut(address), null_mut());
    call!(libc::select(64, set, none, none, &raw mut at_once))
}

pub fn unshare_files() -> Got {
    call!(libc::unshare(libc::CLONE_FILES))
}

pub fn lock_memory_to_come() -> Got {
    call!(libc::mlockall(libc::MCL_FUTURE))
}

pub fn close_from(lowest: Fd) {
    extern "C" {
        fn closefrom(lowest: Fd);
    }
    // SAFETY: no pointers.
    unsafe { closefrom(lowest) };
}

/// Lets this process map so much beyond what it has mapped by now (RLIMIT_AS).
pub fn limit_addresses_to_come(bytes: u64) -> Got {
    let sizes = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages = sizes.split(' ').next().and_then(|pages| pages.parse::<u64>().ok());
    let all = pages.expect("proc(5) tells the size") * 4096 + bytes;
    let limit = libc::rlimit64 { rlim_cur: all, rlim_max: all };
    call!(libc::setrlimit64(libc::RLIMIT_AS, &raw const limit))
}

/// Whether so much can be mapped in one piece.
pub fn mappable(bytes: usize) -> bool {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // SAFETY: a new mapping, which is undone.
    unsafe {
        let base = libc::mmap(null_mut(), bytes, libc::PROT_NONE, flags, -1, 0);
        base != libc::MAP_FAILED && libc::munmap(base, bytes) == 0
    }
}

/// readv(2) with its list of parts at `address`.
pub fn readv_at(fd: Fd, address: usize) -> Got {
    call!(libc::readv(fd, without_provenance_mut(address), 1))
}

/// writev(2) with its list of parts at `address`.
pub fn writev_at(fd: Fd, address: usize) -> Got {
    call!(libc::writev(fd, without_provenance_mut(address), 1))
}

/// A message without a name, whose name's length nobody has set.
fn nameless(part: &mut libc::iovec) -> libc::msghdr {
    // SAFETY: zero is a valid start.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_namelen = 0xffff_fff0;
    message.msg_iov = part;
    message.msg_iovlen = 1;
    message
}

pub fn sendmsg_nameless(fd: Fd, bytes: &[u8]) -> Got {
    let base = bytes.as_ptr().cast_mut().cast();
    let mut part = libc::iovec { iov_base: base, iov_len: bytes.len() };
    let message = nameless(&mut part);
    call!(libc::sendmsg(fd, &raw const message, 0))
}

/// With what stands in the place of the name's length then.
pub fn recvmsg_nameless(fd: Fd, room: &mut [u8]) -> (Got, u32) {
    let mut part = libc::iovec { iov_base: room.as_mut_ptr().cast(), iov_len: room.len() };
    let mut message = nameless(&mut part);
    let got = call!(libc::recvmsg(fd, &raw mut message, libc::MSG_WAITALL));
    (got, message.msg_namelen)
}

/// select(2) for reading, with a count as of getdtablesize(3) and a set of the usual size. Whether the bytes behind
/// it are as they were.
pub fn select_with_a_large_count(fd: Fd) -> (Got, bool) {
    #[repr(C)]
    struct Set {
        set: libc::fd_set,
        behind: [u8; 4096],
    }
    // SAFETY: no bit is set.
    let mut it = Set { set: unsafe { std::mem::zeroed() }, behind: [0xa5; 4096] };
    // SAFETY: the number is that of a descriptor.
    unsafe { libc::FD_SET(fd, &raw mut it.set) };
    let mut time = libc::timeval { tv_sec: 0, tv_usec: 0 };
    let got = call!(libc::select(20_000, &raw mut it.set, null_mut(), null_mut(), &raw mut time));
    (got, it.behind.iter().all(|&byte| byte == 0xa5))
}

/// select(2) for urgent bytes alone, with 30 ms; and the microseconds that are left of them.
pub fn select_for_urgent(fd: Fd) -> (Got, libc::suseconds_t) {
    // SAFETY: no bit is set.
    let mut set: libc::fd_set = unsafe { std::mem::zeroed() };
    // SAFETY: the number is that of a descriptor.
    unsafe { libc::FD_SET(fd, &raw mut set) };
    let mut time = libc::timeval { tv_sec: 0, tv_usec: 30_000 };
    let got = call!(libc::select(fd + 1, null_mut(), null_mut(), &raw mut set, &raw mut time));
    (got, time.tv_usec)
}
