//! Descriptors: copies, numbers, flags, closing by every road, and libc's files on a stream.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::Mutex;

use super::ends::victim_with_unread;
use super::{scenarios, Scenario, Settings};
use crate::actor::Actor;
use crate::calls::stdio::{close_all_from, print_to, File};
use crate::calls::{io, listing, other_ways, process, socket, wait, Fd, Got};
use crate::pattern::{bytes, receive, receive_text, receive_to_end, send_all};

pub const ALL: &[Scenario] = scenarios![Settings::All;
    copies_by_every_call_are_the_same_stream,
    closing_one_copy_leaves_the_other,
    closing_the_last_copy_ends_the_stream,
    copies_share_the_position_and_the_flags,
    dup2_over_a_stream_closes_it,
    dup2_of_a_stream_onto_itself_changes_nothing,
    dup2_of_a_stream_over_another_replaces_it,
    a_number_is_used_again_at_once,
    a_number_used_again_has_nothing_of_the_old_stream,
    new_descriptors_take_the_lowest_number,
    an_open_that_waits_holds_nobody_up,
    close_range_closes_streams,
    closefrom_closes_streams,
    close_on_exec_is_kept_by_each_copy,
    accept4_sets_the_flags_it_is_given,
    accept_inherits_no_flags,
    fcntl_toggles_blocking_in_mid_stream,
    ioctl_toggles_blocking_in_mid_stream,
    the_status_flags_read_as_they_were_set,
    a_stream_looks_like_a_socket,
    a_file_on_a_stream_reads_lines,
    a_file_on_a_stream_writes_buffered,
    a_file_after_plain_reads_goes_on_at_the_byte,
    plain_writes_after_a_file_keep_order,
    closing_a_file_closes_the_stream,
    two_files_on_one_stream_read_and_write,
    files_that_are_no_streams_are_closed_as_ever,
    dprintf_writes_to_a_stream,
    a_large_file_transfer_through_stdio_is_whole,
    closing_while_another_thread_reads_lets_it_finish,
    a_read_goes_on_when_its_number_is_closed_as_the_stream_leaves,
    two_reads_go_on_when_their_number_is_closed_as_the_stream_leaves,
    a_read_goes_on_when_its_number_is_closed_as_its_peer_dies,
    a_send_goes_on_when_its_number_is_closed_as_the_stream_leaves,
    closing_while_another_thread_waits_in_epoll_is_survived,
    dup2_while_another_thread_reads_lets_it_finish,
    a_descriptor_passed_within_itself_is_the_same_stream,
    a_listening_socket_can_be_copied,
    five_hundred_copies_come_and_go,
    lists_of_descriptors_show_the_programs,
    a_child_lists_its_descriptors,
    other_folders_show_all,
    numbers_nobody_opened_are_not_open,
    a_closed_number_names_nothing_while_streams_change,
    a_high_number_can_be_given_to_a_copy,
];

fn copies_by_every_call_are_the_same_stream(a: &Actor) {
    let s = a.stream();
    a.client(|| {
        let copies = [
            ("dup", socket::dup(s)),
            ("dup2", socket::dup2(s, 300)),
            ("dup3", socket::dup3(s, 301, libc::O_CLOEXEC)),
            ("F_DUPFD", socket::fcntl(s, libc::F_DUPFD, 310)),
            ("F_DUPFD_CLOEXEC", socket::fcntl(s, libc::F_DUPFD_CLOEXEC, 311)),
        ];
        for (what, copy) in copies {
            a.note(what, copy);
            a.note("write", io::write(copy.fd(what), what.as_bytes()));
        }
        a.note("write to the original", io::write(s, b"!"));
    });
    a.server(|| a.note("received", receive_text(s, 3 + 4 + 4 + 7 + 15 + 1)));
}

fn closing_one_copy_leaves_the_other(a: &Actor) {
    let s = a.stream();
    a.client(|| {
        let copy = socket::dup(s).fd("dup");
        a.note("write", io::write(s, b"one "));
        a.note("close", socket::close(s));
        a.note("write to the closed", io::write(s, b"x"));
        a.note("write to the copy", io::write(copy, b"two"));
    });
    a.server(|| {
        a.note("received", receive_text(s, 7));
        let mut room = [0; 1];
        a.note("no end yet", io::recv(s, &mut room, libc::MSG_DONTWAIT));
    });
}

fn closing_the_last_copy_ends_the_stream(a: &Actor) {
    let s = a.stream();
    a.client(|| {
        let copy = socket::dup(s).fd("dup");
        a.note("send", io::send(copy, b"end", 0));
        a.note("close", socket::close(s));
        a.note("close the copy", socket::close(copy));
    });
    a.server(|| a.note("received", receive_text(s, 10)));
}

fn copies_share_the_position_and_the_flags(a: &Actor) {
    let s = a.stream();
    a.client(|| a.note("sent", send_all(s, 1, 10_000, 500)));
    a.server(|| {
        let copy = socket::dup(s).fd("dup");
        a.until_readable(s, 10_000);
        let mut text = Vec::new();
        for round in 0..20 {
            let mut room = [0; 500];
            let fd = if round % 2 == 0 { s } else { copy };
            let got = io::recv(fd, &mut room, libc::MSG_WAITALL);
            assert_eq!(got, Got::Value(500));
            text.extend_from_slice(&room);
        }
        a.note("in turns", text == crate::pattern::bytes(1, 0, 10_000));
        socket::set_nonblocking(copy, true);
        let mut room = [0; 1];
        a.note("the original does not block either", io::recv(s, &mut room, 0));
        socket::set_nonblocking(s, false);
        let flags = socket::fcntl(copy, libc::F_GETFL, 0).value("F_GETFL") as i32;
        a.note("nor does the copy stay so", flags & libc::O_NONBLOCK);
    });
}

fn dup2_over_a_stream_closes_it(a: &Actor) {
    let s = a.stream();
    a.client(|| {
        a.note("send", io::send(s, b"last", 0));
        let null = socket::open_null();
        a.note("same number", socket::dup2(null, s) == Got::Value(s.into()));
        a.note("write goes elsewhere", io::write(s, b"into the void"));
        a.note("no socket any more", io::send(s, b"x", 0));
    });
    a.server(|| a.note("received", receive_text(s, 10)));
}

fn dup2_of_a_stream_onto_itself_changes_nothing(a: &Actor) {
    let s = a.stream();
    a.client(|| {
        a.note("dup2", socket::dup2(s, s) == Got::Value(s.into()));
        a.note("dup3", socket::dup3(s, s, 0));
        a.note("dup2 of a closed one", socket::dup2(600, s));
        a.note("dup2 to a negative", socket::dup2(s, -1));
        a.note("send", io::send(s, b"fine", 0));
    });
    a.server(|| a.note("received", receive_text(s, 4)));
}

fn dup2_of_a_stream_over_another_replaces_it(a: &Actor) {
    let place = a.listen();
    let (s, t) = (a.pair(&place), a.pair(&place));
    a.client(|| {
        a.note("dup2", socket::dup2(s, t) == Got::Value(t.into()));
        a.note("write", io::write(t, b"to the first"));
        a.note("close the original", socket::close(s));
        a.note("write", io::write(t, b", still"));
    });
    a.server(|| {
        a.note("the second has ended", receive_text(t, 1));
        a.note("the first goes on", receive_text(s, 19));
    });
}

fn a_number_is_used_again_at_once(a: &Actor) {
    let place = a.listen();
    let mut numbers = Vec::new();
    for round in 0..20u64 {
        let s = a.pair(&place);
        numbers.push(s);
        a.at_once(
            || assert_eq!(send_all(s, round, 5000, 700), "5000 bytes sent"),
            || assert_eq!(receive(s, round, 5000, 900), "5000 bytes right"),
        );
        socket::close(s);
        a.meet();
    }
    numbers.dedup();
    a.note("numbers used", numbers.len());
}

fn a_number_used_again_has_nothing_of_the_old_stream(a: &Actor) {
    let place = a.listen();
    let s = a.pair(&place);
    a.client(|| a.note("send", io::send(s, b"belongs to the old stream", 0)));
    a.server(|| {
        a.until_readable(s, 25);
        socket::close(s);
    });
    a.client(|| {
        a.until(s, libc::POLLERR | libc::POLLHUP);
        socket::close(s);
    });
    let t = a.pair(&place);
    a.note("same number", s == t);
    a.note_mask("of the new stream", t, libc::POLLOUT);
    a.note("SO_ERROR", socket::so_error(t));
    a.meet();
    a.client(|| a.note("send", io::send(t, b"new", 0)));
    a.server(|| a.note("received", receive_text(t, 3)));
}

fn new_descriptors_take_the_lowest_number(a: &Actor) {
    let s = a.stream();
    let first = socket::open_null();
    let second = socket::dup(s).fd("dup");
    let third = socket::pipe();
    a.note("in a row", second == first + 1 && third == (first + 2, first + 3));
    socket::close(second);
    a.note("the gap is filled", socket::open_null() == second);
    a.meet();
}

/// A FIFO's open waits for the other end, here until the stream has carried what it should.
fn an_open_that_waits_holds_nobody_up(a: &Actor) {
    let fifo = socket::Fifo::new();
    std::thread::scope(|scope| {
        let waiting = a.thread(scope, "opener", || fifo.open(libc::O_RDONLY));
        let s = a.stream();
        a.client(|| a.note("send", io::send(s, b"hello", 0)));
        a.server(|| a.note("received", receive_text(s, 5)));
        fifo.open(libc::O_WRONLY);
        a.note("both ends", waiting.join().is_ok());
    });
}

fn close_range_closes_streams(a: &Actor) {
    let place = a.listen();
    let s = a.pair(&place);
    a.client(|| {
        a.note("send", io::send(s, b"bye", 0));
        let high = socket::dup2(s, 400).fd("dup2");
        socket::close(s);
        a.note("close_range", socket::close_range(high, high + 50));
        a.note("closed", io::write(high, b"x"));
    });
    a.server(|| a.note("received", receive_text(s, 10)));
    let t = a.pair(&place);
    a.client(|| a.note("send on a new stream", io::send(t, b"new", 0)));
    a.server(|| a.note("received", receive_text(t, 3)));
}

fn closefrom_closes_streams(a: &Actor) {
    let s = a.stream();
    a.client(|| {
        a.note("send", io::send(s, b"bye", 0));
        let child = a.child("closer", || {
            // The transcript goes too: nothing can be noted after this.
            close_all_from(3);
        });
        a.note("child", process::wait_for(child));
        a.note("the parent's stream lives", io::send(s, b" and hello", 0));
        a.note("close", socket::close(s));
    });
    a.server(|| a.note("received", receive_text(s, 50)));
}

fn close_on_exec_is_kept_by_each_copy(a: &Actor) {
    let s = a.stream();
    let flag = |fd: Fd| socket::fcntl(fd, libc::F_GETFD, 0);
    a.note("at first", flag(s));
    a.note("set", socket::fcntl(s, libc::F_SETFD, libc::FD_CLOEXEC));
    a.note("then", flag(s));
    for (what, copy) in [
        ("dup", socket::dup(s)),
        ("dup3", socket::dup3(s, 301, libc::O_CLOEXEC)),
        ("F_DUPFD_CLOEXEC", socket::fcntl(s, libc::F_DUPFD_CLOEXEC, 302)),
    ] {
        a.note(what, flag(copy.fd(what)));
    }
    let made = socket::socket(libc::AF_INET, libc::SOCK_STREAM | libc::SOCK_CLOEXEC).fd("socket");
    a.note("socket with CLOEXEC", flag(made));
    a.meet();
}

fn show_flags(fd: Fd) -> String {
    let status = socket::fcntl(fd, libc::F_GETFL, 0);
    format!("{status} {}", socket::fcntl(fd, libc::F_GETFD, 0))
}

fn accept4_sets_the_flags_it_is_given(a: &Actor) {
    let place = a.listen();
    let both = libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
    for flags in [0, libc::SOCK_NONBLOCK, libc::SOCK_CLOEXEC, both] {
        a.client(|| {
            a.connect(&place);
        });
        a.server(|| {
            let s = socket::accept4(place.fd, flags).fd("accept4");
            a.note(format!("{flags:#x}"), show_flags(s));
        });
    }
    a.server(|| a.note("unknown flags", socket::accept4(place.fd, 1)));
}

fn accept_inherits_no_flags(a: &Actor) {
    let place = a.listen();
    a.client(|| {
        a.connect(&place);
    });
    a.server(|| {
        a.until(place.fd, libc::POLLIN);
        socket::set_nonblocking(place.fd, true);
        let s = socket::accept(place.fd).fd("accept");
        a.note("accepted", show_flags(s));
        a.note("nobody else", socket::accept(place.fd));
    });
}

fn fcntl_toggles_blocking_in_mid_stream(a: &Actor) {
    let s = a.stream();
    let mut room = [0; 4];
    for round in 0..5 {
        a.server(|| {
            socket::set_nonblocking(s, true);
            a.note("nothing there", io::recv(s, &mut room, 0));
            a.note("read", io::read(s, &mut room));
            socket::set_nonblocking(s, false);
        });
        a.at_once(
            || {
                io::send(s, b"ping", 0);
            },
            || a.note(format!("blocking {round}"), receive_text(s, 4)),
        );
    }
}

fn ioctl_toggles_blocking_in_mid_stream(a: &Actor) {
    let s = a.stream();
    let mut room = [0; 4];
    for round in 0..5 {
        a.server(|| {
            a.note("on", socket::ioctl(s, libc::FIONBIO, 1).0);
            a.note("flags", socket::fcntl(s, libc::F_GETFL, 0));
            a.note("nothing there", io::recv(s, &mut room, 0));
            a.note("off", socket::ioctl(s, libc::FIONBIO, 0).0);
        });
        a.at_once(
            || {
                io::send(s, b"ping", 0);
            },
            || a.note(format!("blocking {round}"), receive_text(s, 4)),
        );
    }
}

fn the_status_flags_read_as_they_were_set(a: &Actor) {
    let s = a.stream();
    a.note("at first", socket::fcntl(s, libc::F_GETFL, 0));
    a.note("set", socket::fcntl(s, libc::F_SETFL, libc::O_NONBLOCK));
    a.note("then", socket::fcntl(s, libc::F_GETFL, 0));
    a.note("append too", socket::fcntl(s, libc::F_SETFL, libc::O_NONBLOCK | libc::O_APPEND));
    a.note("then", socket::fcntl(s, libc::F_GETFL, 0));
    a.note("cleared", socket::fcntl(s, libc::F_SETFL, 0));
    a.note("then", socket::fcntl(s, libc::F_GETFL, 0));
    a.note("unknown command", socket::fcntl(s, 9999, 0));
    a.meet();
}

fn a_stream_looks_like_a_socket(a: &Actor) {
    let s = a.stream();
    a.note("fstat", socket::kind_of(s));
    let link = std::fs::read_link(format!("/proc/self/fd/{s}")).unwrap_or_default();
    a.note("its link", link.to_string_lossy().starts_with("socket:["));
    a.note("SO_TYPE", socket::get_int(s, libc::SOL_SOCKET, libc::SO_TYPE));
    a.meet();
}

fn a_file_on_a_stream_reads_lines(a: &Actor) {
    let s = a.stream();
    a.client(|| {
        a.note("send", io::send(s, b"first line\nsecond line\nno newline", 0));
        a.note("shutdown", socket::shutdown(s, libc::SHUT_WR));
    });
    a.server(|| {
        let file = File::on(s, "r");
        while let Some(line) = file.line() {
            a.note("line", line);
        }
        a.note("fclose", file.close());
        a.note("closed", socket::close(s));
    });
}

fn a_file_on_a_stream_writes_buffered(a: &Actor) {
    let s = a.stream();
    a.client(|| {
        let file = File::on(s, "w");
        a.note("put", file.put("one\n"));
        a.note("put", file.put("two\n"));
        a.note("flush", file.flush());
        a.note("put", file.put("three\n"));
        a.note("fclose", file.close());
    });
    a.server(|| a.note("received", receive_text(s, 100)));
}

fn a_file_after_plain_reads_goes_on_at_the_byte(a: &Actor) {
    let s = a.stream();
    a.client(|| a.note("send", io::send(s, b"head;line one\nline two\n", 0)));
    a.server(|| {
        a.note("plain", receive_text(s, 5));
        let file = File::on(s, "r+");
        a.note("line", file.line().unwrap_or_default());
        a.note("line", file.line().unwrap_or_default());
        a.note("answer", io::write(s, b"thanks"));
    });
    a.client(|| a.note("answer", receive_text(s, 6)));
}

fn plain_writes_after_a_file_keep_order(a: &Actor) {
    let s = a.stream();
    a.client(|| {
        a.note("plain", io::write(s, b"1 "));
        let file = File::on(s, "w");
        a.note("put", file.put("2 "));
        a.note("flush", file.flush());
        a.note("plain", io::write(s, b"3 "));
        a.note("put", file.put("4"));
        a.note("flush", file.flush());
        a.note("plain", io::send(s, b" 5", 0));
    });
    a.server(|| a.note("received", receive_text(s, 9)));
}

fn closing_a_file_closes_the_stream(a: &Actor) {
    let place = a.listen();
    let s = a.pair(&place);
    a.client(|| {
        let file = File::on(s, "w");
        a.note("put", file.put("bye"));
        a.note("fclose", file.close());
        a.note("number is free", socket::fcntl(s, libc::F_GETFD, 0));
    });
    a.server(|| {
        a.note("received", receive_text(s, 10));
        socket::close(s);
    });
    let t = a.pair(&place);
    a.note("number used again", s == t);
    a.meet();
    a.client(|| a.note("send", io::send(t, b"new", 0)));
    a.server(|| a.note("received", receive_text(t, 3)));
}

fn files_that_are_no_streams_are_closed_as_ever(a: &Actor) {
    let s = a.stream();
    let full = File::open("/dev/full", "w");
    full.put("for which there is no room");
    a.note("what could not be written", full.closed());
    // A file that was read keeps its place, which others share.
    let shared = socket::open_self();
    let reader = File::on(socket::dup(shared).fd("dup"), "r");
    a.note("read", reader.read(&mut [0; 10]));
    a.note("close", reader.closed());
    a.note("its place", other_ways::place(shared));
    a.note("close", socket::close(shared));
    a.client(|| a.note("send", io::write(s, b"goes on")));
    a.server(|| a.note("received", receive_text(s, 7)));
}

fn two_files_on_one_stream_read_and_write(a: &Actor) {
    let s = a.stream();
    let (reader, writer) = (File::on(s, "r"), File::on(socket::dup(s).fd("dup"), "w"));
    for round in 0..20 {
        a.client(|| {
            writer.put(&format!("question {round}\n"));
            writer.flush();
        });
        a.server(|| {
            let line = reader.line().unwrap_or_default();
            writer.put(&format!("answer to {line}"));
            writer.flush();
        });
        a.client(|| a.note("line", reader.line().unwrap_or_default()));
    }
}

fn dprintf_writes_to_a_stream(a: &Actor) {
    let s = a.stream();
    a.client(|| {
        a.note("write", io::write(s, b"before "));
        a.note("dprintf", print_to(s, "formatted"));
        a.note("write", io::write(s, b" after"));
    });
    a.server(|| a.note("received", receive_text(s, 22)));
}

fn a_large_file_transfer_through_stdio_is_whole(a: &Actor) {
    let s = a.stream();
    const TOTAL: usize = 3 << 20;
    a.at_once(
        || {
            let file = File::on(s, "w");
            for block in 0..TOTAL / 4096 {
                let bytes = crate::pattern::bytes(4, block as u64 * 4096, 4096);
                assert_eq!(file.write(&bytes), 4096);
            }
            a.note("fclose", file.close());
        },
        || {
            let file = File::on(s, "r");
            let mut checker = crate::pattern::Checker::new(4);
            let mut room = vec![0; 10_000];
            loop {
                match file.read(&mut room) {
                    0 => break,
                    count => checker.take(&room[..count]),
                }
            }
            a.note("received", checker.verdict());
        },
    );
}

fn closing_while_another_thread_reads_lets_it_finish(a: &Actor) {
    let s = a.stream();
    a.at_once(
        || {
            assert_eq!(a.hear(), "closed");
            io::send(s, b"late", libc::MSG_NOSIGNAL);
        },
        || {
            let read = || a.note("a read that began before", io::recv(s, &mut [0; 8], 0));
            a.beside_a_sleeper(read, || {
                a.note("close", socket::close(s));
                a.note("closed", socket::fcntl(s, libc::F_GETFD, 0));
                a.tell("closed");
            });
        },
    );
}

/// Takes the stream to TCP and closes its number.
fn leave_and_close(a: &Actor, s: Fd) {
    a.note("option", socket::set_int(s, libc::SOL_SOCKET, socket::SO_ZEROCOPY, 1));
    a.note("close", socket::close(s));
    a.tell("closed");
}

fn a_read_goes_on_when_its_number_is_closed_as_the_stream_leaves(a: &Actor) {
    let place = a.listen();
    for _ in 0..6 {
        let s = a.pair(&place);
        a.at_once(
            || {
                assert_eq!(a.hear(), "closed");
                a.note("sent", io::send(s, b"late", libc::MSG_NOSIGNAL));
            },
            || {
                let read = || a.note("a read that began before", io::recv(s, &mut [0; 8], 0));
                a.beside_a_sleeper(read, || leave_and_close(a, s));
            },
        );
    }
}

fn two_reads_go_on_when_their_number_is_closed_as_the_stream_leaves(a: &Actor) {
    let place = a.listen();
    for _ in 0..6 {
        let s = a.pair(&place);
        a.at_once(
            || {
                assert_eq!(a.hear(), "closed");
                a.note("sent", io::send(s, b"late", libc::MSG_NOSIGNAL));
                a.note("close", socket::close(s));
            },
            || {
                let read = || io::recv(s, &mut [0; 8], 0).to_string();
                let (one, other) = (Mutex::new(String::new()), Mutex::new(String::new()));
                a.beside_a_sleeper(
                    || *one.lock().unwrap() = read(),
                    || {
                        a.beside_a_sleeper(
                            || *other.lock().unwrap() = read(),
                            || leave_and_close(a, s),
                        );
                    },
                );
                // Which of them is first the kernel decides.
                let mut got = [one.into_inner().unwrap(), other.into_inner().unwrap()];
                got.sort();
                a.note("reads that began before", got.join(", "));
            },
        );
    }
}

/// Of <netinet/tcp.h>.
const TCP_ESTABLISHED: u8 = 1;

fn a_read_goes_on_when_its_number_is_closed_as_its_peer_dies(a: &Actor) {
    let place = a.listen();
    for round in 0..8 {
        a.at_once(
            || {
                let victim = victim_with_unread(a, &place);
                assert_eq!(a.hear(), "asleep");
                process::kill(victim, libc::SIGKILL);
                a.note("victim", process::wait_for(victim));
            },
            || {
                let s = socket::accept(place.fd).fd("accept");
                a.warm_as_server(s);
                a.note("send", io::send(s, b"unread", 0));
                let read = || a.note("a read that began before", io::recv(s, &mut [0; 8], 0));
                a.beside_a_sleeper(read, || {
                    a.tell("asleep");
                    // The kernel hears of the death before the library does.
                    let state = || socket::getsockopt(s, libc::IPPROTO_TCP, libc::TCP_INFO, 1).1[0];
                    while round % 2 == 0 && state() == TCP_ESTABLISHED {}
                    a.note("close", socket::close(s));
                });
            },
        );
    }
}

fn a_send_goes_on_when_its_number_is_closed_as_the_stream_leaves(a: &Actor) {
    const BYTES: usize = 16 << 20;
    let place = a.listen();
    let block = bytes(7, 0, BYTES);
    for _ in 0..4 {
        let s = a.pair(&place);
        a.at_once(
            || {
                assert_eq!(a.hear(), "closed");
                a.note("received", receive_to_end(s, 7));
            },
            || {
                let send = || a.note("a send that began before", io::send(s, &block, 0));
                a.beside_a_sleeper(send, || leave_and_close(a, s));
            },
        );
    }
}

fn closing_while_another_thread_waits_in_epoll_is_survived(a: &Actor) {
    let place = a.listen();
    let (s, t) = (a.pair(&place), a.pair(&place));
    a.at_once(
        || {
            assert_eq!(a.hear(), "closed");
            io::send(s, b"nobody hears", libc::MSG_NOSIGNAL);
            io::send(t, b"x", 0);
        },
        || {
            let set = wait::epoll_create();
            wait::epoll_add(set, s, libc::EPOLLIN, 1);
            wait::epoll_add(set, t, libc::EPOLLIN, 2);
            let wait = || a.note("woken by the other", wait::epoll_wait(set, 4, 15_000).said());
            a.beside_a_sleeper(wait, || {
                a.note("close", socket::close(s));
                a.tell("closed");
            });
        },
    );
}

fn dup2_while_another_thread_reads_lets_it_finish(a: &Actor) {
    let s = a.stream();
    a.at_once(
        || {
            assert_eq!(a.hear(), "replaced");
            io::send(s, b"late", libc::MSG_NOSIGNAL);
        },
        || {
            let (out, _into) = socket::pipe();
            let read = || a.note("a read that began before", io::recv(s, &mut [0; 8], 0));
            a.beside_a_sleeper(read, || {
                a.note("dup2", socket::dup2(out, s) == Got::Value(s.into()));
                let mut room = [0; 8];
                a.note("another thing now", io::recv(s, &mut room, libc::MSG_DONTWAIT));
                a.tell("replaced");
            });
        },
    );
}

fn a_descriptor_passed_within_itself_is_the_same_stream(a: &Actor) {
    let s = a.stream();
    a.client(|| {
        let (one, other) = socket::socketpair(libc::SOCK_STREAM);
        a.note("send", io::send(s, b"before, ", 0));
        a.note("pass", io::pass_descriptor(one, s));
        let copy = io::take_descriptor(other).fd("a passed descriptor");
        a.note("send by the copy", io::send(copy, b"by the copy, ", 0));
        a.note("send by the original", io::send(s, b"by the original", 0));
        a.note("close", socket::close(s));
        a.note("send by the copy", io::send(copy, b", alone", 0));
        a.note("close the copy", socket::close(copy));
    });
    a.server(|| a.note("received", receive_text(s, 100)));
}

fn a_listening_socket_can_be_copied(a: &Actor) {
    let mut place = a.listen();
    a.server(|| {
        let copy = socket::dup(place.fd).fd("dup");
        socket::close(place.fd);
        place.fd = copy;
    });
    let s = a.pair(&place);
    a.client(|| a.note("send", io::send(s, b"accepted by a copy", 0)));
    a.server(|| a.note("received", receive_text(s, 18)));
}

fn five_hundred_copies_come_and_go(a: &Actor) {
    let s = a.stream();
    a.client(|| {
        let copies: Vec<Fd> = (0..500).map(|_| socket::dup(s).fd("dup")).collect();
        let mut sent = 0;
        for (index, &copy) in copies.iter().enumerate() {
            let bytes = crate::pattern::bytes(6, index as u64 * 10, 10);
            sent += io::write(copy, &bytes).value("write");
            socket::close(copy);
        }
        a.note("sent", sent);
        a.note("close", socket::close(s));
    });
    a.server(|| a.note("received", receive_to_end(s, 6)));
}

/// The harness has some below.
const ABOVE: Fd = 1000;

/// The numbers above that are listed, by each call that lists, in all folders by one and in one by all.
fn note_numbers(a: &Actor) {
    let (process, thread) = (process::pid(), process::thread_id());
    let folders = [
        ("/proc/self/fd", "by itself".to_owned()),
        ("/proc/self/fdinfo", "its notes".to_owned()),
        ("/dev/fd", "by a link".to_owned()),
        (&format!("/proc/{process}/fd"), "by number".to_owned()),
        (&format!("/proc/{process}/task/{thread}/fd"), "by thread".to_owned()),
        ("/proc/thread-self/fdinfo", "notes by thread".to_owned()),
    ];
    let numbers = |names: listing::Names| {
        let numbers = names.iter().filter_map(|name| name.parse::<Fd>().ok());
        let high: Vec<Fd> = numbers.filter(|fd| *fd >= ABOVE).collect();
        format!("{high:?}")
    };
    for (what, call) in listing::ALL {
        a.note(what, numbers(call("/proc/self/fd")));
    }
    for (path, what) in folders {
        a.note(&what, numbers(listing::ALL[0].1(path)));
        a.note(format!("{what}, whole"), numbers(listing::ALL[9].1(path)));
    }
}

fn lists_of_descriptors_show_the_programs(a: &Actor) {
    let s = a.stream();
    for number in [1200, 7000] {
        a.note("copy", socket::dup2(s, number));
    }
    note_numbers(a);
    std::thread::scope(|scope| {
        let _ = a.thread(scope, "another", || note_numbers(a)).join();
    });
    a.note("close", socket::close(7000));
    note_numbers(a);
    a.client(|| a.note("send", io::send(s, b"well", 0)));
    a.server(|| a.note("received", receive_text(s, 4)));
}

fn a_child_lists_its_descriptors(a: &Actor) {
    let s = a.stream();
    let child = a.child("child", || {
        a.note("copy", socket::dup2(s, 1200));
        note_numbers(a);
    });
    a.note("child", process::wait_for(child));
    note_numbers(a);
}

fn other_folders_show_all(a: &Actor) {
    let s = a.stream();
    let side = if a.is_client() { "client" } else { "server" };
    let folder = std::env::temp_dir().join(format!("shunt-{}-{side}", process::pid()));
    let fd = folder.join("fd");
    std::fs::create_dir_all(&fd).expect("a folder");
    for number in 3590..3640 {
        std::fs::File::create(fd.join(number.to_string())).expect("a file");
    }
    // As in /proc/self/fd, numbers lead back to the folder.
    for number in 3..64 {
        std::os::unix::fs::symlink(&fd, fd.join(number.to_string())).expect("a link");
    }
    for (what, call) in listing::ALL {
        let names = call(fd.to_str().expect("a path of text"));
        a.note(what, names.len());
    }
    std::fs::remove_dir_all(&folder).expect("to be removed");
    a.client(|| a.note("send", io::send(s, b"well", 0)));
    a.server(|| a.note("received", receive_text(s, 4)));
}

/// To each of many numbers that nobody opened.
fn a_high_number_can_be_given_to_a_copy(a: &Actor) {
    let s = a.stream();
    a.client(|| {
        a.note("before", io::send(s, b"before ", 0));
        let copied = |to: &Fd| socket::dup2(s, *to) == Got::Value(i64::from(*to));
        let copies: Vec<Fd> = (ABOVE..6000).filter(copied).collect();
        a.note("copies", copies.len());
        let last = *copies.last().expect("some number above is within the limit");
        a.note("by the last", io::send(last, b"last ", 0));
        a.note("all are closed", copies.iter().all(|fd| socket::close(*fd) == Got::Value(0)));
        a.note("after", io::send(s, b"after", 0));
    });
    a.server(|| {
        a.note("received", receive_text(s, 7 + 5 + 5));
        a.note("answer", io::send(s, b"answer", 0));
    });
    a.client(|| {
        a.note("received", receive_text(s, 6));
        let child = process::fork(|| i32::from(io::send(s, b"child", 0) != Got::Value(5)));
        a.note("child", process::wait_for(child));
    });
    a.server(|| a.note("received", receive_text(s, 5)));
}

fn numbers_nobody_opened_are_not_open(a: &Actor) {
    let s = a.stream();
    let open = |call: &dyn Fn(Fd) -> Got| {
        (ABOVE..6000).filter(|fd| call(*fd) != Got::Errno(libc::EBADF)).count()
    };
    a.note("F_GETFD", open(&|fd| socket::fcntl(fd, libc::F_GETFD, 0)));
    a.note("F_GETFL", open(&|fd| socket::fcntl(fd, libc::F_GETFL, 0)));
    a.note("F_DUPFD", open(&|fd| socket::fcntl(fd, libc::F_DUPFD, 0)));
    a.note("dup", open(&socket::dup));
    a.note("dup2", open(&|fd| socket::dup2(fd, 1200)));
    a.note("dup2 over the stream", open(&|fd| socket::dup2(fd, s)));
    a.note("dup3", open(&|fd| socket::dup3(fd, 1200, 0)));
    a.client(|| a.note("send", io::send(s, b"well", 0)));
    a.server(|| a.note("received", receive_text(s, 4)));
}

/// While a stream goes to its ring, the library makes descriptors, and the kernel gives them the lowest number.
fn a_closed_number_names_nothing_while_streams_change(a: &Actor) {
    let place = a.listen();
    let streams: Vec<Fd> = (0..24).map(|_| a.new_stream(&place)).collect();
    let set = wait::epoll_create();
    let number = socket::open_null();
    socket::close(number);
    let changed = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let asker = a.thread(scope, "asker", || {
            let bad = |got: Got| got.is(libc::EBADF);
            let mut named = [0; 10];
            while !changed.load(Relaxed) {
                let answers = [
                    bad(wait::epoll_add(set, number, libc::EPOLLIN, 1)),
                    bad(wait::epoll_mod(set, number, libc::EPOLLIN, 1)),
                    bad(wait::epoll_del(set, number)),
                    bad(wait::epoll_add(number, streams[0], libc::EPOLLIN, 1)),
                    bad(socket::fcntl(number, libc::F_GETFD, 0)),
                    bad(socket::fcntl(number, libc::F_GETFL, 0)),
                    bad(socket::getsockopt(number, libc::SOL_SOCKET, libc::SO_TYPE, 4).0),
                    bad(socket::shutdown(number, libc::SHUT_WR)),
                    bad(socket::getpeername(number).0),
                    bad(socket::ioctl(number, libc::FIONREAD, 0).0),
                ];
                for (count, answer) in named.iter_mut().zip(answers) {
                    *count += u32::from(!answer);
                }
            }
            named
        });
        (0..40).for_each(|_| a.exchange_on(&streams));
        changed.store(true, Relaxed);
        a.note("answers as if it named something", format!("{:?}", asker.join().expect("asker")));
    });
}
