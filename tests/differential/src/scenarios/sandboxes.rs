//! Processes that shut themselves in, change what their descriptors mean, or have functions of the C library
//! from elsewhere, with streams open.

use super::{scenarios, Scenario, Settings};
use crate::actor::Actor;
use crate::calls::process::{self, wait_for};
use crate::calls::sandbox::CLibrary;
use crate::calls::{io, sandbox, socket, Fd};
use crate::pattern::{bytes, receive, receive_text, receive_to_end, send_all, Checker};

pub const ALL: &[Scenario] = scenarios![Settings::All;
    a_stream_goes_on_under_a_seccomp_filter,
    a_child_under_a_seccomp_filter_serves_its_parents_stream,
    a_refused_seccomp_filter_changes_nothing,
    new_streams_under_a_seccomp_filter_work,
    unshare_with_a_live_stream_works_as_without,
    a_process_that_makes_an_io_uring_goes_on,
    a_process_that_asks_the_c_library_for_functions_goes_on,
    a_process_with_a_second_c_library_goes_on,
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

/// As [`talk_as_server`]: pieces by the functions given, and by the usual ones, in turn.
fn talk_by_both(a: &Actor, s: Fd, library: &CLibrary) {
    const PIECE: usize = 40_000;
    let mut checker = Checker::new(1);
    let mut room = vec![0; PIECE];
    while checker.count() < TOTAL as u64 {
        let turn = checker.count() as usize / PIECE;
        let want = PIECE.min(TOTAL - checker.count() as usize);
        let got = match turn % 2 {
            0 => library.receive(s, &mut room[..want]),
            _ => io::recv(s, &mut room[..want], 0).count(),
        };
        match got {
            None | Some(0) => break,
            Some(count) => checker.take(&room[..count]),
        }
    }
    a.note("received", checker.verdict());
    let content = bytes(2, 0, TOTAL);
    let mut sent = 0;
    while sent < TOTAL {
        let piece = &content[sent..TOTAL.min(sent + PIECE)];
        let got = match sent / PIECE % 2 {
            0 => library.send(s, piece),
            _ => io::send(s, piece, 0).count(),
        };
        sent += got.expect("the stream takes more");
    }
    a.note("the end", receive_text(s, 1));
    a.note("close", socket::close(s));
}

fn a_process_that_asks_the_c_library_for_functions_goes_on(a: &Actor) {
    one_process_each(
        a,
        |s| {
            let library = CLibrary::of_the_process(0);
            a.note("sent", send_all(s, 1, TOTAL, 40_000));
            let mut checker = Checker::new(2);
            let mut room = [0; 40_000];
            while checker.count() < TOTAL as u64 {
                let got = library.receive(s, &mut room).unwrap_or(0);
                assert_ne!(got, 0, "{}", checker.verdict());
                checker.take(&room[..got]);
            }
            a.note("received", checker.verdict());
            a.note("shutdown", socket::shutdown(s, libc::SHUT_WR));
            a.note("the end", library.receive(s, &mut room) == Some(0));
        },
        |s| talk_by_both(a, s, &CLibrary::of_the_process(libc::RTLD_DEEPBIND)),
    );
}

fn a_process_with_a_second_c_library_goes_on(a: &Actor) {
    one_process_each(a, |s| talk_as_client(a, s), |s| talk_by_both(a, s, &CLibrary::of_its_own()));
}
