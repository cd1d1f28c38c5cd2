//! Calls whose arguments make no sense, numbers that are closed by the thousand, connections that are
//! given up: what few programs do, and test suites of kernels.

use super::{scenarios, Scenario, Settings};
use crate::actor::Actor;
use crate::calls::socket::{set_int, Address};
use crate::calls::{io, other_ways, socket, strange, successors, wait, Fd, Got};
use crate::pattern::receive_text;

pub const ALL: &[Scenario] = scenarios![Settings::All;
    closing_every_number_above_spares_the_stream,
    a_dissolved_connection_resets_its_peer,
    a_dissolved_connection_makes_another,
    names_that_are_none_are_refused,
    messages_that_are_not_there_are_refused,
    lengths_that_are_none_are_refused,
    a_thread_with_its_own_descriptors_closes_its_copy,
    a_low_water_mark_of_the_listener_is_inherited,
    a_process_that_locks_its_memory_stays_small,
    a_process_with_few_addresses_has_them_all,
    refused_calls_leave_the_stream_alone,
    what_is_not_there_is_refused,
    a_message_without_a_name_has_no_length_of_it,
    a_count_of_select_may_be_larger_than_its_sets,
    select_waits_on_for_what_it_asks,
];

fn closing_every_number_above_spares_the_stream(a: &Actor) {
    let s = a.stream();
    // The harness has some below.
    let above = 1000;
    let closed = (above..6000).filter(|&fd| socket::close(fd).count().is_some()).count();
    a.note("closed one by one", closed);
    a.note("close_range", socket::close_range(above, Fd::MAX));
    strange::close_from(above);
    are_there(a, s);
}

/// The stream carries both ways.
fn are_there(a: &Actor, s: Fd) {
    a.client(|| a.note("ask", io::send(s, b"are you there?", 0)));
    a.server(|| {
        a.note("asked", receive_text(s, 14));
        a.note("answer", io::send(s, b"yes", 0));
    });
    a.client(|| a.note("answered", receive_text(s, 3)));
}

fn a_dissolved_connection_resets_its_peer(a: &Actor) {
    let s = a.stream();
    a.note("send", io::send(s, b"unread", 0));
    a.client(|| {
        a.until_readable(s, 6);
        a.note("dissolve", strange::dissolve(s));
        a.note("send", io::send(s, b"nobody hears", libc::MSG_NOSIGNAL));
        a.note("receive", io::recv(s, &mut [0; 6], libc::MSG_DONTWAIT));
        a.note("whose peer", socket::getpeername(s).0);
        a.note("shutdown", socket::shutdown(s, libc::SHUT_WR));
        a.note_mask("mask", s, libc::POLLOUT | libc::POLLHUP);
    });
    a.server(|| {
        a.until(s, libc::POLLERR);
        a.note("received", receive_text(s, 6));
        a.note("then", io::recv(s, &mut [0; 6], 0));
    });
}

fn a_dissolved_connection_makes_another(a: &Actor) {
    let place = a.listen();
    let s = a.pair(&place);
    a.client(|| a.note("dissolve", strange::dissolve(s)));
    a.server(|| a.until(s, libc::POLLERR));
    a.at_once(
        || {
            let there = Address::as_seen_by_client(a.family, place.port);
            a.note("connect", socket::connect(s, &there));
            for _ in 0..20 {
                io::send(s, b"once more ", 0).value("send");
            }
            a.note("answered", receive_text(s, 3));
            a.note("close", socket::close(s));
        },
        || {
            let t = socket::accept(place.fd).fd("accept");
            a.note("received", receive_text(t, 200));
            a.note("answer", io::send(t, b"yes", 0));
            a.note("end", receive_text(t, 1));
        },
    );
}

fn names_that_are_none_are_refused(a: &Actor) {
    let s = a.stream();
    a.client(|| {
        let room = [0u8; 200];
        let there = room.as_ptr() as usize;
        for (what, name, length) in [
            ("a long name", there, 129),
            ("of negative length", there, u32::MAX),
            ("nowhere", usize::MAX, 16),
            ("of no length", there, 0),
            ("of no length and nowhere", usize::MAX, 0),
            ("of 128 bytes", there, 128),
        ] {
            a.note(format!("sendto a name {what}"), strange::sendto_name(s, b"1", name, length));
        }
        a.note("of negative length", strange::sendmsg_name(s, b"2", u32::MAX, 1));
        a.note("too many parts", strange::sendmsg_name(s, b"3", 0, 1025));
        a.note("end", io::send(s, b"end, and some more", 0));
    });
    a.server(|| {
        a.until_readable(s, 21);
        let mut room = [0; 2];
        a.note("room of 5", strange::recvfrom_name(s, &mut room, Some(5)));
        a.note("of negative room", strange::recvfrom_name(s, &mut room, Some(u32::MAX)));
        a.note("of no room", strange::recvfrom_name(s, &mut room, None));
        a.note("negative", strange::recvmsg_name(s, &mut room, u32::MAX, 1));
        a.note("too many parts", strange::recvmsg_name(s, &mut room, 0, 1025));
        a.note("left", receive_text(s, 15));
    });
}

/// With nothing to read, and with something.
fn lengths_that_are_none_are_refused(a: &Actor) {
    let s = a.stream();
    // The last leads beyond all addresses, but not those of the kernel for programs of 32 bits.
    let lengths = [usize::MAX, isize::MAX as usize + 1, isize::MAX as usize];
    let lengths = &lengths[..if cfg!(target_pointer_width = "64") { 3 } else { 2 }];
    let play = || {
        for &length in lengths {
            for (call, got) in strange::calls_with_a_length_that_is_none(s, length) {
                a.note(call, got);
            }
        }
    };
    a.server(play);
    a.client(|| a.note("send", io::send(s, b"something to read", 0)));
    a.server(|| {
        a.until_readable(s, 17);
        play();
        a.note("it", receive_text(s, 17));
    });
    are_there(a, s);
}

fn messages_that_are_not_there_are_refused(a: &Actor) {
    let s = a.stream();
    let closed = strange::closed_page();
    let (one, _other) = socket::socketpair(libc::SOCK_DGRAM);
    let udp = socket::socket(libc::AF_INET, libc::SOCK_DGRAM).fd("socket");
    for (what, fd) in [("a stream", s), ("a pair", one), ("udp", udp), ("nothing", -1)] {
        for (place, address) in [("null", 0), ("the first page", 8), ("a closed page", closed)] {
            a.note(format!("{what}: sendmmsg at {place}"), strange::sendmmsg_at(fd, address));
        }
        for (place, address) in [("null", 0), ("nowhere", usize::MAX)] {
            a.note(format!("{what}: sendmsg at {place}"), strange::sendmsg_at(fd, address));
        }
    }
    a.note("sendmsg at a closed page", strange::sendmsg_at(one, closed));
    a.note("control at a closed page", strange::sendmsg_control_at(one, closed, 64));
    for (length, says) in [(64, 0), (64, 7), (64, 65), (64, usize::MAX), (24, 20), (8, 8)] {
        let got = strange::sendmsg_control_that_says(one, length, says);
        a.note(format!("control of {length} that says {says}"), got);
    }
    a.note("select at the first page", strange::select_at(8));
    a.note("select at a closed page", strange::select_at(closed));
    a.note("send", io::send(s, b"all well", 0));
    a.note("received", receive_text(s, 8));
}

fn a_thread_with_its_own_descriptors_closes_its_copy(a: &Actor) {
    let s = a.stream();
    a.client(|| {
        std::thread::scope(|scope| {
            let own = a.thread(scope, "apart", || {
                a.note("unshare", strange::unshare_files());
                a.note("close", socket::close(s));
                a.note("send", io::send(s, b"x", libc::MSG_NOSIGNAL));
            });
            let _ = own.join();
        });
        a.note("open here", io::send(s, b"still", 0));
    });
    a.server(|| {
        a.note("received", receive_text(s, 5));
        a.note("answer", io::send(s, b"here", 0));
    });
    a.client(|| {
        a.note("answered", receive_text(s, 4));
        a.note("close", socket::close(s));
    });
    a.server(|| a.note("end", receive_text(s, 1)));
}

/// Enough for a search.
fn exchange(a: &Actor, s: Fd) {
    a.at_once(
        || {
            for _ in 0..500 {
                io::send(s, b"asked", 0).value("send");
                receive_text(s, 5);
            }
        },
        || {
            for _ in 0..500 {
                receive_text(s, 5);
                io::send(s, b"given", 0).value("send");
            }
        },
    );
}

fn a_low_water_mark_of_the_listener_is_inherited(a: &Actor) {
    let place = a.listen();
    a.server(|| {
        a.note("mark", set_int(place.fd, libc::SOL_SOCKET, libc::SO_RCVLOWAT, 5));
    });
    let s = a.new_stream(&place);
    exchange(a, s);
    a.client(|| a.note("below the mark", io::send(s, b"abc", 0)));
    a.server(|| {
        a.settle(|| socket::ioctl(s, libc::FIONREAD, 0).1 == 3);
        a.note_mask("mask", s, libc::POLLOUT);
    });
    a.client(|| a.note("at the mark", io::send(s, b"de", 0)));
    a.server(|| {
        a.until(s, libc::POLLIN);
        a.note("received", receive_text(s, 5));
    });
}

fn a_process_that_locks_its_memory_stays_small(a: &Actor) {
    let place = a.listen();
    a.note("mlockall", strange::lock_memory_to_come());
    let s = a.new_stream(&place);
    exchange(a, s);
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = resident.and_then(|rest| rest.trim().trim_end_matches(" kB").parse::<u64>().ok());
    a.note("is small", kib.is_some_and(|kib| kib < 10_000));
    let _: Got = socket::close(s);
}

fn a_process_with_few_addresses_has_them_all(a: &Actor) {
    let place = a.listen();
    a.note("limit", strange::limit_addresses_to_come(400 << 20));
    let s = a.new_stream(&place);
    exchange(a, s);
    a.note("has nearly all", strange::mappable(300 << 20));
    exchange(a, s);
    let _: Got = socket::close(s);
}

fn refused_calls_leave_the_stream_alone(a: &Actor) {
    let s = a.stream();
    let null = socket::open_null();
    a.note("dup3 with flags that are none", socket::dup3(null, s, 0x1234));
    a.note("close_range with flags that are none", successors::close_range(s, s, 8));
    a.note("with all of them", successors::close_range(s, s, u32::MAX));
    a.note("from behind", successors::close_range(s + 1, s, 0));
    a.note("readv from a list that is not there", strange::readv_at(s, 1));
    a.note("writev", strange::writev_at(s, 1));
    let page = strange::closed_page();
    a.note("of no stream", strange::readv_at(null, page));
    a.note("writev", strange::writev_at(null, page));
    let [read, written] = other_ways::at_its_place_by_list_at(null, page);
    a.note("preadv2", read);
    a.note("pwritev2", written);
    are_there(a, s);
}

fn what_is_not_there_is_refused(a: &Actor) {
    let s = a.stream();
    let page = strange::closed_page();
    let pipe = socket::pipe();
    let set = wait::epoll_create();
    a.note("a list beyond the limit", strange::poll_beyond_limit(pipe.0));
    a.note("times", format!("{:?}", strange::waits_with_time_at(set, page)));
    a.note("others", format!("{:?}", strange::calls_with_argument_at(set, pipe.0, page)));
    a.note("no cancellation point", strange::write_by_number_when_cancelled(pipe.1));
    are_there(a, s);
    a.note("a lock survives", strange::lock_survives_the_start());
    a.note("of the stream", strange::write_by_number_when_cancelled(s));
    a.note("received", receive_text(s, 1));
}

fn a_message_without_a_name_has_no_length_of_it(a: &Actor) {
    let s = a.stream();
    a.client(|| a.note("send", strange::sendmsg_nameless(s, b"nameless")));
    a.server(|| {
        let mut room = [0; 8];
        a.note("received", format!("{:?} {}", strange::recvmsg_nameless(s, &mut room), room[7]));
    });
}

fn a_count_of_select_may_be_larger_than_its_sets(a: &Actor) {
    let s = a.stream();
    a.client(|| a.note("send", io::send(s, b"x", 0)));
    a.server(|| {
        a.until_readable(s, 1);
        a.note(
            "readable, and nothing behind the set",
            format!("{:?}", strange::select_with_a_large_count(s)),
        );
        a.note("received", receive_text(s, 1));
        a.note("not readable", format!("{:?}", strange::select_with_a_large_count(s)));
    });
}

fn select_waits_on_for_what_it_asks(a: &Actor) {
    let s = a.stream();
    a.client(|| a.note("shutdown", socket::shutdown(s, libc::SHUT_WR)));
    a.server(|| {
        a.note("shutdown", socket::shutdown(s, libc::SHUT_WR));
        a.until(s, libc::POLLHUP);
        a.note("nothing urgent", format!("{:?}", strange::select_for_urgent(s)));
    });
}
