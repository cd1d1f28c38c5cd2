//! Bytes that MSG_MORE and TCP_CORK hold back: who gets them together, and what has them go.

use super::ends::receive_to_end_text;
use super::{scenarios, Scenario, Settings};
use crate::actor::{Actor, Place};
use crate::calls::process::{self, wait_for};
use crate::calls::socket::{self, set_int};
use crate::calls::{io, wait, Fd};
use crate::pattern::{receive, receive_text, send_all};
use libc::{IPPROTO_TCP, TCP_CORK, TCP_NODELAY};
use std::cell::Cell;
use std::time::{Duration, Instant};

pub const ALL: &[Scenario] = scenarios![Settings::All;
    more_is_received_together_with_what_follows,
    nothing_tells_of_what_is_held_back,
    a_cork_that_is_pulled_lets_all_go_at_once,
    what_has_held_bytes_go,
    held_bytes_outlive_a_killed_writer,
    held_bytes_outlive_a_writer_that_ends,
    held_bytes_outlive_a_writer_that_becomes_another_program,
    a_child_sends_behind_what_its_parent_held_back,
    a_close_has_held_bytes_refused,
    both_shutdowns_have_held_bytes_refused,
    a_death_has_held_bytes_refused,
    much_behind_held_bytes_fills_the_stream,
    question_and_answer_of_held_bytes_go_on,
];

/// The client sends what is held back, and the server looks before the kernel lets it go, which it does after 200 ms
/// (tcp(7)), or when an acknowledgement comes: a round that took longer is none. Then the rest follows.
fn in_time(a: &Actor, s: Fd, send: impl Fn(), look: impl Fn() -> String, rest: impl Fn()) {
    const IN_TIME: Duration = Duration::from_millis(100);
    let (yes, no) = ("in time", "late");
    a.at_once(
        || loop {
            a.settle(|| socket::ioctl(s, libc::TIOCOUTQ, -1).1 == 0);
            let began = Instant::now();
            send();
            a.tell("sent");
            assert_eq!(a.hear(), "seen");
            let verdict = if began.elapsed() < IN_TIME { yes } else { no };
            rest();
            a.tell(verdict);
            assert_eq!(a.hear(), "taken");
            if verdict == yes {
                break;
            }
        },
        || loop {
            assert_eq!(a.hear(), "sent");
            let seen = look();
            a.tell("seen");
            let verdict = a.hear();
            let taken = receive_until(s, '.');
            a.tell("taken");
            if verdict == yes {
                a.note("seen", seen);
                a.note("then", taken);
                break;
            }
        },
    );
}

/// What one receive gets.
fn receive_once(s: Fd) -> String {
    wait::poll(&[(s, libc::POLLIN)], 10_000);
    let mut room = [0; 100];
    let count = io::recv(s, &mut room, 0).value("recv");
    String::from_utf8_lossy(&room[..count as usize]).into_owned()
}

/// Up to a byte.
fn receive_until(s: Fd, last: char) -> String {
    let mut taken = String::new();
    while !taken.ends_with(last) {
        taken += &receive_once(s);
    }
    taken
}

/// Everything that could tell of bytes.
fn told(s: Fd) -> String {
    let (got, events) = wait::poll(&[(s, libc::POLLIN)], 0);
    let unread = socket::ioctl(s, libc::FIONREAD, -1);
    let mut room = [0; 100];
    let peeked = io::recv(s, &mut room, libc::MSG_PEEK | libc::MSG_DONTWAIT);
    let received = io::recv(s, &mut room, libc::MSG_DONTWAIT);
    format!("{got} {events:?} {} {} {peeked} {received}", unread.0, unread.1)
}

fn tail(s: Fd) {
    io::send(s, b"tail.", 0).value("send");
}

fn nothing_tells_of_what_is_held_back(a: &Actor) {
    let a = &a.settled();
    let s = a.stream();
    let on_their_way = Cell::new(0);
    let held = || {
        io::send(s, b"he", libc::MSG_MORE).value("send");
        io::sendmsg(s, &[b"a", b"d "], libc::MSG_MORE).value("sendmsg");
        // On TCP as on a ring, nothing of the sender's own looks like a reason to let it go.
        wait::poll(&[(s, libc::POLLIN | libc::POLLOUT)], 0);
        on_their_way.set(socket::ioctl(s, libc::TIOCOUTQ, -1).1);
    };
    in_time(a, s, held, || told(s), || tail(s));
    a.client(|| a.note("on their way", on_their_way.get()));
}

fn more_is_received_together_with_what_follows(a: &Actor) {
    let a = &a.settled();
    let s = a.stream();
    let send = || {
        io::send(s, b"head ", libc::MSG_MORE).value("send");
        io::write(s, b"body ");
    };
    in_time(a, s, send, || receive_once(s), || tail(s));
}

fn a_cork_that_is_pulled_lets_all_go_at_once(a: &Actor) {
    let a = &a.settled();
    let s = a.stream();
    let cork = |on| set_int(s, IPPROTO_TCP, TCP_CORK, on).value("TCP_CORK");
    let corked = || {
        cork(1);
        for piece in ["he", "ad ", "bo", "dy"] {
            io::send(s, piece.as_bytes(), 0).value("send");
        }
        io::writev(s, &[b" and", b" more"]).value("writev");
    };
    let pull = || {
        io::send(s, b".", 0).value("send");
        cork(0);
    };
    in_time(a, s, corked, || told(s), pull);
    // TCP_NODELAY has what is queued go, and the cork stays.
    let push = || {
        io::send(s, b".", 0).value("send");
        set_int(s, IPPROTO_TCP, TCP_NODELAY, 1).value("TCP_NODELAY");
    };
    in_time(a, s, corked, || told(s), push);
}

fn what_has_held_bytes_go(a: &Actor) {
    for end in [|s| socket::shutdown(s, libc::SHUT_WR), socket::close] {
        let s = a.stream();
        a.client(|| {
            a.note("send", io::send(s, b"all of ", libc::MSG_MORE));
            a.note("send", io::send(s, b"it", libc::MSG_MORE));
            a.note("end", end(s));
        });
        a.server(|| a.note("received", receive_to_end_text(s)));
    }
    // Urgent data takes a stream to TCP, behind what was held.
    let s = a.stream();
    a.client(|| {
        a.note("send", io::send(s, b"before ", libc::MSG_MORE));
        a.note("urgent", io::send(s, b"!", libc::MSG_OOB));
        a.note("send", io::send(s, b"after", 0));
    });
    a.server(|| a.note("received", receive_text(s, 12)));
}

/// A child of the client's has a stream of its own, sends, and ends in some way.
fn held_by_one_that_ends(a: &Actor, end: fn()) {
    let place = a.listen();
    a.at_once(
        || {
            let child = a.child("victim", || {
                let s = a.connect(&place);
                a.warm_as_client(s);
                a.note("sent", send_all(s, 2, 50_000, 10_000));
                a.note("send", io::send(s, b"held ", libc::MSG_MORE));
                a.note("send", io::send(s, b"back", libc::MSG_MORE));
                end();
            });
            a.note("victim", wait_for(child));
        },
        || {
            let s = socket::accept(place.fd).fd("accept");
            a.warm_as_server(s);
            a.note("received", receive(s, 2, 50_000, 7_000));
            a.note("then", receive_to_end_text(s));
        },
    );
}

fn held_bytes_outlive_a_killed_writer(a: &Actor) {
    held_by_one_that_ends(a, || {
        process::kill(process::pid(), libc::SIGKILL);
    });
}

fn held_bytes_outlive_a_writer_that_ends(a: &Actor) {
    held_by_one_that_ends(a, || process::exit_now(3));
    held_by_one_that_ends(a, || {});
}

fn held_bytes_outlive_a_writer_that_becomes_another_program(a: &Actor) {
    held_by_one_that_ends(a, || {
        process::exec(&["true"]);
    });
}

fn a_child_sends_behind_what_its_parent_held_back(a: &Actor) {
    let s = a.stream();
    a.at_once(
        || {
            a.note("send", io::send(s, b"the parent's, ", libc::MSG_MORE));
            let child = a.child("child", || a.note("send", io::send(s, b"the child's, ", 0)));
            a.note("child", wait_for(child));
            a.note("send", io::send(s, b"and the parent's", 0));
        },
        || a.note("received", receive_text(s, 43)),
    );
}

/// The peer ends the stream before what is held back goes, which the kernel sends when it gets the FIN: another round
/// if that took too long, or the bytes have come, as they do where the writer goes to a ring meanwhile.
fn ended_before_held_bytes_go(a: &Actor, serves_until_end: fn(&Actor, &Place) -> bool) {
    const IN_TIME: Duration = Duration::from_millis(100);
    const EVERYTHING: i16 =
        libc::POLLIN | libc::POLLOUT | libc::POLLRDHUP | libc::POLLERR | libc::POLLHUP;
    let place = a.listen();
    a.at_once(
        || loop {
            let s = a.connect(&place);
            a.warm_as_client(s);
            a.settle(|| socket::ioctl(s, libc::TIOCOUTQ, -1).1 == 0);
            let began = Instant::now();
            let sent = io::send(s, b"held back", libc::MSG_MORE);
            a.tell("sent");
            let in_time = a.hear() == "ended" && began.elapsed() < IN_TIME;
            a.tell(if in_time { "in time" } else { "late" });
            if in_time {
                a.note("send", sent);
                a.note_mask("at the end", s, EVERYTHING);
                a.note("receive", io::recv(s, &mut [0; 10], 0));
                a.note("error", socket::so_error(s));
                a.note("send", io::send(s, b"x", libc::MSG_NOSIGNAL));
                break;
            }
        },
        || loop {
            a.tell(if serves_until_end(a, &place) { "ended" } else { "came before" });
            if a.hear() == "in time" {
                break;
            }
        },
    );
}

/// The stream, and whether its bytes are still held back.
fn serve_until_held(a: &Actor, place: &Place) -> (Fd, bool) {
    let s = socket::accept(place.fd).fd("accept");
    a.warm_as_server(s);
    assert_eq!(a.hear(), "sent");
    (s, socket::ioctl(s, libc::FIONREAD, -1).1 == 0)
}

fn a_close_has_held_bytes_refused(a: &Actor) {
    ended_before_held_bytes_go(a, |a, place| {
        let (s, are_held) = serve_until_held(a, place);
        socket::close(s);
        are_held
    });
}

fn both_shutdowns_have_held_bytes_refused(a: &Actor) {
    ended_before_held_bytes_go(a, |a, place| {
        let (s, are_held) = serve_until_held(a, place);
        socket::shutdown(s, libc::SHUT_RDWR);
        // What comes behind the end is not kept.
        are_held && socket::ioctl(s, libc::FIONREAD, -1).1 <= 0
    });
}

fn a_death_has_held_bytes_refused(a: &Actor) {
    ended_before_held_bytes_go(a, |a, place| {
        let child = a.child("victim", || {
            let (_, are_held) = serve_until_held(a, place);
            if are_held {
                process::kill(process::pid(), libc::SIGKILL);
            }
        });
        wait_for(child) == "killed by 9"
    });
}

fn much_behind_held_bytes_fills_the_stream(a: &Actor) {
    let s = a.stream();
    const TOTAL: usize = 8 << 20;
    a.at_once(
        || {
            a.note("send", io::send(s, b"few ", libc::MSG_MORE));
            a.note("sent", send_all(s, 1, TOTAL, TOTAL));
            a.note("send", io::send(s, b"few", libc::MSG_MORE));
        },
        || {
            a.note("received", receive_text(s, 4));
            a.note("received", receive(s, 1, TOTAL, 50_000));
            a.note("received", receive_text(s, 3));
        },
    );
}

fn question_and_answer_of_held_bytes_go_on(a: &Actor) {
    let s = a.stream();
    a.at_once(
        || {
            a.note("send", io::send(s, b"question", libc::MSG_MORE));
            a.note("answer", receive_text(s, 6));
        },
        || {
            a.note("question", receive_text(s, 8));
            a.note("send", io::send(s, b"answer", libc::MSG_MORE));
        },
    );
}
