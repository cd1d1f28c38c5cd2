//! Processes that shut themselves in, or change what their descriptors mean, with streams open.

use super::{scenarios, Scenario, V4};
use crate::actor::Actor;
use crate::calls::process::{self, wait_for};
use crate::calls::{io, sandbox, socket, Fd};
use crate::pattern::{receive, receive_text, receive_to_end, send_all};

pub const ALL: &[Scenario] = scenarios![V4;
    a_stream_goes_on_under_a_seccomp_filter,
    a_child_under_a_seccomp_filter_serves_its_parents_stream,
    a_refused_seccomp_filter_changes_nothing,
    new_streams_under_a_seccomp_filter_work,
    unshare_with_a_live_stream_works_as_without,
    a_process_that_makes_an_io_uring_goes_on,
];

const TOTAL: usize = 600_000;

fn talk_as_client(a: &Actor, s: Fd) {
    a.note("sent", send_all(s, 1, TOTAL, 40_000));
    a.note("received", receive(s, 2, TOTAL, 40_000));
    a.note("shutdown", socket::shutdown(s, libc::SHUT_WR));
    a.note("the end", receive_to_end(s, 3));
}

fn talk_as_server(a: &Actor, s: Fd) {
    a.note("received", receive(s, 1, TOTAL, 40_000));
    a.note("sent", send_all(s, 2, TOTAL, 40_000));
    a.note("the end", receive_text(s, 1));
    a.note("close", socket::close(s));
}

/// Each step in a process of its own, since a filter stays.
fn one_process_each(a: &Actor, client: impl Fn(Fd), server: impl Fn(Fd)) {
    let place = a.listen();
    a.at_once(
        || {
            let child = a.child("process", || {
                let s = a.connect(&place);
                a.warm_as_client(s);
                // Not before both are as the carrier asks for.
                io::send(s, b"begin", 0).value("send");
                client(s);
            });
            a.note("process", wait_for(child));
        },
        || {
            let child = a.child("process", || {
                let s = socket::accept(place.fd).fd("accept");
                a.warm_as_server(s);
                a.note("word", receive_text(s, 5));
                server(s);
            });
            a.note("process", wait_for(child));
        },
    );
}

fn a_stream_goes_on_under_a_seccomp_filter(a: &Actor) {
    one_process_each(
        a,
        |s| {
            a.note("filter", sandbox::allow_only_the_least());
            talk_as_client(a, s);
        },
        |s| {
            a.note("filter", sandbox::allow_only_the_least());
            talk_as_server(a, s);
        },
    );
}

fn a_child_under_a_seccomp_filter_serves_its_parents_stream(a: &Actor) {
    let s = a.stream();
    a.at_once(
        || talk_as_client(a, s),
        || {
            let child = a.child("sandboxed", || {
                a.note("filter", sandbox::allow_only_the_least());
                talk_as_server(a, s);
                process::exit_now(0);
            });
            socket::close(s);
            a.note("sandboxed", wait_for(child));
        },
    );
}

fn a_refused_seccomp_filter_changes_nothing(a: &Actor) {
    let s = a.stream();
    a.note("filter", sandbox::refused_filter());
    a.at_once(|| talk_as_client(a, s), || talk_as_server(a, s));
}

fn new_streams_under_a_seccomp_filter_work(a: &Actor) {
    let place = a.listen();
    a.at_once(
        || {
            let s = a.connect(&place);
            for round in 0..20 {
                io::send(s, b"question", 0).value("send");
                a.note(format!("answer {round}"), receive_text(s, 6));
            }
        },
        || {
            let child = a.child("sandboxed", || {
                a.note("filter", sandbox::allow_only_the_least());
                let s = socket::accept(place.fd).fd("accept");
                for _ in 0..20 {
                    assert_eq!(receive_text(s, 8), "question");
                    io::send(s, b"answer", 0).value("send");
                }
                process::exit_now(0);
            });
            a.note("sandboxed", wait_for(child));
        },
    );
}

fn unshare_with_a_live_stream_works_as_without(a: &Actor) {
    one_process_each(
        a,
        |s| {
            a.note("user namespace", sandbox::unshare(libc::CLONE_NEWUSER));
            talk_as_client(a, s);
        },
        |s| {
            a.note("file system", sandbox::unshare(libc::CLONE_FS));
            a.note("network", sandbox::unshare(libc::CLONE_NEWUSER | libc::CLONE_NEWNET));
            talk_as_server(a, s);
        },
    );
}

fn a_process_that_makes_an_io_uring_goes_on(a: &Actor) {
    one_process_each(
        a,
        |s| talk_as_client(a, s),
        |s| {
            a.note("io_uring", sandbox::make_io_uring());
            talk_as_server(a, s);
        },
    );
}
