//! Descriptors come, go and are copied.

use core::ffi::{c_char, c_int, c_uint, c_ulong, c_void};

use libc::FILE;
use shunt_os::{errno, handles, real, set_errno, Errno};
use shunt_sockets::calls::descriptor as calls;
use shunt_sockets::table;

use crate::boundary::{
    about, before, boundary, noted, numbers_settled, of_theirs, with_numbers, with_numbers_for_long,
};

#[no_mangle]
pub unsafe extern "C" fn close(fd: c_int) -> c_int {
    numbers_settled();
    boundary(|| calls::close(fd), || unsafe { real::close(fd) as isize }) as c_int
}

#[no_mangle]
pub unsafe extern "C" fn __close(fd: c_int) -> c_int {
    unsafe { close(fd) }
}

#[no_mangle]
pub unsafe extern "C" fn close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int {
    boundary(
        || calls::close_range(first, last, flags),
        || unsafe { real::close_range(first, last, flags) as isize },
    ) as c_int
}

#[no_mangle]
pub unsafe extern "C" fn closefrom(lowest: c_int) {
    let before = errno();
    let closed = boundary(
        || calls::close_range(lowest.max(0) as c_uint, c_uint::MAX, 0),
        || {
            unsafe { real::closefrom(lowest) };
            0
        },
    );
    if closed < 0 {
        // Kernels before 5.9 and some filters have no close_range.
        for fd in lowest.max(0)..handles::numbers_end() {
            unsafe { close(fd) };
        }
    }
    set_errno(before);
}

#[no_mangle]
pub unsafe extern "C" fn dup(fd: c_int) -> c_int {
    noted(with_numbers(|| of_theirs(fd, || unsafe { real::dup(fd) })), |new| {
        calls::duplicated(fd, new)
    })
}

#[no_mangle]
pub unsafe extern "C" fn dup2(from: c_int, to: c_int) -> c_int {
    copy_over(from, to, || unsafe { real::dup2(from, to) })
}

/// `dup2` and `dup3`.
fn copy_over(from: c_int, to: c_int, genuine: impl Fn() -> c_int) -> c_int {
    boundary(
        || calls::duplicate_over(from, to, &genuine),
        || with_numbers(|| of_theirs(from, &genuine)) as isize,
    ) as c_int
}

#[no_mangle]
pub unsafe extern "C" fn __dup2(from: c_int, to: c_int) -> c_int {
    unsafe { dup2(from, to) }
}

#[no_mangle]
pub unsafe extern "C" fn dup3(from: c_int, to: c_int, flags: c_int) -> c_int {
    let genuine = || unsafe { real::dup3(from, to, flags) };
    if flags & !libc::O_CLOEXEC != 0 {
        // The kernel refuses it, and the number stays what it is.
        return genuine();
    }
    copy_over(from, to, genuine)
}

fn takes_number(command: c_int) -> bool {
    matches!(command, libc::F_DUPFD | libc::F_DUPFD_CLOEXEC)
}

/// A `fcntl` that takes a number, or is perhaps about one of ours, or nobody's.
#[inline(never)]
fn carefully(fd: c_int, command: c_int, genuine: impl FnOnce() -> c_int) -> c_int {
    match command {
        // They may last.
        libc::F_SETLKW | libc::F_OFD_SETLKW => {
            numbers_settled();
            of_theirs(fd, genuine)
        }
        _ => with_numbers(|| of_theirs(fd, genuine)),
    }
}

/// `fcntl` and `fcntl64`.
#[inline(always)]
fn control(
    fd: c_int,
    command: c_int,
    argument: *mut c_void,
    genuine: impl FnOnce() -> c_int,
) -> c_int {
    let result = if takes_number(command) || handles::may_be_own(fd) || calls::may_be_nobodys(fd) {
        carefully(fd, command, genuine)
    } else {
        genuine()
    };
    noted(result, |result| calls::after_fcntl(fd, command, argument, result))
}

#[no_mangle]
pub unsafe extern "C" fn fcntl(fd: c_int, command: c_int, argument: *mut c_void) -> c_int {
    control(fd, command, argument, || unsafe { real::fcntl(fd, command, argument) })
}

#[no_mangle]
pub unsafe extern "C" fn __fcntl(fd: c_int, command: c_int, argument: *mut c_void) -> c_int {
    unsafe { fcntl(fd, command, argument) }
}

#[no_mangle]
pub unsafe extern "C" fn fcntl64(fd: c_int, command: c_int, argument: *mut c_void) -> c_int {
    control(fd, command, argument, || unsafe { real::fcntl64(fd, command, argument) })
}

#[cfg(target_arch = "x86")]
#[no_mangle]
pub unsafe extern "C" fn __fcntl_time64(fd: c_int, command: c_int, argument: *mut c_void) -> c_int {
    unsafe { fcntl64(fd, command, argument) }
}

#[no_mangle]
pub unsafe extern "C" fn ioctl(fd: c_int, request: c_ulong, argument: *mut c_void) -> c_int {
    boundary(
        || unsafe { calls::ioctl(fd, request, argument) },
        || {
            about(fd, with_numbers_for_long, || unsafe {
                real::ioctl(fd, request, argument) as isize
            })
        },
    ) as c_int
}

#[cfg(target_arch = "x86")]
#[no_mangle]
pub unsafe extern "C" fn __ioctl_time64(
    fd: c_int,
    request: c_ulong,
    argument: *mut c_void,
) -> c_int {
    unsafe { ioctl(fd, request, argument) }
}

#[no_mangle]
pub unsafe extern "C" fn sockatmark(fd: c_int) -> c_int {
    let mut is_there: c_int = 0;
    match unsafe { ioctl(fd, calls::SIOCATMARK, (&raw mut is_there).cast()) } {
        -1 => -1,
        _ => is_there,
    }
}

#[no_mangle]
pub unsafe extern "C" fn fdopen(fd: c_int, mode: *const c_char) -> *mut FILE {
    let mut through_us = false;
    before(|| through_us = calls::fdopen(fd));
    if through_us {
        unsafe { file_through_us(fd, mode) }
    } else {
        unsafe { real::fdopen(fd, mode) }
    }
}

#[no_mangle]
pub unsafe extern "C" fn _IO_fdopen(fd: c_int, mode: *const c_char) -> *mut FILE {
    unsafe { fdopen(fd, mode) }
}

macro_rules! reopen {
    ($($name:ident),*) => { $(
        #[no_mangle]
        pub unsafe extern "C" fn $name(
            path: *const c_char,
            mode: *const c_char,
            file: *mut FILE,
        ) -> *mut FILE {
            unsafe { before_reopening(path, file) };
            unsafe { real::$name(path, mode, file) }
        }
    )* };
}
reopen!(freopen, freopen64);

/// The file's number is closed, and given to what is at `path`. Without a path it stays open.
unsafe fn before_reopening(path: *const c_char, file: *mut FILE) {
    if !path.is_null() && !file.is_null() {
        // freopen(3) tells of no error of what it writes.
        let _ = unsafe { before_closing(file) };
    }
}

#[no_mangle]
pub unsafe extern "C" fn backtrace_symbols_fd(
    addresses: *const *mut c_void,
    count: c_int,
    fd: c_int,
) {
    before(|| {
        calls::fdopen(fd);
    });
    unsafe { real::backtrace_symbols_fd(addresses, count, fd) }
}

#[no_mangle]
pub unsafe extern "C" fn pidfd_getfd(pidfd: c_int, fd: c_int, flags: c_uint) -> c_int {
    let copy = with_numbers(|| unsafe {
        let number = libc::SYS_pidfd_getfd;
        real::syscall(number, pidfd as usize, fd as usize, flags as usize, 0, 0, 0)
    }) as c_int;
    noted(copy, |copy| calls::copied(pidfd, copy))
}

/// A FILE whose reads and writes are ours (fopencookie(3)), with the descriptor's number in it.
unsafe fn file_through_us(fd: c_int, mode: *const c_char) -> *mut FILE {
    #[repr(C)]
    struct Functions {
        read: unsafe extern "C" fn(*mut c_void, *mut c_char, usize) -> isize,
        write: unsafe extern "C" fn(*mut c_void, *const c_char, usize) -> isize,
        seek: *const c_void,
        close: unsafe extern "C" fn(*mut c_void) -> c_int,
    }
    extern "C" {
        fn fopencookie(cookie: *mut c_void, mode: *const c_char, functions: Functions)
            -> *mut FILE;
    }
    unsafe extern "C" fn read(cookie: *mut c_void, buffer: *mut c_char, len: usize) -> isize {
        unsafe { super::io::read(cookie as usize as c_int, buffer.cast(), len) }
    }
    unsafe extern "C" fn write(cookie: *mut c_void, buffer: *const c_char, len: usize) -> isize {
        let written = unsafe { super::io::write(cookie as usize as c_int, buffer.cast(), len) };
        written.max(0)
    }
    unsafe extern "C" fn end(cookie: *mut c_void) -> c_int {
        unsafe { close(cookie as usize as c_int) }
    }
    /// Where `_fileno` lies in glibc's FILE, behind the flags and 13 pointers (libio's struct_FILE.h).
    const FILENO: usize = 14 * size_of::<*mut c_void>();
    let functions = Functions { read, write, seek: core::ptr::null(), close: end };
    let file = unsafe { fopencookie(fd as usize as *mut c_void, mode, functions) };
    if !file.is_null() {
        unsafe { file.cast::<u8>().add(FILENO).cast::<c_int>().write(fd) };
    }
    file
}

#[no_mangle]
pub unsafe extern "C" fn fclose(file: *mut FILE) -> c_int {
    if file.is_null() {
        return unsafe { real::fclose(file) };
    }
    let written = unsafe { before_closing(file) };
    let closed = unsafe { real::fclose(file) };
    let Err(Errno(number)) = written else { return closed };
    set_errno(number);
    libc::EOF
}

/// Asks for the file's number, which is closed then. What the file still holds for a socket is written before;
/// glibc tells of an error of that once, so `Err` is what the close is to tell.
unsafe fn before_closing(file: *mut FILE) -> Result<(), Errno> {
    extern "C" {
        /// Whether it was written to last; flushing another one moves its offset, which a close does not.
        fn __fwriting(file: *mut FILE) -> c_int;
    }
    let mut written = Ok(());
    before(|| {
        let fd = unsafe { libc::fileno(file) };
        let flushes = table::socket(fd).is_some() && unsafe { __fwriting(file) } != 0;
        if flushes && unsafe { libc::fflush(file) } != 0 {
            written = Err(Errno(errno()));
        }
        calls::replaced(fd);
    });
    written
}
