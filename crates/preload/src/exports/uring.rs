//! What liburing exports that makes a ring, where the system call is in its own instructions. Each is
//! liburing's, whichever module brought that, and afterwards what is known of a ring made by number.
//!
//! A program that has liburing as a part of itself makes its rings unseen.

use core::ffi::{c_int, c_uint, c_void, CStr};
use core::mem::transmute;
use core::sync::atomic::{AtomicPtr, Ordering::Relaxed};

use shunt_os::real;
use shunt_sockets::quiet;

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
