//! Each is looked up with `dlsym(RTLD_NEXT)` when it is first needed, so that start-up pays for
//! none and other preloaded libraries keep their place in the chain. They set `errno`, are
//! cancellation points and may be interrupted, exactly as the program expects.

#![allow(clippy::missing_safety_doc)] // Each is the libc function of the same name.

use core::ffi::{c_char, c_int, c_long, c_uint, c_void, CStr};
use core::mem::transmute;
use core::ptr::null_mut;
use core::sync::atomic::{AtomicPtr, Ordering::Relaxed};

use libc::{
    dirent, dirent64, epoll_event, fd_set, iovec, mmsghdr, mode_t, msghdr, nfds_t, off64_t, off_t,
    pid_t, pollfd, pthread_t, sighandler_t, sigset_t, size_t, sockaddr, socklen_t, ssize_t,
    timespec, timeval, DIR, FILE,
};

use crate::critical::Section;
use crate::lookups;

/// The genuine function of this name, or null.
pub fn find(name: &CStr) -> *mut c_void {
    lookups::genuine(name).unwrap_or_else(|| {
        // A handler that does not return would leave the dynamic linker's lock held.
        let _section = Section::begin();
        // SAFETY: `name` is NUL-terminated.
        let found = unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) };
        // Another thread may have put ours in its place meanwhile.
        lookups::genuine(name).unwrap_or(found)
    })
}

/// As [`find`], of a function of one of these modules', which may have been loaded for another module alone: then
/// nobody finds it who does not name them.
pub fn find_in(modules: &[&CStr], name: &CStr) -> *mut c_void {
    let found = find(name);
    let open = find(c"dlopen");
    if !found.is_null() || open.is_null() {
        return found;
    }
    // SAFETY: dlopen(3) has this signature.
    let open = unsafe {
        transmute::<*mut c_void, unsafe extern "C" fn(*const c_char, c_int) -> *mut c_void>(open)
    };
    let flags = libc::RTLD_LAZY | libc::RTLD_NOLOAD;
    let _section = Section::begin();
    modules
        .iter()
        // SAFETY: the names are NUL-terminated, and nothing is loaded.
        .map(|module| unsafe { open(module.as_ptr(), flags) })
        .filter(|module| !module.is_null())
        // SAFETY: an open module, which stays so.
        .map(|module| unsafe { libc::dlsym(module, name.as_ptr()) })
        .find(|found| !found.is_null())
        .unwrap_or(null_mut())
}

/// A step of a fork, or none.
pub type AtFork = Option<unsafe extern "C" fn()>;

macro_rules! genuine {
    ($($(#[$doc:meta])* $name:ident ( $($arg:ident : $ty:ty),* ) -> $ret:ty;)*) => { $(
        $(#[$doc])*
        #[inline]
        #[allow(non_snake_case)]
        pub unsafe fn $name($($arg: $ty),*) -> $ret {
            static FOUND: AtomicPtr<c_void> = AtomicPtr::new(null_mut());
            let mut address = FOUND.load(Relaxed);
            if address.is_null() {
                let name = concat!(stringify!($name), "\0");
                // SAFETY: the literal ends in NUL.
                address = find(unsafe { CStr::from_bytes_with_nul_unchecked(name.as_bytes()) });
                if address.is_null() {
                    crate::set_errno(libc::ENOSYS);
                    // SAFETY: every return type here is an integer or a pointer.
                    return unsafe { core::mem::transmute_copy::<i64, $ret>(&-1i64) };
                }
                FOUND.store(address, Relaxed);
            }
            // SAFETY: the symbol of this name has this signature in glibc and musl.
            let function = unsafe {
                transmute::<*mut c_void, unsafe extern "C" fn($($ty),*) -> $ret>(address)
            };
            // SAFETY: the caller's arguments are the program's own.
            unsafe { function($($arg),*) }
        }
    )* };
}

genuine! {
    socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int;
    accept(fd: c_int, address: *mut sockaddr, len: *mut socklen_t) -> c_int;
    accept4(fd: c_int, address: *mut sockaddr, len: *mut socklen_t, flags: c_int) -> c_int;
    connect(fd: c_int, address: *const sockaddr, len: socklen_t) -> c_int;
    listen(fd: c_int, backlog: c_int) -> c_int;
    shutdown(fd: c_int, how: c_int) -> c_int;
    setsockopt(fd: c_int, level: c_int, name: c_int, value: *const c_void, len: socklen_t) -> c_int;
    getpeername(fd: c_int, address: *mut sockaddr, len: *mut socklen_t) -> c_int;
    getsockopt(fd: c_int, level: c_int, name: c_int, value: *mut c_void, len: *mut socklen_t) -> c_int;
    close(fd: c_int) -> c_int;
    dup(fd: c_int) -> c_int;
    dup2(from: c_int, to: c_int) -> c_int;
    dup3(from: c_int, to: c_int, flags: c_int) -> c_int;
    fcntl(fd: c_int, command: c_int, argument: *mut c_void) -> c_int;
    fcntl64(fd: c_int, command: c_int, argument: *mut c_void) -> c_int;
    ioctl(fd: c_int, request: libc::c_ulong, argument: *mut c_void) -> c_int;
    read(fd: c_int, buffer: *mut c_void, len: size_t) -> ssize_t;
    write(fd: c_int, buffer: *const c_void, len: size_t) -> ssize_t;
    readv(fd: c_int, vector: *const iovec, count: c_int) -> ssize_t;
    writev(fd: c_int, vector: *const iovec, count: c_int) -> ssize_t;
    recv(fd: c_int, buffer: *mut c_void, len: size_t, flags: c_int) -> ssize_t;
    recvfrom(fd: c_int, buffer: *mut c_void, len: size_t, flags: c_int, address: *mut sockaddr, alen: *mut socklen_t) -> ssize_t;
    recvmsg(fd: c_int, message: *mut msghdr, flags: c_int) -> ssize_t;
    recvmmsg(fd: c_int, messages: *mut mmsghdr, count: c_uint, flags: c_int, timeout: *mut timespec) -> c_int;
    send(fd: c_int, buffer: *const c_void, len: size_t, flags: c_int) -> ssize_t;
    sendto(fd: c_int, buffer: *const c_void, len: size_t, flags: c_int, address: *const sockaddr, alen: socklen_t) -> ssize_t;
    sendmsg(fd: c_int, message: *const msghdr, flags: c_int) -> ssize_t;
    sendmmsg(fd: c_int, messages: *mut mmsghdr, count: c_uint, flags: c_int) -> c_int;
    sendfile(out: c_int, input: c_int, offset: *mut off_t, count: size_t) -> ssize_t;
    sendfile64(out: c_int, input: c_int, offset: *mut off64_t, count: size_t) -> ssize_t;
    splice(input: c_int, input_offset: *mut off64_t, out: c_int, out_offset: *mut off64_t, len: size_t, flags: c_uint) -> ssize_t;
    tee(input: c_int, out: c_int, len: size_t, flags: c_uint) -> ssize_t;
    pread(fd: c_int, buffer: *mut c_void, len: size_t, offset: off_t) -> ssize_t;
    poll(entries: *mut pollfd, count: nfds_t, timeout_ms: c_int) -> c_int;
    ppoll(entries: *mut pollfd, count: nfds_t, timeout: *const timespec, mask: *const sigset_t) -> c_int;
    select(count: c_int, read: *mut fd_set, write: *mut fd_set, except: *mut fd_set, timeout: *mut timeval) -> c_int;
    pselect(count: c_int, read: *mut fd_set, write: *mut fd_set, except: *mut fd_set, timeout: *const timespec, mask: *const sigset_t) -> c_int;
    epoll_create(size: c_int) -> c_int;
    epoll_create1(flags: c_int) -> c_int;
    epoll_ctl(set: c_int, operation: c_int, fd: c_int, event: *mut epoll_event) -> c_int;
    epoll_wait(set: c_int, events: *mut epoll_event, count: c_int, timeout_ms: c_int) -> c_int;
    epoll_pwait(set: c_int, events: *mut epoll_event, count: c_int, timeout_ms: c_int, mask: *const sigset_t) -> c_int;
    epoll_pwait2(set: c_int, events: *mut epoll_event, count: c_int, timeout: *const timespec, mask: *const sigset_t) -> c_int;
    fork() -> libc::pid_t;
    clone(child: *mut c_void, stack: *mut c_void, flags: c_int, argument: *mut c_void, a: usize, b: usize, c: usize) -> c_int;
    _Fork() -> libc::pid_t;
    /// What is behind pthread_atfork(3), which is a part of each program and library that calls it.
    __register_atfork(prepare: AtFork, parent: AtFork, child: AtFork, library: *mut c_void) -> c_int;
    login_tty(fd: c_int) -> c_int;
    wordexp(words: *const c_char, into: *mut c_void, flags: c_int) -> c_int;
    aio_read(block: *mut c_void) -> c_int;
    aio_read64(block: *mut c_void) -> c_int;
    aio_write(block: *mut c_void) -> c_int;
    aio_write64(block: *mut c_void) -> c_int;
    lio_listio(mode: c_int, list: *const *mut c_void, count: c_int, notice: *mut c_void) -> c_int;
    lio_listio64(mode: c_int, list: *const *mut c_void, count: c_int, notice: *mut c_void) -> c_int;
    freopen(path: *const c_char, mode: *const c_char, file: *mut FILE) -> *mut FILE;
    freopen64(path: *const c_char, mode: *const c_char, file: *mut FILE) -> *mut FILE;
    backtrace_symbols_fd(addresses: *const *mut c_void, count: c_int, fd: c_int) -> ();
    preadv2(fd: c_int, vector: *const iovec, count: c_int, offset: off_t, flags: c_int) -> ssize_t;
    pwritev2(fd: c_int, vector: *const iovec, count: c_int, offset: off_t, flags: c_int) -> ssize_t;
    preadv64v2(fd: c_int, vector: *const iovec, count: c_int, offset: off64_t, flags: c_int) -> ssize_t;
    pwritev64v2(fd: c_int, vector: *const iovec, count: c_int, offset: off64_t, flags: c_int) -> ssize_t;
    sigaction(signal: c_int, new: *const libc::sigaction, old: *mut libc::sigaction) -> c_int;
    signal(signal: c_int, handler: sighandler_t) -> sighandler_t;
    bsd_signal(signal: c_int, handler: sighandler_t) -> sighandler_t;
    ssignal(signal: c_int, handler: sighandler_t) -> sighandler_t;
    sysv_signal(signal: c_int, handler: sighandler_t) -> sighandler_t;
    __sysv_signal(signal: c_int, handler: sighandler_t) -> sighandler_t;
    sigset(signal: c_int, handler: sighandler_t) -> sighandler_t;
    siginterrupt(signal: c_int, interrupts: c_int) -> c_int;
    raise(signal: c_int) -> c_int;
    kill(process: pid_t, signal: c_int) -> c_int;
    killpg(group: pid_t, signal: c_int) -> c_int;
    tgkill(process: pid_t, thread: pid_t, signal: c_int) -> c_int;
    pthread_kill(thread: pthread_t, signal: c_int) -> c_int;
    prctl(operation: c_int, a: usize, b: usize, c: usize, d: usize) -> c_int;
    mlockall(flags: c_int) -> c_int;
    unshare(flags: c_int) -> c_int;
    setns(fd: c_int, kind: c_int) -> c_int;
    daemon(nochdir: c_int, noclose: c_int) -> c_int;
    execve(path: *const c_char, arguments: *const *const c_char, environment: *const *const c_char) -> c_int;
    fexecve(fd: c_int, arguments: *const *const c_char, environment: *const *const c_char) -> c_int;
    execvpe(file: *const c_char, arguments: *const *const c_char, environment: *const *const c_char) -> c_int;
    posix_spawn(pid: *mut libc::pid_t, path: *const c_char, actions: *const c_void, attributes: *const c_void, arguments: *const *mut c_char, environment: *const *mut c_char) -> c_int;
    posix_spawnp(pid: *mut libc::pid_t, path: *const c_char, actions: *const c_void, attributes: *const c_void, arguments: *const *mut c_char, environment: *const *mut c_char) -> c_int;
    pidfd_spawn(pidfd: *mut c_int, path: *const c_char, actions: *const c_void, attributes: *const c_void, arguments: *const *mut c_char, environment: *const *mut c_char) -> c_int;
    pidfd_spawnp(pidfd: *mut c_int, path: *const c_char, actions: *const c_void, attributes: *const c_void, arguments: *const *mut c_char, environment: *const *mut c_char) -> c_int;
    posix_spawn_file_actions_adddup2(actions: *mut c_void, from: c_int, to: c_int) -> c_int;
    system(command: *const c_char) -> c_int;
    open(path: *const c_char, flags: c_int, mode: mode_t) -> c_int;
    open64(path: *const c_char, flags: c_int, mode: mode_t) -> c_int;
    openat(folder: c_int, path: *const c_char, flags: c_int, mode: mode_t) -> c_int;
    openat64(folder: c_int, path: *const c_char, flags: c_int, mode: mode_t) -> c_int;
    __open_2(path: *const c_char, flags: c_int) -> c_int;
    __open64_2(path: *const c_char, flags: c_int) -> c_int;
    __openat_2(folder: c_int, path: *const c_char, flags: c_int) -> c_int;
    __openat64_2(folder: c_int, path: *const c_char, flags: c_int) -> c_int;
    creat(path: *const c_char, mode: mode_t) -> c_int;
    creat64(path: *const c_char, mode: mode_t) -> c_int;
    mkstemp(template: *mut c_char) -> c_int;
    mkstemp64(template: *mut c_char) -> c_int;
    mkostemp(template: *mut c_char, flags: c_int) -> c_int;
    mkostemp64(template: *mut c_char, flags: c_int) -> c_int;
    pipe(ends: *mut c_int) -> c_int;
    pipe2(ends: *mut c_int, flags: c_int) -> c_int;
    socketpair(domain: c_int, kind: c_int, protocol: c_int, ends: *mut c_int) -> c_int;
    eventfd(count: c_uint, flags: c_int) -> c_int;
    timerfd_create(clock: c_int, flags: c_int) -> c_int;
    signalfd(fd: c_int, mask: *const sigset_t, flags: c_int) -> c_int;
    memfd_create(name: *const c_char, flags: c_uint) -> c_int;
    inotify_init() -> c_int;
    inotify_init1(flags: c_int) -> c_int;
    popen(command: *const c_char, kind: *const c_char) -> *mut FILE;
    fdopen(fd: c_int, mode: *const c_char) -> *mut FILE;
    fclose(file: *mut FILE) -> c_int;
    closefrom(lowest: c_int) -> ();
    close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int;
    umask(mode: mode_t) -> mode_t;
    readdir(folder: *mut DIR) -> *mut dirent;
    readdir64(folder: *mut DIR) -> *mut dirent64;
    readdir_r(folder: *mut DIR, entry: *mut dirent, result: *mut *mut dirent) -> c_int;
    readdir64_r(folder: *mut DIR, entry: *mut dirent64, result: *mut *mut dirent64) -> c_int;
    getdents64(folder: c_int, buffer: *mut c_void, bytes: size_t) -> ssize_t;
    getdirentries(folder: c_int, buffer: *mut c_char, bytes: size_t, place: *mut off_t) -> ssize_t;
    getdirentries64(folder: c_int, buffer: *mut c_char, bytes: size_t, place: *mut off64_t) -> ssize_t;
    scandir(path: *const c_char, list: *mut *mut *mut c_void, choose: *const c_void, compare: *const c_void) -> c_int;
    scandir64(path: *const c_char, list: *mut *mut *mut c_void, choose: *const c_void, compare: *const c_void) -> c_int;
    scandirat(folder: c_int, path: *const c_char, list: *mut *mut *mut c_void, choose: *const c_void, compare: *const c_void) -> c_int;
    scandirat64(folder: c_int, path: *const c_char, list: *mut *mut *mut c_void, choose: *const c_void, compare: *const c_void) -> c_int;
    syscall(number: c_long, a: usize, b: usize, c: usize, d: usize, e: usize, f: usize) -> c_long;
    isfdtype(fd: c_int, kind: c_int) -> c_int;
}

/// The same for programs of 32 bits with times of 64 (_TIME_BITS=64), under names of their own.
#[cfg(target_arch = "x86")]
mod time64 {
    use super::*;
    use crate::clock::{Timespec64, Timeval64};

    genuine! {
        __ppoll64(entries: *mut pollfd, count: nfds_t, timeout: *const Timespec64, mask: *const sigset_t) -> c_int;
        __select64(count: c_int, read: *mut fd_set, write: *mut fd_set, except: *mut fd_set, timeout: *mut Timeval64) -> c_int;
        __pselect64(count: c_int, read: *mut fd_set, write: *mut fd_set, except: *mut fd_set, timeout: *const Timespec64, mask: *const sigset_t) -> c_int;
        __epoll_pwait2_time64(set: c_int, events: *mut epoll_event, count: c_int, timeout: *const Timespec64, mask: *const sigset_t) -> c_int;
        __recvmsg64(fd: c_int, message: *mut msghdr, flags: c_int) -> ssize_t;
        __recvmmsg64(fd: c_int, messages: *mut mmsghdr, count: c_uint, flags: c_int, timeout: *mut Timespec64) -> c_int;
    }
}

#[cfg(target_arch = "x86")]
pub use time64::*;
