//! `futex(2)`, process-shared.

use core::ffi::c_void;
use core::sync::atomic::AtomicU32;

use crate::{clock, sys, Errno, Result};

/// Sleeps while `word` holds `value`, until woken, a signal, or `timeout_ns` have passed.
///
/// # Errors
/// EAGAIN: the word had changed. ETIMEDOUT. EINTR: a signal whose handler asks for no restart
/// (without a timeout the kernel restarts under SA_RESTART, as it does for recv).
pub fn wait(word: &AtomicU32, value: u32, timeout_ns: Option<u64>) -> Result<()> {
    let span = timeout_ns.map(clock::span);
    let pointer = span.as_ref().map_or(core::ptr::null(), |s| s as *const _);
    // SAFETY: the word is mapped; the timespec outlives the call.
    unsafe { sys!(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAIT, value, pointer) }.map(|_| ())
}

/// As [`wait`], and a cancellation point (pthreads(7)): if the thread is cancelled meanwhile, it ends
/// here, after `farewell(argument)`.
///
/// # Safety
/// `farewell` may be called with `argument`, on this thread, while the sleep lasts; it does not
/// unwind. The caller's frames own nothing that must be dropped.
pub unsafe fn wait_cancellable(
    word: &AtomicU32,
    value: u32,
    timeout_ns: Option<u64>,
    farewell: unsafe extern "C" fn(*mut c_void),
    argument: *mut c_void,
) -> Result<()> {
    let span = timeout_ns.map(clock::span);
    let pointer = span.as_ref().map_or(core::ptr::null(), |s| s as *const _);
    // SAFETY: the word is mapped, the timespec outlives the call; the rest is the caller's promise.
    let result = unsafe { sleep_cancellable(word.as_ptr(), value, pointer, farewell, argument) };
    if result < 0 {
        Err(Errno(-result as i32))
    } else {
        Ok(())
    }
}

/// Acts on a cancellation that is pending, as every call that may wait does.
#[inline]
pub fn test_cancel() {
    extern "C" {
        fn pthread_testcancel();
    }
    // SAFETY: no arguments; callers hold nothing that a thread's end would leave behind.
    unsafe { pthread_testcancel() }
}

extern "C" {
    fn __sigsetjmp();
    fn __pthread_register_cancel();
    fn __pthread_unregister_cancel();
    fn __pthread_unwind_next();
    fn pthread_setcanceltype();
}

/// What `pthread_cleanup_push` and `_pop` of pthread.h make of a C function, around a futex wait that
/// may be cancelled at any instruction. Returns what the kernel does.
#[cfg(target_arch = "x86_64")]
#[unsafe(naked)]
unsafe extern "C" fn sleep_cancellable(
    word: *mut u32,
    value: u32,
    span: *const libc::timespec,
    farewell: unsafe extern "C" fn(*mut c_void),
    argument: *mut c_void,
) -> isize {
    // On the stack: 112 bytes of __pthread_unwind_buf_t, the cancel type before at 120, the kernel's
    // answer at 128. __sigsetjmp returns a second time when the thread is cancelled.
    core::arch::naked_asm!(
        "push rbp",
        "mov rbp, rsp",
        "push rbx", "push r12", "push r13", "push r14", "push r15",
        "sub rsp, 136",
        "mov rbx, rdi", "mov r12d, esi", "mov r13, rdx", "mov r14, rcx", "mov r15, r8",
        "mov rdi, rsp", "xor esi, esi",
        "call {set_jump}",
        "test eax, eax",
        "jnz 2f",
        "mov rdi, rsp",
        "call {register}",
        "mov edi, {asynchronous}", "lea rsi, [rsp + 120]",
        "call {set_type}",
        "mov eax, {futex}", "mov rdi, rbx", "xor esi, esi", "mov edx, r12d", "mov r10, r13",
        "xor r8d, r8d", "xor r9d, r9d",
        "syscall",
        "mov [rsp + 128], rax",
        "mov edi, [rsp + 120]", "lea rsi, [rsp + 124]",
        "call {set_type}",
        "mov rdi, rsp",
        "call {unregister}",
        "mov rax, [rsp + 128]",
        "lea rsp, [rbp - 40]",
        "pop r15", "pop r14", "pop r13", "pop r12", "pop rbx", "pop rbp",
        "ret",
        "2:",
        "mov rdi, r15",
        "call r14",
        "mov rdi, rsp",
        "call {unwind}",
        "ud2",
        set_jump = sym __sigsetjmp,
        register = sym __pthread_register_cancel,
        unregister = sym __pthread_unregister_cancel,
        unwind = sym __pthread_unwind_next,
        set_type = sym pthread_setcanceltype,
        asynchronous = const 1,
        futex = const libc::SYS_futex,
    )
}

/// Elsewhere the wait is no cancellation point.
#[cfg(not(target_arch = "x86_64"))]
unsafe fn sleep_cancellable(
    word: *mut u32,
    value: u32,
    span: *const libc::timespec,
    _farewell: unsafe extern "C" fn(*mut c_void),
    _argument: *mut c_void,
) -> isize {
    // SAFETY: the caller's promise.
    match unsafe { sys!(libc::SYS_futex, word, libc::FUTEX_WAIT, value, span) } {
        Ok(_) => 0,
        Err(error) => -(error.0 as isize),
    }
}

/// Makes `call(its)`, in which the thread may be cancelled at glibc's cancellation points; if it is,
/// the thread ends there, after `farewell(argument)`.
///
/// # Safety
/// Both functions may be called so on this thread, and do not unwind by themselves; the frames
/// between here and the cancellation point own nothing that must be dropped.
#[cfg(target_arch = "x86_64")]
#[unsafe(naked)]
pub unsafe extern "C" fn call_cancellable(
    call: unsafe extern "C" fn(*mut c_void),
    its: *mut c_void,
    farewell: unsafe extern "C" fn(*mut c_void),
    argument: *mut c_void,
) {
    // As above. A thread that is cancelled arrives by way of __sigsetjmp, whose second return finds
    // the registers that the callee preserves as they were.
    core::arch::naked_asm!(
        ".cfi_startproc",
        "push rbp",
        ".cfi_def_cfa_offset 16",
        ".cfi_offset rbp, -16",
        "mov rbp, rsp",
        ".cfi_def_cfa_register rbp",
        "push rbx", "push r12", "push r14", "push r15",
        ".cfi_offset rbx, -24",
        ".cfi_offset r12, -32",
        ".cfi_offset r14, -40",
        ".cfi_offset r15, -48",
        "sub rsp, 112",
        "mov rbx, rdi", "mov r12, rsi", "mov r14, rdx", "mov r15, rcx",
        "mov rdi, rsp", "xor esi, esi",
        "call {set_jump}",
        "test eax, eax",
        "jnz 2f",
        "mov rdi, rsp",
        "call {register}",
        "mov rdi, r12",
        "call rbx",
        "mov rdi, rsp",
        "call {unregister}",
        "lea rsp, [rbp - 32]",
        "pop r15", "pop r14", "pop r12", "pop rbx", "pop rbp",
        "ret",
        "2:",
        "mov rdi, r15",
        "call r14",
        "mov rdi, rsp",
        "call {unwind}",
        "ud2",
        ".cfi_endproc",
        set_jump = sym __sigsetjmp,
        register = sym __pthread_register_cancel,
        unregister = sym __pthread_unregister_cancel,
        unwind = sym __pthread_unwind_next,
    )
}

/// Elsewhere a thread that is cancelled in the call leaves what it held.
///
/// # Safety
/// As above.
#[cfg(not(target_arch = "x86_64"))]
pub unsafe fn call_cancellable(
    call: unsafe extern "C" fn(*mut c_void),
    its: *mut c_void,
    _farewell: unsafe extern "C" fn(*mut c_void),
    _argument: *mut c_void,
) {
    // SAFETY: the caller's promise.
    unsafe { call(its) }
}

/// Wakes everybody who sleeps on `word`.
pub fn wake_all(word: &AtomicU32) {
    // SAFETY: the word is mapped.
    let _ = unsafe { sys!(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAKE, i32::MAX) };
}

/// Whether a wait ended because its time was over.
pub fn timed_out(error: Errno) -> bool {
    error.0 == libc::ETIMEDOUT
}
