//! Calls whose arguments make no sense, or that few programs make.

use std::ptr::{null_mut, without_provenance_mut};

use super::{Fd, Got};

/// connect(2) with AF_UNSPEC: "dissolve the association".
pub fn dissolve(fd: Fd) -> Got {
    // SAFETY: zero is a valid name, of no family.
    let name: libc::sockaddr = unsafe { std::mem::zeroed() };
    call!(libc::connect(fd, &raw const name, size_of_val(&name) as u32))
}

/// Whether a lock that a program has on its standard input (fcntl(2)) is there once another program has begun in its
/// place.
pub fn lock_survives_the_start() -> bool {
    use std::io::BufRead;
    use std::os::unix::process::CommandExt;

    fn lock(kind: i32) -> libc::flock {
        // SAFETY: zero is a valid start: the whole file.
        let mut lock: libc::flock = unsafe { std::mem::zeroed() };
        lock.l_type = kind as libc::c_short;
        lock
    }
    let path = std::env::temp_dir().join(format!("shunt-lock-{}", std::process::id()));
    let file = std::fs::File::create(&path).expect("a file");
    let name = std::ffi::CString::new(path.to_str().expect("text")).expect("no zero byte");
    let mut command = std::process::Command::new("sh");
    command.args(["-c", "echo begun; exec sleep 20"]).stdout(std::process::Stdio::piped());
    // SAFETY: system calls alone. The file is opened as standard input: another copy's close would end the lock.
    unsafe {
        command.pre_exec(move || {
            libc::close(0);
            libc::open(name.as_ptr(), libc::O_RDWR);
            let wanted = lock(libc::F_WRLCK);
            libc::fcntl(0, libc::F_SETLK, &raw const wanted);
            Ok(())
        });
    }
    let mut child = command.spawn().expect("a shell");
    let mut line = String::new();
    let out = child.stdout.take().expect("its output");
    std::io::BufReader::new(out).read_line(&mut line).expect("a line");
    let mut found = lock(libc::F_WRLCK);
    let fd = std::os::fd::AsRawFd::as_raw_fd(&file);
    // SAFETY: a writable lock.
    unsafe { libc::fcntl(fd, libc::F_GETLK, &raw mut found) };
    let _ = (child.kill(), child.wait(), std::fs::remove_file(path));
    found.l_type == libc::F_WRLCK as libc::c_short
}

/// poll(2) of one entry more than this process may have descriptors, of which only the first is there.
pub fn poll_beyond_limit(fd: Fd) -> Got {
    // SAFETY: zero is a valid limit, and written.
    let mut limit: libc::rlimit = unsafe { std::mem::zeroed() };
    // SAFETY: a writable limit.
    unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) };
    let mut entry = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    call!(libc::poll(&raw mut entry, limit.rlim_cur as libc::nfds_t + 1, 0))
}

/// Waits whose time lies at `address`. libc's functions for programs of 32 bits look at it themselves, and fault.
pub fn waits_with_time_at(set: Fd, address: usize) -> Vec<Got> {
    let mut found = vec![
        call!(libc::syscall(libc::SYS_ppoll, 0, 0, address, 0, 0)),
        call!(libc::syscall(libc::SYS_pselect6, 0, 0, 0, 0, address, 0)),
        call!(libc::syscall(libc::SYS_pselect6, 0, 0, 0, 0, 0, address)),
    ];
    if cfg!(target_pointer_width = "64") {
        found.push(epoll_pwait2_with_time_at(set, address));
    }
    found
}

fn epoll_pwait2_with_time_at(set: Fd, address: usize) -> Got {
    extern "C" {
        fn epoll_pwait2(
            set: Fd,
            events: *mut libc::epoll_event,
            count: i32,
            time: *const libc::timespec,
            mask: *const libc::sigset_t,
        ) -> i32;
    }
    let mut event = libc::epoll_event { events: 0, u64: 0 };
    call!(epoll_pwait2(set, &raw mut event, 1, without_provenance_mut(address), null_mut()))
}

/// Other calls whose argument lies at `address`.
pub fn calls_with_argument_at(set: Fd, fd: Fd, address: usize) -> Vec<Got> {
    extern "C" {
        fn lio_listio(mode: i32, list: usize, count: i32, notice: usize) -> i32;
    }
    let added = without_provenance_mut(address);
    vec![
        call!(libc::epoll_ctl(set, libc::EPOLL_CTL_ADD, fd, added)),
        call!(libc::syscall(libc::SYS_clone3, address, 64)),
        call!(lio_listio(99, address, 5, 0)),
        call!(libc::syscall(libc::SYS_io_submit, 0usize, 1usize, address)),
    ]
}

/// write(2) by number in a thread that is about to be cancelled: no cancellation point.
pub fn write_by_number_when_cancelled(fd: Fd) -> Got {
    extern "C" {
        fn pthread_setcancelstate(state: i32, before: *mut i32) -> i32;
    }
    extern "C" fn writer(fd: *mut libc::c_void) -> *mut libc::c_void {
        // SAFETY: the thread itself; a byte.
        unsafe {
            libc::pthread_cancel(libc::pthread_self());
            let written = libc::syscall(libc::SYS_write, fd as i32, c"x".as_ptr(), 1usize);
            let mut before = 0;
            pthread_setcancelstate(1, &raw mut before);
            without_provenance_mut(written as usize)
        }
    }
    let mut thread = 0;
    let mut written = null_mut();
    let argument = without_provenance_mut(fd as usize);
    // SAFETY: a thread that is waited for.
    let result = unsafe {
        libc::pthread_create(&raw mut thread, std::ptr::null(), writer, argument);
        libc::pthread_join(thread, &raw mut written)
    };
    assert_eq!(result, 0);
    Got::Value(written as i64)
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

/// Every call that takes lengths, with one that is none for the second of its parts, or for its buffer. None of them
/// may touch it, whatever has come.
pub fn calls_with_a_length_that_is_none(fd: Fd, length: usize) -> Vec<(&'static str, Got)> {
    let mut room = [0u8; 16];
    let base = room.as_mut_ptr();
    let part = |at: usize, iov_len| libc::iovec { iov_base: base.wrapping_add(at).cast(), iov_len };
    let mut parts = [part(0, 3), part(4, length), part(8, 4)];
    // SAFETY: zero is a valid message.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = parts.as_mut_ptr();
    message.msg_iovlen = parts.len() as _;
    let mut several = [libc::mmsghdr { msg_hdr: message, msg_len: 0 }];
    let (parts, one) = (parts.as_ptr(), &raw mut message);
    let mut all = vec![
        ("readv", call!(libc::readv(fd, parts, 3))),
        ("writev", call!(libc::writev(fd, parts, 3))),
        ("recvmsg", call!(libc::recvmsg(fd, one, 0))),
        ("sendmsg", call!(libc::sendmsg(fd, one, 0))),
        ("sendmmsg", call!(libc::sendmmsg(fd, several.as_mut_ptr(), 1, 0))),
        ("recvmmsg", call!(libc::recvmmsg(fd, several.as_mut_ptr(), 1, 0, null_mut()))),
    ];
    // The kernel takes any length of a program of 32 bits there.
    if cfg!(target_pointer_width = "64") {
        all.push(("read", call!(libc::read(fd, base.cast(), length))));
        all.push(("write", call!(libc::write(fd, base.cast(), length))));
    }
    all.push(("what they left", Got::Value(i64::from(room != [0; 16]))));
    all
}
