//! How many of several waiters one arrival brings back, by the kind of their registrations: threads in one
//! set, threads in a set each, processes in a set each.

use super::{scenarios, Scenario, Settings};
use crate::actor::Actor;
use crate::calls::process::{self, Pid};
use crate::calls::wait::{epoll_add, epoll_create, epoll_del, epoll_wait, eventfd, poll};
use crate::calls::{io, socket, Fd};
use libc::{EPOLLET, EPOLLEXCLUSIVE, EPOLLIN, EPOLLONESHOT, POLLIN};
use std::sync::mpsc::channel;

pub const ALL: &[Scenario] = scenarios![Settings::All;
    an_arrival_at_a_level_in_one_set_wakes_every_thread,
    an_arrival_at_an_edge_in_one_set_wakes_one_thread,
    an_arrival_at_a_one_shot_in_one_set_wakes_one_thread,
    an_arrival_at_levels_wakes_a_thread_of_each_set,
    an_arrival_at_edges_wakes_a_thread_of_each_set,
    an_arrival_at_one_shots_wakes_a_thread_of_each_set,
    an_arrival_at_exclusive_levels_wakes_a_thread_of_one_set,
    an_arrival_at_exclusive_edges_wakes_a_thread_of_one_set,
    an_arrival_at_levels_wakes_every_process,
    an_arrival_at_edges_wakes_every_process,
    an_arrival_at_one_shots_wakes_every_process,
    an_arrival_at_exclusive_levels_wakes_one_process,
    an_arrival_at_exclusive_edges_wakes_one_process,
    a_stream_is_told_of_in_whatever_set_it_has_come_to,
    threads_that_pass_streams_on_from_set_to_set_are_told_of_each,
];

const WAITERS: usize = 4;
/// Told of the stream, and of what releases who is not told of that.
const STREAM: u64 = 1;
const RELEASE: u64 = 2;

fn an_arrival_at_a_level_in_one_set_wakes_every_thread(a: &Actor) {
    threads_in_one_set(a, EPOLLIN);
}

fn an_arrival_at_an_edge_in_one_set_wakes_one_thread(a: &Actor) {
    threads_in_one_set(a, EPOLLIN | EPOLLET);
}

fn an_arrival_at_a_one_shot_in_one_set_wakes_one_thread(a: &Actor) {
    threads_in_one_set(a, EPOLLIN | EPOLLONESHOT);
}

fn an_arrival_at_levels_wakes_a_thread_of_each_set(a: &Actor) {
    threads_in_their_sets(a, EPOLLIN);
}

fn an_arrival_at_edges_wakes_a_thread_of_each_set(a: &Actor) {
    threads_in_their_sets(a, EPOLLIN | EPOLLET);
}

fn an_arrival_at_one_shots_wakes_a_thread_of_each_set(a: &Actor) {
    threads_in_their_sets(a, EPOLLIN | EPOLLONESHOT);
}

fn an_arrival_at_exclusive_levels_wakes_a_thread_of_one_set(a: &Actor) {
    threads_in_their_sets(a, EPOLLIN | EPOLLEXCLUSIVE);
}

fn an_arrival_at_exclusive_edges_wakes_a_thread_of_one_set(a: &Actor) {
    threads_in_their_sets(a, EPOLLIN | EPOLLET | EPOLLEXCLUSIVE);
}

fn an_arrival_at_levels_wakes_every_process(a: &Actor) {
    processes(a, EPOLLIN);
}

fn an_arrival_at_edges_wakes_every_process(a: &Actor) {
    processes(a, EPOLLIN | EPOLLET);
}

fn an_arrival_at_one_shots_wakes_every_process(a: &Actor) {
    processes(a, EPOLLIN | EPOLLONESHOT);
}

fn an_arrival_at_exclusive_levels_wakes_one_process(a: &Actor) {
    processes(a, EPOLLIN | EPOLLEXCLUSIVE);
}

fn an_arrival_at_exclusive_edges_wakes_one_process(a: &Actor) {
    processes(a, EPOLLIN | EPOLLET | EPOLLEXCLUSIVE);
}

/// The client sends a byte when the server says so.
fn arrive(a: &Actor, s: Fd, server: impl FnOnce()) {
    a.at_once(
        || {
            assert_eq!(a.hear(), "go on");
            io::send(s, b"x", 0).value("send");
        },
        server,
    );
}

fn watch(s: Fd, events: i32, release: Fd) -> Fd {
    let set = epoll_create();
    epoll_add(set, s, events, STREAM).value("ADD");
    epoll_add(set, release, EPOLLIN, RELEASE).value("ADD");
    set
}

/// What a waiter was told, and nothing more when it is released.
fn waited(set: Fd) -> String {
    let mut data: Vec<u64> = epoll_wait(set, 4, 10_000).events.iter().map(|it| it.1).collect();
    data.sort_unstable();
    format!("{data:?}")
}

fn threads_in_one_set(a: &Actor, events: i32) {
    let s = a.stream();
    let release = eventfd(0);
    threads(a, s, release, |_, set| *set.get_or_insert_with(|| watch(s, events, release)));
}

fn threads_in_their_sets(a: &Actor, events: i32) {
    let s = a.stream();
    let release = eventfd(0);
    threads(a, s, release, |_, _| watch(s, events, release));
}

fn threads(a: &Actor, s: Fd, release: Fd, set: impl Fn(usize, &mut Option<Fd>) -> Fd) {
    arrive(a, s, || {
        let (start, started) = channel();
        let (tell, told) = channel();
        std::thread::scope(|scope| {
            let mut last = None;
            for thread in 0..WAITERS {
                let (start, tell) = (start.clone(), tell.clone());
                let set = set(thread, &mut last);
                a.thread(scope, &format!("{thread}"), move || {
                    start.send(process::thread_id()).expect("the main thread listens");
                    tell.send(waited(set)).expect("the main thread listens");
                });
            }
            let all: Vec<Pid> = started.iter().take(WAITERS).collect();
            all.iter().for_each(|thread| a.until_asleep(process::pid(), *thread));
            a.tell("go on");
            a.until(s, POLLIN);
            a.until_at_rest(&[process::pid()]);
            let woken: Vec<String> = told.try_iter().collect();
            a.note("woken", format!("{woken:?}"));
            io::write(release, &1u64.to_ne_bytes()).value("write");
            drop(tell);
            a.note("released", told.iter().count());
        });
    });
}

fn processes(a: &Actor, events: i32) {
    let s = a.stream();
    arrive(a, s, || {
        let (release, (out, into)) = (eventfd(0), socket::pipe());
        let children = [(); WAITERS].map(|()| {
            a.child("child", || {
                let set = watch(s, events, release);
                io::write(into, b"w");
                let told = waited(set);
                io::write(into, if told == "[1]" { b"s" } else { b"o" });
            })
        });
        let mut words = Vec::new();
        while words.len() < WAITERS {
            words.extend(read_words(out));
        }
        children.iter().for_each(|child| a.until_asleep(*child, *child));
        a.tell("go on");
        a.until(s, POLLIN);
        a.until_at_rest(&children);
        io::write(into, b".");
        a.note("woken", String::from_utf8_lossy(&read_words(out)));
        io::write(release, &1u64.to_ne_bytes()).value("write");
        a.note("the children", format!("{:?}", children.map(process::wait_for)));
    });
}

fn read_words(out: Fd) -> Vec<u8> {
    let mut room = [0; 16];
    let count = io::read(out, &mut room).value("read") as usize;
    room[..count].to_vec()
}

/// Of several sets with a stream each, and while others poll.
fn a_stream_is_told_of_in_whatever_set_it_has_come_to(a: &Actor) {
    const SETS: usize = 4;
    let place = a.listen();
    let others: Vec<Fd> = (0..SETS).map(|_| a.pair(&place)).collect();
    let (s, polled) = (a.pair(&place), a.pair(&place));
    a.meet();
    let (sets, pipe) = (others.iter().map(|_| epoll_create()).collect::<Vec<_>>(), socket::pipe());
    a.server(|| {
        for (set, other) in sets.iter().zip(&others) {
            epoll_add(*set, *other, EPOLLIN, RELEASE).value("ADD");
        }
        epoll_add(sets[1], polled, EPOLLIN, STREAM).value("ADD");
    });
    let add = |at: usize| epoll_add(sets[at], s, EPOLLIN, STREAM).value("ADD");
    let del = |at: usize| epoll_del(sets[at], s).value("DEL");
    let close = |at: usize| socket::close(sets[at]).value("close");
    let wait = |at: usize| format!("{:?}", epoll_wait(sets[at], 4, -1).events);
    let poll = |set: &[_]| format!("{:?}", poll(set, -1).1);
    let nothing = || 0;
    let told = |fd: Fd, what: &str, wait: &(dyn Fn() -> String + Sync), act: &dyn Fn() -> i64| {
        a.at_once(
            || {
                assert_eq!(a.hear(), "go on");
                io::send(fd, b"x", 0).value("send");
            },
            || {
                let sleep = || a.note(what, wait());
                a.beside_a_sleeper(sleep, || {
                    act();
                    a.tell("go on");
                });
                io::recv(fd, &mut [0], 0).value("recv");
            },
        );
    };
    told(s, "added while the set is waited for", &|| wait(1), &|| add(1));
    told(s, "alone", &|| wait(1), &nothing);
    told(s, "in another", &|| wait(2), &|| del(1) + add(2));
    told(s, "in that one", &|| wait(2), &nothing);
    told(s, "in two, the second", &|| wait(3), &|| add(3));
    told(s, "in two, the second again", &|| wait(3), &nothing);
    told(s, "in two, the first", &|| wait(2), &nothing);
    told(s, "in the first again", &|| wait(1), &|| del(2) + add(1));
    told(s, "behind a close", &|| wait(0), &|| close(3) + add(0));
    told(polled, "in a set", &|| wait(1), &nothing);
    told(polled, "polled by itself", &|| poll(&[(polled, POLLIN)]), &nothing);
    told(polled, "polled", &|| poll(&[(polled, POLLIN), (pipe.0, POLLIN)]), &nothing);
    told(polled, "in the set again", &|| wait(1), &nothing);
}

/// More sets than a link has bells.
fn threads_that_pass_streams_on_from_set_to_set_are_told_of_each(a: &Actor) {
    const THREADS: usize = 20;
    const ROUNDS: u64 = 12;
    let place = a.listen();
    let streams: Vec<Fd> = (0..THREADS).map(|_| a.pair(&place)).collect();
    a.meet();
    a.at_once(
        || {
            for round in 0..ROUNDS {
                for &s in &streams {
                    io::send(s, &round.to_le_bytes(), 0).value("send");
                }
                for &s in &streams {
                    let mut room = [0; 8];
                    poll(&[(s, POLLIN)], -1);
                    io::recv(s, &mut room, libc::MSG_WAITALL).value("recv");
                    assert_eq!(u64::from_le_bytes(room), round);
                }
            }
            a.tell("done");
        },
        || {
            let sets: Vec<Fd> = streams.iter().map(|_| epoll_create()).collect();
            let done = eventfd(0);
            for (&set, &s) in sets.iter().zip(&streams) {
                epoll_add(set, done, EPOLLIN, 0).value("ADD");
                epoll_add(set, s, EPOLLIN, s as u64).value("ADD");
            }
            std::thread::scope(|scope| {
                for at in 0..THREADS {
                    let (set, next) = (sets[at], sets[(at + 1) % THREADS]);
                    a.thread(scope, &format!("{at}"), move || loop {
                        let events = epoll_wait(set, 1, -1).events;
                        let Some(&(_, data)) = events.first().filter(|it| it.1 > 0) else {
                            return a.note("told at the end", events.len());
                        };
                        let (s, mut room) = (data as Fd, [0; 8]);
                        assert_eq!(io::recv(s, &mut room, libc::MSG_WAITALL).count(), Some(8));
                        epoll_del(set, s).value("DEL");
                        epoll_add(next, s, EPOLLIN, data).value("ADD");
                        io::send(s, &room, 0).value("send");
                    });
                }
                assert_eq!(a.hear(), "done");
                io::write(done, &1u64.to_ne_bytes()).value("write");
            });
        },
    );
}
