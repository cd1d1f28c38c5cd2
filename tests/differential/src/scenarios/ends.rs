//! How streams end: half close, close, reset, death; what is still read before, and what writers
//! and pollers are told.

use super::poll::wake;
use super::{scenarios, Scenario, Settings};
use crate::actor::{Actor, Place, Side};
use crate::calls::{io, process, socket, wait, Fd, Got};
use crate::pattern::{bytes, receive, receive_text, receive_to_end, send_all, write_all};

pub const ALL: &[Scenario] = scenarios![Settings::All;
    who_takes_the_last_bytes_finds_the_end_at_once,
    half_close_by_the_client_ends_one_direction,
    half_close_by_the_server_ends_one_direction,
    half_close_from_both_sides_ends_both,
    half_close_behind_eight_megabytes_loses_nothing,
    a_half_closed_stream_goes_on_in_the_other_direction_for_long,
    end_of_stream_is_told_again_and_again,
    shutdown_of_reading_gives_end_of_stream,
    shutdown_of_both_ends_both,
    shutdown_twice_is_no_error,
    shutdown_with_a_wrong_direction_fails,
    writing_after_own_shutdown_is_epipe,
    close_delivers_what_was_written,
    a_blocking_reader_hears_of_each_close_behind_much,
    close_behind_megabytes_delivers_them,
    close_with_unread_data_resets_the_peer,
    close_with_unread_data_lets_the_peer_read_what_it_has,
    a_reset_that_overtakes_a_shutdown_is_a_reset,
    a_receive_buffer_set_smaller_keeps_what_came_before_a_reset,
    several_messages_of_a_childs_are_told_of_a_reset_before_the_bytes,
    several_messages_that_a_reset_ends_leave_it_to_the_next_call,
    after_both_shutdowns_the_peer_is_reset,
    nothing_is_sent_after_shutdown_with_bytes_unread,
    a_send_after_shutdown_tells_of_a_reset_first,
    a_sendfile_is_told_of_a_reset,
    an_exit_with_bytes_unread_behind_a_fin_is_a_broken_pipe,
    a_kill_with_bytes_unread_behind_a_fin_is_a_broken_pipe,
    a_kill_behind_both_fins_resets_nothing,
    an_exec_that_closes_a_stream_with_bytes_unread_resets_it,
    an_exec_that_fails_resets_nothing,
    the_read_of_the_last_bytes_leaves_the_error,
    writing_to_a_closed_peer_ends_in_an_error,
    several_messages_for_a_peer_that_has_just_closed,
    a_file_for_a_peer_that_has_just_closed,
    sigpipe_comes_unless_suppressed,
    linger_zero_resets_the_peer,
    linger_zero_after_data_resets_the_peer,
    lingering_close_waits_for_delivery,
    so_error_tells_a_reset_once,
    reset_is_told_once_and_then_the_end,
    each_of_many_closed_streams_answers_with_a_reset,
    each_of_many_streams_closed_with_bytes_unread_is_reset_at_once,
    reset_wakes_a_blocked_reader,
    a_blocked_receive_of_all_leaves_the_error_to_the_next_call,
    reset_wakes_a_blocked_writer,
    end_of_stream_wakes_a_blocked_reader,
    exit_without_close_is_a_close,
    exit_without_close_with_unread_data_is_a_reset,
    an_exit_beside_calls_that_only_look_at_bytes_is_a_reset,
    a_killed_writer_delivers_what_it_wrote,
    a_killed_writer_in_full_flight_delivers_a_prefix,
    a_killed_reader_resets_the_writer,
    a_killed_reader_resets_what_so_error_tells,
    a_killed_idle_peer_ends_the_stream,
    a_killed_peer_wakes_a_blocked_reader,
    a_killed_peer_with_bytes_unread_resets_a_blocked_reader,
    a_killed_peer_resets_a_blocked_writer,
    a_close_with_bytes_unread_resets_a_blocked_writer,
    linger_zero_resets_a_blocked_writer,
    half_close_then_reset_tells_both,
    closing_at_the_same_time_is_clean,
    listen_shutdown_listen_accepts_again,
    a_client_that_died_in_the_backlog_is_accepted_and_ended,
    a_client_that_reset_in_the_backlog_is_accepted_and_reset,
    data_sent_before_accept_is_there_after_it,
    connecting_to_nobody_is_refused,
    connecting_twice_is_told,
];

fn half_close_by_the_client_ends_one_direction(a: &Actor) {
    let s = a.stream();
    a.client(|| {
        a.note("send", io::send(s, b"last words", 0));
        a.note("shutdown", socket::shutdown(s, libc::SHUT_WR));
    });
    a.server(|| {
        a.note("received", receive_to_end_text(s));
        a.note("answer", io::send(s, b"heard you", 0));
        a.note("close", socket::close(s));
    });
    a.client(|| a.note("answer", receive_to_end_text(s)));
}

fn half_close_by_the_server_ends_one_direction(a: &Actor) {
    let s = a.stream();
    a.server(|| {
        a.note("send", io::send(s, b"last words", 0));
        a.note("shutdown", socket::shutdown(s, libc::SHUT_WR));
    });
    a.client(|| {
        a.note("received", receive_to_end_text(s));
        a.note("answer", io::send(s, b"heard you", 0));
        a.note("close", socket::close(s));
    });
    a.server(|| a.note("answer", receive_to_end_text(s)));
}

/// Text until the end or an error, and which of them it was.
pub(super) fn receive_to_end_text(s: Fd) -> String {
    receive_text(s, 1000)
}

fn half_close_from_both_sides_ends_both(a: &Actor) {
    let s = a.stream();
    a.note("send", io::send(s, b"bye", 0));
    a.note("shutdown", socket::shutdown(s, libc::SHUT_WR));
    a.meet();
    a.note("received", receive_to_end_text(s));
    a.note("send afterwards", io::send(s, b"x", libc::MSG_NOSIGNAL));
    a.meet();
    a.note("close", socket::close(s));
}

fn half_close_behind_eight_megabytes_loses_nothing(a: &Actor) {
    let s = a.stream();
    a.at_once(
        || {
            a.note("sent", send_all(s, 1, 8 << 20, 1 << 20));
            a.note("shutdown", socket::shutdown(s, libc::SHUT_WR));
        },
        || a.note("received", receive_to_end(s, 1)),
    );
    a.server(|| a.note("answer", io::send(s, b"ok", 0)));
    a.client(|| a.note("answer", receive_text(s, 2)));
}

fn a_half_closed_stream_goes_on_in_the_other_direction_for_long(a: &Actor) {
    let s = a.stream();
    a.client(|| a.note("shutdown", socket::shutdown(s, libc::SHUT_WR)));
    a.server(|| a.note("end", receive_to_end_text(s)));
    for round in 0..100 {
        a.at_once(
            || assert_eq!(receive(s, round, 20_000, 9000), "20000 bytes right"),
            || assert_eq!(send_all(s, round, 20_000, 7000), "20000 bytes sent"),
        );
    }
    a.server(|| a.note("close", socket::close(s)));
    a.client(|| a.note("the end", receive_to_end_text(s)));
}

fn end_of_stream_is_told_again_and_again(a: &Actor) {
    let s = a.stream();
    a.client(|| a.note("shutdown", socket::shutdown(s, libc::SHUT_WR)));
    a.server(|| {
        let mut room = [0; 8];
        a.note("recv", io::recv(s, &mut room, 0));
        a.note("read", io::read(s, &mut room));
        a.note("readv", io::readv(s, &mut [vec![0; 4], vec![0; 4]]));
        a.note("recv without waiting", io::recv(s, &mut room, libc::MSG_DONTWAIT));
        a.note("peek", io::recv(s, &mut room, libc::MSG_PEEK));
        a.note("recvmsg", io::recvmsg(s, &[8], 0).got);
    });
}

fn shutdown_of_reading_gives_end_of_stream(a: &Actor) {
    let s = a.stream();
    a.server(|| {
        let mut room = [0; 8];
        a.note("shutdown", socket::shutdown(s, libc::SHUT_RD));
        a.note("recv", io::recv(s, &mut room, 0));
        a.note("sending goes on", io::send(s, b"still", 0));
    });
    a.client(|| {
        a.note("received", receive_text(s, 5));
        a.note("send to a deaf peer", io::send(s, b"hello?", libc::MSG_NOSIGNAL));
    });
    a.server(|| {
        a.until_readable(s, 6);
        let mut room = [0; 6];
        a.note("what came after", io::recv(s, &mut room, libc::MSG_DONTWAIT));
        a.note("then", io::recv(s, &mut room, libc::MSG_DONTWAIT));
    });
}

fn shutdown_of_both_ends_both(a: &Actor) {
    let s = a.stream();
    a.client(|| {
        a.note("send", io::send(s, b"end", 0));
        a.note("shutdown", socket::shutdown(s, libc::SHUT_RDWR));
        let mut room = [0; 4];
        a.note("recv", io::recv(s, &mut room, 0));
        a.note("send after", io::send(s, b"x", libc::MSG_NOSIGNAL));
    });
    a.server(|| {
        a.note("received", receive_to_end_text(s));
        socket::close(s);
    });
    a.client(|| a.note("close", socket::close(s)));
}

fn shutdown_twice_is_no_error(a: &Actor) {
    let s = a.stream();
    a.client(|| {
        a.note("first", socket::shutdown(s, libc::SHUT_WR));
        a.note("second", socket::shutdown(s, libc::SHUT_WR));
        a.note("reading too", socket::shutdown(s, libc::SHUT_RD));
    });
    a.server(|| {
        a.note("received", receive_to_end_text(s));
        a.note("shutdown", socket::shutdown(s, libc::SHUT_WR));
    });
    // Both directions have ended: the kernel's answer depends on when the FIN was seen.
    a.client(|| a.note("close", socket::close(s)));
}

fn shutdown_with_a_wrong_direction_fails(a: &Actor) {
    let s = a.stream();
    a.note("direction 3", socket::shutdown(s, 3));
    a.note("direction -1", socket::shutdown(s, -1));
    a.meet();
    a.client(|| a.note("send", io::send(s, b"fine", 0)));
    a.server(|| a.note("received", receive_text(s, 4)));
}

fn writing_after_own_shutdown_is_epipe(a: &Actor) {
    let s = a.stream();
    a.client(|| {
        wait::catch_signal(libc::SIGPIPE, 0);
        a.note("shutdown", socket::shutdown(s, libc::SHUT_WR));
        a.note("send", io::send(s, b"x", libc::MSG_NOSIGNAL));
        a.note("SIGPIPE", wait::caught(libc::SIGPIPE));
        a.note("write", io::write(s, b"x"));
        a.note("SIGPIPE", wait::caught(libc::SIGPIPE));
        a.note("writev", io::writev(s, &[b"x", b"y"]));
        a.note("sendmsg", io::sendmsg(s, &[b"x"], 0));
        a.note("SIGPIPE", wait::caught(libc::SIGPIPE));
        a.note("send nothing", io::send(s, b"", libc::MSG_NOSIGNAL));
    });
}

/// Both as fast as they can, so that much is under way at the close.
fn a_blocking_reader_hears_of_each_close_behind_much(a: &Actor) {
    const BLOCKS: usize = 300;
    let place = a.listen();
    let streams: Vec<Fd> = (0..16).map(|_| a.pair(&place)).collect();
    a.meet();
    let (block_of, mut room) = (vec![7; 100_000], vec![0; 1 << 20]);
    a.at_once(
        || {
            for &s in &streams {
                for block in 0..BLOCKS {
                    let size = if block % 2 == 0 { 100_000 } else { 20_000 };
                    assert_eq!(io::send(s, &block_of[..size], 0).count(), Some(size));
                }
                socket::close(s);
            }
        },
        || {
            for &s in &streams {
                let mut total = 0;
                while let Some(count @ 1..) = io::recv(s, &mut room, 0).count() {
                    total += count;
                }
                a.note("received to the end", total);
            }
        },
    );
}
fn close_delivers_what_was_written(a: &Actor) {
    let s = a.stream();
    a.client(|| {
        a.note("send", io::send(s, b"goodbye", 0));
        a.note("close", socket::close(s));
        a.note("close again", socket::close(s));
    });
    a.server(|| a.note("received", receive_to_end_text(s)));
}

fn close_behind_megabytes_delivers_them(a: &Actor) {
    let s = a.stream();
    let sent = a.told_by_client(|| {
        let block = crate::pattern::bytes(3, 0, 4 << 20);
        let mut sent = 0;
        while let Some(count) = io::send(s, &block[sent..], libc::MSG_DONTWAIT).count() {
            sent += count;
            if sent == block.len() {
                break;
            }
        }
        a.note("close", socket::close(s));
        sent as u64
    });
    a.server(|| {
        let text = receive_to_end(s, 3);
        let right = text == format!("{sent} bytes right, then 0");
        a.note("received", if right { "all of it, then 0".to_owned() } else { text });
    });
}

/// The server closes with bytes of the client's unread, and the client's end is told.
fn close_with_unread_data(a: &Actor, s: Fd) {
    a.client(|| a.note("send", io::send(s, b"never read", 0)));
    a.server(|| {
        a.until_readable(s, 10);
        a.note("close", socket::close(s));
    });
    a.client(|| a.until(s, libc::POLLERR | libc::POLLHUP));
}

fn close_with_unread_data_resets_the_peer(a: &Actor) {
    let s = a.stream();
    close_with_unread_data(a, s);
    a.client(|| {
        a.note("received", receive_to_end_text(s));
        a.note("then", receive_to_end_text(s));
        a.note("send", io::send(s, b"x", libc::MSG_NOSIGNAL));
    });
}

/// The end of the stream has no room in the peer's window when the reset comes.
fn a_reset_that_overtakes_a_shutdown_is_a_reset(a: &Actor) {
    const LONG: usize = 1_000_000;
    let a = &a.settled();
    for how in ["close", "exit", "kill"] {
        let place = a.listen();
        let about = |what: &str| format!("{how}: {what}");
        a.at_once(
            || {
                let s = a.connect(&place);
                a.warm_as_client(s);
                a.note(about("never read"), io::send(s, b"!", 0));
                a.until(s, libc::POLLERR | libc::POLLHUP);
                let mut room = vec![0; LONG];
                let end = loop {
                    let got = io::recv(s, &mut room, 0);
                    if !matches!(got.count(), Some(1..)) {
                        break got;
                    }
                };
                a.note(about("end"), end);
                a.note(about("then"), io::recv(s, &mut room, 0));
                a.note(about("send"), io::send(s, b"x", libc::MSG_NOSIGNAL));
            },
            || {
                let owner = a.child("owner", || {
                    let s = socket::accept(place.fd).fd("accept");
                    a.warm_as_server(s);
                    a.until_readable(s, 1);
                    a.note(about("sent"), send_all(s, 1, LONG, LONG));
                    a.note(about("shutdown"), socket::shutdown(s, libc::SHUT_WR));
                    match how {
                        "close" => a.note(about("close"), socket::close(s)),
                        "kill" => _ = process::kill(process::pid(), libc::SIGKILL),
                        _ => {}
                    }
                });
                a.note(about("owner"), process::wait_for(owner));
            },
        );
    }
}

fn a_receive_buffer_set_smaller_keeps_what_came_before_a_reset(a: &Actor) {
    let s = a.stream();
    a.server(|| a.note("sent", send_all(s, 1, 22_000, 22_000)));
    a.client(|| {
        a.until_readable(s, 22_000);
        socket::set_int(s, libc::SOL_SOCKET, libc::SO_RCVBUF, 6000);
    });
    a.server(|| a.note("close", socket::close(s)));
    a.client(|| {
        a.until(s, libc::POLLRDHUP);
        a.note("send", io::send(s, b"x", 0));
        a.until(s, libc::POLLERR);
        a.note("received", receive(s, 1, 22_000, 22_000));
    });
}

/// recvmmsg tells a pending error before it looks for bytes (Linux, do_recvmmsg).
fn several_messages_of_a_childs_are_told_of_a_reset_before_the_bytes(a: &Actor) {
    let s = a.stream();
    a.server(|| a.note("sent", send_all(s, 1, 70_000, 70_000)));
    close_with_unread_data(a, s);
    a.client(|| {
        let child = a.child("child", || a.note("recvmmsg", io::recvmmsg(s, &[1], 0).0));
        a.note("the child", process::wait_for(child));
        a.note("send", io::send(s, b"x", libc::MSG_NOSIGNAL));
    });
}

/// What ends a recvmmsg that has messages is told by the next call (Linux, do_recvmmsg).
fn several_messages_that_a_reset_ends_leave_it_to_the_next_call(a: &Actor) {
    let s = a.stream();
    a.client(|| a.note("send", io::send(s, b"abc", 0)));
    a.server(|| a.until_readable(s, 3));
    wake(
        a,
        || {
            let (got, lengths, _) = io::recvmmsg(s, &[3, 3], 0);
            a.note("recvmmsg", format!("{got} {lengths:?}"));
            a.note("polled", format!("{:x?}", wait::poll(&[(s, libc::POLLIN)], 0).1));
            a.note("then", receive_to_end_text(s));
            a.note("at last", receive_to_end_text(s));
        },
        || {
            a.note("linger", socket::set_linger(s, true, 0));
            a.note("close", socket::close(s));
        },
    );
}

fn close_with_unread_data_lets_the_peer_read_what_it_has(a: &Actor) {
    let s = a.stream();
    a.client(|| a.note("send", io::send(s, b"never read", 0)));
    a.server(|| {
        a.until_readable(s, 10);
        a.note("send", io::send(s, b"parting words", 0));
    });
    a.client(|| a.until_readable(s, 13));
    a.server(|| a.note("close", socket::close(s)));
    a.client(|| {
        a.until(s, libc::POLLERR | libc::POLLHUP);
        a.note("received", receive_to_end_text(s));
        a.note("then", receive_to_end_text(s));
    });
}

fn writing_to_a_closed_peer_ends_in_an_error(a: &Actor) {
    let s = a.stream();
    a.server(|| a.note("close", socket::close(s)));
    a.client(|| {
        a.until(s, libc::POLLIN);
        a.note("end", receive_to_end_text(s));
        a.note("first send", io::send(s, b"anyone?", libc::MSG_NOSIGNAL));
        a.until(s, libc::POLLERR | libc::POLLHUP);
        a.note("second send", io::send(s, b"anyone?", libc::MSG_NOSIGNAL));
        a.note("third send", io::send(s, b"anyone?", libc::MSG_NOSIGNAL));
        a.note("received", receive_to_end_text(s));
    });
}

/// The client has closed, and the server not read its last word.
fn closed_behind_a_word(a: &Actor) -> Fd {
    let s = a.stream();
    a.client(|| {
        a.note("send", io::send(s, b"word", 0));
        a.note("close", socket::close(s));
    });
    a.server(|| a.until(s, libc::POLLRDHUP));
    s
}

fn several_messages_for_a_peer_that_has_just_closed(a: &Actor) {
    let s = closed_behind_a_word(a);
    a.server(|| {
        wait::catch_signal(libc::SIGPIPE, 0);
        let (sent, sizes) = io::sendmmsg(s, &[b"one", b"two", b"three"]);
        a.note("sent", format!("{sent} {sizes:?}"));
        a.note("caught", wait::caught(libc::SIGPIPE));
        a.note("received", receive_to_end_text(s));
    });
}

fn a_file_for_a_peer_that_has_just_closed(a: &Actor) {
    const SIZE: usize = 70_000;
    let s = closed_behind_a_word(a);
    a.server(|| {
        wait::catch_signal(libc::SIGPIPE, 0);
        let file = socket::memfd();
        let _ = write_all(file, &bytes(1, 0, SIZE));
        a.note("sent", io::sendfile(s, file, 0, SIZE).0);
        a.note("caught", wait::caught(libc::SIGPIPE));
        a.note("received", receive_to_end_text(s));
    });
}

fn sigpipe_comes_unless_suppressed(a: &Actor) {
    let s = a.stream();
    a.server(|| a.note("close", socket::close(s)));
    a.client(|| {
        wait::catch_signal(libc::SIGPIPE, 0);
        a.until(s, libc::POLLIN);
        io::send(s, b"draws the reset", libc::MSG_NOSIGNAL);
        a.until(s, libc::POLLERR | libc::POLLHUP);
        a.note("suppressed", io::send(s, b"x", libc::MSG_NOSIGNAL));
        a.note("signals", wait::caught(libc::SIGPIPE));
        a.note("write", io::write(s, b"x"));
        a.note("send", io::send(s, b"x", 0));
        a.note("signals", wait::caught(libc::SIGPIPE));
    });
    a.client(|| {
        let child = a.child("default action", || {
            wait::default_signal(libc::SIGPIPE);
            io::write(s, b"x");
        });
        a.note("a child that does not catch it", process::wait_for(child));
    });
}

/// A close is over when close(2) returns, whatever else looks at the stream then.
fn each_of_many_closed_streams_answers_with_a_reset(a: &Actor) {
    let place = a.listen();
    for round in 0..25 {
        let s = a.pair(&place);
        a.meet();
        a.server(|| assert_eq!(socket::close(s), Got::Value(0)));
        a.client(|| {
            a.until(s, libc::POLLIN);
            io::send(s, b"draws the reset", libc::MSG_NOSIGNAL);
            a.until(s, libc::POLLERR | libc::POLLHUP);
            a.note(round, io::send(s, b"x", libc::MSG_NOSIGNAL));
            socket::close(s);
        });
    }
}

/// Also while its ends find each other.
fn each_of_many_streams_closed_with_bytes_unread_is_reset_at_once(a: &Actor) {
    let place = a.listen();
    for round in 0..40 {
        let s = a.pair(&place);
        let last = round % 8;
        for turn in 0..=last {
            a.server(|| {
                io::send(s, b"question", 0);
            });
            a.client(|| {
                a.until_readable(s, 8);
                if turn < last {
                    receive_text(s, 8);
                    io::send(s, b"answer", 0);
                }
            });
        }
        a.client(|| assert_eq!(socket::close(s), Got::Value(0)));
        a.server(|| {
            a.note(round, io::send(s, b"late", libc::MSG_NOSIGNAL));
            socket::close(s);
        });
    }
}

fn a_sendfile_is_told_of_a_reset(a: &Actor) {
    a.server(|| wait::catch_signal(libc::SIGPIPE, 0));
    for looks in [false, true] {
        for receives in [false, true] {
            let s = a.stream();
            a.server(|| a.note("send", io::send(s, b"unread", 0)));
            a.client(|| {
                a.until_readable(s, 6);
                a.note("close", socket::close(s));
            });
            a.server(|| {
                let file = socket::memfd();
                write_all(file, b"late").expect("a memfd takes all");
                if looks {
                    a.until(s, libc::POLLERR);
                }
                if receives {
                    a.note("received", io::recv(s, &mut [0; 4], 0));
                }
                for attempt in ["told", "again"] {
                    a.note(attempt, io::sendfile(s, file, 0, 4).0);
                }
                a.note("SIGPIPE", wait::caught(libc::SIGPIPE));
                a.note("end", io::recv(s, &mut [0; 4], 0));
                socket::close(s);
                socket::close(file);
            });
        }
    }
}

fn a_send_after_shutdown_tells_of_a_reset_first(a: &Actor) {
    for nothing in [false, true] {
        let s = a.stream();
        a.server(|| a.note("send", io::send(s, b"unread", 0)));
        a.client(|| a.until_readable(s, 6));
        a.server(|| a.note("shutdown", socket::shutdown(s, libc::SHUT_WR)));
        a.client(|| a.note("close", socket::close(s)));
        a.server(|| {
            a.until(s, libc::POLLERR);
            let bytes: &[u8] = if nothing { b"" } else { b"more" };
            a.note("told", io::send(s, bytes, libc::MSG_NOSIGNAL));
            a.note("again", io::send(s, bytes, libc::MSG_NOSIGNAL));
            socket::close(s);
        });
    }
}

/// A process that has shut its writing down, and leaves bytes unread when it ends.
fn an_end_behind_a_fin(a: &Actor, end: impl Fn()) {
    let place = a.listen();
    let mut accepted = -1;
    let mut client = -1;
    a.at_once(
        || {
            client = a.child("ends", || {
                let s = a.connect(&place);
                a.warm_as_client(s);
                socket::shutdown(s, libc::SHUT_WR);
                a.until_readable(s, 6);
                end();
            });
        },
        || {
            accepted = socket::accept(place.fd).fd("accept");
            a.warm_as_server(accepted);
            a.note("the end", io::recv(accepted, &mut [0; 8], 0));
            a.note("send", io::send(accepted, b"unread", 0));
        },
    );
    a.client(|| a.note("ends", process::wait_for(client)));
    a.server(|| {
        a.until(accepted, libc::POLLERR | libc::POLLHUP);
        a.note("told", io::send(accepted, b"x", libc::MSG_NOSIGNAL));
        a.note("received", receive_to_end_text(accepted));
    });
}

fn an_exit_with_bytes_unread_behind_a_fin_is_a_broken_pipe(a: &Actor) {
    an_end_behind_a_fin(a, || process::exit_now(3));
}

fn a_kill_with_bytes_unread_behind_a_fin_is_a_broken_pipe(a: &Actor) {
    an_end_behind_a_fin(a, || {
        process::kill(process::pid(), libc::SIGKILL);
    });
}

fn a_kill_behind_both_fins_resets_nothing(a: &Actor) {
    let place = a.listen();
    a.at_once(
        || {
            let child = a.child("victim", || {
                let s = a.connect(&place);
                a.warm_as_client(s);
                a.until_readable(s, 6);
                socket::shutdown(s, libc::SHUT_WR);
                socket::pipe_wait_for_ever(socket::pipe().0);
            });
            assert_eq!(a.hear(), "over");
            process::kill(child, libc::SIGKILL);
            a.note("victim", process::wait_for(child));
            a.tell("killed");
        },
        || {
            let s = socket::accept(place.fd).fd("accept");
            a.warm_as_server(s);
            a.note("send", io::send(s, b"unread", 0));
            a.note("shutdown", socket::shutdown(s, libc::SHUT_WR));
            a.note("the end", receive_to_end_text(s));
            a.tell("over");
            assert_eq!(a.hear(), "killed");
            wait::poll(&[], 50);
            let ended = libc::POLLRDHUP | libc::POLLHUP;
            a.note_mask("poll", s, libc::POLLIN | libc::POLLOUT | ended);
            let (got, error) = socket::getsockopt(s, libc::SOL_SOCKET, libc::SO_ERROR, 4);
            a.note("error", format!("{got} {error:?}"));
        },
    );
}

fn an_exec_that_closes_a_stream_with_bytes_unread_resets_it(a: &Actor) {
    let place = a.listen();
    let mut accepted = -1;
    a.at_once(
        || {
            let child = a.child("execs", || {
                let s = a.connect(&place);
                a.warm_as_client(s);
                a.until_readable(s, 6);
                socket::fcntl(s, libc::F_SETFD, libc::FD_CLOEXEC).value("F_SETFD");
                process::exec(&["/bin/true"]).value("exec");
            });
            a.note("execs", process::wait_for(child));
        },
        || {
            accepted = socket::accept(place.fd).fd("accept");
            a.warm_as_server(accepted);
            a.note("send", io::send(accepted, b"unread", 0));
        },
    );
    a.server(|| {
        a.until(accepted, libc::POLLERR | libc::POLLHUP);
        a.note("told", io::send(accepted, b"", libc::MSG_NOSIGNAL));
        a.note("again", io::send(accepted, b"x", libc::MSG_NOSIGNAL));
    });
}

fn an_exec_that_fails_resets_nothing(a: &Actor) {
    let s = a.stream();
    a.server(|| a.note("send", io::send(s, b"unread", 0)));
    a.client(|| {
        a.until_readable(s, 6);
        socket::fcntl(s, libc::F_SETFD, libc::FD_CLOEXEC).value("F_SETFD");
        a.note("exec", process::exec(&["/nonexistent"]));
        a.note("received", receive_text(s, 6));
        a.note("answer", io::send(s, b"heard", 0));
        let (got, linger) = socket::getsockopt(s, libc::SOL_SOCKET, libc::SO_LINGER, 8);
        a.note("linger", format!("{got} {linger:?}"));
        a.note("close", socket::close(s));
    });
    a.server(|| a.note("received", receive_to_end_text(s)));
}

fn linger_zero_resets_the_peer(a: &Actor) {
    let s = a.stream();
    a.client(|| {
        a.note("linger", socket::set_linger(s, true, 0));
        a.note("close", socket::close(s));
    });
    a.server(|| {
        a.until(s, libc::POLLERR | libc::POLLHUP);
        a.note("received", receive_to_end_text(s));
        a.note("then", receive_to_end_text(s));
        a.note("send", io::send(s, b"x", libc::MSG_NOSIGNAL));
    });
}

fn linger_zero_after_data_resets_the_peer(a: &Actor) {
    let s = a.stream();
    a.client(|| a.note("send", io::send(s, b"delivered", 0)));
    a.server(|| a.until_readable(s, 9));
    a.client(|| {
        a.note("linger", socket::set_linger(s, true, 0));
        a.note("close", socket::close(s));
    });
    a.server(|| {
        a.until(s, libc::POLLERR | libc::POLLHUP);
        a.note("received", receive_to_end_text(s));
        a.note("then", receive_to_end_text(s));
    });
}

fn lingering_close_waits_for_delivery(a: &Actor) {
    let s = a.stream();
    a.at_once(
        || {
            a.note("linger", socket::set_linger(s, true, 10));
            a.note("sent", send_all(s, 4, 1 << 20, 1 << 20));
            a.note("close", socket::close(s));
        },
        || a.note("received", receive_to_end(s, 4)),
    );
}

/// Makes the client's stream a reset one: the server closes with a byte unread.
fn reset_client(a: &Actor, s: Fd) {
    a.client(|| {
        io::send(s, b"unread", 0);
    });
    a.server(|| {
        a.until_readable(s, 6);
        socket::close(s);
    });
    a.client(|| a.until(s, libc::POLLERR | libc::POLLHUP));
}

fn so_error_tells_a_reset_once(a: &Actor) {
    let s = a.stream();
    a.note("before", socket::so_error(s));
    a.meet();
    reset_client(a, s);
    a.client(|| {
        a.note("first", socket::so_error(s));
        a.note("second", socket::so_error(s));
        a.note("recv", receive_to_end_text(s));
        a.note("send", io::send(s, b"x", libc::MSG_NOSIGNAL));
    });
}

fn reset_is_told_once_and_then_the_end(a: &Actor) {
    let s = a.stream();
    reset_client(a, s);
    a.client(|| {
        let mut room = [0; 8];
        a.note("first recv", io::recv(s, &mut room, 0));
        a.note("second recv", io::recv(s, &mut room, 0));
        a.note("send", io::send(s, b"x", libc::MSG_NOSIGNAL));
        a.note("SO_ERROR", socket::so_error(s));
        a.note("getpeername", socket::getpeername(s).0);
        a.note("shutdown", socket::shutdown(s, libc::SHUT_WR));
        a.note("close", socket::close(s));
    });
}

fn reset_wakes_a_blocked_reader(a: &Actor) {
    let s = a.stream();
    a.client(|| {
        io::send(s, b"unread", 0);
    });
    a.at_once(
        || {
            a.tell(&format!("{} {}", process::pid(), process::thread_id()));
            a.note("blocked recv", receive_to_end_text(s));
        },
        || {
            until_told_asleep(a);
            a.until_readable(s, 6);
            socket::close(s);
        },
    );
}

/// The error may come at any moment after the bytes, so it comes often.
fn a_blocked_receive_of_all_leaves_the_error_to_the_next_call(a: &Actor) {
    for _ in 0..10 {
        let s = a.stream();
        a.client(|| {
            io::send(s, b"unread", 0);
        });
        a.at_once(
            || {
                a.tell(&format!("{} {}", process::pid(), process::thread_id()));
                let got = io::recv(s, &mut [0; 64], libc::MSG_WAITALL);
                a.note("blocked recv", got);
                let ends = libc::POLLERR | libc::POLLHUP | libc::POLLRDHUP;
                a.note_mask("then", s, libc::POLLIN | libc::POLLOUT | ends);
                a.note("recv", io::recv(s, &mut [0; 64], 0));
                socket::close(s);
            },
            || {
                until_told_asleep(a);
                a.until_readable(s, 6);
                io::send(s, b"some", 0);
                socket::close(s);
            },
        );
    }
}

/// Waits until the thread that the other side has just named sleeps.
fn until_told_asleep(a: &Actor) {
    let word = a.hear();
    let (process, thread) = word.split_once(' ').expect("a process and a thread");
    a.until_asleep(process.parse().expect("a pid"), thread.parse().expect("a thread id"));
}

fn reset_wakes_a_blocked_writer(a: &Actor) {
    let s = a.stream();
    a.at_once(
        || {
            a.tell(&format!("{} {}", process::pid(), process::thread_id()));
            let block = crate::pattern::bytes(1, 0, 1 << 20);
            let error = loop {
                let got = io::send(s, &block, libc::MSG_NOSIGNAL);
                if got.count().is_none() {
                    break got;
                }
            };
            let told = error.is(libc::ECONNRESET) || error.is(libc::EPIPE);
            a.note("a reset in the end", told);
        },
        || {
            until_told_asleep(a);
            socket::close(s);
        },
    );
}

fn end_of_stream_wakes_a_blocked_reader(a: &Actor) {
    let s = a.stream();
    a.at_once(
        || {
            a.tell(&format!("{} {}", process::pid(), process::thread_id()));
            a.note("blocked recv", receive_to_end_text(s));
        },
        || {
            until_told_asleep(a);
            socket::shutdown(s, libc::SHUT_WR);
        },
    );
}

/// A child of the client that owns the stream alone, for deaths that leave the actor alive.
fn owner_child(a: &Actor, s: Fd, step: impl FnOnce()) -> process::Pid {
    let child = a.child("owner", step);
    socket::close(s);
    child
}

fn exit_without_close_is_a_close(a: &Actor) {
    let s = a.stream();
    a.client(|| {
        let child = owner_child(a, s, || {
            a.note("send", io::send(s, b"parting", 0));
        });
        a.note("child", process::wait_for(child));
    });
    a.server(|| {
        a.note("received", receive_to_end_text(s));
        a.note("send", io::send(s, b"x", libc::MSG_NOSIGNAL));
    });
}

fn exit_without_close_with_unread_data_is_a_reset(a: &Actor) {
    let s = a.stream();
    a.server(|| {
        io::send(s, b"unread", 0);
    });
    a.client(|| {
        let child = owner_child(a, s, || a.until_readable(s, 6));
        a.note("child", process::wait_for(child));
    });
    a.server(|| {
        a.until(s, libc::POLLERR | libc::POLLHUP);
        a.note("received", receive_to_end_text(s));
        a.note("then", receive_to_end_text(s));
    });
}

fn an_exit_beside_calls_that_only_look_at_bytes_is_a_reset(a: &Actor) {
    const LOOK: i32 = libc::MSG_PEEK | libc::MSG_WAITALL;
    type Call = fn(Fd) -> Got;
    let calls: [(&str, Call); 2] = [
        ("peek", |s| io::recv(s, &mut [0; 100], LOOK)),
        ("poll", |s| wait::poll(&[(s, libc::POLLPRI)], -1).0),
    ];
    let place = a.listen();
    for (what, call) in calls {
        let client = || {
            let child = a.child("looks", || {
                let s = a.connect(&place);
                a.warm_as_client(s);
                let (tell, told) = std::sync::mpsc::channel();
                std::thread::spawn(move || {
                    tell.send(process::thread_id()).expect("somebody hears");
                    call(s)
                });
                let thread = told.recv().expect("the thread runs");
                a.until_readable(s, 6);
                a.until_asleep(process::pid(), thread);
            });
            a.note(format!("{what}: child"), process::wait_for(child));
        };
        a.at_once(client, || {
            let s = socket::accept(place.fd).fd("accept");
            a.warm_as_server(s);
            io::send(s, b"unread", 0);
            a.until(s, libc::POLLERR | libc::POLLHUP);
            a.note(format!("{what}: received"), receive_to_end_text(s));
            a.note(format!("{what}: then"), receive_to_end_text(s));
            socket::close(s);
        });
    }
}

fn a_killed_writer_delivers_what_it_wrote(a: &Actor) {
    let s = a.stream();
    a.client(|| {
        let (out, into) = socket::pipe();
        let child = owner_child(a, s, || {
            a.note("sent", send_all(s, 2, 100_000, 10_000));
            io::write(into, b"!");
            socket::pipe_wait_for_ever(socket::pipe().0);
        });
        let mut room = [0; 1];
        io::read(out, &mut room);
        process::kill(child, libc::SIGKILL);
        a.note("child", process::wait_for(child));
    });
    a.server(|| a.note("received", receive_to_end(s, 2)));
}

fn a_killed_writer_in_full_flight_delivers_a_prefix(a: &Actor) {
    let s = a.stream();
    a.at_once(
        || {
            let child = owner_child(a, s, || {
                send_all(s, 2, 1 << 30, 100_000);
            });
            assert_eq!(a.hear(), "enough");
            process::kill(child, libc::SIGKILL);
            a.note("child", process::wait_for(child));
        },
        || {
            let mut checker = crate::pattern::Checker::new(2);
            let mut room = vec![0; 65_536];
            let mut told = false;
            let end = loop {
                let got = io::recv(s, &mut room, 0);
                match got.count() {
                    Some(0) | None => break got,
                    Some(count) => checker.take(&room[..count]),
                }
                if checker.count() > 3_000_000 && !told {
                    a.tell("enough");
                    told = true;
                }
            };
            a.note("in order", checker.verdict().ends_with("right"));
            a.note("the end", end);
        },
    );
}

fn a_killed_reader_resets_the_writer(a: &Actor) {
    let s = a.stream();
    a.server(|| {
        io::send(s, b"unread", 0);
    });
    a.client(|| {
        a.until_readable(s, 6);
        let child = owner_child(a, s, || socket::pipe_wait_for_ever(socket::pipe().0));
        process::kill(child, libc::SIGKILL);
        a.note("child", process::wait_for(child));
    });
    a.server(|| {
        a.until(s, libc::POLLERR | libc::POLLHUP);
        a.note("received", receive_to_end_text(s));
        a.note("send", io::send(s, b"x", libc::MSG_NOSIGNAL));
    });
}

/// A child with a stream of its own, and six bytes unread in it.
pub(super) fn victim_with_unread(a: &Actor, place: &Place) -> process::Pid {
    let (out, into) = socket::pipe();
    let victim = a.child("victim", || {
        let s = a.connect(place);
        a.warm_as_client(s);
        a.until_readable(s, 6);
        io::write(into, b"!");
        socket::pipe_wait_for_ever(socket::pipe().0);
    });
    io::read(out, &mut [0; 1]);
    victim
}

fn a_killed_reader_resets_what_so_error_tells(a: &Actor) {
    let place = a.listen();
    let mut accepted = -1;
    let mut victim = -1;
    a.at_once(
        || {
            victim = victim_with_unread(a, &place);
        },
        || {
            accepted = socket::accept(place.fd).fd("accept");
            a.warm_as_server(accepted);
            a.note("send", io::send(accepted, b"unread", 0));
        },
    );
    a.client(|| {
        process::kill(victim, libc::SIGKILL);
        a.note("victim", process::wait_for(victim));
    });
    a.server(|| {
        a.until(accepted, libc::POLLERR);
        for _ in 0..2 {
            let (got, error) = socket::getsockopt(accepted, libc::SOL_SOCKET, libc::SO_ERROR, 4);
            a.note("error", format!("{got} {error:?}"));
        }
        a.note("received", receive_to_end_text(accepted));
    });
}

fn a_killed_idle_peer_ends_the_stream(a: &Actor) {
    let s = a.stream();
    a.client(|| {
        let child = owner_child(a, s, || socket::pipe_wait_for_ever(socket::pipe().0));
        process::kill(child, libc::SIGKILL);
        a.note("child", process::wait_for(child));
    });
    a.server(|| a.note("received", receive_to_end_text(s)));
}

fn a_killed_peer_wakes_a_blocked_reader(a: &Actor) {
    let s = a.stream();
    a.at_once(
        || {
            let child = owner_child(a, s, || socket::pipe_wait_for_ever(socket::pipe().0));
            until_told_asleep(a);
            process::kill(child, libc::SIGKILL);
            a.note("child", process::wait_for(child));
        },
        || {
            a.tell(&format!("{} {}", process::pid(), process::thread_id()));
            a.note("received", receive_to_end_text(s));
        },
    );
}

#[derive(Clone, Copy)]
enum Ending {
    Kill,
    Close,
    /// With SO_LINGER and no time.
    Reset,
}

/// The server sleeps in `waits` when its peer, which nobody else has, ends with bytes unread.
fn end_the_peer_of(a: &Actor, round: usize, end: Ending, waits: impl Fn(Fd)) {
    let place = a.listen();
    a.at_once(
        || {
            let ((out, into), (go, goes)) = (socket::pipe(), socket::pipe());
            let victim = a.child("victim", || {
                let s = a.connect(&place);
                a.warm_as_client(s);
                a.until_readable(s, 6);
                io::write(into, b"!");
                io::read(go, &mut [0]).value("go");
                match end {
                    Ending::Kill => drop(process::kill(process::pid(), libc::SIGKILL)),
                    Ending::Close => drop(socket::close(s)),
                    Ending::Reset => {
                        socket::set_linger(s, true, 0).value("linger");
                        socket::close(s);
                    }
                }
            });
            io::read(out, &mut [0]).value("read");
            until_told_asleep(a);
            io::write(goes, b"!");
            a.note("victim", process::wait_for(victim));
        },
        || {
            let s = socket::accept(place.fd).fd("accept");
            a.warm_as_server(s);
            io::send(s, b"unread", 0);
            a.tell(&format!("{} {}", process::pid(), process::thread_id()));
            waits(s);
            a.note(format!("send {round}"), io::send(s, b"x", libc::MSG_NOSIGNAL));
            a.note("received", receive_to_end_text(s));
            a.note("send", io::send(s, b"x", libc::MSG_NOSIGNAL));
            socket::close(s);
        },
    );
    socket::close(place.fd);
}

fn a_killed_peer_with_bytes_unread_resets_a_blocked_reader(a: &Actor) {
    for round in 0..8 {
        end_the_peer_of(a, round, Ending::Kill, |s| a.note("received", receive_to_end_text(s)));
    }
}

/// The call has taken bytes and says so; the next one is told.
fn a_blocked_writer_is_told_of_an_end(a: &Actor, end: Ending) {
    const LENGTH: usize = 32 << 20;
    for round in 0..4 {
        end_the_peer_of(a, round, end, |s| {
            let sent = io::send(s, &vec![b'y'; LENGTH], libc::MSG_NOSIGNAL).value("send");
            a.note("a part was taken", sent > 0 && (sent as usize) < LENGTH);
        });
    }
}

fn a_killed_peer_resets_a_blocked_writer(a: &Actor) {
    a_blocked_writer_is_told_of_an_end(a, Ending::Kill);
}

fn a_close_with_bytes_unread_resets_a_blocked_writer(a: &Actor) {
    a_blocked_writer_is_told_of_an_end(a, Ending::Close);
}

fn linger_zero_resets_a_blocked_writer(a: &Actor) {
    a_blocked_writer_is_told_of_an_end(a, Ending::Reset);
}

fn half_close_then_reset_tells_both(a: &Actor) {
    let s = a.stream();
    a.client(|| a.note("shutdown", socket::shutdown(s, libc::SHUT_WR)));
    a.server(|| {
        a.note("end", receive_to_end_text(s));
        a.note("linger", socket::set_linger(s, true, 0));
        a.note("close", socket::close(s));
    });
    a.client(|| {
        a.until(s, libc::POLLERR | libc::POLLHUP);
        a.note("received", receive_to_end_text(s));
        a.note("then", receive_to_end_text(s));
    });
}

fn closing_at_the_same_time_is_clean(a: &Actor) {
    let place = a.listen();
    for _ in 0..30 {
        let s = a.pair(&place);
        a.meet();
        assert_eq!(socket::close(s), Got::Value(0));
        a.meet();
    }
    a.note("closed", 30);
}

fn listen_shutdown_listen_accepts_again(a: &Actor) {
    let place = a.listen();
    a.server(|| {
        a.note("shutdown", socket::shutdown(place.fd, libc::SHUT_RD));
        a.note("accept", socket::accept(place.fd));
    });
    a.client(|| {
        let s = a.tcp_socket();
        let address = socket::Address::as_seen_by_client(a.family, place.port);
        a.note("connect to nobody", socket::connect(s, &address));
        socket::close(s);
    });
    // A port that the kernel chose is given back by shutdown; listen chooses another.
    let port = a.told_by_server(|| {
        a.note("listen again", socket::listen(place.fd, 5));
        u64::from(socket::getsockname(place.fd).1.port())
    });
    let s = a.pair(&Place { port: port as u16, ..place });
    a.client(|| a.note("send", io::send(s, b"again", 0)));
    a.server(|| a.note("received", receive_text(s, 5)));
}

fn a_client_that_died_in_the_backlog_is_accepted_and_ended(a: &Actor) {
    let place = a.listen();
    a.client(|| {
        let s = a.connect(&place);
        a.note("send", io::send(s, b"too late", 0));
        a.note("close", socket::close(s));
    });
    a.server(|| {
        let s = socket::accept(place.fd).fd("accept");
        a.note("received", receive_to_end_text(s));
    });
    let s = a.pair(&place);
    a.client(|| a.note("send", io::send(s, b"alive", 0)));
    a.server(|| a.note("received", receive_text(s, 5)));
}

fn a_client_that_reset_in_the_backlog_is_accepted_and_reset(a: &Actor) {
    let place = a.listen();
    a.client(|| {
        let s = a.connect(&place);
        socket::set_linger(s, true, 0);
        a.note("close", socket::close(s));
    });
    a.server(|| {
        let s = socket::accept(place.fd).fd("accept");
        a.note("received", receive_to_end_text(s));
        a.note("getpeername", socket::getpeername(s).0);
    });
    let s = a.pair(&place);
    a.client(|| a.note("send", io::send(s, b"alive", 0)));
    a.server(|| a.note("received", receive_text(s, 5)));
}

fn data_sent_before_accept_is_there_after_it(a: &Actor) {
    let place = a.listen();
    let s = a.number_from(Side::Client, || {
        let s = a.connect(&place);
        a.note("sent", send_all(s, 1, 50_000, 5000));
        s as u64
    });
    a.at_once(
        || a.note("sent", send_all(s as Fd, 2, 50_000, 5000)),
        || {
            let s = socket::accept(place.fd).fd("accept");
            a.note("received", receive(s, 1, 50_000, 4096));
            a.note("received", receive(s, 2, 50_000, 4096));
        },
    );
}

fn connecting_to_nobody_is_refused(a: &Actor) {
    let place = a.listen();
    a.server(|| {
        socket::close(place.fd);
    });
    a.client(|| {
        let address = socket::Address::as_seen_by_client(a.family, place.port);
        let s = a.tcp_socket();
        a.note("connect", socket::connect(s, &address));
        a.note("SO_ERROR", socket::so_error(s));
        a.note("send", io::send(s, b"x", libc::MSG_NOSIGNAL));
        let s = a.tcp_socket();
        socket::set_nonblocking(s, true);
        a.note("non-blocking connect", socket::connect(s, &address));
        a.note_mask(
            "when refused",
            s,
            libc::POLLIN | libc::POLLOUT | libc::POLLERR | libc::POLLHUP | libc::POLLRDHUP,
        );
        a.note("SO_ERROR", socket::so_error(s));
        a.note("SO_ERROR again", socket::so_error(s));
    });
}

fn connecting_twice_is_told(a: &Actor) {
    let place = a.listen();
    let s = a.pair(&place);
    a.client(|| {
        let address = socket::Address::as_seen_by_client(a.family, place.port);
        a.note("connect again", socket::connect(s, &address));
        a.note("listen", socket::listen(s, 1));
        a.note("bind", socket::bind(s, &address));
        a.note("send", io::send(s, b"fine", 0));
    });
    a.server(|| a.note("received", receive_text(s, 4)));
}

fn after_both_shutdowns_the_peer_is_reset(a: &Actor) {
    let s = a.stream();
    a.client(|| a.note("shutdown", socket::shutdown(s, libc::SHUT_RDWR)));
    a.server(|| {
        a.note("first send", io::send(s, b"to nobody", libc::MSG_NOSIGNAL));
        a.until(s, libc::POLLERR | libc::POLLHUP);
        a.note("second send", io::send(s, b"to nobody", libc::MSG_NOSIGNAL));
        a.note("recv", receive_to_end_text(s));
    });
    a.client(|| a.note("recv", receive_to_end_text(s)));
}

fn nothing_is_sent_after_shutdown_with_bytes_unread(a: &Actor) {
    let s = a.stream();
    a.client(|| {
        a.note("send", io::send(s, b"unread", 0));
        a.note("shutdown", socket::shutdown(s, libc::SHUT_WR));
        a.note("nothing", io::send(s, b"", libc::MSG_NOSIGNAL));
        a.note("something", io::send(s, b"more", libc::MSG_NOSIGNAL));
    });
    a.server(|| a.note("received", receive_to_end_text(s)));
}

fn the_read_of_the_last_bytes_leaves_the_error(a: &Actor) {
    let s = a.stream();
    a.client(|| {
        a.note("send", io::send(s, b"never read", 0));
    });
    a.server(|| {
        a.until_readable(s, 10);
        a.note("send", io::send(s, b"last", 0));
    });
    a.client(|| a.until_readable(s, 4));
    a.server(|| a.note("close", socket::close(s)));
    a.client(|| {
        a.until(s, libc::POLLERR | libc::POLLHUP);
        let mut room = [0; 64];
        a.note("recv", io::recv(s, &mut room, 0));
        let ends = libc::POLLERR | libc::POLLHUP | libc::POLLRDHUP;
        a.note_mask("then", s, libc::POLLIN | libc::POLLOUT | ends);
        a.note("send", io::send(s, b"late", libc::MSG_NOSIGNAL));
        a.note("send again", io::send(s, b"late", libc::MSG_NOSIGNAL));
    });
}

/// The peer has shut down, or closed, and that call has returned.
fn who_takes_the_last_bytes_finds_the_end_at_once(a: &Actor) {
    const ROUNDS: usize = 40;
    let place = a.listen();
    for closes in [false, true] {
        for by_poll in [false, true] {
            let (mut late, mut ends) = (0, 0);
            for _ in 0..ROUNDS {
                let s = a.pair(&place);
                a.server(|| {
                    io::send(s, b"the last bytes", 0).value("send");
                    match closes {
                        true => socket::close(s),
                        false => socket::shutdown(s, libc::SHUT_WR),
                    };
                });
                a.client(|| {
                    let mut room = [0; 99];
                    assert_eq!(io::recv(s, &mut room, 0), Got::Value(14));
                    if by_poll {
                        let (got, _) = wait::poll(&[(s, libc::POLLIN)], 0);
                        late += usize::from(got != Got::Value(1));
                    }
                    let end = io::recv(s, &mut room, libc::MSG_DONTWAIT);
                    ends += usize::from(end == Got::Value(0));
                });
                if a.is_client() || !closes {
                    socket::close(s);
                }
            }
            if a.is_client() {
                let how = format!("closed {closes}, poll {by_poll}");
                a.note(format!("ends at once, {how}"), ends);
                a.note(format!("polls too late, {how}"), late);
            }
        }
    }
}
