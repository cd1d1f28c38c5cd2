//! What takes a stream back to TCP, and what leaves it on its ring: asked of the library's own counters, with
//! the reason. The other scenarios of these calls compare what they do.

use super::{scenarios, Scenario, Settings};
use crate::actor::Actor;
use crate::calls::io_uring::{self as uring, IoUring};
use crate::calls::socket::{self, set_int, Address};
use crate::calls::stdio::{self, File};
use crate::calls::{io, process, unusual, wait, Fd, Got};
use crate::pattern::{receive, receive_text, send_all};
use libc::{IPPROTO_TCP, SOL_SOCKET};

pub const ALL: &[Scenario] = scenarios![Settings::Ring;
    options_that_only_the_kernel_serves_take_a_stream_to_tcp,
    signed_segments_take_both_ends_to_tcp,
    sends_that_only_the_kernel_serves_take_a_stream_to_tcp,
    descriptors_that_others_use_take_a_stream_to_tcp,
    options_that_the_kernel_serves_beside_a_ring_leave_it_there,
    calls_that_a_ring_serves_leave_it_there,
    streams_come_to_rings_however_many_came_before,
    a_stream_that_is_bound_to_an_interface_is_on_its_ring,
    who_waits_by_own_instructions_is_told,
    an_io_uring_leaves_streams_on_rings_until_it_carries_them,
];

/// What the client does to a stream on a ring, and why it leaves then.
struct Case {
    name: &'static str,
    reason: &'static str,
    act: fn(&Actor, Fd) -> Got,
}

const fn leaves(name: &'static str, reason: &'static str, act: fn(&Actor, Fd) -> Got) -> Case {
    Case { name, reason, act }
}

const fn stays(name: &'static str, act: fn(&Actor, Fd) -> Got) -> Case {
    Case { name, reason: "", act }
}

fn option(fd: Fd, name: i32, value: i32) -> Got {
    set_int(fd, SOL_SOCKET, name, value)
}

fn tcp_option(fd: Fd, name: i32, value: i32) -> Got {
    set_int(fd, IPPROTO_TCP, name, value)
}

const TCP_ZEROCOPY_RECEIVE: i32 = 35;
const RX_SOFTWARE: i32 = 1 << 3;

/// What was done before is what the case tells of.
fn looked_at_as_a_message(fd: Fd, done: Got) -> Got {
    let _ = io::recvmsg(fd, &[1], libc::MSG_PEEK | libc::MSG_DONTWAIT);
    done
}

/// A case that the kernel refuses stays.
fn play(a: &Actor, cases: &[Case]) {
    for case in cases {
        let s = a.stream();
        let taken = a.told_by_client(|| {
            let got = (case.act)(a, s);
            a.note(case.name, got);
            u64::from(got.count().is_some())
        });
        let sent = a.told_by_client(|| unread_by_peer(case, taken));
        a.server(|| a.note(case.name, receive_text(s, sent as usize)));
        for _ in 0..20 {
            a.client(|| _ = io::send(s, b"ping", 0).value("send"));
            a.server(|| {
                assert_eq!(receive_text(s, 4), "ping");
                io::send(s, b"pong", 0).value("send");
            });
            a.client(|| assert_eq!(receive_text(s, 4), "pong"));
        }
        a.client(|| {
            if case.reason.is_empty() || taken == 0 {
                a.note(format!("{} leaves it on its ring", case.name), a.is_on_ring(s));
            } else {
                let left = a.settle(|| a.has_left(s, case.reason));
                a.note(format!("{} takes it to TCP: {}", case.name, case.reason), left);
            }
        });
        socket::close(s);
        a.meet();
    }
}

/// Cases that send say so by their name.
fn unread_by_peer(case: &Case, taken: u64) -> u64 {
    if case.name.ends_with("of a byte") {
        taken
    } else {
        0
    }
}

fn options_that_only_the_kernel_serves_take_a_stream_to_tcp(a: &Actor) {
    let option_of_the_kernel = "unsupported_option";
    play(
        a,
        &[
            leaves("SO_RCVLOWAT", option_of_the_kernel, |_, s| option(s, libc::SO_RCVLOWAT, 2)),
            leaves("SO_PEEK_OFF", option_of_the_kernel, |_, s| option(s, libc::SO_PEEK_OFF, 0)),
            leaves("recvmsg after SO_TIMESTAMP", option_of_the_kernel, |_, s| {
                looked_at_as_a_message(s, option(s, libc::SO_TIMESTAMP, 1))
            }),
            leaves("recvmsg after SO_TIMESTAMPNS", option_of_the_kernel, |_, s| {
                looked_at_as_a_message(s, option(s, libc::SO_TIMESTAMPNS, 1))
            }),
            leaves("SO_TIMESTAMPING", option_of_the_kernel, |_, s| {
                option(s, libc::SO_TIMESTAMPING, RX_SOFTWARE)
            }),
            leaves("SO_ATTACH_FILTER", option_of_the_kernel, |_, s| {
                unusual::attach_filter(s, true)
            }),
            leaves("TCP_REPAIR", option_of_the_kernel, |_, s| {
                let on = tcp_option(s, libc::TCP_REPAIR, 1);
                tcp_option(s, libc::TCP_REPAIR, -1);
                on
            }),
            leaves("TCP_ULP", option_of_the_kernel, |_, s| {
                socket::setsockopt(s, IPPROTO_TCP, libc::TCP_ULP, b"tls")
            }),
            leaves("SO_ZEROCOPY", "zero_copy", |_, s| option(s, socket::SO_ZEROCOPY, 1)),
            leaves("TCP_ZEROCOPY_RECEIVE", "zero_copy", |_, s| {
                socket::getsockopt(s, IPPROTO_TCP, TCP_ZEROCOPY_RECEIVE, 64);
                Got::Value(0)
            }),
        ],
    );
}

/// The kernel finds such a socket by its interface alone.
fn a_stream_that_is_bound_to_an_interface_is_on_its_ring(a: &Actor) {
    let place = a.listen();
    let s = match a.is_client() {
        true => {
            let s = a.tcp_socket();
            let bound = socket::setsockopt(s, SOL_SOCKET, libc::SO_BINDTODEVICE, b"lo");
            a.note("bound", bound);
            a.note(
                "connect",
                socket::connect(s, &Address::as_seen_by_client(a.family, place.port)),
            );
            s
        }
        false => socket::accept(place.fd).fd("accept"),
    };
    a.warm(s);
    let sent = || a.note("sent", send_all(s, 1, 300_000, 10_000));
    a.at_once(sent, || a.note("received", receive(s, 1, 300_000, 7_000)));
    a.client(|| a.note("on its ring", a.is_on_ring(s)));
}

/// All else is called by name, and the stream was added before it carried anything: Bun does so.
fn who_waits_by_own_instructions_is_told(a: &Actor) {
    const MESSAGES: usize = 100;
    let place = a.listen();
    a.at_once(
        || {
            let s = a.connect(&place);
            a.note("not blocking", socket::fcntl(s, libc::F_SETFL, libc::O_NONBLOCK));
            let set = wait::epoll_create();
            wait::epoll_add(set, s, libc::EPOLLIN, 1);
            let answered = (0..MESSAGES).take_while(|_| {
                io::send(s, b"ping", 0).value("send");
                let told = wait::epoll_wait_by_instruction(set, 1, 10_000).said();
                told.starts_with('1') && receive_text(s, 4) == "pong"
            });
            a.note("answers", answered.count());
            socket::close(s);
        },
        || {
            let s = socket::accept(place.fd).fd("accept");
            while receive_text(s, 4) == "ping" {
                io::send(s, b"pong", 0).value("send");
            }
        },
    );
}

fn signed_segments_take_both_ends_to_tcp(a: &Actor) {
    let s = a.stream();
    let peer = match a.is_client() {
        true => Address::as_seen_by_client(a.family, 0),
        false => Address::of_server(a.family, 0),
    };
    let mut taken = false;
    let mut sign = || {
        let got = unusual::sign(s, &peer, b"secret");
        a.note("sign", got);
        taken = got.count().is_some();
    };
    if a.is_client() {
        sign();
    }
    a.meet();
    if !a.is_client() {
        sign();
    }
    a.meet();
    a.client(|| _ = io::send(s, b"ping", 0).value("send"));
    a.server(|| a.note("received", receive_text(s, 4)));
    let left = a.settle(|| !taken || a.has_left(s, "unsupported_option"));
    a.note("both are on TCP", left);
    a.meet();
}

fn sends_that_only_the_kernel_serves_take_a_stream_to_tcp(a: &Actor) {
    play(
        a,
        &[
            leaves("MSG_OOB", "urgent_data", |_, s| io::send(s, b"!", libc::MSG_OOB)),
            leaves("MSG_ZEROCOPY of a byte", "zero_copy", |_, s| {
                io::send(s, b"x", libc::MSG_ZEROCOPY)
            }),
            leaves("splice of a byte", "splice", |_, s| {
                let (out, into) = socket::pipe();
                io::write(into, b"x");
                io::splice(out, s, 1, 0)
            }),
            leaves("dprintf of a byte", "fdopen", |_, s| {
                Got::Value(i64::from(stdio::print_to(s, "x")))
            }),
            leaves("fdopen of a byte", "fdopen", |_, s| {
                let file = File::on(s, "r+");
                file.put("x");
                file.flush()
            }),
            leaves("lio_listio of a byte", "aio", |_, s| {
                unusual::aio_list(&[(s, b"x")], &mut []).1[0]
            }),
        ],
    );
}

fn descriptors_that_others_use_take_a_stream_to_tcp(a: &Actor) {
    play(
        a,
        &[
            leaves("EPOLLEXCLUSIVE", "epoll_exclusive", |_, s| {
                let events = libc::EPOLLIN | libc::EPOLLEXCLUSIVE;
                wait::epoll_add(wait::epoll_create(), s, events, 1)
            }),
            leaves("a set in a set", "nested_epoll", |_, s| {
                let (inner, outer) = (wait::epoll_create(), wait::epoll_create());
                wait::epoll_add(inner, s, libc::EPOLLIN, 1).value("ADD");
                wait::epoll_add(outer, inner, libc::EPOLLIN, 1)
            }),
            leaves("SCM_RIGHTS", "passed_descriptor", |_, s| {
                let (one, other) = socket::socketpair(libc::SOCK_STREAM);
                let passed = io::pass_descriptor(one, s);
                socket::close(io::take_descriptor(other).fd("a descriptor"));
                passed
            }),
            leaves("a child that reads", "shared_with_other_process", |a, s| {
                let child = a.child("child", || {
                    io::recv(s, &mut [0; 4], libc::MSG_DONTWAIT);
                });
                process::wait_for(child);
                Got::Value(0)
            }),
        ],
    );
}

fn options_that_the_kernel_serves_beside_a_ring_leave_it_there(a: &Actor) {
    play(
        a,
        &[
            stays("SO_RCVLOWAT of 1", |_, s| option(s, libc::SO_RCVLOWAT, 1)),
            stays("SO_TIMESTAMP", |_, s| option(s, libc::SO_TIMESTAMP, 1)),
            stays("SO_TIMESTAMPNS", |_, s| option(s, libc::SO_TIMESTAMPNS, 1)),
            stays("recvmsg after TCP_INQ", |_, s| {
                looked_at_as_a_message(s, tcp_option(s, io::TCP_INQ, 1))
            }),
            stays("SO_TIMESTAMP, off", |_, s| option(s, libc::SO_TIMESTAMP, 0)),
            stays("SO_OOBINLINE", |_, s| option(s, libc::SO_OOBINLINE, 1)),
            stays("SO_KEEPALIVE", |_, s| option(s, libc::SO_KEEPALIVE, 1)),
            stays("SO_RCVBUF", |_, s| option(s, libc::SO_RCVBUF, 60_000)),
            stays("SO_SNDBUF", |_, s| option(s, libc::SO_SNDBUF, 60_000)),
            stays("SO_LINGER", |_, s| socket::set_linger(s, true, 1)),
            stays("SO_RCVTIMEO", |_, s| socket::set_timeout(s, libc::SO_RCVTIMEO, 10_000)),
            stays("TCP_NODELAY", |_, s| tcp_option(s, libc::TCP_NODELAY, 1)),
            stays("TCP_QUICKACK", |_, s| tcp_option(s, libc::TCP_QUICKACK, 1)),
            stays("TCP_USER_TIMEOUT", |_, s| tcp_option(s, libc::TCP_USER_TIMEOUT, 10_000)),
            stays("SO_ERROR", |_, s| socket::getsockopt(s, SOL_SOCKET, libc::SO_ERROR, 4).0),
        ],
    );
}

fn calls_that_a_ring_serves_leave_it_there(a: &Actor) {
    play(
        a,
        &[
            stays("MSG_PEEK", |_, s| io::recv(s, &mut [0; 4], libc::MSG_PEEK | libc::MSG_DONTWAIT)),
            stays("MSG_MORE of a byte", |_, s| io::send(s, b"x", libc::MSG_MORE)),
            stays("FIONREAD", |_, s| socket::ioctl(s, libc::FIONREAD, 0).0),
            stays("O_NONBLOCK", |_, s| {
                socket::set_nonblocking(s, true);
                socket::set_nonblocking(s, false);
                Got::Value(0)
            }),
            stays("a copy that is closed", |_, s| {
                socket::close(socket::dup(s).fd("dup"));
                Got::Value(0)
            }),
            stays("a child that ends", |a, _| {
                let child = a.child("child", || ());
                process::wait_for(child);
                Got::Value(0)
            }),
            stays("an edge-triggered registration", |_, s| {
                wait::epoll_add(wait::epoll_create(), s, libc::EPOLLIN | libc::EPOLLET, 1)
            }),
            stays("sendfile of a byte", |_, s| {
                let file = socket::memfd();
                io::write(file, b"x");
                io::sendfile(s, file, 0, 1).0
            }),
        ],
    );
}

fn an_io_uring_leaves_streams_on_rings_until_it_carries_them(a: &Actor) {
    /// Where io_uring is forbidden, that is what a case tells.
    fn with_ring(act: impl FnOnce(IoUring) -> Got) -> Got {
        IoUring::make().map_or_else(|why| why, act)
    }
    play(
        a,
        &[
            stays("an io_uring", |_, _| with_ring(|ring| Got::Value(ring.fd.into()))),
            stays("an io_uring that changes a set", |_, s| {
                let (set, add) = (wait::epoll_create(), libc::EPOLL_CTL_ADD);
                with_ring(|ring| ring.control(set, add, s, libc::EPOLLIN, 1))
            }),
            stays("an io_uring that makes mistakes", |_, s| {
                with_ring(|ring| {
                    ring.control(wait::epoll_create(), libc::EPOLL_CTL_DEL, s, 0, 0);
                    Got::Value(0)
                })
            }),
            leaves("an io_uring that polls", "io_uring", |_, s| {
                with_ring(|ring| ring.poll(uring::File::Descriptor(s), libc::POLLOUT))
            }),
        ],
    );
}

/// A program of 32 bits has addresses for the rings of 256 at a time.
fn streams_come_to_rings_however_many_came_before(a: &Actor) {
    for at_once in [300, 40, 280, 1] {
        let place = a.listen();
        let streams: Vec<Fd> = (0..at_once).map(|_| a.new_stream(&place)).collect();
        (0..20).for_each(|_| a.exchange_on(&streams));
        streams.into_iter().for_each(|fd| _ = socket::close(fd));
        a.server(|| _ = socket::close(place.fd));
        let s = a.stream();
        a.client(|| a.note("the next comes to a ring", a.is_on_ring(s)));
        socket::close(s);
        a.meet();
    }
}
