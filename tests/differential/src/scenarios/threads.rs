//! Several threads and several streams: in one process, between two, and all at once.

use super::{scenarios, Scenario, Settings};
use crate::actor::{listener, Actor, Place};
use crate::calls::process::Cancellable;
use crate::calls::socket::Address;
use crate::calls::stdio::File;
use crate::calls::wait::{epoll_add, epoll_create, epoll_mod, epoll_wait, select, Selection};
use crate::calls::{io, process, socket, wait, Fd, Got};
use crate::pattern::{self, receive, receive_text, send_all, Checker};
use std::sync::atomic::{AtomicI32, AtomicUsize, Ordering::Relaxed};
use std::sync::mpsc::{channel, Receiver};
use std::thread;
use std::time::{Duration, Instant};

pub const ALL: &[Scenario] = scenarios![Settings::All;
    one_thread_reads_while_another_writes,
    threads_of_one_process_play_ping_pong,
    one_process_talks_to_itself_in_bulk,
    one_thread_of_one_process_writes_then_reads,
    two_hundred_streams_through_one_epoll_server,
    a_thousand_streams_go_on_while_their_processes_fork,
    each_thread_has_its_own_stream,
    threads_that_write_to_one_stream_keep_their_messages_whole,
    threads_that_read_from_one_stream_get_every_byte_once,
    every_thread_that_reads_or_polls_is_told_of_the_end,
    threads_that_share_an_epoll_set_serve_every_stream,
    what_one_thread_adds_to_a_set_another_serves_and_closes,
    what_one_thread_adds_for_edges_another_serves_and_closes,
    a_stream_that_its_server_has_closed_is_told_no_more,
    a_one_shot_is_told_to_one_thread_at_a_time,
    who_waited_before_a_stream_came_is_woken_by_it,
    a_level_wakes_every_thread_of_an_epoll_set,
    shutdown_by_another_thread_ends_a_blocked_read,
    shutdown_by_another_thread_ends_a_read_that_is_about_to_sleep,
    shutdown_by_another_thread_ends_a_blocked_write,
    shutdown_by_another_thread_ends_a_blocked_accept,
    a_thread_that_ends_leaves_the_streams,
    a_thread_that_waits_in_a_read_can_be_cancelled,
    a_thread_that_waits_in_a_write_can_be_cancelled,
    a_thread_that_waits_long_in_a_write_can_be_cancelled,
    a_thread_that_waits_in_a_poll_can_be_cancelled,
    a_thread_that_may_be_cancelled_anywhere_is_cancelled_asleep,
    a_thread_that_never_waits_for_long_can_be_cancelled,
    a_close_waits_for_a_thread_that_polls,
    a_number_that_is_closed_while_select_sleeps_is_told_as_ready,
    streams_handed_from_thread_to_thread_stay_in_order,
    many_short_connections_are_all_served,
    what_is_shut_while_it_comes_to_a_ring_arrives_whole,
    connections_opened_at_once_are_all_served,
    a_peer_that_answers_late_wakes_the_right_thread,
    writers_blocked_on_several_streams_all_go_on,
    a_handler_may_send_on_the_stream_that_it_interrupts,
    a_handler_may_copy_close_and_poll_in_the_middle_of_malloc,
    every_call_has_room_on_the_smallest_stack,
];

pub const LONG: &[Scenario] = scenarios![Settings::Ring;
    one_shots_that_threads_serve_are_told_of_when_a_child_looks,
];

fn one_thread_reads_while_another_writes(a: &Actor) {
    let s = a.stream();
    const TOTAL: usize = 8 << 20;
    let (send_seed, receive_seed) = if a.is_client() { (1, 2) } else { (2, 1) };
    std::thread::scope(|scope| {
        a.thread(scope, "writer", || a.note("sent", send_all(s, send_seed, TOTAL, 65_536)));
        a.thread(scope, "reader", || a.note("received", receive(s, receive_seed, TOTAL, 65_536)));
    });
    a.meet();
}

/// A stream with both ends in this process.
fn own_stream(a: &Actor) -> (Fd, Fd) {
    let (place, port) = listener(a.family);
    let near = a.tcp_socket();
    socket::connect(near, &Address::as_seen_by_client(a.family, port)).value("connect");
    let far = socket::accept(place).fd("accept");
    socket::close(place);
    std::thread::scope(|scope| {
        a.thread(scope, "warm-up", || a.warm_as_server(far));
        a.warm_as_client(near);
    });
    (near, far)
}

fn threads_of_one_process_play_ping_pong(a: &Actor) {
    a.server(|| {
        let (near, far) = own_stream(a);
        std::thread::scope(|scope| {
            a.thread(scope, "pong", || {
                let mut room = [0; 5];
                for _ in 0..2000 {
                    io::recv(far, &mut room, libc::MSG_WAITALL).value("recv");
                    io::send(far, &room, 0).value("send");
                }
            });
            let mut good = 0;
            for round in 0..2000u64 {
                let ping = pattern::bytes(round, 0, 5);
                let mut room = [0; 5];
                io::send(near, &ping, 0).value("send");
                io::recv(near, &mut room, libc::MSG_WAITALL).value("recv");
                good += u32::from(room[..] == ping);
            }
            a.note("good rounds", good);
        });
    });
}

fn one_process_talks_to_itself_in_bulk(a: &Actor) {
    a.server(|| {
        let (near, far) = own_stream(a);
        std::thread::scope(|scope| {
            a.thread(scope, "writer", || {
                a.note("sent", send_all(near, 1, 4 << 20, 100_000));
                a.note("shutdown", socket::shutdown(near, libc::SHUT_WR));
            });
            a.note("received", pattern::receive_to_end(far, 1));
        });
    });
}

fn one_thread_of_one_process_writes_then_reads(a: &Actor) {
    a.server(|| {
        let (near, far) = own_stream(a);
        for round in 0..50u64 {
            assert_eq!(send_all(near, round, 1000, 1000), "1000 bytes sent");
            assert_eq!(receive(far, round, 1000, 1000), "1000 bytes right");
        }
        a.note("close", socket::close(near));
        a.note("the end", receive_text(far, 1));
    });
}

fn two_hundred_streams_through_one_epoll_server(a: &Actor) {
    let place = a.listen();
    const STREAMS: usize = 200;
    let total = |stream: usize| 3000 + (stream * 7919) % 20_000;
    a.at_once(
        || {
            let streams: Vec<Fd> = (0..STREAMS).map(|_| a.connect(&place)).collect();
            for &s in &streams {
                socket::set_nonblocking(s, true);
            }
            a.note("echoes", echo_through(&streams, &total));
            streams.into_iter().for_each(|s| assert_eq!(socket::close(s), Got::Value(0)));
        },
        || {
            socket::set_nonblocking(place.fd, true);
            a.note("echoed", serve_echo(place.fd, STREAMS));
        },
    );
}

/// Children that touch nothing, one after the other, beside whatever the other threads do.
fn fork_until(enough: &AtomicUsize) -> usize {
    let mut children = 0;
    while enough.load(Relaxed) == 0 || children < 5 {
        let child = process::fork(|| {
            wait::poll(&[], 5);
            0
        });
        assert_eq!(process::wait_for(child), "exited 0");
        children += 1;
    }
    children
}

fn a_thousand_streams_go_on_while_their_processes_fork(a: &Actor) {
    const STREAMS: usize = 1000;
    a.note("limit", process::limit_descriptors(4000));
    let place = a.listen();
    let total = |stream: usize| 2000 + (stream * 7919) % 5000;
    let enough = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        let forks = scope.spawn(|| fork_until(&enough));
        a.at_once(
            || {
                let streams: Vec<Fd> = (0..STREAMS).map(|_| a.connect(&place)).collect();
                for &s in &streams {
                    socket::set_nonblocking(s, true);
                }
                a.note("echoes", echo_through(&streams, &total));
                a.note("once more", echo_through(&streams, &total));
                streams.into_iter().for_each(|s| assert_eq!(socket::close(s), Got::Value(0)));
            },
            || {
                socket::set_nonblocking(place.fd, true);
                a.note("echoed", serve_echo(place.fd, STREAMS));
            },
        );
        enough.store(1, Relaxed);
        a.note("children", forks.join().is_ok_and(|children| children >= 5));
    });
}

/// Writes each stream's own sequence in pieces and checks what comes back.
fn echo_through(streams: &[Fd], total: &dyn Fn(usize) -> usize) -> String {
    let set = wait::epoll_create();
    let events = libc::EPOLLIN | libc::EPOLLOUT | libc::EPOLLET;
    let mut sent = vec![0; streams.len()];
    let mut checkers: Vec<Checker> = (0..streams.len() as u64).map(Checker::new).collect();
    for (index, &s) in streams.iter().enumerate() {
        wait::epoll_add(set, s, events, index as u64).value("ADD");
    }
    let mut room = vec![0; 16_384];
    let mut left = streams.len();
    while left > 0 {
        let ready = wait::epoll_wait(set, 64, 15_000);
        if ready.events.is_empty() {
            return format!("no event for long, {left} streams left");
        }
        for (_, data) in ready.events {
            let index = data as usize;
            let (s, all) = (streams[index], total(index));
            let before = checkers[index].count() as usize;
            while let Some(n @ 1..) = io::recv(s, &mut room, 0).count() {
                checkers[index].take(&room[..n]);
            }
            while sent[index] < all {
                let piece = pattern::bytes(index as u64, sent[index] as u64, 777);
                let piece = &piece[..piece.len().min(all - sent[index])];
                match io::send(s, piece, 0).count() {
                    Some(n) => sent[index] += n,
                    None => break,
                }
            }
            left -= usize::from(before < all && checkers[index].count() as usize == all);
        }
    }
    let right = |(index, checker): (usize, &Checker)| {
        checker.verdict() == format!("{} bytes right", total(index))
    };
    format!("{} right", checkers.iter().enumerate().filter(|&each| right(each)).count())
}

/// An edge-triggered echo server that ends when it has seen this many clients go.
fn serve_echo(listener: Fd, clients: usize) -> String {
    let set = wait::epoll_create();
    wait::epoll_add(set, listener, libc::EPOLLIN, u64::MAX).value("ADD");
    let events = libc::EPOLLIN | libc::EPOLLOUT | libc::EPOLLRDHUP | libc::EPOLLET;
    let mut waiting: Vec<(Fd, Vec<u8>)> = Vec::new();
    let mut gone = 0;
    let mut room = vec![0; 10_000];
    while gone < clients {
        for (_, data) in wait::epoll_wait(set, 32, 15_000).events {
            if data == u64::MAX {
                while let Some(fd) = socket::accept4(listener, libc::SOCK_NONBLOCK).count() {
                    wait::epoll_add(set, fd as Fd, events, waiting.len() as u64).value("ADD");
                    waiting.push((fd as Fd, Vec::new()));
                }
                continue;
            }
            let (s, pending) = &mut waiting[data as usize];
            loop {
                while !pending.is_empty() {
                    match io::send(*s, pending, libc::MSG_NOSIGNAL).count() {
                        Some(n) => drop(pending.drain(..n)),
                        None => break,
                    }
                }
                if !pending.is_empty() {
                    break;
                }
                match io::recv(*s, &mut room, 0) {
                    Got::Value(0) => {
                        socket::close(*s);
                        gone += 1;
                        break;
                    }
                    got => match got.count() {
                        Some(n) => pending.extend_from_slice(&room[..n]),
                        None => break,
                    },
                }
            }
        }
    }
    format!("{gone} clients")
}

fn each_thread_has_its_own_stream(a: &Actor) {
    let place = a.listen();
    let streams: Vec<Fd> = (0..12).map(|_| a.pair(&place)).collect();
    a.meet();
    std::thread::scope(|scope| {
        for (index, &s) in streams.iter().enumerate() {
            let seed = index as u64;
            a.thread(scope, &format!("{index}"), move || {
                for round in 0..20 {
                    if a.is_client() {
                        assert_eq!(send_all(s, seed + round, 9000, 1000), "9000 bytes sent");
                    }
                    assert_eq!(receive(s, seed + round, 9000, 4000), "9000 bytes right");
                    if !a.is_client() {
                        assert_eq!(send_all(s, seed + round, 9000, 2000), "9000 bytes sent");
                    }
                }
                a.note("rounds", 20);
            });
        }
    });
    a.meet();
}

fn threads_that_write_to_one_stream_keep_their_messages_whole(a: &Actor) {
    let s = a.stream();
    const THREADS: usize = 4;
    const MESSAGES: usize = 300;
    const LENGTH: usize = 64;
    a.at_once(
        || {
            std::thread::scope(|scope| {
                for thread in 0..THREADS {
                    a.thread(scope, &format!("{thread}"), move || {
                        for message in 0..MESSAGES {
                            let mut bytes = vec![thread as u8; LENGTH];
                            bytes[1..5].copy_from_slice(&(message as u32).to_le_bytes());
                            assert_eq!(io::send(s, &bytes, 0), Got::Value(LENGTH as i64));
                        }
                    });
                }
            });
        },
        || {
            let mut next = [0u32; THREADS];
            let mut whole = 0;
            let mut room = [0; LENGTH];
            for _ in 0..THREADS * MESSAGES {
                io::recv(s, &mut room, libc::MSG_WAITALL).value("recv");
                let thread = room[0] as usize % THREADS;
                let number = u32::from_le_bytes([room[1], room[2], room[3], room[4]]);
                let uniform = room[5..].iter().all(|&byte| byte == room[0]);
                whole += u32::from(uniform && number == next[thread]);
                next[thread] += 1;
            }
            a.note("whole and in each thread's order", whole);
        },
    );
}

fn threads_that_read_from_one_stream_get_every_byte_once(a: &Actor) {
    let s = a.stream();
    const TOTAL: usize = 400_000;
    a.at_once(
        || {
            let mut seen = 0;
            for number in 0..TOTAL as u32 / 4 {
                seen += io::send(s, &number.to_le_bytes(), 0).value("send");
            }
            a.note("sent", seen);
            socket::shutdown(s, libc::SHUT_WR);
        },
        || {
            let (tell, told) = channel();
            std::thread::scope(|scope| {
                for thread in 0..3 {
                    let tell = tell.clone();
                    a.thread(scope, &format!("{thread}"), move || {
                        let (mut count, mut sum) = (0u64, 0u64);
                        let mut room = [0; 1000];
                        while let Some(n @ 1..) = io::recv(s, &mut room, 0).count() {
                            count += n as u64;
                            sum += room[..n].iter().map(|&byte| u64::from(byte)).sum::<u64>();
                        }
                        tell.send((count, sum)).expect("the main thread listens");
                    });
                }
            });
            drop(tell);
            let (count, sum) = told.iter().fold((0, 0), |all, one| (all.0 + one.0, all.1 + one.1));
            a.note("bytes and their sum", format!("{count} {sum}"));
        },
    );
}

fn every_thread_that_reads_or_polls_is_told_of_the_end(a: &Actor) {
    let place = a.listen();
    for round in 0..24 {
        let s = a.pair(&place);
        a.at_once(
            || {
                a.warm_as_client(s);
                assert_eq!(a.hear(), "waiting");
                // Whoever has taken some is about to sleep again when the end comes.
                for _ in 0..6 {
                    io::send(s, b"some", 0).value("send");
                }
                let last = Instant::now();
                while last.elapsed() < Duration::from_micros(round * 5) {}
                socket::shutdown(s, libc::SHUT_WR);
            },
            || {
                a.warm_as_server(s);
                let (tell, told) = channel();
                std::thread::scope(|scope| {
                    for thread in 0..6 {
                        let tell = tell.clone();
                        a.thread(scope, &format!("{thread}"), move || {
                            tell.send("waits").expect("the main thread listens");
                            while thread % 2 == 0
                                && wait::poll(&[(s, libc::POLLRDHUP)], -1).0.value("poll") == 0
                            {
                            }
                            while io::recv(s, &mut [0; 4], 0).value("recv") > 0 {}
                        });
                    }
                    told.iter().take(6).for_each(drop);
                    a.tell("waiting");
                });
            },
        );
        a.note("close", socket::close(s));
    }
}

fn threads_that_share_an_epoll_set_serve_every_stream(a: &Actor) {
    let place = a.listen();
    let streams: Vec<Fd> = (0..16).map(|_| a.pair(&place)).collect();
    a.meet();
    const ROUNDS: usize = 25;
    a.at_once(
        || {
            for round in 0..ROUNDS as u64 {
                for &s in &streams {
                    io::send(s, &round.to_le_bytes(), 0).value("send");
                }
                for &s in &streams {
                    let mut room = [0; 8];
                    io::recv(s, &mut room, libc::MSG_WAITALL).value("recv");
                    assert_eq!(u64::from_le_bytes(room), round);
                }
            }
            a.note("rounds", ROUNDS);
            for &s in &streams {
                socket::shutdown(s, libc::SHUT_WR);
            }
        },
        || {
            let set = wait::epoll_create();
            let done = wait::eventfd(0);
            wait::epoll_add(set, done, libc::EPOLLIN, u64::MAX).value("ADD");
            let shot = libc::EPOLLIN | libc::EPOLLONESHOT;
            for &s in &streams {
                wait::epoll_add(set, s, shot, s as u64).value("ADD");
            }
            let served = std::sync::atomic::AtomicUsize::new(0);
            let ended = std::sync::atomic::AtomicUsize::new(0);
            let relaxed = std::sync::atomic::Ordering::Relaxed;
            std::thread::scope(|scope| {
                for thread in 0..3 {
                    a.thread(scope, &format!("{thread}"), || loop {
                        let events = wait::epoll_wait(set, 1, 15_000).events;
                        let Some(&(_, data)) = events.first() else { return };
                        if data == u64::MAX {
                            return;
                        }
                        let mut room = [0; 8];
                        match io::recv(data as Fd, &mut room, libc::MSG_WAITALL) {
                            Got::Value(8) => {
                                io::send(data as Fd, &room, 0).value("send");
                                served.fetch_add(1, relaxed);
                                wait::epoll_mod(set, data as Fd, shot, data).value("MOD");
                            }
                            _ => {
                                if ended.fetch_add(1, relaxed) + 1 == streams.len() {
                                    io::write(done, &1u64.to_ne_bytes()).value("write");
                                }
                            }
                        }
                    });
                }
            });
            a.note("served", served.load(relaxed));
            a.note("ended", ended.load(relaxed));
        },
    );
}

/// Threads that wait in an empty set until they are told something, each once. `act` gets what each was
/// told, in the order in which they come out.
fn wait_once_each(a: &Actor, threads: usize, act: impl FnOnce(Fd, &dyn Fn(), &Receiver<String>)) {
    let set = wait::epoll_create();
    let (start, started) = channel();
    let (tell, told) = channel();
    std::thread::scope(|scope| {
        for thread in 0..threads {
            let (start, tell) = (start.clone(), tell.clone());
            a.thread(scope, &format!("{thread}"), move || {
                start.send(process::thread_id()).expect("the main thread listens");
                let said = wait::epoll_wait(set, 4, 5000).said();
                tell.send(said).expect("the main thread listens");
            });
        }
        let all: Vec<_> = started.iter().take(threads).collect();
        let until_asleep = || all.iter().for_each(|id| a.until_asleep(process::pid(), *id));
        until_asleep();
        act(set, &until_asleep, &told);
    });
    socket::close(set);
}

fn who_waited_before_a_stream_came_is_woken_by_it(a: &Actor) {
    let s = a.stream();
    a.warm(s);
    const THREADS: usize = 4;
    a.at_once(
        || {
            assert_eq!(a.hear(), "go on");
            io::send(s, b"x", 0).value("send");
        },
        || {
            let other = wait::eventfd(0);
            wait_once_each(a, THREADS, |set, until_asleep, told| {
                let edges = libc::EPOLLIN | libc::EPOLLET;
                a.note("ADD", wait::epoll_add(set, s, edges, 1));
                wait::epoll_add(set, other, edges, 2).value("ADD");
                until_asleep();
                for thread in 1..THREADS {
                    io::write(other, &1u64.to_ne_bytes()).value("write");
                    a.note(format!("thread {thread}"), told.recv().expect("a thread comes out"));
                }
                a.tell("go on");
                a.note("the last", told.recv().expect("a thread comes out"));
            });
        },
    );
}

fn a_level_wakes_every_thread_of_an_epoll_set(a: &Actor) {
    let s = a.stream();
    a.warm(s);
    const THREADS: usize = 3;
    a.at_once(
        || {
            assert_eq!(a.hear(), "go on");
            io::send(s, b"x", 0).value("send");
        },
        || {
            wait_once_each(a, THREADS, |set, until_asleep, told| {
                a.note("ADD", wait::epoll_add(set, s, libc::EPOLLIN, 1));
                until_asleep();
                a.tell("go on");
                for thread in 0..THREADS {
                    a.note(format!("thread {thread}"), told.recv().expect("a thread comes out"));
                }
            });
        },
    );
}

fn shutdown_by_another_thread_ends_a_blocked_read(a: &Actor) {
    let s = a.stream();
    a.server(|| {
        a.beside_a_sleeper(
            || a.note("recv", receive_text(s, 8)),
            || a.note("shutdown", socket::shutdown(s, libc::SHUT_RD)),
        );
    });
    a.client(|| a.note("send still works", io::send(s, b"x", libc::MSG_NOSIGNAL)));
}

fn shutdown_by_another_thread_ends_a_read_that_is_about_to_sleep(a: &Actor) {
    let place = a.listen();
    for round in 0..24 {
        let s = a.pair(&place);
        a.warm(s);
        a.server(|| {
            let (tell, told) = channel();
            std::thread::scope(|scope| {
                a.thread(scope, "reader", || {
                    tell.send("reads").expect("the main thread listens");
                    a.note("recv", io::recv(s, &mut [0; 8], 0));
                });
                told.recv().expect("a thread that reads");
                let last = Instant::now();
                while last.elapsed() < Duration::from_micros(round * 5) {}
                socket::shutdown(s, libc::SHUT_RD);
            });
        });
        socket::close(s);
    }
}

fn shutdown_by_another_thread_ends_a_blocked_write(a: &Actor) {
    let s = a.stream();
    a.server(|| {
        a.beside_a_sleeper(
            || {
                let block = vec![0; 64 << 20];
                let first = io::send(s, &block, libc::MSG_NOSIGNAL);
                let short = first.count().is_some_and(|n| n < block.len());
                a.note("cut short", short || first.is(libc::EPIPE));
                a.note("then", io::send(s, b"x", libc::MSG_NOSIGNAL));
            },
            || a.note("shutdown", socket::shutdown(s, libc::SHUT_WR)),
        );
    });
}

fn shutdown_by_another_thread_ends_a_blocked_accept(a: &Actor) {
    let place = a.listen();
    a.server(|| {
        a.beside_a_sleeper(
            || a.note("accept", socket::accept(place.fd)),
            || a.note("shutdown", socket::shutdown(place.fd, libc::SHUT_RDWR)),
        );
    });
}

/// Waits until the thread sleeps, cancels it, and says how it ended.
fn cancel(a: &Actor, thread: Cancellable) -> &'static str {
    a.until_asleep(process::pid(), thread.id());
    thread.cancel()
}

fn a_thread_that_waits_in_a_read_can_be_cancelled(a: &Actor) {
    let s = a.stream();
    a.server(|| a.note("the reader", cancel(a, Cancellable::start(s, process::reader))));
    a.client(|| a.note("send", io::send(s, b"for another", 0)));
    a.server(|| {
        a.note("received", receive_text(s, 11));
        let reader = Cancellable::start(s, process::reader);
        a.note("the next reader", cancel(a, reader));
        a.note("close", socket::close(s));
    });
    a.client(|| a.note("the end", receive_text(s, 1)));
}

fn a_thread_that_waits_in_a_write_can_be_cancelled(a: &Actor) {
    let s = a.stream();
    a.server(|| a.note("the writer", cancel(a, Cancellable::start(s, process::writer))));
    a.server(|| a.note("close", socket::close(s)));
    a.client(|| {
        let mut room = vec![0; 1 << 20];
        while io::recv(s, &mut room, 0).count().is_some_and(|count| count > 0) {}
        a.note("the end", receive_text(s, 1));
    });
}

/// In one call, and for so long that every buffer is full.
fn a_thread_that_waits_long_in_a_write_can_be_cancelled(a: &Actor) {
    let s = a.stream();
    a.server(|| {
        let writer = Cancellable::start(s, process::long_writer);
        wait::poll(&[], 300);
        a.note("the writer", cancel(a, writer));
        a.note("close", socket::close(s));
    });
    a.client(|| {
        let mut room = vec![0; 1 << 20];
        while io::recv(s, &mut room, 0).count().is_some_and(|count| count > 0) {}
        a.note("the end", receive_text(s, 1));
    });
}

/// With PTHREAD_CANCEL_ASYNCHRONOUS, in each call that waits.
fn a_thread_that_may_be_cancelled_anywhere_is_cancelled_asleep(a: &Actor) {
    let place = a.listen();
    let s = a.pair(&place);
    a.meet();
    a.server(|| {
        let set = wait::epoll_create();
        wait::epoll_add(set, s, libc::EPOLLIN, 1).value("ADD");
        for (what, fd, body) in [
            ("recv", s, process::reader as process::Body),
            ("poll", s, process::poller),
            ("epoll", set, process::watcher),
            ("accept", place.fd, process::accepter),
        ] {
            let thread = Cancellable::start_anywhere(fd, body);
            a.note(what, cancel(a, thread));
        }
    });
    a.client(|| a.note("send", io::send(s, b"for another", 0)));
    a.server(|| {
        a.note("received", receive_text(s, 11));
        a.note("close", socket::close(s));
    });
    a.client(|| a.note("the end", receive_text(s, 1)));
    let s = a.pair(&place);
    a.at_once(
        || a.note("sent", send_all(s, 1, 100_000, 10_000)),
        || a.note("received", receive(s, 1, 100_000, 10_000)),
    );
}

fn a_thread_that_waits_in_a_poll_can_be_cancelled(a: &Actor) {
    let s = a.stream();
    a.server(|| {
        a.note("the thread", cancel(a, Cancellable::start(s, process::poller)));
        a.note("close", socket::close(s));
    });
    a.client(|| a.note("the end", receive_text(s, 1)));
}

fn poll_text(set: &[(Fd, i16)], timeout_ms: i32) -> String {
    let (got, masks) = wait::poll(set, timeout_ms);
    format!("{got} {masks:?}")
}

fn a_close_waits_for_a_thread_that_polls(a: &Actor) {
    let s = a.stream();
    let ends = libc::POLLIN | libc::POLLRDHUP;
    a.at_once(
        || {
            a.meet();
            a.note("no end yet", poll_text(&[(s, ends)], 50));
            a.note("send", io::send(s, b"x", 0));
            a.note("then", receive_text(s, 1));
        },
        || {
            a.beside_a_sleeper(
                || a.note("poll", poll_text(&[(s, libc::POLLIN), (s, libc::POLLPRI)], -1)),
                || {
                    a.note("close", socket::close(s));
                    a.meet();
                },
            );
        },
    );
}

/// It is EBADF to who begins with it (select(2)), and ready to who is woken behind the close (Linux, do_select).
fn a_number_that_is_closed_while_select_sleeps_is_told_as_ready(a: &Actor) {
    let s = a.stream();
    a.at_once(
        || {
            a.meet();
            a.note("send", io::send(s, b"x", 0));
            a.note("then", receive_text(s, 1));
        },
        || {
            let asked = Selection { read: vec![s], except: vec![s], ..Selection::default() };
            a.beside_a_sleeper(
                || a.note("select", select(&asked, 10_000)),
                || {
                    a.note("close", socket::close(s));
                    a.meet();
                },
            );
            a.note("once more", select(&asked, 10_000));
        },
    );
}

fn a_thread_that_never_waits_for_long_can_be_cancelled(a: &Actor) {
    let s = a.stream();
    a.at_once(
        || {
            while io::send(s, b"12345678", libc::MSG_NOSIGNAL).count() == Some(8)
                && receive_text(s, 8) == "12345678"
            {}
        },
        || {
            let echo = Cancellable::start(s, process::echo);
            wait::poll(&[], 50);
            a.note("the echo", echo.cancel());
            socket::shutdown(s, libc::SHUT_RDWR);
        },
    );
}

fn a_thread_that_ends_leaves_the_streams(a: &Actor) {
    let place = a.listen();
    let mut s = -1;
    std::thread::scope(|scope| {
        s = a.thread(scope, "opener", || a.pair(&place)).join().expect("the thread ended well");
    });
    a.meet();
    for round in 0..5u64 {
        a.at_once(
            || {
                std::thread::scope(|scope| {
                    a.thread(scope, "writer", || {
                        assert_eq!(send_all(s, round, 7000, 700), "7000 bytes sent");
                    });
                });
            },
            || a.note("received", receive(s, round, 7000, 900)),
        );
    }
}

fn streams_handed_from_thread_to_thread_stay_in_order(a: &Actor) {
    let s = a.stream();
    const PIECES: u64 = 40;
    a.at_once(
        || {
            for piece in 0..PIECES {
                let bytes = pattern::bytes(3, piece * 2500, 2500);
                std::thread::scope(|scope| {
                    scope.spawn(|| pattern::write_all(s, &bytes).expect("written"));
                });
            }
        },
        || {
            let mut checker = Checker::new(3);
            for _ in 0..PIECES {
                let mut room = vec![0; 2500];
                std::thread::scope(|scope| {
                    scope.spawn(|| io::recv(s, &mut room, libc::MSG_WAITALL).value("recv"));
                });
                checker.take(&room);
            }
            a.note("received", checker.verdict());
        },
    );
}

/// A child that looks at a set makes it the kernel's, while threads of its parent arm its streams anew.
fn one_shots_that_threads_serve_are_told_of_when_a_child_looks(a: &Actor) {
    const ROUNDS: usize = 12;
    const STREAMS: usize = 4;
    const QUESTIONS: usize = 800;
    let place = a.listen();
    for _ in 0..ROUNDS {
        let streams: Vec<Fd> = (0..STREAMS).map(|_| a.new_stream(&place)).collect();
        a.meet();
        let ask = || {
            std::thread::scope(|scope| {
                for &s in &streams {
                    a.thread(scope, "asker", move || {
                        for _ in 0..QUESTIONS {
                            io::send(s, b"question", 0).value("send");
                            assert_eq!(receive_text(s, 6), "answer");
                        }
                    });
                }
            });
        };
        let serve = || {
            let set = epoll_create();
            let asked = libc::EPOLLIN | libc::EPOLLONESHOT;
            for (at, &s) in streams.iter().enumerate() {
                epoll_add(set, s, asked, at as u64).value("ADD");
            }
            let answered = AtomicUsize::new(0);
            let serves = || {
                while answered.load(Relaxed) < STREAMS * QUESTIONS {
                    for (_, at) in epoll_wait(set, 1, 100).events {
                        let s = streams[at as usize];
                        if io::recv(s, &mut [0; 8], libc::MSG_DONTWAIT).count() == Some(8) {
                            answered.fetch_add(1, Relaxed);
                            io::send(s, b"answer", 0).value("send");
                        }
                        epoll_mod(set, s, asked, at).value("MOD");
                    }
                }
            };
            std::thread::scope(|scope| {
                for _ in 0..4 {
                    a.thread(scope, "server", serves);
                }
                while answered.load(Relaxed) < QUESTIONS {
                    std::thread::yield_now();
                }
                let child = a.child("child", || {
                    for (_, at) in epoll_wait(set, 1, 0).events {
                        epoll_mod(set, streams[at as usize], asked, at).value("MOD");
                    }
                });
                a.note("child", process::wait_for(child));
            });
            socket::close(set);
        };
        a.at_once(ask, serve);
        streams.into_iter().for_each(|s| _ = socket::close(s));
    }
}

fn many_short_connections_are_all_served(a: &Actor) {
    let place = a.listen();
    const CLIENTS: usize = 300;
    a.at_once(
        || {
            let mut good = 0;
            for _ in 0..CLIENTS {
                let s = a.connect(&place);
                io::send(s, b"question", 0).value("send");
                good += usize::from(receive_text(s, 10) == "answer, then 0");
                socket::close(s);
            }
            a.note("answers", good);
        },
        || {
            let mut good = 0;
            for _ in 0..CLIENTS {
                let s = socket::accept(place.fd).fd("accept");
                good += usize::from(receive_text(s, 8) == "question");
                io::send(s, b"answer", 0).value("send");
                socket::close(s);
            }
            a.note("questions", good);
        },
    );
}

/// Each end sends some messages and shuts its direction down, whatever the stream is on by then: the end comes behind
/// all of them.
fn what_is_shut_while_it_comes_to_a_ring_arrives_whole(a: &Actor) {
    const CLIENTS: usize = 500;
    const MESSAGES: usize = 8;
    const MESSAGE: [u8; 50] = [7; 50];
    let place = a.listen();
    // So many bytes, each answered or not, until a receive says that there are no more.
    let read_to_end = |s: Fd, answers: bool| {
        let (mut room, mut bytes) = ([0; 300], 0);
        while wait::poll(&[(s, libc::POLLIN)], 5000).0 == Got::Value(1) {
            match io::recv(s, &mut room, 0).count() {
                Some(count @ 1..) => {
                    bytes += count;
                    if answers {
                        io::send(s, &room[..count], libc::MSG_NOSIGNAL);
                    }
                }
                _ => break,
            }
        }
        bytes
    };
    let all = |bytes: &usize| *bytes == MESSAGES * MESSAGE.len();
    a.at_once(
        || {
            let clients = (0..CLIENTS).map(|_| {
                let s = a.connect(&place);
                (0..MESSAGES).for_each(|_| _ = io::send(s, &MESSAGE, libc::MSG_NOSIGNAL));
                socket::shutdown(s, libc::SHUT_WR);
                let bytes = read_to_end(s, false);
                socket::close(s);
                bytes
            });
            a.note("answered whole", clients.filter(all).count());
        },
        || {
            let served = (0..CLIENTS).map(|_| {
                let s = socket::accept(place.fd).fd("accept");
                let bytes = read_to_end(s, true);
                socket::shutdown(s, libc::SHUT_WR);
                socket::close(s);
                bytes
            });
            a.note("received whole", served.filter(all).count());
        },
    );
}

fn connections_opened_at_once_are_all_served(a: &Actor) {
    let place = a.listen();
    const CLIENTS: usize = 24;
    a.at_once(
        || {
            std::thread::scope(|scope| {
                for client in 0..CLIENTS {
                    a.thread(scope, &format!("{client}"), || {
                        let s = a.connect(&place);
                        a.warm_as_client(s);
                        io::send(s, b"question", 0).value("send");
                        a.note("answer", receive_text(s, 6));
                        socket::close(s);
                    });
                }
            });
        },
        || {
            std::thread::scope(|scope| {
                for _ in 0..CLIENTS {
                    let s = socket::accept(place.fd).fd("accept");
                    a.thread(scope, "server", move || {
                        a.warm_as_server(s);
                        assert_eq!(receive_text(s, 8), "question");
                        io::send(s, b"answer", 0).value("send");
                        assert_eq!(receive_text(s, 1), ", then 0");
                        socket::close(s);
                    });
                }
            });
        },
    );
}

fn a_peer_that_answers_late_wakes_the_right_thread(a: &Actor) {
    let place = a.listen();
    let streams: Vec<Fd> = (0..6).map(|_| a.pair(&place)).collect();
    a.meet();
    a.at_once(
        || {
            // Answers come in the opposite order of the questions.
            for (index, &s) in streams.iter().enumerate().rev() {
                wait::poll(&[], 5);
                io::send(s, &[index as u8], 0).value("send");
            }
        },
        || {
            std::thread::scope(|scope| {
                for (index, &s) in streams.iter().enumerate() {
                    a.thread(scope, &format!("{index}"), move || {
                        let mut room = [0; 1];
                        let got = io::recv(s, &mut room, 0);
                        a.note("woken", format!("{got} {}", room[0]));
                    });
                }
            });
        },
    );
}

fn writers_blocked_on_several_streams_all_go_on(a: &Actor) {
    let place = a.listen();
    let streams: Vec<Fd> = (0..4).map(|_| a.pair(&place)).collect();
    const TOTAL: usize = 12 << 20;
    a.at_once(
        || {
            std::thread::scope(|scope| {
                for (index, &s) in streams.iter().enumerate() {
                    a.thread(scope, &format!("{index}"), move || {
                        a.note("sent", send_all(s, index as u64, TOTAL, 1 << 20));
                    });
                }
            });
        },
        || {
            for (index, &s) in streams.iter().enumerate() {
                a.note("received", receive(s, index as u64, TOTAL, 200_000));
            }
        },
    );
}

static HANDLERS_STREAM: AtomicI32 = AtomicI32::new(-1);
static SENT_BY_HANDLER: AtomicUsize = AtomicUsize::new(0);

extern "C" fn send_one(_signal: i32) {
    let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
    if io::send(HANDLERS_STREAM.load(Relaxed), b"h", flags).count() == Some(1) {
        SENT_BY_HANDLER.fetch_add(1, Relaxed);
    }
    process::timer_again(100);
}

/// A timer's handler sends a byte now and then, in the middle of whatever the thread does.
fn a_handler_may_send_on_the_stream_that_it_interrupts(a: &Actor) {
    let s = a.stream();
    a.at_once(
        || {
            let block = [b'm'; 20_000];
            let mut sent = 0;
            HANDLERS_STREAM.store(s, Relaxed);
            process::on_timer(send_one, 100);
            while sent < 60_000_000 {
                sent += io::send(s, &block, 0).count().unwrap_or(0);
            }
            process::no_timer();
            socket::shutdown(s, libc::SHUT_WR);
            a.tell(&format!("{sent} {}", SENT_BY_HANDLER.load(Relaxed)));
        },
        || {
            let mut room = vec![0; 1 << 20];
            let (mut by_main, mut by_handler) = (0, 0);
            while let Some(count @ 1..) = io::recv(s, &mut room, 0).count() {
                let handlers = room[..count].iter().filter(|byte| **byte == b'h').count();
                by_handler += handlers;
                by_main += count - handlers;
            }
            a.note("as many as were sent", a.hear() == format!("{by_main} {by_handler}"));
        },
    );
}

static HANDLED: AtomicUsize = AtomicUsize::new(0);

extern "C" fn copy_close_and_poll(_signal: i32) {
    let s = HANDLERS_STREAM.load(Relaxed);
    let copies = [(); 3].map(|()| socket::dup(s));
    let others = [(); 3].map(|()| socket::socket(libc::AF_INET, libc::SOCK_STREAM));
    let polled = wait::poll_a_hundred_times_in_one(s, libc::POLLOUT);
    let closed = copies.into_iter().chain(others).filter_map(Got::count);
    if closed.filter(|fd| socket::close(*fd as Fd) == Got::Value(0)).count() == 6
        && polled == Got::Value(100)
    {
        HANDLED.fetch_add(1, Relaxed);
    }
    process::timer_again(300);
}

/// A timer's handler calls what handlers may, wherever malloc(3) happens to be.
fn a_handler_may_copy_close_and_poll_in_the_middle_of_malloc(a: &Actor) {
    let s = a.stream();
    HANDLERS_STREAM.store(s, Relaxed);
    process::on_timer(copy_close_and_poll, 300);
    let mut blocks = vec![Vec::new(); 32];
    for turn in 0.. {
        blocks[turn * 7 % 32] = vec![0u8; 2000 + turn * 37 % 60_000];
        if HANDLED.load(Relaxed) >= 200 {
            break;
        }
    }
    process::no_timer();
    a.meet();
    a.at_once(
        || a.note("sent", send_all(s, 1, 10_000, 1000)),
        || a.note("received", receive(s, 1, 10_000, 1000)),
    );
}

fn every_call_has_room_on_the_smallest_stack(a: &Actor) {
    let place = a.listen();
    let [s, spliced, sent, passed, file, reset] = [(); 6].map(|()| a.pair(&place));
    a.server(|| {
        io::send(s, b"question", 0).value("send");
        io::send(spliced, b"spliced", 0).value("send");
        io::send(reset, b"unread", 0).value("send");
    });
    for (fd, count) in [(s, 8), (spliced, 7), (reset, 6)] {
        if a.is_client() {
            a.until_readable(fd, count);
        }
    }
    a.client(|| {
        let of_set = process::on_smallest_stack(|| {
            let set = wait::epoll_create();
            wait::epoll_add(set, s, libc::EPOLLIN, 1).value("ADD");
            let events = wait::epoll_wait(set, 4, 1000);
            wait::epoll_del(set, s).value("DEL");
            socket::close(set);
            events
        });
        a.note("epoll", of_set.said());
        let (pipe, memory) = (socket::pipe(), socket::memfd());
        let (unix, _other) = socket::socketpair(libc::SOCK_STREAM);
        io::write(memory, b"from memory").value("write");
        let got = process::on_smallest_stack(|| {
            let mut room = [0; 8];
            let copy = socket::dup(s);
            let stdio = File::on(file, "w");
            [
                wait::poll_a_hundred_times_in_one(s, libc::POLLIN),
                io::recv(s, &mut room, libc::MSG_WAITALL),
                io::send(s, b"answer", 0),
                io::writev(s, &[b", in", b" parts"]),
                socket::close(copy.count().map_or(-1, |copy| copy as Fd)),
                io::splice(spliced, pipe.1, 7, 0),
                io::splice(pipe.0, spliced, 7, 0),
                io::sendfile(sent, memory, 0, 11).0,
                socket::shutdown(sent, libc::SHUT_WR),
                io::pass_descriptor(unix, passed),
                io::send(passed, b"passed", 0),
                stdio.put("a file"),
                stdio.flush(),
                Got::Value(i64::from(stdio.close())),
                socket::close(reset),
            ]
        });
        got.into_iter().enumerate().for_each(|(number, got)| a.note(number, got));
    });
    a.server(|| {
        a.until(reset, libc::POLLHUP);
        let (out, into) = socket::pipe();
        let mut room = [0; 32];
        let got = process::on_smallest_stack(|| {
            [
                io::recv(s, &mut room[..16], libc::MSG_WAITALL),
                io::recv(spliced, &mut room[..7], libc::MSG_WAITALL | libc::MSG_PEEK),
                io::splice(spliced, into, 7, 0),
                io::read(sent, &mut room[..11]),
                io::read(sent, &mut room),
                io::recv(passed, &mut room[..6], libc::MSG_WAITALL),
                io::recv(file, &mut room[..6], libc::MSG_WAITALL),
                io::recv(file, &mut room, 0),
                io::recv(reset, &mut room, 0),
                socket::close(sent),
                socket::close(out),
            ]
        });
        got.into_iter().enumerate().for_each(|(number, got)| a.note(number, got));
    });
    a.client(|| {
        let ends = process::on_smallest_stack(|| {
            [
                process::fork(|| io::send(s, b"child", 0).count().map_or(1, |_| 0)),
                process::vfork_exec("/bin/true", &["true"]),
                process::spawn(&["true"], &[]),
            ]
        });
        ends.into_iter().for_each(|child| a.note("child", process::wait_for(child)));
    });
    a.server(|| a.note("received", receive_text(s, 5)));
}

/// Of clients in threads, each with so many streams, one after the other: how many of their messages were answered.
fn ask_in_threads(a: &Actor, place: &Place, clients: usize, streams: usize) -> usize {
    const MESSAGES: usize = 6;
    let answered = AtomicUsize::new(0);
    thread::scope(|scope| {
        for number in 0..clients {
            let answered = &answered;
            a.thread(scope, &format!("client {number}"), move || {
                for stream in 0..streams {
                    let s = a.connect(place);
                    for _ in 0..(number + stream) % MESSAGES + 1 {
                        io::send(s, &[7; 50], 0);
                        // A stream of which nobody is told would be waited for for ever.
                        if wait::poll(&[(s, libc::POLLIN)], 5000).0 != Got::Value(1) {
                            return;
                        }
                        let got = receive_text(s, 50).len();
                        answered.fetch_add(usize::from(got == 50), Relaxed);
                    }
                    socket::close(s);
                }
            });
        }
    });
    answered.into_inner()
}

fn what_one_thread_adds_to_a_set_another_serves_and_closes(a: &Actor) {
    serve_what_another_adds(a, libc::EPOLLIN);
}

/// Each edge has one receive, and what is told of room alone none.
fn what_one_thread_adds_for_edges_another_serves_and_closes(a: &Actor) {
    serve_what_another_adds(a, libc::EPOLLIN | libc::EPOLLOUT | libc::EPOLLRDHUP | libc::EPOLLET);
}

/// The usual server of two threads: one accepts and adds, one is told, answers and closes.
fn serve_what_another_adds(a: &Actor, asked: i32) {
    const CLIENTS: usize = 6;
    const STREAMS: usize = 30;
    // What a level tells of is there: such a receive waits for ever otherwise.
    let by_edges = asked & libc::EPOLLET != 0;
    let flags = if by_edges { libc::MSG_DONTWAIT } else { 0 };
    let place = a.listen();
    a.at_once(
        || a.note("answered", ask_in_threads(a, &place, CLIENTS, STREAMS)),
        || {
            let set = epoll_create();
            thread::scope(|scope| {
                a.thread(scope, "worker", || {
                    let mut closed = 0;
                    while closed < CLIENTS * STREAMS {
                        let told = epoll_wait(set, 1, 8000);
                        let Some(&(events, fd)) = told.events.first() else { break };
                        if by_edges && events & libc::EPOLLIN as u32 == 0 {
                            continue;
                        }
                        let (fd, mut room) = (fd as Fd, [0; 300]);
                        match io::recv(fd, &mut room, flags) {
                            Got::Value(count @ 1..) => {
                                io::send(fd, &room[..count as usize], 0);
                            }
                            Got::Errno(libc::EAGAIN) if by_edges => {}
                            _ => {
                                socket::close(fd);
                                closed += 1;
                            }
                        }
                    }
                    a.note("closed", closed);
                });
                for _ in 0..CLIENTS * STREAMS {
                    let s = socket::accept(place.fd).fd("accept");
                    epoll_add(set, s, asked, s as u64).value("ADD");
                }
            });
            socket::close(set);
        },
    );
}

/// A server of one thread, which closes without a DEL. Each stream has a name of its own, whatever number it has.
fn a_stream_that_its_server_has_closed_is_told_no_more(a: &Actor) {
    const CLIENTS: usize = 8;
    const STREAMS: usize = 60;
    let place = a.listen();
    a.at_once(
        || a.note("answered", ask_in_threads(a, &place, CLIENTS, STREAMS)),
        || {
            let set = epoll_create();
            epoll_add(set, place.fd, libc::EPOLLIN, 0).value("ADD");
            let (mut streams, mut closed, mut gone) = (vec![place.fd], 0, 0);
            while closed < CLIENTS * STREAMS {
                let told = epoll_wait(set, 8, 8000).events;
                if told.is_empty() {
                    break;
                }
                for (_, name) in told {
                    let (fd, mut room) = (streams[name as usize], [0; 300]);
                    if name == 0 {
                        let s = socket::accept(place.fd).fd("accept");
                        epoll_add(set, s, libc::EPOLLIN, streams.len() as u64).value("ADD");
                        streams.push(s);
                    } else if fd < 0 {
                        gone += 1;
                    } else if let Some(count @ 1..) = io::recv(fd, &mut room, 0).count() {
                        io::send(fd, &room[..count], 0);
                    } else {
                        socket::close(fd);
                        streams[name as usize] = -1;
                        closed += 1;
                    }
                }
            }
            a.note("closed", closed);
            a.note("told of one that is closed", gone);
            socket::close(set);
        },
    );
}

/// Two threads wait on a set, and who has served a stream arms it anew.
fn a_one_shot_is_told_to_one_thread_at_a_time(a: &Actor) {
    const STREAMS: usize = 240;
    const ONE_SHOT: i32 = libc::EPOLLIN | libc::EPOLLONESHOT;
    let place = a.listen();
    let served: Vec<AtomicUsize> = (0..1024).map(|_| AtomicUsize::new(0)).collect();
    let (twice, ended) = (AtomicUsize::new(0), AtomicUsize::new(0));
    a.at_once(
        || a.note("answered", ask_in_threads(a, &place, 2, STREAMS / 2)),
        || {
            let set = epoll_create();
            thread::scope(|scope| {
                for number in 0..2 {
                    let (served, twice, ended) = (&served, &twice, &ended);
                    a.thread(scope, &format!("worker {number}"), move || {
                        while ended.load(Relaxed) < STREAMS {
                            let told = epoll_wait(set, 1, 100);
                            let Some((_, fd)) = told.events.first() else { continue };
                            let (fd, mut room) = (*fd as Fd, [0; 300]);
                            let busy = &served[fd as usize];
                            twice.fetch_add(busy.fetch_add(1, Relaxed), Relaxed);
                            match io::recv(fd, &mut room, libc::MSG_DONTWAIT).count() {
                                Some(count @ 1..) => _ = io::send(fd, &room[..count], 0),
                                _ => {
                                    ended.fetch_add(1, Relaxed);
                                    continue;
                                }
                            }
                            busy.fetch_sub(1, Relaxed);
                            epoll_mod(set, fd, ONE_SHOT, fd as u64).value("MOD");
                        }
                    });
                }
                // Their numbers are kept until all have ended.
                for _ in 0..STREAMS {
                    let s = socket::accept(place.fd).fd("accept");
                    epoll_add(set, s, ONE_SHOT, s as u64).value("ADD");
                }
            });
            a.note("told twice", twice.into_inner());
        },
    );
}
