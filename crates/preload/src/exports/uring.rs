//! io_uring: its calls by number, which libuv makes; and what liburing exports that makes a ring, where the calls are
//! in its own instructions. Each of these is liburing's, whichever module brought that, and takes the process to TCP.
//!
//! A program that has liburing as a part of itself makes its rings unseen.

use core::ffi::{c_int, c_uint, c_void, CStr};
use core::mem::transmute;
use core::sync::atomic::{AtomicPtr, Ordering::Relaxed};

use shunt_os::real;
use shunt_sockets::{quiet, uring};

use super::readiness;
use crate::boundary::before;

/// The library by the names of its versions so far.
const MODULES: [&CStr; 2] = [c"liburing.so.2", c"liburing.so.1"];

macro_rules! makers {
    ($($name:ident($($argument:ident: $kind:ty),*);)*) => { $(
        #[no_mangle]
        pub unsafe extern "C" fn $name($($argument: $kind),*) -> c_int {
            static FOUND: AtomicPtr<c_void> = AtomicPtr::new(core::ptr::null_mut());
            let mut address = FOUND.load(Relaxed);
            if address.is_null() {
                let name = concat!(stringify!($name), "\0");
                address = real::find_in(&MODULES, unsafe {
                    CStr::from_bytes_with_nul_unchecked(name.as_bytes())
                });
                if address.is_null() {
                    return -libc::ENOSYS;
                }
                FOUND.store(address, Relaxed);
            }
            type Genuine = unsafe extern "C" fn($($kind),*) -> c_int;
            let made = unsafe { transmute::<*mut c_void, Genuine>(address)($($argument),*) };
            if made >= 0 {
                quiet::saw_io_uring();
            }
            made
        }
    )* };
}
makers! {
    io_uring_setup(entries: c_uint, parameters: *mut c_void);
    io_uring_queue_init(entries: c_uint, ring: *mut c_void, flags: c_uint);
    io_uring_queue_init_params(entries: c_uint, ring: *mut c_void, parameters: *mut c_void);
    io_uring_queue_init_mem(entries: c_uint, ring: *mut c_void, parameters: *mut c_void, memory: *mut c_void, bytes: usize);
    io_uring_queue_init_try_nosqarr(entries: c_uint, ring: *mut c_void, parameters: *mut c_void);
}

/// io_uring_setup(2): `make` is the genuine call.
pub unsafe fn setup(parameters: *const u32, make: impl FnOnce() -> isize) -> isize {
    let errno = shunt_os::errno();
    let made = unsafe { uring::make(parameters, make) };
    if made >= 0 {
        shunt_os::set_errno(errno);
    }
    made
}

/// io_uring_enter(2).
pub unsafe fn before_enter(ring: c_int, count: c_uint, flags: c_uint) {
    let control = |set, operation, fd, event| match unsafe {
        readiness::epoll_ctl(set, operation, fd, event)
    } {
        0 => Ok(()),
        _ => Err(shunt_os::errno()),
    };
    before(|| uring::enter(ring, count, flags, control));
}

/// io_uring_register(2).
pub unsafe fn before_register(ring: c_int, operation: c_uint) {
    before(|| uring::register(ring, operation));
}
