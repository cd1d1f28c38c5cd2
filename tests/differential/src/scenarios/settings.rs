//! Options that are set before there is a stream, by another process, or to what makes no sense; and
//! features of the kernel's TCP that a ring has not.

use super::{scenarios, Scenario, Settings};
use crate::actor::Actor;
use crate::calls::process::wait_for;
use crate::calls::socket::{get_int, set_int, set_timeout, Address};
use crate::calls::{io, socket, unusual, wait, Fd, Got};
use crate::pattern::{receive, receive_text, send_all};
use libc::{IPPROTO_IP, IPPROTO_IPV6, IPPROTO_TCP, SOL_SOCKET};
use std::time::{Duration, Instant};

pub const ALL: &[Scenario] = scenarios![Settings::All;
    options_set_before_there_is_a_stream_hold_for_it,
    options_set_by_a_child_hold_for_its_parent,
    a_parent_whose_child_set_o_nonblock_writes_more_than_a_ring,
    time_outs_out_of_range_are_refused,
    a_negative_time_out_waits_for_nothing,
    a_negative_time_out_of_the_listener_is_inherited,
    a_look_at_an_ended_stream_takes_its_error,
    a_peek_offset_of_the_listener_is_inherited,
    a_filter_lets_everything_through,
    a_checked_filter_lets_everything_through,
    a_stream_under_kernel_tls_goes_on,
    a_stream_that_was_under_repair_goes_on,
    signed_segments_carry_a_stream,
    notices_of_zero_copy_cover_every_send,
    zero_copy_that_was_not_asked_for_is_a_plain_send,
    a_fast_open_sends_with_the_first_segment,
    a_fast_open_waits_for_the_first_write,
    a_socket_that_connects_to_itself_hears_itself,
    two_connects_at_once_make_one_stream,
];

const TCP_NOTSENT_LOWAT: i32 = 25;

/// Each with a value that is not its default.
const INHERITED: &[(i32, i32, &str, i32)] = &[
    (SOL_SOCKET, libc::SO_KEEPALIVE, "SO_KEEPALIVE", 1),
    (SOL_SOCKET, libc::SO_PRIORITY, "SO_PRIORITY", 4),
    (SOL_SOCKET, libc::SO_RCVBUF, "SO_RCVBUF", 90_000),
    (SOL_SOCKET, libc::SO_SNDBUF, "SO_SNDBUF", 80_000),
    (SOL_SOCKET, libc::SO_REUSEADDR, "SO_REUSEADDR", 1),
    (SOL_SOCKET, libc::SO_DONTROUTE, "SO_DONTROUTE", 1),
    (IPPROTO_TCP, libc::TCP_NODELAY, "TCP_NODELAY", 1),
    (IPPROTO_TCP, libc::TCP_KEEPIDLE, "TCP_KEEPIDLE", 77),
    (IPPROTO_TCP, libc::TCP_KEEPINTVL, "TCP_KEEPINTVL", 7),
    (IPPROTO_TCP, libc::TCP_KEEPCNT, "TCP_KEEPCNT", 4),
    (IPPROTO_TCP, libc::TCP_SYNCNT, "TCP_SYNCNT", 3),
    (IPPROTO_TCP, libc::TCP_LINGER2, "TCP_LINGER2", 9),
    (IPPROTO_TCP, libc::TCP_USER_TIMEOUT, "TCP_USER_TIMEOUT", 90_000),
    (IPPROTO_TCP, libc::TCP_MAXSEG, "TCP_MAXSEG", 1000),
    (IPPROTO_TCP, TCP_NOTSENT_LOWAT, "TCP_NOTSENT_LOWAT", 16_384),
    (IPPROTO_IP, libc::IP_TOS, "IP_TOS", 16),
    (IPPROTO_IP, libc::IP_TTL, "IP_TTL", 33),
    (IPPROTO_IPV6, libc::IPV6_TCLASS, "IPV6_TCLASS", 16),
];

fn options_set_before_there_is_a_stream_hold_for_it(a: &Actor) {
    let place = a.listen();
    let set = |fd: Fd| {
        for &(level, name, text, value) in INHERITED {
            a.note(format!("set {text}"), set_int(fd, level, name, value));
        }
        a.note("set SO_LINGER", socket::set_linger(fd, true, 3));
        a.note("set SO_RCVTIMEO", set_timeout(fd, libc::SO_RCVTIMEO, 7000));
        a.note("set SO_SNDTIMEO", set_timeout(fd, libc::SO_SNDTIMEO, 8000));
        let name = IPPROTO_TCP;
        a.note("set TCP_CONGESTION", socket::setsockopt(fd, name, libc::TCP_CONGESTION, b"reno"));
    };
    let get = |fd: Fd| {
        for &(level, name, text, _) in INHERITED {
            a.note(text, get_int(fd, level, name));
        }
        for (level, name, room) in [
            (SOL_SOCKET, libc::SO_LINGER, 8),
            (SOL_SOCKET, libc::SO_RCVTIMEO, 16),
            (SOL_SOCKET, libc::SO_SNDTIMEO, 16),
            (IPPROTO_TCP, libc::TCP_CONGESTION, 16),
        ] {
            a.note(
                format!("{level} {name}"),
                format!("{:?}", socket::getsockopt(fd, level, name, room)),
            );
        }
    };
    a.server(|| set(place.fd));
    let s = if a.is_client() {
        let s = a.tcp_socket();
        set(s);
        let there = Address::as_seen_by_client(a.family, place.port);
        socket::connect(s, &there).value("connect");
        s
    } else {
        socket::accept(place.fd).fd("accept")
    };
    a.warm(s);
    get(s);
    a.meet();
    a.at_once(
        || a.note("sent", send_all(s, 1, 1 << 20, 30_000)),
        || a.note("received", receive(s, 1, 1 << 20, 30_000)),
    );
    a.at_once(
        || a.note("received", receive(s, 2, 1 << 20, 30_000)),
        || a.note("sent", send_all(s, 2, 1 << 20, 30_000)),
    );
    get(s);
    a.meet();
    a.note("close", socket::close(s));
}

fn options_set_by_a_child_hold_for_its_parent(a: &Actor) {
    let s = a.stream();
    a.server(|| {
        let child = a.child("setter", || {
            a.note("nodelay", set_int(s, IPPROTO_TCP, libc::TCP_NODELAY, 1));
            a.note("keepalive", set_int(s, SOL_SOCKET, libc::SO_KEEPALIVE, 1));
            a.note("time-out", set_timeout(s, libc::SO_RCVTIMEO, 60));
        });
        a.note("child", wait_for(child));
        a.note("nodelay", get_int(s, IPPROTO_TCP, libc::TCP_NODELAY));
        a.note("keepalive", get_int(s, SOL_SOCKET, libc::SO_KEEPALIVE));
        a.note("recv", io::recv(s, &mut [0; 4], 0));
        a.note("no time-out", set_timeout(s, libc::SO_RCVTIMEO, 0));
        let child = a.child("unblocker", || socket::set_nonblocking(s, true));
        a.note("child", wait_for(child));
        a.note("recv", io::recv(s, &mut [0; 4], 0));
        let flags = socket::fcntl(s, libc::F_GETFL, 0).value("F_GETFL") as i32;
        a.note("non-blocking", flags & libc::O_NONBLOCK != 0);
        let child = a.child("blocker", || socket::set_nonblocking(s, false));
        a.note("child", wait_for(child));
    });
    a.at_once(
        || {
            wait::poll(&[], 50);
            a.note("send", io::send(s, b"late", 0));
        },
        || a.note("recv waits", io::recv(s, &mut [0; 4], 0)),
    );
}

fn a_parent_whose_child_set_o_nonblock_writes_more_than_a_ring(a: &Actor) {
    const MORE_THAN_A_RING: usize = 1_500_000;
    let s = a.stream();
    a.server(|| {
        let child = a.child("unblocker", || socket::set_nonblocking(s, true));
        a.note("child", wait_for(child));
        let (block, mut sent) = (vec![0; 60_000], 0);
        let give_up = Instant::now() + Duration::from_secs(5);
        while sent < MORE_THAN_A_RING && Instant::now() < give_up {
            match io::write(s, &block) {
                Got::Errno(libc::EAGAIN) => drop(wait::poll(&[(s, libc::POLLOUT)], 1000)),
                got => sent += got.count().unwrap_or(0),
            }
        }
        a.note("all of it", sent >= MORE_THAN_A_RING);
    });
}

/// A call that a time-out ends, and whether it took about as long.
fn ends_in_time(a: &Actor, what: &str, least_ms: u64, call: impl FnOnce() -> Got) {
    let start = Instant::now();
    let got = call();
    let took = start.elapsed();
    // The kernel counts these in ticks of 10 ms, the first of which has begun.
    let least = Duration::from_millis(least_ms.saturating_sub(10));
    let good = took >= least && took < least + Duration::from_secs(5);
    a.note(what, format!("{got}, in time: {good}"));
}

fn time_outs_out_of_range_are_refused(a: &Actor) {
    let s = a.stream();
    for (name, text) in [(libc::SO_RCVTIMEO, "receive"), (libc::SO_SNDTIMEO, "send")] {
        a.note("set", set_timeout(s, name, 60));
        for (seconds, microseconds) in [(0, 1_000_000), (0, -1), (5, i64::from(i32::MAX)), (-1, -1)]
        {
            let got = unusual::set_time(s, name, seconds, microseconds);
            a.note(format!("{text} {seconds}.{microseconds}"), got);
        }
        let (got, value) = socket::getsockopt(s, SOL_SOCKET, name, 16);
        a.note("it stays", format!("{got} {value:?}"));
    }
    a.note("with two bytes", socket::setsockopt(s, SOL_SOCKET, libc::SO_RCVTIMEO, &[1, 0]));
    ends_in_time(a, "recv", 60, || io::recv(s, &mut [0; 4], 0));
    a.note("very long", unusual::set_time(s, libc::SO_RCVTIMEO, i64::from(i32::MAX), 999_999));
    let (got, value) = socket::getsockopt(s, SOL_SOCKET, libc::SO_RCVTIMEO, 16);
    a.note("read back", format!("{got} {value:?}"));
    a.meet();
    a.at_once(
        || a.note("send", io::send(s, b"here", 0)),
        || a.note("received", receive_text(s, 4)),
    );
}

fn a_negative_time_out_waits_for_nothing(a: &Actor) {
    let s = a.stream();
    a.server(|| {
        a.note("set", unusual::set_time(s, libc::SO_RCVTIMEO, -1, 0));
        let (got, value) = socket::getsockopt(s, SOL_SOCKET, libc::SO_RCVTIMEO, 16);
        a.note("get", format!("{got} {value:?}"));
        a.note("recv", io::recv(s, &mut [0; 4], 0));
        a.note("wait for all", io::recv(s, &mut [0; 4], libc::MSG_WAITALL));
    });
    a.client(|| a.note("send", io::send(s, b"ab", 0)));
    a.server(|| {
        a.until_readable(s, 2);
        a.note("wait for all", io::recv(s, &mut [0; 4], libc::MSG_WAITALL));
        a.note("set", unusual::set_time(s, libc::SO_SNDTIMEO, -5, 0));
    });
    let total = a.told_by_server(|| {
        let block = crate::pattern::bytes(4, 0, 64 << 20);
        let mut sent = 0;
        let ended = loop {
            match io::send(s, &block[sent..], 0) {
                Got::Value(count) => sent += count as usize,
                other => break other,
            }
        };
        a.note("a full stream", ended);
        sent as u64
    });
    a.client(|| {
        let text = receive(s, 4, total as usize, 1 << 20);
        a.note("all that went", text == format!("{total} bytes right"));
    });
    a.server(|| a.note("none", unusual::set_time(s, libc::SO_RCVTIMEO, 0, 0)));
    a.at_once(
        || {
            wait::poll(&[], 50);
            a.note("send", io::send(s, b"late", 0));
        },
        || a.note("recv waits", io::recv(s, &mut [0; 4], 0)),
    );
}

fn a_negative_time_out_of_the_listener_is_inherited(a: &Actor) {
    let s = unwarmed(a, |listener| {
        a.note("set", unusual::set_time(listener, libc::SO_RCVTIMEO, -1, 0));
    });
    exchange(a, s, 60);
    a.server(|| a.note("recv", io::recv(s, &mut [0; 4], 0)));
}

fn a_look_at_an_ended_stream_takes_its_error(a: &Actor) {
    for (what, reset, bytes) in
        [("end", false, ""), ("end", false, "abc"), ("reset", true, ""), ("reset", true, "abc")]
    {
        let s = a.stream();
        a.client(|| {
            if !bytes.is_empty() {
                io::send(s, bytes.as_bytes(), 0).value("send");
            }
        });
        a.server(|| a.until_readable(s, bytes.len()));
        a.client(|| {
            if reset {
                socket::set_linger(s, true, 0).value("linger");
            }
            socket::close(s);
        });
        a.server(|| {
            a.until(s, if reset { libc::POLLERR } else { libc::POLLRDHUP });
            let mut room = [0; 8];
            a.note(format!("peek, {what} after {bytes:?}"), io::recv(s, &mut room, libc::MSG_PEEK));
            a.note("error", socket::so_error(s));
            a.note("peek", io::recv(s, &mut room, libc::MSG_PEEK));
            a.note("error", socket::so_error(s));
            a.note("recv", io::recv(s, &mut room, 0));
            a.note("recv", io::recv(s, &mut room, 0));
            a.note("error", socket::so_error(s));
            socket::close(s);
        });
    }
}

/// Without a warm-up, which would be looked at from there.
fn unwarmed(a: &Actor, before: impl FnOnce(Fd)) -> Fd {
    let place = a.listen();
    a.server(|| before(place.fd));
    let s = if a.is_client() {
        a.connect(&place)
    } else {
        // Also where an accept waits for nobody.
        a.until(place.fd, libc::POLLIN);
        socket::accept(place.fd).fd("accept")
    };
    a.meet();
    s
}

fn a_peek_offset_of_the_listener_is_inherited(a: &Actor) {
    let s = unwarmed(a, |listener| {
        a.note("set", set_int(listener, SOL_SOCKET, libc::SO_PEEK_OFF, 2));
    });
    a.server(|| a.note("get", get_int(s, SOL_SOCKET, libc::SO_PEEK_OFF)));
    for _ in 0..40 {
        a.at_once(
            || {
                io::send(s, b"question", 0).value("send");
                receive_text(s, 6);
            },
            || {
                receive_text(s, 8);
                io::send(s, b"answer", 0).value("send");
            },
        );
    }
    a.client(|| a.note("send", io::send(s, b"abcdefgh", 0)));
    a.server(|| {
        let all = || socket::ioctl(s, libc::FIONREAD, -1).1 == 8;
        a.note("there", a.settle(all));
        let mut room = [0; 3];
        for _ in 0..2 {
            let got = io::recv(s, &mut room, libc::MSG_PEEK);
            a.note("peek", format!("{got} {}", crate::pattern::describe(&room)));
        }
        a.note("all", receive_text(s, 8));
    });
}

fn exchange(a: &Actor, s: Fd, rounds: usize) {
    a.at_once(
        || {
            for round in 0..rounds {
                assert_eq!(send_all(s, round as u64, 500, 500), "500 bytes sent");
                assert_eq!(receive(s, round as u64, 700, 700), "700 bytes right");
            }
        },
        || {
            for round in 0..rounds {
                assert_eq!(receive(s, round as u64, 500, 500), "500 bytes right");
                assert_eq!(send_all(s, round as u64, 700, 700), "700 bytes sent");
            }
        },
    );
    a.note("exchanges", rounds);
}

fn a_filter_lets_everything_through(a: &Actor) {
    let s = a.stream();
    a.server(|| a.note("attach", unusual::attach_filter(s, true)));
    exchange(a, s, 20);
    a.server(|| a.note("detach", unusual::detach_filter(s)));
    exchange(a, s, 20);
    let s = unwarmed(a, |listener| a.note("attach", unusual::attach_filter(listener, true)));
    exchange(a, s, 40);
}

fn a_checked_filter_lets_everything_through(a: &Actor) {
    let s = a.stream();
    a.server(|| a.note("attach", unusual::attach_checked_filter(s)));
    exchange(a, s, 20);
    a.server(|| a.note("detach", unusual::detach_filter(s)));
    exchange(a, s, 20);
}

fn a_stream_under_kernel_tls_goes_on(a: &Actor) {
    let s = a.stream();
    a.note("tls", socket::setsockopt(s, IPPROTO_TCP, libc::TCP_ULP, b"tls"));
    a.note("nonsense", socket::setsockopt(s, IPPROTO_TCP, libc::TCP_ULP, b"nonsense"));
    let (got, name) = socket::getsockopt(s, IPPROTO_TCP, libc::TCP_ULP, 16);
    a.note("name", format!("{got} {name:?}"));
    a.meet();
    exchange(a, s, 20);
}

fn a_stream_that_was_under_repair_goes_on(a: &Actor) {
    let s = a.stream();
    a.server(|| {
        a.note("on", set_int(s, IPPROTO_TCP, libc::TCP_REPAIR, 1));
        a.note("which", set_int(s, IPPROTO_TCP, libc::TCP_REPAIR_QUEUE, 1));
        a.note("queue", get_int(s, IPPROTO_TCP, libc::TCP_REPAIR_QUEUE));
        // Off, without a window probe.
        a.note("off", set_int(s, IPPROTO_TCP, libc::TCP_REPAIR, -1));
    });
    exchange(a, s, 20);
}

fn signed_segments_carry_a_stream(a: &Actor) {
    let place = a.listen();
    // The server sees the client's address in its own family.
    let peer = match a.is_client() {
        true => Address::as_seen_by_client(a.family, 0),
        false => Address::of_server(a.family, 0),
    };
    let mut s = if a.is_client() { a.tcp_socket() } else { place.fd };
    let got = unusual::sign(s, &peer, b"secret");
    a.note("sign", got);
    a.meet();
    if a.is_client() {
        let there = Address::as_seen_by_client(a.family, place.port);
        a.note("connect", socket::connect(s, &there));
    } else {
        s = socket::accept(place.fd).fd("accept");
    }
    exchange(a, s, 40);
    a.note("close", socket::close(s));
}

fn notices_of_zero_copy_cover_every_send(a: &Actor) {
    let s = a.stream();
    const SENDS: u32 = 7;
    a.at_once(
        || {
            a.note("set", set_int(s, SOL_SOCKET, socket::SO_ZEROCOPY, 1));
            let block = crate::pattern::bytes(6, 0, 20_000 * SENDS as usize);
            for piece in block.chunks(20_000) {
                a.note("send", io::send(s, piece, libc::MSG_ZEROCOPY));
            }
            a.meet();
            a.note_mask("before the notices", s, libc::POLLERR | libc::POLLOUT);
            let next = std::cell::Cell::new(0);
            let all = a.settle(|| {
                while let Ok((first, last)) = unusual::zero_copy_notice(s) {
                    assert_eq!(first, next.get(), "in order");
                    next.set(last + 1);
                }
                next.get() == SENDS
            });
            a.note("all covered", all);
            a.note("no more", format!("{:?}", unusual::zero_copy_notice(s)));
            a.note_mask("after them", s, libc::POLLOUT);
        },
        || {
            a.note("received", receive(s, 6, 20_000 * SENDS as usize, 30_000));
            a.meet();
        },
    );
    exchange(a, s, 10);
}

fn zero_copy_that_was_not_asked_for_is_a_plain_send(a: &Actor) {
    let s = a.stream();
    a.at_once(
        || {
            let block = crate::pattern::bytes(6, 0, 50_000);
            let got = io::send(s, &block, libc::MSG_ZEROCOPY);
            a.note("send", got);
            a.meet();
            a.note_mask("mask", s, libc::POLLOUT);
            a.note("notice", format!("{:?}", unusual::zero_copy_notice(s)));
        },
        || {
            a.note("received", receive(s, 6, 50_000, 30_000));
            a.meet();
        },
    );
    exchange(a, s, 10);
}

const TCP_FASTOPEN_CONNECT: i32 = 30;

fn fast_open(a: &Actor, connect: impl Fn(Fd, &Address)) {
    let place = a.listen();
    a.server(|| a.note("server", set_int(place.fd, IPPROTO_TCP, libc::TCP_FASTOPEN, 5)));
    for round in 0..3 {
        let s = if a.is_client() {
            let s = a.tcp_socket();
            connect(s, &Address::as_seen_by_client(a.family, place.port));
            s
        } else {
            socket::accept(place.fd).fd("accept")
        };
        a.server(|| a.note(format!("round {round}"), receive_text(s, 5)));
        exchange(a, s, 30);
        a.note("close", socket::close(s));
    }
}

fn a_fast_open_sends_with_the_first_segment(a: &Actor) {
    fast_open(a, |s, there| a.note("send", unusual::send_fast_open(s, b"first", there)));
}

fn a_fast_open_waits_for_the_first_write(a: &Actor) {
    fast_open(a, |s, there| {
        a.note("set", set_int(s, IPPROTO_TCP, TCP_FASTOPEN_CONNECT, 1));
        a.note("connect", socket::connect(s, there));
        a.note("write", io::write(s, b"first"));
    });
}

/// Both ends of the connection are one socket (RFC 9293, simultaneous open).
fn a_socket_that_connects_to_itself_hears_itself(a: &Actor) {
    let s = a.tcp_socket();
    socket::bind(s, &Address::as_seen_by_client(a.family, 0)).value("bind");
    let (_, own) = socket::getsockname(s);
    a.note("connect", socket::connect(s, &own));
    let (_, peer) = socket::getpeername(s);
    a.note("it is its peer", own.port() == peer.port());
    set_int(s, IPPROTO_TCP, libc::TCP_NODELAY, 1).value("TCP_NODELAY");
    let mut right = 0;
    for round in 0..200 {
        let said = send_all(s, round, 300, 300);
        right +=
            u32::from(said == "300 bytes sent" && receive(s, round, 300, 300) == "300 bytes right");
    }
    a.note("rounds", right);
    a.note("large", send_all(s, 1, 60_000, 60_000));
    a.note("received", receive(s, 1, 60_000, 60_000));
    let set = wait::epoll_create();
    wait::epoll_add(set, s, libc::EPOLLIN, 7).value("ADD");
    a.note("nothing", wait::epoll_wait(set, 4, 0).said());
    a.note("send", io::send(s, b"to me", 0));
    a.note("something", wait::epoll_wait(set, 4, 1000).said());
    a.note("received", receive_text(s, 5));
    a.note("shutdown", socket::shutdown(s, libc::SHUT_WR));
    a.note("the end", receive_text(s, 1));
    a.note("close", socket::close(s));
}

/// Simultaneous open (RFC 9293). While both connect, neither hears of the other's first SYN, nor of its
/// refusal; the second ones cross.
fn two_connects_at_once_make_one_stream(a: &Actor) {
    let s = a.tcp_socket();
    socket::bind(s, &Address::as_seen_by_client(a.family, 0)).value("bind");
    let own = u64::from(socket::getsockname(s).1.port());
    let clients = a.told_by_client(|| own) as u16;
    let servers = a.told_by_server(|| own) as u16;
    let other = if a.is_client() { servers } else { clients };
    a.note("deaf", unusual::attach_filter(s, false));
    socket::set_nonblocking(s, true);
    let connect = || {
        let there = Address::as_seen_by_client(a.family, other);
        a.note("connect", socket::connect(s, &there));
    };
    a.client(connect);
    a.server(connect);
    a.note("hears", unusual::detach_filter(s));
    a.meet();
    a.until(s, libc::POLLOUT);
    a.note("error", socket::so_error(s));
    socket::set_nonblocking(s, false);
    exchange(a, s, 60);
    a.note("peer", socket::getpeername(s).1.port() == other);
    a.note("close", socket::close(s));
}
