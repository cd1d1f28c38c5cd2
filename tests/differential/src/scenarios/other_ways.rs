//! Other ways to the kernel than the socket functions: each finds the bytes in their order.

use super::{scenarios, Scenario, Settings};
use crate::actor::Actor;
use crate::calls::{io, other_ways, process, socket, wait, Got};
use crate::pattern::receive_text;

pub const ALL: &[Scenario] = scenarios![Settings::All;
    asynchronous_calls_find_their_place,
    standard_output_on_a_stream_keeps_its_place,
    standard_input_on_a_stream_reads_a_line,
    standard_input_reopened_ends_its_stream,
    a_bare_fork_shares_the_stream,
    a_fork_by_number_shares_the_stream,
    a_child_with_a_terminal_has_the_stream,
    a_shell_in_words_reads_the_stream,
    vectors_at_the_streams_own_place_carry,
    a_descriptor_taken_by_pidfd_is_the_same_stream,
    a_descriptor_taken_by_another_process_is_the_same_stream,
    a_look_at_a_set_tells_rings_and_pipes,
];

fn asynchronous_calls_find_their_place(a: &Actor) {
    let s = a.stream();
    a.client(|| {
        a.note("asynchronously", other_ways::aio_write(s, b"first, "));
        a.note("then", io::write(s, b"then"));
    });
    a.server(|| {
        a.note("received", receive_text(s, 11));
        a.note("answer", io::write(s, b"answer"));
    });
    a.client(|| {
        a.until_readable(s, 6);
        let mut room = [0; 6];
        let got = other_ways::aio_read(s, &mut room);
        a.note("answered", format!("{got} {}", String::from_utf8_lossy(&room)));
    });
}

fn standard_output_on_a_stream_keeps_its_place(a: &Actor) {
    let s = a.stream();
    a.client(|| {
        let child = a.child("printer", || {
            socket::dup2(s, 1).value("dup2");
            other_ways::print("printed");
            io::write(s, b", written");
            other_ways::print(", printed");
        });
        a.note("child", process::wait_for(child));
    });
    a.server(|| a.note("received", receive_text(s, 25)));
}

fn standard_input_on_a_stream_reads_a_line(a: &Actor) {
    let s = a.stream();
    a.client(|| a.note("lines", io::write(s, b"one\ntwo\n")));
    a.server(|| {
        a.until_readable(s, 8);
        let child = a.child("scanner", || {
            socket::dup2(s, 0).value("dup2");
            a.note("a line", other_ways::scan());
            a.note("another", other_ways::scan());
        });
        a.note("child", process::wait_for(child));
    });
}

fn standard_input_reopened_ends_its_stream(a: &Actor) {
    let s = a.stream();
    a.at_once(
        || a.note("the end", receive_text(s, 1)),
        || {
            let child = a.child("reopener", || {
                socket::dup2(s, 0).value("dup2");
                socket::close(s);
                a.note("reopened", other_ways::reopen_standard_input());
                a.note("it reads", io::read(0, &mut [0; 4]));
            });
            a.note("close", socket::close(s));
            a.note("child", process::wait_for(child));
        },
    );
}

/// A child reads one word and answers; its parent reads the next.
fn share(a: &Actor, fork: impl FnOnce(&mut dyn FnMut() -> i32) -> libc::pid_t) {
    let s = a.stream();
    a.at_once(
        || {
            a.note("to the child", io::write(s, b"one"));
            a.note("its answer", receive_text(s, 3));
            a.note("to the parent", io::write(s, b"two"));
            a.note("its answer", receive_text(s, 3));
        },
        || {
            let answer = |word: &str| {
                i32::from(receive_text(s, 3) != word || io::write(s, b"yes").count() != Some(3))
            };
            let child = fork(&mut || answer("one"));
            a.note("child", process::wait_for(child));
            a.note("parent", answer("two"));
        },
    );
}

fn a_bare_fork_shares_the_stream(a: &Actor) {
    share(a, |child| other_ways::bare_fork(child));
}

fn a_fork_by_number_shares_the_stream(a: &Actor) {
    share(a, |child| other_ways::fork_by_number(child));
}

fn a_child_with_a_terminal_has_the_stream(a: &Actor) {
    let s = a.stream();
    a.at_once(
        || {
            a.note("send", io::write(s, b"word"));
            a.note("echo", receive_text(s, 4));
        },
        || {
            let ended = other_ways::fork_with_terminal(|| {
                let word = receive_text(s, 4);
                i32::from(io::write(s, word.as_bytes()).count() != Some(4))
            });
            a.note("child", ended);
        },
    );
}

fn a_shell_in_words_reads_the_stream(a: &Actor) {
    let s = a.stream();
    a.client(|| a.note("send", io::write(s, b"12345678")));
    a.server(|| {
        a.until_readable(s, 8);
        let low = socket::dup2(s, 9).fd("dup2");
        a.note("word", other_ways::first_word(&format!("$(head -c5 <&{low})")));
        a.note("the rest", receive_text(s, 3));
    });
}

fn vectors_at_the_streams_own_place_carry(a: &Actor) {
    let s = a.stream();
    a.client(|| {
        a.note("pwritev2", other_ways::write_at_its_place(s, b"vector, "));
        a.note("write", io::write(s, b"bytes"));
    });
    a.server(|| {
        a.until_readable(s, 13);
        let mut room = [0; 8];
        a.note("preadv2", other_ways::read_at_its_place(s, &mut room, 0));
        a.note("what", String::from_utf8_lossy(&room).into_owned());
        a.note("rest", receive_text(s, 5));
        let nowait = other_ways::read_at_its_place(s, &mut room, libc::RWF_NOWAIT);
        a.note("nothing, without waiting", nowait);
        a.note("unknown flag", other_ways::read_at_its_place(s, &mut room, 0x4000_0000));
    });
}

fn a_descriptor_taken_by_pidfd_is_the_same_stream(a: &Actor) {
    let s = a.stream();
    a.client(|| a.note("send", io::write(s, b"one two ")));
    a.server(|| {
        a.until_readable(s, 8);
        let copy = other_ways::copy_by_pidfd(s);
        a.note("by the copy", receive_text(copy, 4));
        a.note("by the first", receive_text(s, 4));
        a.note("answer by the copy", io::write(copy, b"from "));
        a.note("by the first", io::write(s, b"both"));
        socket::close(copy);
    });
    a.client(|| a.note("received", receive_text(s, 9)));
}

/// The other process is a child from before there was a stream, so that it has none of it.
fn a_descriptor_taken_by_another_process_is_the_same_stream(a: &Actor) {
    let (told, tells) = socket::pipe();
    let parent = std::process::id() as i32;
    let child = (!a.is_client()).then(|| {
        process::fork(|| {
            let mut fd = [0; 4];
            if io::read(told, &mut fd).count() != Some(4) {
                return 1;
            }
            let copy = other_ways::copy_from_process(parent, i32::from_le_bytes(fd));
            let first = receive_text(copy, 4);
            let sent = io::write(copy, b"from ");
            let set = wait::epoll_create();
            wait::epoll_add(set, copy, libc::EPOLLIN, 1).value("add");
            let ready = wait::epoll_wait(set, 4, 5000).events.len();
            let second = receive_text(copy, 4);
            i32::from(first != "one " || sent != Got::Value(5) || ready != 1 || second != "two ")
        })
    });
    let s = a.stream();
    a.client(|| a.note("send", io::write(s, b"one ")));
    a.server(|| {
        a.until_readable(s, 4);
        io::write(tells, &s.to_le_bytes());
    });
    a.client(|| a.note("received", receive_text(s, 5)));
    a.client(|| a.note("send", io::write(s, b"two ")));
    if let Some(child) = child {
        a.note("the child", process::wait_for(child));
        a.note("send by the first", io::write(s, b"both"));
    }
    a.meet();
    a.client(|| a.note("received", receive_text(s, 4)));
}

/// A pipe made ready before a stream is told no later than it.
fn a_look_at_a_set_tells_rings_and_pipes(a: &Actor) {
    let s = a.stream();
    const ROUNDS: usize = 20;
    a.at_once(
        || {
            for _ in 0..ROUNDS {
                a.meet();
                io::write(s, b"b");
                a.meet();
            }
        },
        || {
            let (out, into) = socket::pipe();
            let set = wait::epoll_create();
            wait::epoll_add(set, s, libc::EPOLLIN, 1).value("add");
            wait::epoll_add(set, out, libc::EPOLLIN, 2).value("add");
            for round in 0..ROUNDS {
                io::write(into, b"p").value("a pipe");
                a.meet();
                a.meet();
                a.until_readable(s, 1);
                a.note(format!("round {round}"), wait::epoll_wait(set, 4, 0).got);
                io::read(out, &mut [0; 1]).value("a pipe");
                receive_text(s, 1);
            }
        },
    );
}
