//! Names, options, ioctls, time-outs and urgent data.

use super::{scenarios, Scenario, Settings};
use crate::actor::Actor;
use crate::calls::socket::{get_int, set_int, set_timeout, Address, Family};
use crate::calls::{io, socket, unusual, wait, Fd, Got};
use crate::pattern::{self, receive, receive_text, receive_to_end, send_all};
use libc::{IPPROTO_TCP, SOL_SOCKET};
use std::time::{Duration, Instant};

pub const ALL: &[Scenario] = scenarios![Settings::All;
    both_ends_have_each_others_names,
    accept_tells_the_clients_name,
    options_of_a_stream_read_as_the_kernel_says,
    a_peer_has_no_name_when_both_ends_have_shut,
    a_peer_has_a_name_while_its_end_has_found_no_room,
    options_that_are_set_are_read_back,
    options_given_too_little_room_are_cut,
    options_that_do_not_exist_are_refused,
    receive_time_out_ends_a_read,
    receive_time_out_leaves_what_waitall_has,
    send_time_out_ends_a_write,
    a_time_out_set_while_a_write_sleeps_is_of_later_calls,
    low_water_mark_holds_a_read_back,
    bytes_waiting_are_counted,
    bytes_on_their_way_are_counted_down,
    connection_states_follow_the_ends,
    what_fionread_tells_comes_by_one_receive,
    the_counts_of_a_new_stream_begin_with_it,
    bytes_of_the_connection_are_counted,
    memory_of_unread_bytes_is_counted,
    messages_tell_what_an_option_asks_of_them,
    messages_tell_what_an_option_of_their_listener_asks_of_them,
    messages_tell_how_many_bytes_follow,
    cork_holds_back_until_it_is_pulled,
    a_small_buffer_blocks_its_writer,
    small_buffers_bound_what_is_on_its_way,
    urgent_byte_comes_out_of_band,
    urgent_byte_in_line_stays_in_order,
    urgent_byte_in_line_is_where_a_call_begins,
    urgent_byte_raises_pri,
    peek_offset_moves_through_the_stream,
    changing_buffer_sizes_in_mid_stream_loses_nothing,
    keepalive_and_user_timeout_do_no_harm,
    bind_to_port_zero_chooses_one,
    servers_that_share_a_port_serve_all_clients,
];

/// What takes a second or more is run once for each kind of pair.
pub const LONG: &[Scenario] = scenarios![Settings::Ring;
    what_fionread_tells_on_the_way_back_to_a_ring_comes_by_one_receive,
];

fn both_ends_have_each_others_names(a: &Actor) {
    let s = a.stream();
    let (got, own) = socket::getsockname(s);
    a.note("getsockname", format!("{got} {}", own.without_port()));
    let (got, peer) = socket::getpeername(s);
    a.note("getpeername", format!("{got} {}", peer.without_port()));
    let server_says = a.told_by_server(|| u64::from(peer.port()) << 16 | u64::from(own.port()));
    a.client(|| {
        let mine = u64::from(own.port()) << 16 | u64::from(peer.port());
        a.note("ports agree", mine == server_says);
    });
}

/// The kernel notes times once somebody has asked for them, and a moment later: as long as this socket is open.
fn socket_that_has_times_noted() -> Fd {
    let own = socket::socket(libc::AF_INET, libc::SOCK_DGRAM).fd("socket");
    socket::bind(own, &Address::v4(0)).value("bind");
    socket::connect(own, &socket::getsockname(own).1).value("connect");
    set_int(own, SOL_SOCKET, libc::SO_TIMESTAMP, 1).value("SO_TIMESTAMP");
    loop {
        io::send(own, b"!", 0).value("send");
        if io::recvmsg(own, &[1], 0).control_len > 0 {
            return own;
        }
    }
}

/// By which `recvmsg` tells more than bytes: times, or how many bytes follow.
const TOLD_WITH_BYTES: [(i32, i32); 3] = [
    (SOL_SOCKET, libc::SO_TIMESTAMP),
    (SOL_SOCKET, libc::SO_TIMESTAMPNS),
    (IPPROTO_TCP, io::TCP_INQ),
];

/// A receive of another kind tells nothing of that.
fn messages_tell_what_an_option_asks_of_them(a: &Actor) {
    let noting = socket_that_has_times_noted();
    for (level, name) in TOLD_WITH_BYTES {
        let s = a.stream();
        a.server(|| a.note("set", set_int(s, level, name, 1)));
        for round in 0..3 {
            a.client(|| a.note("send", io::send(s, b"by recv", 0)));
            a.server(|| {
                a.until_readable(s, 7);
                a.note(format!("recv {round}"), receive_text(s, 7));
            });
        }
        (0..3).for_each(|round| message_with_control(a, s, round));
        socket::close(s);
        a.meet();
    }
    socket::close(noting);
}

/// The first stream between two processes looks for its peer itself, later ones are offered.
fn messages_tell_what_an_option_of_their_listener_asks_of_them(a: &Actor) {
    let noting = socket_that_has_times_noted();
    for (level, name) in TOLD_WITH_BYTES {
        let place = a.listen();
        a.server(|| a.note("set", set_int(place.fd, level, name, 1)));
        for _ in 0..2 {
            let s = a.pair(&place);
            (0..3).for_each(|round| message_with_control(a, s, round));
            socket::close(s);
            a.meet();
        }
    }
    socket::close(noting);
}

fn message_with_control(a: &Actor, s: Fd, round: u32) {
    a.client(|| a.note("send", io::send(s, b"by recvmsg", 0)));
    a.server(|| {
        a.until_readable(s, 10);
        let message = io::recvmsg(s, &[10], 0);
        a.note(format!("recvmsg {round}"), message.got);
        a.note("text", String::from_utf8_lossy(&message.parts[0]));
        a.note("control", format!("{} bytes, {:#x}", message.control_len, message.flags));
    });
}

fn messages_tell_how_many_bytes_follow(a: &Actor) {
    let s = a.stream();
    a.server(|| a.note("set", set_int(s, IPPROTO_TCP, io::TCP_INQ, 1)));
    let told = |what: &str, message: &io::Message| {
        let (got, unread) = (message.got, message.unread);
        let (control, flags) = (message.control_len, message.flags);
        a.note(what, format!("{got}, {unread:?} follow, {control} of control, flags {flags:#x}"));
    };
    for _ in 0..2 {
        a.client(|| a.note("send", io::send(s, b"one two three four", 0)));
        a.server(|| {
            a.until_readable(s, 18);
            told("a look", &io::recvmsg(s, &[3], libc::MSG_PEEK));
            told("a word", &io::recvmsg(s, &[4], 0));
            a.note("by recv", receive_text(s, 4));
            for room in [0, 8, 16, 18, 20, 24] {
                told("a byte", &io::recvmsg_with_room(s, &[1], 0, room));
            }
            told("the rest", &io::recvmsg(s, &[9], 0));
            told("nothing", &io::recvmsg(s, &[9], libc::MSG_DONTWAIT));
        });
    }
    a.server(|| {
        a.note("by another carrier", io::send(s, b"!", libc::MSG_OOB));
        a.note("set", set_int(s, IPPROTO_TCP, io::TCP_INQ, 0));
    });
    a.client(|| {
        a.note("send", io::send(s, b"one", 0));
        a.note("shutdown", socket::shutdown(s, libc::SHUT_WR));
    });
    a.server(|| {
        a.until_readable(s, 3);
        a.until(s, libc::POLLRDHUP);
        told("off", &io::recvmsg(s, &[1], 0));
        a.note("set", set_int(s, IPPROTO_TCP, io::TCP_INQ, 1));
        told("on", &io::recvmsg(s, &[1], 0));
        told("the last", &io::recvmsg(s, &[9], 0));
        told("the end", &io::recvmsg(s, &[9], 0));
    });
}

fn a_peer_has_no_name_when_both_ends_have_shut(a: &Actor) {
    let s = a.stream();
    a.note("send", io::send(s, b"unread", 0));
    a.client(|| a.note("shutdown", socket::shutdown(s, libc::SHUT_WR)));
    a.server(|| {
        a.until(s, libc::POLLRDHUP);
        a.note("one end has shut", socket::getpeername(s).0);
        a.note("shutdown", socket::shutdown(s, libc::SHUT_WR));
    });
    a.client(|| {
        a.until(s, libc::POLLHUP);
        a.note("both have", socket::getpeername(s).0);
    });
    a.server(|| {
        a.until(s, libc::POLLHUP);
        a.note("both have", socket::getpeername(s).0);
    });
    a.note("received", receive_text(s, 6));
}

/// A FIN behind more bytes than the reader's kernel has room for has not come.
fn a_peer_has_a_name_while_its_end_has_found_no_room(a: &Actor) {
    let s = a.stream();
    a.server(|| a.note("shutdown", socket::shutdown(s, libc::SHUT_WR)));
    let total = a.told_by_client(|| {
        let mut total = 0;
        while let Some(count) = io::send(s, &[7; 60_000], libc::MSG_DONTWAIT).count() {
            total += count;
        }
        socket::close(s);
        total as u64
    });
    a.server(|| {
        let (got, name) = socket::getpeername(s);
        a.note("getpeername", format!("{got} {}", name.without_port()));
        a.note("shutdown", socket::shutdown(s, libc::SHUT_WR));
        let mut room = vec![0; 1 << 20];
        let mut taken = 0;
        while let Some(count @ 1..) = io::recv(s, &mut room, 0).count() {
            taken += count as u64;
        }
        a.note("all of it", taken == total);
        a.until(s, libc::POLLHUP);
        a.note("then it has none", socket::getpeername(s).0);
        a.note("shutdown", socket::shutdown(s, libc::SHUT_WR));
    });
}

fn accept_tells_the_clients_name(a: &Actor) {
    let place = a.listen();
    let port = a.told_by_client(|| {
        let s = a.connect(&place);
        u64::from(socket::getsockname(s).1.port())
    });
    a.server(|| {
        let (got, name) = socket::accept_with_name(place.fd);
        a.note("accept", got.count().is_some());
        a.note("name", name.without_port());
        a.note("the client's port", u64::from(name.port()) == port);
    });
}

/// Options that every stream has, and the room to read each.
const READABLE: &[(i32, i32, &str)] = &[
    (SOL_SOCKET, libc::SO_TYPE, "SO_TYPE"),
    (SOL_SOCKET, libc::SO_DOMAIN, "SO_DOMAIN"),
    (SOL_SOCKET, libc::SO_PROTOCOL, "SO_PROTOCOL"),
    (SOL_SOCKET, libc::SO_ACCEPTCONN, "SO_ACCEPTCONN"),
    (SOL_SOCKET, libc::SO_ERROR, "SO_ERROR"),
    (SOL_SOCKET, libc::SO_KEEPALIVE, "SO_KEEPALIVE"),
    (SOL_SOCKET, libc::SO_REUSEADDR, "SO_REUSEADDR"),
    (SOL_SOCKET, libc::SO_REUSEPORT, "SO_REUSEPORT"),
    (SOL_SOCKET, libc::SO_BROADCAST, "SO_BROADCAST"),
    (SOL_SOCKET, libc::SO_DONTROUTE, "SO_DONTROUTE"),
    (SOL_SOCKET, libc::SO_OOBINLINE, "SO_OOBINLINE"),
    (SOL_SOCKET, libc::SO_PRIORITY, "SO_PRIORITY"),
    (SOL_SOCKET, libc::SO_RCVLOWAT, "SO_RCVLOWAT"),
    (SOL_SOCKET, libc::SO_SNDLOWAT, "SO_SNDLOWAT"),
    (SOL_SOCKET, libc::SO_MARK, "SO_MARK"),
    (SOL_SOCKET, libc::SO_ZEROCOPY, "SO_ZEROCOPY"),
    (IPPROTO_TCP, libc::TCP_NODELAY, "TCP_NODELAY"),
    (IPPROTO_TCP, libc::TCP_CORK, "TCP_CORK"),
    (IPPROTO_TCP, libc::TCP_KEEPIDLE, "TCP_KEEPIDLE"),
    (IPPROTO_TCP, libc::TCP_KEEPINTVL, "TCP_KEEPINTVL"),
    (IPPROTO_TCP, libc::TCP_KEEPCNT, "TCP_KEEPCNT"),
    (IPPROTO_TCP, libc::TCP_SYNCNT, "TCP_SYNCNT"),
    (IPPROTO_TCP, libc::TCP_LINGER2, "TCP_LINGER2"),
    (IPPROTO_TCP, libc::TCP_USER_TIMEOUT, "TCP_USER_TIMEOUT"),
    (IPPROTO_TCP, libc::TCP_MAXSEG, "TCP_MAXSEG"),
];

fn options_of_a_stream_read_as_the_kernel_says(a: &Actor) {
    let s = a.stream();
    for &(level, name, text) in READABLE {
        a.note(text, get_int(s, level, name));
    }
    let (got, linger) = socket::getsockopt(s, SOL_SOCKET, libc::SO_LINGER, 8);
    a.note("SO_LINGER", format!("{got} {linger:?}"));
    let (got, time) = socket::getsockopt(s, SOL_SOCKET, libc::SO_RCVTIMEO, 16);
    a.note("SO_RCVTIMEO", format!("{got} {time:?}"));
    let (got, name) = socket::getsockopt(s, IPPROTO_TCP, libc::TCP_CONGESTION, 16);
    a.note("TCP_CONGESTION", format!("{got} {} bytes", name.len()));
    let (got, peer) = socket::getsockopt(s, SOL_SOCKET, libc::SO_PEERCRED, 12);
    a.note("SO_PEERCRED", format!("{got} {} bytes", peer.len()));
    a.meet();
}

fn options_that_are_set_are_read_back(a: &Actor) {
    let s = a.stream();
    for (level, name, text, values) in [
        (IPPROTO_TCP, libc::TCP_NODELAY, "TCP_NODELAY", [1, 0, 7]),
        (IPPROTO_TCP, libc::TCP_CORK, "TCP_CORK", [1, 0, 1]),
        (IPPROTO_TCP, libc::TCP_QUICKACK, "TCP_QUICKACK", [1, 0, 1]),
        (SOL_SOCKET, libc::SO_KEEPALIVE, "SO_KEEPALIVE", [1, 0, 5]),
        (IPPROTO_TCP, libc::TCP_KEEPIDLE, "TCP_KEEPIDLE", [10, 20, 0]),
        (SOL_SOCKET, libc::SO_RCVLOWAT, "SO_RCVLOWAT", [5, 0, 1]),
        (SOL_SOCKET, libc::SO_SNDBUF, "SO_SNDBUF", [40_000, 1, 100_000]),
        (SOL_SOCKET, libc::SO_RCVBUF, "SO_RCVBUF", [40_000, 1, 100_000]),
        (SOL_SOCKET, libc::SO_REUSEADDR, "SO_REUSEADDR", [1, 0, 1]),
        (SOL_SOCKET, libc::SO_OOBINLINE, "SO_OOBINLINE", [1, 0, 0]),
    ] {
        for value in values {
            a.note(format!("set {text} {value}"), set_int(s, level, name, value));
            a.note("get", get_int(s, level, name));
        }
    }
    a.note("linger", socket::set_linger(s, true, 3));
    a.note("get", format!("{:?}", socket::getsockopt(s, SOL_SOCKET, libc::SO_LINGER, 8).1));
    a.note("linger off", socket::set_linger(s, false, 0));
    a.note("time-out", set_timeout(s, libc::SO_SNDTIMEO, 1500));
    a.note("get", format!("{:?}", socket::getsockopt(s, SOL_SOCKET, libc::SO_SNDTIMEO, 16).1));
    a.meet();
    a.client(|| a.note("send", io::send(s, b"unharmed", 0)));
    a.server(|| a.note("received", receive_text(s, 8)));
}

fn options_given_too_little_room_are_cut(a: &Actor) {
    let s = a.stream();
    for room in [0, 1, 2, 4, 8, 64] {
        let (got, value) = socket::getsockopt(s, SOL_SOCKET, libc::SO_TYPE, room);
        a.note(format!("SO_TYPE in {room}"), format!("{got} {value:?}"));
        let (got, value) = socket::getsockopt(s, IPPROTO_TCP, libc::TCP_NODELAY, room);
        a.note(format!("TCP_NODELAY in {room}"), format!("{got} {value:?}"));
        let (got, value) = socket::getsockopt(s, IPPROTO_TCP, libc::TCP_INFO, room);
        a.note(format!("TCP_INFO in {room}"), format!("{got} {}", value.len()));
    }
    a.note("set with 2 bytes", socket::setsockopt(s, SOL_SOCKET, libc::SO_KEEPALIVE, &[1, 0]));
    a.note("set with none", socket::setsockopt(s, IPPROTO_TCP, libc::TCP_NODELAY, &[]));
    a.meet();
}

fn options_that_do_not_exist_are_refused(a: &Actor) {
    let s = a.stream();
    a.note("get of the socket", socket::getsockopt(s, SOL_SOCKET, 9999, 4).0);
    a.note("get of TCP", socket::getsockopt(s, IPPROTO_TCP, 9999, 4).0);
    a.note("get of no level", socket::getsockopt(s, 9999, 1, 4).0);
    a.note("set of the socket", set_int(s, SOL_SOCKET, 9999, 1));
    a.note("set of TCP", set_int(s, IPPROTO_TCP, 9999, 1));
    a.note("set of no level", set_int(s, 9999, 1, 1));
    a.note("set of SO_TYPE", set_int(s, SOL_SOCKET, libc::SO_TYPE, 1));
    a.note("get from a pipe", socket::getsockopt(socket::pipe().0, SOL_SOCKET, 3, 4).0);
    a.note("unknown ioctl", socket::ioctl(s, 0x5599, 0).0);
    a.meet();
}

/// The kernel counts socket time-outs in ticks, the first of which has begun already.
const TICK_MS: u64 = 10;

/// How long a call took, as a yes or no about its bounds.
fn timed(a: &Actor, what: &str, least_ms: u64, call: impl FnOnce() -> Got) {
    let start = Instant::now();
    let got = call();
    let took = start.elapsed();
    let good = took >= Duration::from_millis(least_ms.saturating_sub(TICK_MS))
        && took < Duration::from_millis(least_ms + 5000);
    let time = if good { "in time".to_owned() } else { format!("{took:?}") };
    a.note(what, format!("{got}, {time}"));
}

fn receive_time_out_ends_a_read(a: &Actor) {
    let s = a.stream();
    let mut room = [0; 8];
    a.note("set", set_timeout(s, libc::SO_RCVTIMEO, 60));
    timed(a, "recv", 60, || io::recv(s, &mut room, 0));
    timed(a, "read", 60, || io::read(s, &mut room));
    timed(a, "recvmsg", 60, || io::recvmsg(s, &[8], 0).got);
    a.meet();
    a.client(|| {
        io::send(s, b"abc", 0);
    });
    a.server(|| {
        a.until_readable(s, 3);
        timed(a, "with data", 0, || io::recv(s, &mut room, 0));
        timed(a, "then", 60, || io::recv(s, &mut room, 0));
        a.note("take it off", set_timeout(s, libc::SO_RCVTIMEO, 0));
    });
    a.at_once(
        || {
            wait::poll(&[], 150);
            io::send(s, b"late", 0);
        },
        || a.note("without a time-out", receive_text(s, 4)),
    );
}

fn receive_time_out_leaves_what_waitall_has(a: &Actor) {
    let s = a.stream();
    a.client(|| {
        io::send(s, b"half", 0);
    });
    a.server(|| {
        set_timeout(s, libc::SO_RCVTIMEO, 60);
        let mut room = [0; 8];
        timed(a, "wait for all", 60, || io::recv(s, &mut room, libc::MSG_WAITALL));
        a.note("bytes", pattern::describe(&room[..4]));
        timed(a, "then", 60, || io::recv(s, &mut room, libc::MSG_WAITALL));
    });
}

fn send_time_out_ends_a_write(a: &Actor) {
    let s = a.stream();
    let total = a.told_by_client(|| {
        set_timeout(s, libc::SO_SNDTIMEO, 80);
        let block = pattern::bytes(5, 0, 64 << 20);
        // The first call moves what fits and then runs out of time.
        let first = io::send(s, &block, 0).count().unwrap_or(0);
        a.note("something went", first > 0 && first < block.len());
        let mut sent = first;
        let ended = loop {
            let got = io::send(s, &block[sent..], 0);
            match got.count() {
                Some(count) => sent += count,
                None => break got,
            }
        };
        a.note("in the end", ended);
        sent as u64
    });
    a.server(|| {
        let text = receive(s, 5, total as usize, 1 << 20);
        a.note("all that went", text == format!("{total} bytes right"));
    });
}

fn a_time_out_set_while_a_write_sleeps_is_of_later_calls(a: &Actor) {
    let s = a.stream();
    const TOTAL: usize = 12 << 20;
    a.at_once(
        || {
            let block = pattern::bytes(5, 0, TOTAL);
            a.beside_a_sleeper(
                || a.note("send", io::send(s, &block, 0)),
                || a.note("set", set_timeout(s, libc::SO_SNDTIMEO, 1)),
            );
        },
        || {
            wait::poll(&[], 300);
            a.note("received", receive(s, 5, TOTAL, 1 << 20));
        },
    );
}

fn low_water_mark_holds_a_read_back(a: &Actor) {
    let s = a.stream();
    a.server(|| a.note("set", set_int(s, SOL_SOCKET, libc::SO_RCVLOWAT, 6)));
    a.at_once(
        || {
            io::send(s, b"abc", 0);
            wait::poll(&[], 50);
            // The kernel looks at what is waiting, not at what recv already has: six more.
            io::send(s, b"defghi", 0);
        },
        || {
            let mut room = [0; 20];
            let count = io::recv(s, &mut room, 0).count().unwrap_or(0);
            a.note("recv waits for six", count >= 6);
            let rest = receive_text(s, 9 - count);
            a.note("all", format!("{}{rest}", pattern::describe(&room[..count])));
        },
    );
}

fn bytes_waiting_are_counted(a: &Actor) {
    let s = a.stream();
    let waiting = |what: &str| {
        let (got, count) = socket::ioctl(s, libc::FIONREAD, -1);
        a.note(what, format!("{got} {count}"));
    };
    a.server(|| waiting("none"));
    a.client(|| a.note("sent", send_all(s, 1, 30_000, 3000)));
    a.server(|| {
        a.until_readable(s, 30_000);
        waiting("all");
        a.note("received", receive(s, 1, 10_000, 10_000));
        waiting("the rest");
    });
    a.client(|| {
        socket::shutdown(s, libc::SHUT_WR);
    });
    a.server(|| {
        a.until(s, libc::POLLRDHUP);
        waiting("with the end behind");
        let mut room = vec![0; 20_000];
        a.note("received", io::recv(s, &mut room, libc::MSG_WAITALL));
        waiting("at the end");
    });
}

/// SIOCOUTQ has the number of TIOCOUTQ.
const BYTES_ON_THEIR_WAY: libc::c_ulong = libc::TIOCOUTQ;

fn bytes_on_their_way_are_counted_down(a: &Actor) {
    let s = a.stream();
    let total = a.told_by_client(|| {
        let block = pattern::bytes(2, 0, 64 << 20);
        let mut sent = 0;
        while let Some(n) = io::send(s, &block[sent..][..60_000], libc::MSG_DONTWAIT).count() {
            sent += n;
        }
        let (got, left) = socket::ioctl(s, BYTES_ON_THEIR_WAY, -1);
        a.note("when full", format!("{got} some: {}", left > 0 && left as usize <= sent));
        sent as u64
    });
    a.server(|| {
        let text = receive(s, 2, total as usize, 1 << 20);
        a.note("received", text == format!("{total} bytes right"));
    });
    a.client(|| {
        a.settle(|| socket::ioctl(s, BYTES_ON_THEIR_WAY, -1).1 == 0);
        a.note("when all was read", socket::ioctl(s, BYTES_ON_THEIR_WAY, -1).1);
    });
}

fn tcp_info(s: Fd) -> Vec<u8> {
    socket::getsockopt(s, IPPROTO_TCP, libc::TCP_INFO, 248).1
}

/// Also where a ring was full for so long that its writer went on by TCP.
fn what_fionread_tells_comes_by_one_receive(a: &Actor) {
    let s = a.stream();
    const TOTAL: usize = 12 << 20;
    a.at_once(
        || assert_eq!(send_all(s, 8, TOTAL, TOTAL), format!("{TOTAL} bytes sent")),
        || {
            wait::poll(&[], 150);
            let mut room = vec![0; TOTAL];
            let (mut taken, mut fewer) = (0, 0);
            while taken < TOTAL {
                let told = socket::ioctl(s, libc::FIONREAD, -1).1 as usize;
                if told == 0 {
                    wait::poll(&[(s, libc::POLLIN)], -1);
                    continue;
                }
                let count = io::recv(s, &mut room[taken..][..told], 0).count().expect("bytes");
                taken += count;
                fewer += usize::from(count < told);
            }
            a.note("right", room == pattern::bytes(8, 0, TOTAL));
            a.note("receives of fewer than were told", fewer);
        },
    );
}

/// A ring that stayed full; then more than the reader's kernel takes by TCP, and a reader that comes to the ring again.
fn what_fionread_tells_on_the_way_back_to_a_ring_comes_by_one_receive(a: &Actor) {
    const PIECE: usize = 1000;
    let place = a.listen();
    a.server(|| {
        set_int(place.fd, SOL_SOCKET, libc::SO_RCVBUF, 4096);
    });
    let s = a.pair(&place);
    a.at_once(
        || {
            let block = pattern::bytes(3, 0, 4 << 20);
            let mut sent = 0;
            let mut send = || {
                let count = io::send(s, &block[sent..][..PIECE], libc::MSG_DONTWAIT).count();
                sent += count.unwrap_or(0);
                count.is_some()
            };
            set_int(s, SOL_SOCKET, libc::SO_SNDBUF, 32_768);
            while send() {}
            wait::poll(&[], 300);
            set_int(s, SOL_SOCKET, libc::SO_SNDBUF, 1 << 20);
            for _ in 0..200 {
                if !send() {
                    break;
                }
                wait::poll(&[], 3);
            }
            socket::shutdown(s, libc::SHUT_WR);
            a.tell(&sent.to_string());
        },
        || {
            wait::poll(&[], 400);
            let (mut text, mut fewer) = (Vec::<u8>::new(), 0);
            let mut room = vec![0; 4 << 20];
            for look in 0.. {
                let told = socket::ioctl(s, libc::FIONREAD, -1).1 as usize;
                if told == 0 {
                    wait::poll(&[(s, libc::POLLIN)], -1);
                }
                // The first looks take little, so that it goes on while the writer sends.
                let most = if told == 0 || look < 20 { 100 } else { told };
                match io::recv(s, &mut room[..most], libc::MSG_DONTWAIT).count() {
                    Some(0) => break,
                    Some(count) => {
                        fewer += usize::from(count < most.min(told));
                        text.extend(&room[..count]);
                    }
                    None => fewer += usize::from(told > 0),
                }
                wait::poll(&[], i32::from(look < 60) * 8);
            }
            a.note("right", text == pattern::bytes(3, 0, text.len()));
            a.note("receives of fewer than were told", fewer);
            let sent = a.hear();
            a.note("all", sent == text.len().to_string());
        },
    );
}

fn the_counts_of_a_new_stream_begin_with_it(a: &Actor) {
    let place = a.listen();
    let s = a.pair(&place);
    a.meet();
    socket::close(s);
    let s = a.new_stream(&place);
    // bytes_received and bytes_sent.
    a.note("counts", tcp_info(s)[128..136] == [0; 8] && tcp_info(s)[200..208] == [0; 8]);
    a.meet();
}

fn connection_states_follow_the_ends(a: &Actor) {
    let s = a.stream();
    const NAMES: [&str; 13] = [
        "none",
        "ESTABLISHED",
        "SYN_SENT",
        "SYN_RECV",
        "FIN_WAIT1",
        "FIN_WAIT2",
        "TIME_WAIT",
        "CLOSE",
        "CLOSE_WAIT",
        "LAST_ACK",
        "LISTEN",
        "CLOSING",
        "NEW_SYN_RECV",
    ];
    let state = |wanted: &str| {
        let now = || NAMES[tcp_info(s).first().copied().unwrap_or(0) as usize % 13];
        a.settle(|| now() == wanted);
        a.note("state", now());
    };
    state("ESTABLISHED");
    a.meet();
    a.client(|| {
        socket::shutdown(s, libc::SHUT_WR);
        state("FIN_WAIT2");
    });
    a.server(|| {
        state("CLOSE_WAIT");
        socket::shutdown(s, libc::SHUT_WR);
        state("CLOSE");
    });
    a.client(|| state("CLOSE"));
}

fn bytes_of_the_connection_are_counted(a: &Actor) {
    let s = a.stream();
    // Longer than any acknowledgement takes, and than is lately.
    wait::poll(&[], 300);
    let before = tcp_info(s);
    a.meet();
    let began = Instant::now();
    a.at_once(
        || a.note("sent", send_all(s, 1, 100_000, 10_000)),
        || a.note("received", receive(s, 1, 100_000, 10_000)),
    );
    a.server(|| a.note("answer", send_all(s, 2, 50, 50)));
    a.client(|| a.note("answer", receive(s, 2, 50, 50)));
    let (now, took) = (tcp_info(s), began.elapsed());
    // A program may look at the retransmits and at the options; both are sane on loopback.
    a.note("length is enough", now.len() >= 208);
    a.note("retransmits", now[2]);
    let long = |info: &[u8], at: usize| u64::from_ne_bytes(info[at..at + 8].try_into().unwrap());
    let grew = |at| long(&now, at) - long(&before, at);
    a.note("tcpi_bytes_received", grew(128));
    a.note("tcpi_bytes_sent", grew(200));
    // The answer's acknowledgement takes its time.
    a.client(|| a.note("tcpi_bytes_acked", grew(120)));
    let is_lately = |at: usize| {
        let ms = u32::from_ne_bytes(now[at..at + 4].try_into().unwrap());
        // The kernel counts in ticks of up to 10 ms.
        u128::from(ms) <= took.as_millis() + 20
    };
    a.note("tcpi_last_data_sent is lately", is_lately(44));
    a.note("tcpi_last_data_recv is lately", is_lately(52));
    a.meet();
}

fn memory_of_unread_bytes_is_counted(a: &Actor) {
    const SO_MEMINFO: i32 = 55;
    let s = a.stream();
    let read_memory = || {
        let (got, answer) = socket::getsockopt(s, SOL_SOCKET, SO_MEMINFO, 36);
        (got, u32::from_ne_bytes(answer[..4].try_into().unwrap()))
    };
    a.client(|| a.note("sent", send_all(s, 1, 30_000, 3000)));
    a.server(|| {
        a.until_readable(s, 30_000);
        let (got, bytes) = read_memory();
        a.note("some unread", format!("{got} {}", bytes >= 30_000));
        a.note("received", receive(s, 1, 30_000, 10_000));
        let (got, bytes) = read_memory();
        a.note("none unread", format!("{got} {bytes}"));
    });
}

fn cork_holds_back_until_it_is_pulled(a: &Actor) {
    let s = a.stream();
    a.client(|| {
        a.note("cork", set_int(s, IPPROTO_TCP, libc::TCP_CORK, 1));
        for piece in ["head", "er ", "bo", "dy"] {
            a.note("send", io::send(s, piece.as_bytes(), 0));
        }
        a.note("pull", set_int(s, IPPROTO_TCP, libc::TCP_CORK, 0));
    });
    a.server(|| a.note("received", receive_text(s, 11)));
    a.client(|| {
        a.note("cork", set_int(s, IPPROTO_TCP, libc::TCP_CORK, 1));
        a.note("send", io::send(s, b"corked end", 0));
        a.note("shutdown", socket::shutdown(s, libc::SHUT_WR));
    });
    a.server(|| a.note("received", receive_text(s, 20)));
}

fn a_small_buffer_blocks_its_writer(a: &Actor) {
    let s = a.stream();
    a.server(|| {
        set_int(s, SOL_SOCKET, libc::SO_RCVBUF, 4096);
    });
    a.client(|| {
        a.note("set", set_int(s, SOL_SOCKET, libc::SO_SNDBUF, 4096));
        let block = vec![1; 4096];
        let mut sent = 0;
        while let Some(count) = io::send(s, &block, libc::MSG_DONTWAIT).count() {
            sent += count;
        }
        // The receiver's buffer had its full size before it was set; the sum is bounded all the same.
        a.note("bounded", sent < 8 << 20);
        a.note_mask("when full", s, 0);
    });
}

fn small_buffers_bound_what_is_on_its_way(a: &Actor) {
    let place = a.listen();
    a.server(|| {
        set_int(place.fd, SOL_SOCKET, libc::SO_RCVBUF, 4096);
    });
    let s = a.pair(&place);
    a.client(|| {
        set_int(s, SOL_SOCKET, libc::SO_SNDBUF, 4096);
    });
    a.warm(s);
    let sent = a.told_by_client(|| {
        let block = crate::pattern::bytes(3, 0, 1 << 20);
        let mut sent = 0;
        // The peer's side takes some more when the first is on its way.
        let full = || match io::send(s, &block[sent as usize..], libc::MSG_DONTWAIT).count() {
            Some(more) => {
                sent += more as u64;
                false
            }
            None => wait::poll(&[(s, libc::POLLOUT)], 0).1[0] == 0,
        };
        a.note("full", a.settle(full));
        a.note("bounded", (4096..80_000).contains(&sent));
        socket::close(s);
        sent
    });
    a.server(|| {
        let text = receive_to_end(s, 3);
        a.note("received", text == format!("{sent} bytes right, then 0"));
    });
}

fn urgent_byte_comes_out_of_band(a: &Actor) {
    let s = a.stream();
    a.client(|| {
        a.note("send", io::send(s, b"normal", 0));
        a.note("send urgent", io::send(s, b"!", libc::MSG_OOB));
        a.note("send", io::send(s, b"after", 0));
    });
    a.server(|| {
        a.until(s, libc::POLLPRI);
        a.until_readable(s, 6);
        let mut room = [0; 20];
        a.note("at the mark", socket::ioctl(s, SIOCATMARK, -1).1);
        a.note("sockatmark", unusual::sockatmark(s));
        a.note("before the mark", io::recv(s, &mut room, 0));
        a.note("at the mark", socket::ioctl(s, SIOCATMARK, -1).1);
        a.note("sockatmark", unusual::sockatmark(s));
        let got = io::recv(s, &mut room, libc::MSG_OOB);
        a.note("urgent", format!("{got} {}", room[0] as char));
        a.note("urgent again", io::recv(s, &mut room, libc::MSG_OOB));
        a.note("the rest", receive_text(s, 5));
        a.note("no urgent byte", io::recv(s, &mut room, libc::MSG_OOB));
        a.note("of none", unusual::sockatmark(-1));
    });
}

const SIOCATMARK: libc::c_ulong = 0x8905;

fn urgent_byte_in_line_stays_in_order(a: &Actor) {
    let s = a.stream();
    a.server(|| a.note("in line", set_int(s, SOL_SOCKET, libc::SO_OOBINLINE, 1)));
    a.client(|| {
        io::send(s, b"abc", 0);
        a.note("send urgent", io::send(s, b"!", libc::MSG_OOB));
        io::send(s, b"def", 0);
    });
    a.server(|| {
        a.until(s, libc::POLLPRI);
        a.note("all in order", receive_text(s, 7));
        let mut room = [0; 1];
        a.note("out of band", io::recv(s, &mut room, libc::MSG_OOB));
    });
}

fn urgent_byte_in_line_is_where_a_call_begins(a: &Actor) {
    let s = a.stream();
    a.server(|| a.note("in line", set_int(s, SOL_SOCKET, libc::SO_OOBINLINE, 1)));
    a.client(|| {
        io::send(s, b"abc", 0);
        a.note("send urgent", io::send(s, b"de!", libc::MSG_OOB));
        io::send(s, b"fgh", 0);
    });
    a.server(|| {
        a.until(s, libc::POLLPRI);
        a.settle(|| socket::ioctl(s, libc::FIONREAD, -1).1 == 9);
        let mut room = [0; 20];
        for _ in 0..2 {
            a.note("at the mark", socket::ioctl(s, SIOCATMARK, -1).1);
            let count = io::recv(s, &mut room, 0).count().unwrap_or(0);
            a.note("received", String::from_utf8_lossy(&room[..count]));
        }
    });
}

fn urgent_byte_raises_pri(a: &Actor) {
    let s = a.stream();
    a.client(|| a.note("send urgent", io::send(s, b"x!", libc::MSG_OOB)));
    a.server(|| {
        use libc::{POLLIN, POLLOUT, POLLPRI};
        a.until_readable(s, 1);
        a.note_mask("with an urgent byte", s, POLLIN | POLLPRI | POLLOUT);
        let asked = wait::Selection { except: vec![s], ..wait::Selection::default() };
        a.note("select", wait::select(&asked, 1000));
        let mut room = [0; 4];
        a.note("urgent", io::recv(s, &mut room, libc::MSG_OOB));
        a.note("normal", io::recv(s, &mut room, 0));
        a.note_mask("when read", s, POLLOUT);
    });
}

fn peek_offset_moves_through_the_stream(a: &Actor) {
    let s = a.stream();
    a.client(|| {
        io::send(s, b"abcdefgh", 0);
    });
    a.server(|| {
        a.until_readable(s, 8);
        a.note("set", set_int(s, SOL_SOCKET, libc::SO_PEEK_OFF, 2));
        let mut room = [0; 3];
        for _ in 0..2 {
            let got = io::recv(s, &mut room, libc::MSG_PEEK);
            a.note("peek", format!("{got} {}", pattern::describe(&room)));
            a.note("offset", get_int(s, SOL_SOCKET, libc::SO_PEEK_OFF));
        }
        a.note("received", receive_text(s, 2));
        a.note("offset", get_int(s, SOL_SOCKET, libc::SO_PEEK_OFF));
        a.note("off", set_int(s, SOL_SOCKET, libc::SO_PEEK_OFF, -1));
        a.note("the rest", receive_text(s, 6));
    });
}

fn changing_buffer_sizes_in_mid_stream_loses_nothing(a: &Actor) {
    let s = a.stream();
    const TOTAL: usize = 2 << 20;
    a.at_once(
        || {
            for (index, size) in [32_768, 1 << 20, 16_384, 65_536].into_iter().enumerate() {
                set_int(s, SOL_SOCKET, libc::SO_SNDBUF, size);
                assert_ne!(send_all(s, index as u64, TOTAL / 4, 30_000), "failed");
            }
        },
        || {
            for (index, size) in [65_536, 131_072, 1 << 20, 65_536].into_iter().enumerate() {
                set_int(s, SOL_SOCKET, libc::SO_RCVBUF, size);
                a.note("received", receive(s, index as u64, TOTAL / 4, 50_000));
            }
        },
    );
}

fn keepalive_and_user_timeout_do_no_harm(a: &Actor) {
    let s = a.stream();
    a.note("keepalive", set_int(s, SOL_SOCKET, libc::SO_KEEPALIVE, 1));
    a.note("idle", set_int(s, IPPROTO_TCP, libc::TCP_KEEPIDLE, 1));
    a.note("user timeout", set_int(s, IPPROTO_TCP, libc::TCP_USER_TIMEOUT, 1000));
    a.meet();
    // Longer than both: a stream on another carrier must not look dead to the kernel.
    wait::poll(&[], 2500);
    a.client(|| a.note("send", io::send(s, b"alive", 0)));
    a.server(|| a.note("received", receive_text(s, 5)));
    a.note("SO_ERROR", socket::so_error(s));
    a.meet();
}

fn bind_to_port_zero_chooses_one(a: &Actor) {
    let place = a.listen();
    a.client(|| {
        let s = a.tcp_socket();
        a.note("before", socket::getsockname(s).1.port());
        a.note("bind", socket::bind(s, &Address::as_seen_by_client(a.family, 0)));
        let port = socket::getsockname(s).1.port();
        a.note("a port", port != 0);
        a.note("bind twice", socket::bind(s, &Address::as_seen_by_client(a.family, 0)));
        a.note("connect", socket::connect(s, &Address::as_seen_by_client(a.family, place.port)));
        a.note("it stays", socket::getsockname(s).1.port() == port);
    });
    a.server(|| a.note("accept", socket::accept(place.fd).count().is_some()));
}

fn servers_that_share_a_port_serve_all_clients(a: &Actor) {
    let mut listeners = Vec::new();
    let port = a.told_by_server(|| {
        let mut port = 0;
        for _ in 0..3 {
            let domain = if a.family == Family::V4 { libc::AF_INET } else { libc::AF_INET6 };
            let s = socket::socket(domain, libc::SOCK_STREAM).fd("socket");
            set_int(s, SOL_SOCKET, libc::SO_REUSEPORT, 1).value("SO_REUSEPORT");
            socket::bind(s, &Address::of_server(a.family, port)).value("bind");
            socket::listen(s, 20).value("listen");
            port = socket::getsockname(s).1.port();
            listeners.push((s, libc::POLLIN));
        }
        u64::from(port)
    }) as u16;
    for round in 0..12 {
        a.at_once(
            || {
                let s = a.tcp_socket();
                socket::connect(s, &Address::as_seen_by_client(a.family, port)).value("connect");
                a.warm_as_client(s);
                a.note(format!("answer {round}"), receive_text(s, 5));
                socket::close(s);
            },
            || {
                let (_, ready) = wait::poll(&listeners, 10_000);
                let chosen = ready.iter().position(|&mask| mask != 0).expect("a client");
                let s = socket::accept(listeners[chosen].0).fd("accept");
                a.warm_as_server(s);
                io::send(s, b"hello", 0).value("send");
                // Closing first would take the stream off the ring while the client still looks.
                io::recv(s, &mut [0; 1], 0);
                socket::close(s);
            },
        );
    }
}
