//! eventfd(2), epoll(7), abstract Unix sockets with SCM_RIGHTS (unix(7)).

use core::mem::{size_of, zeroed};
use core::sync::atomic::{fence, AtomicI32, AtomicU32, AtomicUsize, Ordering::*};

use super::own;
use crate::{raw, sys, threads, Errno, Result};

/// Our descriptors start here unless the program's limit is lower. Higher would make the kernel
/// grow the descriptor table of every process for nothing.
const HIGH_FD: i32 = 3600;
/// Where they start in this process.
static LOWEST_OWN: AtomicI32 = AtomicI32::new(HIGH_FD);

/// The kernel gives new descriptors the lowest free number. Until one of ours is moved, the program
/// must not see that number taken, nor close it by mistake; so whoever of ours makes a descriptor
/// holds this for a few microseconds, and the program's calls that take a number stand aside.
/// Who holds it, as [`threads::name`] says, or 0.
static HOLDER: AtomicUsize = AtomicUsize::new(0);
/// Calls of the program's that are taking a number now.
static INSIDE: AtomicU32 = AtomicU32::new(0);
/// Descriptors of ours that are being closed: no more marked as ours, and perhaps still open.
static CLOSING: AtomicU32 = AtomicU32::new(0);

/// How often a holder is waited for, a yield or a short sleep each: one that has lost its core may
/// be away for a time slice or more.
const TURNS_MAX: u32 = 2000;
/// How often we wait for the program's calls: one may last (an open of a FIFO), and none is harmed
/// but in its number.
const ASIDE_MAX: u32 = 200;

/// Proof that no call of the program's, nor any other thread of ours, takes a number meanwhile.
pub struct Numbers {
    held: bool,
}

impl Numbers {
    /// Waits for its turn. Bounded, and then without.
    pub fn hold() -> Numbers {
        let me = threads::name();
        let free = || {
            // SYNC numbers -> Numbers::drop: the holder's descriptor has left the low numbers.
            match HOLDER.compare_exchange(0, me, SeqCst, Relaxed) {
                Err(holder) if holder == me => Some(false),
                taken => taken.ok().map(|_| true),
            }
        };
        let held = wait_for(TURNS_MAX, free).unwrap_or(false);
        if held {
            wait_for(ASIDE_MAX, || (INSIDE.load(SeqCst) == 0).then_some(()));
        }
        Numbers { held }
    }
}

impl Drop for Numbers {
    fn drop(&mut self) {
        if self.held {
            // SYNC numbers -> Numbers::hold, with_numbers: see there.
            HOLDER.store(0, SeqCst);
        }
    }
}

/// Makes a call of the program's that takes a number, while none of ours is among the low ones.
#[inline]
pub fn with_numbers<T>(call: impl FnOnce() -> T) -> T {
    if threads::is_alone() {
        // Nobody else is there to hold one.
        return call();
    }
    // SYNC numbers -> Numbers::hold: either sees the other.
    INSIDE.fetch_add(1, SeqCst);
    let holder = HOLDER.load(SeqCst);
    if holder != 0 && holder != threads::name() {
        stand_aside();
    }
    let result = call();
    INSIDE.fetch_sub(1, SeqCst);
    result
}

#[cold]
fn stand_aside() {
    for _ in 0..20 {
        INSIDE.fetch_sub(1, SeqCst);
        await_numbers();
        INSIDE.fetch_add(1, SeqCst);
        // The next holder waits for us, unless it came before we were counted again.
        if HOLDER.load(SeqCst) == 0 {
            break;
        }
    }
}

/// Before the program gives up a number, or a call that may last makes one: lets others finish.
#[inline]
pub fn await_numbers() {
    if HOLDER.load(SeqCst) != 0 {
        let me = threads::name();
        wait_for(TURNS_MAX, || {
            let holder = HOLDER.load(SeqCst);
            (holder == 0 || holder == me).then_some(())
        });
    }
}

/// Tries at once, then yields the core, then sleeps between the tries (about 100 ms in all).
fn wait_for<T>(turns: u32, mut ready: impl FnMut() -> Option<T>) -> Option<T> {
    for turn in 0..turns {
        if let Some(result) = ready() {
            return Some(result);
        }
        if turn < 100 {
            raw::sched_yield();
        } else {
            raw::nanosleep(50_000);
        }
    }
    None
}

/// In a forked child, whose parent's threads do not exist.
pub fn forget_numbers() {
    HOLDER.store(0, SeqCst);
    INSIDE.store(0, SeqCst);
    CLOSING.store(0, SeqCst);
}

/// Moves a fresh descriptor of ours out of the program's range and makes it CLOEXEC.
///
/// # Errors
/// EMFILE when there is no room; the low descriptor is closed in any case.
pub(crate) fn place_high_at_once(fd: impl FnOnce() -> Result<i32>) -> Result<i32> {
    let _numbers = Numbers::hold();
    place_high(fd()?)
}

/// As before, for a descriptor that is low already.
pub fn place_high(fd: i32) -> Result<i32> {
    let high = copy_high(fd);
    close(fd);
    high
}

/// Whether the program may mean one of ours by `fd`, or one that becomes ours at this moment: it is then
/// closed within [`with_numbers`], if it is not ours by then.
#[inline]
pub fn may_be_own(fd: i32) -> bool {
    fd >= LOWEST_OWN.load(Relaxed)
}

/// A second descriptor of the same open file, above the program's numbers and CLOEXEC.
fn copy_high(fd: i32) -> Result<i32> {
    let mut limit = libc::rlimit64 { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `limit` is valid.
    unsafe { sys!(libc::SYS_prlimit64, 0, libc::RLIMIT_NOFILE, 0, &raw mut limit)? };
    let lowest = match i32::try_from(limit.rlim_cur) {
        Ok(limit) if limit <= HIGH_FD + 400 => limit - limit / 4,
        _ => HIGH_FD,
    };
    LOWEST_OWN.fetch_min(lowest, Relaxed);
    // From the moment it is there to the mark: nobody closes it.
    let _numbers = Numbers::hold();
    // SAFETY: no pointers.
    let high = unsafe { sys!(libc::SYS_fcntl, fd, libc::F_DUPFD_CLOEXEC, lowest) }? as i32;
    own::mark(high, true);
    Ok(high)
}

/// Has the kernel enlarge the table of descriptors for ours. It does that when a number is first taken,
/// and then a process of several threads waits for a grace period, some 10 ms (expand_fdtable in the
/// kernel's fs/file.c); one of a single thread does not.
pub fn make_room() {
    if let Some(high) = (0..3).find_map(|fd| copy_high(fd).ok()) {
        close(high);
    }
}

/// Closes a descriptor of ours.
pub fn close(fd: i32) {
    CLOSING.fetch_add(1, SeqCst);
    // SYNC closing -> was_listed_as_own: who finds the mark gone finds the count.
    fence(SeqCst);
    own::mark(fd, false);
    // SAFETY: no pointers; the caller owns `fd`.
    let _ = unsafe { sys!(libc::SYS_close, fd) };
    CLOSING.fetch_sub(1, SeqCst);
}

/// The number is the program's from now on, and nobody closes it as ours.
pub fn give(fd: i32) {
    own::mark(fd, false);
}

/// Whether the number was a descriptor of ours when the program had a list of its descriptors made, some time
/// ago: it is ours, or was and is not open any more. (If it is, it is the program's by now.)
pub fn was_listed_as_own(fd: i32) -> bool {
    if !may_be_own(fd) {
        return false;
    }
    // One that was just made is not marked before its maker lets the numbers go.
    await_numbers();
    if own::is_own(fd) || !own::was_own(fd) {
        return own::is_own(fd);
    }
    // SYNC closing -> close: the mark was gone.
    fence(SeqCst);
    wait_for(TURNS_MAX, || (CLOSING.load(SeqCst) == 0).then_some(()));
    !is_open(fd)
}

/// A new eventfd, non-blocking.
pub fn eventfd() -> Result<i32> {
    let _numbers = Numbers::hold();
    let flags = libc::EFD_CLOEXEC | libc::EFD_NONBLOCK;
    // SAFETY: no pointers.
    place_high(unsafe { sys!(libc::SYS_eventfd2, 0, flags)? } as i32)
}

/// Rings an eventfd. A full counter means it rings already.
pub fn ring(fd: i32) {
    let one = 1u64;
    // SAFETY: eight readable bytes.
    let _ = unsafe { sys!(libc::SYS_write, fd, &raw const one, 8) };
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
    place_high(unsafe { sys!(libc::SYS_epoll_create1, libc::EPOLL_CLOEXEC)? } as i32)
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
    let mut entry = libc::pollfd { fd, events, revents: 0 };
    let zero = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: one entry, a valid timespec, no mask.
    let result = unsafe { sys!(libc::SYS_ppoll, &raw mut entry, 1, &raw const zero, 0, 8) };
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

/// The size of the send buffer if the program has set it, as SO_SNDBUF tells it (twice what was set).
pub fn send_buffer_set(fd: i32) -> Option<u32> {
    buffer_set(fd, 1, libc::SO_SNDBUF)
}

/// As [`send_buffer_set`], of the receive buffer.
pub fn receive_buffer_set(fd: i32) -> Option<u32> {
    buffer_set(fd, 2, libc::SO_RCVBUF)
}

/// SO_BUF_LOCK tells which sizes were set, since Linux 5.13.
fn buffer_set(fd: i32, lock: i32, name: i32) -> Option<u32> {
    const SO_BUF_LOCK: i32 = 72;
    let locks = option_int(fd, libc::SOL_SOCKET, SO_BUF_LOCK).ok()?;
    let bytes = (locks & lock != 0).then(|| option_int(fd, libc::SOL_SOCKET, name).ok())??;
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

/// A second descriptor of the same open file, high and CLOEXEC.
pub fn duplicate(fd: i32) -> Result<i32> {
    copy_high(fd)
}

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
        Ok(_) => place_high(fd),
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
        Ok(_) => place_high(fd),
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
    place_high(unsafe { sys!(libc::SYS_accept4, listener, 0, 0, flags)? } as i32)
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
                *fd = place_high(*fd).unwrap_or(-1);
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_of_ours_was_listed_until_it_is_the_programs() {
        let fd = eventfd().expect("an eventfd");
        assert!(was_listed_as_own(fd));
        close(fd);
        assert!(was_listed_as_own(fd), "it is not open any more");
        // SAFETY: no pointers.
        let theirs = unsafe { sys!(libc::SYS_fcntl, 0, libc::F_DUPFD, fd) }.expect("room") as i32;
        assert!(!was_listed_as_own(theirs));
        // SAFETY: no pointers.
        let _ = unsafe { sys!(libc::SYS_close, theirs) };
        assert!(!was_listed_as_own(0) && !was_listed_as_own(i32::MAX));
    }

    #[test]
    fn room_is_made_for_our_numbers() {
        make_room();
        let status = std::fs::read_to_string("/proc/self/status").expect("proc(5)");
        let size = status.lines().find_map(|line| line.strip_prefix("FDSize:"));
        let size: u64 = size.and_then(|size| size.trim().parse().ok()).expect("a number");
        let high = copy_high(0).expect("standard input");
        assert!(size > high as u64);
        close(high);
    }
}
