//! epoll sets as descriptors: copied, moved, passed on, and held by several processes.

use libc::{
    EPOLLET, EPOLLIN, EPOLLONESHOT, EPOLLOUT, EPOLLRDHUP, MSG_DONTWAIT, MSG_NOSIGNAL, POLLERR,
    POLLHUP, POLLIN, POLLRDHUP,
};

use super::{scenarios, Scenario, Settings};
use crate::actor::Actor;
use crate::calls::process::{self, wait_for};
use crate::calls::wait::{
    epoll_add, epoll_create, epoll_del, epoll_mod, epoll_wait, eventfd, poll,
};
use crate::calls::{io, other_ways, socket, Fd, Got};
use crate::helpers;
use crate::pattern::receive_text;

pub const ALL: &[Scenario] = scenarios![Settings::All;
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
    parent_and_child_have_one_registration,
    a_child_that_closes_a_stream_of_a_set_changes_nothing_there,
    a_registration_outlives_its_number_while_a_thread_reads_by_it,
    a_one_shot_that_has_told_is_found_by_a_copy_of_the_same_number,
    an_epoll_set_tells_a_child_of_a_stream_that_was_reset,
    a_set_is_put_into_another_after_its_edges_were_told,
    a_set_that_a_child_put_into_another_tells_there,
    a_one_shot_that_has_told_is_no_event_of_an_outer_set,
    a_registration_whose_maker_closed_its_copy_tells_the_other,
    a_registration_whose_maker_ended_tells_its_child,
    a_set_is_put_into_another_after_a_read_that_found_nothing,
    a_set_is_put_into_another_after_a_part_was_read,
    a_set_is_put_into_another_after_a_look_at_all,
    a_set_is_put_into_another_after_the_end_was_read,
    a_set_is_put_into_another_after_a_send_that_was_refused,
    a_shutdown_of_a_childs_is_told_once_more,
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

/// One of two processes that take turns.
struct Turns(Fd);

impl Turns {
    fn of_two() -> [Turns; 2] {
        let (one, other) = socket::socketpair(libc::SOCK_STREAM);
        [Turns(one), Turns(other)]
    }

    fn pass(&self) {
        io::send(self.0, b"x", 0).value("send");
    }

    fn take(&self) {
        receive_text(self.0, 1);
    }

    /// The other has one turn.
    fn give(&self) {
        self.pass();
        self.take();
    }
}

fn parent_and_child_have_one_registration(a: &Actor) {
    let s = a.stream();
    send_a_byte(a, s);
    a.server(|| {
        a.until_readable(s, 1);
        let set = watched(s);
        let [own, others] = Turns::of_two();
        let child = a.child("child", || {
            others.take();
            a.note("polled", poll(&[(s, POLLIN)], 5000).0);
            a.note("told as the parent asked", epoll_wait(set, 4, 5000).said());
            a.note("MOD", epoll_mod(set, s, EPOLLIN | EPOLLONESHOT, 9));
            others.give();
            a.note("once in all", epoll_wait(set, 4, 0).said());
            a.note("MOD", epoll_mod(set, s, EPOLLIN | EPOLLET, 10));
            others.give();
            a.note("the edge is the parent's", epoll_wait(set, 4, 0).said());
            a.note("ADD", epoll_add(set, s, EPOLLIN, 11));
            others.give();
            a.note("DEL", epoll_del(set, s));
            others.give();
            a.note("ADD", epoll_add(set, s, EPOLLIN, 13));
            a.note("told", epoll_wait(set, 4, 5000).said());
        });
        a.note("MOD", epoll_mod(set, s, EPOLLIN | EPOLLOUT | EPOLLRDHUP, 8));
        own.give();
        a.note("told as the child asked", epoll_wait(set, 4, 5000).said());
        own.give();
        a.note("an edge", epoll_wait(set, 4, 5000).said());
        a.note("DEL", epoll_del(set, s));
        own.give();
        a.note("MOD", epoll_mod(set, s, EPOLLIN, 12));
        a.note("told", epoll_wait(set, 4, 5000).said());
        own.give();
        a.note("MOD", epoll_mod(set, s, EPOLLIN, 12));
        a.note("ADD", epoll_add(set, s, EPOLLIN, 12));
        own.pass();
        a.note("child", wait_for(child));
        a.note("told", epoll_wait(set, 4, 5000).said());
        a.note("received", receive_text(s, 1));
    });
    a.meet();
}

fn a_registration_whose_maker_closed_its_copy_tells_the_other(a: &Actor) {
    let s = a.stream();
    a.at_once(
        || {
            for _ in 0..60 {
                io::send(s, b"question", 0).value("send");
                receive_text(s, 6);
            }
        },
        || {
            let set = epoll_create();
            let [own, others] = Turns::of_two();
            let child = a.child("child", || {
                a.note("ADD", epoll_add(set, s, EPOLLIN, 7));
                a.note("close", socket::close(s));
                others.give();
            });
            own.take();
            for round in 0..60 {
                a.note(format!("told {round}"), epoll_wait(set, 4, 5000).said());
                receive_text(s, 8);
                io::send(s, b"answer", 0).value("send");
            }
            own.pass();
            a.note("child", wait_for(child));
        },
    );
}

fn a_child_that_closes_a_stream_of_a_set_changes_nothing_there(a: &Actor) {
    let s = a.stream();
    let mut set = -1;
    a.server(|| {
        set = epoll_create();
        a.note("ADD", epoll_add(set, s, EPOLLIN | EPOLLONESHOT, 7));
        let child = a.child("child", || {
            a.note("close", socket::close(s));
        });
        a.note("child", wait_for(child));
    });
    note_an_arrival(a, s, set, "once");
    a.client(|| {
        socket::shutdown(s, libc::SHUT_WR);
    });
    a.server(|| {
        a.until_readable(s, 0);
        a.note("its end is not told", epoll_wait(set, 4, 50).said());
        a.note("MOD", epoll_mod(set, s, EPOLLIN | EPOLLRDHUP, 8));
        a.note("until it is asked for", epoll_wait(set, 4, 5000).said());
    });
}

fn a_registration_outlives_its_number_while_a_thread_reads_by_it(a: &Actor) {
    let s = a.stream();
    let (mut copy, mut set) = (-1, -1);
    let (own, others) = socket::socketpair(libc::SOCK_STREAM);
    if a.is_client() {
        for _ in 0..2 {
            a.meet();
            io::send(s, b"abc", 0);
        }
        return a.meet();
    }
    std::thread::scope(|scope| {
        copy = socket::dup(s).fd("dup");
        set = watched(s);
        a.thread(scope, "reader", || {
            io::send(others, &process::thread_id().to_ne_bytes(), 0).value("send");
            a.note("read", receive_text(s, 3));
        });
        let mut thread = [0; 4];
        io::recv(own, &mut thread, libc::MSG_WAITALL).value("recv");
        a.until_asleep(process::pid(), i32::from_ne_bytes(thread));
        a.note("close", socket::close(s));
        a.meet();
    });
    a.meet();
    a.until_readable(copy, 3);
    a.note("told of the old number", epoll_wait(set, 4, 5000).said());
    let outer = epoll_create();
    a.note("nested", epoll_add(outer, set, EPOLLIN, 9));
    a.note("told outside", epoll_wait(outer, 4, 5000).said());
    a.note("and inside", epoll_wait(set, 4, 5000).said());
    a.note("received", receive_text(copy, 3));
    a.note("nothing left outside", epoll_wait(outer, 4, 0).said());
    a.meet();
}

fn a_one_shot_that_has_told_is_found_by_a_copy_of_the_same_number(a: &Actor) {
    let s = a.stream();
    send_a_byte(a, s);
    a.server(|| {
        a.until_readable(s, 1);
        let set = epoll_create();
        let copy = socket::dup(s).fd("dup");
        a.note("ADD", epoll_add(set, copy, EPOLLIN | EPOLLONESHOT, 7));
        a.note("told", epoll_wait(set, 4, 5000).said());
        a.note("close", socket::close(copy));
        a.note("the same number", socket::dup2(s, copy).fd("dup2") == copy);
        a.note("ADD", epoll_add(set, copy, EPOLLIN, 8));
        a.note("told once", epoll_wait(set, 4, 0).said());
        a.note("MOD", epoll_mod(set, copy, EPOLLIN, 8));
        a.note("told", epoll_wait(set, 4, 5000).said());
        a.note("DEL", epoll_del(set, copy));
        a.note("nothing left", epoll_wait(set, 4, 0).said());
    });
}

fn an_epoll_set_tells_a_child_of_a_stream_that_was_reset(a: &Actor) {
    let s = a.stream();
    a.server(|| {
        io::send(s, &[7; 50_000], 0).value("send");
    });
    send_a_byte(a, s);
    a.client(|| {
        a.until_readable(s, 50_000);
        socket::close(s);
    });
    a.server(|| {
        a.until(s, POLLERR);
        let set = watched(s);
        let child = note_in_child(a, set, "child");
        a.note("child", wait_for(child));
        a.note("told", epoll_wait(set, 4, 5000).said());
    });
}

fn a_set_is_put_into_another_after_its_edges_were_told(a: &Actor) {
    // A stream that changes its carrier may be told of twice.
    let s = a.settled().stream();
    send_a_byte(a, s);
    let (mut set, mut other, mut outer) = (-1, -1, -1);
    a.server(|| {
        a.until_readable(s, 1);
        let event = eventfd(0);
        (set, other, outer) = (epoll_create(), epoll_create(), epoll_create());
        for (set, data) in [(set, 1), (other, 2)] {
            a.note("ADD", epoll_add(set, s, EPOLLIN | EPOLLET, data));
            a.note("told", epoll_wait(set, 4, 5000).said());
        }
        a.note("ADD an event", epoll_add(other, event, EPOLLIN | EPOLLET, 3));
        io::write(event, &1u64.to_ne_bytes()).value("write");
        a.note("nested", epoll_add(outer, set, EPOLLIN, 9));
        a.note("nested", epoll_add(outer, other, EPOLLIN, 10));
        a.note("the event is told outside", epoll_wait(outer, 4, 5000).said());
        a.note("and inside", epoll_wait(other, 4, 5000).said());
        a.note("nothing more outside", epoll_wait(outer, 4, 0).said());
        a.note("nor inside", epoll_wait(set, 4, 0).said());
    });
    send_a_byte(a, s);
    a.server(|| {
        a.until_readable(s, 2);
        a.note("told outside", epoll_wait(outer, 4, 5000).said());
        a.note("and inside", epoll_wait(set, 4, 5000).said());
        a.note("and inside", epoll_wait(other, 4, 5000).said());
        a.note("received", receive_text(s, 2));
    });
}

fn a_set_that_a_child_put_into_another_tells_there(a: &Actor) {
    let s = a.stream();
    a.at_once(
        || {
            for _ in 0..60 {
                io::send(s, b"question", 0).value("send");
                receive_text(s, 6);
            }
        },
        || {
            let (set, outer) = (epoll_create(), epoll_create());
            let child = a.child("child", || {
                a.note("nested", epoll_add(outer, set, EPOLLIN, 9));
            });
            a.note("child", wait_for(child));
            a.note("ADD", epoll_add(set, s, EPOLLIN, 7));
            for round in 0..60 {
                a.note(format!("told {round}"), epoll_wait(outer, 4, 5000).said());
                receive_text(s, 8);
                io::send(s, b"answer", 0).value("send");
            }
        },
    );
}

fn a_one_shot_that_has_told_is_no_event_of_an_outer_set(a: &Actor) {
    let s = a.stream();
    send_a_byte(a, s);
    a.server(|| {
        a.until_readable(s, 1);
        let (set, outer) = (epoll_create(), epoll_create());
        a.note("ADD", epoll_add(set, s, EPOLLIN | EPOLLONESHOT, 7));
        a.note("told", epoll_wait(set, 4, 5000).said());
        a.note("nested", epoll_add(outer, set, EPOLLIN, 9));
        let child = a.child("child", || {
            a.note("nothing outside", epoll_wait(outer, 4, 0).said());
            a.note("MOD", epoll_mod(set, s, EPOLLIN | EPOLLONESHOT, 8));
        });
        a.note("child", wait_for(child));
        a.note("told outside", epoll_wait(outer, 4, 5000).said());
        a.note("and inside", epoll_wait(set, 4, 5000).said());
        a.note("once", epoll_wait(outer, 4, 0).said());
    });
}

fn a_registration_whose_maker_ended_tells_its_child(a: &Actor) {
    let place = a.listen();
    a.at_once(
        || {
            let s = a.pair(&place);
            io::send(s, b"x", 0).value("send");
            receive_text(s, 1);
        },
        || {
            let (out, into) = socket::socketpair(libc::SOCK_STREAM);
            let first = a.child("first", || {
                let s = a.pair(&place);
                let set = epoll_create();
                let (ended, lives) = socket::socketpair(libc::SOCK_STREAM);
                process::fork(|| {
                    process::alarm(18);
                    socket::close(lives);
                    receive_text(ended, 1);
                    a.note("told", epoll_wait(set, 4, 5000).said());
                    a.note("received", receive_text(s, 1));
                    a.note("told again", epoll_wait(set, 4, 0).said());
                    io::send(s, b"y", 0).value("send");
                    0
                });
                a.note("ADD", epoll_add(set, s, EPOLLIN, 7));
                a.until_readable(s, 1);
            });
            socket::close(into);
            a.note("first", wait_for(first));
            receive_text(out, 1);
        },
    );
}

fn a_set_is_put_into_another_after_a_read_that_found_nothing(a: &Actor) {
    let s = a.settled().stream();
    a.server(|| {
        let (set, outer) = (epoll_create(), epoll_create());
        a.note("ADD", epoll_add(set, s, EPOLLIN | EPOLLOUT | EPOLLET, 7));
        a.note("told", epoll_wait(set, 4, 5000).said());
        a.note("nothing to read", io::recv(s, &mut [0; 8], MSG_DONTWAIT));
        let child = a.child("child", || {
            a.note("nested", epoll_add(outer, set, EPOLLIN, 9));
            a.note("nothing outside", epoll_wait(outer, 4, 0).said());
        });
        a.note("child", wait_for(child));
        a.note("nothing outside", epoll_wait(outer, 4, 0).said());
    });
}

/// Four bytes are told by a set, then `looks` at some of them leaves `left`.
fn put_a_set_into_another_after(a: &Actor, looks: fn(&Actor, Fd), left: usize) {
    let s = a.settled().stream();
    a.client(|| {
        io::send(s, b"abcd", 0).value("send");
    });
    a.server(|| {
        a.until_readable(s, 4);
        let (set, outer) = (epoll_create(), epoll_create());
        a.note("ADD", epoll_add(set, s, EPOLLIN | EPOLLET, 7));
        a.note("told", epoll_wait(set, 4, 5000).said());
        looks(a, s);
        a.note("nested", epoll_add(outer, set, EPOLLIN, 9));
        a.note("nothing outside", epoll_wait(outer, 4, 0).said());
        a.note("the rest", receive_text(s, left));
    });
}

fn a_set_is_put_into_another_after_a_part_was_read(a: &Actor) {
    put_a_set_into_another_after(a, |a, s| a.note("a part", receive_text(s, 2)), 2);
}

fn a_set_is_put_into_another_after_a_look_at_all(a: &Actor) {
    let look = |a: &Actor, s| a.note("a look", io::recv(s, &mut [0; 8], libc::MSG_PEEK));
    put_a_set_into_another_after(a, look, 4);
}

fn a_set_is_put_into_another_after_the_end_was_read(a: &Actor) {
    let s = a.settled().stream();
    a.client(|| {
        socket::shutdown(s, libc::SHUT_WR).value("shutdown");
    });
    a.server(|| {
        a.until(s, POLLRDHUP);
        let (set, outer) = (epoll_create(), epoll_create());
        a.note("ADD", epoll_add(set, s, EPOLLIN | EPOLLRDHUP | EPOLLET, 7));
        a.note("told", epoll_wait(set, 4, 5000).said());
        a.note("the end", io::recv(s, &mut [0; 8], MSG_DONTWAIT));
        a.note("nested", epoll_add(outer, set, EPOLLIN, 9));
        a.note("nothing outside", epoll_wait(outer, 4, 0).said());
    });
}

/// The client has closed with a byte unread, and the server is told of that by a set.
fn reset_and_told(a: &Actor, s: Fd) -> Fd {
    a.server(|| {
        io::send(s, b"x", 0).value("send");
    });
    a.client(|| {
        a.until_readable(s, 1);
        socket::close(s);
    });
    let mut set = -1;
    a.server(|| {
        a.until(s, POLLHUP);
        set = epoll_create();
        a.note("ADD", epoll_add(set, s, EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET, 7));
    });
    set
}

fn a_set_is_put_into_another_after_a_send_that_was_refused(a: &Actor) {
    let s = a.settled().stream();
    let set = reset_and_told(a, s);
    a.server(|| {
        let outer = epoll_create();
        a.note("told", epoll_wait(set, 4, 5000).said());
        a.note("refused", io::send(s, b"y", MSG_NOSIGNAL));
        a.note("nested", epoll_add(outer, set, EPOLLIN, 9));
        a.note("nothing outside", epoll_wait(outer, 4, 0).said());
    });
}

fn a_shutdown_of_a_childs_is_told_once_more(a: &Actor) {
    let s = a.settled().stream();
    let set = reset_and_told(a, s);
    a.server(|| {
        let (out, into) = socket::socketpair(libc::SOCK_STREAM);
        let child = a.child("child", || {
            receive_text(out, 1);
            a.note("shutdown", socket::shutdown(s, libc::SHUT_RDWR));
            a.note("told", epoll_wait(set, 4, 5000).said());
            a.note("once", epoll_wait(set, 4, 0).said());
        });
        a.note("told", epoll_wait(set, 4, 5000).said());
        io::write(into, b"x").value("write");
        a.note("child", wait_for(child));
    });
}
