//! What is in a folder: ours are in no list of descriptors (`sockets::calls::listing`).

use core::ffi::{c_char, c_int, c_long, c_void};
use core::ptr::null_mut;

use libc::{dirent, dirent64, off64_t, off_t, DIR};
use shunt_os::real;
use shunt_sockets::calls::listing::{self as calls, Form};

type Function = *const c_void;
/// An array of entries, of either kind.
type List = *mut *mut c_void;

macro_rules! one_by_one {
    ($($name:ident gives $entry:ty, $form:ident;)*) => { $(
        #[no_mangle]
        pub unsafe extern "C" fn $name(folder: *mut DIR) -> *mut $entry {
            unsafe { calls::shown(folder, calls::$form, || real::$name(folder)) }
        }
    )* };
}

one_by_one! {
    readdir gives dirent, PLAIN;
    readdir64 gives dirent64, WIDE;
}

macro_rules! one_by_one_into {
    ($($name:ident gives $entry:ty, $form:ident;)*) => { $(
        #[no_mangle]
        pub unsafe extern "C" fn $name(
            folder: *mut DIR,
            entry: *mut $entry,
            result: *mut *mut $entry,
        ) -> c_int {
            let mut error = 0;
            let next = || {
                error = unsafe { real::$name(folder, entry, result) };
                if error == 0 { unsafe { *result } } else { null_mut() }
            };
            unsafe { calls::shown(folder, calls::$form, next) };
            error
        }
    )* };
}

one_by_one_into! {
    readdir_r gives dirent, PLAIN;
    readdir64_r gives dirent64, WIDE;
}

#[no_mangle]
pub unsafe extern "C" fn getdents64(folder: c_int, buffer: *mut c_void, bytes: usize) -> isize {
    let call = || unsafe { real::getdents64(folder, buffer, bytes) };
    unsafe { calls::fill(folder, buffer.cast(), calls::WIDE, call) }
}

macro_rules! from_a_place {
    ($($name:ident from $place:ty, $form:ident;)*) => { $(
        #[no_mangle]
        pub unsafe extern "C" fn $name(
            folder: c_int,
            buffer: *mut c_char,
            bytes: usize,
            place: *mut $place,
        ) -> isize {
            let call = || unsafe { real::$name(folder, buffer, bytes, place) };
            unsafe { calls::fill(folder, buffer.cast(), calls::$form, call) }
        }
    )* };
}

from_a_place! {
    getdirentries from off_t, PLAIN;
    getdirentries64 from off64_t, WIDE;
}

/// getdents(2) and getdents64(2) by their numbers.
pub unsafe fn by_number(number: c_long, folder: usize, buffer: usize, bytes: usize) -> c_long {
    let form = if number == libc::SYS_getdents64 { calls::WIDE } else { calls::OLD };
    let call = || unsafe { real::syscall(number, folder, buffer, bytes, 0, 0, 0) as isize };
    unsafe { calls::fill(folder as c_int, buffer as *mut u8, form, call) as c_long }
}

macro_rules! whole {
    ($($name:ident as $form:ident;)*) => { $(
        #[no_mangle]
        pub unsafe extern "C" fn $name(
            path: *const c_char,
            list: *mut List,
            choose: Function,
            compare: Function,
        ) -> c_int {
            let found = unsafe { real::$name(path, list, choose, compare) };
            unsafe { without_ours((libc::AT_FDCWD, path), list, found, calls::$form) }
        }
    )* };
}

whole! {
    scandir as PLAIN;
    scandir64 as WIDE;
}

macro_rules! whole_at {
    ($($name:ident as $form:ident;)*) => { $(
        #[no_mangle]
        pub unsafe extern "C" fn $name(
            folder: c_int,
            path: *const c_char,
            list: *mut List,
            choose: Function,
            compare: Function,
        ) -> c_int {
            let found = unsafe { real::$name(folder, path, list, choose, compare) };
            unsafe { without_ours((folder, path), list, found, calls::$form) }
        }
    )* };
}

whole_at! {
    scandirat as PLAIN;
    scandirat64 as WIDE;
}

unsafe fn without_ours(
    of: (c_int, *const c_char),
    list: *mut List,
    found: c_int,
    form: Form,
) -> c_int {
    if found <= 0 {
        return found;
    }
    unsafe { calls::take_ours_out_of_list(of, *list, found as usize, form) as c_int }
}
