//! A process becomes another program, which goes on with its streams: they come to rings again.

use super::{scenarios, Scenario, Settings};
use crate::actor::{Actor, Carrier, Side};
use crate::calls::process::{self, wait_for};
use crate::calls::wait::{self, epoll_add, epoll_create, epoll_wait};
use crate::calls::{io, socket, Fd, Got};
use crate::helpers::{self, program};
use crate::pattern::{receive, receive_text, receive_to_end, send_all, write_all};
use Side::{Client, Server};

pub const ALL: &[Scenario] = scenarios![Settings::All;
    a_server_that_becomes_another_program_comes_to_a_ring_again,
    a_client_that_becomes_another_program_comes_to_a_ring_again,
    a_peer_asleep_in_any_call_hears_of_the_new_program,
    a_peer_that_reads_in_one_thread_and_writes_in_another_goes_on,
    a_chain_of_programs_keeps_its_stream,
    a_stream_that_is_shut_down_goes_on_in_the_next_program,
    a_stream_that_a_child_keeps_goes_on_in_the_next_program,
    a_stream_that_a_child_had_comes_to_a_ring_again,
    a_detour_by_a_program_without_the_library_keeps_the_stream,
    a_stream_of_two_numbers_comes_to_a_ring_again,
    a_set_that_is_kept_tells_the_next_program,
    many_streams_of_one_program_come_to_rings_again,
    what_the_kernel_counts_goes_on_behind_the_next_program,
    an_exec_that_fails_keeps_the_stream,
];

const ROUNDS_MAX: usize = 20_000;

/// Pairs a child of that side, which goes on as `heir`, with the other side, which goes on as `peer`.
fn with_heir(a: &Actor, side: Side, heir: impl FnOnce(Fd), peer: impl FnOnce(Fd)) {
    let place = a.listen();
    if a.side == side {
        let child = a.child("heir", || {
            let s = a.pair(&place);
            // The other side may have to see it on the ring.
            assert_eq!(a.hear(), "paired");
            heir(s);
        });
        a.note("heir", wait_for(child));
    } else {
        let s = a.pair(&place);
        a.tell("paired");
        peer(s);
        socket::close(s);
    }
    a.meet();
}

fn become_echo(s: Fd) {
    process::exec(&[&program(), "--helper", "echo", &s.to_string()]).value("exec");
}

/// How an exchange waits for its answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum By {
    Receive,
    Poll,
    Level(Fd),
    Edge(Fd),
}

impl By {
    fn set_with(s: Fd, events: i32) -> Fd {
        let set = epoll_create();
        epoll_add(set, s, events, 7).value("ADD");
        set
    }

    /// Each of them for a stream of its own.
    fn one_of_all(which: usize, s: Fd) -> By {
        match which {
            0 => By::Receive,
            1 => By::Poll,
            2 => By::Level(By::set_with(s, libc::EPOLLIN)),
            _ => By::Edge(By::set_with(s, libc::EPOLLIN | libc::EPOLLET)),
        }
    }

    fn name(self) -> &'static str {
        match self {
            By::Receive => "recv",
            By::Poll => "poll",
            By::Level(_) => "epoll",
            By::Edge(_) => "edge",
        }
    }

    /// Until there is something to receive, if that is not the receive's own business.
    fn wait(self, s: Fd) -> bool {
        match self {
            By::Receive => true,
            By::Poll => wait::poll(&[(s, libc::POLLIN)], 10_000).0 == Got::Value(1),
            By::Level(set) | By::Edge(set) => epoll_wait(set, 4, 10_000).events.len() == 1,
        }
    }

    fn answer(self, s: Fd, len: usize) -> String {
        let mut text = String::new();
        let mut room = vec![0; len];
        while text.len() < len && self.wait(s) {
            // Up to EAGAIN, as an edge wants it; a receive that waits gives what there is.
            let flags = if self == By::Receive { 0 } else { libc::MSG_DONTWAIT };
            loop {
                match io::recv(s, &mut room, flags) {
                    Got::Errno(libc::EAGAIN) if self == By::Receive => {
                        wait::poll(&[(s, libc::POLLIN)], 10_000);
                    }
                    Got::Errno(libc::EAGAIN) => break,
                    got => match got.count() {
                        None | Some(0) => return format!("{text}, then {got}"),
                        Some(count) => text.push_str(&String::from_utf8_lossy(&room[..count])),
                    },
                }
                if self == By::Receive {
                    break;
                }
            }
        }
        text
    }
}

/// Exchanges with an echo until the stream is on a ring both ways.
fn until_on_a_ring(a: &Actor, s: Fd, by: By) -> String {
    for round in 1..=ROUNDS_MAX {
        io::send(s, b"pingping", 0).value("ping");
        let answer = by.answer(s, 8);
        if answer != "pingping" {
            return format!("answered {answer:?}");
        }
        if round % 16 == 0 && a.is_on_ring(s) {
            return "on a ring".to_owned();
        }
    }
    a.note(crate::actor::WARM_UP, "not on a ring again");
    "not on a ring".to_owned()
}

fn note_until_on_a_ring(a: &Actor, s: Fd) {
    a.note("again", until_on_a_ring(a, s, By::Receive));
}

fn becomes_another_program(a: &Actor, side: Side) {
    const UNREAD: usize = 30_000;
    with_heir(
        a,
        side,
        |s| {
            a.note("heard", receive_text(s, 4));
            a.note("sent", send_all(s, 2, UNREAD, 3000));
            become_echo(s);
        },
        |s| {
            io::send(s, b"word", 0).value("send");
            a.note("sent", send_all(s, 1, UNREAD, 3000));
            a.note("received", receive(s, 2, UNREAD, 700));
            a.note("echoed", receive(s, 1, UNREAD, 4000));
            note_until_on_a_ring(a, s);
            std::thread::scope(|scope| {
                a.thread(scope, "writer", || a.note("sent", send_all(s, 3, 300_000, 10_000)));
                a.note("echoed", receive(s, 3, 300_000, 10_000));
            });
            a.note("shutdown", socket::shutdown(s, libc::SHUT_WR));
            a.note("the end", receive_to_end(s, 4));
        },
    );
}

fn a_server_that_becomes_another_program_comes_to_a_ring_again(a: &Actor) {
    becomes_another_program(a, Server);
}

fn a_client_that_becomes_another_program_comes_to_a_ring_again(a: &Actor) {
    becomes_another_program(a, Client);
}

fn a_peer_asleep_in_any_call_hears_of_the_new_program(a: &Actor) {
    let heir = |s: Fd| {
        assert_eq!(a.hear(), "asleep");
        let fd = s.to_string();
        process::exec(&[&program(), "--helper", "speak", &fd]).value("exec");
    };
    for which in 0..4 {
        with_heir(a, Server, heir, |s| {
            let by = By::one_of_all(which, s);
            let (own, thread) = (process::pid(), process::thread_id());
            std::thread::scope(|scope| {
                a.thread(scope, "watcher", || {
                    a.until_asleep(own, thread);
                    a.tell("asleep");
                });
                a.note(format!("{} hears", by.name()), by.answer(s, 5));
            });
            a.note(by.name(), until_on_a_ring(a, s, by));
        });
    }
}

fn a_peer_that_reads_in_one_thread_and_writes_in_another_goes_on(a: &Actor) {
    const TOTAL: usize = 2_000_000;
    with_heir(a, Client, become_echo, |s| {
        std::thread::scope(|scope| {
            a.thread(scope, "writer", || a.note("sent", send_all(s, 5, TOTAL, 1000)));
            a.note("echoed", receive(s, 5, TOTAL, 8000));
        });
        note_until_on_a_ring(a, s);
    });
}

fn a_chain_of_programs_keeps_its_stream(a: &Actor) {
    let heir = |s: Fd| helpers::hop(s, 3);
    with_heir(a, Server, heir, |s| {
        for number in 0..3 {
            a.note(format!("program {number}"), until_on_a_ring(a, s, By::Receive));
            io::send(s, b"nextnext", 0).value("send");
        }
        note_until_on_a_ring(a, s);
    });
}

fn a_stream_that_is_shut_down_goes_on_in_the_next_program(a: &Actor) {
    with_heir(
        a,
        Server,
        |s| {
            a.note("heard", receive_text(s, 4));
            become_echo(s);
        },
        |s| {
            io::send(s, b"wordmore", 0).value("send");
            a.note("shutdown", socket::shutdown(s, libc::SHUT_WR));
            a.note("echoed", receive_text(s, 100));
        },
    );
    with_heir(
        a,
        Client,
        |s| {
            a.note("heard", receive_text(s, 4));
            io::send(s, b"last", 0).value("send");
            a.note("shutdown", socket::shutdown(s, libc::SHUT_WR));
            helpers::become_checker(s, 6, 0);
        },
        |s| {
            io::send(s, b"word", 0).value("send");
            a.note("received", receive_text(s, 100));
            a.note("sent", send_all(s, 6, 100_000, 1000));
        },
    );
}

fn a_stream_that_a_child_keeps_goes_on_in_the_next_program(a: &Actor) {
    with_heir(
        a,
        Server,
        |s| {
            let (heard, say) = socket::pipe();
            a.child("holder", || {
                io::write(say, b"h").value("a word");
                // Only the parent's end, which comes with the stream's, takes it away.
                wait::poll(&[], 15_000);
            });
            io::read(heard, &mut [0]);
            become_echo(s);
        },
        |s| {
            for _ in 0..300 {
                io::send(s, b"pingping", 0).value("ping");
                assert_eq!(receive_text(s, 8), "pingping");
            }
            a.note("shutdown", socket::shutdown(s, libc::SHUT_WR));
            a.note("the end", receive_text(s, 1));
        },
    );
}

fn a_stream_that_a_child_had_comes_to_a_ring_again(a: &Actor) {
    with_heir(
        a,
        Client,
        |s| {
            let child = a.child("child", || _ = socket::close(s));
            wait_for(child);
            become_echo(s);
        },
        |s| note_until_on_a_ring(a, s),
    );
}

fn a_detour_by_a_program_without_the_library_keeps_the_stream(a: &Actor) {
    let heir = |s: Fd| helpers::detour(s);
    with_heir(a, Server, heir, |s| {
        for _ in 0..300 {
            io::send(s, b"pingping", 0).value("ping");
            assert_eq!(receive_text(s, 8), "pingping");
        }
        if a.carrier == Carrier::Ring {
            a.note("on TCP", a.has_left(s, "peer_not_found"));
        }
    });
}

fn a_stream_of_two_numbers_comes_to_a_ring_again(a: &Actor) {
    with_heir(
        a,
        Server,
        |s| {
            let other = socket::dup(s).fd("dup");
            io::send(s, b"one", 0).value("send");
            become_echo(other);
        },
        |s| {
            a.note("received", receive_text(s, 3));
            note_until_on_a_ring(a, s);
        },
    );
}

fn a_set_that_is_kept_tells_the_next_program(a: &Actor) {
    with_heir(
        a,
        Server,
        |s| {
            let set = By::set_with(s, libc::EPOLLIN);
            socket::fcntl(set, libc::F_SETFD, 0).value("F_SETFD");
            process::exec(&[&program(), "--helper", "watch-all", &set.to_string(), &s.to_string()])
                .value("exec");
        },
        |s| {
            for _ in 0..300 {
                io::send(s, b"pingping", 0).value("ping");
                assert_eq!(receive_text(s, 8), "pingping");
            }
        },
    );
}

fn many_streams_of_one_program_come_to_rings_again(a: &Actor) {
    const STREAMS: usize = 12;
    let place = a.listen();
    let pairs = || (0..STREAMS).map(|_| a.pair(&place)).collect::<Vec<Fd>>();
    if a.is_client() {
        let all = pairs();
        a.tell("paired");
        for (number, s) in all.iter().enumerate() {
            a.note(format!("stream {number}"), until_on_a_ring(a, *s, By::Poll));
            // The program goes on with the next.
            a.note("shutdown", socket::shutdown(*s, libc::SHUT_WR));
        }
        all.into_iter().for_each(|s| a.note("the end", receive_text(s, 1)));
    } else {
        let child = a.child("heir", || {
            let fds: Vec<String> = pairs().iter().map(Fd::to_string).collect();
            assert_eq!(a.hear(), "paired");
            let program = program();
            let mut words = vec![program.as_str(), "--helper", "echo-each"];
            words.extend(fds.iter().map(String::as_str));
            process::exec(&words).value("exec");
        });
        a.note("heir", wait_for(child));
    }
    a.meet();
}

/// Of TCP_INFO: what was received, and what was sent, but for what the kernel sent again.
fn counted(s: Fd) -> [u64; 2] {
    let info = socket::getsockopt(s, libc::IPPROTO_TCP, libc::TCP_INFO, 248).1;
    let number = |at: usize| u64::from_ne_bytes(info[at..at + 8].try_into().expect("8 bytes"));
    [number(128), number(200) - number(208)]
}

fn what_the_kernel_counts_goes_on_behind_the_next_program(a: &Actor) {
    let heir = |s: Fd| helpers::hop(s, 1);
    with_heir(a, Client, heir, |s| {
        let before = counted(s);
        let mut exchanged = 0;
        let mut exchange = |word: &[u8; 8]| {
            io::send(s, word, 0).value("send");
            exchanged += 8;
        };
        for told_to_go_on in [false, true] {
            for _ in 0..400 {
                exchange(b"pingping");
                assert_eq!(receive_text(s, 8), "pingping");
            }
            if !told_to_go_on {
                exchange(b"nextnext");
            }
        }
        let since = |which: usize| counted(s)[which] - before[which];
        a.note("received too much", since(0) as i64 - exchanged as i64 + 8);
        a.note("sent too much", since(1) as i64 - exchanged as i64);
    });
}

fn an_exec_that_fails_keeps_the_stream(a: &Actor) {
    with_heir(
        a,
        Server,
        |s| {
            a.note("exec", process::exec(&["/no/such/program"]));
            let huge = "x".repeat(1 << 18);
            a.note("exec", process::exec(&[&program(), &huge]));
            let mut room = [0; 8];
            while let Some(1..) = io::recv(s, &mut room, 0).count() {
                write_all(s, &room).expect("room for it");
                if &room == b"nextnext" {
                    break;
                }
            }
            become_echo(s);
        },
        |s| {
            for word in [b"pingping", b"nextnext"] {
                io::send(s, word, 0).value("ping");
                a.note("answer", receive_text(s, 8));
            }
            a.note("more", send_all(s, 8, 50_000, 500));
            a.note("echoed", receive(s, 8, 50_000, 5000));
        },
    );
}
