//! Streams that an io_uring reads, writes and polls, or puts into epoll sets, where there is no call for each of
//! these.

use super::{scenarios, Scenario, Settings};
use crate::actor::Actor;
use crate::calls::io_uring::{Change, File, IoUring};
use crate::calls::process::wait_for;
use crate::calls::{io, socket, wait, Fd, Got};
use crate::pattern::{receive_text, Checker};

pub const ALL: &[Scenario] = scenarios![Settings::All;
    an_io_uring_made_after_a_stream_carries_it,
    an_io_uring_finds_what_was_not_read,
    an_io_uring_made_before_a_stream_carries_it,
    an_io_uring_that_is_entered_unseen_carries_a_stream,
    an_io_uring_accepts,
    an_io_uring_holds_registered_streams_open,
    a_forked_child_uses_its_parents_stream_by_io_uring,
    an_io_uring_inherited_by_a_child_carries_the_stream,
    an_io_uring_changes_what_a_set_tells,
    an_io_uring_makes_several_changes_of_a_set_at_once,
    an_io_uring_by_a_second_number_changes_a_set,
    a_forked_child_changes_sets_by_an_io_uring,
    a_set_that_an_io_uring_changes_serves_many_streams,
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

/// The ring is there first, and has been entered once.
fn carried_by_an_earlier_one(a: &Actor, unseen: bool) {
    let place = a.listen();
    a.at_once(
        || {
            let child = a.child("asks", || {
                let mut ring = make(a);
                if let Some(ring) = &mut ring {
                    ring.unseen = unseen;
                    a.note("nothing", ring.nothing());
                }
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

fn an_io_uring_made_before_a_stream_carries_it(a: &Actor) {
    carried_by_an_earlier_one(a, false);
}

/// What was made in sight, and is entered otherwise.
fn an_io_uring_that_is_entered_unseen_carries_a_stream(a: &Actor) {
    carried_by_an_earlier_one(a, true);
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

use libc::{EPOLLET, EPOLLIN, EPOLLONESHOT, EPOLLOUT, EPOLL_CTL_ADD, EPOLL_CTL_DEL, EPOLL_CTL_MOD};

/// Every change of an entry, and every mistake, as long as a byte is unread.
fn change_all(a: &Actor, ring: &IoUring, set: Fd, s: Fd) {
    let asks: &[(&str, i32)] = &[
        ("in", EPOLLIN),
        ("room", EPOLLOUT),
        ("edge", EPOLLIN | EPOLLET),
        ("once", EPOLLIN | EPOLLONESHOT),
        ("level after once", EPOLLIN | EPOLLOUT),
        ("nothing", 0),
        ("in after nothing", EPOLLIN),
    ];
    let control = |operation, events, data| ring.control(set, operation, s, events, data);
    for (at, (what, events)) in asks.iter().enumerate() {
        a.note(format!("{what}: ADD"), control(EPOLL_CTL_ADD, *events, at as u64));
        a.note(format!("{what}: ADD once more"), control(EPOLL_CTL_ADD, *events, 77));
        a.note(format!("{what}: told"), wait::epoll_wait(set, 4, 0).said());
        a.note(format!("{what}: told again"), wait::epoll_wait(set, 4, 0).said());
        a.note(format!("{what}: MOD"), control(EPOLL_CTL_MOD, *events, 10 + at as u64));
        a.note(format!("{what}: told anew"), wait::epoll_wait(set, 4, 0).said());
        a.note(format!("{what}: DEL"), control(EPOLL_CTL_DEL, 0, 0));
        a.note(format!("{what}: DEL once more"), control(EPOLL_CTL_DEL, 0, 0));
        a.note(format!("{what}: MOD of what is gone"), control(EPOLL_CTL_MOD, *events, 0));
        a.note(format!("{what}: not told"), wait::epoll_wait(set, 4, 0).said());
    }
    a.note("no such operation", control(9, EPOLLIN, 0));
    a.note("a set in itself", ring.control(set, EPOLL_CTL_ADD, set, EPOLLIN, 0));
    a.note("no set", ring.control(s, EPOLL_CTL_ADD, s, EPOLLIN, 0));
    a.note("no number", ring.control(set, EPOLL_CTL_ADD, -1, EPOLLIN, 0));
}

/// The server acts while a byte is to be read.
fn beside_an_unread_byte(a: &Actor, act: impl FnOnce(Fd)) {
    let s = a.stream();
    a.client(|| {
        io::send(s, b"x", 0).value("send");
    });
    a.server(|| {
        a.until_readable(s, 1);
        act(s);
    });
}

fn an_io_uring_changes_what_a_set_tells(a: &Actor) {
    beside_an_unread_byte(a, |s| {
        if let Some(ring) = make(a) {
            change_all(a, &ring, wait::epoll_create(), s);
        }
        a.note("the byte", receive_text(s, 1));
    });
}

fn an_io_uring_makes_several_changes_of_a_set_at_once(a: &Actor) {
    beside_an_unread_byte(a, |s| {
        let Some(ring) = make(a) else { return };
        let (set, bell) = (wait::epoll_create(), wait::eventfd(1));
        let change = |operation, fd, events, data| Change { operation, fd, events, data };
        for round in 0..3 {
            let got = ring.control_all(
                set,
                &[
                    change(EPOLL_CTL_ADD, s, EPOLLIN, 1),
                    change(EPOLL_CTL_ADD, s, EPOLLIN, 2),
                    change(EPOLL_CTL_ADD, bell, EPOLLIN, 3),
                    change(EPOLL_CTL_MOD, s, EPOLLIN | EPOLLOUT, 4),
                ],
            );
            a.note(format!("{round}: changes"), format!("{got:?}"));
            a.note(format!("{round}: told"), wait::epoll_wait(set, 4, 5000).said());
            let got = ring.control_all(
                set,
                &[
                    change(EPOLL_CTL_DEL, s, 0, 0),
                    change(EPOLL_CTL_DEL, bell, 0, 0),
                    change(EPOLL_CTL_MOD, s, EPOLLIN, 5),
                    change(EPOLL_CTL_DEL, bell, 0, 0),
                ],
            );
            a.note(format!("{round}: deleted"), format!("{got:?}"));
            a.note(format!("{round}: not told"), wait::epoll_wait(set, 4, 0).said());
        }
    });
}

fn an_io_uring_by_a_second_number_changes_a_set(a: &Actor) {
    beside_an_unread_byte(a, |s| {
        let Some(mut ring) = make(a) else { return };
        let copy = socket::dup(ring.fd).fd("dup");
        let first = std::mem::replace(&mut ring.fd, copy);
        let set = wait::epoll_create();
        a.note("ADD", ring.control(set, EPOLL_CTL_ADD, s, EPOLLIN, 1));
        a.note("told", wait::epoll_wait(set, 4, 5000).said());
        a.note("close", socket::close(first));
        a.note("MOD", ring.control(set, EPOLL_CTL_MOD, s, EPOLLOUT, 2));
        a.note("told", wait::epoll_wait(set, 4, 5000).said());
        a.note("close", ring.close());
        let Some(ring) = make(a) else { return };
        a.note("DEL", ring.control(set, EPOLL_CTL_DEL, s, 0, 0));
        a.note("told no more", wait::epoll_wait(set, 4, 0).said());
        let mut room = [0; 1];
        a.note("recv", ring.recv(File::Descriptor(s), &mut room));
    });
}

fn a_forked_child_changes_sets_by_an_io_uring(a: &Actor) {
    beside_an_unread_byte(a, |s| {
        let Some(ring) = make(a) else { return };
        let set = wait::epoll_create();
        a.note("ADD", ring.control(set, EPOLL_CTL_ADD, s, EPOLLIN, 1));
        a.note("told", wait::epoll_wait(set, 4, 5000).said());
        let child = a.child("its parent's ring", || {
            let set = wait::epoll_create();
            a.note("ADD", ring.control(set, EPOLL_CTL_ADD, s, EPOLLIN, 2));
            a.note("told", wait::epoll_wait(set, 4, 5000).said());
        });
        a.note("child", wait_for(child));
        let child = a.child("a ring of its own", || {
            let Some(ring) = make(a) else { return };
            let set = wait::epoll_create();
            a.note("ADD", ring.control(set, EPOLL_CTL_ADD, s, EPOLLIN, 3));
            a.note("told", wait::epoll_wait(set, 4, 5000).said());
        });
        a.note("child", wait_for(child));
        a.note("MOD", ring.control(set, EPOLL_CTL_MOD, s, EPOLLIN, 4));
        a.note("told", wait::epoll_wait(set, 4, 5000).said());
        a.note("the byte", receive_text(s, 1));
    });
}

/// As libuv serves them: what a round asks for anew is put into the set before it waits.
fn a_set_that_an_io_uring_changes_serves_many_streams(a: &Actor) {
    const STREAMS: usize = 6;
    const ROUNDS: usize = 60;
    let place = a.listen();
    let streams: Vec<Fd> = (0..STREAMS).map(|_| a.new_stream(&place)).collect();
    a.at_once(
        || {
            for _ in 0..ROUNDS {
                for s in &streams {
                    io::send(*s, b"question", 0).value("send");
                }
                for s in &streams {
                    assert_eq!(receive_text(*s, 8), "answered");
                }
            }
            streams.iter().for_each(|s| _ = socket::close(*s));
        },
        || {
            let Some(ring) = make(a) else {
                (0..ROUNDS).for_each(|_| {
                    for s in &streams {
                        receive_text(*s, 8);
                        io::send(*s, b"answered", 0);
                    }
                });
                return;
            };
            let set = wait::epoll_create();
            let change =
                |operation, s: &Fd| Change { operation, fd: *s, events: EPOLLIN, data: *s as u64 };
            let (mut open, mut served) = (streams.clone(), 0);
            let mut changes: Vec<Change> = open.iter().map(|s| change(EPOLL_CTL_ADD, s)).collect();
            while !open.is_empty() {
                for got in ring.control_all(set, &changes) {
                    assert_eq!(got, Got::Value(0));
                }
                changes.clear();
                for (_, data) in wait::epoll_wait(set, 3, 5000).events {
                    let s = data as Fd;
                    if receive_text(s, 8) == "question" {
                        io::send(s, b"answered", 0).value("send");
                        served += 1;
                        if served % 2 == 0 {
                            changes.extend([change(EPOLL_CTL_DEL, &s), change(EPOLL_CTL_ADD, &s)]);
                        }
                    } else {
                        open.retain(|it| *it != s);
                        changes.push(change(EPOLL_CTL_DEL, &s));
                    }
                }
            }
            a.note("served", served);
        },
    );
}
