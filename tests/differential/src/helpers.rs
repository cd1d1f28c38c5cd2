//! What the scenarios' other programs do: this same binary, started by exec or spawn, with the
//! library or without it.

use crate::calls::{io, process, Fd, Got};

/// `helper echo FD`: sends back what it reads until the stream ends.
/// `helper take`: does the same on a descriptor that it is passed over standard input.
pub fn run(arguments: &[String]) -> i32 {
    process::end_with_parent();
    process::alarm(18);
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["echo", fd] => echo(fd.parse().expect("a descriptor number")),
        ["take"] => echo(io::take_descriptor(0).fd("a passed descriptor")),
        _ => 2,
    }
}

/// Sends back what comes until the stream ends.
pub fn echo(fd: Fd) -> i32 {
    let mut room = vec![0; 1 << 16];
    loop {
        match io::read(fd, &mut room) {
            Got::Value(0) => return 0,
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
