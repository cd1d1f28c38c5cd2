//! Calls around a stream that few programs make: signals for I/O, pipes and lists of requests, sets in
//! sets, limits, spawned programs, shared tables of descriptors.

use super::{scenarios, Scenario, Settings};
use crate::actor::Actor;
use crate::calls::process::{self, thread_id, wait_for};
use crate::calls::socket::{set_int, Address};
use crate::calls::unusual::{FileAction, Owner};
use crate::calls::{io, sandbox, socket, unusual, wait, Fd, Got};
use crate::pattern::{receive, receive_text, send_all};
use libc::{SIGIO, SIGURG};
use std::sync::atomic::{AtomicI32, AtomicUsize, Ordering::Relaxed};
use std::sync::mpsc::channel;

pub const ALL: &[Scenario] = scenarios![Settings::All;
    a_signal_tells_a_process_of_bytes,
    a_signal_of_its_own_tells_a_thread_of_bytes,
    a_signal_tells_a_group_of_bytes,
    a_signal_by_ioctl_tells_of_bytes_until_it_is_taken_back,
    a_signal_tells_of_an_urgent_byte,
    pipes_carry_both_ways_and_are_teed,
    a_list_of_requests_serves_two_streams,
    sendfile_from_files_that_are_no_plain_ones,
    a_set_without_a_place_for_events_keeps_them,
    one_of_many_exclusive_waiters_gets_a_byte,
    exclusive_processes_serve_every_client,
    sets_in_sets_in_sets_tell_and_wake,
    a_one_shot_is_armed_again_by_another_thread,
    select_over_numbers_beyond_its_size,
    a_tiny_limit_of_descriptors_leaves_streams_alone,
    a_huge_limit_of_descriptors_leaves_streams_alone,
    a_spawned_program_gets_a_copy_and_the_rest_is_closed,
    a_spawned_program_opens_over_a_stream,
    a_set_user_id_program_echoes,
    an_aborted_process_resets_its_peer,
    a_child_with_the_same_table_closes_for_both,
    a_child_with_the_same_table_uses_the_stream,
    a_handler_forks_in_the_middle_of_malloc,
    a_thread_in_strict_mode_reads_and_writes,
    another_network_namespace_takes_nothing_away,
];

const HOW_LONG_MS: i64 = 4000;

fn asynchronous(s: Fd, on: bool) -> Got {
    let flags = socket::fcntl(s, libc::F_GETFL, 0).value("F_GETFL") as i32;
    let wanted = if on { flags | libc::O_ASYNC } else { flags & !libc::O_ASYNC };
    socket::fcntl(s, libc::F_SETFL, wanted)
}

/// One byte from the client, and which signal the server is told by.
fn one_byte(a: &Actor, s: Fd, signal: i32) {
    a.client(|| a.note("send", io::send(s, b"x", 0)));
    a.server(|| {
        let told = unusual::take_signal(&[signal], HOW_LONG_MS).map(|(signal, _)| signal);
        a.note("told", format!("{told:?}"));
        a.note("received", receive_text(s, 1));
        while unusual::take_signal(&[signal], 0).is_some() {}
    });
}

fn a_signal_tells_a_process_of_bytes(a: &Actor) {
    wait::block_signals(&[SIGIO]);
    let s = a.stream();
    a.server(|| {
        a.note("owner", socket::fcntl(s, libc::F_SETOWN, process::pid()));
        a.note("on", asynchronous(s, true));
        let owner = socket::fcntl(s, libc::F_GETOWN, 0);
        a.note("it is", owner == Got::Value(i64::from(process::pid())));
    });
    for _ in 0..5 {
        one_byte(a, s, SIGIO);
    }
    a.server(|| a.note("off", asynchronous(s, false)));
    a.client(|| a.note("send", io::send(s, b"y", 0)));
    a.server(|| {
        a.until_readable(s, 1);
        a.note("not told", unusual::take_signal(&[SIGIO], 0).is_none());
        a.note("received", receive_text(s, 1));
    });
}

fn a_signal_of_its_own_tells_a_thread_of_bytes(a: &Actor) {
    let own = libc::SIGRTMIN() + 3;
    wait::block_signals(&[own]);
    let s = a.stream();
    a.at_once(
        || {
            a.meet();
            a.note("send", io::send(s, b"x", 0));
        },
        || {
            let (tell, id) = channel();
            std::thread::scope(|scope| {
                a.thread(scope, "told", move || {
                    tell.send(thread_id()).expect("the other thread listens");
                    let told = unusual::take_signal(&[own], HOW_LONG_MS);
                    a.note("told of", told == Some((own, s)));
                });
                let owner = Owner::Thread(id.recv().expect("a thread's number"));
                a.note("owner", unusual::set_owner(s, owner));
                a.note("signal", socket::fcntl(s, F_SETSIG, own));
                a.note("it is", socket::fcntl(s, F_GETSIG, 0) == Got::Value(i64::from(own)));
                a.note("on", asynchronous(s, true));
                a.meet();
            });
            a.note("received", receive_text(s, 1));
        },
    );
}

const F_SETSIG: i32 = 10;
const F_GETSIG: i32 = 11;

fn a_signal_tells_a_group_of_bytes(a: &Actor) {
    wait::block_signals(&[SIGIO]);
    let s = a.stream();
    a.server(|| {
        // The process is its group's first.
        a.note("owner", unusual::set_owner(s, Owner::Group(process::pid())));
        a.note("on", asynchronous(s, true));
        let owner = socket::fcntl(s, libc::F_GETOWN, 0);
        a.note("it is", owner == Got::Value(-i64::from(process::pid())));
    });
    one_byte(a, s, SIGIO);
    a.server(|| a.note("none", unusual::set_owner(s, Owner::Process(0))));
    a.client(|| a.note("send", io::send(s, b"y", 0)));
    a.server(|| {
        a.until_readable(s, 1);
        a.note("not told", unusual::take_signal(&[SIGIO], 0).is_none());
    });
}

fn a_signal_by_ioctl_tells_of_bytes_until_it_is_taken_back(a: &Actor) {
    const FIOSETOWN: libc::c_ulong = 0x8901;
    wait::block_signals(&[SIGIO]);
    let s = a.stream();
    a.server(|| {
        a.note("owner", socket::ioctl(s, FIOSETOWN, process::pid()).0);
        a.note("on", socket::ioctl(s, libc::FIOASYNC, 1).0);
    });
    one_byte(a, s, SIGIO);
    a.server(|| a.note("off", socket::ioctl(s, libc::FIOASYNC, 0).0));
    a.client(|| a.note("send", io::send(s, b"y", 0)));
    a.server(|| {
        a.until_readable(s, 1);
        a.note("not told", unusual::take_signal(&[SIGIO], 0).is_none());
    });
}

fn a_signal_tells_of_an_urgent_byte(a: &Actor) {
    wait::block_signals(&[SIGURG]);
    let s = a.stream();
    a.server(|| a.note("owner", socket::fcntl(s, libc::F_SETOWN, process::pid())));
    a.client(|| {
        a.note("send", io::send(s, b"normal", 0));
        a.note("urgent", io::send(s, b"!", libc::MSG_OOB));
    });
    a.server(|| {
        let told = unusual::take_signal(&[SIGURG], HOW_LONG_MS).map(|(signal, _)| signal);
        a.note("told", told == Some(SIGURG));
        a.note("received", receive_text(s, 6));
        let mut room = [0; 2];
        let got = io::recv(s, &mut room, libc::MSG_OOB);
        a.note("urgent", format!("{got} {}", room[0] as char));
    });
}

fn pipes_carry_both_ways_and_are_teed(a: &Actor) {
    let s = a.stream();
    let (out, into) = socket::pipe();
    let (copy_out, copy_into) = socket::pipe();
    let content = |out: Fd, count: usize| {
        let mut room = vec![0; count];
        let got = io::read(out, &mut room);
        format!("{got} {}", crate::pattern::describe(&room))
    };
    for round in 0..3 {
        a.client(|| {
            a.note(format!("round {round}: vmsplice"), unusual::vmsplice(into, b"out of memory"));
            a.note("tee", unusual::tee(out, copy_into, 13));
            a.note("splice", io::splice(out, s, 13, 0));
            a.note("the copy", content(copy_out, 13));
            a.note("send", io::send(s, b", then plain", 0));
        });
        a.server(|| {
            a.until_readable(s, 25);
            a.note("splice", io::splice(s, into, 13, 0));
            a.note("tee", unusual::tee(out, copy_into, 13));
            a.note("the first", content(out, 13));
            a.note("the copy", content(copy_out, 13));
            a.note("received", receive_text(s, 12));
            a.note("tee of a stream", unusual::tee(s, into, 4));
            a.note("vmsplice to a stream", unusual::vmsplice(s, b"no"));
            a.note("splice back", {
                io::write(into, b"back").value("write");
                io::splice(out, s, 4, libc::SPLICE_F_MORE)
            });
            a.note("send", io::send(s, b"!", 0));
        });
        a.client(|| a.note("back", receive_text(s, 5)));
    }
}

fn a_list_of_requests_serves_two_streams(a: &Actor) {
    let place = a.listen();
    let [s, t] = [(); 2].map(|()| a.pair(&place));
    a.client(|| {
        let writes: [(Fd, &[u8]); 2] = [(s, b"to one"), (t, b"to the other")];
        a.note("list", format!("{:?}", unusual::aio_list(&writes, &mut [])));
        a.note("then", io::send(s, b", then", 0));
    });
    a.server(|| {
        a.until_readable(s, 12);
        a.until_readable(t, 12);
        let (mut one, mut other) = ([0; 6], [0; 12]);
        let mut reads: [(Fd, &mut [u8]); 2] = [(s, &mut one), (t, &mut other)];
        a.note("list", format!("{:?}", unusual::aio_list(&[], &mut reads)));
        for room in [&one[..], &other] {
            a.note("read", crate::pattern::describe(room));
        }
        a.note("the rest", receive_text(s, 6));
    });
}

fn sendfile_from_files_that_are_no_plain_ones(a: &Actor) {
    for path in [c"/proc/version", c"/proc/sys/kernel/ostype", c"/dev/zero", c"/dev/null", c"/proc"]
    {
        let s = a.stream();
        let count = a.told_by_client(|| {
            let file = unusual::open(path);
            let at_once = unusual::sendfile_on(s, file, 10);
            a.note(format!("{path:?}"), at_once);
            let then = unusual::sendfile_on(s, file, 7);
            a.note("then", then);
            let (at, offset) = io::sendfile(s, file, 3, 4);
            a.note("at 3", format!("{at} {offset}"));
            a.note("its place", io::lseek(file));
            socket::close(file);
            [at_once, then, at].iter().filter_map(|got| got.count()).sum::<usize>() as u64
        });
        a.client(|| a.note("send", io::send(s, b"the end", 0)));
        a.server(|| a.note("received", receive_text(s, count as usize + 7)));
        socket::close(s);
    }
}

fn a_set_without_a_place_for_events_keeps_them(a: &Actor) {
    let s = a.stream();
    let [level, edge, once] = [libc::EPOLLIN, libc::EPOLLET, libc::EPOLLONESHOT].map(|more| {
        let set = wait::epoll_create();
        wait::epoll_add(set, s, libc::EPOLLIN | more, 1).value("ADD");
        set
    });
    a.server(|| {
        for (what, set) in [("level", level), ("edge", edge), ("once", once)] {
            a.note(format!("{what}: nothing"), unusual::epoll_wait_nowhere(set));
        }
    });
    a.client(|| a.note("send", io::send(s, b"x", 0)));
    a.server(|| {
        a.until_readable(s, 1);
        for (what, set) in [("level", level), ("edge", edge), ("once", once)] {
            a.note(format!("{what}: something"), unusual::epoll_wait_nowhere(set));
            a.note("kept", wait::epoll_wait(set, 4, 1000).said());
            a.note("again", wait::epoll_wait(set, 4, 0).said());
        }
    });
}

fn one_of_many_exclusive_waiters_gets_a_byte(a: &Actor) {
    let s = a.stream();
    a.at_once(
        || {
            a.meet();
            for _ in 0..10 {
                a.note("send", io::send(s, b"x", 0));
                assert_eq!(receive_text(s, 1), "y");
            }
            a.note("shutdown", socket::shutdown(s, libc::SHUT_WR));
        },
        || {
            let got = AtomicUsize::new(0);
            std::thread::scope(|scope| {
                for thread in 0..4 {
                    let got = &got;
                    a.thread(scope, &format!("{thread}"), move || {
                        let set = wait::epoll_create();
                        let events = libc::EPOLLIN | libc::EPOLLEXCLUSIVE;
                        wait::epoll_add(set, s, events, 1).value("ADD");
                        loop {
                            let told = wait::epoll_wait(set, 1, 15_000);
                            assert_eq!(told.got, Got::Value(1), "somebody is to be told");
                            match io::recv(s, &mut [0], libc::MSG_DONTWAIT) {
                                Got::Value(0) => break,
                                Got::Value(_) => {
                                    got.fetch_add(1, Relaxed);
                                    io::send(s, b"y", 0).value("send");
                                }
                                other => assert_eq!(other, Got::Errno(libc::EAGAIN)),
                            }
                        }
                    });
                }
                a.meet();
            });
            a.note("bytes", got.load(Relaxed));
        },
    );
}

fn exclusive_processes_serve_every_client(a: &Actor) {
    let place = a.listen();
    const CLIENTS: usize = 24;
    a.at_once(
        || {
            for _ in 0..CLIENTS {
                let s = a.connect(&place);
                a.warm_as_client(s);
                io::send(s, b"who?", 0).value("send");
                assert_eq!(receive_text(s, 3), "me!");
                socket::close(s);
            }
            a.note("served", CLIENTS);
        },
        || {
            socket::set_nonblocking(place.fd, true);
            let (out, into) = socket::pipe();
            let (enough_out, enough_into) = socket::pipe();
            let workers = [(); 3].map(|()| {
                process::fork(|| {
                    process::end_with_parent();
                    let set = wait::epoll_create();
                    let events = libc::EPOLLIN | libc::EPOLLEXCLUSIVE;
                    wait::epoll_add(set, place.fd, events, 1).value("ADD");
                    wait::epoll_add(set, enough_out, libc::EPOLLIN, 2).value("ADD");
                    loop {
                        let told = wait::epoll_wait(set, 1, 15_000).events;
                        if told.first().is_none_or(|(_, data)| *data == 2) {
                            return 0;
                        }
                        let Some(s) = socket::accept(place.fd).count() else { continue };
                        let s = s as Fd;
                        a.warm_as_server(s);
                        assert_eq!(receive_text(s, 4), "who?");
                        io::send(s, b"me!", 0).value("send");
                        receive_text(s, 1);
                        socket::close(s);
                        io::write(into, b"c").value("write");
                    }
                })
            });
            for _ in 0..CLIENTS {
                io::read(out, &mut [0]).value("read");
            }
            io::write(enough_into, b"enough").value("write");
            for worker in workers {
                a.note("worker", wait_for(worker));
            }
        },
    );
}

fn sets_in_sets_in_sets_tell_and_wake(a: &Actor) {
    let s = a.stream();
    let sets = [(); 3].map(|()| wait::epoll_create());
    let events = libc::EPOLLIN;
    wait::epoll_add(sets[0], s, events, 1).value("ADD");
    wait::epoll_add(sets[1], sets[0], events, 2).value("ADD");
    wait::epoll_add(sets[2], sets[1], events | libc::EPOLLET, 3).value("ADD");
    a.note("nothing", wait::epoll_wait(sets[2], 4, 0).said());
    a.meet();
    a.at_once(
        || {
            for _ in 0..10 {
                a.meet();
                io::send(s, b"x", 0).value("send");
                a.meet();
            }
        },
        || {
            for round in 0..10 {
                a.meet();
                let said = wait::epoll_wait(sets[2], 4, 10_000).said();
                a.note(format!("round {round}"), said);
                a.note("poll", wait::mask(wait::poll(&[(sets[1], libc::POLLIN)], 0).1[0]));
                a.note("within", wait::epoll_wait(sets[1], 4, 0).said());
                a.note("innermost", wait::epoll_wait(sets[0], 4, 0).said());
                a.note("received", receive_text(s, 1));
                a.note("afterwards", wait::epoll_wait(sets[0], 4, 0).said());
                a.note("poll", wait::mask(wait::poll(&[(sets[2], libc::POLLIN)], 0).1[0]));
                a.meet();
            }
        },
    );
}

fn a_one_shot_is_armed_again_by_another_thread(a: &Actor) {
    let s = a.stream();
    let shot = libc::EPOLLIN | libc::EPOLLONESHOT;
    a.at_once(
        || {
            for _ in 0..10 {
                a.meet();
                io::send(s, b"x", 0).value("send");
            }
        },
        || {
            let set = wait::epoll_create();
            wait::epoll_add(set, s, shot, 1).value("ADD");
            for round in 0..10 {
                a.meet();
                a.note(format!("round {round}"), wait::epoll_wait(set, 4, 10_000).said());
                a.note("once", wait::epoll_wait(set, 4, 0).said());
                let wait = || a.note("woken", wait::epoll_wait(set, 4, 10_000).said());
                a.beside_a_sleeper(wait, || a.note("armed", wait::epoll_mod(set, s, shot, 2)));
                a.note("received", receive_text(s, 1));
                a.note("armed", wait::epoll_mod(set, s, shot, 1));
            }
        },
    );
}

fn select_over_numbers_beyond_its_size(a: &Actor) {
    let s = a.stream();
    a.server(|| {
        a.note("limit", process::limit_descriptors(3000));
        for number in [1023, 1024, 1500, 2999] {
            a.note(format!("number {number}"), socket::dup2(s, number));
            let (got, is) = unusual::select_beyond(&[s, number], 3000, 0);
            a.note("nothing", format!("{got} {is:?}"));
        }
    });
    a.client(|| a.note("send", io::send(s, b"x", 0)));
    a.server(|| {
        for number in [1023, 1024, 1500, 2999] {
            let (got, is) = unusual::select_beyond(&[s, number], 3000, 4000);
            a.note(format!("number {number}"), format!("{got} {is:?}"));
        }
        let (got, _) = unusual::select_beyond(&[s, 1700], 3000, 0);
        a.note("closed", got);
        a.note("received", receive_text(2999, 1));
    });
}

fn talk(a: &Actor, s: Fd) {
    a.at_once(
        || a.note("sent", send_all(s, 1, 300_000, 30_000)),
        || a.note("received", receive(s, 1, 300_000, 30_000)),
    );
    a.at_once(
        || a.note("received", receive(s, 2, 300_000, 30_000)),
        || a.note("sent", send_all(s, 2, 300_000, 30_000)),
    );
}

/// Connects without looking at the carrier: there may be no number left for one.
fn another_stream(a: &Actor) -> Fd {
    let place = a.listen();
    let s = a.new_stream(&place);
    a.meet();
    if place.fd >= 0 {
        socket::close(place.fd);
    }
    s
}

fn a_tiny_limit_of_descriptors_leaves_streams_alone(a: &Actor) {
    let s = a.stream();
    a.note("limit", process::limit_descriptors(12));
    talk(a, s);
    let t = another_stream(a);
    talk(a, t);
    let set = wait::epoll_create();
    a.note("ADD", wait::epoll_add(set, t, libc::EPOLLIN, 1));
    let copies = (0..20).filter(|_| socket::dup(t).count().is_some()).count();
    a.note("numbers left", copies);
    a.note("one more", socket::dup(t));
    a.meet();
    a.client(|| a.note("send", io::send(t, b"x", 0)));
    a.server(|| a.note("told", wait::epoll_wait(set, 4, 4000).said()));
    talk(a, s);
}

fn a_huge_limit_of_descriptors_leaves_streams_alone(a: &Actor) {
    a.note("limit", unusual::limit_of_descriptors(1 << 20));
    let s = a.stream();
    talk(a, s);
    a.note("high", socket::dup2(s, (1 << 20) - 1));
    a.note("limit", process::limit_descriptors(100));
    talk(a, (1 << 20) - 1);
    let t = another_stream(a);
    talk(a, t);
}

fn a_spawned_program_gets_a_copy_and_the_rest_is_closed(a: &Actor) {
    let s = a.stream();
    a.client(|| a.note("send", io::send(s, b"a line\n", 0)));
    a.server(|| {
        a.until_readable(s, 7);
        let actions = [FileAction::Dup(s, 0), FileAction::Dup(s, 9), FileAction::CloseFrom(10)];
        let script = "read line; echo \"got $line\" >&9; ls /proc/self/fd | wc -l >&9";
        match unusual::spawn_shell(script, &actions) {
            Ok(child) => a.note("shell", wait_for(child)),
            Err(error) => a.note("spawn", error),
        }
        a.note("send", io::send(s, b"from the parent", 0));
    });
    a.client(|| {
        a.note("received", receive_text(s, 11));
        // How many it has open depends on the shell; a number and the end of its line.
        let mut count = String::new();
        while !count.ends_with("\\n") {
            count.push_str(&receive_text(s, 1));
        }
        a.note(
            "few are open",
            count.trim_end_matches("\\n").trim().parse::<u32>().is_ok_and(|n| n < 10),
        );
        a.note("received", receive_text(s, 15));
    });
}

fn a_spawned_program_opens_over_a_stream(a: &Actor) {
    let s = a.stream();
    a.server(|| {
        let low = socket::dup2(s, 9).fd("dup2");
        let actions = [FileAction::Open(low, c"/dev/null"), FileAction::Close(s)];
        match unusual::spawn_shell("echo lost >&9; exit 3", &actions) {
            Ok(child) => a.note("shell", wait_for(child)),
            Err(error) => a.note("spawn", error),
        }
        let actions = [FileAction::Close(low), FileAction::Dup(s, 1), FileAction::Close(s)];
        match unusual::spawn_shell("echo kept; echo refused >&9; exit 4", &actions) {
            Ok(child) => a.note("shell", wait_for(child)),
            Err(error) => a.note("spawn", error),
        }
        a.note(
            "bad",
            match unusual::spawn_shell("exit 5", &[FileAction::Dup(4000, 1)]) {
                Ok(child) => wait_for(child),
                Err(error) => error.to_string(),
            },
        );
        a.note("send", io::send(low, b"from the parent", 0));
    });
    a.client(|| a.note("received", receive_text(s, 20)));
}

/// This program once more, as another user's: no library is loaded into it.
fn a_set_user_id_program_echoes(a: &Actor) {
    use std::os::unix::fs::{chown, PermissionsExt};
    let s = a.stream();
    let path = std::env::temp_dir().join(format!("shunt-set-user-id-{}", process::pid()));
    a.client(|| a.note("send", io::send(s, b"before, ", 0)));
    a.server(|| {
        a.until_readable(s, 8);
        let made = std::fs::copy(crate::helpers::program(), &path).is_ok()
            && chown(&path, Some(65_534), None).is_ok()
            && std::fs::set_permissions(&path, PermissionsExt::from_mode(0o4755)).is_ok();
        a.note("made", made);
    });
    let stream = s.to_string();
    a.at_once(
        || {
            a.note("send", io::send(s, b"during", 0));
            a.note("echo", receive_text(s, 14));
            a.note("shutdown", socket::shutdown(s, libc::SHUT_WR));
            a.note("the end", receive_text(s, 1));
        },
        || {
            let child = a.child("becomes another", || {
                let path = path.display().to_string();
                process::exec(&[&path, "--helper", "echo", &stream]).value("exec");
            });
            socket::close(s);
            a.note("child", wait_for(child));
            let _ = std::fs::remove_file(&path);
        },
    );
}

fn an_aborted_process_resets_its_peer(a: &Actor) {
    let place = a.listen();
    a.at_once(
        || {
            let s = a.connect(&place);
            a.warm_as_client(s);
            a.note("send", io::send(s, b"never read", 0));
            a.meet();
            a.until(s, libc::POLLERR | libc::POLLHUP);
            a.note("recv", io::recv(s, &mut [0; 4], 0));
            a.note("send", io::send(s, b"x", libc::MSG_NOSIGNAL));
        },
        || {
            let (out, into) = socket::pipe();
            let child = a.child("aborts", || {
                unusual::leave_no_core();
                let s = socket::accept(place.fd).fd("accept");
                a.warm_as_server(s);
                a.until_readable(s, 10);
                io::read(out, &mut [0]).value("read");
                std::process::abort();
            });
            a.meet();
            io::write(into, b"g").value("write");
            a.note("child", wait_for(child));
        },
    );
}

extern "C" fn close_it(fd: *mut libc::c_void) -> i32 {
    i32::from(socket::close(fd as usize as Fd) != Got::Value(0))
}

fn a_child_with_the_same_table_closes_for_both(a: &Actor) {
    let s = a.stream();
    a.client(|| a.note("send", io::send(s, b"unread", 0)));
    a.server(|| {
        a.until_readable(s, 6);
        a.note("child", wait_for(unusual::clone_with_files(close_it, s)));
        a.note("send", io::send(s, b"x", libc::MSG_NOSIGNAL));
        a.note("receive", io::recv(s, &mut [0; 4], libc::MSG_DONTWAIT));
        a.note("close", socket::close(s));
        let reused = socket::memfd();
        a.note("its number is used again", reused == s);
        a.note("write", io::write(reused, b"to a file"));
    });
    a.client(|| {
        a.until(s, libc::POLLERR | libc::POLLHUP);
        a.note("the end", io::recv(s, &mut [0; 4], 0));
    });
}

extern "C" fn answer_it(fd: *mut libc::c_void) -> i32 {
    let s = fd as usize as Fd;
    let mut room = [0; 3];
    let got = io::recv(s, &mut room, libc::MSG_WAITALL);
    i32::from(got != Got::Value(3) || io::send(s, b"yes", 0) != Got::Value(3))
}

fn a_child_with_the_same_table_uses_the_stream(a: &Actor) {
    let s = a.stream();
    a.at_once(
        || {
            a.note("send", io::send(s, b"one", 0));
            a.note("answer", receive_text(s, 3));
            a.note("send", io::send(s, b"two", 0));
            a.note("answer", receive_text(s, 3));
        },
        || {
            a.note("child", wait_for(unusual::clone_with_files(answer_it, s)));
            a.note("parent", answer_it(s as usize as *mut _));
        },
    );
}

static FORKED: AtomicUsize = AtomicUsize::new(0);
static FAILED: AtomicI32 = AtomicI32::new(0);

extern "C" fn fork_here(_signal: i32) {
    let child = process::fork_plainly();
    match child {
        0 => process::exit_now(0),
        child => {
            if process::wait_quietly(child) != 0 {
                FAILED.fetch_add(1, Relaxed);
            }
            FORKED.fetch_add(1, Relaxed);
        }
    }
    process::timer_again(700);
}

/// fork(2) may be called in a handler (signal-safety(7) of 2008), wherever malloc(3) happens to be.
fn a_handler_forks_in_the_middle_of_malloc(a: &Actor) {
    let s = a.stream();
    process::on_timer(fork_here, 700);
    let mut blocks = vec![Vec::new(); 32];
    for turn in 0.. {
        blocks[turn * 7 % 32] = vec![0u8; 2000 + turn * 37 % 60_000];
        if FORKED.load(Relaxed) >= 60 {
            break;
        }
    }
    process::no_timer();
    a.note("failed", FAILED.load(Relaxed));
    a.meet();
    talk(a, s);
}

fn a_thread_in_strict_mode_reads_and_writes(a: &Actor) {
    let place = a.listen();
    a.at_once(
        || {
            let s = a.connect(&place);
            a.warm_as_client(s);
            // Not before both are as the carrier asks for.
            a.note("begin", io::write(s, b"begin"));
            for _ in 0..2 {
                a.note("send", io::write(s, b"question"));
                a.note("answer", receive_text(s, 8));
            }
            a.note("the end", receive_text(s, 1));
        },
        || {
            let child = a.child("strict", || {
                let s = socket::accept(place.fd).fd("accept");
                a.warm_as_server(s);
                a.note("word", receive_text(s, 5));
                let (out, into) = socket::pipe();
                std::thread::scope(|scope| {
                    scope.spawn(move || serve_strictly(s, into));
                    let mut right = [0];
                    a.note("told", io::read(out, &mut right));
                    a.note("right", right[0]);
                    process::exit_now(0);
                });
            });
            a.note("child", wait_for(child));
        },
    );
}

/// A thread that ended in its usual way would call what is forbidden.
fn serve_strictly(s: Fd, into: Fd) {
    if unusual::strict_mode() != Got::Value(0) {
        return;
    }
    let mut right = 0u8;
    for _ in 0..2 {
        let mut room = [0; 8];
        let read = io::read(s, &mut room) == Got::Value(8) && &room == b"question";
        right += u8::from(read && io::write(s, b"answered") == Got::Value(8));
    }
    io::write(into, &[right]);
    unusual::exit_by_number(0);
}

fn another_network_namespace_takes_nothing_away(a: &Actor) {
    let s = a.stream();
    a.server(|| {
        let before = unusual::open(c"/proc/self/ns/net");
        a.note("unshare", sandbox::unshare(libc::CLONE_NEWNET));
        let place = a.tcp_socket();
        set_int(place, libc::SOL_SOCKET, libc::SO_REUSEADDR, 1).value("SO_REUSEADDR");
        a.note("listen", socket::listen(place, 4));
        a.note("nobody is there", {
            let there = Address::as_seen_by_client(a.family, 9);
            let got = socket::connect(a.tcp_socket(), &there);
            got.count().is_none()
        });
        a.note("setns", unusual::enter_namespace(before));
    });
    talk(a, s);
    let t = another_stream(a);
    talk(a, t);
}
