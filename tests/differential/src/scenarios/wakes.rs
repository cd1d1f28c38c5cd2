//! How many of several waiters one arrival brings back, by the kind of their registrations: threads in one
//! set, threads in a set each, processes in a set each.

use super::{scenarios, Scenario, Settings};
use crate::actor::Actor;
use crate::calls::process::{self, Pid};
use crate::calls::wait::{epoll_add, epoll_create, epoll_wait, eventfd};
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
