//! Rarer ways in which a stream goes to another program or process, or loses its number.

use super::processes::talk_to_an_echo;
use super::{scenarios, Scenario, Settings};
use crate::actor::Actor;
use crate::calls::process::{self, wait_for};
use crate::calls::socket::Address;
use crate::calls::successors::{self, By};
use crate::calls::{io, socket, stdio, wait, Fd};
use crate::pattern::{bytes, receive, receive_text, receive_to_end, send_all, write_all};

pub const ALL: &[Scenario] = scenarios![Settings::All;
    exec_of_a_static_program_goes_on,
    a_child_of_vfork_makes_the_stream_its_standard_input,
    a_process_that_becomes_a_daemon_keeps_its_stream,
    a_process_that_gives_up_its_rights_goes_on,
    a_process_in_another_root_goes_on,
    shells_started_by_rarer_functions_answer_on_the_stream,
    a_shell_of_popen_writes_to_the_stream,
    a_child_goes_on_when_its_parent_is_killed_with_bytes_both_ways,
    a_signal_interrupts_send_or_restarts_it,
    a_large_send_ends_with_a_handler_once_it_has_sent_some,
    a_killed_server_leaves_the_shared_port_to_the_others,
    numbers_closed_in_every_way_are_streams_again,
    a_range_that_closes_on_exec_ends_the_stream_there,
    a_range_closed_in_a_table_of_its_own_closes_the_stream,
    a_full_stream_to_a_stopped_peer_ends_in_time,
];

/// The client sends what the server has not read when it begins; the rest is an echo's.
fn leave_unread_to_an_echo(a: &Actor, s: Fd, server: impl FnOnce()) {
    a.client(|| {
        io::send(s, b"unread, ", 0).value("send");
    });
    let client = || {
        a.note("echo", receive_text(s, 8));
        talk_to_an_echo(a, s);
    };
    a.at_once(client, || {
        a.until_readable(s, 8);
        server();
    });
}

fn exec_of_a_static_program_goes_on(a: &Actor) {
    let s = a.stream();
    leave_unread_to_an_echo(a, s, || {
        let program = successors::static_echo();
        let child = a.child("echo", || {
            process::exec(&[&program, &s.to_string()]).value("exec");
        });
        socket::close(s);
        a.note("echo", wait_for(child));
        std::fs::remove_file(program).expect("our own file");
    });
}

fn a_child_of_vfork_makes_the_stream_its_standard_input(a: &Actor) {
    let s = a.stream();
    leave_unread_to_an_echo(a, s, || {
        let child = successors::vfork_cat(s);
        a.note("close", socket::close(s));
        a.note("cat", wait_for(child));
        // The child's numbers were its own.
        a.note("standard input", io::read(0, &mut [0; 1]));
    });
}

fn a_process_that_becomes_a_daemon_keeps_its_stream(a: &Actor) {
    let s = a.stream();
    a.at_once(
        || {
            let starter = a.child("daemon", || {
                a.note("unread", receive_text(s, 4));
                a.note("daemon", successors::daemon());
                process::alarm(18);
                a.note("sent", send_all(s, 1, 200_000, 10_000));
                a.note("received", receive_text(s, 2));
            });
            socket::close(s);
            a.note("starter", wait_for(starter));
        },
        || {
            io::send(s, b"more", 0).value("send");
            a.note("received", receive(s, 1, 200_000, 8000));
            io::send(s, b"ok", 0).value("send");
            a.note("the end", receive_text(s, 1));
        },
    );
}

/// The old stream goes on after the step, and a new one works.
fn after(a: &Actor, step: impl Fn()) {
    let place = a.listen();
    let s = a.pair(&place);
    a.at_once(
        || {
            let child = a.child("restricted", || {
                let other = a.connect(&place);
                step();
                a.note("unread", receive_text(s, 6));
                a.note("sent", send_all(s, 1, 300_000, 10_000));
                socket::close(other);
                let new = a.connect(&place);
                for _ in 0..40 {
                    io::send(new, b"question", 0).value("send");
                    assert_eq!(receive_text(new, 6), "answer");
                }
                a.note("sent", send_all(new, 2, 300_000, 10_000));
            });
            socket::close(s);
            a.note("child", wait_for(child));
        },
        || {
            io::send(s, b"unread", 0).value("send");
            let other = socket::accept(place.fd).fd("accept");
            a.note("received", receive(s, 1, 300_000, 10_000));
            socket::close(other);
            let new = socket::accept(place.fd).fd("accept");
            for _ in 0..40 {
                assert_eq!(receive_text(new, 8), "question");
                io::send(new, b"answer", 0).value("send");
            }
            a.note("received", receive_to_end(new, 2));
        },
    );
}

fn a_process_that_gives_up_its_rights_goes_on(a: &Actor) {
    const NOBODY: u32 = 65534;
    after(a, || {
        a.note("setgid", successors::setgid(NOBODY));
        a.note("setuid", successors::setuid(NOBODY));
    });
}

fn a_process_in_another_root_goes_on(a: &Actor) {
    after(a, || a.note("chroot", successors::chroot(c"/dev")));
}

fn shells_started_by_rarer_functions_answer_on_the_stream(a: &Actor) {
    let place = a.listen();
    for by in [By::Execveat, By::Fexecve, By::Execvpe] {
        let s = a.pair(&place);
        a.meet();
        a.at_once(
            || {
                io::send(s, b"hello\n", 0).value("send");
                a.note(format!("{by:?}"), receive_text(s, 100));
            },
            || {
                let child = a.child("shell", || {
                    socket::dup2(s, 0).value("dup2");
                    socket::dup2(s, 1).value("dup2");
                    socket::close(s);
                    successors::exec_shell(by, "read line; echo \"$line, back\"").value("exec");
                });
                socket::close(s);
                a.note("shell", wait_for(child));
            },
        );
    }
}

fn a_shell_of_popen_writes_to_the_stream(a: &Actor) {
    let s = a.stream();
    a.client(|| {
        io::send(s, b"a line\n", 0).value("send");
    });
    a.at_once(
        || {
            a.note("received", receive_text(s, 9));
            a.note("from the parent", receive_text(s, 6));
        },
        || {
            a.until_readable(s, 7);
            let low = socket::dup2(s, 9).fd("dup2");
            let said =
                successors::output_of(c"read line <&9; echo answered >&9; echo \"got $line\"");
            a.note("popen", said);
            a.note("send", io::send(low, b"parent", 0));
        },
    );
}

fn a_child_goes_on_when_its_parent_is_killed_with_bytes_both_ways(a: &Actor) {
    let s = a.stream();
    const HALF: usize = 20_000;
    // Both have bytes on their way that nobody reads before the kill.
    a.client(|| a.note("sent", write_all(s, &bytes(1, 0, HALF)).is_ok()));
    a.server(|| {
        let (told, tell) = socket::pipe();
        let parent = process::fork(|| {
            process::alarm(18);
            write_all(s, &bytes(2, 0, HALF)).expect("room for it");
            let (heard, say) = socket::pipe();
            let heir = a.child("heir", || {
                process::outlive_parent();
                io::write(say, b"h").value("a word");
                io::read(told, &mut [0]);
                let mut room = vec![0; 2 * HALF];
                a.note("recv", io::recv(s, &mut room, libc::MSG_WAITALL));
                a.note("right", room == bytes(1, 0, 2 * HALF));
                a.note("sent", write_all(s, &bytes(2, HALF as u64, HALF)).is_ok());
            });
            io::read(heard, &mut [0]);
            process::kill(process::pid(), libc::SIGKILL);
            heir
        });
        a.note("parent", wait_for(parent));
        socket::close(s);
        io::write(tell, b"t").value("a turn");
    });
    a.client(|| {
        a.note("sent", write_all(s, &bytes(1, HALF as u64, HALF)).is_ok());
        a.note("received", receive_to_end(s, 2));
    });
}

fn a_signal_interrupts_send_or_restarts_it(a: &Actor) {
    let s = a.stream();
    let sent = a.told_by_client(|| {
        socket::set_nonblocking(s, true);
        let block = bytes(3, 0, 64 << 20);
        let mut sent = 0;
        // What is full may have room again a little later.
        let mut full = 0;
        while full < 3 {
            while let Some(count) = io::send(s, &block[sent..], 0).count() {
                sent += count;
            }
            let has_room = wait::poll(&[(s, libc::POLLOUT)], 100).0.count() == Some(1);
            full = if has_room { 0 } else { full + 1 };
        }
        socket::set_nonblocking(s, false);
        wait::catch_signal(libc::SIGUSR1, 0);
        let next = &block[sent..sent + 1];
        a.note("without SA_RESTART", a.interrupted(|| io::send(s, next, 0)));
        a.note("write", a.interrupted(|| io::write(s, next)));
        sent as u64
    });
    a.at_once(
        || {
            wait::catch_signal(libc::SIGUSR1, libc::SA_RESTART);
            let (own, thread) = (process::pid(), process::thread_id());
            let next = bytes(3, sent, 1);
            std::thread::scope(|scope| {
                a.thread(scope, "signaller", || {
                    a.until_asleep(own, thread);
                    process::kill_thread(thread, libc::SIGUSR1).value("tgkill");
                    a.settle(|| wait::caught(libc::SIGUSR1) == 3);
                    a.tell("signalled");
                });
                a.note("SA_RESTART", io::send(s, &next, 0));
            });
            socket::close(s);
        },
        || {
            assert_eq!(a.hear(), "signalled");
            let wanted = format!("{} bytes right, then 0", sent + 1);
            a.note("received", receive_to_end(s, 3) == wanted);
        },
    );
}

fn a_large_send_ends_with_a_handler_once_it_has_sent_some(a: &Actor) {
    let s = a.stream();
    let sent = a.told_by_client(|| {
        let block = bytes(4, 0, 64 << 20);
        wait::catch_signal(libc::SIGUSR1, libc::SA_RESTART);
        // By then a full ring has been left for the kernel's buffer.
        let signal = |_, thread| {
            std::thread::sleep(std::time::Duration::from_millis(100));
            process::kill_thread(thread, libc::SIGUSR1).value("tgkill");
        };
        let got = a.once_asleep("signaller", signal, || io::send(s, &block, 0));
        let count = got.count().unwrap_or(0);
        a.note("some, not all", count > 0 && count < block.len());
        let next = io::send(s, &block[count..][..1], libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL);
        a.note("owes an error", !next.is(libc::EAGAIN) && next.count().is_none());
        a.note("SO_ERROR", socket::so_error(s));
        socket::close(s);
        (count + next.count().unwrap_or(0)) as u64
    });
    a.server(|| {
        a.note("received", receive_to_end(s, 4) == format!("{sent} bytes right, then 0"));
    });
}

fn a_killed_server_leaves_the_shared_port_to_the_others(a: &Actor) {
    let mut listeners = Vec::new();
    let port = a.told_by_server(|| {
        let mut port = 0;
        for _ in 0..2 {
            let domain =
                if a.family == socket::Family::V4 { libc::AF_INET } else { libc::AF_INET6 };
            let s = socket::socket(domain, libc::SOCK_STREAM).fd("socket");
            socket::set_int(s, libc::SOL_SOCKET, libc::SO_REUSEPORT, 1).value("SO_REUSEPORT");
            socket::bind(s, &Address::of_server(a.family, port)).value("bind");
            socket::listen(s, 20).value("listen");
            port = socket::getsockname(s).1.port();
            listeners.push(s);
        }
        u64::from(port)
    }) as u16;
    a.server(|| {
        let member = process::fork(|| {
            socket::close(listeners[0]);
            process::kill(process::pid(), libc::SIGKILL);
            1
        });
        a.note("close", socket::close(listeners[1]));
        a.note("member", wait_for(member));
    });
    for round in 0..6 {
        a.at_once(
            || {
                let s = a.tcp_socket();
                let address = Address::as_seen_by_client(a.family, port);
                a.note(format!("connect {round}"), socket::connect(s, &address));
                a.warm_as_client(s);
                a.note(format!("answer {round}"), receive_text(s, 5));
                socket::close(s);
            },
            || {
                let s = socket::accept(listeners[0]).fd("accept");
                a.warm_as_server(s);
                io::send(s, b"hello", 0).value("send");
                io::recv(s, &mut [0; 1], 0);
                socket::close(s);
            },
        );
    }
}

fn numbers_closed_in_every_way_are_streams_again(a: &Actor) {
    let place = a.listen();
    const NUMBER: Fd = 650;
    type Way = (&'static str, fn(Fd) -> bool);
    let ways: [Way; 4] = [
        ("close", |fd| socket::close(fd).count() == Some(0)),
        ("close_range", |fd| socket::close_range(fd, fd).count() == Some(0)),
        ("fclose", |fd| stdio::File::on(fd, "r+").close() == 0),
        ("dup2", |fd| socket::dup2(2, fd).count() == Some(fd as usize)),
    ];
    for (way, give_up) in ways {
        for round in 0..2 {
            let s = a.pair(&place);
            a.client(|| {
                socket::dup2(s, NUMBER).value("dup2");
                socket::close(s);
                a.note(format!("{way} {round}"), io::send(NUMBER, b"first", 0));
                a.note("given up", give_up(NUMBER));
            });
            a.server(|| a.note("received", receive_text(s, 100)));
            let t = a.pair(&place);
            a.client(|| {
                socket::dup2(t, NUMBER).value("dup2");
                socket::close(t);
                a.note("send", io::send(NUMBER, b"second", 0));
            });
            a.server(|| {
                a.note("received", receive_text(t, 6));
                a.note("answer", io::send(t, b"answer", 0));
            });
            a.client(|| {
                a.note("answer", receive_text(NUMBER, 6));
                socket::close(NUMBER);
            });
            a.server(|| a.note("the end", receive_text(t, 1)));
        }
    }
}

fn a_range_that_closes_on_exec_ends_the_stream_there(a: &Actor) {
    let s = a.stream();
    a.client(|| {
        let child = a.child("true", || {
            io::send(s, b"last", 0).value("send");
            a.note("range", successors::close_range(s, s, successors::CLOEXEC));
            a.note("still open", io::send(s, b"est", 0));
            process::exec(&["true"]).value("exec");
        });
        socket::close(s);
        a.note("true", wait_for(child));
    });
    a.server(|| a.note("received", receive_text(s, 100)));
}

fn a_range_closed_in_a_table_of_its_own_closes_the_stream(a: &Actor) {
    let s = a.stream();
    a.client(|| {
        a.note("send", io::send(s, b"bye", 0));
        a.note("range", successors::close_range(s, s, successors::UNSHARE));
        a.note("closed", io::send(s, b"x", 0));
    });
    a.server(|| a.note("received", receive_text(s, 100)));
}

fn a_full_stream_to_a_stopped_peer_ends_in_time(a: &Actor) {
    let s = a.stream();
    let reader = a.told_by_server(|| {
        let child = process::fork(|| {
            process::end_with_parent();
            process::stop();
            0
        });
        a.note("stopped", process::wait_until_stopped(child));
        socket::close(s);
        child as u64
    });
    a.client(|| {
        socket::set_int(s, libc::IPPROTO_TCP, libc::TCP_USER_TIMEOUT, 400).value("the option");
        let block = bytes(5, 0, 64 << 20);
        // Kernel TCP may find more room behind a send that was told of less.
        let mut all = 0;
        let told = loop {
            let sent = io::send(s, &block, libc::MSG_NOSIGNAL);
            match sent.count() {
                Some(count) => all += count,
                None => break sent,
            }
        };
        a.note("some, not all", all < block.len());
        a.note("told", told);
        a.note("then", io::send(s, b"x", libc::MSG_NOSIGNAL));
    });
    a.server(|| {
        process::kill(reader as i32, libc::SIGKILL);
        a.note("child", wait_for(reader as i32));
    });
}
