//! Options, flags and system calls that few programs use, with arguments of their own kind.

use std::mem::{size_of, zeroed};
use std::ptr::{null, null_mut};

use super::socket::Address;
use super::{Fd, Got};

/// A time-out in seconds and microseconds, which may be nonsense.
pub fn set_time(fd: Fd, name: i32, seconds: i64, microseconds: i64) -> Got {
    let time = libc::timeval { tv_sec: seconds as _, tv_usec: microseconds as _ };
    let (value, length) = ((&raw const time).cast(), size_of::<libc::timeval>() as u32);
    call!(libc::setsockopt(fd, libc::SOL_SOCKET, name, value, length))
}

/// A filter of one instruction (bpf(4)): everything comes through, or nothing.
pub fn attach_filter(fd: Fd, lets_through: bool) -> Got {
    let k = if lets_through { u32::MAX } else { 0 };
    let mut one = [libc::sock_filter { code: 6, jt: 0, jf: 0, k }];
    let program = libc::sock_fprog { len: 1, filter: one.as_mut_ptr() };
    let (value, length) = ((&raw const program).cast(), size_of::<libc::sock_fprog>() as u32);
    call!(libc::setsockopt(fd, libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, value, length))
}

/// As [`attach_filter`], by a program of two instructions that the kernel has checked (bpf(2)), which takes
/// rights: who has none notes that.
pub fn attach_checked_filter(fd: Fd) -> Got {
    const LOAD: i32 = 5;
    const SOCKET_FILTER: u32 = 1;
    #[repr(C)]
    struct Load {
        kind: u32,
        count: u32,
        instructions: u64,
        licence: u64,
        rest: [u64; 14],
    }
    // The result is as much of a packet as there may be; that is all.
    let instructions: [u64; 2] = [0x7fff_ffff << 32 | 0xb7, 0x95];
    let load = Load {
        kind: SOCKET_FILTER,
        count: 2,
        instructions: instructions.as_ptr().addr() as u64,
        licence: c"GPL".as_ptr().addr() as u64,
        rest: [0; 14],
    };
    let made = call!(libc::syscall(libc::SYS_bpf, LOAD, &raw const load, size_of::<Load>()));
    let Some(program) = made.count() else { return made };
    let program = program as Fd;
    let value = (&raw const program).cast();
    let got = call!(libc::setsockopt(fd, libc::SOL_SOCKET, libc::SO_ATTACH_BPF, value, 4));
    // SAFETY: no pointers.
    unsafe { libc::close(program) };
    got
}

pub fn detach_filter(fd: Fd) -> Got {
    let nothing = 0i32;
    let value = (&raw const nothing).cast();
    call!(libc::setsockopt(fd, libc::SOL_SOCKET, libc::SO_DETACH_FILTER, value, 4))
}

/// Signs the segments to and from `peer` (TCP_MD5SIG).
pub fn sign(fd: Fd, peer: &Address, key: &[u8]) -> Got {
    #[repr(C)]
    struct Signature {
        peer: libc::sockaddr_storage,
        flags: u8,
        prefix: u8,
        length: u16,
        interface: i32,
        key: [u8; 80],
    }
    // SAFETY: plain data, for which zero is a value.
    let mut signature: Signature = unsafe { zeroed() };
    // SAFETY: an address begins with its storage.
    signature.peer = unsafe { peer.parts().0.cast::<libc::sockaddr_storage>().read() };
    signature.length = key.len() as u16;
    signature.key[..key.len()].copy_from_slice(key);
    let (value, length) = ((&raw const signature).cast(), size_of::<Signature>() as u32);
    call!(libc::setsockopt(fd, libc::IPPROTO_TCP, libc::TCP_MD5SIG, value, length))
}

/// One notice of finished sends with MSG_ZEROCOPY: their first and last number, or why there is none.
pub fn zero_copy_notice(fd: Fd) -> Result<(u32, u32), Got> {
    let mut control = [0u64; 16];
    // SAFETY: plain data, for which zero is a value.
    let mut message: libc::msghdr = unsafe { zeroed() };
    message.msg_control = control.as_mut_ptr().cast();
    message.msg_controllen = size_of_val(&control) as _;
    let got = call!(libc::recvmsg(fd, &raw mut message, libc::MSG_ERRQUEUE | libc::MSG_DONTWAIT));
    if got.count().is_none() {
        return Err(got);
    }
    // SAFETY: the kernel has written one message into the area, with a sock_extended_err.
    let error = unsafe {
        libc::CMSG_DATA(control.as_ptr().cast()).cast::<libc::sock_extended_err>().read_unaligned()
    };
    Ok((error.ee_info, error.ee_data))
}

pub fn tee(from: Fd, to: Fd, len: usize) -> Got {
    call!(libc::tee(from, to, len, libc::SPLICE_F_NONBLOCK))
}

pub fn vmsplice(to: Fd, bytes: &[u8]) -> Got {
    let part = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
    call!(libc::vmsplice(to, &raw const part, 1, 0))
}

/// What each of a list of asynchronous requests gives: writes of the first, a read of as much as the
/// second has room for.
pub fn aio_list(writes: &[(Fd, &[u8])], reads: &mut [(Fd, &mut [u8])]) -> (Got, Vec<Got>) {
    let block = |fd: Fd, at: *mut u8, n: usize, what: i32| {
        // SAFETY: zero is a valid start for the control block.
        let mut block: libc::aiocb = unsafe { zeroed() };
        block.aio_fildes = fd;
        block.aio_buf = at.cast();
        block.aio_nbytes = n;
        block.aio_lio_opcode = what;
        block
    };
    let mut blocks: Vec<libc::aiocb> = writes
        .iter()
        .map(|(fd, it)| block(*fd, it.as_ptr().cast_mut(), it.len(), libc::LIO_WRITE))
        .chain(
            reads.iter_mut().map(|(fd, it)| block(*fd, it.as_mut_ptr(), it.len(), libc::LIO_READ)),
        )
        .collect();
    let list: Vec<*mut libc::aiocb> = blocks.iter_mut().map(|it| it as *mut _).collect();
    let (base, count) = (list.as_ptr(), list.len() as i32);
    let got = call!(libc::lio_listio(libc::LIO_WAIT, base, count, null_mut()));
    let each = list.iter().map(|&it| match call!(libc::aio_error(it)).value("aio_error") {
        0 => Got::Value(call!(libc::aio_return(it)).value("aio_return")),
        error => Got::Errno(error as i32),
    });
    (got, each.collect())
}

/// epoll_wait(2) with no place for events.
pub fn epoll_wait_nowhere(set: Fd) -> Got {
    call!(libc::epoll_wait(set, null_mut(), 4, 0))
}

pub fn open(path: &std::ffi::CStr) -> Fd {
    call!(libc::open(path.as_ptr(), libc::O_RDONLY | libc::O_CLOEXEC)).fd("open")
}

/// sendfile(2) from the file's own position.
pub fn sendfile_on(to: Fd, from: Fd, len: usize) -> Got {
    call!(libc::sendfile(to, from, null_mut(), len))
}

/// sendto(2) with MSG_FASTOPEN: connects, and sends with the first segment.
pub fn send_fast_open(fd: Fd, bytes: &[u8], to: &Address) -> Got {
    let ((name, length), flags) = (to.parts(), libc::MSG_FASTOPEN);
    call!(libc::sendto(fd, bytes.as_ptr().cast(), bytes.len(), flags, name, length))
}

/// select(2) over sets of `room` numbers, which may be more than FD_SETSIZE: which of `asked` can be read.
pub fn select_beyond(asked: &[Fd], room: usize, timeout_ms: i64) -> (Got, Vec<bool>) {
    let mut set = vec![0u64; room / 64 + 16];
    asked.iter().for_each(|fd| set[*fd as usize / 64] |= 1 << (*fd as usize % 64));
    let mut time = libc::timeval {
        tv_sec: (timeout_ms / 1000) as _,
        tv_usec: (timeout_ms % 1000 * 1000) as _,
    };
    let (place, count) = (set.as_mut_ptr().cast(), room as i32);
    let got = call!(libc::select(count, place, null_mut(), null_mut(), &raw mut time));
    let is = |fd: &Fd| set[*fd as usize / 64] & 1 << (*fd as usize % 64) != 0;
    (got, asked.iter().map(is).collect())
}

/// Who is told of I/O on a descriptor (F_SETOWN_EX).
#[derive(Clone, Copy)]
pub enum Owner {
    Thread(i32),
    Process(i32),
    Group(i32),
}

#[repr(C)]
struct OwnerOf {
    kind: i32,
    id: i32,
}

pub fn set_owner(fd: Fd, owner: Owner) -> Got {
    const F_SETOWN_EX: i32 = 15;
    let owner = match owner {
        Owner::Thread(id) => OwnerOf { kind: 0, id },
        Owner::Process(id) => OwnerOf { kind: 1, id },
        Owner::Group(id) => OwnerOf { kind: 2, id },
    };
    call!(libc::fcntl(fd, F_SETOWN_EX, &raw const owner))
}

/// Takes one of the signals, which are blocked, within a second: its number, and the descriptor that it is
/// about.
pub fn take_signal(signals: &[i32], milliseconds: i64) -> Option<(i32, i32)> {
    // SAFETY: plain data; sigemptyset makes it a value.
    let (mut set, mut info): (libc::sigset_t, [i32; 32]) = unsafe { (zeroed(), [0; 32]) };
    // SAFETY: the set is ours.
    unsafe { libc::sigemptyset(&raw mut set) };
    for signal in signals {
        // SAFETY: as above.
        unsafe { libc::sigaddset(&raw mut set, *signal) };
    }
    let time = libc::timespec {
        tv_sec: (milliseconds / 1000) as _,
        tv_nsec: (milliseconds % 1000 * 1_000_000) as _,
    };
    loop {
        let got =
            call!(libc::sigtimedwait(&raw const set, info.as_mut_ptr().cast(), &raw const time));
        match got {
            Got::Errno(libc::EINTR) => {}
            Got::Errno(_) => return None,
            // siginfo_t: signal, errno, code, then band (a long) and descriptor.
            got => return Some((got.value("sigtimedwait") as i32, info[SIGNALS_FD])),
        }
    }
}

#[cfg(target_pointer_width = "64")]
const SIGNALS_FD: usize = 6;
#[cfg(target_pointer_width = "32")]
const SIGNALS_FD: usize = 4;

/// A child that shares the table of descriptors with its parent, and no memory; it ends with the status
/// that the function returns.
pub fn clone_with_files(child: extern "C" fn(*mut libc::c_void) -> i32, argument: Fd) -> i32 {
    let mut stack = vec![0u8; 256 * 1024];
    let top = stack.as_mut_ptr_range().end.cast();
    let argument = argument as usize as *mut libc::c_void;
    let flags = libc::CLONE_FILES | libc::SIGCHLD;
    let child = call!(libc::clone(child, top, flags, argument)).value("clone");
    // The child has a copy.
    drop(stack);
    child as i32
}

pub fn limit_of_descriptors(number: u64) -> Got {
    let limit =
        libc::rlimit { rlim_cur: number as _, rlim_max: number.max(most_descriptors()) as _ };
    call!(libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit))
}

fn most_descriptors() -> u64 {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    call!(libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit)).value("getrlimit");
    limit.rlim_max as _
}

/// What is done to the descriptors of a program that posix_spawn starts.
pub enum FileAction {
    Close(Fd),
    Dup(Fd, Fd),
    Open(Fd, &'static std::ffi::CStr),
    CloseFrom(Fd),
}

/// A shell that runs `script`, after the actions.
pub fn spawn_shell(script: &str, actions: &[FileAction]) -> Result<i32, Got> {
    extern "C" {
        fn posix_spawn_file_actions_addclosefrom_np(
            actions: *mut libc::posix_spawn_file_actions_t,
            from: i32,
        ) -> i32;
        static environ: *const *mut libc::c_char;
    }
    let script = std::ffi::CString::new(script).expect("no NUL");
    let words = [c"sh".as_ptr(), c"-c".as_ptr(), script.as_ptr(), null()];
    let mut child = 0;
    // SAFETY: the actions are initialised before use and destroyed after it; the words outlive the call.
    let status = unsafe {
        let mut list: libc::posix_spawn_file_actions_t = zeroed();
        let at = &raw mut list;
        libc::posix_spawn_file_actions_init(at);
        for action in actions {
            match *action {
                FileAction::Close(fd) => libc::posix_spawn_file_actions_addclose(at, fd),
                FileAction::Dup(from, to) => libc::posix_spawn_file_actions_adddup2(at, from, to),
                FileAction::Open(fd, path) => {
                    let flags = libc::O_RDWR;
                    libc::posix_spawn_file_actions_addopen(at, fd, path.as_ptr(), flags, 0)
                }
                FileAction::CloseFrom(fd) => posix_spawn_file_actions_addclosefrom_np(at, fd),
            };
        }
        let (path, words) = (c"/bin/sh".as_ptr(), words.as_ptr().cast());
        let status = libc::posix_spawn(&raw mut child, path, at, null(), words, environ);
        libc::posix_spawn_file_actions_destroy(at);
        status
    };
    if status == 0 {
        Ok(child)
    } else {
        Err(Got::Errno(status))
    }
}

/// seccomp's strict mode: read, write, _exit and sigreturn are left.
pub fn strict_mode() -> Got {
    call!(libc::prctl(libc::PR_SET_SECCOMP, 1usize))
}

/// Ends this thread alone, as strict mode allows.
pub fn exit_by_number(status: i32) -> ! {
    call!(libc::syscall(libc::SYS_exit, status));
    unreachable!("exit does not return");
}

pub fn enter_namespace(fd: Fd) -> Got {
    call!(libc::setns(fd, 0))
}

/// A process that dies leaves no file behind.
pub fn leave_no_core() {
    let none = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    call!(libc::setrlimit(libc::RLIMIT_CORE, &raw const none)).value("setrlimit");
}

pub fn sockatmark(fd: Fd) -> Got {
    extern "C" {
        fn sockatmark(fd: Fd) -> i32;
    }
    call!(sockatmark(fd))
}
