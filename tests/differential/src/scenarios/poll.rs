//! poll and select over streams and other descriptors: the masks of every state, and what wakes or
//! interrupts a wait.

use super::epoll::{receive_text_once, watched};
use super::{scenarios, Scenario, Settings};
use crate::actor::{Actor, EVERYTHING};
use crate::calls::wait::{
    self, epoll_add, epoll_create, epoll_wait, mask, poll, ppoll, pselect, select, Selection,
};
use crate::calls::{io, process, socket, Fd, Got};
use crate::pattern::{self, receive, receive_text};
use libc::{EPOLLET, EPOLLIN, EPOLLOUT, POLLERR, POLLHUP, POLLIN, POLLOUT, POLLRDHUP};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

pub const ALL: &[Scenario] = scenarios![Settings::All;
    a_list_as_long_as_may_be_is_waited_for,
    poll_shows_data_and_room,
    poll_shows_a_half_close,
    poll_shows_both_half_closes,
    poll_shows_own_shutdowns,
    poll_shows_a_reset,
    poll_shows_a_closed_peer,
    poll_asked_for_less_shows_less,
    poll_ignores_negative_and_names_closed_descriptors,
    poll_over_streams_and_pipes_shows_each,
    poll_shows_one_descriptor_as_often_as_it_is_named,
    poll_waits_as_long_as_it_was_told,
    poll_is_woken_by_data,
    poll_and_select_are_woken_by_a_stream_that_pairs_meanwhile,
    poll_is_woken_by_the_end,
    a_poll_of_one_stream_is_woken_by_whatever_its_peer_does,
    a_poll_of_one_stream_is_woken_by_whatever_another_thread_does,
    poll_is_woken_by_a_pipe_among_streams,
    poll_for_room_is_woken_when_the_peer_reads,
    ppoll_lets_signals_in_while_it_waits,
    fortified_poll_is_the_same_poll,
    select_shows_each_set,
    select_times_out_and_empties_the_sets,
    select_refuses_closed_descriptors,
    pselect_lets_signals_in_while_it_waits,
    a_signal_interrupts_poll_and_epoll,
    a_signal_interrupts_recv_or_restarts_it,
    a_handler_set_by_signal_restarts_what_it_interrupts,
    a_handler_interrupts_a_call_that_has_just_begun,
    a_handler_within_a_handler_interrupts_that_alone,
    a_look_lets_the_signals_of_its_mask_in,
    a_handler_ends_a_wait_with_a_mask_that_has_just_begun,
    a_signal_finds_what_the_number_names_by_then,
    a_signal_finds_a_set_where_the_number_was_a_stream,
    a_signal_finds_a_closed_number_that_is_still_registered,
    a_poll_that_is_woken_asks_whom_its_number_names_by_then,
    a_sendfile_that_sleeps_does_not_notice_o_nonblock,
    a_stream_in_the_place_of_a_full_one_takes_as_much,
    a_receive_of_all_ends_with_a_handler_once_it_has_some,
    a_look_at_all_bytes_waits_for_them,
    a_non_blocking_connect_ends_in_room,
    low_water_mark_holds_poll_back,
];

fn poll_shows_data_and_room(a: &Actor) {
    let s = a.stream();
    a.note_mask("when idle", s, POLLOUT);
    a.meet();
    a.client(|| a.note("send", io::send(s, b"x", 0)));
    a.server(|| {
        a.note_mask("with data", s, POLLIN | POLLOUT);
        a.note("received", receive_text(s, 1));
        a.note_mask("after reading", s, POLLOUT);
    });
    let full = a.told_by_client(|| {
        a.note_mask("before filling", s, POLLOUT);
        fill(s)
    });
    a.client(|| a.note_mask("when full", s, 0));
    a.server(|| a.note("drained", all_of(receive(s, 0, full as usize, 1 << 16), full)));
    a.client(|| a.note_mask("when drained", s, POLLOUT));
}

pub(super) fn all_of(text: String, total: u64) -> String {
    if text == format!("{total} bytes right") {
        "all of it".to_owned()
    } else {
        text
    }
}

/// Writes sequence 0 until the stream takes no more; the count differs from carrier to carrier.
pub(super) fn fill(s: Fd) -> u64 {
    let block = pattern::bytes(0, 0, 64 << 20);
    let mut sent = 0;
    while let Some(count) = io::send(s, &block[sent..][..60_000], libc::MSG_DONTWAIT).count() {
        sent += count;
    }
    // The last bit of room goes byte by byte, the kernel may still be moving what it has, and where
    // nobody reads for 20 ms, a full ring is followed by the kernel's buffer.
    let mut quiet = 0;
    while quiet < 200 {
        match io::send(s, &block[sent..][..1000], libc::MSG_DONTWAIT).count() {
            Some(count) => {
                sent += count;
                quiet = 0;
            }
            None => {
                quiet += 1;
                poll(&[], 1);
            }
        }
    }
    sent as u64
}

fn poll_shows_a_half_close(a: &Actor) {
    let s = a.stream();
    a.client(|| {
        io::send(s, b"x", 0);
        a.note("shutdown", socket::shutdown(s, libc::SHUT_WR));
        a.note_mask("at the one that closed", s, POLLOUT);
    });
    a.server(|| {
        a.note_mask("with data and the end", s, POLLIN | POLLOUT | POLLRDHUP);
        a.note("received", receive_text(s, 2));
        a.note_mask("after the end was read", s, POLLIN | POLLOUT | POLLRDHUP);
    });
}

const ENDED: i16 = POLLIN | POLLOUT | POLLRDHUP | POLLHUP;

fn poll_shows_both_half_closes(a: &Actor) {
    let s = a.stream();
    a.client(|| a.note("shutdown", socket::shutdown(s, libc::SHUT_WR)));
    a.server(|| {
        a.note_mask("after the peer's", s, POLLIN | POLLOUT | POLLRDHUP);
        a.note("shutdown", socket::shutdown(s, libc::SHUT_WR));
        a.note_mask("after both", s, ENDED);
    });
    a.client(|| a.note_mask("after both", s, ENDED));
}

fn poll_shows_own_shutdowns(a: &Actor) {
    let s = a.stream();
    a.client(|| {
        a.note("shutdown of reading", socket::shutdown(s, libc::SHUT_RD));
        a.note_mask("deaf", s, POLLIN | POLLOUT | POLLRDHUP);
        a.note("shutdown of writing", socket::shutdown(s, libc::SHUT_WR));
        a.note_mask("deaf and dumb", s, ENDED);
    });
}

pub(super) fn reset_client(a: &Actor, s: Fd) {
    a.client(|| {
        io::send(s, b"unread", 0);
    });
    a.server(|| {
        a.until_readable(s, 6);
        socket::close(s);
    });
}

fn poll_shows_a_reset(a: &Actor) {
    let s = a.stream();
    reset_client(a, s);
    a.client(|| {
        a.note_mask("after the reset", s, ENDED | POLLERR);
        let mut room = [0; 4];
        a.note("recv", io::recv(s, &mut room, 0));
        a.note_mask("after the error was told", s, ENDED);
        a.note("recv", io::recv(s, &mut room, 0));
    });
}

fn poll_shows_a_closed_peer(a: &Actor) {
    let s = a.stream();
    a.server(|| a.note("close", socket::close(s)));
    a.client(|| {
        a.note_mask("after the close", s, POLLIN | POLLOUT | POLLRDHUP);
        a.note("send", io::send(s, b"x", libc::MSG_NOSIGNAL));
        a.note_mask("after writing to nobody", s, ENDED | POLLERR);
    });
}

fn poll_asked_for_less_shows_less(a: &Actor) {
    let s = a.stream();
    a.client(|| {
        io::send(s, b"x", 0);
        socket::shutdown(s, libc::SHUT_WR);
    });
    a.server(|| {
        a.note_mask("everything", s, POLLIN | POLLOUT | POLLRDHUP);
        for (what, events) in [
            ("nothing", 0),
            ("in", POLLIN),
            ("out", POLLOUT),
            ("rdhup", POLLRDHUP),
            ("rdnorm", libc::POLLRDNORM),
            ("wrnorm", libc::POLLWRNORM),
            ("pri", libc::POLLPRI),
            ("band", libc::POLLRDBAND | libc::POLLWRBAND),
        ] {
            let (got, masks) = poll(&[(s, events)], 0);
            a.note(format!("asked for {what}"), format!("{got} {}", mask(masks[0])));
        }
    });
}

fn poll_ignores_negative_and_names_closed_descriptors(a: &Actor) {
    let s = a.stream();
    let (got, masks) = poll(&[(-1, POLLIN), (600, POLLIN), (s, POLLOUT)], 0);
    a.note("poll", format!("{got} {:?}", masks.into_iter().map(mask).collect::<Vec<_>>()));
    let (got, _) = poll(&[(-1, POLLIN)], 0);
    a.note("nothing but negative", got);
    a.meet();
}

fn poll_over_streams_and_pipes_shows_each(a: &Actor) {
    let place = a.listen();
    let (s, t) = (a.pair(&place), a.pair(&place));
    a.client(|| {
        io::send(s, b"x", 0);
    });
    a.server(|| {
        let (out, into) = socket::pipe();
        a.until(s, POLLIN);
        let show = |what: &str| {
            let set = [(s, EVERYTHING), (out, POLLIN), (t, POLLIN), (into, POLLOUT)];
            let (got, masks) = poll(&set, 1000);
            a.note(what, format!("{got} {:?}", masks.into_iter().map(mask).collect::<Vec<_>>()));
        };
        show("stream ready");
        io::write(into, b"p");
        show("pipe ready too");
        a.note("received", receive_text(s, 1));
        show("stream read");
        socket::close(into);
        let (got, masks) = poll(&[(out, POLLIN), (t, POLLIN)], 1000);
        a.note("pipe hung up", format!("{got} {} {}", mask(masks[0]), mask(masks[1])));
    });
}

fn poll_shows_one_descriptor_as_often_as_it_is_named(a: &Actor) {
    let s = a.stream();
    a.client(|| {
        io::send(s, b"x", 0);
    });
    a.server(|| {
        a.until(s, POLLIN);
        let (got, masks) = poll(&[(s, POLLIN), (s, POLLOUT), (s, POLLIN | POLLOUT)], 0);
        a.note("poll", format!("{got} {:?}", masks.into_iter().map(mask).collect::<Vec<_>>()));
    });
}

/// The kernel counts socket time-outs in ticks, the first of which has begun already.
const TICK_MS: u64 = 10;

/// Notes the result of a wait and whether it took about as long as it should.
pub(super) fn timed(a: &Actor, what: &str, least_ms: u64, wait: impl FnOnce() -> String) {
    let start = Instant::now();
    let got = wait();
    let took = start.elapsed();
    let good = took >= Duration::from_millis(least_ms.saturating_sub(TICK_MS))
        && took < Duration::from_millis(least_ms + 5000);
    a.note(
        what,
        format!("{got}, in time: {}", if good { "yes".into() } else { format!("{took:?}") }),
    );
}

fn poll_waits_as_long_as_it_was_told(a: &Actor) {
    let s = a.stream();
    timed(a, "not at all", 0, || poll(&[(s, POLLIN)], 0).0.to_string());
    timed(a, "80 ms", 80, || poll(&[(s, POLLIN)], 80).0.to_string());
    timed(a, "ppoll 30 ms", 30, || ppoll(&[(s, POLLIN)], 30, &[]).0.to_string());
    timed(a, "ready at once", 0, || poll(&[(s, POLLOUT)], 5000).0.to_string());
    a.meet();
}

/// One side waits in a call; the other acts once it sleeps.
pub(super) fn wake(a: &Actor, sleep: impl FnOnce(), act: impl FnOnce()) {
    a.at_once(
        || {
            let word = a.hear();
            let (process, thread) = word.split_once(' ').expect("two numbers");
            a.until_asleep(process.parse().expect("a pid"), thread.parse().expect("a tid"));
            act();
        },
        || {
            a.tell(&format!("{} {}", process::pid(), process::thread_id()));
            sleep();
        },
    );
}

fn poll_is_woken_by_data(a: &Actor) {
    let s = a.stream();
    for round in 0..5 {
        wake(
            a,
            || {
                let (got, masks) = poll(&[(s, POLLIN)], 15_000);
                a.note(format!("woken {round}"), format!("{got} {}", mask(masks[0])));
                a.note("received", receive_text(s, 4));
            },
            || {
                io::send(s, b"wake", 0);
            },
        );
    }
}

fn poll_is_woken_by_the_end(a: &Actor) {
    let place = a.listen();
    let s = a.pair(&place);
    wake(
        a,
        || {
            let (got, masks) = poll(&[(s, POLLRDHUP)], 15_000);
            a.note("woken by a half close", format!("{got} {}", mask(masks[0])));
        },
        || {
            socket::shutdown(s, libc::SHUT_WR);
        },
    );
    let t = a.pair(&place);
    wake(
        a,
        || {
            let (got, masks) = poll(&[(t, 0)], 15_000);
            a.note("woken by a reset", format!("{got} {}", mask(masks[0])));
        },
        || {
            socket::set_linger(t, true, 0);
            socket::close(t);
        },
    );
}

/// What libcurl asks for in order to receive.
const READABLE: i16 = POLLIN | libc::POLLRDNORM | libc::POLLRDBAND | libc::POLLPRI;

/// Done to a stream that somebody polls.
type Act<'a> = &'a (dyn Fn(Fd) -> i64 + Sync);

fn poll_alone(s: Fd, events: i16) -> String {
    let (got, masks) = poll(&[(s, events)], 15_000);
    format!("{got} {}", mask(masks[0]))
}

fn a_poll_of_one_stream_is_woken_by_whatever_its_peer_does(a: &Actor) {
    let place = a.listen();
    let send = |s, flags| io::send(s, b"x", flags).value("send");
    let shut = |s, how| socket::shutdown(s, how).value("shutdown");
    // From here on the kernel carries it.
    let leave = |s| socket::set_int(s, libc::SOL_SOCKET, libc::SO_RCVLOWAT, 2).value("SO_RCVLOWAT");
    let reset = |s| {
        socket::set_linger(s, true, 0).value("SO_LINGER");
        socket::close(s).value("close")
    };
    let cases: [(&str, i16, Act); 10] = [
        ("a byte", POLLIN, &|s| send(s, 0)),
        ("a byte, asked for all", READABLE, &|s| send(s, 0)),
        ("a half close", POLLIN, &|s| shut(s, libc::SHUT_WR)),
        ("a half close, asked for that", POLLRDHUP, &|s| shut(s, libc::SHUT_WR)),
        ("both half closes", POLLIN, &|s| shut(s, libc::SHUT_RDWR)),
        ("a close", POLLIN | POLLRDHUP, &|s| socket::close(s).value("close")),
        ("a reset", POLLIN, &reset),
        ("a reset, asked for nothing", 0, &reset),
        ("an urgent byte", libc::POLLPRI, &|s| send(s, libc::MSG_OOB)),
        ("a byte by TCP", POLLIN, &|s| (leave(s), send(s, 0)).1),
    ];
    for (what, events, act) in cases {
        let s = a.pair(&place);
        wake(a, || a.note(what, poll_alone(s, events)), || _ = act(s));
        a.meet();
        socket::close(s);
    }
    let s = a.pair(&place);
    a.client(|| _ = send(s, 0));
    a.server(|| a.until_readable(s, 1));
    let urgent = || a.note("an urgent byte behind one", poll_alone(s, libc::POLLPRI));
    wake(a, urgent, || _ = send(s, libc::MSG_OOB));
    a.meet();
}

fn a_poll_of_one_stream_is_woken_by_whatever_another_thread_does(a: &Actor) {
    let place = a.listen();
    let shut = |s, how| socket::shutdown(s, how).value("shutdown");
    let leave = |s| socket::set_int(s, libc::SOL_SOCKET, libc::SO_RCVLOWAT, 1).value("SO_RCVLOWAT");
    let fork = |_| process::wait_quietly(process::fork(|| 0)).into();
    // Behind some, a byte of the peer's must come.
    let cases: [(&str, i16, bool, Act); 7] = [
        ("nothing", READABLE, true, &|_| 0),
        ("the end of what is read", POLLIN, false, &|s| shut(s, libc::SHUT_RD)),
        ("both ends", POLLIN, false, &|s| shut(s, libc::SHUT_RDWR)),
        ("both ends, asked for nothing", 0, false, &|s| shut(s, libc::SHUT_RDWR)),
        ("its way to TCP", POLLIN, true, &leave),
        ("a fork", POLLIN, true, &fork),
        ("a close", POLLIN, true, &|s| socket::close(s).value("close")),
    ];
    for (what, events, has_byte, act) in cases {
        let s = a.pair(&place);
        a.at_once(
            || {
                assert_eq!(a.hear(), "done");
                if has_byte {
                    io::send(s, b"x", 0).value("send");
                }
            },
            || {
                a.beside_a_sleeper(
                    || a.note(what, poll_alone(s, events)),
                    || {
                        act(s);
                        a.tell("done");
                    },
                );
            },
        );
        a.meet();
        socket::close(s);
    }
}

/// Beside one that may be on the ring already.
fn poll_and_select_are_woken_by_a_stream_that_pairs_meanwhile(a: &Actor) {
    let place = a.listen();
    let s = a.pair(&place);
    for by_poll in [true, false] {
        let t = a.new_stream(&place);
        wake(
            a,
            || {
                for _ in 0..8 {
                    io::send(t, b"question", 0).value("send");
                }
                if by_poll {
                    let (got, masks) = poll(&[(s, POLLIN), (t, POLLIN)], 15_000);
                    a.note("poll", format!("{got} {} {}", mask(masks[0]), mask(masks[1])));
                } else {
                    let asked = Selection { read: vec![s, t], ..Selection::default() };
                    a.note("select", select(&asked, 15_000));
                }
                a.note("answer", receive_text(t, 6));
            },
            || {
                for _ in 0..8 {
                    assert_eq!(receive_text(t, 8), "question");
                }
                // By now they look for each other.
                wait::poll(&[], 100);
                io::send(t, b"answer", 0).value("send");
            },
        );
        socket::close(t);
    }
}

fn poll_is_woken_by_a_pipe_among_streams(a: &Actor) {
    let s = a.stream();
    a.server(|| {
        let (out, into) = socket::pipe();
        let (own, thread) = (process::pid(), process::thread_id());
        std::thread::scope(|scope| {
            a.thread(scope, "writer", || {
                a.until_asleep(own, thread);
                io::write(into, b"x");
            });
            let (got, masks) = poll(&[(s, POLLIN), (out, POLLIN)], 15_000);
            a.note("woken", format!("{got} {} {}", mask(masks[0]), mask(masks[1])));
        });
    });
}

fn poll_for_room_is_woken_when_the_peer_reads(a: &Actor) {
    let s = a.stream();
    let full = a.told_by_server(|| fill(s));
    wake(
        a,
        || {
            let (got, masks) = poll(&[(s, POLLOUT)], 15_000);
            a.note("woken", format!("{got} {}", mask(masks[0])));
        },
        || a.note("drained", all_of(receive(s, 0, full as usize, 1 << 16), full)),
    );
}

fn ppoll_lets_signals_in_while_it_waits(a: &Actor) {
    let s = a.stream();
    a.server(|| {
        wait::catch_signal(libc::SIGUSR1, libc::SA_RESTART);
        wait::block_signals(&[libc::SIGUSR1]);
        process::kill_thread(process::thread_id(), libc::SIGUSR1).value("tgkill");
        a.note("poll while blocked", poll(&[(s, POLLIN)], 20).0);
        a.note("caught", wait::caught(libc::SIGUSR1));
        a.note("ppoll with it blocked", ppoll(&[(s, POLLIN)], 20, &[libc::SIGUSR1]).0);
        a.note("ppoll that lets it in", ppoll(&[(s, POLLIN)], 15_000, &[]).0);
        a.note("caught", wait::caught(libc::SIGUSR1));
        a.note("ppoll with none pending", ppoll(&[(s, POLLIN)], 20, &[]).0);
    });
}

fn fortified_poll_is_the_same_poll(a: &Actor) {
    let s = a.stream();
    a.client(|| {
        io::send(s, b"x", 0);
    });
    a.server(|| {
        let (got, masks) = wait::poll_checked(&[(s, POLLIN | POLLOUT)], 5000);
        a.note("some", got.count().is_some_and(|count| count > 0));
        a.until(s, POLLIN);
        let (got, again) = wait::poll_checked(&[(s, POLLIN | POLLOUT)], 0);
        a.note(
            "poll",
            format!("{got} {} (room first: {})", mask(again[0]), masks[0] & POLLOUT as u32 != 0),
        );
    });
}

fn select_shows_each_set(a: &Actor) {
    let place = a.listen();
    let (s, t) = (a.pair(&place), a.pair(&place));
    a.client(|| {
        io::send(s, b"x", 0);
    });
    a.server(|| {
        let (out, into) = socket::pipe();
        a.until(s, POLLIN);
        let asked =
            Selection { read: vec![s, t, out], write: vec![s, t, into], except: vec![s, t] };
        a.note("one stream readable", select(&asked, 1000));
        io::write(into, b"p");
        a.note("the pipe too", select(&asked, 1000));
        a.note("pselect", pselect(&asked, 1000, &[]));
        a.note("received", receive_text(s, 1));
        let read = Selection { read: vec![s, t, out], ..Selection::default() };
        a.note("only the pipe", select(&read, 1000));
    });
    a.client(|| {
        socket::shutdown(t, libc::SHUT_WR);
    });
    a.server(|| {
        a.until(t, POLLRDHUP);
        let read = Selection { read: vec![s, t], ..Selection::default() };
        a.note("the end is readable", select(&read, 1000));
    });
}

fn select_times_out_and_empties_the_sets(a: &Actor) {
    let s = a.stream();
    let asked = Selection { read: vec![s], except: vec![s], ..Selection::default() };
    timed(a, "60 ms", 60, || select(&asked, 60));
    timed(a, "pselect 30 ms", 30, || pselect(&asked, 30, &[]));
    timed(a, "not at all", 0, || select(&asked, 0));
    timed(a, "nothing at all, 20 ms", 20, || select(&Selection::default(), 20));
    a.meet();
}

fn select_refuses_closed_descriptors(a: &Actor) {
    let s = a.stream();
    let asked = Selection { read: vec![s, 600], ..Selection::default() };
    a.note("select", select(&asked, 0).starts_with("EBADF"));
    a.note("pselect", pselect(&asked, 0, &[]).starts_with("EBADF"));
    a.meet();
}

fn pselect_lets_signals_in_while_it_waits(a: &Actor) {
    let s = a.stream();
    a.server(|| {
        wait::catch_signal(libc::SIGUSR1, 0);
        wait::block_signals(&[libc::SIGUSR1]);
        process::kill_thread(process::thread_id(), libc::SIGUSR1).value("tgkill");
        let asked = Selection { read: vec![s], ..Selection::default() };
        a.note("with it blocked", pselect(&asked, 20, &[libc::SIGUSR1]));
        a.note("letting it in", pselect(&asked, 15_000, &[]).starts_with("EINTR"));
        a.note("caught", wait::caught(libc::SIGUSR1));
    });
}

fn a_signal_interrupts_poll_and_epoll(a: &Actor) {
    let s = a.stream();
    a.server(|| {
        let set = epoll_create();
        epoll_add(set, s, EPOLLIN, 1);
        for (what, flags) in [("", 0), (" with SA_RESTART", libc::SA_RESTART)] {
            wait::catch_signal(libc::SIGUSR1, flags);
            a.note(format!("poll{what}"), a.interrupted(|| poll(&[(s, POLLIN)], 15_000).0));
            a.note(format!("epoll{what}"), a.interrupted(|| epoll_wait(set, 1, 15_000).got));
            let asked = Selection { read: vec![s], ..Selection::default() };
            let got = a.interrupted(|| select(&asked, 15_000));
            a.note(format!("select{what}"), got.starts_with("EINTR"));
        }
        a.note("caught", wait::caught(libc::SIGUSR1));
    });
}

fn a_receive_of_all_ends_with_a_handler_once_it_has_some(a: &Actor) {
    let s = a.stream();
    a.client(|| a.note("send", io::send(s, b"some", 0)));
    a.server(|| {
        a.until_readable(s, 4);
        let mut room = [0; 8];
        wait::catch_signal(libc::SIGUSR1, libc::SA_RESTART);
        a.note("recv", a.interrupted(|| io::recv(s, &mut room, libc::MSG_WAITALL)));
    });
}

fn a_look_at_all_bytes_waits_for_them(a: &Actor) {
    let s = a.stream();
    a.client(|| a.note("send", io::send(s, b"some", 0)));
    a.at_once(
        || {
            assert_eq!(a.hear(), "asleep");
            a.note("send", io::send(s, b", rest", 0));
        },
        || {
            a.until_readable(s, 4);
            let (own, thread) = (process::pid(), process::thread_id());
            std::thread::scope(|scope| {
                a.thread(scope, "watcher", || {
                    a.until_asleep(own, thread);
                    a.tell("asleep");
                });
                let mut room = [0; 10];
                let flags = libc::MSG_WAITALL | libc::MSG_PEEK;
                a.note("peek", io::recv(s, &mut room, flags));
            });
        },
    );
}

fn a_signal_interrupts_recv_or_restarts_it(a: &Actor) {
    let s = a.stream();
    a.server(|| {
        let mut room = [0; 8];
        wait::catch_signal(libc::SIGUSR1, 0);
        a.note("without SA_RESTART", a.interrupted(|| io::recv(s, &mut room, 0)));
        a.note("read", a.interrupted(|| io::read(s, &mut room)));
        wait::catch_signal(libc::SIGUSR1, libc::SA_RESTART);
        socket::set_timeout(s, libc::SO_RCVTIMEO, 12_000);
        a.note("SA_RESTART with a time-out", a.interrupted(|| io::recv(s, &mut room, 0)));
        socket::set_timeout(s, libc::SO_RCVTIMEO, 0);
        a.note("caught", wait::caught(libc::SIGUSR1));
    });
    receives_behind_a_signal(a, s, 4);
}

fn a_handler_set_by_signal_restarts_what_it_interrupts(a: &Actor) {
    let s = a.stream();
    a.server(|| wait::catch_by_signal(libc::SIGUSR1, false));
    receives_behind_a_signal(a, s, 1);
    a.server(|| {
        // It holds for what signal(3) sets from here on, too.
        wait::catch_by_signal(libc::SIGUSR1, true);
        let interrupted = a.interrupted(|| io::recv(s, &mut [0; 8], 0));
        a.note("siginterrupt", interrupted);
    });
}

static HAS_BEGUN: AtomicBool = AtomicBool::new(false);

/// Soon again if a busy machine let the alarm come before the call; else so late that one can tell.
extern "C" fn alarm_anew(_signal: i32) {
    process::timer_again(if HAS_BEGUN.load(Relaxed) { 100_000 } else { 30 });
}

/// A call that looks for a moment before it sleeps has slept to the program.
fn a_handler_interrupts_a_call_that_has_just_begun(a: &Actor) {
    const ROUNDS: usize = 40;
    let few_are_late = |what: &str, call: &dyn Fn() -> Got| {
        let is_late = |_: &usize| {
            process::timer_again(30);
            HAS_BEGUN.store(true, Relaxed);
            let began = Instant::now();
            let got = call();
            HAS_BEGUN.store(false, Relaxed);
            process::no_timer();
            assert!(got.is(libc::EINTR), "{what}: {got:?}");
            began.elapsed() > Duration::from_millis(50)
        };
        // An alarm may come between the mark and the call.
        a.note(format!("{what}: few are late"), (0..ROUNDS).filter(is_late).count() < ROUNDS / 2);
    };
    let place = a.listen();
    a.server(|| {
        wait::catch_signal_with(libc::SIGALRM, 0, alarm_anew);
        few_are_late("accept", &|| socket::accept(place.fd));
    });
    let s = a.pair(&place);
    a.server(|| {
        socket::set_nonblocking(s, false);
        few_are_late("recv", &|| io::recv(s, &mut [0; 8], 0));
        wait::catch_signal_with(libc::SIGALRM, libc::SA_RESTART, alarm_anew);
        socket::set_timeout(s, libc::SO_RCVTIMEO, 5_000);
        few_are_late("recv with a time-out", &|| io::recv(s, &mut [0; 8], 0));
    });
}

extern "C" fn raise_another(_signal: i32) {
    process::kill_thread(process::thread_id(), libc::SIGUSR2);
}

/// As the D runtime's collector stops threads and lets them go on.
fn a_handler_within_a_handler_interrupts_that_alone(a: &Actor) {
    let s = a.stream();
    a.at_once(
        || {
            assert_eq!(a.hear(), "signalled");
            io::send(s, b"at last", 0);
        },
        || {
            wait::catch_signal_with(libc::SIGUSR1, libc::SA_RESTART, raise_another);
            wait::catch_signal(libc::SIGUSR2, 0);
            let signal = |_, thread| {
                process::kill_thread(thread, libc::SIGUSR1).value("tgkill");
                a.settle(|| wait::caught(libc::SIGUSR2) == 1);
                a.tell("signalled");
            };
            let got = a.once_asleep("signaller", signal, || io::recv(s, &mut [0; 8], 0));
            // Which a ring of a 32-bit program does not tell apart (docs/compatibility.md).
            let told = cfg!(target_pointer_width = "32") && got.is(libc::EINTR);
            a.note("SA_RESTART", if told { Got::Value(7) } else { got });
        },
    );
}

fn a_look_lets_the_signals_of_its_mask_in(a: &Actor) {
    let s = a.stream();
    a.server(|| {
        wait::catch_signal(libc::SIGUSR1, libc::SA_RESTART);
        wait::block_signals(&[libc::SIGUSR1]);
        process::kill_thread(process::thread_id(), libc::SIGUSR1).value("tgkill");
        a.note("blocked", format!("{:?}", wait::ppoll(&[(s, libc::POLLIN)], 0, &[libc::SIGUSR1])));
        a.note("let in", format!("{:?}", wait::ppoll(&[(s, libc::POLLIN)], 0, &[])));
        a.note("caught", wait::caught(libc::SIGUSR1));
        a.note("once", format!("{:?}", wait::ppoll(&[(s, libc::POLLIN)], 0, &[])));
    });
}

static HAS_HIT_CALL: AtomicBool = AtomicBool::new(false);

extern "C" fn hit_call(_: i32) {
    HAS_HIT_CALL.fetch_or(wait::IS_IN_MASKED_WAIT.load(Relaxed), Relaxed);
}

/// A wait that has had its answers soon looks for the next for a while before it sleeps. A handler may also run between
/// the mark and the call, so that few of many may go on.
fn a_handler_ends_a_wait_with_a_mask_that_has_just_begun(a: &Actor) {
    const TRIES: usize = 40;
    const EXCHANGES: usize = 6;
    let s = a.stream();
    let echo = || {
        while receive_text(s, 8) == "question" {
            io::send(s, b"question", 0).value("send");
        }
    };
    let ask = || {
        let set = watched(s, EPOLLIN);
        let asked = Selection { read: vec![s], ..Selection::default() };
        let waits: [(&str, &dyn Fn(i32) -> bool); 3] = [
            ("ppoll", &|ms| ppoll(&[(s, POLLIN)], ms.into(), &[]).0.is(libc::EINTR)),
            ("pselect", &|ms| pselect(&asked, ms.into(), &[]).starts_with("EINTR")),
            ("epoll_pwait", &|ms| wait::epoll_pwait(set, 1, ms, &[]).said().starts_with("EINTR")),
        ];
        process::on_timer(hit_call, 0);
        for (name, is_interrupted) in waits {
            let (mut hit, mut went_on) = (0, 0);
            for turn in 0..TRIES {
                for _ in 0..EXCHANGES {
                    io::send(s, b"question", 0).value("send");
                    is_interrupted(5000);
                    assert_eq!(receive_text(s, 8), "question");
                }
                HAS_HIT_CALL.store(false, Relaxed);
                process::timer_again(20 + turn as i64);
                let ended = is_interrupted(20);
                process::no_timer();
                if HAS_HIT_CALL.load(Relaxed) {
                    hit += 1;
                    went_on += usize::from(!ended);
                }
            }
            a.note(name, if 2 * went_on > hit { "goes on" } else { "ends" });
        }
        socket::shutdown(s, libc::SHUT_WR).value("shutdown");
    };
    a.at_once(echo, ask);
}

/// The server's signal number `count` comes while it receives, and the bytes after it.
fn receives_behind_a_signal(a: &Actor, s: Fd, count: u32) {
    a.at_once(
        || {
            assert_eq!(a.hear(), "signalled");
            io::send(s, b"at last", 0);
        },
        || {
            let (own, thread) = (process::pid(), process::thread_id());
            std::thread::scope(|scope| {
                a.thread(scope, "signaller", || {
                    a.until_asleep(own, thread);
                    process::kill_thread(thread, libc::SIGUSR1).value("tgkill");
                    a.settle(|| wait::caught(libc::SIGUSR1) == count);
                    a.tell("signalled");
                });
                a.note("SA_RESTART", receive_text_once(s, 7));
            });
        },
    );
}

fn a_signal_finds_what_the_number_names_by_then(a: &Actor) {
    let s = a.stream();
    a.server(|| {
        let null = socket::open_null();
        wait::catch_signal(libc::SIGUSR1, libc::SA_RESTART);
        let gives_up = |given_up: Fd, replaced: bool| {
            if replaced {
                socket::dup2(null, given_up)
            } else {
                socket::close(given_up)
            }
        };
        for (what, replaced) in [("closed", false), ("another's", true)] {
            let meanwhile = |call: &dyn Fn(Fd) -> String| {
                let number = socket::dup(s).fd("dup");
                let (own, thread) = (process::pid(), process::thread_id());
                std::thread::scope(|scope| {
                    a.thread(scope, "closer", || {
                        a.until_asleep(own, thread);
                        gives_up(number, replaced).value("give up");
                        process::kill_thread(thread, libc::SIGUSR1).value("tgkill");
                    });
                    call(number)
                })
            };
            let polls = |number| mask(poll(&[(number, POLLIN)], 15_000).1[0]);
            a.note(format!("poll, {what}"), meanwhile(&polls));
            let reads = |number| io::read(number, &mut [0; 8]).to_string();
            a.note(format!("read, {what}"), meanwhile(&reads));
            let receives = |number| io::recv(number, &mut [0; 8], 0).to_string();
            a.note(format!("recv, {what}"), meanwhile(&receives));
        }
        a.note("caught", wait::caught(libc::SIGUSR1));
    });
}

fn a_signal_finds_a_closed_number_that_is_still_registered(a: &Actor) {
    let place = a.listen();
    for reads in [true, false] {
        let s = a.pair(&place);
        a.server(|| {
            wait::catch_signal(libc::SIGUSR1, libc::SA_RESTART);
            let number = socket::dup(s).fd("dup");
            watched(number, EPOLLIN);
            let (own, thread) = (process::pid(), process::thread_id());
            std::thread::scope(|scope| {
                a.thread(scope, "closer", || {
                    a.until_asleep(own, thread);
                    socket::close(number);
                    a.until_asleep(own, thread);
                    process::kill_thread(thread, libc::SIGUSR1).value("tgkill");
                });
                let mut room = [0; 8];
                let receive = |room: &mut [u8]| match reads {
                    true => io::read(number, room),
                    false => io::recv(number, room, 0),
                };
                a.note("receive", receive(&mut room));
            });
        });
    }
}

/// The set has held a stream of the ring, and holds none any more.
fn a_signal_finds_a_set_where_the_number_was_a_stream(a: &Actor) {
    let s = a.stream();
    a.server(|| {
        wait::catch_signal(libc::SIGUSR1, 0);
        let number = socket::dup(s).fd("dup");
        let (own, thread) = (process::pid(), process::thread_id());
        std::thread::scope(|scope| {
            a.thread(scope, "closer", || {
                a.until_asleep(own, thread);
                socket::close(number);
                let set = watched(s, EPOLLIN | EPOLLOUT);
                assert_eq!(set, number);
                wait::epoll_del(set, s).value("DEL");
                process::kill_thread(thread, libc::SIGUSR1).value("tgkill");
            });
            let (got, masks) = poll(&[(number, POLLIN)], 15_000);
            a.note("poll", format!("{got} {}", mask(masks[0])));
        });
    });
}

/// A number of a stream that TCP carries goes to one that the ring does.
fn a_poll_that_is_woken_asks_whom_its_number_names_by_then(a: &Actor) {
    let place = a.listen();
    for (replaced, was_on_ring) in [(true, false), (false, false), (true, true)] {
        let s = a.pair(&place);
        let t = a.new_stream(&place);
        if was_on_ring {
            a.warm(t);
            a.meet();
            socket::set_int(t, libc::SOL_SOCKET, libc::SO_RCVLOWAT, 2).value("SO_RCVLOWAT");
            a.meet();
        }
        a.at_once(
            || {
                assert_eq!(a.hear(), "replaced");
                io::send(s, b"1", 0).value("send");
                assert_eq!(a.hear(), "arrived");
                socket::close(t);
            },
            || {
                let (own, thread) = (process::pid(), process::thread_id());
                let replace = || {
                    if replaced {
                        return socket::dup2(s, t);
                    }
                    socket::close(t);
                    socket::dup(s)
                };
                std::thread::scope(|scope| {
                    a.thread(scope, "other", || {
                        a.until_asleep(own, thread);
                        assert_eq!(replace().fd("replace"), t);
                        a.tell("replaced");
                        a.until_readable(s, 1);
                        a.tell("arrived");
                    });
                    a.note("poll", mask(poll(&[(t, POLLIN)], 15_000).1[0]));
                });
                a.note("received", receive_text(t, 1));
                socket::close(t);
            },
        );
    }
}

fn a_sendfile_that_sleeps_does_not_notice_o_nonblock(a: &Actor) {
    const SIZE: usize = 4000;
    let s = a.stream();
    let filled = a.told_by_client(|| fill(s)) as usize;
    a.at_once(
        || {
            let file = socket::memfd();
            let _ = pattern::write_all(file, &pattern::bytes(1, 0, SIZE));
            let (own, thread) = (process::pid(), process::thread_id());
            std::thread::scope(|scope| {
                a.thread(scope, "watcher", || {
                    a.until_asleep(own, thread);
                    socket::set_nonblocking(s, true);
                    a.tell("asleep");
                });
                a.note("sendfile", io::sendfile(s, file, 0, SIZE).0);
            });
        },
        || {
            assert_eq!(a.hear(), "asleep");
            receive(s, 0, filled, 1 << 16);
            a.note("the file", receive(s, 1, SIZE, 1 << 16));
        },
    );
}

/// More than a ring holds: where nobody reads for a while, the kernel's buffer follows.
fn a_stream_in_the_place_of_a_full_one_takes_as_much(a: &Actor) {
    const MORE_THAN_A_RING: u64 = 1_500_000;
    let place = a.listen();
    let stream = || {
        let s = a.new_stream(&place);
        a.warm(s);
        a.meet();
        s
    };
    let first = stream();
    a.server(|| {
        let block = [0; 60_000];
        while io::send(first, &block, libc::MSG_DONTWAIT).count().is_some() {}
        a.note("close", socket::close(first));
    });
    a.client(|| a.note("close", socket::close(first)));
    let second = stream();
    a.server(|| a.note("much", fill(second) > MORE_THAN_A_RING));
}

fn a_non_blocking_connect_ends_in_room(a: &Actor) {
    let place = a.listen();
    let s = a.told_by_client(|| {
        let s = a.tcp_socket();
        socket::set_nonblocking(s, true);
        a.note_mask("before connect", s, POLLOUT | POLLHUP);
        let set = watched(s, EPOLLOUT | EPOLLIN | EPOLLET);
        epoll_wait(set, 4, 0);
        let address = socket::Address::as_seen_by_client(a.family, place.port);
        let got = socket::connect(s, &address);
        a.note("connect", got.is(libc::EINPROGRESS) || got == Got::Value(0));
        a.note("room", epoll_wait(set, 4, 5000).said());
        a.note("SO_ERROR", socket::so_error(s));
        a.note("connect again", socket::connect(s, &address));
        a.note("and again", socket::connect(s, &address));
        s as u64
    }) as Fd;
    if a.is_client() {
        socket::set_nonblocking(s, false);
        a.warm_as_client(s);
        a.note("send", io::send(s, b"through", 0));
    } else {
        let s = socket::accept(place.fd).fd("accept");
        a.warm_as_server(s);
        a.note("received", receive_text(s, 7));
    }
    a.meet();
}

fn low_water_mark_holds_poll_back(a: &Actor) {
    let s = a.stream();
    a.server(|| {
        a.note("set", socket::set_int(s, libc::SOL_SOCKET, libc::SO_RCVLOWAT, 10));
        a.note("get", socket::get_int(s, libc::SOL_SOCKET, libc::SO_RCVLOWAT));
    });
    a.client(|| {
        io::send(s, b"12345", 0);
    });
    a.server(|| {
        a.until_readable(s, 5);
        a.note("poll with half", mask(poll(&[(s, POLLIN)], 20).1[0]));
        let set = watched(s, EPOLLIN);
        a.note("epoll with half", epoll_wait(set, 4, 20).said());
        let mut room = [0; 20];
        a.note("recv without waiting", io::recv(s, &mut room, libc::MSG_DONTWAIT | libc::MSG_PEEK));
    });
    a.client(|| {
        io::send(s, b"67890", 0);
    });
    a.server(|| {
        a.note("poll with all", mask(poll(&[(s, POLLIN)], 5000).1[0]));
        a.note("received", receive_text(s, 10));
    });
}

/// As many entries as the process may have descriptors (poll(2)).
fn a_list_as_long_as_may_be_is_waited_for(a: &Actor) {
    const ENTRIES: usize = 90;
    let s = a.stream();
    a.client(|| {
        let other = wait::eventfd(0);
        process::limit_descriptors(ENTRIES as u64).value("setrlimit");
        let mut list = vec![(s, POLLIN); ENTRIES];
        list[1].0 = other;
        a.note("looked", poll(&list, 0).0);
        a.note("waited", poll(&list, 20).0);
        list.push((s, POLLIN));
        a.note("too long", poll(&list, 0).0);
    });
}
