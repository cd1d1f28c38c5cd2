//! The program's signal handlers. Ours stands before each of them and puts off what comes in a
//! [`critical`] section: the handler would find its own thread in the way, or leave the section
//! with siglongjmp(3) and never end it.
//!
//! A signal that is put off goes back to the kernel's queue, with all that came with it, and every
//! signal is blocked until the section ends: the kernel then delivers them in its own order, with the
//! program's flags and masks.

use core::ffi::{c_int, c_void};
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering::*};

use libc::{siginfo_t, sigset_t, ucontext_t};

use crate::{critical, raw, sys};

const SIGNALS: usize = 65;

/// The program's handlers, by signal. They stay when the signal gets another disposition: one that was
/// sent before is under way to them.
static HANDLERS: [AtomicUsize; SIGNALS] = [const { AtomicUsize::new(0) }; SIGNALS];
/// The flags that they were set with.
static FLAGS: [AtomicU32; SIGNALS] = [const { AtomicU32::new(0) }; SIGNALS];

/// Whether the program has ever set a handler, and one without SA_RESTART, of signals that others send.
static IS_SET: AtomicBool = AtomicBool::new(false);
static INTERRUPTS: AtomicBool = AtomicBool::new(false);

/// Beyond these a disposition is a function: SIG_DFL, SIG_IGN and sigset's SIG_HOLD are none.
const NO_FUNCTION_MAX: usize = 2;

/// The kernel's own signal set: 64 bits.
const KERNEL_SET_BYTES: usize = 8;

/// What the kernel tells of a signal (siginfo_t).
type Info = [u64; 16];

/// The kernel's first realtime signal, which libc uses itself: they queue, and keep their order.
const REALTIME_MIN: c_int = 32;
/// So many of one number keep it that come while one of them is put off.
const QUEUE_MAX: usize = 16;

/// To this thread.
fn queue(signal: c_int, info: Option<&Info>) {
    let (process, thread) = (raw::getpid(), raw::gettid());
    let number = libc::SYS_rt_tgsigqueueinfo;
    let queued = info.is_some_and(|info| {
        // SAFETY: a siginfo of the kernel's size, which it gave us itself.
        unsafe { sys!(number, process, thread, signal, info.as_ptr()) }.is_ok()
    });
    if !queued {
        // SAFETY: no pointers.
        let _ = unsafe { sys!(libc::SYS_tgkill, process, thread, signal) };
    }
}

/// Takes a blocked signal out of the queue, if one is there.
fn dequeue(signal: c_int, info: &mut Info) -> bool {
    let set = 1u64 << (signal - 1);
    let at_once = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    let number = libc::SYS_rt_sigtimedwait;
    let (set, info, at_once) = (&raw const set, info.as_mut_ptr(), &raw const at_once);
    // SAFETY: a kernel signal set, a siginfo of its size and a timespec.
    unsafe { sys!(number, set, info, at_once, KERNEL_SET_BYTES) }.is_ok()
}

/// A signal that waits for the end of a section.
#[repr(C)]
pub struct Deferred {
    signal: c_int,
    has_info: bool,
    /// To which it came: a child that is forked meanwhile has this too.
    process: i32,
    /// What was blocked when it came.
    mask: u64,
    info: Info,
}

impl Deferred {
    pub(crate) const NONE: Deferred =
        Deferred { signal: 0, has_info: false, process: 0, mask: 0, info: [0; 16] };

    /// Lets the signals in again, without this one.
    pub(crate) fn unblock(&mut self) {
        let mask = &raw const self.mask;
        // SAFETY: a kernel signal set of 8 bytes.
        let _ =
            unsafe { sys!(libc::SYS_rt_sigprocmask, libc::SIG_SETMASK, mask, 0, KERNEL_SET_BYTES) };
    }

    /// To this thread once more, and lets the signals in. What came before a fork is the parent's to hear
    /// of.
    pub(crate) fn send(&mut self) {
        if self.process != raw::getpid() {
            return self.unblock();
        }
        if FLAGS[self.signal as usize].load(Relaxed) & libc::SA_RESETHAND as u32 != 0 {
            restore_disposition(self.signal);
        }
        if self.signal < REALTIME_MIN {
            queue(self.signal, self.has_info.then_some(&self.info));
            return self.unblock();
        }
        self.send_in_order();
    }

    /// Those of one number are told in the order in which they came.
    #[inline(never)]
    fn send_in_order(&mut self) {
        let mut later = [[0; 16]; QUEUE_MAX];
        let mut count = 0;
        while count < QUEUE_MAX && dequeue(self.signal, &mut later[count]) {
            count += 1;
        }
        queue(self.signal, self.has_info.then_some(&self.info));
        later[..count].iter().for_each(|info| queue(self.signal, Some(info)));
        self.unblock();
    }
}

/// Whether `disposition` is a function.
fn is_function(disposition: usize) -> bool {
    disposition > NO_FUNCTION_MAX && disposition != libc::SIG_ERR
}

/// Our handler, as a disposition.
fn ours() -> usize {
    entry::handle as *const () as usize
}

/// What the program is to be told of `disposition`, which the kernel has for `signal`.
pub fn shown(signal: c_int, disposition: usize) -> usize {
    match place(signal) {
        Some(place) if disposition == ours() => HANDLERS[place].load(Relaxed),
        _ => disposition,
    }
}

/// Sets a disposition for the program. `ask` asks libc, with ours where the program's is a function,
/// and returns what was there before (SIG_ERR if it failed); so does this.
pub fn set(
    signal: c_int,
    disposition: usize,
    flags: c_int,
    ask: impl FnOnce(usize) -> usize,
) -> usize {
    let Some(place) = place(signal).filter(|_| is_function(disposition)) else {
        return shown(signal, ask(disposition));
    };
    note_kind(signal, flags as u32);
    let flags_before = FLAGS[place].swap(flags as u32, SeqCst);
    let before = HANDLERS[place].swap(disposition, SeqCst);
    let was = ask(ours());
    if was == libc::SIG_ERR {
        HANDLERS[place].store(before, SeqCst);
        FLAGS[place].store(flags_before, SeqCst);
    }
    if was == ours() {
        before
    } else {
        was
    }
}

/// After libc has changed what is set for a signal: the flags are as the kernel has them.
pub fn note_flags(signal: c_int) {
    if let (Some(place), Some(action)) = (place(signal), KernelAction::of(signal)) {
        if action.handler == ours() {
            note_kind(signal, action.flags as u32);
        }
        FLAGS[place].store(action.flags as u32, SeqCst);
    }
}

fn note_kind(signal: c_int, flags: u32) {
    // Nobody sends them to a thread that sleeps.
    if FAULTS.contains(&signal) {
        return;
    }
    IS_SET.store(true, Relaxed);
    if flags & libc::SA_RESTART as u32 == 0 {
        INTERRUPTS.store(true, Relaxed);
    }
}

/// Whether the program has ever set a handler.
pub(crate) fn are_set() -> bool {
    IS_SET.load(Relaxed)
}

/// Whether it has ever set one without SA_RESTART.
pub(crate) fn interrupt() -> bool {
    INTERRUPTS.load(Relaxed)
}

fn place(signal: c_int) -> Option<usize> {
    usize::try_from(signal).ok().filter(|place| (1..SIGNALS).contains(place))
}

/// What the kernel stores for a signal.
#[repr(C)]
pub(crate) struct KernelAction {
    pub(crate) handler: usize,
    pub(crate) flags: libc::c_ulong,
    restorer: usize,
    mask: u64,
}

impl KernelAction {
    /// 0.1 us. `None` for a number that is no signal's.
    pub(crate) fn of(signal: c_int) -> Option<KernelAction> {
        let mut action = KernelAction { handler: 0, flags: 0, restorer: 0, mask: 0 };
        let (number, place) = (libc::SYS_rt_sigaction, &raw mut action);
        // SAFETY: a buffer of the kernel's layout.
        unsafe { sys!(number, signal, 0, place, KERNEL_SET_BYTES) }.ok().map(|_| action)
    }
}

/// SA_RESETHAND took the handler away for a signal that was put off.
fn restore_disposition(signal: c_int) {
    let reset = KernelAction::of(signal).filter(|action| action.handler == libc::SIG_DFL);
    if let Some(action) = reset.map(|action| KernelAction { handler: ours(), ..action }) {
        let (number, place) = (libc::SYS_rt_sigaction, &raw const action);
        // SAFETY: what the kernel has just told, with our handler.
        let _ = unsafe { sys!(number, signal, place, 0, KERNEL_SET_BYTES) };
    }
}

/// Of the instruction that they interrupt: there is no later for them.
const FAULTS: [c_int; 6] =
    [libc::SIGSEGV, libc::SIGBUS, libc::SIGFPE, libc::SIGILL, libc::SIGTRAP, libc::SIGSYS];

/// Every signal but the faults, and libc's own two (cancellation, setxid), which no program handles.
fn all_blocked() -> u64 {
    let stay_open = FAULTS.into_iter().chain([32, 33]);
    stay_open.fold(!0, |mask, signal| mask & !(1 << (signal - 1)))
}

/// What is to run, and what is handled once it has: the program's handler, or nothing, because the signal is put off.
/// `pushed` tells where the kernel has pushed what. `on_top`: of another one's beginning.
fn choose(
    signal: c_int,
    on_top: bool,
    pushed: impl FnOnce() -> Pushed,
) -> Option<(usize, critical::Handled)> {
    if !FAULTS.contains(&signal) {
        if let Some(deferred) = critical::interrupted() {
            // SAFETY: what the kernel has pushed for a handler; the mask comes into force as we return.
            unsafe { put_off(deferred, signal, &pushed()) };
            return None;
        }
    }
    let restarts = FLAGS[signal as usize].load(Relaxed) & libc::SA_RESTART as u32 != 0;
    let noted =
        if on_top { critical::note_handler_on_top() } else { critical::note_handler(restarts) };
    Some((HANDLERS[signal as usize].load(SeqCst), noted))
}

/// What the kernel has pushed for a handler.
struct Pushed {
    /// Null if nobody asked for it.
    info: *const Info,
    /// The two words of the mask that comes into force when the handler returns.
    mask: [*mut u32; 2],
}

unsafe fn put_off(deferred: &mut Deferred, signal: c_int, pushed: &Pushed) {
    let blocked = all_blocked();
    let [low, high] = pushed.mask;
    // SAFETY: by the caller's word.
    unsafe {
        let info = (!pushed.info.is_null()).then(|| pushed.info.read_unaligned());
        if deferred.signal == 0 {
            deferred.signal = signal;
            deferred.process = raw::getpid();
            deferred.has_info = info.is_some();
            deferred.info = info.unwrap_or(deferred.info);
        } else {
            // Several came at once: the kernel had prepared this one before the one that waits, since which all
            // are blocked.
            queue(signal, info.as_ref());
        }
        deferred.mask = u64::from(low.read()) | u64::from(high.read()) << 32;
        low.write(blocked as u32);
        high.write((blocked >> 32) as u32);
    }
}

/// Where the kernel's set begins in a context: it is the first 8 bytes of libc's.
fn mask_of(context: *mut c_void) -> *mut u32 {
    let context = context.cast::<ucontext_t>();
    // SAFETY: an address alone.
    unsafe { (&raw mut (*context).uc_sigmask).cast() }
}

#[cfg(not(target_arch = "x86"))]
mod entry {
    use super::*;
    use core::mem::transmute;

    /// Stands before every handler of the program's.
    pub extern "C" fn handle(signal: c_int, info: *mut siginfo_t, context: *mut c_void) {
        let pushed = || {
            // Without the flag the kernel leaves the place for it unwritten.
            let has_info = FLAGS[signal as usize].load(Relaxed) & libc::SA_SIGINFO as u32 != 0;
            let mask = mask_of(context);
            Pushed {
                info: if has_info { info.cast() } else { core::ptr::null() },
                mask: [mask, mask.wrapping_add(1)],
            }
        };
        // Of several that are pending the kernel prepares the first, whose flags say how the interrupted call ends, and
        // then the next as if it had interrupted that one's first instruction.
        let on_top = interrupted_at(context) == ours();
        if let Some((handler, noted)) = choose(signal, on_top, pushed) {
            // SAFETY: a function that the program has named for this; one of a single argument ignores
            // the rest, as it does when the kernel calls it.
            unsafe {
                transmute::<usize, extern "C" fn(c_int, *mut siginfo_t, *mut c_void)>(handler)(
                    signal, info, context,
                );
            }
            critical::set_handled(noted);
        }
    }

    /// The instruction that is next when the handler returns.
    fn interrupted_at(context: *mut c_void) -> usize {
        let context = context.cast::<ucontext_t>();
        // SAFETY: what the kernel has pushed for a handler.
        #[cfg(target_arch = "x86_64")]
        return unsafe { (*context).uc_mcontext.gregs[libc::REG_RIP as usize] as usize };
        #[cfg(not(target_arch = "x86_64"))]
        {
            let _ = context;
            0
        }
    }
}

/// Arguments are on the stack, and what is there depends on SA_SIGINFO: with it the signal, two pointers
/// and what they point to; without, the signal and the registers themselves (sigcontext.h of 80386).
#[cfg(target_arch = "x86")]
mod entry {
    use super::*;

    /// Stands before every handler of the program's, which finds the stack as the kernel left it.
    #[unsafe(naked)]
    pub extern "C" fn handle() {
        // The kernel passes the arguments in registers as well, for who is compiled that way.
        core::arch::naked_asm!(
            "push ecx",
            "push edx",
            "push eax",
            "lea eax, [esp + 16]",
            "sub esp, 12",
            "push eax",
            "call {choose}",
            "add esp, 16",
            "test eax, eax",
            "jz 2f",
            "mov edx, [esp + 4]",
            "mov ecx, [esp + 8]",
            // Where the handler will be found by the return.
            "mov [esp + 8], eax",
            "pop eax",
            "add esp, 4",
            "ret",
            "2:",
            "add esp, 12",
            "ret",
            choose = sym choose_by_frame,
        )
    }

    /// Words from the signal on: of the pointers' targets with SA_SIGINFO; of the mask without, half in
    /// the registers and half behind the coprocessor's.
    const INFO: usize = 3;
    const MASK_LOW: usize = 1 + 20;
    const MASK_HIGH: usize = 1 + 22 + 624 / 4;

    unsafe extern "C" fn choose_by_frame(frame: *mut u32) -> usize {
        let word = |at: usize| frame.wrapping_add(at);
        // SAFETY: the kernel's frame: the signal, and then a pointer or a segment register.
        let (signal, first) = unsafe { (frame.read() as c_int, word(1).read()) };
        let pushed = || {
            if first as usize != word(INFO) as usize {
                return Pushed { info: core::ptr::null(), mask: [word(MASK_LOW), word(MASK_HIGH)] };
            }
            // SAFETY: the second pointer.
            let context = unsafe { word(2).read() } as usize as *mut c_void;
            let mask = mask_of(context);
            Pushed { info: word(INFO).cast(), mask: [mask, mask.wrapping_add(1)] }
        };
        // It runs where the kernel has prepared its stack, and nothing of ours behind it: those within it count as
        // those after it do.
        choose(signal, false, pushed).map_or(0, |(handler, _)| handler)
    }
}

const _: () = assert!(size_of::<siginfo_t>() == 128 && size_of::<sigset_t>() >= 8);

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;
    use core::sync::atomic::AtomicI32;

    static RUNS: AtomicI32 = AtomicI32::new(0);
    static VALUE: AtomicI32 = AtomicI32::new(0);
    /// Where a siginfo has what sigqueue sent, in words of 4 bytes.
    const VALUE_AT: usize = if cfg!(target_pointer_width = "64") { 6 } else { 5 };

    extern "C" fn count(_signal: c_int, info: *mut siginfo_t, _context: *mut c_void) {
        RUNS.fetch_add(1, SeqCst);
        // SAFETY: set with SA_SIGINFO and sent by sigqueue: pid, uid, then the value.
        VALUE.store(unsafe { info.cast::<i32>().add(VALUE_AT).read() }, SeqCst);
    }

    /// As the exported `sigaction` does; returns what the program is told was there.
    fn install(signal: c_int, disposition: usize, flags: c_int) -> usize {
        set(signal, disposition, flags, |disposition| {
            // SAFETY: zero is a valid start; both are valid for the call.
            unsafe {
                let mut action: libc::sigaction = core::mem::zeroed();
                let mut was: libc::sigaction = core::mem::zeroed();
                action.sa_sigaction = disposition;
                action.sa_flags = flags;
                assert_eq!(libc::sigaction(signal, &action, &mut was), 0);
                was.sa_sigaction
            }
        })
    }

    /// As sigqueue(3), to this thread.
    fn send(signal: c_int, value: i32) {
        let mut info: Info = [0; 16];
        info[0] = signal as u64;
        info[1] = libc::SI_QUEUE as u32 as u64;
        info[VALUE_AT / 2] = (value as u64) << (VALUE_AT % 2 * 32);
        queue(signal, Some(&info));
    }

    fn blocked() -> u64 {
        let mut mask = 0u64;
        let place = &raw mut mask;
        // SAFETY: a kernel signal set of 8 bytes.
        unsafe { sys!(libc::SYS_rt_sigprocmask, libc::SIG_SETMASK, 0, place, KERNEL_SET_BYTES) }
            .expect("only asks");
        mask
    }

    fn change_mask(how: c_int, mask: u64) {
        let place = &raw const mask;
        // SAFETY: a kernel signal set of 8 bytes.
        unsafe { sys!(libc::SYS_rt_sigprocmask, how, place, 0, KERNEL_SET_BYTES) }.expect("valid");
    }

    #[test]
    fn signals_that_come_to_a_section_at_once_are_all_put_off() {
        static SEEN: [AtomicI32; 2] = [const { AtomicI32::new(0) }; 2];
        extern "C" fn see(signal: c_int) {
            SEEN[(signal - libc::SIGRTMIN() - 5) as usize].fetch_add(1, SeqCst);
        }
        let signals = [5, 6].map(|number| libc::SIGRTMIN() + number);
        for signal in signals {
            install(signal, see as *const () as usize, 0);
        }
        let (before, set) = (blocked(), signals.iter().fold(0, |set, it| set | 1 << (it - 1)));
        critical::enter();
        change_mask(libc::SIG_BLOCK, set);
        signals.iter().for_each(|signal| send(*signal, 0));
        change_mask(libc::SIG_UNBLOCK, set);
        let seen = || [0, 1].map(|at| SEEN[at].load(SeqCst));
        assert_eq!(seen(), [0, 0], "one ran in the section");
        critical::leave();
        assert_eq!(seen(), [1, 1], "one is lost");
        assert_eq!(blocked(), before);
    }

    #[test]
    fn a_section_puts_a_handler_off_with_all_that_came_with_the_signal() {
        let signal = libc::SIGRTMIN() + 3;
        let ours = count as *const () as usize;
        assert_eq!(install(signal, ours, libc::SA_SIGINFO), libc::SIG_DFL);
        assert_eq!(install(signal, ours, libc::SA_SIGINFO), ours, "the program is shown its own");
        let before = blocked();
        send(signal, 41);
        assert_eq!((RUNS.load(SeqCst), VALUE.load(SeqCst)), (1, 41));
        critical::enter();
        critical::enter();
        send(signal, 42);
        send(signal, 43);
        critical::leave();
        assert_eq!(RUNS.load(SeqCst), 1, "it ran in the section");
        critical::leave();
        assert_eq!((RUNS.load(SeqCst), VALUE.load(SeqCst)), (3, 43), "the order is lost");
        assert_eq!(blocked(), before);
        // A handler for one time is there for the signal that was put off.
        install(signal, ours, libc::SA_SIGINFO | libc::SA_RESETHAND);
        critical::enter();
        send(signal, 44);
        critical::leave();
        assert_eq!((RUNS.load(SeqCst), VALUE.load(SeqCst)), (4, 44));
        assert_eq!(install(signal, libc::SIG_IGN, 0), libc::SIG_DFL, "and is gone after it");
        // One that asks for nothing: what the kernel pushes for it may have another form.
        extern "C" fn only_count(_signal: c_int) {
            RUNS.fetch_add(1, SeqCst);
        }
        install(signal, only_count as *const () as usize, 0);
        critical::enter();
        send(signal, 45);
        assert_eq!((RUNS.load(SeqCst), blocked() != before), (4, true), "it ran in the section");
        critical::leave();
        assert_eq!((RUNS.load(SeqCst), blocked()), (5, before));
    }
}
