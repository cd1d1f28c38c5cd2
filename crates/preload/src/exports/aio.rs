//! Asynchronous I/O: glibc's own threads, or the kernel, read and write the descriptors.

use core::ffi::{c_int, c_void};

use shunt_os::{memory, real};
use shunt_sockets::calls::descriptor as calls;

use crate::boundary::before;

/// `aio_fildes` is the first member of glibc's `aiocb` (aio.h).
unsafe fn before_aio(block: *const c_void) {
    if memory::is_there(block, size_of::<c_int>()) {
        before(|| calls::before_aio(unsafe { block.cast::<c_int>().read() }));
    }
}

/// What is not there libc refuses, or faults on by itself.
unsafe fn before_list(list: *const *mut c_void, count: c_int) {
    let count = count.max(0) as usize;
    if memory::is_there(list, count.saturating_mul(size_of::<usize>())) {
        for at in 0..count {
            unsafe { before_aio(*list.add(at)) };
        }
    }
}

macro_rules! one_request {
    ($($name:ident),*) => { $(
        #[no_mangle]
        pub unsafe extern "C" fn $name(block: *mut c_void) -> c_int {
            unsafe { before_aio(block) };
            unsafe { real::$name(block) }
        }
    )* };
}
one_request!(aio_read, aio_read64, aio_write, aio_write64);

macro_rules! list_of_requests {
    ($($name:ident),*) => { $(
        #[no_mangle]
        pub unsafe extern "C" fn $name(
            mode: c_int,
            list: *const *mut c_void,
            count: c_int,
            notice: *mut c_void,
        ) -> c_int {
            unsafe { before_list(list, count) };
            unsafe { real::$name(mode, list, count, notice) }
        }
    )* };
}
list_of_requests!(lio_listio, lio_listio64);

/// `io_submit` by number (io_submit(2)): `aio_fildes` of the kernel's `iocb` (linux/aio_abi.h).
pub unsafe fn before_submit(list: *const *const c_void, count: isize) {
    const AIO_FILDES: usize = 20;
    for at in 0..count.clamp(0, 1 << 16) as usize {
        let place = list.wrapping_add(at);
        if !memory::is_there(place, size_of::<usize>()) {
            return;
        }
        let block = unsafe { *place };
        if memory::is_there(block, AIO_FILDES + size_of::<c_int>()) {
            let fd = unsafe { block.cast::<u8>().add(AIO_FILDES).cast::<c_int>().read() };
            before(|| calls::before_aio(fd));
        }
    }
}
