//! What the scenarios' other programs do: this same binary, started by exec or spawn, with the
//! library or without it.

use crate::calls::{io, process, wait, Fd, Got};

/// `helper echo FD`: sends back what it reads until the stream ends.
/// `helper check FD SEED FROM`: fails unless the rest of the stream is what it should be.
/// `helper speak FD`: as the first, and says hello before.
/// `helper echo-each FD...`: as the first, of one stream after the other.
/// `helper hop FD COUNT`: as the first, and becomes the next of so many programs when it is told to.
/// `helper back FD VARIABLE...`: as the first, after an exec with the variables of before.
/// `helper watch-all SET FD`: as the first, as an epoll set tells.
/// `helper take`: does the first on a descriptor that it is passed over standard input.
/// `helper watch FD`, `helper take-set`: ends with the data that an epoll set tells as its status.
pub fn run(arguments: &[String]) -> i32 {
    process::end_with_parent();
    process::alarm(18);
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["echo", fd] => echo(fd.parse().expect("a descriptor number")),
        ["speak", fd] => {
            let fd = fd.parse().expect("a descriptor number");
            io::send(fd, b"hello", 0).value("send");
            echo(fd)
        }
        ["echo-each", ref fds @ ..] => {
            fds.iter().map(|fd| echo(fd.parse().expect("a descriptor number"))).sum()
        }
        ["hop", fd, count] => {
            hop_on(fd.parse().expect("a descriptor number"), count.parse().expect("a number"))
        }
        ["back", fd, ref variables @ ..] => {
            let program = program_of(variables);
            let words = [program.as_str(), "--helper", "echo", fd];
            process::exec_with_environment(&program, &words, variables).value("exec");
            3
        }
        ["watch-all", set, fd] => watch_all(
            set.parse().expect("a descriptor number"),
            fd.parse().expect("a descriptor number"),
        ),
        ["check", fd, seed, from] => {
            let number = |text: &str| text.parse().expect("a number");
            check(fd.parse().expect("a descriptor number"), number(seed), number(from) as usize)
        }
        ["take"] => echo(io::take_descriptor(0).fd("a passed descriptor")),
        ["watch", fd] => watch(fd.parse().expect("a descriptor number")),
        ["take-set"] => watch(io::take_descriptor(0).fd("a passed descriptor")),
        _ => 2,
    }
}

fn watch(set: Fd) -> i32 {
    match wait::epoll_wait(set, 4, 5000).events[..] {
        [(events, data)] if events == libc::EPOLLIN as u32 && data < 100 => data as i32,
        [] => 101,
        _ => 102,
    }
}

fn watch_all(set: Fd, fd: Fd) -> i32 {
    let mut room = vec![0; 1 << 16];
    loop {
        if wait::epoll_wait(set, 4, 5000).events.is_empty() {
            return 101;
        }
        match io::read(fd, &mut room) {
            Got::Value(0) => return 0,
            Got::Errno(libc::EAGAIN) => {}
            got => {
                let count = got.count().expect("read gave a count");
                crate::pattern::write_all(fd, &room[..count]).expect("room for it");
            }
        }
    }
}

/// Becomes the first of so many programs.
pub fn hop(fd: Fd, count: u32) {
    let (fd, count) = (fd.to_string(), count.to_string());
    process::exec(&[&program(), "--helper", "hop", &fd, &count]).value("exec");
}

/// Sends back what comes, until that is `nextnext`.
fn hop_on(fd: Fd, count: u32) -> i32 {
    if count == 0 {
        return echo(fd);
    }
    loop {
        let text = crate::pattern::receive_text(fd, 8);
        if text == "nextnext" {
            hop(fd, count - 1);
        }
        if crate::pattern::write_all(fd, text.as_bytes()).is_err() {
            return 1;
        }
    }
}

/// Becomes a program without the library, which becomes one with it again.
pub fn detour(fd: Fd) {
    let variables: Vec<String> =
        std::env::vars().map(|(name, it)| format!("{name}={it}")).collect();
    let (program, fd) = (program(), fd.to_string());
    let mut words = vec![program.as_str(), "--helper", "back", &fd];
    words.extend(variables.iter().map(String::as_str));
    process::exec_with_environment(&program, &words, &["PATH=/bin"]).value("exec");
}

/// [`program`], as it is in such an environment.
fn program_of(variables: &[&str]) -> String {
    let known =
        variables.iter().find_map(|it| it.strip_prefix(PROGRAM_VARIABLE)?.strip_prefix('='));
    known.map_or_else(program, str::to_owned)
}

/// Sends back what comes until the stream ends.
pub fn echo(fd: Fd) -> i32 {
    let mut room = vec![0; 1 << 16];
    loop {
        match io::read(fd, &mut room) {
            Got::Value(0) => return 0,
            Got::Errno(libc::EAGAIN) => {
                wait::poll(&[(fd, libc::POLLIN)], 10_000);
            }
            Got::Errno(_) => return 1,
            got => {
                let count = got.count().expect("read gave a count");
                if crate::pattern::write_all(fd, &room[..count]).is_err() {
                    return 1;
                }
            }
        }
    }
}

/// The file that scenarios start as another program: this one, or what the harness was given for it.
pub fn program() -> String {
    std::env::var(PROGRAM_VARIABLE).unwrap_or_else(|_| {
        let own = std::env::current_exe().expect("this program has a path");
        own.display().to_string()
    })
}

pub const PROGRAM_VARIABLE: &str = "SHUNT_DIFFERENTIAL_PROGRAM";

/// Becomes a program that does what [`check`] does.
pub fn become_checker(fd: Fd, seed: u64, from: usize) {
    let (program, words) = (program(), [fd.to_string(), seed.to_string()]);
    let [fd, seed] = &words;
    process::exec(&[&program, "--helper", "check", fd, seed, &from.to_string()]).value("exec");
}

/// A program that does, in a child of vfork.
pub fn start_checker_by_vfork(fd: Fd, seed: u64) -> process::Pid {
    let (program, words) = (program(), [fd.to_string(), seed.to_string()]);
    let [fd, seed] = &words;
    process::vfork_exec(&program, &[&program, "--helper", "check", fd, seed, "0"])
}

/// Reads from byte `from` of a sequence to the end of the stream; 0 if they were right, 3 if an error
/// came behind them, 5 if there was none and 6 if there was an error in their place.
pub fn check(fd: Fd, seed: u64, from: usize) -> i32 {
    let mut checker = crate::pattern::Checker::starting_at(seed, from as u64);
    let mut room = vec![0; 1 << 16];
    let ended = loop {
        match io::read(fd, &mut room) {
            Got::Value(0) => break 0,
            Got::Errno(libc::EAGAIN) => {
                wait::poll(&[(fd, libc::POLLIN)], 10_000);
            }
            Got::Errno(_) => break 3,
            got => checker.take(&room[..got.count().expect("read gave a count")]),
        }
    };
    match checker.verdict() {
        verdict if !verdict.ends_with("right") => 4,
        _ if checker.count() > from as u64 => ended,
        _ if ended == 3 => 6,
        _ => 5,
    }
}
