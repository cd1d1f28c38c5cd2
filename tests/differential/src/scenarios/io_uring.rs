//! Streams that an io_uring reads, writes and polls, where the library sees no call.

use super::{scenarios, Scenario, Settings};
use crate::actor::Actor;
use crate::calls::io_uring::{File, IoUring};
use crate::calls::process::wait_for;
use crate::calls::{io, socket, wait, Fd, Got};
use crate::pattern::{receive_text, Checker};

pub const ALL: &[Scenario] = scenarios![Settings::All;
    an_io_uring_made_after_a_stream_carries_it,
    an_io_uring_finds_what_was_not_read,
    an_io_uring_made_before_a_stream_carries_it,
    an_io_uring_accepts,
    an_io_uring_holds_registered_streams_open,
    a_forked_child_uses_its_parents_stream_by_io_uring,
    an_io_uring_inherited_by_a_child_carries_the_stream,
];

/// Where io_uring is forbidden, that is what a scenario tells.
fn make(a: &Actor) -> Option<IoUring> {
    match IoUring::make() {
        Ok(ring) => Some(ring),
        Err(why) => {
            a.note("io_uring", why);
            None
        }
    }
}

/// Answers each eight bytes with "answered" until the end.
fn answer_all(a: &Actor, s: Fd) {
    let mut rounds = 0;
    while receive_text(s, 8) == "question" {
        io::send(s, b"answered", libc::MSG_NOSIGNAL);
        rounds += 1;
    }
    a.note("answered", rounds);
}

/// As many exchanges as a stream takes for it.
fn go_to_a_ring(s: Fd) {
    for _ in 0..40 {
        io::send(s, b"question", 0).value("send");
        assert_eq!(receive_text(s, 8), "answered");
    }
}

fn text(room: &[u8]) -> String {
    String::from_utf8_lossy(room).into_owned()
}

/// Rounds in which each step is a request, then some in which every other is a call.
fn ask(a: &Actor, ring: &IoUring, s: Fd, file: File) {
    let mut room = [0; 8];
    for round in 0..3 {
        a.note(format!("send {round}"), ring.send(file, b"question"));
        let mask = ring.poll(file, libc::POLLIN).count().unwrap_or(0);
        a.note(format!("poll {round}"), wait::mask(mask as u32));
        a.note(format!("recv {round}"), ring.recv(file, &mut room));
        a.note(format!("answer {round}"), text(&room));
    }
    for round in 0..3 {
        a.note(format!("call {round}"), io::write(s, b"question"));
        a.note(format!("read {round}"), ring.read(file, &mut room));
        a.note(format!("answer {round}"), text(&room));
        a.note(format!("request {round}"), ring.send(file, b"question"));
        a.note(format!("answer {round}"), receive_text(s, 8));
    }
}

fn an_io_uring_made_after_a_stream_carries_it(a: &Actor) {
    let s = a.stream();
    a.at_once(
        || {
            let Some(ring) = make(a) else {
                socket::close(s);
                return;
            };
            ask(a, &ring, s, File::Descriptor(s));
            a.note("close", socket::close(s));
        },
        || answer_all(a, s),
    );
}

fn an_io_uring_finds_what_was_not_read(a: &Actor) {
    let s = a.stream();
    const TOTAL: usize = 50_000;
    a.client(|| {
        let bytes = crate::pattern::bytes(7, 0, TOTAL);
        a.note("sent", crate::pattern::write_all(s, &bytes).is_ok());
    });
    a.server(|| {
        a.until_readable(s, TOTAL);
        let mut checker = Checker::new(7);
        let mut room = vec![0; 10_000];
        let got = io::recv(s, &mut room, libc::MSG_WAITALL);
        checker.take(&room[..got.count().unwrap_or(0)]);
        let Some(ring) = make(a) else { return };
        while checker.count() < TOTAL as u64 {
            match ring.recv(File::Descriptor(s), &mut room).count() {
                None | Some(0) => break,
                Some(count) => checker.take(&room[..count]),
            }
        }
        a.note("received", checker.verdict());
    });
}

fn an_io_uring_made_before_a_stream_carries_it(a: &Actor) {
    let place = a.listen();
    a.at_once(
        || {
            let child = a.child("asks", || {
                let ring = make(a);
                let s = a.connect(&place);
                let Some(ring) = ring else { return };
                go_to_a_ring(s);
                ask(a, &ring, s, File::Descriptor(s));
            });
            a.note("asks", wait_for(child));
        },
        || {
            let s = socket::accept(place.fd).fd("accept");
            answer_all(a, s);
        },
    );
}

fn an_io_uring_accepts(a: &Actor) {
    let place = a.listen();
    a.at_once(
        || {
            for _ in 0..2 {
                let s = a.connect(&place);
                go_to_a_ring(s);
                socket::close(s);
            }
        },
        || {
            let Some(ring) = make(a) else {
                (0..2).for_each(|_| answer_all(a, socket::accept(place.fd).fd("accept")));
                return;
            };
            for _ in 0..2 {
                let s = ring.accept(File::Descriptor(place.fd)).fd("accept");
                answer_all(a, s);
                a.note("close", socket::close(s));
            }
        },
    );
}

fn an_io_uring_holds_registered_streams_open(a: &Actor) {
    let s = a.stream();
    a.at_once(
        || {
            let Some(ring) = make(a) else {
                socket::close(s);
                return;
            };
            a.note("register", ring.register(&[s]));
            ask(a, &ring, s, File::Registered(0));
            a.note("close", socket::close(s));
            a.note("send", ring.send(File::Registered(0), b"question"));
            let mut room = [0; 8];
            a.note("recv", ring.recv(File::Registered(0), &mut room));
            a.note("answer", text(&room));
            a.note("close the ring", ring.close());
        },
        || answer_all(a, s),
    );
}

fn a_forked_child_uses_its_parents_stream_by_io_uring(a: &Actor) {
    let s = a.stream();
    a.client(|| {
        io::send(s, b"unread, ", 0).value("send");
    });
    a.at_once(
        || {
            a.note("from the child", receive_text(s, 8));
            io::send(s, b"answered", 0).value("send");
            a.note("from the parent", receive_text(s, 8));
            a.note("the end", receive_text(s, 1));
        },
        || {
            a.until_readable(s, 8);
            let child = a.child("child", || {
                let Some(ring) = make(a) else {
                    io::send(s, b"question", 0).value("send");
                    receive_text(s, 16);
                    return;
                };
                let file = File::Descriptor(s);
                let mut room = [0; 8];
                a.note("unread", ring.recv(file, &mut room));
                a.note("what", text(&room));
                a.note("send", ring.send(file, b"question"));
                a.note("recv", ring.recv(file, &mut room));
                a.note("what", text(&room));
            });
            a.note("child", wait_for(child));
            a.note("parent", io::send(s, b"parent's", 0));
            a.note("close", socket::close(s));
        },
    );
}

fn an_io_uring_inherited_by_a_child_carries_the_stream(a: &Actor) {
    let s = a.stream();
    a.at_once(
        || {
            let Some(ring) = make(a) else {
                socket::close(s);
                return;
            };
            let child = a.child("child", || ask(a, &ring, s, File::Descriptor(s)));
            a.note("child", wait_for(child));
            let got = ring.send(File::Descriptor(s), b"question");
            a.note("parent", got == Got::Value(8));
            a.note("answer", receive_text(s, 8));
            a.note("close", socket::close(s));
        },
        || answer_all(a, s),
    );
}
