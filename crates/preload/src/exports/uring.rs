//! io_uring: its calls by number, which libuv makes, and liburing's functions, where the calls are in its own
//! instructions. Each of these is liburing's, whichever module brought that, and looks at the requests first, or
//! takes the process to TCP.
//!
//! A program that has liburing as a part of itself makes its rings unseen.

use core::ffi::{c_int, c_uint, c_void, CStr};
use core::mem::transmute;
use core::sync::atomic::{AtomicPtr, Ordering::Relaxed};

use shunt_os::real;
use shunt_sockets::calls::descriptor;
use shunt_sockets::uring::{Entered, Maker};
use shunt_sockets::{quiet, uring};

use super::readiness;
use crate::boundary::before;

/// io_uring_setup(2): `make` is the genuine call.
pub unsafe fn setup(parameters: *const u32, make: impl FnOnce() -> c_int) -> c_int {
    let errno = shunt_os::errno();
    let made = unsafe { uring::make(Maker::Kernel, parameters, make) };
    if made >= 0 {
        shunt_os::set_errno(errno);
    }
    made
}

/// io_uring_enter(2).
pub unsafe fn before_enter(ring: c_int, count: c_uint, flags: c_uint) {
    unsafe { before_entered(ring, Entered::ByNumber { count, flags }) };
}

unsafe fn before_entered(ring: c_int, entered: Entered) {
    let control = |set, operation, fd, event| match unsafe {
        readiness::epoll_ctl(set, operation, fd, event)
    } {
        0 => Ok(()),
        _ => Err(shunt_os::errno()),
    };
    before(|| uring::enter(ring, entered, control));
}

/// io_uring_register(2).
pub unsafe fn before_register(ring: c_int, operation: c_uint) {
    before(|| uring::register(ring, operation));
}

/// liburing by the names of its versions so far.
const MODULES: [&CStr; 2] = [c"liburing.so.2", c"liburing.so.1"];

/// Structs of liburing.h, version 2.
#[repr(C)]
struct Submissions {
    places: [*mut c_void; 8],
    /// Counts of requests that the program has made: those that are not shown to the kernel yet lie between.
    head: c_uint,
    tail: c_uint,
    bytes: usize,
    mapping: *mut c_void,
    more: [c_uint; 4],
}

#[repr(C)]
struct Completions {
    places: [*mut c_void; 7],
    bytes: usize,
    mapping: *mut c_void,
    more: [c_uint; 4],
}

#[repr(C)]
pub struct Ring {
    submissions: Submissions,
    completions: Completions,
    flags: c_uint,
    fd: c_int,
}

/// liburing's function of that name and type.
macro_rules! genuine {
    ($name:ident: fn($($kind:ty),*) -> $result:ty) => {{
        static FOUND: AtomicPtr<c_void> = AtomicPtr::new(core::ptr::null_mut());
        let mut address = FOUND.load(Relaxed);
        if address.is_null() {
            let name = concat!(stringify!($name), "\0");
            address = real::find_in(&MODULES, unsafe {
                CStr::from_bytes_with_nul_unchecked(name.as_bytes())
            });
            if address.is_null() {
                return (-libc::ENOSYS) as $result;
            }
            FOUND.store(address, Relaxed);
        }
        unsafe { transmute::<*mut c_void, unsafe extern "C" fn($($kind),*) -> $result>(address) }
    }};
}

/// struct io_uring_params, of which the third word is flags.
type Parameters = [u32; 30];

#[no_mangle]
pub unsafe extern "C" fn io_uring_queue_init(
    entries: c_uint,
    ring: *mut Ring,
    flags: c_uint,
) -> c_int {
    let mut parameters: Parameters = [0; 30];
    parameters[2] = flags;
    unsafe { io_uring_queue_init_params(entries, ring, &raw mut parameters) }
}

#[no_mangle]
pub unsafe extern "C" fn io_uring_queue_init_params(
    entries: c_uint,
    ring: *mut Ring,
    parameters: *mut Parameters,
) -> c_int {
    let genuine =
        genuine!(io_uring_queue_init_params: fn(c_uint, *mut Ring, *mut Parameters) -> c_int);
    let mut result = 0;
    let make = || unsafe {
        result = genuine(entries, ring, parameters);
        if result < 0 {
            result
        } else {
            (*ring).fd
        }
    };
    let fd = unsafe { uring::make(Maker::Liburing, parameters.cast(), make) };
    if result >= 0 && fd < 0 {
        // It has a place among registered rings alone.
        before(quiet::saw_io_uring);
    }
    result
}

/// What makes rings whose requests are not looked at.
macro_rules! makes_unseen {
    ($($name:ident($($argument:ident: $kind:ty),*);)*) => { $(
        #[no_mangle]
        pub unsafe extern "C" fn $name($($argument: $kind),*) -> c_int {
            let genuine = genuine!($name: fn($($kind),*) -> c_int);
            let made = unsafe { genuine($($argument),*) };
            if made >= 0 {
                before(quiet::saw_io_uring);
            }
            made
        }
    )* };
}
makes_unseen! {
    io_uring_setup(entries: c_uint, parameters: *mut c_void);
    io_uring_queue_init_mem(entries: c_uint, ring: *mut c_void, parameters: *mut c_void, memory: *mut c_void, bytes: usize);
    io_uring_queue_init_try_nosqarr(entries: c_uint, ring: *mut c_void, parameters: *mut c_void);
}

/// What uses rings in such a way that requests are not looked at, or mean something else.
macro_rules! uses_unseen {
    ($($name:ident($($argument:ident: $kind:ty),*);)*) => { $(
        #[no_mangle]
        pub unsafe extern "C" fn $name($($argument: $kind),*) -> c_int {
            let genuine = genuine!($name: fn($($kind),*) -> c_int);
            before(quiet::saw_io_uring);
            unsafe { genuine($($argument),*) }
        }
    )* };
}
uses_unseen! {
    io_uring_resize_rings(ring: *mut c_void, parameters: *mut c_void);
    io_uring_register(fd: c_uint, operation: c_uint, argument: *const c_void, count: c_uint);
    io_uring_register_files(ring: *mut c_void, files: *const c_int, count: c_uint);
    io_uring_register_files_tags(ring: *mut c_void, files: *const c_int, tags: *const u64, count: c_uint);
    io_uring_register_files_sparse(ring: *mut c_void, count: c_uint);
    io_uring_register_files_update(ring: *mut c_void, at: c_uint, files: *const c_int, count: c_uint);
    io_uring_register_files_update_tag(ring: *mut c_void, at: c_uint, files: *const c_int, tags: *const u64, count: c_uint);
    io_uring_enter(fd: c_uint, count: c_uint, least: c_uint, flags: c_uint, mask: *mut c_void);
    io_uring_enter2(fd: c_uint, count: c_uint, least: c_uint, flags: c_uint, argument: *mut c_void, bytes: usize);
}

/// What shows the kernel the requests that were made. Functions that wait do so only on kernels whose rings are not
/// looked at (without IORING_FEAT_EXT_ARG).
macro_rules! submitting {
    ($($name:ident($($argument:ident: $kind:ty),*);)*) => { $(
        #[no_mangle]
        pub unsafe extern "C" fn $name(ring: *mut Ring $(, $argument: $kind)*) -> c_int {
            let genuine = genuine!($name: fn(*mut Ring $(, $kind)*) -> c_int);
            unsafe {
                let made = (*ring).submissions.tail;
                before_entered((*ring).fd, Entered::ByLiburing { made });
                genuine(ring $(, $argument)*)
            }
        }
    )* };
}
submitting! {
    io_uring_submit();
    io_uring_submit_and_wait(least: c_uint);
    io_uring_submit_and_wait_timeout(found: *mut c_void, least: c_uint, limit: *mut c_void, mask: *mut c_void);
    io_uring_submit_and_wait_min_timeout(found: *mut c_void, least: c_uint, limit: *mut c_void, soonest: c_uint, mask: *mut c_void);
    io_uring_submit_and_wait_reg(found: *mut c_void, least: c_uint, at: c_int);
    io_uring_submit_and_get_events();
}

#[no_mangle]
pub unsafe extern "C" fn io_uring_queue_exit(ring: *mut Ring) {
    let genuine = || -> c_int {
        let genuine = genuine!(io_uring_queue_exit: fn(*mut Ring) -> c_int);
        before(|| descriptor::replaced(unsafe { (*ring).fd }));
        unsafe { genuine(ring) }
    };
    genuine();
}
