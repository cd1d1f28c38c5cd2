//! `futex(2)`, process-shared.

use core::ffi::{c_int, c_void};
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
    // SAFETY: the timespec outlives the call.
    unsafe { wait_within(word, value, pointer) }
}

/// # Safety
/// `limit` is null or leads to a valid time.
unsafe fn wait_within(word: &AtomicU32, value: u32, limit: *const libc::timespec) -> Result<()> {
    // SAFETY: the word is mapped; the rest is the caller's word.
    unsafe { sys!(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAIT, value, limit) }.map(|_| ())
}

/// As [`wait`], and a cancellation point (pthreads(7)): if the thread is cancelled meanwhile, it ends
/// here, after `farewell(argument)`. `limit` is null for a wait without end.
///
/// # Safety
/// `limit` is null or leads to a valid time as long as the sleep lasts. `farewell` may be called with `argument`, on this thread, while the sleep lasts; it does not
/// unwind. The caller's frames own nothing that must be dropped.
pub unsafe fn wait_cancellable(
    word: &AtomicU32,
    value: u32,
    limit: *const libc::timespec,
    farewell: unsafe extern "C" fn(*mut c_void),
    argument: *mut c_void,
) -> Result<()> {
    let mut sleep = Sleep { word, value, limit, slept: Ok(()) };
    // SAFETY: `Sleep::sleep` takes one, which outlives the call; the rest is the caller's promise.
    unsafe { call_cancellable(Sleep::sleep, (&raw mut sleep).cast(), farewell, argument) };
    sleep.slept
}

/// A [`wait`] that may be cancelled at any instruction, since a bare system call is no cancellation
/// point. Where [`call_cancellable`] bids no farewell, it is none.
struct Sleep<'a> {
    word: &'a AtomicU32,
    value: u32,
    limit: *const libc::timespec,
    slept: Result<()>,
}

impl Sleep<'_> {
    /// # Safety
    /// `itself` is a sleep.
    unsafe extern "C" fn sleep(itself: *mut c_void) {
        const PTHREAD_CANCEL_ASYNCHRONOUS: c_int = 1;
        extern "C" {
            fn pthread_setcanceltype(kind: c_int, before: *mut c_int) -> c_int;
        }
        // SAFETY: the caller's word.
        let sleep = unsafe { &mut *itself.cast::<Sleep>() };
        let mut kind = 0;
        if BIDS_FAREWELL {
            // SAFETY: a place for the kind before; this frame owns nothing that must be dropped.
            unsafe { pthread_setcanceltype(PTHREAD_CANCEL_ASYNCHRONOUS, &raw mut kind) };
        }
        // SAFETY: the caller's word.
        sleep.slept = unsafe { wait_within(sleep.word, sleep.value, sleep.limit) };
        if BIDS_FAREWELL {
            // SAFETY: as above.
            unsafe { pthread_setcanceltype(kind, &raw mut kind) };
        }
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

/// Whether [`call_cancellable`] does what it says.
const BIDS_FAREWELL: bool = cfg!(any(target_arch = "x86_64", target_arch = "x86"));

extern "C" {
    fn __sigsetjmp();
    fn __pthread_register_cancel();
    fn __pthread_unregister_cancel();
    fn __pthread_unwind_next();
}

/// Makes `call(its)`, in which the thread may be cancelled at glibc's cancellation points; if it is,
/// the thread ends there, after `farewell(argument)`: what `pthread_cleanup_push` and `_pop` of
/// pthread.h make of a C function.
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
    // On the stack: 112 bytes of __pthread_unwind_buf_t. A thread that is cancelled arrives by way of
    // __sigsetjmp, whose second return finds the registers that the callee preserves as they were.
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

/// As above.
///
/// # Safety
/// As above.
#[cfg(target_arch = "x86")]
pub unsafe fn call_cancellable(
    call: unsafe extern "C" fn(*mut c_void),
    its: *mut c_void,
    farewell: unsafe extern "C" fn(*mut c_void),
    argument: *mut c_void,
) {
    // A function of another library is not called by its name alone without help of the compiler's.
    let unwinding = [
        __sigsetjmp as *const c_void,
        __pthread_register_cancel as *const c_void,
        __pthread_unregister_cancel as *const c_void,
        __pthread_unwind_next as *const c_void,
    ];
    // SAFETY: the caller's promise; glibc's functions.
    unsafe { call_unwinding(unwinding.as_ptr(), call, its, farewell, argument) }
}

#[cfg(target_arch = "x86")]
#[unsafe(naked)]
unsafe extern "C" fn call_unwinding(
    unwinding: *const *const c_void,
    call: unsafe extern "C" fn(*mut c_void),
    its: *mut c_void,
    farewell: unsafe extern "C" fn(*mut c_void),
    argument: *mut c_void,
) {
    // On the stack: 44 bytes of __pthread_unwind_buf_t, and room for arguments below. All but
    // __sigsetjmp take theirs in eax.
    core::arch::naked_asm!(
        ".cfi_startproc",
        "push ebp",
        ".cfi_def_cfa_offset 8",
        ".cfi_offset ebp, -8",
        "mov ebp, esp",
        ".cfi_def_cfa_register ebp",
        "push ebx",
        ".cfi_offset ebx, -12",
        "sub esp, 68",
        "mov ebx, [ebp + 8]",
        "lea eax, [esp + 16]",
        "mov [esp], eax",
        "mov dword ptr [esp + 4], 0",
        "call dword ptr [ebx]",
        "test eax, eax",
        "jnz 2f",
        "lea eax, [esp + 16]",
        "call dword ptr [ebx + 4]",
        "mov eax, [ebp + 16]",
        "mov [esp], eax",
        "call dword ptr [ebp + 12]",
        "lea eax, [esp + 16]",
        "call dword ptr [ebx + 8]",
        "add esp, 68",
        "pop ebx",
        "pop ebp",
        "ret",
        "2:",
        "mov eax, [ebp + 24]",
        "mov [esp], eax",
        "call dword ptr [ebp + 20]",
        "lea eax, [esp + 16]",
        "call dword ptr [ebx + 12]",
        "ud2",
        ".cfi_endproc",
    )
}

/// Elsewhere a thread that is cancelled in the call leaves what it held.
///
/// # Safety
/// As above.
#[cfg(not(any(target_arch = "x86_64", target_arch = "x86")))]
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
    wake(word, i32::MAX);
}

/// Wakes one of those who sleep on `word`.
pub fn wake_one(word: &AtomicU32) {
    wake(word, 1);
}

fn wake(word: &AtomicU32, most: c_int) {
    // SAFETY: the word is mapped.
    let _ = unsafe { sys!(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAKE, most) };
}

/// Whether a wait ended because its time was over.
pub fn timed_out(error: Errno) -> bool {
    error.0 == libc::ETIMEDOUT
}
