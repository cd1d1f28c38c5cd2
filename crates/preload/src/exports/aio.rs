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

#[no_mangle]
pub unsafe extern "C" fn aio_read(block: *mut c_void) -> c_int {
    unsafe { before_aio(block) };
    unsafe { real::aio_read(block) }
}

#[no_mangle]
pub unsafe extern "C" fn aio_read64(block: *mut c_void) -> c_int {
    unsafe { before_aio(block) };
    unsafe { real::aio_read64(block) }
}

#[no_mangle]
pub unsafe extern "C" fn aio_write(block: *mut c_void) -> c_int {
    unsafe { before_aio(block) };
    unsafe { real::aio_write(block) }
}

#[no_mangle]
pub unsafe extern "C" fn aio_write64(block: *mut c_void) -> c_int {
    unsafe { before_aio(block) };
    unsafe { real::aio_write64(block) }
}

#[no_mangle]
pub unsafe extern "C" fn lio_listio(
    mode: c_int,
    list: *const *mut c_void,
    count: c_int,
    notice: *mut c_void,
) -> c_int {
    unsafe { before_list(list, count) };
    unsafe { real::lio_listio(mode, list, count, notice) }
}

#[no_mangle]
pub unsafe extern "C" fn lio_listio64(
    mode: c_int,
    list: *const *mut c_void,
    count: c_int,
    notice: *mut c_void,
) -> c_int {
    unsafe { before_list(list, count) };
    unsafe { real::lio_listio64(mode, list, count, notice) }
}

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
