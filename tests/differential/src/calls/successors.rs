//! Rarer ways to another program or to other rights, and to be rid of descriptors.

use std::ffi::{CStr, CString};
use std::process::Command;
use std::ptr::null;

use super::process::Pid;
use super::{Fd, Got};

extern "C" {
    fn vfork() -> libc::pid_t;
    fn execvpe(
        file: *const libc::c_char,
        words: *const *const libc::c_char,
        variables: *const *const libc::c_char,
    ) -> i32;
    static environ: *const *const libc::c_char;
}

/// Which function becomes the other program.
#[derive(Clone, Copy, Debug)]
pub enum By {
    Execveat,
    Fexecve,
    Execvpe,
}

/// Has a shell run `script`.
pub fn exec_shell(by: By, script: &str) -> Got {
    let script = CString::new(script).expect("no NUL");
    let words = [c"sh".as_ptr(), c"-c".as_ptr(), script.as_ptr(), null()];
    let (path, flags) = (c"/bin/sh".as_ptr(), libc::O_RDONLY | libc::O_CLOEXEC);
    let shell = || call!(libc::open(path, flags)).fd("open");
    match by {
        By::Execveat => {
            let (shell, empty) = (shell(), libc::AT_EMPTY_PATH);
            let (none, words) = (c"".as_ptr(), words.as_ptr());
            call!(libc::syscall(libc::SYS_execveat, shell, none, words, environ, empty))
        }
        By::Fexecve => call!(libc::fexecve(shell(), words.as_ptr(), environ)),
        By::Execvpe => call!(execvpe(c"sh".as_ptr(), words.as_ptr(), environ)),
    }
}

/// As inetd starts cat: the child of vfork makes the stream its standard input and output.
#[inline(never)]
pub fn vfork_cat(stream: Fd) -> Pid {
    let words = [c"cat".as_ptr(), null()];
    let (path, words) = (c"/bin/cat".as_ptr(), words.as_ptr());
    // SAFETY: the child calls what a child of vfork may, and changes no memory.
    unsafe {
        let child = vfork();
        if child == 0 {
            libc::dup2(stream, 0);
            libc::dup2(stream, 1);
            libc::close(stream);
            libc::execve(path, words, environ);
            libc::_exit(127);
        }
        child
    }
}

/// What the shell's command prints, by popen(3).
pub fn output_of(command: &CStr) -> String {
    let mut room = [0u8; 64];
    // SAFETY: C strings, and as much room as is said; the FILE is closed once.
    let line = unsafe {
        let file = libc::popen(command.as_ptr(), c"r".as_ptr());
        let line = libc::fgets(room.as_mut_ptr().cast(), room.len() as i32, file);
        libc::pclose(file);
        line
    };
    let length = if line.is_null() { 0 } else { room.iter().position(|&b| b == 0).unwrap_or(0) };
    String::from_utf8_lossy(&room[..length]).trim_end().to_owned()
}

/// A program without a loader, which sends back what comes on the descriptor that it is given.
pub fn static_echo() -> String {
    const SOURCE: &str = "#include <stdlib.h>\n#include <unistd.h>\nint main(int n, char **w) {\n\
        static char b[65536]; int s = atoi(w[n - 1]); long c;\n\
        while ((c = read(s, b, sizeof b)) > 0)\n\
        for (long d = 0, k; d < c; d += k) if ((k = write(s, b + d, c - d)) <= 0) return 1;\n\
        return c < 0; }\n";
    let base = std::env::temp_dir().join(format!("shunt-static-echo-{}", super::process::pid()));
    let (source, program) = (base.with_extension("c"), base.display().to_string());
    std::fs::write(&source, SOURCE).expect("a source in the temporary directory");
    let built = Command::new("cc").args(["-static", "-O1", "-o", &program]).arg(&source).output();
    std::fs::remove_file(&source).expect("our own file");
    assert!(
        built.is_ok_and(|built| built.status.success()),
        "cc -static: apt-get install libc6-dev"
    );
    program
}

/// The parent ends; the child goes on, with /dev/null for its standard files.
pub fn daemon() -> Got {
    call!(libc::daemon(1, 0))
}

pub fn setgid(group: u32) -> Got {
    call!(libc::setgid(group))
}

pub fn setuid(user: u32) -> Got {
    call!(libc::setuid(user))
}

pub fn chroot(directory: &CStr) -> Got {
    call!(libc::chroot(directory.as_ptr()))
}

/// CLOSE_RANGE_UNSHARE or CLOSE_RANGE_CLOEXEC.
pub fn close_range(first: Fd, last: Fd, flags: u32) -> Got {
    call!(libc::close_range(first as u32, last as u32, flags as _))
}

pub const UNSHARE: u32 = 2;
pub const CLOEXEC: u32 = 4;
