//! `dlopen` and `dlmopen`. The genuine ones look from where they are called what the caller may open, and
//! where: so it is as if the program had called them itself. Ours are told first, keep the arguments where
//! they are, and jump.

use core::ffi::{c_char, c_int, c_long, c_void, CStr};
use core::ptr::null_mut;

use shunt_os::real;
use shunt_sockets::quiet;

use crate::boundary::before;

/// Where to go on.
unsafe extern "C" fn shunt_before_dlopen(file: *const c_char, flags: c_int) -> *const c_void {
    before(|| unsafe { quiet::opening(file, flags) });
    genuine(c"dlopen")
}

unsafe extern "C" fn shunt_before_dlmopen(
    namespace: c_long,
    file: *const c_char,
    flags: c_int,
) -> *const c_void {
    before(|| unsafe { quiet::opening_in(namespace, file, flags) });
    genuine(c"dlmopen")
}

fn genuine(name: &CStr) -> *const c_void {
    let found = real::find(name);
    if found.is_null() {
        shunt_opens_nothing as *const c_void
    } else {
        found
    }
}

unsafe extern "C" fn shunt_opens_nothing() -> *mut c_void {
    null_mut()
}

#[cfg(target_arch = "x86_64")]
#[unsafe(naked)]
#[no_mangle]
pub unsafe extern "C" fn dlopen(file: *const c_char, flags: c_int) -> *mut c_void {
    core::arch::naked_asm!(
        "push rdi", "push rsi",
        "sub rsp, 8",
        "call {before}",
        "add rsp, 8",
        "pop rsi", "pop rdi",
        "jmp rax",
        before = sym shunt_before_dlopen,
    )
}

#[cfg(target_arch = "x86_64")]
#[unsafe(naked)]
#[no_mangle]
pub unsafe extern "C" fn dlmopen(
    namespace: c_long,
    file: *const c_char,
    flags: c_int,
) -> *mut c_void {
    core::arch::naked_asm!(
        "push rdi", "push rsi", "push rdx",
        "call {before}",
        "pop rdx", "pop rsi", "pop rdi",
        "jmp rax",
        before = sym shunt_before_dlmopen,
    )
}

// On x86 the arguments are on the stack: what is called gets a copy of them.

#[cfg(target_arch = "x86")]
#[unsafe(naked)]
#[no_mangle]
pub unsafe extern "C" fn dlopen(file: *const c_char, flags: c_int) -> *mut c_void {
    core::arch::naked_asm!(
        "sub esp, 4",
        "push [esp + 12]",
        "push [esp + 12]",
        "call {before}",
        "add esp, 12",
        "jmp eax",
        before = sym shunt_before_dlopen,
    )
}

#[cfg(target_arch = "x86")]
#[unsafe(naked)]
#[no_mangle]
pub unsafe extern "C" fn dlmopen(
    namespace: c_long,
    file: *const c_char,
    flags: c_int,
) -> *mut c_void {
    core::arch::naked_asm!(
        "push [esp + 12]",
        "push [esp + 12]",
        "push [esp + 12]",
        "call {before}",
        "add esp, 12",
        "jmp eax",
        before = sym shunt_before_dlmopen,
    )
}
