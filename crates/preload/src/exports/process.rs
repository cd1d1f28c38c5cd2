//! fork, exec and spawn. vfork itself is left alone: its child runs in the parent's memory, and
//! what the child calls here notices that it is not the process it seems to be.

use core::ffi::{c_char, c_int, c_void};

use libc::{pid_t, FILE};
use shunt_os::{real, set_errno};
use shunt_sockets::calls::process::{self as calls, Image};

use crate::boundary::{before, with_numbers};

type Strings = *const *const c_char;

#[no_mangle]
pub unsafe extern "C" fn fork() -> pid_t {
    calls::fork(|| unsafe { real::fork() })
}

#[no_mangle]
pub unsafe extern "C" fn __fork() -> pid_t {
    unsafe { fork() }
}

#[no_mangle]
pub unsafe extern "C" fn _Fork() -> pid_t {
    calls::bare_fork(|| unsafe { real::_Fork() })
}

#[no_mangle]
pub unsafe extern "C" fn __register_atfork(
    prepare: real::AtFork,
    parent: real::AtFork,
    child: real::AtFork,
    library: *mut c_void,
) -> c_int {
    // Other libraries' constructors may run before ours.
    calls::be_first_at_fork();
    unsafe { real::__register_atfork(prepare, parent, child, library) }
}

/// glibc's, which takes what may follow the argument as it comes.
#[no_mangle]
pub unsafe extern "C" fn clone(
    child: *mut c_void,
    stack: *mut c_void,
    flags: c_int,
    argument: *mut c_void,
    a: usize,
    b: usize,
    c: usize,
) -> c_int {
    let genuine = || unsafe { real::clone(child, stack, flags, argument, a, b, c) };
    const ITS_OWN: c_int =
        libc::CLONE_VM | libc::CLONE_FILES | libc::CLONE_VFORK | libc::CLONE_SETTLS;
    if flags & ITS_OWN == 0 && !child.is_null() {
        // The child finds it in its copy of this stack.
        let child = unsafe { core::mem::transmute::<*mut c_void, Child>(child) };
        let begun = Begun { child, argument };
        let first = begin as extern "C" fn(*const Begun) -> c_int as *mut c_void;
        let begun = (&raw const begun).cast_mut().cast();
        return calls::bare_fork(|| unsafe { real::clone(first, stack, flags, begun, a, b, c) });
    }
    // The child has this process's numbers, and memory of its own in which to keep an account of them.
    if flags & (libc::CLONE_FILES | libc::CLONE_VM) == libc::CLONE_FILES {
        shunt_sockets::quiet::split(|| genuine() as isize) as c_int
    } else {
        genuine()
    }
}

/// What a child of clone begins with.
type Child = extern "C" fn(*mut c_void) -> c_int;

/// It, and what it is given.
struct Begun {
    child: Child,
    argument: *mut c_void,
}

/// In such a child, which is a forked one.
extern "C" fn begin(begun: *const Begun) -> c_int {
    let begun = unsafe { &*begun };
    calls::begin_child();
    (begun.child)(begun.argument)
}

#[no_mangle]
pub unsafe extern "C" fn __clone(
    child: *mut c_void,
    stack: *mut c_void,
    flags: c_int,
    argument: *mut c_void,
    a: usize,
    b: usize,
    c: usize,
) -> c_int {
    unsafe { clone(child, stack, flags, argument, a, b, c) }
}

/// glibc's own steps (forkpty(3)), with our fork in them.
#[no_mangle]
pub unsafe extern "C" fn forkpty(
    into: *mut c_int,
    name: *mut c_char,
    modes: *const libc::termios,
    size: *const libc::winsize,
) -> pid_t {
    let (mut near, mut far) = (-1, -1);
    let (first, second) = (&raw mut near, &raw mut far);
    if with_numbers(|| unsafe { libc::openpty(first, second, name, modes, size) }) == -1 {
        return -1;
    }
    let child = unsafe { fork() };
    if child == 0 {
        unsafe { super::descriptor::close(near) };
        if unsafe { login_tty(far) } != 0 {
            unsafe { libc::_exit(1) };
        }
        return 0;
    }
    let errno = shunt_os::errno();
    unsafe { super::descriptor::close(far) };
    if child > 0 {
        unsafe { *into = near };
    } else {
        unsafe { super::descriptor::close(near) };
    }
    shunt_os::set_errno(errno);
    child
}

#[no_mangle]
pub unsafe extern "C" fn login_tty(fd: c_int) -> c_int {
    // It has the numbers 0, 1 and 2 afterwards, and its own is closed.
    if unsafe { libc::isatty(fd) } == 1 {
        before(|| (0..3).chain([fd]).for_each(shunt_sockets::calls::descriptor::replaced));
    }
    unsafe { real::login_tty(fd) }
}

#[no_mangle]
pub unsafe extern "C" fn wordexp(words: *const c_char, into: *mut c_void, flags: c_int) -> c_int {
    // Commands in the words are run by a shell.
    before(calls::before_exec);
    unsafe { real::wordexp(words, into, flags) }
}

#[no_mangle]
pub unsafe extern "C" fn daemon(nochdir: c_int, noclose: c_int) -> c_int {
    let mut result = 0;
    if !shunt_sockets::process::enabled() {
        return unsafe { real::daemon(nochdir, noclose) };
    }
    // glibc's own steps, with our fork in them.
    match calls::fork(|| unsafe { real::fork() }) {
        -1 => return -1,
        0 => {}
        _ => unsafe { libc::_exit(0) },
    }
    unsafe {
        if libc::setsid() == -1 {
            return -1;
        }
        if nochdir == 0 {
            libc::chdir(c"/".as_ptr());
        }
        if noclose == 0 {
            let null = libc::open(c"/dev/null".as_ptr(), libc::O_RDWR);
            if null < 0 {
                result = -1;
            } else if !is_null_device(null) {
                super::descriptor::close(null);
                set_errno(libc::ENODEV);
                result = -1;
            } else {
                for fd in 0..3 {
                    super::descriptor::dup2(null, fd);
                }
                if null > 2 {
                    super::descriptor::close(null);
                }
            }
        }
    }
    result
}

/// Whether it is what /dev/null should be (daemon(3)).
fn is_null_device(fd: c_int) -> bool {
    // SAFETY: zero is a valid start.
    let mut told: libc::stat64 = unsafe { core::mem::zeroed() };
    // SAFETY: a writable buffer.
    let is_told = unsafe { libc::fstat64(fd, &raw mut told) } == 0;
    is_told && told.st_mode & libc::S_IFMT == libc::S_IFCHR && told.st_rdev == libc::makedev(1, 3)
}

#[no_mangle]
pub unsafe extern "C" fn _exit(status: c_int) -> ! {
    before(calls::exiting);
    shunt_os::raw::exit(status)
}

#[no_mangle]
pub unsafe extern "C" fn _Exit(status: c_int) -> ! {
    unsafe { _exit(status) }
}

/// Around a call that returns only if it failed.
fn exec(image: Image, genuine: impl FnOnce() -> c_int) -> c_int {
    before(|| calls::before_exec_in_place(image));
    let failed = genuine();
    before(calls::after_failed_exec);
    failed
}

#[no_mangle]
pub unsafe extern "C" fn execve(
    path: *const c_char,
    arguments: Strings,
    environment: Strings,
) -> c_int {
    exec(Image::at(path, environment), || unsafe { real::execve(path, arguments, environment) })
}

#[no_mangle]
pub unsafe extern "C" fn execv(path: *const c_char, arguments: Strings) -> c_int {
    extern "C" {
        static environ: Strings;
    }
    unsafe { execve(path, arguments, environ) }
}

#[no_mangle]
pub unsafe extern "C" fn execvp(file: *const c_char, arguments: Strings) -> c_int {
    extern "C" {
        static environ: Strings;
    }
    unsafe { execvpe(file, arguments, environ) }
}

#[no_mangle]
pub unsafe extern "C" fn execvpe(
    file: *const c_char,
    arguments: Strings,
    environment: Strings,
) -> c_int {
    exec(Image::searched(file, environment), || unsafe {
        real::execvpe(file, arguments, environment)
    })
}

#[no_mangle]
pub unsafe extern "C" fn fexecve(fd: c_int, arguments: Strings, environment: Strings) -> c_int {
    exec(Image::open(fd, environment), || unsafe { real::fexecve(fd, arguments, environment) })
}

/// `pidfd_spawn` and `pidfd_spawnp`, since glibc 2.39, give a descriptor of the process in place of its number.
macro_rules! spawns {
    ($($name:ident;)*) => { $(
        #[no_mangle]
        pub unsafe extern "C" fn $name(
            pid: *mut pid_t,
            path: *const c_char,
            actions: *const c_void,
            attributes: *const c_void,
            arguments: *const *mut c_char,
            environment: *const *mut c_char,
        ) -> c_int {
            before(calls::before_exec);
            // One that glibc has not fails as no other can, with -1.
            match unsafe { real::$name(pid, path, actions, attributes, arguments, environment) } {
                -1 => libc::ENOSYS,
                answer => answer,
            }
        }
    )* };
}
spawns! {
    posix_spawn;
    posix_spawnp;
    pidfd_spawn;
    pidfd_spawnp;
}

#[no_mangle]
pub unsafe extern "C" fn posix_spawn_file_actions_adddup2(
    actions: *mut c_void,
    from: c_int,
    to: c_int,
) -> c_int {
    // The child copies it by itself, whether it is CLOEXEC or not.
    before(|| calls::before_passing(from));
    unsafe { real::posix_spawn_file_actions_adddup2(actions, from, to) }
}

#[no_mangle]
pub unsafe extern "C" fn system(command: *const c_char) -> c_int {
    before(calls::before_exec);
    unsafe { real::system(command) }
}

#[no_mangle]
pub unsafe extern "C" fn popen(command: *const c_char, kind: *const c_char) -> *mut FILE {
    before(calls::before_exec);
    unsafe { real::popen(command, kind) }
}
