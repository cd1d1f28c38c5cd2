//! Bytes in, the same bytes out: every call that moves them, every size, every flag.

use super::{scenarios, Scenario, Settings};
use crate::actor::Actor;
use crate::calls::{io, socket, wait, Fd, Got};
use crate::pattern::{self, describe, receive, receive_text, send_all};
use std::time::{Duration, Instant};

pub const ALL: &[Scenario] = scenarios![Settings::All;
    a_receive_of_many_parts_takes_all_that_is_there,
    a_message_of_each_size_arrives,
    eight_megabytes_arrive_in_order_when_calls_block,
    both_directions_carry_at_once,
    ping_pong_goes_on_for_long,
    read_and_write_carry_bytes,
    writev_gathers_and_readv_scatters,
    sendmsg_and_recvmsg_tell_lengths_and_flags,
    sendto_and_recvfrom_serve_a_connected_stream,
    sendmmsg_and_recvmmsg_carry_several_messages,
    several_messages_are_received_within_a_time,
    several_messages_at_the_end_are_empty,
    sendfile_sends_from_the_offset_and_moves_it,
    sendfile_from_far_beyond_a_file_is_told,
    a_sendfile_that_may_wait_sends_all,
    splice_moves_bytes_through_pipes,
    fortified_reads_are_the_same_reads,
    calls_by_number_reach_the_same_stream,
    several_ways_of_writing_keep_their_order,
    zero_lengths_move_nothing,
    eight_megabytes_arrive_in_order_when_calls_do_not_block,
    one_write_larger_than_any_buffer_completes,
    one_byte_at_a_time_adds_up,
    odd_sizes_add_up,
    a_full_stream_says_eagain_and_loses_nothing,
    bytes_that_were_told_of_are_there,
    a_small_send_into_room_that_was_told_of_is_whole,
    room_that_was_told_of_is_there,
    peek_shows_bytes_and_leaves_them,
    peek_across_many_messages_shows_them_together,
    waitall_waits_for_all,
    waitall_ends_with_the_stream,
    waitall_with_dontwait_takes_what_is_there,
    dontwait_says_eagain_when_nothing_is_there,
    trunc_discards_bytes,
    more_holds_bytes_back_but_not_for_ever,
    bad_addresses_fail_and_lose_nothing,
    bad_descriptors_fail_as_they_should,
    vectors_of_impossible_length_fail,
    positioned_calls_fail_on_a_stream,
    an_unconnected_socket_cannot_carry,
    a_listening_socket_cannot_carry,
];

const SIZES: &[usize] = &[1, 2, 7, 8, 63, 64, 65, 512, 1500, 4095, 4096, 65_536, 262_144, 1 << 20];

fn a_message_of_each_size_arrives(a: &Actor) {
    let s = a.stream();
    for (seed, &size) in SIZES.iter().enumerate() {
        let seed = seed as u64;
        a.at_once(
            || a.note(format!("send {size}"), send_all(s, seed, size, size)),
            || a.note(format!("receive {size}"), receive(s, seed, size, size)),
        );
    }
}

fn read_and_write_carry_bytes(a: &Actor) {
    let s = a.stream();
    a.client(|| a.note("write", io::write(s, b"from the client")));
    a.server(|| {
        let mut room = [0; 64];
        a.until_readable(s, 15);
        let got = io::read(s, &mut room);
        a.note("read", format!("{got} {}", describe(&room[..15])));
        a.note("write back", io::write(s, b"from the server"));
    });
    a.client(|| a.note("answer", receive_text(s, 15)));
}

fn writev_gathers_and_readv_scatters(a: &Actor) {
    let s = a.stream();
    a.client(|| a.note("writev", io::writev(s, &[b"one", b"", b"two", b"", b"three"])));
    a.server(|| {
        a.until_readable(s, 11);
        let mut parts = [vec![0; 2], vec![], vec![0; 4], vec![0; 20]];
        a.note("readv", io::readv(s, &mut parts));
        for part in parts {
            a.note("part", describe(&part));
        }
    });
    a.at_once(
        || {
            let (x, y) = (pattern::bytes(3, 0, 100_000), pattern::bytes(3, 100_000, 200_000));
            let mut left: Vec<&[u8]> = vec![&x, &y];
            let got = io::writev(s, &left);
            a.note("a large writev moved something", got.count().is_some_and(|count| count > 0));
            let mut sent = got.count().unwrap_or(0);
            while sent < 300_000 {
                left =
                    if sent < 100_000 { vec![&x[sent..], &y] } else { vec![&y[sent - 100_000..]] };
                sent += io::writev(s, &left).value("writev") as usize;
            }
        },
        || a.note("the large writev", receive(s, 3, 300_000, 70_000)),
    );
}

fn sendmsg_and_recvmsg_tell_lengths_and_flags(a: &Actor) {
    let s = a.stream();
    a.client(|| a.note("sendmsg", io::sendmsg(s, &[b"head", b"and body"], 0)));
    a.server(|| {
        a.until_readable(s, 12);
        for (what, sizes, flags) in [
            ("peek", vec![4, 20], libc::MSG_PEEK),
            ("first part", vec![3], 0),
            ("the rest", vec![1, 30], 0),
            ("nothing left", vec![8], libc::MSG_DONTWAIT),
        ] {
            let m = io::recvmsg(s, &sizes, flags);
            let bytes = describe(&m.parts.concat());
            a.note(what, format!("{} {bytes}", m.got));
            if m.got.count().is_some() {
                let (flags, control, name) = (m.flags, m.control_len, m.name_len);
                a.note("header", format!("flags {flags:#x} control {control} name {name}"));
            }
        }
    });
}

fn sendto_and_recvfrom_serve_a_connected_stream(a: &Actor) {
    let s = a.stream();
    let elsewhere = socket::Address::v4(9);
    let total = a.told_by_client(|| {
        let first = io::sendto(s, b"first", 0, None);
        a.note("sendto nobody", first);
        let second = io::sendto(s, b"second", 0, Some(&elsewhere));
        a.note("sendto an address", second);
        [first, second].iter().filter_map(|got| got.count()).sum::<usize>() as u64
    });
    a.server(|| {
        a.until_readable(s, total as usize);
        let mut room = [0; 5];
        let (got, name_len) = io::recvfrom(s, &mut room, 0);
        a.note("recvfrom", format!("{got} {} name length {name_len}", describe(&room)));
        a.note("what else came", receive_text(s, total as usize - 5));
    });
}

fn several_messages_are_received_within_a_time(a: &Actor) {
    let s = a.stream();
    a.client(|| a.note("send", io::send(s, b"abcdefgh", 0)));
    a.server(|| {
        a.until_readable(s, 8);
        for (seconds, nanoseconds) in [(-1, 0), (0, 1_000_000_000), (0, -1), (0, 0), (100, 5)] {
            let mut time = libc::timespec { tv_sec: seconds, tv_nsec: nanoseconds };
            let what = format!("recvmmsg within {seconds} s {nanoseconds} ns");
            let (got, lengths, _) = io::recvmmsg_within(s, &[1, 2], 0, Some(&mut time));
            a.note(&what, format!("{got} {lengths:?}"));
            let left = (time.tv_sec, time.tv_nsec);
            let is_part = time.tv_sec < 100 && time.tv_sec > 80 && time.tv_nsec < 1_000_000_000;
            a.note("left", if is_part { "a part".to_owned() } else { format!("{left:?}") });
        }
        let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        a.note("none", io::recvmmsg_within(s, &[], 0, Some(&mut time)).0);
        let waits = io::recvmmsg_within(s, &[9, 9], libc::MSG_DONTWAIT, Some(&mut time));
        a.note("the rest", format!("{} {:?}", waits.0, waits.1));
        time = libc::timespec { tv_sec: 7, tv_nsec: 7 };
        let empty = io::recvmmsg_within(s, &[9, 9], libc::MSG_DONTWAIT, Some(&mut time));
        a.note("nothing", format!("{} {} {}", empty.0, time.tv_sec, time.tv_nsec));
    });
}

fn several_messages_at_the_end_are_empty(a: &Actor) {
    let s = a.stream();
    a.client(|| {
        a.note("send", io::send(s, b"abcde", 0));
        a.note("shutdown", socket::shutdown(s, libc::SHUT_WR));
    });
    a.server(|| {
        a.until_readable(s, 5);
        a.until(s, libc::POLLRDHUP);
        for _ in 0..2 {
            let (got, lengths, _) = io::recvmmsg(s, &[3, 3, 3, 3], 0);
            a.note("recvmmsg", format!("{got} {lengths:?}"));
        }
    });
}

fn sendmmsg_and_recvmmsg_carry_several_messages(a: &Actor) {
    let s = a.stream();
    a.client(|| {
        let (got, lengths) = io::sendmmsg(s, &[b"alpha", b"be", b"gamma"]);
        a.note("sendmmsg", format!("{got} {lengths:?}"));
    });
    a.server(|| {
        a.until_readable(s, 12);
        let (got, lengths, parts) = io::recvmmsg(s, &[5, 2, 5], 0);
        a.note("recvmmsg", format!("{got} {lengths:?} {}", describe(&parts.concat())));
        let (got, ..) = io::recvmmsg(s, &[5, 5], libc::MSG_DONTWAIT);
        a.note("recvmmsg with nothing there", got);
    });
    a.client(|| {
        io::send(s, b"xyz", 0);
    });
    a.server(|| {
        a.until_readable(s, 3);
        let (got, lengths, parts) = io::recvmmsg(s, &[2, 4, 4], libc::MSG_WAITFORONE);
        a.note("wait for one", format!("{got} {:?}", &lengths[..2]));
        a.note("bytes", describe(&parts.concat()[..3]));
    });
}

/// To a reader that does not read at first, so that it waits, and goes by another carrier.
fn a_sendfile_that_may_wait_sends_all(a: &Actor) {
    let s = a.stream();
    let size = 12 << 20;
    a.at_once(
        || {
            let file = socket::memfd();
            pattern::write_all(file, &pattern::bytes(5, 0, size)).expect("a memfd takes all");
            let (got, offset) = io::sendfile(s, file, 0, size);
            a.note("sendfile", format!("{got}, offset {offset}"));
            a.note("write after sendfile", io::write(s, b"tail"));
        },
        || {
            std::thread::sleep(std::time::Duration::from_millis(60));
            a.note("the file", receive(s, 5, size, 65_536));
            a.note("after it", receive_text(s, 4));
        },
    );
}

fn sendfile_sends_from_the_offset_and_moves_it(a: &Actor) {
    let s = a.stream();
    a.at_once(
        || {
            let file = socket::memfd();
            pattern::write_all(file, &pattern::bytes(5, 0, 500_000)).expect("a memfd takes all");
            let (mut at, end) = (0, 500_000);
            while at < end {
                let (got, offset) = io::sendfile(s, file, at, (end - at) as usize);
                if offset != at + got.value("sendfile") {
                    a.note("offset", format!("{offset} after {got} from {at}"));
                }
                at = offset;
            }
            a.note("at the end", io::sendfile(s, file, at, 100).0);
            let position = io::lseek(file);
            a.note("the file's own position", position);
            a.note("write after sendfile", io::write(s, b"tail"));
            a.note("sendfile from a bad file", io::sendfile(s, -1, 0, 5).0);
        },
        || {
            a.note("the file", receive(s, 5, 500_000, 65_536));
            a.note("after it", receive_text(s, 4));
        },
    );
}

fn sendfile_from_far_beyond_a_file_is_told(a: &Actor) {
    let s = a.stream();
    a.client(|| {
        let file = socket::memfd();
        pattern::write_all(file, b"short").expect("a memfd takes all");
        for at in [
            5,
            1 << 32,
            1 << 43,
            1 << 62,
            i64::MAX - 100,
            i64::MAX - 99,
            i64::MAX - 1,
            i64::MAX,
            -1,
        ] {
            let (got, offset) = io::sendfile(s, file, at, 100);
            a.note(format!("from {at}"), format!("{got} and the offset is {offset}"));
        }
        a.note("from the start", io::sendfile(s, file, 0, 100).0);
    });
    a.server(|| a.note("received", receive_text(s, 5)));
}

fn splice_moves_bytes_through_pipes(a: &Actor) {
    let s = a.stream();
    let (out, into) = socket::pipe();
    a.client(|| {
        a.note("write to the pipe", io::write(into, b"through a pipe"));
        a.note("splice to the stream", io::splice(out, s, 14, 0));
    });
    a.server(|| {
        a.until_readable(s, 14);
        a.note("splice from the stream", io::splice(s, into, 64, 0));
        a.note("pipe holds", receive_pipe(out, 14));
        socket::set_nonblocking(s, true);
        a.note("nothing to splice", io::splice(s, into, 64, libc::SPLICE_F_NONBLOCK));
        socket::set_nonblocking(s, false);
        a.note("write after splice", io::write(s, b"back"));
    });
    a.client(|| a.note("answer", receive_text(s, 4)));
}

fn receive_pipe(fd: Fd, len: usize) -> String {
    let mut room = vec![0; len];
    let got = io::read(fd, &mut room);
    format!("{got} {}", describe(&room))
}

fn fortified_reads_are_the_same_reads(a: &Actor) {
    let s = a.stream();
    a.client(|| a.note("send", io::send(s, b"abcdefghi", 0)));
    a.server(|| {
        a.until_readable(s, 9);
        let mut room = [0; 3];
        a.note("read", format!("{} {}", io::read_checked(s, &mut room), describe(&room)));
        a.note("recv", format!("{} {}", io::recv_checked(s, &mut room, 0), describe(&room)));
        a.note(
            "recvfrom",
            format!("{} {}", io::recvfrom_checked(s, &mut room, 0), describe(&room)),
        );
        let none = io::recv_checked(s, &mut room, libc::MSG_DONTWAIT);
        a.note("nothing left", none);
    });
}

fn calls_by_number_reach_the_same_stream(a: &Actor) {
    let s = a.stream();
    a.client(|| {
        a.note("send", io::send(s, b"1234", 0));
        a.note("send by number", io::send_by_number(s, b"5678"));
        a.note("write by number", io::write_by_number(s, b"9abc"));
        a.note("write", io::write(s, b"defg"));
    });
    a.server(|| {
        a.until_readable(s, 16);
        let mut room = [0; 4];
        let mut take = |what: &str, call: &dyn Fn(&mut [u8]) -> Got| {
            let got = call(&mut room);
            a.note(what, format!("{got} {}", describe(&room)));
        };
        take("recv by number", &|room| io::recv_by_number(s, room));
        take("recv", &|room| io::recv(s, room, 0));
        take("read by number", &|room| io::read_by_number(s, room));
        take("read", &|room| io::read(s, room));
    });
}

fn several_ways_of_writing_keep_their_order(a: &Actor) {
    let s = a.stream();
    a.at_once(
        || {
            for round in 0..200u64 {
                let piece = pattern::bytes(4, round * 100, 100);
                let (head, tail) = piece.split_at(37);
                let got = match round % 5 {
                    0 => io::write(s, &piece),
                    1 => io::send(s, &piece, 0),
                    2 => io::writev(s, &[head, tail]),
                    3 => io::sendmsg(s, &[head, tail], 0),
                    _ => io::sendto(s, &piece, 0, None),
                };
                assert_eq!(got, Got::Value(100), "a small write in round {round}");
            }
        },
        || a.note("all of them", receive(s, 4, 20_000, 333)),
    );
}

fn zero_lengths_move_nothing(a: &Actor) {
    let s = a.stream();
    a.client(|| {
        a.note("send nothing", io::send(s, b"", 0));
        a.note("write nothing", io::write(s, b""));
        a.note("writev of empty parts", io::writev(s, &[b"", b""]));
        a.note("writev of no parts", io::writev(s, &[]));
        a.note("sendmsg of no parts", io::sendmsg(s, &[], 0));
    });
    a.server(|| a.note("receive nothing, nothing there", io::recv(s, &mut [], libc::MSG_DONTWAIT)));
    a.client(|| a.note("send", io::send(s, b"x", 0)));
    a.server(|| {
        a.until_readable(s, 1);
        a.note("read nothing", io::read(s, &mut []));
        a.note("recv nothing", io::recv(s, &mut [], 0));
        a.note("readv of no parts", io::readv(s, &mut []));
        a.note("readv of empty parts", io::readv(s, &mut [vec![], vec![]]));
        a.note("recvmsg of no parts", io::recvmsg(s, &[], 0).got);
        a.note("the byte is still there", receive_text(s, 1));
    });
}

fn eight_megabytes_arrive_in_order_when_calls_block(a: &Actor) {
    let s = a.stream();
    const TOTAL: usize = 8 << 20;
    a.at_once(
        || a.note("sent", send_all(s, 1, TOTAL, 300_000)),
        || a.note("received", receive(s, 1, TOTAL, 123_457)),
    );
}

fn eight_megabytes_arrive_in_order_when_calls_do_not_block(a: &Actor) {
    let s = a.stream();
    socket::set_nonblocking(s, true);
    const TOTAL: usize = 8 << 20;
    a.at_once(
        || a.note("sent", send_all(s, 1, TOTAL, 1 << 20)),
        || a.note("received", receive(s, 1, TOTAL, 50_001)),
    );
}

fn one_write_larger_than_any_buffer_completes(a: &Actor) {
    let s = a.stream();
    const TOTAL: usize = 24 << 20;
    a.at_once(
        || a.note("one send", io::send(s, &pattern::bytes(9, 0, TOTAL), 0)),
        || a.note("received", receive(s, 9, TOTAL, 1 << 20)),
    );
}

fn both_directions_carry_at_once(a: &Actor) {
    let s = a.stream();
    const TOTAL: usize = 4 << 20;
    let (send_seed, receive_seed) = if a.is_client() { (1, 2) } else { (2, 1) };
    std::thread::scope(|scope| {
        a.thread(scope, "writer", move || {
            a.note("sent", send_all(s, send_seed, TOTAL, 100_000));
        });
        a.note("received", receive(s, receive_seed, TOTAL, 65_536));
    });
    a.meet();
}

fn ping_pong_goes_on_for_long(a: &Actor) {
    let s = a.stream();
    let mut good = 0;
    for round in 0..3000u64 {
        let size = (round % 97 + 1) as usize;
        let (ping, pong) = (pattern::bytes(round, 0, size), pattern::bytes(round + 1, 0, size));
        let mut room = vec![0; size];
        if a.is_client() {
            io::send(s, &ping, 0).value("ping");
            let got = io::recv(s, &mut room, libc::MSG_WAITALL);
            good += u64::from(got == Got::Value(size as i64) && room == pong);
        } else {
            let got = io::recv(s, &mut room, libc::MSG_WAITALL);
            good += u64::from(got == Got::Value(size as i64) && room == ping);
            io::send(s, &pong, 0).value("pong");
        }
    }
    a.note("good rounds", good);
}

fn one_byte_at_a_time_adds_up(a: &Actor) {
    let s = a.stream();
    a.at_once(
        || a.note("sent", send_all(s, 6, 5000, 1)),
        || a.note("received", receive(s, 6, 5000, 4096)),
    );
    a.at_once(
        || a.note("received", receive(s, 7, 5000, 1)),
        || a.note("sent", send_all(s, 7, 5000, 5000)),
    );
}

fn odd_sizes_add_up(a: &Actor) {
    let s = a.stream();
    const TOTAL: usize = 3_000_003;
    a.at_once(
        || a.note("sent", send_all(s, 8, TOTAL, 4099)),
        || a.note("received", receive(s, 8, TOTAL, 8191)),
    );
}

fn a_full_stream_says_eagain_and_loses_nothing(a: &Actor) {
    let s = a.stream();
    let total = a.told_by_client(|| {
        let block = pattern::bytes(2, 0, 64 << 20);
        let mut sent = 0;
        let full = loop {
            let got = io::send(s, &block[sent..][..100_000], libc::MSG_DONTWAIT);
            match got.count() {
                Some(count) => sent += count,
                None => break got,
            }
        };
        a.note("when full", full);
        a.note("something went in", sent > 0);
        sent as u64
    });
    a.server(|| {
        let text = receive(s, 2, total as usize, 65_536);
        a.note("all of it", text == format!("{total} bytes right"));
        let mut room = [0; 1];
        a.note("and no more", io::recv(s, &mut room, libc::MSG_DONTWAIT));
    });
}

/// However slow their reader is, and wherever its writer goes on.
fn bytes_that_were_told_of_are_there(a: &Actor) {
    const TOTAL: usize = 4 << 20;
    const PIECE: usize = 8192;
    let s = a.stream();
    let read_slowly = || {
        let (mut text, mut lost, mut shrunk) = (Vec::<u8>::new(), 0, 0);
        let mut room = [0; PIECE];
        while text.len() < TOTAL {
            wait::poll(&[(s, libc::POLLIN)], -1);
            // A writer that finds no room for 20 ms may go on by another way meanwhile.
            let pause = if text.len() % (TOTAL / 16) < PIECE { 30 } else { 0 };
            let (began, mut known) = (Instant::now(), 0);
            loop {
                let (_, answers) = wait::poll(&[(s, libc::POLLIN)], 0);
                lost += u32::from(answers[0] & libc::POLLIN as u32 == 0);
                let (_, count) = socket::ioctl(s, libc::FIONREAD, -1);
                shrunk += u32::from(count < known);
                known = count;
                if began.elapsed() >= Duration::from_millis(pause) {
                    break;
                }
            }
            match io::recv(s, &mut room, libc::MSG_DONTWAIT).count() {
                Some(count) => text.extend(&room[..count]),
                None => lost += 1,
            }
        }
        a.note("looks that missed bytes", lost);
        a.note("counts that shrank", shrunk);
        a.note("all of it", text == pattern::bytes(1, 0, TOTAL));
    };
    a.at_once(|| a.note("sent", send_all(s, 1, TOTAL, 65_536)), read_slowly);
}

/// Takes the first sequence, `PIECE` bytes at most at a time, with so many pauses of so many milliseconds.
fn read_slowly<const PIECE: usize>(a: &Actor, s: Fd, total: usize, (pauses, ms): (usize, i32)) {
    let mut text = Vec::<u8>::new();
    let mut room = [0; PIECE];
    while text.len() < total {
        if text.len() % (total / pauses) < PIECE {
            wait::poll(&[], ms);
        }
        let count = io::recv(s, &mut room, 0).count().unwrap_or(0);
        text.extend(&room[..count]);
    }
    a.note("all of it", text == pattern::bytes(1, 0, total));
}

/// Programs take POLLOUT for room for a message, and drop what is left of one that is cut.
fn a_small_send_into_room_that_was_told_of_is_whole(a: &Actor) {
    const TOTAL: usize = 16 << 20;
    const MESSAGE: usize = 1452;
    let s = a.stream();
    let write_when_told = || {
        let block = pattern::bytes(1, 0, TOTAL);
        let set = wait::epoll_create();
        wait::epoll_add(set, s, libc::EPOLLOUT, 1);
        let (mut sent, mut cut) = (0, 0);
        for round in 0.. {
            let message = &block[sent..TOTAL.min(sent + MESSAGE)];
            if message.is_empty() {
                break;
            }
            if round % 2 == 0 {
                wait::poll(&[(s, libc::POLLOUT)], -1);
            } else {
                wait::epoll_wait(set, 1, -1);
            }
            let count = io::send(s, message, libc::MSG_DONTWAIT).count().unwrap_or(0);
            cut += u32::from(count < message.len());
            sent += count;
        }
        a.note("messages cut", cut);
    };
    a.at_once(write_when_told, || read_slowly::<20_000>(a, s, TOTAL, (64, 2)));
}

fn room_that_was_told_of_is_there(a: &Actor) {
    const TOTAL: usize = 8 << 20;
    let s = a.stream();
    let write_when_told = |piece: usize| {
        let block = pattern::bytes(1, 0, TOTAL);
        let (mut sent, mut lost) = (0, Vec::new());
        while sent < TOTAL {
            let told = wait::poll(&[(s, libc::POLLOUT)], -1);
            let got = io::send(s, &block[sent..TOTAL.min(sent + piece)], libc::MSG_DONTWAIT);
            match got.count() {
                Some(count) => sent += count,
                None => lost.push(format!("{got} after {sent} bytes and {told:?}")),
            }
        }
        a.note("room that was gone", lost.join(", "));
    };
    // A writer that finds no room for 20 ms may go on by another way.
    let read_slowly = || read_slowly::<50_000>(a, s, TOTAL, (8, 50));
    // The latter fill a ring to its last byte.
    for piece in [30_000, 4096] {
        a.at_once(|| write_when_told(piece), read_slowly);
    }
}

fn peek_shows_bytes_and_leaves_them(a: &Actor) {
    let s = a.stream();
    a.client(|| a.note("send", io::send(s, b"peek at me", 0)));
    a.server(|| {
        a.until_readable(s, 10);
        let mut room = [0; 4];
        for what in ["peek", "peek again"] {
            let got = io::recv(s, &mut room, libc::MSG_PEEK);
            a.note(what, format!("{got} {}", describe(&room)));
        }
        a.note("read", receive_text(s, 4));
        let got = io::recv(s, &mut room, libc::MSG_PEEK);
        a.note("peek further", format!("{got} {}", describe(&room)));
        a.note("the rest", receive_text(s, 6));
        a.note("peek at nothing", io::recv(s, &mut room, libc::MSG_PEEK | libc::MSG_DONTWAIT));
    });
}

fn peek_across_many_messages_shows_them_together(a: &Actor) {
    let s = a.stream();
    a.client(|| {
        for piece in pattern::bytes(11, 0, 20_000).chunks(1000) {
            io::send(s, piece, 0).value("send");
        }
    });
    a.server(|| {
        a.until_readable(s, 20_000);
        let mut room = vec![0; 30_000];
        let got = io::recv(s, &mut room, libc::MSG_PEEK);
        a.note("peek", format!("{got} right: {}", room[..20_000] == pattern::bytes(11, 0, 20_000)));
        a.note("received", receive(s, 11, 20_000, 30_000));
    });
}

fn waitall_waits_for_all(a: &Actor) {
    let s = a.stream();
    a.at_once(
        || {
            for piece in pattern::bytes(12, 0, 100_000).chunks(9000) {
                io::send(s, piece, 0).value("send");
            }
        },
        || {
            let mut room = vec![0; 100_000];
            let got = io::recv(s, &mut room, libc::MSG_WAITALL);
            a.note("wait all", format!("{got} right: {}", room == pattern::bytes(12, 0, 100_000)));
        },
    );
}

fn waitall_ends_with_the_stream(a: &Actor) {
    let s = a.stream();
    a.client(|| {
        io::send(s, b"too few", 0).value("send");
        socket::shutdown(s, libc::SHUT_WR).value("shutdown");
    });
    a.server(|| {
        let mut room = [0; 100];
        let got = io::recv(s, &mut room, libc::MSG_WAITALL);
        a.note("wait all", format!("{got} {}", describe(&room[..7])));
        a.note("then", io::recv(s, &mut room, libc::MSG_WAITALL));
    });
}

fn waitall_with_dontwait_takes_what_is_there(a: &Actor) {
    let s = a.stream();
    a.client(|| a.note("send", io::send(s, b"some", 0)));
    a.server(|| {
        a.until_readable(s, 4);
        let mut room = [0; 100];
        let flags = libc::MSG_WAITALL | libc::MSG_DONTWAIT;
        a.note("with bytes there", io::recv(s, &mut room, flags));
        a.note("with none", io::recv(s, &mut room, flags));
    });
}

fn dontwait_says_eagain_when_nothing_is_there(a: &Actor) {
    let s = a.stream();
    let mut room = [0; 8];
    a.note("recv", io::recv(s, &mut room, libc::MSG_DONTWAIT));
    a.note("recvmsg", io::recvmsg(s, &[8], libc::MSG_DONTWAIT).got);
    a.note("recvfrom", io::recvfrom(s, &mut room, libc::MSG_DONTWAIT).0);
    a.note("error queue", io::recv(s, &mut room, libc::MSG_ERRQUEUE));
    a.meet();
}

fn trunc_discards_bytes(a: &Actor) {
    let s = a.stream();
    a.client(|| a.note("send", io::send(s, b"dropped, kept", 0)));
    a.server(|| {
        a.until_readable(s, 13);
        a.note("discard", io::recv_into(s, 0, 9, libc::MSG_TRUNC));
        a.note("what is left", receive_text(s, 4));
    });
}

fn more_holds_bytes_back_but_not_for_ever(a: &Actor) {
    let s = a.stream();
    a.client(|| {
        a.note("send more", io::send(s, b"head ", libc::MSG_MORE));
        a.note("send more", io::send(s, b"middle ", libc::MSG_MORE));
        a.note("send", io::send(s, b"tail", 0));
    });
    a.server(|| a.note("received", receive_text(s, 16)));
    a.client(|| a.note("only more", io::send(s, b"alone", libc::MSG_MORE)));
    a.server(|| a.note("received", receive_text(s, 5)));
}

fn bad_addresses_fail_and_lose_nothing(a: &Actor) {
    let s = a.stream();
    a.client(|| {
        a.note("send from NULL", io::send_from(s, 0, 10));
        a.note("send from page 0", io::send_from(s, 8, 10));
        a.note("send from kernel space", io::send_from(s, usize::MAX - 4096, 10));
        a.note("send", io::send(s, b"intact", 0));
    });
    a.server(|| {
        a.until_readable(s, 6);
        a.note("recv to NULL", io::recv_into(s, 0, 10, 0));
        a.note("recv to page 0", io::recv_into(s, 8, 10, 0));
        a.note("nothing to NULL", io::recv_into(s, 0, 0, libc::MSG_DONTWAIT));
        a.note("the bytes", receive_text(s, 6));
    });
    let went = a.told_by_client(|| {
        let got = io::writev_with_bad_part(s, b"good part");
        a.note("a bad part", got.is(libc::EFAULT) || got == Got::Value(9));
        io::send(s, b"end", 0);
        got.count().unwrap_or(0) as u64
    });
    a.server(|| {
        let text = receive_text(s, went as usize + 3);
        a.note("what went is whole", text == format!("{}end", &"good part"[..went as usize]));
    });
}

fn bad_descriptors_fail_as_they_should(a: &Actor) {
    let _s = a.stream();
    let (out, into) = socket::pipe();
    let mut room = [0; 8];
    for (what, fd) in [("closed", 600), ("negative", -1), ("pipe", out), ("huge", i32::MAX)] {
        a.note(format!("{what}: send"), io::send(fd, b"x", 0));
        a.note(format!("{what}: recv"), io::recv(fd, &mut room, libc::MSG_DONTWAIT));
        a.note(format!("{what}: sendmsg"), io::sendmsg(fd, &[b"x"], 0));
        a.note(format!("{what}: shutdown"), socket::shutdown(fd, libc::SHUT_WR));
        a.note(format!("{what}: getsockname"), socket::getsockname(fd).0);
        a.note(format!("{what}: getpeername"), socket::getpeername(fd).0);
        a.note(format!("{what}: accept"), socket::accept(fd));
        a.note(format!("{what}: listen"), socket::listen(fd, 1));
        a.note(format!("{what}: SO_ERROR"), socket::so_error(fd));
    }
    for (what, fd) in [("closed", 600), ("negative", -1)] {
        a.note(format!("{what}: read"), io::read(fd, &mut room));
        a.note(format!("{what}: write"), io::write(fd, b"x"));
        a.note(format!("{what}: close"), socket::close(fd));
        a.note(format!("{what}: dup"), socket::dup(fd));
        a.note(format!("{what}: F_GETFL"), socket::fcntl(fd, libc::F_GETFL, 0));
    }
    a.note("write to the reading end", io::write(out, b"x"));
    a.note("read from the writing end", io::read(into, &mut room));
    a.meet();
}

fn vectors_of_impossible_length_fail(a: &Actor) {
    let s = a.stream();
    a.note("negative", io::writev_of_count(s, -1));
    a.note("too many", io::writev_of_count(s, 1025));
    a.note("none", io::writev_of_count(s, 0));
    a.note("no vector", io::writev_of_count(s, 1));
    a.meet();
}

fn positioned_calls_fail_on_a_stream(a: &Actor) {
    let s = a.stream();
    let mut room = [0; 4];
    a.note("lseek", io::lseek(s));
    a.note("pread", io::pread(s, &mut room, 0));
    a.meet();
}

fn an_unconnected_socket_cannot_carry(a: &Actor) {
    a.stream();
    let s = a.tcp_socket();
    let mut room = [0; 4];
    a.note("send", io::send(s, b"x", libc::MSG_NOSIGNAL));
    a.note("recv", io::recv(s, &mut room, 0));
    a.note("read", io::read(s, &mut room));
    a.note("shutdown", socket::shutdown(s, libc::SHUT_WR));
    a.note("getpeername", socket::getpeername(s).0);
    a.note("accept", socket::accept(s));
    a.meet();
}

fn a_listening_socket_cannot_carry(a: &Actor) {
    let place = a.listen();
    let mut room = [0; 4];
    a.server(|| {
        a.note("send", io::send(place.fd, b"x", libc::MSG_NOSIGNAL));
        a.note("recv", io::recv(place.fd, &mut room, 0));
        a.note("getpeername", socket::getpeername(place.fd).0);
        a.note("connect", socket::connect(place.fd, &socket::Address::v4(place.port)));
    });
    a.meet();
    let s = a.pair(&place);
    a.client(|| {
        io::send(s, b"still listening", 0);
        socket::close(s);
    });
    a.server(|| a.note("a stream from it", receive_text(s, 20)));
}

/// Wherever the stream is: it may be about to come to a ring.
fn a_receive_of_many_parts_takes_all_that_is_there(a: &Actor) {
    const BYTES: usize = 4000;
    let place = a.listen();
    for round in 0..24 {
        let s = a.new_stream(&place);
        a.at_once(
            || {
                for _ in 0..round {
                    io::send(s, b"question", 0).value("send");
                    assert_eq!(receive_text(s, 8), "response");
                }
                a.until_readable(s, BYTES);
                for flags in [libc::MSG_PEEK | libc::MSG_WAITALL, libc::MSG_DONTWAIT] {
                    let message = io::recvmsg(s, &[1; 300], flags);
                    a.note(format!("round {round}, flags {flags:x}"), message.got);
                }
            },
            || {
                for _ in 0..round {
                    assert_eq!(receive_text(s, 8), "question");
                    io::send(s, b"response", 0).value("send");
                }
                io::send(s, &[7; BYTES], 0).value("send");
            },
        );
        socket::close(s);
    }
}
