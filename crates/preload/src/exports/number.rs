//! `syscall()`: the calls above by their numbers. Everything else goes to the kernel as it is.

use core::ffi::{c_int, c_long, c_uint, c_ulong};

use shunt_os::{memory, real};
use shunt_sockets::calls::io as calls;
use shunt_sockets::calls::process::bare_fork;
use shunt_sockets::table;

use super::{descriptor, io, listing, process, quiet, readiness, signals, socket, uring};

/// The calls of one kind of programs: whose arguments have another form, or that the others lack.
#[cfg_attr(target_pointer_width = "64", path = "number/of_64_bits.rs")]
#[cfg_attr(target_arch = "x86", path = "number/of_x86.rs")]
mod own;

/// glibc's function takes up to six arguments after the number, whatever the call needs.
#[no_mangle]
pub unsafe extern "C" fn syscall(
    number: c_long,
    a: usize,
    b: usize,
    c: usize,
    d: usize,
    e: usize,
    f: usize,
) -> c_long {
    let arguments = [a, b, c, d, e, f];
    // Threads' locks go by futex, a million times a second.
    let is_kernels = || number == libc::SYS_futex || unsafe { is_kernels(number, arguments) };
    if !shunt_sockets::process::enabled() || is_kernels() {
        return unsafe { real::syscall(number, a, b, c, d, e, f) };
    }
    // It is no cancellation point, as functions are that stand for it here.
    let mut cancels = 0;
    unsafe { pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &raw mut cancels) };
    let result = unsafe { by_function(number, arguments) };
    unsafe { pthread_setcancelstate(cancels, core::ptr::null_mut()) };
    result.unwrap_or_else(|| unsafe { real::syscall(number, a, b, c, d, e, f) })
}

extern "C" {
    fn pthread_setcancelstate(state: c_int, before: *mut c_int) -> c_int;
}
const PTHREAD_CANCEL_DISABLE: c_int = 1;

/// Whether a call has nothing to do with what we know of.
unsafe fn is_kernels(number: c_long, [a, b, ..]: [usize; 6]) -> bool {
    match number {
        libc::SYS_read | libc::SYS_readv | libc::SYS_recvfrom => {
            calls::receive_is_kernels(a as c_int)
        }
        libc::SYS_write | libc::SYS_writev | libc::SYS_sendto => calls::send_is_kernels(a as c_int),
        libc::SYS_poll | libc::SYS_ppoll => table::has_had_none(),
        libc::SYS_prctl => !quiet::heeds(a as c_int, b),
        _ => own::waits(number) && table::has_had_none(),
    }
}

/// `None` for what is to go to the kernel as it is.
unsafe fn by_function(number: c_long, [a, b, c, d, e, f]: [usize; 6]) -> Option<c_long> {
    let fd = a as c_int;
    let genuine = || unsafe { real::syscall(number, a, b, c, d, e, f) as libc::pid_t };
    Some(unsafe {
        match number {
            libc::SYS_read => io::read(fd, b as _, c) as c_long,
            libc::SYS_write => io::write(fd, b as _, c) as c_long,
            libc::SYS_readv => io::readv(fd, b as _, c as c_int) as c_long,
            libc::SYS_writev => io::writev(fd, b as _, c as c_int) as c_long,
            libc::SYS_recvfrom => io::recvfrom(fd, b as _, c, d as c_int, e as _, f as _) as c_long,
            libc::SYS_sendto => {
                io::sendto(fd, b as _, c, d as c_int, e as _, f as c_uint) as c_long
            }
            libc::SYS_recvmsg => io::recvmsg(fd, b as _, c as c_int) as c_long,
            libc::SYS_sendmsg => io::sendmsg(fd, b as _, c as c_int) as c_long,
            libc::SYS_sendmmsg => io::sendmmsg(fd, b as _, c as c_uint, d as c_int).into(),
            libc::SYS_splice => {
                io::splice(fd, b as _, c as c_int, d as _, e, f as c_uint) as c_long
            }
            libc::SYS_socket => socket::socket(fd, b as c_int, c as c_int).into(),
            libc::SYS_accept4 => socket::accept4(fd, b as _, c as _, d as c_int).into(),
            libc::SYS_connect => socket::connect(fd, b as _, c as c_uint).into(),
            libc::SYS_shutdown => socket::shutdown(fd, b as c_int).into(),
            libc::SYS_setsockopt => {
                socket::setsockopt(fd, b as c_int, c as c_int, d as _, e as c_uint).into()
            }
            libc::SYS_close => descriptor::close(fd).into(),
            libc::SYS_close_range => {
                descriptor::close_range(a as c_uint, b as c_uint, c as c_int).into()
            }
            libc::SYS_dup => descriptor::dup(fd).into(),
            libc::SYS_dup2 => descriptor::dup2(fd, b as c_int).into(),
            libc::SYS_dup3 => descriptor::dup3(fd, b as c_int, c as c_int).into(),
            libc::SYS_fcntl => descriptor::fcntl(fd, b as c_int, c as _).into(),
            libc::SYS_ioctl => descriptor::ioctl(fd, b as c_ulong, c as _).into(),
            libc::SYS_poll => readiness::poll(a as _, b as _, c as c_int).into(),
            libc::SYS_epoll_create => readiness::epoll_create(fd).into(),
            libc::SYS_epoll_create1 => readiness::epoll_create1(fd).into(),
            libc::SYS_epoll_ctl => readiness::epoll_ctl(fd, b as c_int, c as c_int, d as _).into(),
            libc::SYS_epoll_wait => {
                readiness::epoll_wait(fd, b as _, c as c_int, d as c_int).into()
            }
            libc::SYS_epoll_pwait if takes_mask(e, f) => {
                readiness::epoll_pwait(fd, b as _, c as c_int, d as c_int, e as _).into()
            }
            libc::SYS_kill => signals::kill(a as _, b as c_int).into(),
            libc::SYS_tgkill => signals::tgkill(a as _, b as _, c as c_int).into(),
            libc::SYS_prctl => quiet::prctl(fd, b, c, d, e).into(),
            libc::SYS_seccomp => quiet::seccomp(a, b, c),
            libc::SYS_clone if a & SPLITS == libc::CLONE_FILES as usize => {
                shunt_sockets::quiet::split(|| genuine() as isize) as c_long
            }
            libc::SYS_mlockall => quiet::mlockall(fd).into(),
            libc::SYS_unshare => quiet::unshare(fd).into(),
            libc::SYS_setns => quiet::setns(fd, b as c_int).into(),
            libc::SYS_io_uring_setup => {
                let make = || real::syscall(number, a, b, c, d, e, f) as c_int;
                uring::setup(b as _, make).into()
            }
            libc::SYS_io_uring_enter => {
                uring::before_enter(fd, b as c_uint, d as c_uint);
                real::syscall(number, a, b, c, d, e, f)
            }
            libc::SYS_io_uring_register => {
                uring::before_register(fd, b as c_uint);
                real::syscall(number, a, b, c, d, e, f)
            }
            libc::SYS_getpeername => socket::getpeername(fd, b as _, c as _).into(),
            libc::SYS_getsockopt => {
                socket::getsockopt(fd, b as c_int, c as c_int, d as _, e as _).into()
            }
            libc::SYS_io_submit => {
                super::aio::before_submit(c as _, b as isize);
                real::syscall(number, a, b, c, d, e, f)
            }
            libc::SYS_pidfd_getfd => descriptor::pidfd_getfd(fd, b as c_int, c as c_uint).into(),
            libc::SYS_fork => bare_fork(genuine).into(),
            libc::SYS_clone if a & SHARES == 0 => bare_fork(genuine).into(),
            libc::SYS_clone3 if forks(a as _) => bare_fork(genuine).into(),
            libc::SYS_getdents | libc::SYS_getdents64 => listing::by_number(number, a, b, c),
            libc::SYS_execve => process::execve(a as _, b as _, c as _).into(),
            _ => return own::call(number, [a, b, c, d, e, f]),
        }
    })
}

/// Of these a process that shares descriptors, and no memory, has the first.
const SPLITS: usize = (libc::CLONE_FILES | libc::CLONE_VM) as usize;

/// The mask of pselect6: its last argument is a mask and its length (select(2)). `None`: the kernel refuses it.
unsafe fn mask_of_pselect6(last: usize) -> Option<*const libc::sigset_t> {
    let last = last as *const [usize; 2];
    if last.is_null() {
        return Some(core::ptr::null());
    }
    if !memory::is_there(last, size_of_val(&[0usize; 2])) {
        return None;
    }
    let [mask, bytes] = unsafe { *last };
    takes_mask(mask, bytes).then_some(mask as *const libc::sigset_t)
}

/// Whether there is no mask, or one of the length that the kernel asks for: of another it refuses it.
fn takes_mask(mask: usize, bytes: usize) -> bool {
    const MASK_BYTES: usize = 8;
    mask == 0 || bytes == MASK_BYTES
}

/// Whether libc's function finds the time that it reads.
unsafe fn has_time(at: usize) -> bool {
    at == 0 || memory::is_there(at as *const u8, size_of::<libc::timespec>())
}

/// Whether clone3(2) makes a process with memory and descriptors of its own; the kernel refuses arguments that are
/// not there.
unsafe fn forks(arguments: *const u64) -> bool {
    memory::is_readable(arguments, 8) && unsafe { *arguments } & SHARES as u64 == 0
}

/// Of a clone whose child is a thread, or one of vfork, or has this process's descriptors.
const SHARES: usize = (libc::CLONE_VM | libc::CLONE_THREAD | libc::CLONE_FILES) as usize;
