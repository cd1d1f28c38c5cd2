//! epoll sets as descriptors: copied, moved, passed on, and held by several processes.

use libc::{EPOLLET, EPOLLIN, EPOLLONESHOT, POLLIN};

use super::processes::own_binary;
use super::{scenarios, Scenario, V4};
use crate::actor::Actor;
use crate::calls::process::{self, wait_for};
use crate::calls::wait::{epoll_add, epoll_create, epoll_del, epoll_mod, epoll_wait, poll};
use crate::calls::{io, other_ways, socket, Fd, Got};
use crate::pattern::receive_text;

pub const ALL: &[Scenario] = scenarios![V4;
    an_epoll_set_is_known_by_every_copy,
    an_epoll_set_moved_to_a_high_number_tells,
    an_epoll_set_whose_number_another_has_tells,
    a_moved_epoll_set_can_be_polled,
    an_epoll_set_taken_by_pidfd_is_the_same_set,
    an_epoll_set_passed_to_itself_tells,
    an_epoll_set_passed_to_a_child_tells_both,
    an_epoll_set_passed_to_a_program_tells_it,
    an_epoll_set_passed_to_a_program_without_the_library_tells_it,
    an_epoll_set_kept_across_exec_tells,
    an_epoll_set_of_a_spawned_program_tells_it,
];

/// A set that holds the stream.
fn watched(s: Fd) -> Fd {
    let set = epoll_create();
    epoll_add(set, s, EPOLLIN, 7).value("EPOLL_CTL_ADD");
    set
}

/// Ways to another number.
const COPIES: &[(&str, fn(Fd) -> Got)] = &[
    ("dup", socket::dup),
    ("dup2", |set| socket::dup2(set, 300)),
    ("dup3", |set| socket::dup3(set, 301, libc::O_CLOEXEC)),
    ("F_DUPFD", |set| socket::fcntl(set, libc::F_DUPFD, 310)),
    ("F_DUPFD_CLOEXEC", |set| socket::fcntl(set, libc::F_DUPFD_CLOEXEC, 320)),
];

/// The set under another number; the old one is closed.
fn moved(set: Fd, how: fn(Fd) -> Got) -> Fd {
    let copy = how(set).fd("a copy");
    socket::close(set);
    copy
}

/// Says whether a byte is told by the server's set, which it then reads.
fn note_an_arrival(a: &Actor, s: Fd, set: Fd, what: &str) {
    send_a_byte(a, s);
    a.server(|| {
        a.note(format!("{what}: told"), epoll_wait(set, 4, 5000).said());
        a.note(format!("{what}: received"), receive_text(s, 1));
        a.note(format!("{what}: told again"), epoll_wait(set, 4, 0).said());
    });
}

fn send_a_byte(a: &Actor, s: Fd) {
    a.client(|| {
        io::send(s, b"x", 0);
    });
}

fn an_epoll_set_is_known_by_every_copy(a: &Actor) {
    let s = a.stream();
    let mut set = if a.is_client() { -1 } else { watched(s) };
    for (what, how) in COPIES {
        a.server(|| {
            set = moved(set, *how);
            a.note(format!("{what}: MOD"), epoll_mod(set, s, EPOLLIN, 8));
        });
        note_an_arrival(a, s, set, what);
    }
}

fn an_epoll_set_moved_to_a_high_number_tells(a: &Actor) {
    let place = a.listen();
    let s = a.pair(&place);
    let mut set = -1;
    a.server(|| {
        set = moved(epoll_create(), |set| socket::fcntl(set, libc::F_DUPFD, 300));
        a.note("ADD", epoll_add(set, s, EPOLLIN, 7));
    });
    note_an_arrival(a, s, set, "new");
    a.warm(s);
    note_an_arrival(a, s, set, "warm");
    a.server(|| {
        a.note("DEL", epoll_del(set, s));
        a.note("ADD", epoll_add(set, s, EPOLLIN | EPOLLET, 8));
    });
    note_an_arrival(a, s, set, "added again");
}

fn an_epoll_set_whose_number_another_has_tells(a: &Actor) {
    let s = a.stream();
    let (mut set, mut other) = (-1, -1);
    a.server(|| {
        let first = epoll_create();
        set = moved(first, socket::dup);
        other = epoll_create();
        a.note("the number is used again", other == first);
        a.note("ADD", epoll_add(set, s, EPOLLIN, 7));
    });
    note_an_arrival(a, s, set, "moved");
    a.server(|| {
        a.note("told by the other", epoll_wait(other, 4, 0).said());
        a.note("ADD to the other", epoll_add(other, s, EPOLLIN, 8));
    });
    note_an_arrival(a, s, other, "other");
    note_an_arrival(a, s, set, "moved");
}

fn a_moved_epoll_set_can_be_polled(a: &Actor) {
    let s = a.stream();
    let mut set = -1;
    a.server(|| set = moved(watched(s), socket::dup));
    send_a_byte(a, s);
    a.server(|| {
        a.note("polled", poll(&[(set, POLLIN)], 5000).0);
        a.note("told", epoll_wait(set, 4, 5000).said());
    });
}

fn an_epoll_set_taken_by_pidfd_is_the_same_set(a: &Actor) {
    let s = a.stream();
    let (mut set, mut copy) = (-1, -1);
    a.server(|| {
        set = watched(s);
        copy = other_ways::copy_by_pidfd(set);
    });
    note_an_arrival(a, s, set, "the set");
    note_an_arrival(a, s, copy, "the copy");
    a.server(|| {
        socket::close(set);
        a.note("MOD", epoll_mod(copy, s, EPOLLIN | EPOLLONESHOT, 8));
    });
    note_an_arrival(a, s, copy, "the copy alone");
}

fn an_epoll_set_passed_to_itself_tells(a: &Actor) {
    let s = a.stream();
    let (mut set, mut passed) = (-1, -1);
    a.server(|| {
        let (one, other) = socket::socketpair(libc::SOCK_STREAM);
        set = watched(s);
        a.note("pass", io::pass_descriptor(one, set));
        passed = io::take_descriptor(other).fd("a passed descriptor");
    });
    note_an_arrival(a, s, passed, "passed");
    note_an_arrival(a, s, set, "the set");
    let later = a.stream();
    a.server(|| a.note("ADD", epoll_add(set, later, EPOLLIN, 8)));
    note_an_arrival(a, later, passed, "added later");
}

fn an_epoll_set_passed_to_a_child_tells_both(a: &Actor) {
    let s = a.stream();
    let (mut set, mut child) = (-1, -1);
    a.server(|| {
        let (one, other) = socket::socketpair(libc::SOCK_STREAM);
        set = watched(s);
        child = a.child("taker", || {
            socket::close(set);
            let passed = io::take_descriptor(other).fd("a passed descriptor");
            a.note("told", epoll_wait(passed, 4, 5000).said());
            a.note("told again", epoll_wait(passed, 4, 0).said());
        });
        a.note("pass", io::pass_descriptor(one, set));
    });
    send_a_byte(a, s);
    a.server(|| {
        a.note("taker", wait_for(child));
        a.note("told", epoll_wait(set, 4, 5000).said());
        a.note("received", receive_text(s, 1));
    });
}

/// Passes the set to a helper, which ends with the data that it is told as its status.
fn pass_to_program(a: &Actor, set: Fd, environment: &[&str]) -> process::Pid {
    let (one, other) = socket::socketpair(libc::SOCK_STREAM);
    let child = a.child("taker", || {
        socket::dup2(other, 0).value("dup2");
        let program = own_binary();
        let arguments = [program.as_str(), "--helper", "take-set"];
        match environment {
            [] => process::exec(&arguments),
            variables => process::exec_with_environment(&program, &arguments, variables),
        }
        .value("exec");
    });
    a.note("pass", io::pass_descriptor(one, set));
    child
}

fn a_program_is_told(a: &Actor, s: Fd, start: impl FnOnce(Fd) -> process::Pid) {
    let (mut set, mut child) = (-1, -1);
    a.server(|| {
        set = watched(s);
        child = start(set);
    });
    send_a_byte(a, s);
    a.server(|| {
        a.note("program", wait_for(child));
        a.note("told", epoll_wait(set, 4, 5000).said());
        a.note("received", receive_text(s, 1));
    });
}

fn an_epoll_set_passed_to_a_program_tells_it(a: &Actor) {
    let s = a.stream();
    a_program_is_told(a, s, |set| pass_to_program(a, set, &[]));
}

fn an_epoll_set_passed_to_a_program_without_the_library_tells_it(a: &Actor) {
    let s = a.stream();
    a_program_is_told(a, s, |set| pass_to_program(a, set, &["PATH=/bin"]));
}

/// Set and stream are for programs started from here, too.
fn survive_exec(fds: &[Fd]) {
    for fd in fds {
        socket::fcntl(*fd, libc::F_SETFD, 0).value("F_SETFD");
    }
}

fn an_epoll_set_kept_across_exec_tells(a: &Actor) {
    let s = a.stream();
    a_program_is_told(a, s, |set| {
        survive_exec(&[set, s]);
        a.child("program", || {
            let program = own_binary();
            process::exec(&[&program, "--helper", "watch", &set.to_string()]).value("exec");
        })
    });
}

fn an_epoll_set_of_a_spawned_program_tells_it(a: &Actor) {
    let s = a.stream();
    a_program_is_told(a, s, |set| {
        survive_exec(&[set, s]);
        process::spawn(&[&own_binary(), "--helper", "watch", &set.to_string()], &[])
    });
}
