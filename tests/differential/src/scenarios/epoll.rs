//! epoll over streams and other descriptors: levels, edges and one-shots, and what `epoll_ctl` changes.

use super::poll::{all_of, fill, reset_client, timed, wake};
use super::{scenarios, Scenario, Settings};
use crate::actor::{Actor, Carrier, Side};
use crate::calls::wait::{
    self, epoll_add, epoll_create, epoll_ctl, epoll_del, epoll_mod, epoll_pwait, epoll_wait, mask,
    poll,
};
use crate::calls::{io, process, socket, Fd, Got};
use crate::pattern::{self, receive, receive_text};
use libc::{
    EPOLLERR, EPOLLET, EPOLLEXCLUSIVE, EPOLLHUP, EPOLLIN, EPOLLONESHOT, EPOLLOUT, EPOLLRDHUP,
    POLLIN, POLLOUT, POLLRDHUP,
};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

pub const ALL: &[Scenario] = scenarios![Settings::All;
    epoll_level_is_told_until_it_is_read,
    epoll_edge_is_told_once_for_each_arrival,
    epoll_edge_comes_again_after_a_partial_read,
    epoll_edge_is_armed_again_by_mod,
    epoll_edge_is_made_by_every_shutdown,
    epoll_edge_of_room_is_made_by_a_send_buffers_size,
    epoll_edge_of_room_is_made_by_a_size_that_a_child_sets,
    epoll_edge_is_made_by_a_low_water_mark,
    a_one_shot_that_has_told_is_armed_again_by_a_child,
    a_registration_outlives_its_number_while_a_copy_is_open,
    a_stream_that_leaves_as_it_comes_to_a_ring_is_told_of,
    epoll_edge_of_room_comes_after_a_full_stream,
    a_copy_that_is_added_while_its_stream_gets_room_is_told_of_it,
    epoll_oneshot_is_told_once_until_mod,
    epoll_exclusive_tells_a_waiter,
    epoll_exclusive_cannot_be_changed,
    epoll_gives_data_back_as_it_was_set,
    epoll_mod_changes_events_and_data,
    epoll_del_ends_it,
    epoll_add_after_del_asks_anew,
    epoll_add_after_del_puts_a_stream_behind,
    epoll_add_after_del_puts_a_passed_stream_behind,
    epoll_del_holds_for_a_copy,
    epoll_del_holds_for_a_poll_of_the_set,
    epoll_del_holds_for_a_child,
    epoll_set_keeps_a_stream_that_came_back_while_a_child_closes_it,
    epoll_ctl_mistakes_are_named,
    epoll_wait_mistakes_are_named,
    two_epoll_sets_each_tell_of_one_stream,
    a_nested_epoll_set_becomes_ready,
    epoll_over_streams_pipes_and_events_tells_each,
    epoll_tells_of_a_copy_after_the_original_is_closed,
    epoll_forgets_a_closed_stream,
    epoll_masks_follow_the_life_of_a_stream,
    epoll_masks_after_a_reset,
    epoll_pwait_lets_signals_in_while_it_waits,
    epoll_waits_as_long_as_it_was_told,
    epoll_is_woken_by_a_stream_that_another_thread_adds,
    epoll_limits_the_events_but_forgets_none,
    a_listening_socket_is_readable_when_a_client_waits,
    epoll_set_shared_with_a_child_tells_both,
    an_edge_triggered_server_sends_a_file_to_a_polling_client,
    an_edge_triggered_server_sends_vectors_to_a_polling_client,
    an_edge_triggered_server_feeds_many_polling_clients,
    an_edge_triggered_reader_takes_a_short_receive_for_all_there_is,
    two_edge_triggered_ends_ask_and_answer_at_length,
    an_edge_triggered_server_receives_once_for_each_event,
    every_event_of_many_busy_streams_finds_its_bytes,
];

pub(super) fn receive_text_once(s: Fd, len: usize) -> String {
    let mut room = vec![0; len];
    let got = io::recv(s, &mut room, libc::MSG_WAITALL);
    format!("{got} {}", pattern::describe(&room))
}

/// A set with the stream in it, at the server.
pub(super) fn watched(s: Fd, events: i32) -> Fd {
    let set = epoll_create();
    epoll_add(set, s, events, 7).value("EPOLL_CTL_ADD");
    set
}

fn epoll_level_is_told_until_it_is_read(a: &Actor) {
    let s = a.stream();
    a.client(|| {
        io::send(s, b"abc", 0);
    });
    a.server(|| {
        let set = watched(s, EPOLLIN);
        a.until_readable(s, 3);
        a.note("first", epoll_wait(set, 4, 5000).said());
        a.note("again", epoll_wait(set, 4, 0).said());
        a.note("received", receive_text(s, 2));
        a.note("a byte is left", epoll_wait(set, 4, 0).said());
        a.note("received", receive_text(s, 1));
        a.note("nothing left", epoll_wait(set, 4, 0).said());
    });
}

fn epoll_edge_is_told_once_for_each_arrival(a: &Actor) {
    let s = a.stream();
    let mut set = -1;
    a.server(|| {
        set = watched(s, EPOLLIN | EPOLLET);
        a.note("before", epoll_wait(set, 4, 0).said());
    });
    for round in 0..20 {
        a.client(|| {
            io::send(s, b"abc", 0);
        });
        a.server(|| {
            a.until_readable(s, 3);
            a.note(format!("arrival {round}"), epoll_wait(set, 4, 5000).said());
            a.note("again", epoll_wait(set, 4, 0).said());
            a.note("received", receive_text(s, 3));
            a.note("after reading", epoll_wait(set, 4, 0).said());
        });
    }
}

fn epoll_edge_comes_again_after_a_partial_read(a: &Actor) {
    let s = a.stream();
    let mut set = -1;
    a.server(|| set = watched(s, EPOLLIN | EPOLLET | EPOLLRDHUP));
    a.client(|| {
        io::send(s, b"abcdef", 0);
    });
    a.server(|| {
        a.until_readable(s, 6);
        a.note("arrival", epoll_wait(set, 4, 5000).said());
        a.note("received", receive_text(s, 2));
        a.note("no edge", epoll_wait(set, 4, 0).said());
    });
    a.client(|| {
        io::send(s, b"gh", 0);
    });
    a.server(|| {
        a.until_readable(s, 6);
        a.note("a new edge", epoll_wait(set, 4, 5000).said());
        a.note("received", receive_text(s, 6));
    });
    a.client(|| {
        socket::shutdown(s, libc::SHUT_WR);
    });
    a.server(|| {
        a.until(s, POLLRDHUP);
        a.note("the end", epoll_wait(set, 4, 5000).said());
        a.note("once", epoll_wait(set, 4, 0).said());
    });
}

fn epoll_edge_is_armed_again_by_mod(a: &Actor) {
    let s = a.stream();
    a.client(|| {
        io::send(s, b"abc", 0);
    });
    a.server(|| {
        let set = watched(s, EPOLLIN | EPOLLET);
        a.until_readable(s, 3);
        a.note("arrival", epoll_wait(set, 4, 5000).said());
        a.note("again", epoll_wait(set, 4, 0).said());
        a.note("MOD", epoll_mod(set, s, EPOLLIN | EPOLLET, 8));
        a.note("after MOD", epoll_wait(set, 4, 5000).said());
        a.note("again", epoll_wait(set, 4, 0).said());
        epoll_mod(set, s, EPOLLIN | EPOLLOUT | EPOLLET, 9);
        a.note("for room too", epoll_wait(set, 4, 5000).said());
        a.note("again", epoll_wait(set, 4, 0).said());
    });
}

/// inet_shutdown wakes whoever waits, whatever has changed. (That of writing does it again, when its FIN
/// is acknowledged.)
fn epoll_edge_is_made_by_every_shutdown(a: &Actor) {
    let s = a.stream();
    a.client(|| {
        let set = watched(s, EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET);
        a.note("room", epoll_wait(set, 4, 5000).said());
        a.note("again", epoll_wait(set, 4, 0).said());
        for _ in 0..3 {
            a.note("shutdown", socket::shutdown(s, libc::SHUT_RD));
            a.note("told", epoll_wait(set, 4, 5000).said());
            a.note("again", epoll_wait(set, 4, 0).said());
        }
        a.note("no such direction", socket::shutdown(s, 7));
        a.note("not told", epoll_wait(set, 4, 0).said());
        a.note("of writing", socket::shutdown(s, libc::SHUT_WR));
        a.note("told", epoll_wait(set, 4, 5000).said());
    });
}

/// What a set with these events tells before and after `act`, of a stream with a byte to read.
fn told_after(a: &Actor, s: Fd, events: i32, act: impl FnOnce()) {
    let set = watched(s, events | EPOLLET);
    epoll_wait(set, 4, 0);
    a.note("again", epoll_wait(set, 4, 0).said());
    act();
    a.note("told", epoll_wait(set, 4, 0).said());
    a.note("once", epoll_wait(set, 4, 0).said());
}

const ASKED: [i32; 4] = [EPOLLIN, EPOLLOUT, EPOLLIN | EPOLLOUT, EPOLLRDHUP];

/// sk_setsockopt wakes writers, whether the buffer has grown or not.
fn epoll_edge_of_room_is_made_by_a_send_buffers_size(a: &Actor) {
    let s = a.stream();
    a.client(|| a.note("sent", io::send(s, b"x", 0)));
    a.server(|| {
        a.until_readable(s, 1);
        for name in [libc::SO_SNDBUF, libc::SO_SNDBUFFORCE, libc::SO_RCVBUF] {
            for events in ASKED {
                told_after(a, s, events, || {
                    socket::set_int(s, libc::SOL_SOCKET, name, 30_000);
                });
            }
        }
    });
}

fn epoll_edge_of_room_is_made_by_a_size_that_a_child_sets(a: &Actor) {
    let s = a.stream();
    a.server(|| {
        told_after(a, s, EPOLLIN | EPOLLOUT, || {
            let child = a.child("child", || {
                let set = socket::set_int(s, libc::SOL_SOCKET, libc::SO_SNDBUF, 30_000);
                a.note("set", set);
            });
            a.note("the child", process::wait_for(child));
        });
    });
}

/// tcp_set_rcvlowat wakes readers of what is there.
fn epoll_edge_is_made_by_a_low_water_mark(a: &Actor) {
    let s = a.stream();
    a.client(|| a.note("sent", io::send(s, b"x", 0)));
    a.server(|| {
        a.until_readable(s, 1);
        for events in ASKED {
            told_after(a, s, events, || {
                socket::set_int(s, libc::SOL_SOCKET, libc::SO_RCVLOWAT, 1);
            });
        }
    });
}

fn a_one_shot_that_has_told_is_armed_again_by_a_child(a: &Actor) {
    let s = a.stream();
    a.client(|| {
        io::send(s, b"abc", 0);
    });
    a.server(|| {
        let set = watched(s, EPOLLIN | EPOLLONESHOT);
        a.until_readable(s, 3);
        a.note("told", epoll_wait(set, 4, 5000).said());
        let child = a.child("child", || {
            a.note("the child reads", receive_text(s, 1));
            a.note("and arms it", epoll_mod(set, s, EPOLLIN | EPOLLONESHOT, 8));
        });
        a.note("the child", process::wait_for(child));
        a.note("told again", epoll_wait(set, 4, 5000).said());
        a.note("once", epoll_wait(set, 4, 0).said());
        a.note("armed here", epoll_mod(set, s, EPOLLIN | EPOLLONESHOT, 9));
        a.note("told", epoll_wait(set, 4, 5000).said());
    });
}

/// epoll(7), "Will closing a file descriptor cause it to be removed from all epoll interest lists?"
fn a_registration_outlives_its_number_while_a_copy_is_open(a: &Actor) {
    let s = a.stream();
    let (mut copy, mut set) = (-1, -1);
    a.server(|| {
        copy = socket::dup(s).value("dup") as Fd;
        set = watched(s, EPOLLIN);
        a.note("close", socket::close(s));
    });
    a.client(|| {
        io::send(s, b"abc", 0);
    });
    a.server(|| {
        a.until_readable(copy, 3);
        a.note("told of the old number", epoll_wait(set, 4, 5000).said());
        a.note("which is no number", epoll_mod(set, s, EPOLLIN, 1));
        a.note("the copy is not in it", epoll_mod(set, copy, EPOLLIN, 1));
        a.note("until it is", epoll_add(set, copy, EPOLLIN, 2));
        a.note("both are told", epoll_wait(set, 4, 5000).said());
        a.note("received", receive_text(copy, 3));
        a.note("nothing left", epoll_wait(set, 4, 0).said());
    });
}

fn epoll_edge_of_room_comes_after_a_full_stream(a: &Actor) {
    let s = a.stream();
    let mut set = -1;
    let full = a.told_by_server(|| {
        set = watched(s, EPOLLOUT | EPOLLET);
        a.note("room at first", epoll_wait(set, 4, 5000).said());
        a.note("once", epoll_wait(set, 4, 0).said());
        let full = fill(s);
        // Filling may itself have passed edges.
        epoll_wait(set, 4, 0);
        a.note("when full", epoll_wait(set, 4, 0).said());
        full
    });
    a.client(|| a.note("drained", all_of(receive(s, 0, full as usize, 1 << 16), full)));
    a.server(|| {
        a.note("an edge", epoll_wait(set, 4, 5000).said());
        a.note("there is room", io::send(s, b"x", libc::MSG_DONTWAIT));
    });
}

/// As the RPC library of NFS-Ganesha sends what finds no room.
fn a_copy_that_is_added_while_its_stream_gets_room_is_told_of_it(a: &Actor) {
    const ROUNDS: usize = 32;
    const BYTES: usize = (2 << 20) + 100;
    const END: u64 = 9;
    let s = a.stream();
    // Little room, so that there is none often.
    a.server(|| _ = socket::set_int(s, libc::SOL_SOCKET, libc::SO_SNDBUF, 1 << 16));
    for round in 0..ROUNDS {
        let client = || {
            let whole = all_of(receive(s, 0, BYTES, 1 << 16), BYTES as u64);
            a.note(format!("{round}: received"), whole);
        };
        let server = || {
            let set = watched(s, EPOLLIN | EPOLLONESHOT | EPOLLET);
            let bytes = pattern::bytes(0, 0, BYTES);
            let (events, (out, into)) = (AtomicU32::new(0), socket::pipe());
            std::thread::scope(|scope| {
                a.thread(scope, "waiter", || loop {
                    let told = epoll_wait(set, 1, -1);
                    if told.events.iter().any(|event| event.1 == END) {
                        break;
                    }
                    events.fetch_add(told.events.len() as u32, Relaxed);
                });
                let (mut sent, mut told) = (0, true);
                while sent < BYTES && told {
                    let got = io::send(s, &bytes[sent..], libc::MSG_DONTWAIT);
                    sent += got.count().unwrap_or(0) as usize;
                    if got.is(libc::EAGAIN) {
                        let before = events.load(Relaxed);
                        let copy = socket::dup(s).fd("dup");
                        epoll_add(set, copy, EPOLLOUT | EPOLLONESHOT | EPOLLET, 8).value("ADD");
                        told = a.settle(|| events.load(Relaxed) != before);
                        epoll_del(set, copy).value("DEL");
                        socket::close(copy);
                    }
                }
                a.note(format!("{round}: told each time"), told);
                epoll_add(set, out, EPOLLIN, END).value("ADD");
                io::write(into, b"x");
            });
            [set, out, into].into_iter().for_each(|fd| _ = socket::close(fd));
        };
        a.at_once(client, server);
    }
}

fn epoll_oneshot_is_told_once_until_mod(a: &Actor) {
    let s = a.stream();
    let mut set = -1;
    a.server(|| set = watched(s, EPOLLIN | EPOLLONESHOT));
    for round in 0..4 {
        a.client(|| {
            io::send(s, b"abc", 0);
        });
        a.server(|| {
            a.until_readable(s, 3);
            a.note(format!("shot {round}"), epoll_wait(set, 4, 5000).said());
            a.note("disarmed", epoll_wait(set, 4, 0).said());
            a.note("received", receive_text(s, 3));
        });
        a.client(|| {
            io::send(s, b"def", 0);
        });
        a.server(|| {
            a.until_readable(s, 3);
            a.note("still disarmed", epoll_wait(set, 4, 0).said());
            a.note("MOD", epoll_mod(set, s, EPOLLIN | EPOLLONESHOT, 7 + round));
            a.note("armed with data there", epoll_wait(set, 4, 5000).said());
            a.note("received", receive_text(s, 3));
            a.note("MOD", epoll_mod(set, s, EPOLLIN | EPOLLONESHOT, 7));
        });
    }
}

fn epoll_exclusive_tells_a_waiter(a: &Actor) {
    let s = a.stream();
    let (mut first, mut second) = (-1, -1);
    a.server(|| {
        first = watched(s, EPOLLIN | EPOLLEXCLUSIVE);
        second = watched(s, EPOLLIN | EPOLLEXCLUSIVE);
    });
    a.client(|| {
        io::send(s, b"x", 0);
    });
    a.server(|| {
        a.until_readable(s, 1);
        // Level-triggered: whoever asks while the byte is there is told.
        a.note("first", epoll_wait(first, 4, 5000).said());
        a.note("second", epoll_wait(second, 4, 5000).said());
        a.note("received", receive_text(s, 1));
        a.note("first", epoll_wait(first, 4, 0).said());
        a.note("second", epoll_wait(second, 4, 0).said());
    });
}

fn epoll_exclusive_cannot_be_changed(a: &Actor) {
    let s = a.stream();
    let set = watched(s, EPOLLIN | EPOLLEXCLUSIVE);
    a.note("MOD", epoll_mod(set, s, EPOLLIN, 1));
    a.note("DEL", epoll_del(set, s));
    a.note("ADD with ONESHOT", epoll_add(set, s, EPOLLIN | EPOLLEXCLUSIVE | EPOLLONESHOT, 1));
    a.note("ADD", epoll_add(set, s, EPOLLIN, 1));
    a.note("MOD to EXCLUSIVE", epoll_mod(set, s, EPOLLIN | EPOLLEXCLUSIVE, 1));
    a.meet();
}

fn epoll_gives_data_back_as_it_was_set(a: &Actor) {
    let s = a.stream();
    a.server(|| {
        let set = epoll_create();
        for data in [0, u64::MAX, 1 << 63, 0xDEAD_BEEF_0000_0001, s as u64] {
            a.note("ADD", epoll_add(set, s, EPOLLOUT, data));
            a.note(format!("data {data:x}"), epoll_wait(set, 4, 5000).said());
            a.note("DEL", epoll_del(set, s));
        }
    });
}

fn epoll_mod_changes_events_and_data(a: &Actor) {
    let s = a.stream();
    a.client(|| {
        io::send(s, b"x", 0);
    });
    a.server(|| {
        a.until_readable(s, 1);
        let set = watched(s, EPOLLIN);
        a.note("in", epoll_wait(set, 4, 5000).said());
        epoll_mod(set, s, EPOLLOUT, 21);
        a.note("out", epoll_wait(set, 4, 5000).said());
        epoll_mod(set, s, EPOLLIN | EPOLLOUT, 22);
        a.note("both", epoll_wait(set, 4, 5000).said());
        epoll_mod(set, s, 0, 23);
        a.note("neither", epoll_wait(set, 4, 20).said());
        epoll_mod(set, s, EPOLLRDHUP, 24);
        a.note("only the end", epoll_wait(set, 4, 20).said());
    });
}

fn epoll_del_ends_it(a: &Actor) {
    watched_with_a_byte(a, |set, s| {
        a.note("before", epoll_wait(set, 4, 5000).said());
        a.note("DEL", epoll_del(set, s));
        a.note("after", epoll_wait(set, 4, 20).said());
        a.note("DEL again", epoll_del(set, s));
        a.note("ADD again", epoll_add(set, s, EPOLLIN, 5));
        a.note("and again told", epoll_wait(set, 4, 5000).said());
    });
}

fn epoll_add_after_del_asks_anew(a: &Actor) {
    watched_with_a_byte(a, |set, s| {
        let asks: &[(&str, i32)] = &[
            ("in", EPOLLIN),
            ("room", EPOLLOUT),
            ("edge", EPOLLIN | EPOLLET),
            ("level after edge", EPOLLIN),
            ("once", EPOLLIN | EPOLLONESHOT),
            ("level after once", EPOLLIN | EPOLLOUT),
            ("nothing", 0),
            ("in after nothing", EPOLLIN),
        ];
        for (at, (what, events)) in asks.iter().enumerate() {
            a.note(format!("{what}: DEL"), epoll_del(set, s));
            a.note(format!("{what}: ADD"), epoll_add(set, s, *events, at as u64));
            a.note(format!("{what}: ADD once more"), epoll_add(set, s, *events, 77));
            a.note(format!("{what}: told"), epoll_wait(set, 4, 0).said());
            a.note(format!("{what}: told again"), epoll_wait(set, 4, 0).said());
        }
        a.note("DEL", epoll_del(set, s));
        a.note("MOD of what is gone", epoll_mod(set, s, EPOLLIN, 1));
        a.note("ADD", epoll_add(set, s, EPOLLIN, 1));
        a.note("MOD", epoll_mod(set, s, EPOLLIN, 2));
        a.note("told", epoll_wait(set, 4, 0).said());
    });
}

/// The kernel tells in the order in which things became ready, and who adds a stream anew while nothing
/// is to be read there starts at the end. Samba relies on it when it passes streams on.
fn added_anew(a: &Actor, between: impl FnOnce(Fd)) {
    let a = &a.settled();
    let place = a.listen();
    let s = a.pair(&place);
    a.client(|| {
        io::send(s, b"x", 0);
    });
    let set = epoll_create();
    a.server(|| {
        a.note("ADD of the stream", epoll_add(set, s, EPOLLIN, 1));
        a.note("ADD of the listener", epoll_add(set, place.fd, EPOLLIN, 2));
        a.note("told", epoll_wait(set, 1, 5000).said());
        a.note("received", receive_text(s, 1));
        a.note("DEL", epoll_del(set, s));
        a.note("ADD anew", epoll_add(set, s, EPOLLIN, 3));
        between(s);
    });
    a.client(|| {
        a.connect(&place);
    });
    a.server(|| a.until(place.fd, POLLIN));
    a.client(|| {
        io::send(s, b"z", 0);
    });
    a.server(|| {
        a.until_readable(s, 1);
        a.note("told first", epoll_wait(set, 1, 0).said());
        a.note("told second", epoll_wait(set, 1, 0).said());
    });
}

fn epoll_add_after_del_puts_a_stream_behind(a: &Actor) {
    added_anew(a, |_| {});
}

fn epoll_add_after_del_puts_a_passed_stream_behind(a: &Actor) {
    added_anew(a, |s| {
        let (one, _other) = socket::socketpair(libc::SOCK_STREAM);
        a.note("pass", io::pass_descriptor(one, s));
    });
}

/// An option has each leave once its first message is read, which is when many of them come to a ring.
fn a_stream_that_leaves_as_it_comes_to_a_ring_is_told_of(a: &Actor) {
    const STREAMS: usize = 400;
    let place = a.listen();
    let client = || {
        for _ in 0..STREAMS {
            let s = a.connect(&place);
            for _ in 0..2 {
                io::send(s, b"foo", 0).value("send");
                assert_eq!(receive_text(s, 1), "x");
            }
            socket::close(s);
        }
    };
    let server = || {
        let mut told = 0;
        for _ in 0..STREAMS {
            let s = socket::accept(place.fd).fd("accept");
            socket::set_nonblocking(s, true);
            let set = watched(s, EPOLLIN);
            for message in 0..2 {
                while io::recv(s, &mut [0; 8], 0).is(libc::EAGAIN) {
                    if epoll_wait(set, 1, 10_000).said() == "0 []" {
                        break;
                    }
                    told += usize::from(message == 1);
                }
                io::send(s, b"x", 0).value("send");
                if message == 0 {
                    socket::set_int(s, libc::SOL_SOCKET, libc::SO_RCVLOWAT, 2).value("RCVLOWAT");
                }
            }
            socket::close(set);
            socket::close(s);
        }
        a.note("some were told of", told > 0);
    };
    a.at_once(client, server);
}

/// A set with a stream that has a byte to read.
fn watched_with_a_byte(a: &Actor, act: impl FnOnce(Fd, Fd)) {
    let s = a.stream();
    a.client(|| {
        io::send(s, b"x", 0);
    });
    a.server(|| {
        let set = watched(s, EPOLLIN);
        a.until_readable(s, 1);
        act(set, s);
    });
}

fn epoll_del_holds_for_a_copy(a: &Actor) {
    watched_with_a_byte(a, |set, s| {
        let copy = socket::dup(s).fd("dup");
        a.note("DEL", epoll_del(set, s));
        socket::close(s);
        a.note("told of the copy", epoll_wait(set, 4, 20).said());
        a.note("ADD of the copy", epoll_add(set, copy, EPOLLIN, 4));
        a.note("told", epoll_wait(set, 4, 5000).said());
    });
}

fn epoll_del_holds_for_a_poll_of_the_set(a: &Actor) {
    watched_with_a_byte(a, |set, s| {
        a.note("DEL", epoll_del(set, s));
        a.note("poll of the set", poll(&[(set, POLLIN)], 20).0);
        let outer = watched(set, EPOLLIN);
        a.note("ADD", epoll_add(set, s, EPOLLIN, 3));
        a.note("a set of the set", epoll_wait(outer, 4, 5000).said());
    });
}

fn epoll_del_holds_for_a_child(a: &Actor) {
    watched_with_a_byte(a, |set, s| {
        a.note("DEL", epoll_del(set, s));
        let child = a.child("child", || {
            a.note("told", epoll_wait(set, 4, 20).said());
            a.note("ADD", epoll_add(set, s, EPOLLIN, 3));
        });
        a.note("child", process::wait_for(child));
        a.note("told", epoll_wait(set, 4, 5000).said());
    });
}

/// A child has the set, and the stream by the number under which its parent gets it back from a message.
fn epoll_set_keeps_a_stream_that_came_back_while_a_child_closes_it(a: &Actor) {
    watched_with_a_byte(a, |set, s| {
        let (out, into) = socket::pipe();
        let child = a.child("child", || {
            io::read(out, &mut [0]).value("the parent's word");
            a.note("close", socket::close(s));
        });
        a.note("DEL", epoll_del(set, s));
        let (one, other) = socket::socketpair(libc::SOCK_STREAM);
        a.note("pass", io::pass_descriptor(one, s));
        socket::close(s);
        let again = io::take_descriptor(other).fd("a passed descriptor");
        a.note("by the same number", again == s);
        a.note("ADD", epoll_add(set, again, EPOLLIN, 7));
        io::write(into, b"w").value("a word");
        a.note("child", process::wait_for(child));
        a.note("told", epoll_wait(set, 4, 5000).said());
        a.note("DEL", epoll_del(set, again));
    });
}

fn epoll_ctl_mistakes_are_named(a: &Actor) {
    let s = a.stream();
    let set = epoll_create();
    let (out, _into) = socket::pipe();
    a.note("ADD", epoll_add(set, s, EPOLLIN, 1));
    a.note("ADD twice", epoll_add(set, s, EPOLLIN, 1));
    a.note("MOD of a stranger", epoll_mod(set, out, EPOLLIN, 1));
    a.note("DEL of a stranger", epoll_del(set, out));
    a.note("ADD of a closed descriptor", epoll_add(set, 600, EPOLLIN, 1));
    a.note("ADD to a closed set", epoll_add(600, s, EPOLLIN, 1));
    a.note("ADD to a stream", epoll_add(s, out, EPOLLIN, 1));
    a.note("ADD of the set to itself", epoll_add(set, set, EPOLLIN, 1));
    a.note("unknown operation", epoll_ctl(set, 9, s, EPOLLIN, 1));
    a.note("ADD of a regular file", epoll_add(set, socket::memfd(), EPOLLIN, 1));
    a.meet();
}

fn epoll_wait_mistakes_are_named(a: &Actor) {
    let s = a.stream();
    a.note("no room", epoll_wait(watched(s, EPOLLIN), 0, 0).got);
    a.note("a closed set", epoll_wait(600, 4, 0).got);
    a.note("a stream", epoll_wait(s, 4, 0).got);
    a.meet();
}

fn two_epoll_sets_each_tell_of_one_stream(a: &Actor) {
    let s = a.stream();
    let (mut level, mut edge) = (-1, -1);
    a.server(|| {
        level = watched(s, EPOLLIN);
        edge = watched(s, EPOLLIN | EPOLLET);
    });
    for round in 0..3 {
        a.client(|| {
            io::send(s, b"x", 0);
        });
        a.server(|| {
            a.until_readable(s, 1);
            a.note(format!("edge {round}"), epoll_wait(edge, 4, 5000).said());
            a.note("level", epoll_wait(level, 4, 5000).said());
            a.note("edge again", epoll_wait(edge, 4, 0).said());
            a.note("level again", epoll_wait(level, 4, 0).said());
            a.note("received", receive_text(s, 1));
        });
    }
}

fn a_nested_epoll_set_becomes_ready(a: &Actor) {
    let s = a.stream();
    let (mut inner, mut outer) = (-1, -1);
    a.server(|| {
        inner = watched(s, EPOLLIN);
        outer = epoll_create();
        a.note("ADD of the set", epoll_add(outer, inner, EPOLLIN, 99));
        a.note("quiet", epoll_wait(outer, 4, 20).said());
    });
    a.client(|| {
        io::send(s, b"x", 0);
    });
    a.server(|| {
        a.note("outer", epoll_wait(outer, 4, 5000).said());
        a.note("poll of the inner", mask(poll(&[(inner, POLLIN)], 5000).1[0]));
        a.note("inner", epoll_wait(inner, 4, 5000).said());
        a.note("received", receive_text(s, 1));
        a.note("outer, when read", epoll_wait(outer, 4, 0).said());
        a.note("poll of the inner, when read", mask(poll(&[(inner, POLLIN)], 0).1[0]));
    });
    wake(
        a,
        || a.note("woken", epoll_wait(outer, 4, 15_000).said()),
        || {
            io::send(s, b"y", 0);
        },
    );
}

fn epoll_over_streams_pipes_and_events_tells_each(a: &Actor) {
    let place = a.listen();
    let (s, t) = (a.pair(&place), a.pair(&place));
    a.client(|| {
        io::send(t, b"x", 0);
    });
    a.server(|| {
        let (out, into) = socket::pipe();
        let event = wait::eventfd(0);
        let set = epoll_create();
        for (fd, data) in [(s, 1), (t, 2), (out, 3), (event, 4)] {
            epoll_add(set, fd, EPOLLIN, data).value("ADD");
        }
        a.until_readable(t, 1);
        a.note("a stream", epoll_wait(set, 8, 5000).said());
        io::write(into, b"x");
        a.note("and a pipe", epoll_wait(set, 8, 5000).said());
        io::write(event, &1u64.to_ne_bytes());
        a.note("and an event", epoll_wait(set, 8, 5000).said());
        a.note("received", receive_text(t, 1));
        a.note("without the stream", epoll_wait(set, 8, 5000).said());
    });
}

fn epoll_tells_of_a_copy_after_the_original_is_closed(a: &Actor) {
    let s = a.stream();
    let (mut set, mut copy) = (-1, -1);
    a.server(|| {
        set = watched(s, EPOLLIN);
        copy = socket::dup(s).fd("dup");
        a.note("close", socket::close(s));
    });
    a.client(|| {
        io::send(s, b"x", 0);
    });
    a.server(|| {
        a.note("told under the old data", epoll_wait(set, 4, 5000).said());
        a.note("received", receive_text(copy, 1));
        a.note("quiet", epoll_wait(set, 4, 0).said());
        a.note("close the copy", socket::close(copy));
        a.note("forgotten", epoll_wait(set, 4, 20).said());
    });
}

fn epoll_forgets_a_closed_stream(a: &Actor) {
    let s = a.stream();
    a.client(|| {
        io::send(s, b"x", 0);
    });
    a.server(|| {
        let set = watched(s, EPOLLIN);
        a.until_readable(s, 1);
        a.note("before", epoll_wait(set, 4, 5000).said());
        a.note("received", receive_text(s, 1));
        a.note("close", socket::close(s));
        a.note("after", epoll_wait(set, 4, 20).said());
        a.note("DEL", epoll_del(set, s));
        let again = socket::dup2(set, s);
        a.note("the number is another thing", again == Got::Value(s.into()));
        a.note("and not in the set", epoll_wait(set, 4, 20).said());
    });
}

const ALL_EVENTS: i32 = EPOLLIN | EPOLLOUT | EPOLLRDHUP | libc::EPOLLPRI;

/// Waits until epoll shows this mask, and notes what it shows.
fn note_epoll(a: &Actor, what: &str, set: Fd, wanted: i32) {
    a.settle(|| epoll_wait(set, 4, 0).events == [(wanted as u32, 7)]);
    a.note(what, epoll_wait(set, 4, 0).said());
}

fn epoll_masks_follow_the_life_of_a_stream(a: &Actor) {
    let s = a.stream();
    let set = watched(s, ALL_EVENTS);
    note_epoll(a, "idle", set, EPOLLOUT);
    a.meet();
    a.client(|| {
        io::send(s, b"x", 0);
    });
    a.server(|| note_epoll(a, "with data", set, EPOLLIN | EPOLLOUT));
    a.client(|| {
        socket::shutdown(s, libc::SHUT_WR);
    });
    a.server(|| {
        note_epoll(a, "with the end", set, EPOLLIN | EPOLLOUT | EPOLLRDHUP);
        a.note("received", receive_text(s, 2));
        note_epoll(a, "when read", set, EPOLLIN | EPOLLOUT | EPOLLRDHUP);
        socket::shutdown(s, libc::SHUT_WR);
        note_epoll(a, "both ended", set, EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLHUP);
    });
    a.client(|| {
        note_epoll(a, "both ended", set, EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLHUP);
        a.note("nothing asked", epoll_mod(set, s, 0, 7));
        note_epoll(a, "HUP alone", set, EPOLLHUP);
    });
}

fn epoll_masks_after_a_reset(a: &Actor) {
    let s = a.stream();
    let set = watched(s, ALL_EVENTS);
    reset_client(a, s);
    a.client(|| {
        let all = EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLHUP | EPOLLERR;
        note_epoll(a, "reset", set, all);
        a.note("SO_ERROR", socket::so_error(s));
        note_epoll(a, "error taken", set, all & !EPOLLERR);
    });
}

fn epoll_pwait_lets_signals_in_while_it_waits(a: &Actor) {
    let s = a.stream();
    a.server(|| {
        let set = watched(s, EPOLLIN);
        wait::catch_signal(libc::SIGUSR1, libc::SA_RESTART);
        wait::block_signals(&[libc::SIGUSR1]);
        process::kill_thread(process::thread_id(), libc::SIGUSR1).value("tgkill");
        a.note("epoll_wait while blocked", epoll_wait(set, 4, 20).said());
        a.note("with it blocked", epoll_pwait(set, 4, 20, &[libc::SIGUSR1]).said());
        a.note("letting it in", epoll_pwait(set, 4, 15_000, &[]).said());
        a.note("caught", wait::caught(libc::SIGUSR1));
    });
}

fn epoll_waits_as_long_as_it_was_told(a: &Actor) {
    let s = a.stream();
    let set = watched(s, EPOLLIN);
    timed(a, "not at all", 0, || epoll_wait(set, 4, 0).said());
    timed(a, "70 ms", 70, || epoll_wait(set, 4, 70).said());
    timed(a, "empty set, 20 ms", 20, || epoll_wait(epoll_create(), 4, 20).said());
    a.meet();
    wake(
        a,
        || a.note("for ever", epoll_wait(set, 4, -1).said()),
        || {
            io::send(s, b"x", 0);
        },
    );
}

fn epoll_is_woken_by_a_stream_that_another_thread_adds(a: &Actor) {
    let s = a.stream();
    a.client(|| {
        io::send(s, b"x", 0);
    });
    a.server(|| {
        a.until_readable(s, 1);
        let set = epoll_create();
        let (own, thread) = (process::pid(), process::thread_id());
        std::thread::scope(|scope| {
            a.thread(scope, "adder", || {
                a.until_asleep(own, thread);
                a.note("ADD", epoll_add(set, s, EPOLLIN, 3));
            });
            a.note("woken", epoll_wait(set, 4, 15_000).said());
        });
        epoll_mod(set, s, 0, 3);
        std::thread::scope(|scope| {
            a.thread(scope, "changer", || {
                a.until_asleep(own, thread);
                a.note("MOD", epoll_mod(set, s, EPOLLIN, 4));
            });
            a.note("woken", epoll_wait(set, 4, 15_000).said());
        });
    });
}

fn epoll_limits_the_events_but_forgets_none(a: &Actor) {
    let place = a.listen();
    let streams: Vec<Fd> = (0..6).map(|_| a.pair(&place)).collect();
    a.client(|| {
        for &s in &streams {
            io::send(s, b"x", 0);
        }
    });
    a.server(|| {
        let set = epoll_create();
        for (index, &s) in streams.iter().enumerate() {
            a.until_readable(s, 1);
            epoll_add(set, s, EPOLLIN | EPOLLET, index as u64);
        }
        let mut seen = Vec::new();
        // How many of those that are ready one answer holds is not promised.
        while seen.len() < 6 {
            let events = epoll_wait(set, 2, 5000);
            if events.events.is_empty() || events.events.len() > 2 {
                a.note("an answer", events.said());
                break;
            }
            seen.extend(events.events.iter().map(|&(_, data)| data));
        }
        seen.sort_unstable();
        a.note("all told, two at a time", format!("{seen:?}"));
        a.note("none left", epoll_wait(set, 2, 0).said());
    });
}

fn a_listening_socket_is_readable_when_a_client_waits(a: &Actor) {
    let place = a.listen();
    let s = a.pair(&place);
    let mut set = -1;
    a.server(|| {
        set = watched(place.fd, EPOLLIN);
        epoll_add(set, s, EPOLLIN, 8);
        a.note("quiet", epoll_wait(set, 4, 0).said());
        a.note_mask("of the listener", place.fd, 0);
    });
    a.client(|| {
        a.connect(&place);
    });
    a.server(|| {
        a.note("a client", epoll_wait(set, 4, 5000).said());
        a.note_mask("of the listener", place.fd, POLLIN);
        socket::accept(place.fd).fd("accept");
        a.note("accepted", epoll_wait(set, 4, 0).said());
    });
    a.client(|| {
        io::send(s, b"x", 0);
    });
    a.server(|| a.note("data", epoll_wait(set, 4, 5000).said()));
}

fn epoll_set_shared_with_a_child_tells_both(a: &Actor) {
    let s = a.stream();
    let mut set = -1;
    a.server(|| set = watched(s, EPOLLIN));
    a.client(|| {
        io::send(s, b"x", 0);
    });
    a.server(|| {
        a.until_readable(s, 1);
        let child = a.child("child", || a.note("told", epoll_wait(set, 4, 5000).said()));
        a.note("child", process::wait_for(child));
        a.note("told", epoll_wait(set, 4, 5000).said());
        a.note("received", receive_text(s, 1));
    });
}

/// Sends the first bytes of sequence 6 as an event-driven server does: until the stream is full,
/// then again after an edge. Says how it ended.
fn send_by_edges(
    sets: Fd,
    streams: &[Fd],
    total: usize,
    send: impl Fn(Fd, usize, usize) -> Got,
) -> String {
    let mut sent = vec![0; streams.len()];
    let mut left = streams.len();
    while left > 0 {
        let ready = epoll_wait(sets, 16, 10_000);
        if ready.events.is_empty() {
            return format!("no edge for long at {sent:?}");
        }
        for (_, data) in ready.events {
            let index = data as usize;
            while sent[index] < total {
                match send(streams[index], sent[index], total - sent[index]) {
                    Got::Errno(libc::EAGAIN) => break,
                    got => match got.count() {
                        None => return got.to_string(),
                        Some(count) => {
                            sent[index] += count;
                            left -= usize::from(sent[index] == total);
                        }
                    },
                }
            }
        }
    }
    format!("{total} bytes to each")
}

fn edges_of(streams: &[Fd]) -> Fd {
    let set = epoll_create();
    for (index, &s) in streams.iter().enumerate() {
        socket::set_nonblocking(s, true);
        epoll_add(set, s, EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET, index as u64).value("ADD");
    }
    set
}

/// A client that asks once and then only reads, waiting in poll.
fn ask_and_poll(a: &Actor, s: Fd, total: usize) {
    socket::set_nonblocking(s, true);
    io::send(s, b"GET", 0).value("send");
    a.note("received", receive(s, 6, total, 16_384));
}

const FILE_BYTES: usize = 8 << 20;

fn an_edge_triggered_server_sends_a_file_to_a_polling_client(a: &Actor) {
    let s = a.stream();
    a.at_once(
        || ask_and_poll(a, s, FILE_BYTES),
        || {
            let file = socket::memfd();
            pattern::write_all(file, &pattern::bytes(6, 0, FILE_BYTES)).expect("a memfd");
            a.note("request", receive_text(s, 3));
            let send = |s, from, len| io::sendfile(s, file, from as i64, len).0;
            a.note("sent", send_by_edges(edges_of(&[s]), &[s], FILE_BYTES, send));
        },
    );
    a.client(|| a.note_mask("when all was read", s, POLLOUT));
}

fn an_edge_triggered_server_sends_vectors_to_a_polling_client(a: &Actor) {
    let s = a.stream();
    a.at_once(
        || ask_and_poll(a, s, FILE_BYTES),
        || {
            let bytes = pattern::bytes(6, 0, FILE_BYTES);
            a.note("request", receive_text(s, 3));
            let send = |s, from: usize, len: usize| {
                let middle = from + len.min(100_000) / 3;
                io::writev(s, &[&bytes[from..middle], &bytes[middle..from + len]])
            };
            a.note("sent", send_by_edges(edges_of(&[s]), &[s], FILE_BYTES, send));
        },
    );
    a.client(|| a.note_mask("when all was read", s, POLLOUT));
}

fn an_edge_triggered_server_feeds_many_polling_clients(a: &Actor) {
    let place = a.listen();
    let streams: Vec<Fd> = (0..12).map(|_| a.pair(&place)).collect();
    a.meet();
    const EACH: usize = 2 << 20;
    a.at_once(
        || {
            std::thread::scope(|scope| {
                for (index, &s) in streams.iter().enumerate() {
                    a.thread(scope, &format!("{index}"), move || ask_and_poll(a, s, EACH));
                }
            });
        },
        || {
            let bytes = pattern::bytes(6, 0, EACH);
            for &s in &streams {
                assert_eq!(receive_text(s, 3), "GET");
            }
            let send = |s, from: usize, len: usize| {
                io::send(s, &bytes[from..from + len.min(70_000)], libc::MSG_NOSIGNAL)
            };
            a.note("sent", send_by_edges(edges_of(&streams), &streams, EACH, send));
        },
    );
}

/// Reads sequence 6 as epoll(7) allows and nginx does: a receive that gave less than it was asked
/// for is not repeated before the next edge.
fn receive_by_edges(set: Fd, s: Fd, total: usize, piece: usize) -> String {
    let mut checker = pattern::Checker::new(6);
    let mut room = vec![0; piece];
    while checker.count() < total as u64 {
        if epoll_wait(set, 4, 10_000).events.is_empty() {
            return format!("no edge for long at {}", checker.count());
        }
        loop {
            let got = io::recv(s, &mut room, 0);
            match got.count() {
                Some(count) if count > 0 => {
                    checker.take(&room[..count]);
                    if count < piece || checker.count() == total as u64 {
                        break;
                    }
                }
                _ if matches!(got, Got::Errno(libc::EAGAIN)) => break,
                _ => return format!("{}, then {got}", checker.verdict()),
            }
        }
    }
    checker.verdict()
}

fn an_edge_triggered_reader_takes_a_short_receive_for_all_there_is(a: &Actor) {
    const TOTAL: usize = 24 << 20;
    let s = a.stream();
    a.at_once(
        || {
            socket::set_nonblocking(s, true);
            a.note("sent", pattern::send_all(s, 6, TOTAL, 150_000));
        },
        || a.note("received", receive_by_edges(edges_of(&[s]), s, TOTAL, 8_192)),
    );
}

fn two_edge_triggered_ends_ask_and_answer_at_length(a: &Actor) {
    const ANSWER: usize = 1_500_000;
    let s = a.stream();
    a.at_once(
        || {
            let set = edges_of(&[s]);
            for round in 0..12 {
                io::send(s, b"GET", 0).value("send");
                a.note(format!("answer {round}"), receive_by_edges(set, s, ANSWER, 16_384));
            }
        },
        || {
            let answer = pattern::bytes(6, 0, ANSWER);
            let set = edges_of(&[s]);
            for _ in 0..12 {
                let mut room = [0; 3];
                while io::recv(s, &mut room, 0).count() != Some(3) {
                    epoll_wait(set, 4, 10_000);
                }
                let mut sent = 0;
                while sent < ANSWER {
                    match io::send(s, &answer[sent..], libc::MSG_NOSIGNAL).count() {
                        Some(count) => sent += count,
                        None => drop(epoll_wait(set, 4, 10_000)),
                    }
                }
            }
        },
    );
}

/// Each part of a question is an edge, and comes while the server takes what it was told of before. An edge that tells
/// of room alone, and counts a part as told, leaves both waiting.
fn an_edge_triggered_server_receives_once_for_each_event(a: &Actor) {
    const QUESTIONS: usize = 2_500;
    const PARTS: usize = 4;
    const PART: [u8; 7] = [7; 7];
    let s = a.stream();
    a.at_once(
        || {
            let answers = (0..QUESTIONS).take_while(|question| {
                for part in 0..PARTS {
                    io::send(s, &PART, libc::MSG_NOSIGNAL);
                    (0..(question + part) * 37 % 41).for_each(|_| std::hint::spin_loop());
                }
                let mut left = PARTS * PART.len();
                while left > 0 && wait::poll(&[(s, POLLIN)], 5000).0 == Got::Value(1) {
                    left -= io::recv(s, &mut [0; 300], 0).count().unwrap_or(left);
                }
                left == 0
            });
            a.note("answers", answers.count());
            socket::shutdown(s, libc::SHUT_WR);
        },
        || {
            let (set, mut room, mut received) = (edges_of(&[s]), [0; 300], 0);
            while received < QUESTIONS * PARTS * PART.len() {
                let told = epoll_wait(set, 4, 10_000).events;
                let Some((events, _)) = told.first() else { break };
                if events & EPOLLIN as u32 == 0 {
                    continue;
                }
                match io::recv(s, &mut room, 0) {
                    Got::Value(count @ 1..) => {
                        io::send(s, &room[..count as usize], libc::MSG_NOSIGNAL);
                        received += count as usize;
                    }
                    Got::Errno(libc::EAGAIN) => {}
                    _ => break,
                }
            }
            a.note("received", received);
        },
    );
}

/// One thread reads what its level-triggered set tells it of, once for each event; the other side has
/// at most one message of each stream under way. New streams come again and again, and change
/// carriers one by one.
fn every_event_of_many_busy_streams_finds_its_bytes(a: &Actor) {
    let rounds = if a.carrier == Carrier::Tcp { 60 } else { 2 };
    for _ in 0..rounds {
        let place = a.listen();
        let streams: Vec<Fd> = (0..24).map(|_| a.pair(&place)).collect();
        a.meet();
        let in_vain = exchange_by_level(a, &streams, 24);
        a.note("events without bytes", in_vain);
        a.meet();
        streams.into_iter().chain((place.fd >= 0).then_some(place.fd)).for_each(|fd| {
            socket::close(fd);
        });
    }
}

/// So many messages each way over each stream, asked for by the client; returns how many events came
/// to nothing.
fn exchange_by_level(a: &Actor, streams: &[Fd], each: usize) -> usize {
    let set = epoll_create();
    for &s in streams {
        socket::set_nonblocking(s, true);
        epoll_add(set, s, EPOLLIN, s as u64).value("ADD");
        if a.side == Side::Client {
            io::send(s, b"whatever", 0).value("send");
        }
    }
    let (mut left, mut in_vain) = (streams.len() * each, 0);
    while left > 0 {
        let told = epoll_wait(set, streams.len(), 10_000).events;
        assert!(!told.is_empty(), "no event for long, {left} messages left");
        for (_, s) in told {
            let mut room = [0; 64];
            if io::recv(s as Fd, &mut room, 0).count() != Some(8) {
                in_vain += 1;
                continue;
            }
            left -= 1;
            // The client has asked once for each stream before.
            if a.side == Side::Server || left >= streams.len() {
                io::send(s as Fd, b"whatever", 0).value("send");
            }
        }
    }
    socket::close(set);
    in_vain
}
