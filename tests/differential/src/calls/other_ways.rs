//! Calls that read, write or copy a descriptor without a socket function: glibc's own, and numbers.

use std::ffi::CString;
use std::ptr::null_mut;

use super::{Fd, Got};

extern "C" {
    fn _Fork() -> libc::pid_t;
    fn wordexp(words: *const libc::c_char, into: *mut Words, flags: i32) -> i32;
    fn freopen(
        path: *const libc::c_char,
        mode: *const libc::c_char,
        file: *mut libc::FILE,
    ) -> *mut libc::FILE;
    fn preadv2(
        fd: Fd,
        parts: *const libc::iovec,
        count: i32,
        offset: libc::off_t,
        flags: i32,
    ) -> isize;
    fn pwritev2(
        fd: Fd,
        parts: *const libc::iovec,
        count: i32,
        offset: libc::off_t,
        flags: i32,
    ) -> isize;
    static mut stdin: *mut libc::FILE;
    static mut stdout: *mut libc::FILE;
}

/// `wordexp_t` of wordexp.h.
#[repr(C)]
struct Words {
    count: usize,
    words: *mut *mut libc::c_char,
    reserved: usize,
}

/// As [`fork`](super::process::fork), by `_Fork`, which runs no handlers.
pub fn bare_fork(child: impl FnOnce() -> i32) -> libc::pid_t {
    match call!(_Fork()).value("_Fork") as libc::pid_t {
        0 => super::process::exit_now(child()),
        pid => pid,
    }
}

/// As above, by the number of fork(2).
pub fn fork_by_number(child: impl FnOnce() -> i32) -> libc::pid_t {
    match call!(libc::syscall(libc::SYS_fork)).value("fork by number") as libc::pid_t {
        0 => super::process::exit_now(child()),
        pid => pid,
    }
}

/// A child with a terminal of its own, whose other end is closed when it has ended.
pub fn fork_with_terminal(child: impl FnOnce() -> i32) -> String {
    let mut terminal = -1;
    let forked = call!(libc::forkpty(&raw mut terminal, null_mut(), null_mut(), null_mut()));
    match forked.value("forkpty") as libc::pid_t {
        0 => super::process::exit_now(child()),
        pid => {
            let ended = super::process::wait_for(pid);
            super::socket::close(terminal);
            ended
        }
    }
}

/// What glibc's asynchronous I/O gives for one request.
fn by_aio(
    begin: unsafe extern "C" fn(*mut libc::aiocb) -> i32,
    fd: Fd,
    at: *mut u8,
    n: usize,
) -> Got {
    // SAFETY: zero is a valid start for the control block.
    let mut block: libc::aiocb = unsafe { std::mem::zeroed() };
    block.aio_fildes = fd;
    block.aio_buf = at.cast();
    block.aio_nbytes = n;
    call!(begin(&raw mut block)).value("an asynchronous call");
    let list = [&raw const block];
    while call!(libc::aio_suspend(list.as_ptr(), 1, null_mut())) == Got::Errno(libc::EINTR) {}
    match call!(libc::aio_error(&raw const block)).value("aio_error") {
        0 => Got::Value(call!(libc::aio_return(&raw mut block)).value("aio_return")),
        error => Got::Errno(error as i32),
    }
}

pub fn aio_read(fd: Fd, room: &mut [u8]) -> Got {
    by_aio(libc::aio_read, fd, room.as_mut_ptr(), room.len())
}

pub fn aio_write(fd: Fd, bytes: &[u8]) -> Got {
    by_aio(libc::aio_write, fd, bytes.as_ptr().cast_mut(), bytes.len())
}

/// The first word that a shell makes of `words`.
pub fn first_word(words: &str) -> String {
    let words = CString::new(words).expect("words hold no zero byte");
    let mut into = Words { count: 0, words: null_mut(), reserved: 0 };
    // SAFETY: a C string and room for the answer, whose words are C strings.
    unsafe {
        match wordexp(words.as_ptr(), &raw mut into, 0) {
            0 if into.count > 0 => {
                std::ffi::CStr::from_ptr(*into.words).to_string_lossy().into_owned()
            }
            other => format!("{other}, {} words", into.count),
        }
    }
}

/// Writes by standard output's own FILE, and flushes it.
pub fn print(text: &str) {
    let text = CString::new(text).expect("text holds no zero byte");
    // SAFETY: standard output is open, and this thread alone uses it.
    unsafe {
        libc::fputs(text.as_ptr(), stdout);
        libc::fflush(stdout);
    }
}

/// A line by standard input's own FILE.
pub fn scan() -> String {
    let mut room = [0u8; 64];
    // SAFETY: as much room as is said.
    let line = unsafe { libc::fgets(room.as_mut_ptr().cast(), room.len() as i32, stdin) };
    let length = room.iter().position(|&byte| byte == 0).unwrap_or(0);
    if line.is_null() {
        "nothing".to_owned()
    } else {
        String::from_utf8_lossy(&room[..length]).into()
    }
}

/// Standard input becomes an empty file.
pub fn reopen_standard_input() -> bool {
    // SAFETY: C strings, and the FILE of standard input.
    unsafe { !freopen(c"/dev/null".as_ptr(), c"r".as_ptr(), stdin).is_null() }
}

pub fn read_at_its_place(fd: Fd, room: &mut [u8], flags: i32) -> Got {
    let part = libc::iovec { iov_base: room.as_mut_ptr().cast(), iov_len: room.len() };
    call!(preadv2(fd, &raw const part, 1, -1, flags))
}

pub fn write_at_its_place(fd: Fd, bytes: &[u8]) -> Got {
    let part = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
    call!(pwritev2(fd, &raw const part, 1, -1, 0))
}

/// preadv2(2) and pwritev2(2) at the descriptor's own place, with their list of parts at `address`.
pub fn at_its_place_by_list_at(fd: Fd, address: usize) -> [Got; 2] {
    let list = std::ptr::without_provenance(address);
    [call!(preadv2(fd, list, 1, -1, 0)), call!(pwritev2(fd, list, 1, -1, 0))]
}

/// Where the next read of a file is.
pub fn place(fd: Fd) -> Got {
    call!(libc::lseek(fd, 0, libc::SEEK_CUR))
}

/// A copy of this process's own descriptor, as a debugger takes one.
pub fn copy_by_pidfd(fd: Fd) -> Fd {
    // SAFETY: no arguments.
    copy_from_process(unsafe { libc::getpid() }, fd)
}

/// A copy of a descriptor of any process that may be traced.
pub fn copy_from_process(pid: i32, fd: Fd) -> Fd {
    let process = call!(libc::syscall(libc::SYS_pidfd_open, pid, 0)).fd("pidfd_open");
    let copy = call!(libc::syscall(libc::SYS_pidfd_getfd, process, fd, 0)).fd("pidfd_getfd");
    super::socket::close(process);
    copy
}
