//! Bytes that lie unread when their writer is gone or blocked, and are read by another process.

use super::{scenarios, Scenario, Settings};
use crate::actor::{Actor, Place};
use crate::calls::process::{self, wait_for, Pid};
use crate::calls::{io, socket, strange, wait, Fd};
use crate::helpers;
use crate::pattern::{bytes, receive, receive_to_end, send_all, write_all, Checker};

pub const ALL: &[Scenario] = scenarios![Settings::All;
    bytes_of_a_peer_that_closed_survive_exec,
    bytes_of_a_peer_that_closed_survive_exec_in_place,
    bytes_of_a_peer_that_closed_are_passed_on,
    bytes_of_a_peer_that_closed_are_read_by_a_child,
    bytes_of_a_peer_that_exited_survive_exec,
    bytes_of_a_peer_that_exited_are_read_by_a_child,
    bytes_of_a_killed_peer_are_read_by_a_child,
    bytes_of_a_killed_peer_are_not_missed_in_silence_by_a_program,
    bytes_of_a_killed_peer_are_not_missed_in_silence_by_who_is_passed_them,
    bytes_of_a_killed_peer_are_not_missed_in_silence_by_a_thread_with_its_own_descriptors,
    bytes_of_a_killed_peer_are_read_by_parent_and_child,
    bytes_of_a_killed_peer_come_behind_those_that_it_had_on_tcp,
    bytes_of_a_killed_peer_come_before_its_childs_where_the_reader_is_killed_too,
    bytes_of_a_peer_killed_after_a_fork_are_read_by_a_child,
    bytes_of_a_peer_stopped_and_killed_are_read_by_the_child_of_a_parent_that_closed,
    bytes_of_a_peer_stopped_and_killed_are_read_where_the_stream_has_left_its_ring,
    bytes_of_a_peer_stopped_and_killed_are_read_by_a_child_forked_after_that,
    bytes_of_a_peer_stopped_and_killed_are_read_by_a_child_that_has_used_the_stream_before,
    bytes_of_a_peer_stopped_and_killed_are_read_by_the_child_of_a_parent_that_was_killed,
    bytes_of_a_peer_stopped_and_killed_come_before_its_reset,
    bytes_in_a_ring_are_read_by_a_program_that_a_child_starts_by_vfork,
    bytes_of_a_peer_that_ends_as_its_reader_is_killed_are_read_by_that_ones_child,
    bytes_of_a_peer_that_closes_as_its_reader_is_killed_come_before_its_childs,
    a_death_that_left_bytes_unread_is_told_to_a_child,
    a_death_that_left_bytes_unread_is_told_to_the_child_of_a_parent_that_closed,
    a_death_that_left_bytes_unread_is_told_to_the_child_of_a_parent_that_was_killed,
    a_close_with_bytes_unread_by_the_last_of_two_resets_the_child_of_a_killed_peer,
    a_close_with_bytes_unread_by_the_last_of_two_resets_the_child_of_a_stopped_and_killed_peer,
    an_end_with_bytes_unread_of_the_last_of_two_resets_the_child_of_a_killed_peer,
    bytes_before_a_reset_survive_exec,
    bytes_between_a_fin_and_a_reset_survive_exec,
    bytes_before_a_reset_are_read_by_a_child,
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
                let s = not_read_yet(a, &place);
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

/// The stream with one that has written, with all its bytes unread.
fn not_read_yet(a: &Actor, place: &Place) -> Fd {
    let s = socket::accept(place.fd).fd("accept");
    a.warm_as_server(s);
    a.until_readable(s, LEFT);
    s
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

/// The client's stream is a process' that has written, and is killed when it is told to.
fn with_a_victim(a: &Actor, step: impl Fn(Fd, &dyn Fn())) {
    with_a_victim_of(a, |s, hit| step(s, &|| hit("kill")));
}

/// A process that has written, and does nothing more until it is killed.
fn writes_and_waits(a: &Actor, place: &Place) -> Pid {
    a.child("victim", || {
        let s = a.connect(place);
        a.warm_as_client(s);
        send_all(s, SEED, LEFT, 5000);
        socket::pipe_wait_for_ever(socket::pipe().0);
    })
}

/// As [`with_a_victim`], of one that can be told to `stop` before.
fn with_a_victim_of(a: &Actor, step: impl Fn(Fd, &dyn Fn(&str))) {
    let place = a.listen();
    let mut accepted = -1;
    let mut victim = -1;
    a.at_once(
        || {
            victim = writes_and_waits(a, &place);
        },
        || {
            accepted = not_read_yet(a, &place);
        },
    );
    a.at_once(|| stopped_and_killed_when_told(a, victim), || step(accepted, &|how| hit(a, how)));
}

fn stopped_and_killed_when_told(a: &Actor, victim: Pid) {
    if a.hear() == "stop" {
        process::kill(victim, libc::SIGSTOP).value("kill");
        // All of its threads: one that runs on might send some of its bytes again.
        assert!(process::wait_until_stopped(victim));
        a.tell("done");
        assert_eq!(a.hear(), "kill");
    }
    process::kill(victim, libc::SIGKILL);
    a.note("victim", wait_for(victim));
    a.tell("done");
}

/// Has the other side do that.
fn hit(a: &Actor, how: &str) {
    a.tell(how);
    assert_eq!(a.hear(), "done");
}

fn bytes_of_a_killed_peer_are_read_by_a_child(a: &Actor) {
    with_a_victim(a, |s, kill| {
        kill();
        read_by_a_child(a, s);
    });
}

/// A process has a stream alone, and bytes of a killed peer unread in its ring, which no other process can be given.
fn alone_with_bytes_of_a_killed_peer(a: &Actor, step: impl FnOnce(Fd)) {
    let place = a.listen();
    a.at_once(
        || {
            let victim = writes_and_waits(a, &place);
            assert_eq!(a.hear(), "kill");
            process::kill(victim, libc::SIGKILL);
            a.note("victim", wait_for(victim));
            a.tell("done");
        },
        || {
            let child = a.child("server", || {
                let s = not_read_yet(a, &place);
                a.tell("kill");
                assert_eq!(a.hear(), "done");
                a.until(s, libc::POLLRDHUP);
                step(s);
            });
            // Whole, or in their place a reset: an end would hide that they are lost.
            let is_told = matches!(wait_for(child).as_str(), "exited 0" | "exited 6");
            a.note("the next one has them or is told", is_told);
        },
    );
}

fn bytes_of_a_killed_peer_are_not_missed_in_silence_by_a_program(a: &Actor) {
    alone_with_bytes_of_a_killed_peer(a, |s| helpers::become_checker(s, SEED, 0));
}

fn bytes_of_a_killed_peer_are_not_missed_in_silence_by_who_is_passed_them(a: &Actor) {
    // Made before the stream, so that it has no part of it.
    let (one, other) = socket::socketpair(libc::SOCK_STREAM);
    alone_with_bytes_of_a_killed_peer(a, |s| {
        io::pass_descriptor(one, s);
        socket::close(s);
        let passed = io::take_descriptor(other).fd("a passed descriptor");
        process::exit_now(helpers::check(passed, SEED, 0));
    });
}

fn bytes_of_a_killed_peer_are_not_missed_in_silence_by_a_thread_with_its_own_descriptors(
    a: &Actor,
) {
    alone_with_bytes_of_a_killed_peer(a, |s| {
        strange::unshare_files().value("unshare");
        process::exit_now(helpers::check(s, SEED, 0));
    });
}

/// Sends a part of the pattern.
fn send_part(s: Fd, from: usize, length: usize) {
    for piece in bytes(SEED, from as u64, length).chunks(5000) {
        io::send(s, piece, 0).value("send");
    }
}

/// A process that writes, has a child with the stream as well, and is killed once that is said. The child sends some more on a
/// byte that comes by the pipe.
fn writes_and_leaves_an_heir(place: &Place, a: &Actor, first: usize, go_on: (Fd, Fd)) -> Pid {
    let (written, writes) = socket::pipe();
    let victim = a.child("victim", || {
        let s = a.connect(place);
        if first > 0 {
            io::send(s, b"?", 0).value("send");
            send_part(s, 0, first);
            // Time to come to a ring.
            wait::poll(&[], 100);
        } else {
            a.warm_as_client(s);
        }
        send_part(s, first, LEFT - first);
        a.child("heir", || {
            process::outlive_parent();
            io::write(writes, b"!").value("a word");
            io::read(go_on.0, &mut [0]);
            send_part(s, LEFT, FIRST);
        });
        socket::pipe_wait_for_ever(socket::pipe().0);
    });
    io::read(written, &mut [0]);
    victim
}

fn bytes_of_a_killed_peer_come_behind_those_that_it_had_on_tcp(a: &Actor) {
    let place = a.listen();
    let mut s = -1;
    a.at_once(
        || {
            let go_on = socket::pipe();
            let victim = writes_and_leaves_an_heir(&place, a, FIRST, go_on);
            a.tell("written");
            stopped_and_killed_when_told(a, victim);
            io::write(go_on.1, b"!").value("a word");
        },
        || {
            s = socket::accept(place.fd).fd("accept");
            a.until_readable(s, 1 + FIRST);
            a.note("the first", io::recv(s, &mut [0], 0));
            assert_eq!(a.hear(), "written");
            hit(a, "kill");
        },
    );
    a.server(|| {
        let child = a.child("reader", || a.note("received", receive_to_end(s, SEED)));
        socket::close(s);
        a.note("reader", wait_for(child));
    });
}

fn bytes_of_a_killed_peer_come_before_its_childs_where_the_reader_is_killed_too(a: &Actor) {
    let place = a.listen();
    let (used, uses) = socket::pipe();
    let (out, into) = socket::pipe();
    let (ended, ends) = socket::pipe();
    a.at_once(
        || {
            let go_on = socket::pipe();
            let victim = writes_and_leaves_an_heir(&place, a, 0, go_on);
            stopped_and_killed_when_told(a, victim);
            assert_eq!(a.hear(), "go on");
            io::write(go_on.1, b"!").value("a word");
        },
        || {
            let owner = a.child("owner", || {
                let s = not_read_yet(a, &place);
                a.child("reader", || {
                    process::outlive_parent();
                    io::write(uses, b"!").value("a word");
                    io::read(out, &mut [0]);
                    a.note("received", receive_to_end(s, SEED));
                    io::write(ends, b"!").value("a word");
                });
                socket::pipe_wait_for_ever(socket::pipe().0);
            });
            io::read(used, &mut [0]);
            process::kill(owner, libc::SIGKILL).value("kill");
            hit(a, "kill");
            a.note("owner", wait_for(owner));
            io::write(into, b"!").value("a word");
            // The reader comes first.
            wait::poll(&[], 100);
            a.tell("go on");
            io::read(ended, &mut [0]);
        },
    );
}

/// By turns: each goes on where the other stopped, and both find the end.
fn bytes_of_a_killed_peer_are_read_by_parent_and_child(a: &Actor) {
    with_a_victim(a, |s, kill| {
        kill();
        let take = |what: &str, from: usize, flags: i32| {
            let mut room = vec![0; FIRST];
            let mut checker = Checker::starting_at(SEED, from as u64);
            let got = io::recv(s, &mut room, libc::MSG_WAITALL | flags).count();
            checker.take(&room[..got.unwrap_or(0)]);
            a.note(what, checker.verdict());
        };
        let child = a.child("reader", || {
            take("peeked", 0, libc::MSG_PEEK);
            take("taken", 0, 0);
            a.note("waiting", socket::ioctl(s, libc::FIONREAD, -1).1);
        });
        a.note("reader", wait_for(child));
        a.note_mask("poll", s, libc::POLLIN | libc::POLLOUT | libc::POLLRDHUP);
        take("by the parent", FIRST, 0);
        let child = a.child("last", || process::exit_now(helpers::check(s, SEED, 2 * FIRST)));
        a.note("last", wait_for(child));
        a.note("the end", io::recv(s, &mut [0; 1], 0));
        socket::close(s);
    });
}

/// A child that has the stream reads it when it is told to, which `act` is given to do.
fn read_on_a_word(a: &Actor, s: Fd, act: impl FnOnce(&dyn Fn())) {
    let (out, into) = socket::pipe();
    let child = a.child("reader", || {
        io::read(out, &mut [0; 1]);
        process::exit_now(helpers::check(s, SEED, 0));
    });
    act(&|| {
        io::write(into, b"!");
        a.note("reader", wait_for(child));
    });
}

fn bytes_of_a_peer_killed_after_a_fork_are_read_by_a_child(a: &Actor) {
    with_a_victim(a, |s, kill| {
        read_on_a_word(a, s, |read| {
            kill();
            socket::close(s);
            read();
        });
    });
}

/// The peer does not answer when the parent leaves its ring, and is dead when the child comes to it.
fn bytes_of_a_peer_stopped_and_killed_are_read_by_the_child_of_a_parent_that_closed(a: &Actor) {
    with_a_victim_of(a, |s, hit| {
        read_on_a_word(a, s, |read| {
            hit("stop");
            socket::close(s);
            hit("kill");
            read();
        });
    });
}

/// The peer does not answer when the stream leaves its ring in the middle of its life, and never will.
fn bytes_of_a_peer_stopped_and_killed_are_read_where_the_stream_has_left_its_ring(a: &Actor) {
    with_a_victim_of(a, |s, hit| {
        hit("stop");
        a.note("set", socket::set_int(s, libc::SOL_SOCKET, libc::SO_PEEK_OFF, 0));
        hit("kill");
        a.note("received", receive_to_end(s, SEED));
        socket::close(s);
    });
}

/// As before, and its parent has closed it when the peer is killed.
fn bytes_of_a_peer_stopped_and_killed_are_read_by_a_child_forked_after_that(a: &Actor) {
    with_a_victim_of(a, |s, hit| {
        hit("stop");
        a.note("set", socket::set_int(s, libc::SOL_SOCKET, libc::SO_PEEK_OFF, 0));
        read_on_a_word(a, s, |read| {
            socket::close(s);
            hit("kill");
            read();
        });
    });
}

/// As the child came to it, the peer did not answer.
fn bytes_of_a_peer_stopped_and_killed_are_read_by_a_child_that_has_used_the_stream_before(
    a: &Actor,
) {
    with_a_victim_of(a, |s, hit| {
        let (used, uses) = socket::pipe();
        let (out, into) = socket::pipe();
        hit("stop");
        let child = a.child("reader", || {
            io::recv(s, &mut [0], libc::MSG_PEEK | libc::MSG_DONTWAIT);
            io::write(uses, b"!");
            io::read(out, &mut [0; 1]);
            a.note("received", receive_to_end(s, SEED));
        });
        io::read(used, &mut [0; 1]);
        hit("kill");
        io::write(into, b"!");
        a.note("reader", wait_for(child));
        socket::close(s);
    });
}

/// Its parent had the ring to the last, and neither of them was asked.
fn bytes_of_a_peer_stopped_and_killed_are_read_by_the_child_of_a_parent_that_was_killed(a: &Actor) {
    let place = a.listen();
    let (used, uses) = socket::pipe();
    let (out, into) = socket::pipe();
    let (ended, ends) = socket::pipe();
    let owns = || {
        let s = not_read_yet(a, &place);
        a.child("reader", || {
            process::outlive_parent();
            io::write(uses, b"!").value("a word");
            io::read(out, &mut [0]);
            io::recv(s, &mut [0], libc::MSG_PEEK | libc::MSG_DONTWAIT);
            io::write(uses, b"!").value("a word");
            io::read(out, &mut [0]);
            a.note("received", receive_to_end(s, SEED));
            io::write(ends, b"!").value("a word");
        });
        socket::pipe_wait_for_ever(socket::pipe().0);
    };
    a.at_once(
        || {
            let victim = writes_and_waits(a, &place);
            stopped_and_killed_when_told(a, victim);
        },
        || {
            let owner = a.child("owner", owns);
            io::read(used, &mut [0]);
            hit(a, "stop");
            process::kill(owner, libc::SIGKILL).value("kill");
            a.note("owner", wait_for(owner));
            io::write(into, b"!").value("a word");
            io::read(used, &mut [0]);
            hit(a, "kill");
            io::write(into, b"!").value("a word");
            io::read(ended, &mut [0]);
        },
    );
}

/// A thread sleeps for them in a receive, or is about to, as the peer is killed with bytes of this side unread.
fn bytes_of_a_peer_stopped_and_killed_come_before_its_reset(a: &Actor) {
    with_a_victim_of(a, |s, hit| {
        hit("stop");
        a.note("set", socket::set_int(s, libc::SOL_SOCKET, libc::SO_PEEK_OFF, 0));
        io::send(s, b"never read", 0).value("send");
        let reader = std::thread::spawn(move || receive_to_end(s, SEED));
        hit("kill");
        a.note("received", reader.join().expect("a thread"));
        socket::close(s);
    });
}

/// The parent has them, and the child, which has not used the stream, knows of them by its parent alone.
fn bytes_in_a_ring_are_read_by_a_program_that_a_child_starts_by_vfork(a: &Actor) {
    let s = written_and_closed(a);
    a.server(|| {
        let child = a.child("starter", || {
            a.note("program", wait_for(helpers::start_checker_by_vfork(s, SEED)));
        });
        a.note("starter", wait_for(child));
        socket::close(s);
    });
}

/// A victim, which `reads`, and a child of it, both of which are waited for.
fn outlived_by_a_child(a: &Actor, reads: impl FnOnce()) {
    let (out, into) = socket::pipe();
    let victim = a.child("victim", reads);
    socket::close(into);
    a.note("victim", wait_for(victim));
    // The child has it, too.
    io::read(out, &mut [0]);
}

/// The writer of so many streams that its library takes a while over them closes them in the moment in which their
/// reader is killed, a child of which reads on. It ends then, or a child of its own `goes_on`.
fn closed_as_their_reader_is_killed(a: &Actor, goes_on: bool) {
    const STREAMS: usize = 200;
    let place = a.listen();
    let reads = || {
        let streams: Vec<Fd> = (0..STREAMS).map(|_| a.connect(&place)).collect();
        streams.iter().for_each(|s| a.warm_as_client(*s));
        streams.iter().for_each(|s| a.until_readable(*s, LEFT));
        let (gone, stays) = socket::pipe();
        let (begun, begins) = socket::pipe();
        a.child("reader", || {
            process::outlive_parent();
            io::write(begins, b"!").value("a word");
            socket::close(stays);
            io::read(gone, &mut [0]);
            for s in streams.iter().rev() {
                io::recv(*s, &mut [0], libc::MSG_PEEK | libc::MSG_DONTWAIT);
            }
            let mut told: Vec<String> = streams.iter().map(|s| receive_to_end(*s, SEED)).collect();
            told.sort();
            told.dedup();
            a.note("received", told.join("; "));
        });
        io::read(begun, &mut [0]);
        a.tell(&process::pid().to_string());
        socket::pipe_wait_for_ever(gone);
    };
    let writes = || {
        let streams: Vec<Fd> =
            (0..STREAMS).map(|_| socket::accept(place.fd).fd("accept")).collect();
        streams.iter().for_each(|s| a.warm_as_server(*s));
        for s in &streams {
            assert_eq!(send_all(*s, SEED, LEFT, LEFT), format!("{LEFT} bytes sent"));
        }
        let victim = a.hear().parse().expect("a process");
        let (gone, stays) = socket::pipe();
        let behind = || {
            socket::close(stays);
            io::read(gone, &mut [0]);
            for s in &streams {
                write_all(*s, &bytes(SEED, LEFT as u64, FIRST)).expect("room");
            }
        };
        let child = goes_on.then(|| a.child("behind", behind));
        process::kill(victim, libc::SIGKILL).value("kill");
        streams.iter().rev().for_each(|s| _ = socket::close(*s));
        socket::close(stays);
        if let Some(child) = child {
            a.note("behind", wait_for(child));
        }
    };
    a.at_once(
        || outlived_by_a_child(a, reads),
        || a.note("writer", wait_for(a.child("writer", writes))),
    );
}

fn bytes_of_a_peer_that_ends_as_its_reader_is_killed_are_read_by_that_ones_child(a: &Actor) {
    closed_as_their_reader_is_killed(a, false);
}

fn bytes_of_a_peer_that_closes_as_its_reader_is_killed_come_before_its_childs(a: &Actor) {
    closed_as_their_reader_is_killed(a, true);
}

/// As [`with_a_victim`], of one that has bytes of this side unread, and whose end is a reset therefore.
fn with_a_careless_victim(a: &Actor, step: impl Fn(Fd, &dyn Fn())) {
    with_a_victim(a, |s, kill| {
        io::send(s, b"never read", 0).value("send");
        step(s, kill);
    });
}

fn a_death_that_left_bytes_unread_is_told_to_a_child(a: &Actor) {
    with_a_careless_victim(a, |s, kill| {
        read_on_a_word(a, s, |read| {
            kill();
            read();
            socket::close(s);
        });
    });
}

fn a_death_that_left_bytes_unread_is_told_to_the_child_of_a_parent_that_closed(a: &Actor) {
    with_a_careless_victim(a, |s, kill| {
        kill();
        let child = a.child("reader", || process::exit_now(helpers::check(s, SEED, 0)));
        socket::close(s);
        a.note("reader", wait_for(child));
    });
}

/// A process with a child that has its stream, and LEFT bytes sent: what that child is told once its parent was killed,
/// by `act` of the other end, which is at a place.
fn told_to_the_child_of_one_that_is_killed(a: &Actor, act: impl Fn(&Place)) {
    let place = a.listen();
    let reads = || {
        let s = a.connect(&place);
        a.warm_as_client(s);
        send_all(s, SEED, LEFT, LEFT);
        let (gone, stays) = socket::pipe();
        let (begun, begins) = socket::pipe();
        a.child("reader", || {
            process::outlive_parent();
            io::write(begins, b"!").value("a word");
            socket::close(stays);
            io::read(gone, &mut [0]);
            a.note("received", receive_to_end(s, SEED));
            a.note("again", io::recv(s, &mut [0], 0));
        });
        io::read(begun, &mut [0]);
        a.tell(&process::pid().to_string());
        socket::pipe_wait_for_ever(gone);
    };
    a.at_once(|| outlived_by_a_child(a, reads), || act(&place));
}

/// How that one is sent a signal, once it is as far.
fn hit_the_one_told_of(a: &Actor) -> impl Fn(i32) {
    let victim = a.hear().parse().expect("a process");
    move |signal| _ = process::kill(victim, signal).value("kill")
}

/// Whoever is the other end dies, with all of that unread, while the parent is stopped.
fn a_death_that_left_bytes_unread_is_told_to_the_child_of_a_parent_that_was_killed(a: &Actor) {
    told_to_the_child_of_one_that_is_killed(a, |place| {
        let (ready, is_ready) = socket::pipe();
        let careless = a.child("careless", || {
            let s = not_read_yet(a, place);
            send_all(s, SEED, FIRST, FIRST);
            io::write(is_ready, b"!").value("a word");
            socket::pipe_wait_for_ever(socket::pipe().0);
        });
        let hit = hit_the_one_told_of(a);
        io::read(ready, &mut [0]);
        hit(libc::SIGSTOP);
        process::kill(careless, libc::SIGKILL).value("kill");
        a.note("careless", wait_for(careless));
        hit(libc::SIGKILL);
    });
}

/// A child has the stream as well, and gives it up by `end` when this process has.
fn given_up_by_two(a: &Actor, s: Fd, end: impl Fn()) {
    let (out, into) = socket::pipe();
    let child = a.child("last", || {
        io::read(out, &mut [0]);
        end();
    });
    socket::close(s);
    io::write(into, b"!");
    a.note("last", wait_for(child));
}

fn a_close_with_bytes_unread_by_the_last_of_two_resets_the_child_of_a_killed_peer(a: &Actor) {
    told_to_the_child_of_one_that_is_killed(a, |place| {
        let s = not_read_yet(a, place);
        let hit = hit_the_one_told_of(a);
        hit(libc::SIGKILL);
        given_up_by_two(a, s, || _ = socket::close(s));
    });
}

fn a_close_with_bytes_unread_by_the_last_of_two_resets_the_child_of_a_stopped_and_killed_peer(
    a: &Actor,
) {
    told_to_the_child_of_one_that_is_killed(a, |place| {
        let s = not_read_yet(a, place);
        let hit = hit_the_one_told_of(a);
        hit(libc::SIGSTOP);
        given_up_by_two(a, s, || _ = socket::close(s));
        hit(libc::SIGKILL);
    });
}

fn an_end_with_bytes_unread_of_the_last_of_two_resets_the_child_of_a_killed_peer(a: &Actor) {
    told_to_the_child_of_one_that_is_killed(a, |place| {
        let s = not_read_yet(a, place);
        let hit = hit_the_one_told_of(a);
        hit(libc::SIGKILL);
        given_up_by_two(a, s, || process::exit_now(0));
    });
}

/// What has arrived, and then a reset that was asked for.
fn reset_behind(a: &Actor) -> Fd {
    let s = a.stream();
    a.client(|| a.note("sent", send_all(s, SEED, LEFT, 5000)));
    a.server(|| a.until_readable(s, LEFT));
    a.client(|| {
        a.note("linger", socket::set_linger(s, true, 0));
        a.note("close", socket::close(s));
    });
    a.server(|| a.until(s, libc::POLLERR));
    s
}

fn bytes_before_a_reset_survive_exec(a: &Actor) {
    let s = reset_behind(a);
    a.server(|| {
        let child = a.child("program", || helpers::become_checker(s, SEED, 0));
        socket::close(s);
        a.note("program", wait_for(child));
    });
}

fn bytes_between_a_fin_and_a_reset_survive_exec(a: &Actor) {
    let s = a.stream();
    a.server(|| {
        io::send(s, b"never read", 0).value("send");
    });
    a.client(|| {
        a.until_readable(s, 10);
        a.note("sent", send_all(s, SEED, LEFT, 5000));
        a.note("shutdown", socket::shutdown(s, libc::SHUT_WR));
    });
    a.server(|| a.until_readable(s, LEFT));
    a.client(|| a.note("close", socket::close(s)));
    a.server(|| {
        let child = a.child("program", || helpers::become_checker(s, SEED, 0));
        socket::close(s);
        a.note("program", wait_for(child));
    });
}

fn bytes_before_a_reset_are_read_by_a_child(a: &Actor) {
    let s = reset_behind(a);
    a.server(|| {
        let child = a.child("reader", || a.note("received", receive_to_end(s, SEED)));
        socket::close(s);
        a.note("reader", wait_for(child));
    });
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
