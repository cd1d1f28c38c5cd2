//! epoll sets as descriptors: copied, moved, passed on, and held by several processes.

use libc::{EPOLLET, EPOLLIN, EPOLLONESHOT, POLLIN};

use super::{scenarios, Scenario, V4};
use crate::actor::Actor;
use crate::calls::process::{self, wait_for};
use crate::calls::wait::{epoll_add, epoll_create, epoll_del, epoll_mod, epoll_wait, poll};
use crate::calls::{io, other_ways, socket, Fd, Got};
use crate::helpers;
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
    an_epoll_set_tells_a_child_of_a_stream_added_after_the_fork,
    an_epoll_set_tells_children_of_every_kind,
    an_epoll_set_that_a_child_ignores_goes_on,
    an_epoll_set_that_a_child_closes_goes_on,
    an_epoll_set_that_its_parent_closed_tells_a_child,
    an_epoll_set_that_was_moved_tells_a_child,
    an_epoll_set_is_taken_on_by_a_daemon,
    a_child_that_polls_an_epoll_set_is_told,
    a_child_passes_an_epoll_set_on,
];

/// A set that holds the stream.
fn watched(s: Fd) -> Fd {
    let set = epoll_create();
    epoll_add(set, s, EPOLLIN, 7).value("EPOLL_CTL_ADD");
    set
}

type Copying = fn(Fd) -> Got;

/// Ways to another number.
const COPIES: &[(&str, Copying)] = &[
    ("dup", socket::dup),
    ("dup2", |set| socket::dup2(set, 300)),
    ("dup3", |set| socket::dup3(set, 301, libc::O_CLOEXEC)),
    ("F_DUPFD", |set| socket::fcntl(set, libc::F_DUPFD, 310)),
    ("F_DUPFD_CLOEXEC", |set| socket::fcntl(set, libc::F_DUPFD_CLOEXEC, 320)),
];

/// The set under another number; the old one is closed.
fn moved(set: Fd, how: Copying) -> Fd {
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
        let program = helpers::program();
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
            let program = helpers::program();
            process::exec(&[&program, "--helper", "watch", &set.to_string()]).value("exec");
        })
    });
}

fn an_epoll_set_of_a_spawned_program_tells_it(a: &Actor) {
    let s = a.stream();
    a_program_is_told(a, s, |set| {
        survive_exec(&[set, s]);
        process::spawn(&[&helpers::program(), "--helper", "watch", &set.to_string()], &[])
    });
}

/// Says what a set tells in a child, which reads nothing.
fn note_in_child(a: &Actor, set: Fd, name: &str) -> process::Pid {
    a.child(name, || {
        a.note("told", epoll_wait(set, 4, 5000).said());
        a.note("told again", epoll_wait(set, 4, 0).said());
    })
}

fn an_epoll_set_tells_a_child_of_a_stream_added_after_the_fork(a: &Actor) {
    let s = a.stream();
    let (mut set, mut child) = (-1, -1);
    a.server(|| {
        let (out, into) = socket::pipe();
        set = epoll_create();
        child = a.child("child", || {
            receive_text(out, 1);
            for round in 0..3 {
                a.note(format!("told {round}"), epoll_wait(set, 4, 5000).said());
            }
        });
        a.note("ADD", epoll_add(set, s, EPOLLIN, 7));
        io::write(into, b"x").value("write");
    });
    send_a_byte(a, s);
    a.server(|| {
        a.note("child", wait_for(child));
        a.note("told", epoll_wait(set, 4, 5000).said());
        a.note("received", receive_text(s, 1));
    });
    note_an_arrival(a, s, set, "afterwards");
}

fn an_epoll_set_tells_children_of_every_kind(a: &Actor) {
    let s = a.stream();
    let mut set = -1;
    a.server(|| set = watched(s));
    send_a_byte(a, s);
    a.server(|| {
        let child = note_in_child(a, set, "first child");
        a.note("first child", wait_for(child));
        let child = a.child("second child", || {
            let grandchild = note_in_child(a, set, "grandchild");
            a.note("grandchild", wait_for(grandchild));
            a.note("told", epoll_wait(set, 4, 5000).said());
            a.note("MOD", epoll_mod(set, s, EPOLLIN, 9));
        });
        a.note("second child", wait_for(child));
        a.note("told", epoll_wait(set, 4, 5000).said());
        a.note("received", receive_text(s, 1));
    });
    note_an_arrival(a, s, set, "afterwards");
}

/// A child that does `step`, and then lives until the end of the pipe.
fn beside_a_child(a: &Actor, step: impl FnOnce(Fd)) {
    let s = a.stream();
    let (mut set, mut child, mut end) = (-1, -1, -1);
    a.server(|| {
        set = watched(s);
        let (out, into) = socket::pipe();
        child = a.child("child", || {
            step(set);
            socket::close(into);
            receive_text(out, 1);
        });
        end = into;
    });
    for round in 0..3 {
        note_an_arrival(a, s, set, &format!("round {round}"));
    }
    let later = a.stream();
    a.server(|| a.note("ADD", epoll_add(set, later, EPOLLIN, 8)));
    for round in 0..3 {
        note_an_arrival(a, later, set, &format!("added later, round {round}"));
    }
    a.server(|| {
        socket::close(end);
        a.note("child", wait_for(child));
    });
    note_an_arrival(a, s, set, "afterwards");
    note_an_arrival(a, later, set, "added later, afterwards");
}

fn an_epoll_set_that_a_child_ignores_goes_on(a: &Actor) {
    beside_a_child(a, |_| {});
}

fn an_epoll_set_that_a_child_closes_goes_on(a: &Actor) {
    beside_a_child(a, |set| a.note("close", socket::close(set)));
}

fn an_epoll_set_that_its_parent_closed_tells_a_child(a: &Actor) {
    let s = a.stream();
    let mut child = -1;
    a.server(|| {
        let (out, into) = socket::pipe();
        let set = epoll_create();
        child = a.child("child", || {
            receive_text(out, 1);
            a.note("told", epoll_wait(set, 4, 5000).said());
            a.note("received", receive_text(s, 1));
            a.note("told again", epoll_wait(set, 4, 0).said());
        });
        a.note("ADD", epoll_add(set, s, EPOLLIN, 7));
        a.note("close", socket::close(set));
        io::write(into, b"x").value("write");
    });
    send_a_byte(a, s);
    a.server(|| a.note("child", wait_for(child)));
}

fn an_epoll_set_that_was_moved_tells_a_child(a: &Actor) {
    let s = a.stream();
    let mut set = -1;
    a.server(|| set = moved(watched(s), socket::dup));
    send_a_byte(a, s);
    a.server(|| {
        let child = a.child("child", || {
            let own = moved(set, |set| socket::fcntl(set, libc::F_DUPFD, 300));
            a.note("told", epoll_wait(own, 4, 5000).said());
        });
        a.note("child", wait_for(child));
        a.note("told", epoll_wait(set, 4, 5000).said());
    });
}

fn an_epoll_set_is_taken_on_by_a_daemon(a: &Actor) {
    let s = a.stream();
    a.at_once(
        || {
            for _ in 0..20 {
                io::send(s, b"question", 0).value("send");
                receive_text(s, 6);
            }
        },
        || {
            let (out, into) = socket::pipe();
            let first = a.child("first", || {
                let set = watched(s);
                process::setsid().value("setsid");
                process::fork(|| {
                    process::alarm(18);
                    socket::close(out);
                    for round in 0..20 {
                        let told = epoll_wait(set, 4, 5000).said();
                        a.note(format!("told {round}"), told);
                        receive_text(s, 8);
                        io::send(s, b"answer", 0).value("send");
                    }
                    0
                });
            });
            socket::close(into);
            a.note("first", wait_for(first));
            receive_text(out, 1);
        },
    );
}

fn a_child_that_polls_an_epoll_set_is_told(a: &Actor) {
    let s = a.stream();
    let mut set = -1;
    a.server(|| set = watched(s));
    send_a_byte(a, s);
    a.server(|| {
        let child = a.child("child", || {
            a.note("polled", poll(&[(set, POLLIN)], 5000).0);
            a.note("told", epoll_wait(set, 4, 5000).said());
        });
        a.note("child", wait_for(child));
        a.note("told", epoll_wait(set, 4, 5000).said());
    });
}

fn a_child_passes_an_epoll_set_on(a: &Actor) {
    let s = a.stream();
    let (mut set, mut child) = (-1, -1);
    a.server(|| {
        set = watched(s);
        child = a.child("child", || {
            let program = pass_to_program(a, set, &["PATH=/bin"]);
            a.note("program", wait_for(program));
        });
    });
    send_a_byte(a, s);
    a.server(|| {
        a.note("child", wait_for(child));
        a.note("told", epoll_wait(set, 4, 5000).said());
    });
}
