//! Processes and threads: fork, exec, spawn, kill, wait.

use super::{Fd, Got};
use std::ffi::CString;

extern "C" {
    fn vfork() -> libc::pid_t;
    static environ: *const *const libc::c_char;
}

pub type Pid = libc::pid_t;

/// Runs the closure in a child, which ends with the status that the closure returns.
pub fn fork(child: impl FnOnce() -> i32) -> Pid {
    match call!(libc::fork()).value("fork") as Pid {
        0 => {
            // A panic must not unwind into the parent's frames.
            let ran = std::panic::catch_unwind(std::panic::AssertUnwindSafe(child));
            exit_now(ran.unwrap_or(101))
        }
        pid => pid,
    }
}

/// fork(2) and nothing else: for signal handlers.
pub fn fork_plainly() -> Pid {
    // SAFETY: the child calls what a handler may.
    unsafe { libc::fork() }
}

/// Has these run before every fork(2), and after it in the parent and in the child.
pub fn at_fork(prepare: extern "C" fn(), parent: extern "C" fn(), child: extern "C" fn()) {
    let [prepare, parent, child] =
        [prepare, parent, child].map(|step| Some(step as unsafe extern "C" fn()));
    // SAFETY: functions that stay where they are.
    assert_eq!(unsafe { libc::pthread_atfork(prepare, parent, child) }, 0);
}

/// To the thread that calls, in which its handler has run when this returns.
pub fn raise(signal: i32) -> Got {
    call!(libc::raise(signal))
}

/// How a child ended, as waitpid(2) has it; for signal handlers.
pub fn wait_quietly(pid: Pid) -> i32 {
    let mut status = -1;
    // SAFETY: a place for the status.
    while unsafe { libc::waitpid(pid, &raw mut status, 0) } == -1 && super::errno() == libc::EINTR {
    }
    status
}

pub fn exit_now(status: i32) -> ! {
    // SAFETY: _exit ends the process without running anything of ours.
    unsafe { libc::_exit(status) }
}

/// How a child ended, in words.
pub fn wait_for(pid: Pid) -> String {
    let mut status = 0;
    loop {
        match call!(libc::waitpid(pid, &raw mut status, 0)) {
            Got::Errno(libc::EINTR) => continue,
            Got::Errno(error) => return super::errno_name(error),
            _ => break,
        }
    }
    if libc::WIFEXITED(status) {
        format!("exited {}", libc::WEXITSTATUS(status))
    } else {
        format!("killed by {}", libc::WTERMSIG(status))
    }
}

pub fn kill(pid: Pid, signal: i32) -> Got {
    call!(libc::kill(pid, signal))
}

pub fn pid() -> Pid {
    // SAFETY: getpid cannot fail.
    unsafe { libc::getpid() }
}

pub fn thread_id() -> Pid {
    // SAFETY: gettid cannot fail.
    unsafe { libc::gettid() }
}

pub fn kill_thread(thread: Pid, signal: i32) -> Got {
    call!(libc::syscall(libc::SYS_tgkill, pid(), thread, signal))
}

/// A thread of any process.
pub fn signal_thread(process: Pid, thread: Pid, signal: i32) -> Got {
    call!(libc::syscall(libc::SYS_tgkill, process, thread, signal))
}

/// Runs a handler after so many microseconds; calls that it interrupts are taken up again. It calls
/// [`timer_again`] to be run again.
pub fn on_timer(handler: extern "C" fn(i32), after_us: i64) {
    // SAFETY: sigaction is plain data; the caller's handler is one.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = handler as *const () as usize;
    action.sa_flags = libc::SA_RESTART;
    call!(libc::sigaction(libc::SIGALRM, &raw const action, std::ptr::null_mut()))
        .value("sigaction");
    timer_again(after_us);
}

pub fn no_timer() {
    timer_again(0);
}

/// An interval would leave the program nothing between two handlers that take as long.
pub fn timer_again(after_us: i64) {
    let [after, every] = [after_us, 0].map(|us| libc::timeval { tv_sec: 0, tv_usec: us as _ });
    let timer = libc::itimerval { it_interval: every, it_value: after };
    call!(setitimer(libc::ITIMER_REAL, &raw const timer, std::ptr::null_mut())).value("setitimer");
}

extern "C" {
    fn setitimer(which: i32, new: *const libc::itimerval, old: *mut libc::itimerval) -> i32;
}

pub fn alarm(seconds: u32) {
    // SAFETY: alarm cannot fail.
    unsafe { libc::alarm(seconds) };
}

/// New descriptors are to have numbers below this.
pub fn limit_descriptors(number: u64) -> Got {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    call!(libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit)).value("getrlimit");
    limit.rlim_cur = number as libc::rlim_t;
    call!(libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit))
}

/// Has `last` called by exit(3).
pub fn at_exit(last: extern "C" fn()) -> Got {
    call!(libc::atexit(last))
}

/// Ends the main thread by pthread_exit(3), which unwinds no frame of ours: it is called on a stack of
/// its own, at whose end glibc stops.
pub fn end_main_thread() -> ! {
    extern "C-unwind" fn end() {
        // SAFETY: nothing on this stack is left undone.
        unsafe { pthread_exit(std::ptr::null_mut()) }
    }
    let stack = vec![0u8; 256 * 1024].leak();
    // SAFETY: zero is a valid start for getcontext, which fills it in; the stack is leaked.
    unsafe {
        let mut context: libc::ucontext_t = std::mem::zeroed();
        libc::getcontext(&raw mut context);
        context.uc_stack.ss_sp = stack.as_mut_ptr().cast();
        context.uc_stack.ss_size = stack.len();
        let end = std::mem::transmute::<extern "C-unwind" fn(), extern "C" fn()>(end);
        libc::makecontext(&raw mut context, end, 0);
        libc::setcontext(&raw const context);
    }
    unreachable!("setcontext does not return");
}

/// Whether the main thread of this process has ended.
pub fn main_thread_has_ended() -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", pid())).unwrap_or_default();
    stat.contains(") Z ")
}

pub fn setsid() -> Got {
    call!(libc::setsid())
}

/// Ends this process when the one that started it ends.
pub fn end_with_parent() {
    call!(libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL)).value("prctl");
}

pub fn outlive_parent() {
    call!(libc::prctl(libc::PR_SET_PDEATHSIG, 0)).value("prctl");
}

/// Until SIGCONT comes.
pub fn stop() {
    kill(pid(), libc::SIGSTOP).value("kill");
}

/// As [`stop`].
pub fn stop_by_raise() {
    call!(libc::raise(libc::SIGSTOP)).value("raise");
}

/// As [`stop`].
pub fn stop_by_number() {
    kill_thread(thread_id(), libc::SIGSTOP).value("tgkill");
}

pub fn parent() -> Pid {
    // SAFETY: getppid cannot fail.
    unsafe { libc::getppid() }
}

/// Waits until the parent of this process is stopped, which only its own parent is told of.
pub fn wait_until_parent_stopped() {
    let stat = || std::fs::read_to_string(format!("/proc/{}/stat", parent())).unwrap_or_default();
    while !stat().contains(") T ") {
        super::wait::poll(&[], 1);
    }
}

pub fn wait_until_stopped(child: Pid) -> bool {
    let mut status = 0;
    call!(libc::waitpid(child, &raw mut status, libc::WUNTRACED)).value("waitpid");
    libc::WIFSTOPPED(status)
}

struct Arguments {
    strings: Vec<CString>,
}

impl Arguments {
    fn new(arguments: &[&str]) -> Arguments {
        let string = |text: &&str| CString::new(*text).expect("arguments hold no zero byte");
        Arguments { strings: arguments.iter().map(string).collect() }
    }

    fn pointers(&self) -> Vec<*const libc::c_char> {
        self.strings.iter().map(|s| s.as_ptr()).chain([std::ptr::null()]).collect()
    }
}

/// Becomes another program; returns only when that failed.
pub fn exec(arguments: &[&str]) -> Got {
    let arguments = Arguments::new(arguments);
    let pointers = arguments.pointers();
    call!(libc::execvp(pointers[0], pointers.as_ptr()))
}

/// Which function that takes a list becomes the other program.
#[derive(Clone, Copy, Debug)]
pub enum ByList {
    Execl,
    Execlp,
    Execle,
}

/// Has `/bin/sh` run `script` with the arguments a to f; its environment is kept, or is `WORD=own`.
pub fn exec_shell_by_list(by: ByList, path: &std::ffi::CStr, script: &str) -> Got {
    let script = std::ffi::CString::new(script).expect("no NUL");
    let (path, script) = (path.as_ptr(), script.as_ptr());
    let [sh, c] = [c"sh", c"-c"].map(std::ffi::CStr::as_ptr);
    let [a, b, d, e, f, g] = [c"a", c"b", c"c", c"d", c"e", c"f"].map(std::ffi::CStr::as_ptr);
    let null = std::ptr::null::<libc::c_char>();
    let own = [c"WORD=own".as_ptr(), null];
    match by {
        ByList::Execl => call!(libc::execl(path, sh, c, script, sh, a, b, d, e, f, g, null)),
        ByList::Execlp => call!(libc::execlp(path, sh, c, script, sh, a, b, d, e, f, g, null)),
        ByList::Execle => {
            call!(libc::execle(path, sh, c, script, sh, a, b, d, e, f, g, null, own.as_ptr()))
        }
    }
}

/// Becomes another program with only the given environment.
pub fn exec_with_environment(path: &str, arguments: &[&str], environment: &[&str]) -> Got {
    let (path, arguments) = (Arguments::new(&[path]), Arguments::new(arguments));
    let environment = Arguments::new(environment);
    let (vector, variables) = (arguments.pointers(), environment.pointers());
    call!(libc::execve(path.pointers()[0], vector.as_ptr(), variables.as_ptr()))
}

/// Starts a program by vfork and execve.
#[inline(never)]
pub fn vfork_exec(path: &str, arguments: &[&str]) -> Pid {
    let (path, arguments) = (Arguments::new(&[path]), Arguments::new(arguments));
    let (path, vector) = (path.pointers(), arguments.pointers());
    let (path, vector) = (path[0], vector.as_ptr());
    // SAFETY: everything the child uses was computed before; it only calls execve and _exit.
    unsafe {
        let child = vfork();
        if child == 0 {
            libc::execve(path, vector, environ);
            libc::_exit(127);
        }
        child
    }
}

/// A child of clone(2) in this memory, with a thread's data of zeros, that changes to the root folder and ends, as that of
/// Chromium's sandbox.
#[cfg(target_arch = "x86_64")]
pub fn clone_without_data() -> Pid {
    extern "C" fn child(_: *mut libc::c_void) -> libc::c_int {
        // SAFETY: neither returns by way of a thread's data.
        unsafe {
            let failed = libc::syscall(libc::SYS_chdir, c"/".as_ptr());
            libc::_exit(if failed == 0 { 0 } else { 1 });
        }
    }
    const FLAGS: i32 = libc::CLONE_VM | libc::CLONE_VFORK | libc::CLONE_SETTLS | libc::SIGCHLD;
    const WORDS: usize = 8192;
    let (mut stack, mut data) = ([0u128; WORDS], [0u128; WORDS]);
    let none = std::ptr::null_mut::<libc::c_void>();
    // SAFETY: the child has its stack and data to itself, and this thread waits until it has ended.
    unsafe {
        let top = stack.as_mut_ptr().add(WORDS).cast();
        let thread = data.as_mut_ptr().add(WORDS / 2);
        libc::clone(child, top, FLAGS, none, none, thread, none)
    }
}

/// clone(2) by libc's function, on a stack of its own: the child's process number.
pub fn clone(flags: i32, child: fn()) -> Pid {
    extern "C" fn begin(child: *mut libc::c_void) -> libc::c_int {
        // SAFETY: what the call below has passed.
        unsafe { (*child.cast::<fn()>())() };
        // SAFETY: ends the process.
        unsafe { libc::_exit(0) }
    }
    let mut stack = vec![0u128; 16_384];
    let mut child = child;
    // SAFETY: a child with this memory has its stack to itself, and this thread waits for it (CLONE_VFORK).
    let pid = unsafe {
        let top = stack.as_mut_ptr().add(stack.len()).cast();
        libc::clone(begin, top, flags | libc::SIGCHLD, (&raw mut child).cast())
    };
    assert!(pid > 0, "clone");
    pid
}

/// Starts a program by posix_spawn; each action makes the second number a copy of the first.
pub fn spawn(arguments: &[&str], copies: &[(Fd, Fd)]) -> Pid {
    let mut child = 0;
    let status = spawn_by(libc::posix_spawnp, &mut child, arguments, copies);
    assert_eq!(status, 0, "posix_spawnp");
    child
}

/// The same by pidfd_spawn, which glibc has since 2.39: where it has not, by posix_spawn.
pub fn spawn_with_descriptor(arguments: &[&str], copies: &[(Fd, Fd)]) -> Pid {
    // SAFETY: a NUL-terminated name.
    let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"pidfd_spawnp".as_ptr()) };
    // SAFETY: it differs from posix_spawnp in what it says of the child alone: a number of 32 bits, too.
    let spawnp = unsafe { std::mem::transmute::<*mut libc::c_void, Option<Spawn>>(found) };
    let mut descriptor = -1;
    let status =
        spawnp.map_or(libc::ENOSYS, |spawnp| spawn_by(spawnp, &mut descriptor, arguments, copies));
    if status == libc::ENOSYS {
        return spawn(arguments, copies);
    }
    assert_eq!(status, 0, "pidfd_spawnp");
    // SAFETY: as above; who has the one has the other, of this signature.
    let child = unsafe {
        let getpid = libc::dlsym(libc::RTLD_DEFAULT, c"pidfd_getpid".as_ptr());
        std::mem::transmute::<*mut libc::c_void, extern "C" fn(Fd) -> Pid>(getpid)(descriptor)
    };
    call!(libc::close(descriptor));
    child
}

type Spawn = unsafe extern "C" fn(
    *mut Pid,
    *const libc::c_char,
    *const libc::posix_spawn_file_actions_t,
    *const libc::posix_spawnattr_t,
    *const *mut libc::c_char,
    *const *mut libc::c_char,
) -> i32;

/// Returns what the call does: 0, or the error's number.
fn spawn_by(spawnp: Spawn, child: &mut i32, arguments: &[&str], copies: &[(Fd, Fd)]) -> i32 {
    let arguments = Arguments::new(arguments);
    let pointers = arguments.pointers();
    // SAFETY: the actions are initialised before use and destroyed after it; argument pointers
    // live in `arguments`, the environment is this process's own.
    unsafe {
        let mut actions: libc::posix_spawn_file_actions_t = std::mem::zeroed();
        libc::posix_spawn_file_actions_init(&raw mut actions);
        for &(from, to) in copies {
            libc::posix_spawn_file_actions_adddup2(&raw mut actions, from, to);
        }
        let status = spawnp(
            child,
            pointers[0],
            &raw const actions,
            std::ptr::null(),
            pointers.as_ptr().cast(),
            environ.cast(),
        );
        libc::posix_spawn_file_actions_destroy(&raw mut actions);
        status
    }
}

pub fn system(command: &str) -> Got {
    let command = CString::new(command).expect("commands hold no zero byte");
    call!(libc::system(command.as_ptr()))
}

// Cancellation unwinds through these, and through the frames that call them.
extern "C-unwind" {
    fn recv(fd: Fd, into: *mut libc::c_void, len: usize, flags: i32) -> isize;
    fn send(fd: Fd, from: *const libc::c_void, len: usize, flags: i32) -> isize;
    fn poll(entries: *mut libc::pollfd, count: libc::nfds_t, timeout_ms: i32) -> i32;
    fn epoll_wait(set: Fd, events: *mut libc::epoll_event, count: i32, timeout_ms: i32) -> i32;
    fn accept(fd: Fd, name: *mut libc::sockaddr, length: *mut libc::socklen_t) -> Fd;
    fn pthread_setcanceltype(kind: i32, before: *mut i32) -> i32;
}

pub type Body = extern "C-unwind" fn(*mut libc::c_void) -> *mut libc::c_void;

extern "C" {
    fn pthread_create(
        thread: *mut libc::pthread_t,
        attributes: *const libc::pthread_attr_t,
        body: Body,
        argument: *mut libc::c_void,
    ) -> i32;
    fn pthread_cancel(thread: libc::pthread_t) -> i32;
}

extern "C-unwind" {
    fn pthread_exit(result: *mut libc::c_void) -> !;
}

static THREAD_ID: std::sync::atomic::AtomicI32 = std::sync::atomic::AtomicI32::new(0);

static ANYWHERE: std::sync::atomic::AtomicBool = std::sync::atomic::AtomicBool::new(false);

fn begin() {
    if ANYWHERE.load(std::sync::atomic::Ordering::SeqCst) {
        const PTHREAD_CANCEL_ASYNCHRONOUS: i32 = 1;
        let mut before = 0;
        // SAFETY: a place for the kind before; the threads own nothing that must be dropped.
        unsafe { pthread_setcanceltype(PTHREAD_CANCEL_ASYNCHRONOUS, &raw mut before) };
    }
    THREAD_ID.store(thread_id(), std::sync::atomic::Ordering::SeqCst);
}

/// Reads for ever.
pub extern "C-unwind" fn reader(fd: *mut libc::c_void) -> *mut libc::c_void {
    begin();
    let mut room = [0u8; 64];
    loop {
        // SAFETY: writable room, and nothing to drop.
        unsafe { recv(fd as usize as Fd, room.as_mut_ptr().cast(), room.len(), 0) };
    }
}

static ZEROS: [u8; 100_000] = [0; 100_000];

/// Writes for ever.
pub extern "C-unwind" fn writer(fd: *mut libc::c_void) -> *mut libc::c_void {
    begin();
    loop {
        // SAFETY: readable bytes, and nothing to drop.
        unsafe { send(fd as usize as Fd, ZEROS.as_ptr().cast(), ZEROS.len(), libc::MSG_NOSIGNAL) };
    }
}

static MANY_ZEROS: [u8; 64 << 20] = [0; 64 << 20];

/// Writes more than fits anywhere, in one call.
pub extern "C-unwind" fn long_writer(fd: *mut libc::c_void) -> *mut libc::c_void {
    begin();
    let (from, len) = (MANY_ZEROS.as_ptr().cast(), MANY_ZEROS.len());
    // SAFETY: readable bytes, and nothing to drop.
    unsafe { send(fd as usize as Fd, from, len, libc::MSG_NOSIGNAL) };
    std::ptr::null_mut()
}

/// Waits for bytes, for ever.
pub extern "C-unwind" fn poller(fd: *mut libc::c_void) -> *mut libc::c_void {
    begin();
    let mut entry = libc::pollfd { fd: fd as usize as Fd, events: libc::POLLIN, revents: 0 };
    loop {
        // SAFETY: one entry, and nothing to drop.
        unsafe { poll(&raw mut entry, 1, -1) };
    }
}

/// Waits for the set's events, for ever.
pub extern "C-unwind" fn watcher(set: *mut libc::c_void) -> *mut libc::c_void {
    begin();
    let mut event = libc::epoll_event { events: 0, u64: 0 };
    loop {
        // SAFETY: room for one event, and nothing to drop.
        unsafe { epoll_wait(set as usize as Fd, &raw mut event, 1, -1) };
    }
}

/// Waits for clients, for ever.
pub extern "C-unwind" fn accepter(listener: *mut libc::c_void) -> *mut libc::c_void {
    begin();
    loop {
        // SAFETY: no name is asked for, and nothing to drop.
        unsafe { accept(listener as usize as Fd, std::ptr::null_mut(), std::ptr::null_mut()) };
    }
}

/// Sends back what it reads.
pub extern "C-unwind" fn echo(fd: *mut libc::c_void) -> *mut libc::c_void {
    begin();
    let mut room = [0u8; 8];
    loop {
        // SAFETY: room for eight bytes, and nothing to drop.
        unsafe {
            let got = recv(fd as usize as Fd, room.as_mut_ptr().cast(), 8, libc::MSG_WAITALL);
            send(fd as usize as Fd, room.as_ptr().cast(), got.max(0) as usize, libc::MSG_NOSIGNAL);
        }
    }
}

/// Does the work on a thread with as little stack as there may be (PTHREAD_STACK_MIN).
pub fn on_smallest_stack<T, W: FnOnce() -> T>(work: W) -> T {
    struct Job<T, W> {
        work: Option<W>,
        result: Option<T>,
    }
    extern "C-unwind" fn body<T, W: FnOnce() -> T>(job: *mut libc::c_void) -> *mut libc::c_void {
        // SAFETY: the job below, whose thread is waited for.
        let job = unsafe { &mut *job.cast::<Job<T, W>>() };
        job.result = job.work.take().map(|work| work());
        std::ptr::null_mut()
    }
    let mut job = Job { work: Some(work), result: None };
    let mut thread = 0;
    // SAFETY: the attributes are initialised before their use; nobody else has the job meanwhile.
    unsafe {
        let mut attributes: libc::pthread_attr_t = std::mem::zeroed();
        libc::pthread_attr_init(&raw mut attributes);
        libc::pthread_attr_setstacksize(&raw mut attributes, libc::PTHREAD_STACK_MIN);
        let job = (&raw mut job).cast();
        let made = pthread_create(&raw mut thread, &raw const attributes, body::<T, W>, job);
        assert_eq!(made, 0, "pthread_create");
        libc::pthread_join(thread, std::ptr::null_mut());
    }
    job.result.expect("the thread has come to its end")
}

/// A thread that pthread_cancel(3) may end at any call; one at a time.
pub struct Cancellable(libc::pthread_t);

impl Cancellable {
    pub fn start(fd: Fd, body: Body) -> Cancellable {
        THREAD_ID.store(0, std::sync::atomic::Ordering::SeqCst);
        let mut thread = 0;
        let argument = fd as usize as *mut libc::c_void;
        let made = call!(pthread_create(&raw mut thread, std::ptr::null(), body, argument));
        assert_eq!(made.value("pthread_create"), 0);
        Cancellable(thread)
    }

    /// One that may be ended at any instruction.
    pub fn start_anywhere(fd: Fd, body: Body) -> Cancellable {
        ANYWHERE.store(true, std::sync::atomic::Ordering::SeqCst);
        let thread = Cancellable::start(fd, body);
        thread.id();
        ANYWHERE.store(false, std::sync::atomic::Ordering::SeqCst);
        thread
    }

    pub fn id(&self) -> Pid {
        loop {
            match THREAD_ID.load(std::sync::atomic::Ordering::SeqCst) {
                0 => std::thread::yield_now(),
                id => return id,
            }
        }
    }

    /// How the thread ended, which pthread_join(3) waits for.
    pub fn cancel(self) -> &'static str {
        call!(pthread_cancel(self.0)).value("pthread_cancel");
        let mut result = std::ptr::null_mut();
        call!(libc::pthread_join(self.0, &raw mut result)).value("pthread_join");
        if result as isize == -1 {
            "cancelled"
        } else {
            "returned"
        }
    }
}
