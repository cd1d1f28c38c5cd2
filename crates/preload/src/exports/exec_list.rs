//! `execl` and its relatives: their arguments are a list that ends in a null pointer. On x86-64 the
//! first ones are in registers; stored before those on the stack they make the array that `execve`
//! takes, as glibc's own functions do it. On x86 they are that array.

use core::ffi::{c_char, c_int};

use super::process::{execve, execvpe};

type Strings = *const *const c_char;

extern "C" {
    static environ: Strings;
}

unsafe extern "C" fn shunt_execl(path: *const c_char, arguments: Strings) -> c_int {
    // SAFETY: the program's own arguments.
    unsafe { execve(path, arguments, environ) }
}

unsafe extern "C" fn shunt_execle(path: *const c_char, arguments: Strings) -> c_int {
    let mut end = arguments;
    // SAFETY: the list ends in a null pointer, and the environment follows it.
    let environment = unsafe {
        while !(*end).is_null() {
            end = end.add(1);
        }
        end.add(1).read().cast()
    };
    // SAFETY: the program's own arguments.
    unsafe { execve(path, arguments, environment) }
}

unsafe extern "C" fn shunt_execlp(file: *const c_char, arguments: Strings) -> c_int {
    // SAFETY: the program's own arguments.
    unsafe { execvpe(file, arguments, environ) }
}

macro_rules! with_a_list {
    ($($name:ident, $by:ident;)*) => { $(
        #[cfg(target_arch = "x86_64")]
        #[unsafe(naked)]
        #[no_mangle]
        pub unsafe extern "C" fn $name() {
            // The fifth argument takes the place of the return address, so that the list is in one
            // piece; the address is kept below, and put back for an exec that failed.
            core::arch::naked_asm!(
                "mov rax, [rsp]",
                "mov [rsp], r9",
                "push r8", "push rcx", "push rdx", "push rsi",
                "mov rsi, rsp",
                "push rax",
                "call {by}",
                "pop rcx",
                "add rsp, 32",
                "mov [rsp], rcx",
                "ret",
                by = sym $by,
            )
        }

        #[cfg(target_arch = "x86")]
        #[unsafe(naked)]
        #[no_mangle]
        pub unsafe extern "C" fn $name() {
            // The list is in one piece already; 16-byte alignment is kept.
            core::arch::naked_asm!(
                "lea eax, [esp + 8]",
                "mov ecx, [esp + 4]",
                "sub esp, 4",
                "push eax",
                "push ecx",
                "call {by}",
                "add esp, 12",
                "ret",
                by = sym $by,
            )
        }
    )* };
}

with_a_list! {
    execl, shunt_execl;
    execle, shunt_execle;
    execlp, shunt_execlp;
}
