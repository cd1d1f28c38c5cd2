//! What epoll tells first, of streams and of what only the kernel knows: a new connection, a stream on
//! TCP.

use super::{scenarios, Scenario, Settings};
use crate::actor::{self, Actor, Place};
use crate::calls::wait::{epoll_add, epoll_create, epoll_wait};
use crate::calls::{io, socket, Fd};
use crate::pattern::receive_text;
use libc::{EPOLLET, EPOLLIN, POLLIN, POLLRDHUP};

pub const ALL: &[Scenario] = scenarios![Settings::All;
    bytes_sent_before_a_connection_are_told_before_it,
    bytes_sent_after_a_connection_are_told_after_it,
    the_end_of_a_stream_before_a_connection_is_told_before_it,
    a_connection_between_the_bytes_of_two_streams_is_told_between_them,
    a_wait_for_one_event_tells_the_first,
    edges_of_a_stream_and_of_new_connections_are_told_in_order,
    bytes_of_a_new_stream_and_of_an_old_one_are_told_in_order,
];

/// What happens at the client.
#[derive(Clone, Copy)]
enum Happens {
    Bytes(Fd),
    End(Fd),
    Connection(Place),
}
use Happens::{Bytes, Connection, End};

/// At the client, one after the other, and each seen by the server without asking its set.
fn happen(a: &Actor, all: &[Happens]) {
    for happens in all {
        a.client(|| match happens {
            Bytes(s) => _ = io::send(*s, b"x", 0).value("send"),
            End(s) => _ = socket::close(*s),
            Connection(place) => _ = a.connect(place),
        });
        a.server(|| match happens {
            Bytes(s) => a.until_readable(*s, 1),
            End(s) => a.until(*s, POLLRDHUP),
            Connection(place) => a.until(place.fd, POLLIN),
        });
    }
}

/// The server asks its set; the client has done nothing since, nor does it before the server has.
fn ask(a: &Actor, step: impl FnOnce()) {
    a.told_by_server(|| {
        step();
        0
    });
}

/// A set with the listener as 100 and the streams as 0, 1 and so on.
fn set_of(a: &Actor, place: &Place, streams: &[Fd], events: i32) -> Fd {
    let mut set = -1;
    a.meet();
    ask(a, || {
        set = epoll_create();
        epoll_add(set, place.fd, events, 100).value("ADD");
        for (&stream, data) in streams.iter().zip(0..) {
            epoll_add(set, stream, events, data).value("ADD");
        }
        a.note("nothing yet", epoll_wait(set, 8, 0).said());
    });
    set
}

/// The data of an answer, in its order.
fn told(set: Fd, most: usize) -> String {
    let data: Vec<u64> = epoll_wait(set, most, 5000).events.iter().map(|event| event.1).collect();
    format!("{data:?}")
}

/// What the set tells at first; then everything is taken, and it has nothing left to tell.
fn tells(a: &Actor, set: Fd, streams: &[Fd], place: &Place) {
    ask(a, || {
        a.note("told", told(set, 8));
        streams.iter().for_each(|s| a.note("received", receive_text(*s, 1)));
        socket::accept(place.fd).fd("accept");
        a.note("and no more", epoll_wait(set, 8, 0).said());
    });
}

fn bytes_sent_before_a_connection_are_told_before_it(a: &Actor) {
    let a = &a.settled();
    let place = a.listen();
    let s = a.pair(&place);
    let set = set_of(a, &place, &[s], EPOLLIN);
    for _ in 0..3 {
        happen(a, &[Bytes(s), Connection(place)]);
        tells(a, set, &[s], &place);
    }
}

fn bytes_sent_after_a_connection_are_told_after_it(a: &Actor) {
    let a = &a.settled();
    let place = a.listen();
    let s = a.pair(&place);
    let set = set_of(a, &place, &[s], EPOLLIN);
    for _ in 0..3 {
        happen(a, &[Connection(place), Bytes(s)]);
        tells(a, set, &[s], &place);
    }
}

fn the_end_of_a_stream_before_a_connection_is_told_before_it(a: &Actor) {
    let a = &a.settled();
    let place = a.listen();
    let s = a.pair(&place);
    let set = set_of(a, &place, &[s], EPOLLIN);
    happen(a, &[Bytes(s), End(s), Connection(place)]);
    ask(a, || a.note("told", told(set, 8)));
}

fn a_connection_between_the_bytes_of_two_streams_is_told_between_them(a: &Actor) {
    let a = &a.settled();
    let place = a.listen();
    let (s, t) = (a.pair(&place), a.pair(&place));
    let set = set_of(a, &place, &[s, t], EPOLLIN);
    for (first, second) in [(s, t), (t, s), (s, t)] {
        happen(a, &[Bytes(first), Connection(place), Bytes(second)]);
        tells(a, set, &[s, t], &place);
    }
}

fn a_wait_for_one_event_tells_the_first(a: &Actor) {
    let a = &a.settled();
    let place = a.listen();
    let s = a.pair(&place);
    let set = set_of(a, &place, &[s], EPOLLIN);
    for stream_first in [true, false, true] {
        let (bytes, connection) = (Bytes(s), Connection(place));
        happen(a, &if stream_first { [bytes, connection] } else { [connection, bytes] });
        ask(a, || {
            for _ in 0..2 {
                let said = told(set, 1);
                if said == "[100]" {
                    socket::accept(place.fd).fd("accept");
                } else {
                    a.note("received", receive_text(s, 1));
                }
                a.note("told", said);
            }
            a.note("and no more", epoll_wait(set, 8, 0).said());
        });
    }
}

fn edges_of_a_stream_and_of_new_connections_are_told_in_order(a: &Actor) {
    let a = &a.settled();
    let place = a.listen();
    let s = a.pair(&place);
    let set = set_of(a, &place, &[s], EPOLLIN | EPOLLET);
    for stream_first in [true, false, true] {
        let (bytes, connection) = (Bytes(s), Connection(place));
        happen(a, &if stream_first { [bytes, connection] } else { [connection, bytes] });
        tells(a, set, &[s], &place);
    }
}

fn bytes_of_a_new_stream_and_of_an_old_one_are_told_in_order(a: &Actor) {
    let a = &a.settled();
    let place = a.listen();
    let s = a.pair(&place);
    for old_first in [true, false] {
        let t = a.new_stream(&place);
        if actor::pairs_at_once() {
            // It does not stay on TCP.
            a.warm(t);
        }
        let set = set_of(a, &place, &[s, t], EPOLLIN);
        happen(a, &if old_first { [Bytes(s), Bytes(t)] } else { [Bytes(t), Bytes(s)] });
        ask(a, || {
            a.note("told", told(set, 8));
            a.note("received", receive_text(s, 1) + &receive_text(t, 1));
        });
    }
}
