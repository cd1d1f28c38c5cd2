//! Asynchronous I/O: glibc's own threads, or the kernel, read and write the descriptors.

use core::ffi::{c_int, c_void};

use shunt_os::real;
use shunt_sockets::calls::descriptor as calls;
use shunt_sockets::receive::is_no_address;

use crate::boundary::before;

/// `aio_fildes` is the first member of glibc's `aiocb` (aio.h).
unsafe fn before_aio(block: *const c_void) {
    if !block.is_null() {
        before(|| calls::before_aio(unsafe { block.cast::<c_int>().read() }));
    }
}

unsafe fn before_list(list: *const *mut c_void, count: c_int) {
    for at in 0..count.max(0) as usize {
        unsafe { before_aio(*list.add(at)) };
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
    if is_no_address(list.cast_mut().cast()) {
        return;
    }
    for at in 0..count.clamp(0, 1 << 16) as usize {
        let block = unsafe { *list.add(at) };
        if !is_no_address(block.cast_mut()) {
            let fd = unsafe { block.cast::<u8>().add(AIO_FILDES).cast::<c_int>().read() };
            before(|| calls::before_aio(fd));
        }
    }
}
