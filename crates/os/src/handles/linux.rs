//! eventfd(2), epoll(7), and what may be asked about any descriptor.

use core::mem::{size_of, zeroed};

use crate::{clock, raw, sys, Result};

mod control;
mod numbers;

pub use control::*;
pub use numbers::*;

/// A new eventfd, non-blocking.
pub fn eventfd() -> Result<i32> {
    let _numbers = Numbers::hold();
    let flags = libc::EFD_CLOEXEC | libc::EFD_NONBLOCK;
    // SAFETY: no pointers.
    keep_high(unsafe { sys!(libc::SYS_eventfd2, 0, flags)? } as i32)
}

/// Rings an eventfd. A full counter means it rings already.
pub fn ring(fd: i32) {
    let one = 1u64;
    // SAFETY: eight readable bytes.
    let _ = unsafe { sys!(libc::SYS_write, fd, &raw const one, 8) };
}

/// Whether a descriptor that somebody passed may be an eventfd: of no kind that stat(2) knows, such as a pipe, to which a write
/// may wait, or end the program.
pub fn may_be_eventfd(fd: i32) -> bool {
    // SAFETY: all zeros is one.
    let mut told: libc::statx = unsafe { core::mem::zeroed() };
    // SAFETY: an empty path, which stands for the descriptor, and a place for the answer.
    let known = unsafe {
        sys!(
            libc::SYS_statx,
            fd,
            c"".as_ptr(),
            libc::AT_EMPTY_PATH,
            libc::STATX_TYPE,
            &raw mut told
        )
    };
    known.is_ok() && u32::from(told.stx_mode) & libc::S_IFMT == 0
}

/// Empties an eventfd that only one thread waits on.
pub fn silence(fd: i32) {
    let mut count = 0u64;
    // SAFETY: eight writable bytes.
    let _ = unsafe { sys!(libc::SYS_read, fd, &raw mut count, 8) };
}

/// Moves the first of `bytes` into `out` by way of a pipe of our own, as `splice` does with
/// `flags`; returns how many.
///
/// # Errors
/// Those of `splice`; nothing was moved then.
pub fn move_through_pipe(bytes: &[u8], out: i32, flags: u32) -> Result<usize> {
    let ends = {
        let _numbers = Numbers::hold();
        let mut low = [-1i32; 2];
        let how = libc::O_CLOEXEC | libc::O_NONBLOCK;
        // SAFETY: room for two descriptors.
        unsafe { sys!(libc::SYS_pipe2, low.as_mut_ptr(), how)? };
        low.map(place_high)
    };
    let moved = (|| {
        let (from, into) = (ends[0]?, ends[1]?);
        // SAFETY: a slice; a pipe that is read by nobody else.
        unsafe {
            let written = sys!(libc::SYS_write, into, bytes.as_ptr(), bytes.len())?;
            sys!(libc::SYS_splice, from, 0, out, 0, written, flags)
        }
    })();
    ends.into_iter().flatten().for_each(close);
    moved
}

/// A new epoll set of ours.
pub fn epoll() -> Result<i32> {
    let _numbers = Numbers::hold();
    // SAFETY: no pointers.
    keep_high(unsafe { sys!(libc::SYS_epoll_create1, libc::EPOLL_CLOEXEC)? } as i32)
}

/// `epoll_ctl` on any set, without passing through the program's symbols.
pub fn epoll_ctl(set: i32, operation: i32, fd: i32, events: u32, data: u64) -> Result<()> {
    let mut event = libc::epoll_event { events, u64: data };
    // SAFETY: `event` is valid.
    unsafe { sys!(libc::SYS_epoll_ctl, set, operation, fd, &raw mut event) }.map(|_| ())
}

/// `epoll_wait` without passing through the program's symbols; waits without bound if
/// `timeout_ms` is negative.
pub fn epoll_wait(set: i32, events: &mut [libc::epoll_event], timeout_ms: i32) -> Result<usize> {
    let (base, count) = (events.as_mut_ptr(), events.len());
    // SAFETY: the slice is writable for `count` events.
    unsafe { sys!(libc::SYS_epoll_pwait, set, base, count, timeout_ms, 0, 8) }
}

/// What `poll` says of one descriptor now.
pub fn poll_now(fd: i32, events: i16) -> i16 {
    poll_within(fd, events, 0)
}

/// What `poll` says of one descriptor once it says anything, or so many nanoseconds later.
pub fn poll_within(fd: i32, events: i16, ns: u64) -> i16 {
    let mut entry = libc::pollfd { fd, events, revents: 0 };
    let span = clock::span(ns);
    // SAFETY: one entry, a valid timespec, no mask.
    let result = unsafe { sys!(libc::SYS_ppoll, &raw mut entry, 1, &raw const span, 0, 8) };
    match result {
        Ok(_) => entry.revents,
        Err(_) => 0,
    }
}

/// Whether the descriptor's open file is in non-blocking mode.
pub fn is_nonblocking(fd: i32) -> bool {
    // SAFETY: no pointers.
    let flags = unsafe { sys!(libc::SYS_fcntl, fd, libc::F_GETFL) };
    flags.is_ok_and(|flags| flags as i32 & libc::O_NONBLOCK != 0)
}

/// Whether the number names an open file.
pub fn is_open(fd: i32) -> bool {
    // SAFETY: no pointers.
    unsafe { sys!(libc::SYS_fcntl, fd, libc::F_GETFD) }.is_ok()
}

/// Whether the descriptor is a regular file.
pub fn is_regular_file(fd: i32) -> bool {
    // SAFETY: zero is a valid stat buffer.
    let mut stat: libc::stat64 = unsafe { zeroed() };
    // SAFETY: `stat` is valid for the call.
    let got = unsafe { sys!(raw::number::FSTAT, fd, &raw mut stat) };
    got.is_ok() && stat.st_mode & libc::S_IFMT == libc::S_IFREG
}

/// Whether the descriptor survives exec.
pub fn survives_exec(fd: i32) -> bool {
    // SAFETY: no pointers.
    let flags = unsafe { sys!(libc::SYS_fcntl, fd, libc::F_GETFD) };
    flags.is_ok_and(|flags| flags as i32 & libc::FD_CLOEXEC == 0)
}

/// `getsockopt` of an integer.
pub fn option_int(fd: i32, level: i32, name: i32) -> Result<i32> {
    let mut value = 0i32;
    let mut bytes = size_of::<i32>() as libc::socklen_t;
    // SAFETY: both pointers are valid for an int.
    unsafe {
        sys!(libc::SYS_getsockopt, fd, level, name, &raw mut value, &raw mut bytes)?;
    }
    Ok(value)
}

/// A socket time-out (SO_RCVTIMEO or SO_SNDTIMEO) in nanoseconds; `None` is for ever.
pub fn option_timeout(fd: i32, name: i32) -> Option<u64> {
    let mut value = libc::timeval { tv_sec: 0, tv_usec: 0 };
    let mut bytes = size_of::<libc::timeval>() as libc::socklen_t;
    // SAFETY: both pointers are valid.
    let got = unsafe {
        sys!(libc::SYS_getsockopt, fd, libc::SOL_SOCKET, name, &raw mut value, &raw mut bytes)
    };
    let ns = value.tv_sec as u64 * 1_000_000_000 + value.tv_usec as u64 * 1000;
    (got.is_ok() && ns > 0).then_some(ns)
}

/// `shutdown` of both directions.
pub fn shut_both(fd: i32) {
    // SAFETY: no pointers.
    let _ = unsafe { sys!(libc::SYS_shutdown, fd, libc::SHUT_RDWR) };
}

/// `shutdown` of the sending direction.
pub fn shut_writing(fd: i32) {
    // SAFETY: no pointers.
    let _ = unsafe { sys!(libc::SYS_shutdown, fd, libc::SHUT_WR) };
}

/// The size of the send buffer as it is now, in the kernel's bytes, which count its own words too (SO_SNDBUF tells
/// twice what was set).
pub fn send_buffer(fd: i32) -> Option<u32> {
    u32::try_from(option_int(fd, libc::SOL_SOCKET, libc::SO_SNDBUF).ok()?).ok()
}

/// The size of the receive buffer if the program has set it, as SO_RCVBUF tells it (twice what was set), by
/// SO_BUF_LOCK, which tells which sizes were set since Linux 5.13.
pub fn receive_buffer_set(fd: i32) -> Option<u32> {
    const SO_BUF_LOCK: i32 = 72;
    const SOCK_RCVBUF_LOCK: i32 = 2;
    let locks = option_int(fd, libc::SOL_SOCKET, SO_BUF_LOCK).ok()?;
    let is_set = locks & SOCK_RCVBUF_LOCK != 0;
    let bytes = is_set.then(|| option_int(fd, libc::SOL_SOCKET, libc::SO_RCVBUF).ok())??;
    u32::try_from(bytes).ok()
}

/// Whether the socket accepts connections (SO_ACCEPTCONN).
pub fn listens(fd: i32) -> bool {
    option_int(fd, libc::SOL_SOCKET, libc::SO_ACCEPTCONN).is_ok_and(|listens| listens != 0)
}

/// How many seconds a close is to wait for the peer (SO_LINGER): with 0 it is a reset.
pub fn lingers(fd: i32) -> Option<i32> {
    let mut value = libc::linger { l_onoff: 0, l_linger: 0 };
    let mut bytes = size_of::<libc::linger>() as libc::socklen_t;
    let (level, name) = (libc::SOL_SOCKET, libc::SO_LINGER);
    // SAFETY: both pointers are valid.
    let got =
        unsafe { sys!(libc::SYS_getsockopt, fd, level, name, &raw mut value, &raw mut bytes) };
    (got.is_ok() && value.l_onoff != 0).then_some(value.l_linger)
}

/// Makes the coming close a reset (SO_LINGER of zero seconds).
pub fn close_will_reset(fd: i32) {
    set_linger(fd, libc::linger { l_onoff: 1, l_linger: 0 });
}

/// Ends the connection with a reset, whoever else has a descriptor of it (connect(2), `AF_UNSPEC`).
pub fn abort(fd: i32) {
    // SAFETY: zeroes are an address of no family.
    let nobody: libc::sockaddr = unsafe { core::mem::zeroed() };
    // SAFETY: an address of its size.
    let _ = unsafe { sys!(libc::SYS_connect, fd, &raw const nobody, size_of::<libc::sockaddr>()) };
}

/// Takes that back, where SO_LINGER was not set before.
pub fn close_will_not_linger(fd: i32) {
    set_linger(fd, libc::linger { l_onoff: 0, l_linger: 0 });
}

fn set_linger(fd: i32, linger: libc::linger) {
    let (level, name) = (libc::SOL_SOCKET, libc::SO_LINGER);
    let bytes = size_of::<libc::linger>();
    // SAFETY: a valid option of its size.
    let _ = unsafe { sys!(libc::SYS_setsockopt, fd, level, name, &raw const linger, bytes) };
}

/// Whether two descriptors name one open file (kcmp(2)); false if the kernel does not say.
pub fn is_same_file(one: i32, other: i32) -> bool {
    const FILE: i32 = 0;
    let own = crate::raw::getpid();
    // SAFETY: no pointers are passed.
    let order = unsafe { sys!(libc::SYS_kcmp, own, own, FILE, one, other) };
    order == Ok(0)
}

/// The kernel's name of a socket, the same for every descriptor of it (SO_COOKIE).
pub fn cookie(fd: i32) -> Result<u64> {
    let mut value = 0u64;
    let mut bytes = size_of::<u64>() as libc::socklen_t;
    let (level, name) = (libc::SOL_SOCKET, libc::SO_COOKIE);
    // SAFETY: both pointers are valid.
    unsafe { sys!(libc::SYS_getsockopt, fd, level, name, &raw mut value, &raw mut bytes)? };
    Ok(value)
}
