//! Bytes that lie unread when their writer is gone or blocked, and are read by another process.

use super::{scenarios, Scenario, V4};
use crate::actor::Actor;
use crate::calls::process::{self, wait_for};
use crate::calls::{io, socket, wait, Fd};
use crate::helpers;
use crate::pattern::{receive, receive_to_end, send_all};

pub const ALL: &[Scenario] = scenarios![V4;
    bytes_of_a_peer_that_closed_survive_exec,
    bytes_of_a_peer_that_closed_survive_exec_in_place,
    bytes_of_a_peer_that_closed_are_passed_on,
    bytes_of_a_peer_that_closed_are_read_by_a_child,
    bytes_of_a_peer_that_exited_survive_exec,
    bytes_of_a_peer_that_exited_are_read_by_a_child,
    bytes_of_a_peer_that_is_blocked_survive_exec,
    bytes_of_a_peer_that_is_blocked_are_read_by_a_child,
    a_peer_that_closed_answers_with_a_reset,
];

const SEED: u64 = 7;
const LEFT: usize = 30_000;
const FIRST: usize = 1000;

/// A few are read here, the rest by a program that this process' child becomes.
fn read_by_a_program(a: &Actor, s: Fd) {
    let child = a.child("program", || {
        a.note("first", receive(s, SEED, FIRST, FIRST));
        helpers::become_checker(s, SEED, FIRST);
    });
    socket::close(s);
    a.note("program", wait_for(child));
}

fn read_by_a_child(a: &Actor, s: Fd) {
    let mut room = vec![0; FIRST];
    io::recv(s, &mut room, libc::MSG_WAITALL).value("recv");
    let child = a.child("reader", || process::exit_now(helpers::check(s, SEED, FIRST)));
    socket::close(s);
    a.note("reader", wait_for(child));
}

fn written_and_closed(a: &Actor) -> Fd {
    let s = a.stream();
    a.client(|| {
        a.note("sent", send_all(s, SEED, LEFT, 5000));
        a.note("close", socket::close(s));
    });
    s
}

fn bytes_of_a_peer_that_closed_survive_exec(a: &Actor) {
    let s = written_and_closed(a);
    a.server(|| read_by_a_program(a, s));
}

fn bytes_of_a_peer_that_closed_survive_exec_in_place(a: &Actor) {
    let place = a.listen();
    a.at_once(
        || {
            let s = a.connect(&place);
            a.warm_as_client(s);
            a.note("sent", send_all(s, SEED, LEFT, 5000));
            a.note("close", socket::close(s));
        },
        || {
            let child = a.child("server", || {
                let s = socket::accept(place.fd).fd("accept");
                a.warm_as_server(s);
                a.until_readable(s, LEFT);
                a.note("first", receive(s, SEED, FIRST, FIRST));
                helpers::become_checker(s, SEED, FIRST);
            });
            a.note("server", wait_for(child));
        },
    );
}

fn bytes_of_a_peer_that_closed_are_passed_on(a: &Actor) {
    let s = written_and_closed(a);
    a.server(|| {
        let (one, other) = socket::socketpair(libc::SOCK_STREAM);
        a.note("first", receive(s, SEED, FIRST, FIRST));
        let child = a.child("taker", || {
            socket::close(s);
            let passed = io::take_descriptor(other).fd("a passed descriptor");
            process::exit_now(helpers::check(passed, SEED, FIRST));
        });
        a.note("pass", io::pass_descriptor(one, s));
        a.note("close", socket::close(s));
        a.note("taker", wait_for(child));
    });
}

fn bytes_of_a_peer_that_closed_are_read_by_a_child(a: &Actor) {
    let s = written_and_closed(a);
    a.server(|| read_by_a_child(a, s));
}

/// The client's stream is a process' that is gone when the server's `reader` gets it.
fn after_an_exit(a: &Actor, reader: impl Fn(Fd)) {
    let place = a.listen();
    let mut accepted = -1;
    a.at_once(
        || {
            let child = a.child("writer", || {
                let s = a.connect(&place);
                a.warm_as_client(s);
                a.note("sent", send_all(s, SEED, LEFT, 5000));
            });
            a.note("writer", wait_for(child));
        },
        || {
            accepted = socket::accept(place.fd).fd("accept");
            a.warm_as_server(accepted);
        },
    );
    a.server(|| reader(accepted));
}

fn bytes_of_a_peer_that_exited_survive_exec(a: &Actor) {
    after_an_exit(a, |s| read_by_a_program(a, s));
}

fn bytes_of_a_peer_that_exited_are_read_by_a_child(a: &Actor) {
    after_an_exit(a, |s| read_by_a_child(a, s));
}

/// The client's writer is blocked for long before `reader` begins.
fn while_the_writer_is_blocked(a: &Actor, reader: impl FnOnce(Fd)) {
    let s = a.stream();
    const TOTAL: usize = 12 << 20;
    a.at_once(
        || {
            a.note("sent", send_all(s, SEED, TOTAL, 100_000));
            a.note("close", socket::close(s));
        },
        || {
            // Longer than a full ring is waited for.
            wait::poll(&[], 150);
            reader(s);
        },
    );
}

fn bytes_of_a_peer_that_is_blocked_survive_exec(a: &Actor) {
    while_the_writer_is_blocked(a, |s| read_by_a_program(a, s));
}

fn bytes_of_a_peer_that_is_blocked_are_read_by_a_child(a: &Actor) {
    while_the_writer_is_blocked(a, |s| read_by_a_child(a, s));
}

fn a_peer_that_closed_answers_with_a_reset(a: &Actor) {
    let s = written_and_closed(a);
    a.server(|| {
        a.note("send", io::send(s, b"into the void", libc::MSG_NOSIGNAL));
        let reset = a.settle(|| io::send(s, b"again", libc::MSG_NOSIGNAL).count().is_none());
        a.note("told of it", reset);
        a.note("received", receive_to_end(s, SEED));
    });
}
