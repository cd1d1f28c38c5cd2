//! seccomp filters, namespaces, io_uring, C libraries.

use std::ffi::{c_void, CStr};

use super::{Fd, Got};

const ALLOW: u32 = 0x7fff_0000;
const KILL_PROCESS: u32 = 0x8000_0000;

/// accept(2) and mmap(2), as libc makes them: a 32-bit program by other numbers.
#[cfg(target_pointer_width = "64")]
use libc::{SYS_accept as ACCEPT, SYS_mmap as MMAP};
#[cfg(target_arch = "x86")]
use libc::{SYS_mmap2 as MMAP, SYS_socketcall as ACCEPT};

/// What a process needs that does nothing but plain reading and writing.
const LEAST: [libc::c_long; 20] = [
    libc::SYS_read,
    libc::SYS_write,
    libc::SYS_recvfrom,
    libc::SYS_sendto,
    ACCEPT,
    libc::SYS_accept4,
    libc::SYS_shutdown,
    libc::SYS_close,
    libc::SYS_poll,
    libc::SYS_ppoll,
    libc::SYS_brk,
    MMAP,
    libc::SYS_munmap,
    libc::SYS_mremap,
    libc::SYS_madvise,
    libc::SYS_rt_sigreturn,
    libc::SYS_rt_sigprocmask,
    libc::SYS_getpid,
    libc::SYS_exit,
    libc::SYS_exit_group,
];

fn statement(code: u32, k: u32) -> libc::sock_filter {
    libc::sock_filter { code: code as u16, jt: 0, jf: 0, k }
}

/// From here on every other system call kills the process.
pub fn allow_only_the_least() -> Got {
    let number = statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0);
    let mut program = vec![number];
    for (at, call) in LEAST.iter().enumerate() {
        let to_allow = (LEAST.len() - at) as u8;
        let equals = statement(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, *call as u32);
        program.push(libc::sock_filter { jt: to_allow, ..equals });
    }
    program.push(statement(libc::BPF_RET | libc::BPF_K, KILL_PROCESS));
    program.push(statement(libc::BPF_RET | libc::BPF_K, ALLOW));
    let filter = libc::sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
    // SAFETY: the filter is valid for the call, which copies it.
    unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) };
    call!(libc::prctl(libc::PR_SET_SECCOMP, 2usize, &raw const filter))
}

/// A filter that the kernel does not take.
pub fn refused_filter() -> Got {
    call!(libc::prctl(libc::PR_SET_SECCOMP, 2usize, 8usize))
}

pub fn unshare(flags: i32) -> Got {
    call!(libc::unshare(flags))
}

/// Makes an io_uring and leaves it unused.
pub fn make_io_uring() -> Got {
    let mut parameters = [0u32; 30];
    let got = call!(libc::syscall(libc::SYS_io_uring_setup, 8, parameters.as_mut_ptr()));
    match got {
        Got::Value(_) => Got::Value(0),
        refused => refused,
    }
}

/// Functions that are looked up in the C library itself, past whatever stands in front of it.
pub struct CLibrary {
    poll: Poll,
    recv: Recv,
    send: Send,
}

type Poll = unsafe extern "C" fn(*mut libc::pollfd, libc::nfds_t, i32) -> i32;
type Recv = unsafe extern "C" fn(Fd, *mut c_void, usize, i32) -> isize;
type Send = unsafe extern "C" fn(Fd, *const c_void, usize, i32) -> isize;

impl CLibrary {
    /// The one that this process has.
    pub fn of_the_process(flags: i32) -> CLibrary {
        // SAFETY: a NUL-terminated name.
        CLibrary::of(unsafe { libc::dlopen(c"libc.so.6".as_ptr(), libc::RTLD_NOW | flags) })
    }

    /// Another, in a namespace of its own.
    pub fn of_its_own() -> CLibrary {
        let name = c"libc.so.6".as_ptr();
        // SAFETY: as above.
        CLibrary::of(unsafe { libc::dlmopen(libc::LM_ID_NEWLM, name, libc::RTLD_NOW) })
    }

    fn of(library: *mut c_void) -> CLibrary {
        assert!(!library.is_null(), "every machine has it");
        let find = |name: &CStr| {
            // SAFETY: an open library and a NUL-terminated name.
            unsafe { libc::dlsym(library, name.as_ptr()) }
        };
        // SAFETY: the functions of these names have these forms.
        unsafe {
            CLibrary {
                poll: std::mem::transmute::<*mut c_void, Poll>(find(c"poll")),
                recv: std::mem::transmute::<*mut c_void, Recv>(find(c"recv")),
                send: std::mem::transmute::<*mut c_void, Send>(find(c"send")),
            }
        }
    }

    /// Waits for something to read, and reads it. An error's number is not told: each has its own errno.
    pub fn receive(&self, fd: Fd, room: &mut [u8]) -> Option<usize> {
        let mut entry = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
        // SAFETY: one entry.
        let ready = unsafe { (self.poll)(&raw mut entry, 1, 10_000) };
        assert_eq!(ready, 1, "poll");
        // SAFETY: writable room.
        let got = unsafe { (self.recv)(fd, room.as_mut_ptr().cast(), room.len(), 0) };
        usize::try_from(got).ok()
    }

    pub fn send(&self, fd: Fd, piece: &[u8]) -> Option<usize> {
        // SAFETY: readable bytes.
        let sent = unsafe { (self.send)(fd, piece.as_ptr().cast(), piece.len(), 0) };
        usize::try_from(sent).ok()
    }
}
