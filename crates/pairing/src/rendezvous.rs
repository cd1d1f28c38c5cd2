//! Meeting under a name. The name says which connection and which end; it proves nothing.
//!
//! The end that comes first finds nobody under the other end's name, so it listens under its own;
//! the end that comes second finds it. The first one looks once more after it has begun to
//! listen, so that two ends that come at the same moment do not miss each other.

use shunt_os::handles::{self, Name};
use shunt_os::peer::{Endpoint, Tuple};
use shunt_os::Errno;

/// What came of an attempt to meet.
#[derive(Debug)]
pub enum Meeting {
    /// Connected to the other end's rendezvous: this control socket leads to it.
    Found(i32),
    /// Nobody yet: this listener waits for the other end.
    Waiting(i32),
    /// Neither worked.
    Failed(Errno),
}

/// The abstract name under which the end with this view of the connection listens. Abstract
/// names are scoped by network namespace, as the connection is.
pub fn name_of(end: &Tuple) -> Name {
    let mut text = [0u8; 44];
    text[..8].copy_from_slice(b"shunt-1/");
    let mut put = |at: usize, e: &Endpoint| {
        text[at..at + 16].copy_from_slice(&e.address);
        text[at + 16..at + 18].copy_from_slice(&e.port.to_be_bytes());
    };
    put(8, &end.local);
    put(26, &end.remote);
    Name::new(&text)
}

/// The abstract name under which a process with links is asked for what another process of its user's took from it
/// (pidfd_getfd(2)).
pub fn door_of(pid: i32) -> Name {
    let mut text = [0u8; 17];
    text[..13].copy_from_slice(b"shunt-1/door/");
    text[13..].copy_from_slice(&pid.to_be_bytes());
    Name::new(&text)
}

/// A control socket to the other end of `own`, if that waits at its rendezvous (2 us).
pub fn find(own: &Tuple) -> Option<i32> {
    handles::connect_to(&name_of(&own.reversed())).ok()
}

/// Tries to meet the other end of `own` without waiting (2 to 25 us).
pub fn meet(own: &Tuple) -> Meeting {
    if let Some(control) = find(own) {
        return Meeting::Found(control);
    }
    match handles::listen_at(&name_of(own)) {
        Ok(listener) => match find(own) {
            Some(control) => {
                handles::close(listener);
                Meeting::Found(control)
            }
            None => Meeting::Waiting(listener),
        },
        Err(error) => Meeting::Failed(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tuple(a: u16, b: u16) -> Tuple {
        let end = |port| Endpoint { address: [7; 16], port, _zero: 0, scope: 0 };
        Tuple { local: end(a), remote: end(b) }
    }

    #[test]
    fn the_second_end_finds_the_first() {
        let own = tuple(41001, std::process::id() as u16);
        assert_eq!(find(&own), None, "nobody was there");
        let Meeting::Waiting(listener) = meet(&own) else { panic!("nobody was there") };
        let Meeting::Found(control) = meet(&own.reversed()) else { panic!("somebody was there") };
        let accepted = handles::accept_from(listener).expect("a connection waits");
        for fd in [listener, control, accepted] {
            handles::close(fd);
        }
    }

    #[test]
    fn other_connections_have_other_names() {
        let own = tuple(41002, std::process::id() as u16);
        let Meeting::Waiting(listener) = meet(&own) else { panic!() };
        let Meeting::Waiting(second) = meet(&tuple(41003, 1)) else { panic!() };
        handles::close(listener);
        handles::close(second);
    }
}
