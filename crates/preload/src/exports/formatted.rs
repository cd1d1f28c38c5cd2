//! `dprintf` and its fortified forms: glibc writes to the descriptor by itself, so the stream goes
//! back to TCP first. Their arguments cannot be named in Rust; a few instructions keep them all in
//! place, tell us the descriptor, and go on to the genuine function.

use core::ffi::{c_int, CStr};

use crate::boundary::before;

/// Called with the descriptor before the genuine function runs.
unsafe extern "C" fn shunt_before_dprintf(fd: c_int) {
    before(|| {
        shunt_sockets::calls::descriptor::fdopen(fd);
    });
}

macro_rules! formatted {
    ($($name:ident, $found:ident, $text:literal;)*) => { $(
        unsafe extern "C" fn $found() -> *mut core::ffi::c_void {
            // SAFETY: a NUL-terminated literal.
            let name = unsafe { CStr::from_bytes_with_nul_unchecked(concat!($text, "\0").as_bytes()) };
            shunt_os::real::find(name)
        }

        #[cfg(target_arch = "x86_64")]
        #[unsafe(naked)]
        #[no_mangle]
        pub unsafe extern "C" fn $name() {
            // The six argument registers and al (vector registers in use) are kept on the stack,
            // as are the vector registers that may hold arguments; 16-byte alignment is kept.
            core::arch::naked_asm!(
                "push rbp",
                "mov rbp, rsp",
                "sub rsp, 192",
                "mov [rsp], rdi", "mov [rsp+8], rsi", "mov [rsp+16], rdx",
                "mov [rsp+24], rcx", "mov [rsp+32], r8", "mov [rsp+40], r9",
                "mov [rsp+48], rax",
                "movups [rsp+64], xmm0", "movups [rsp+80], xmm1", "movups [rsp+96], xmm2",
                "movups [rsp+112], xmm3", "movups [rsp+128], xmm4", "movups [rsp+144], xmm5",
                "movups [rsp+160], xmm6", "movups [rsp+176], xmm7",
                "call {before}",
                "call {found}",
                "mov r11, rax",
                "mov rdi, [rsp]", "mov rsi, [rsp+8]", "mov rdx, [rsp+16]",
                "mov rcx, [rsp+24]", "mov r8, [rsp+32]", "mov r9, [rsp+40]",
                "mov rax, [rsp+48]",
                "movups xmm0, [rsp+64]", "movups xmm1, [rsp+80]", "movups xmm2, [rsp+96]",
                "movups xmm3, [rsp+112]", "movups xmm4, [rsp+128]", "movups xmm5, [rsp+144]",
                "movups xmm6, [rsp+160]", "movups xmm7, [rsp+176]",
                "leave",
                "jmp r11",
                before = sym shunt_before_dprintf,
                found = sym $found,
            )
        }

        #[cfg(target_arch = "x86")]
        #[unsafe(naked)]
        #[no_mangle]
        pub unsafe extern "C" fn $name() {
            // All arguments are on the stack; 16-byte alignment is kept.
            core::arch::naked_asm!(
                "sub esp, 8",
                "push dword ptr [esp + 12]",
                "call {before}",
                "call {found}",
                "add esp, 12",
                "jmp eax",
                before = sym shunt_before_dprintf,
                found = sym $found,
            )
        }
    )* };
}

formatted! {
    dprintf, find_dprintf, "dprintf";
    vdprintf, find_vdprintf, "vdprintf";
    __dprintf_chk, find_dprintf_chk, "__dprintf_chk";
    __vdprintf_chk, find_vdprintf_chk, "__vdprintf_chk";
}
