//! Several processes on one stream: fork, exec, spawn, passing, stopping and killing.

use super::{scenarios, Scenario, Settings};
use crate::actor::{Actor, Place};
use crate::calls::process::{self, wait_for};
use crate::calls::socket::set_int;
use crate::calls::{io, socket, wait, Fd, Got};
use crate::pattern::{receive, receive_text, receive_to_end, send_all};
use libc::{SOL_SOCKET, SO_SNDBUF};
use std::io::Read;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, Ordering::*};
use std::thread;
use std::time::Duration;

pub const ALL: &[Scenario] = scenarios![Settings::All;
    a_child_reads_while_its_parent_writes,
    a_child_writes_while_its_parent_reads,
    a_child_owns_the_stream_after_its_parent_closed_it,
    accept_then_fork_serves_many_clients,
    a_childs_bytes_come_behind_those_that_fill_its_parents_buffer,
    a_childs_bytes_come_behind_those_of_a_parent_that_has_closed,
    a_childs_bytes_come_behind_those_of_a_parent_that_ends,
    the_bytes_of_children_come_behind_those_of_a_parent_that_is_killed,
    however_a_parent_ends_its_bytes_and_its_end_come_first,
    a_child_uses_what_its_sibling_has_closed,
    a_grandchild_uses_what_a_child_took_to_the_ring,
    a_child_that_touches_nothing_disturbs_nothing,
    many_children_come_and_go_beside_live_streams,
    a_child_forked_under_load_disturbs_nothing,
    children_forked_beside_a_thread_that_wakes_its_peer_all_end,
    parent_and_child_take_turns_writing,
    parent_and_child_take_turns_reading,
    a_child_that_uses_the_stream_and_ends_leaves_it_whole,
    a_grandchild_carries_on,
    a_parent_that_dies_first_leaves_the_stream_to_its_child,
    closing_in_the_parent_is_no_end_while_a_child_holds_on,
    a_killed_child_leaves_the_stream_to_its_parent,
    a_child_decides_whether_its_parents_calls_wait,
    what_an_ended_child_has_set_is_the_streams,
    workers_share_a_listening_socket,
    a_child_forked_before_connect_connects_itself,
    vfork_and_exec_disturb_nothing,
    a_child_of_clone_without_a_threads_data_goes_its_way,
    a_child_of_clone_shares_the_stream,
    a_number_that_a_child_of_vfork_reuses_is_no_stream_to_it,
    posix_spawn_disturbs_nothing,
    system_disturbs_nothing,
    cat_echoes_as_standard_input_and_output,
    cat_spawned_with_file_actions_echoes,
    cat_spawned_with_a_descriptor_of_it_echoes,
    a_shell_spawned_with_a_descriptor_of_it_inherits_the_stream,
    cat_started_by_vfork_reads_what_was_not_read,
    a_shell_reads_lines_from_the_stream,
    exec_of_an_accelerated_program_goes_on,
    exec_of_a_program_without_the_library_goes_on,
    exec_with_close_on_exec_ends_the_stream,
    shells_started_by_lists_answer_on_the_stream,
    a_stream_that_an_ended_child_had_goes_to_the_ring,
    streams_that_began_beside_a_child_go_to_rings,
    unread_bytes_survive_exec,
    bytes_written_just_before_exec_arrive,
    a_stream_passed_to_a_child_goes_on,
    a_stream_passed_to_a_program_goes_on,
    a_stream_passed_to_a_program_without_the_library_goes_on,
    a_stream_passed_with_unread_bytes_keeps_them,
    a_daemon_keeps_its_connection,
    a_stopped_peer_fills_up_and_goes_on,
    a_stopped_reader_gets_everything_after,
    a_child_uses_the_stream_of_a_parent_that_stopped_itself,
    a_child_stops_its_parent_and_uses_the_stream,
    a_child_waits_by_the_set_of_a_parent_that_stopped_itself,
    both_sides_fork_at_once,
    a_child_of_a_process_without_a_free_descriptor_uses_the_stream,
    the_last_thread_to_end_ends_the_process,
    a_main_thread_that_ends_alone_ends_the_process,
    a_signal_sent_to_a_child_at_once_reaches_it,
    a_step_of_a_fork_waits_for_a_thread_that_makes_sets,
    steps_of_a_fork_fork_themselves,
    steps_of_a_fork_use_their_descriptors,
    signals_raised_in_steps_of_a_fork_are_handled_there,
];

fn question_and_answer(a: &Actor, s: Fd, what: &str) {
    a.client(|| {
        io::send(s, b"question", libc::MSG_NOSIGNAL);
    });
    a.server(|| {
        a.note(format!("{what}: question"), receive_text(s, 8));
        io::send(s, b"answer", libc::MSG_NOSIGNAL);
    });
    a.client(|| a.note(format!("{what}: answer"), receive_text(s, 6)));
}

fn a_child_reads_while_its_parent_writes(a: &Actor) {
    let s = a.stream();
    const TOTAL: usize = 2 << 20;
    a.at_once(
        || {
            let child = a.child("reader", || a.note("received", receive(s, 1, TOTAL, 50_000)));
            a.note("sent", send_all(s, 2, TOTAL, 50_000));
            a.note("child", wait_for(child));
        },
        || {
            std::thread::scope(|scope| {
                a.thread(scope, "writer", || a.note("sent", send_all(s, 1, TOTAL, 40_000)));
                a.note("received", receive(s, 2, TOTAL, 40_000));
            });
        },
    );
    question_and_answer(a, s, "afterwards");
}

fn a_child_writes_while_its_parent_reads(a: &Actor) {
    let s = a.stream();
    const TOTAL: usize = 1 << 20;
    a.at_once(
        || {
            a.note("sent", send_all(s, 1, TOTAL, 30_000));
            a.note("received", receive(s, 2, TOTAL, 30_000));
        },
        || {
            let child = a.child("writer", || a.note("sent", send_all(s, 2, TOTAL, 30_000)));
            a.note("received", receive(s, 1, TOTAL, 30_000));
            a.note("child", wait_for(child));
        },
    );
    question_and_answer(a, s, "afterwards");
}

fn a_child_owns_the_stream_after_its_parent_closed_it(a: &Actor) {
    let s = a.stream();
    const TOTAL: usize = 1 << 20;
    a.at_once(
        || {
            a.note("sent", send_all(s, 1, TOTAL, 30_000));
            a.note("received", receive_to_end(s, 2));
        },
        || {
            let child = a.child("owner", || {
                a.note("received", receive(s, 1, TOTAL, 30_000));
                a.note("sent", send_all(s, 2, TOTAL, 30_000));
            });
            a.note("close", socket::close(s));
            a.note("child", wait_for(child));
        },
    );
}

fn accept_then_fork_serves_many_clients(a: &Actor) {
    let place = a.listen();
    const CLIENTS: u64 = 12;
    a.at_once(
        || {
            for client in 0..CLIENTS {
                let s = a.connect(&place);
                a.warm_as_client(s);
                let sent = send_all(s, client, 100_000, 9000);
                let received = receive(s, client, 100_000, 9000);
                a.note(format!("client {client}"), format!("{sent}, {received}"));
                socket::close(s);
            }
        },
        || {
            let mut children = Vec::new();
            for client in 0..CLIENTS {
                let s = socket::accept(place.fd).fd("accept");
                children.push(a.child("server", || {
                    socket::close(place.fd);
                    a.warm_as_server(s);
                    assert_eq!(receive(s, client, 100_000, 9000), "100000 bytes right");
                    assert_eq!(send_all(s, client, 100_000, 9000), "100000 bytes sent");
                }));
                socket::close(s);
            }
            for child in children {
                a.note("child", wait_for(child));
            }
        },
    );
}

/// The ring has as much as it takes, and nobody reads before the child has sent, or waits for room.
fn a_childs_bytes_come_behind_those_that_fill_its_parents_buffer(a: &Actor) {
    fill_before_a_child(a, false);
}

fn a_childs_bytes_come_behind_those_of_a_parent_that_has_closed(a: &Actor) {
    fill_before_a_child(a, true);
}

fn fill_before_a_child(a: &Actor, closes: bool) {
    const CHILDS: &[u8] = b"child's";
    // With segments of 1000 bytes the kernel begins with a buffer that is smaller than a ring.
    for size in [None, Some(4000), Some(60_000), Some(200_000)] {
        let place = a.listen();
        a.server(|| {
            if size.is_none() {
                set_int(place.fd, libc::IPPROTO_TCP, libc::TCP_MAXSEG, 1000).value("TCP_MAXSEG");
            }
        });
        a.meet();
        let s = a.pair(&place);
        let about = |what: &str| format!("{size:?}: {what}");
        a.at_once(
            || {
                a.note(about("word"), io::send(s, b"word", 0));
                a.tell("word");
                assert_eq!(a.hear(), "full");
                let (mut all, mut room) = (Vec::new(), vec![0; 1 << 16]);
                let end = loop {
                    let got = io::recv(s, &mut room, 0);
                    let Some(count @ 1..) = got.count() else { break got };
                    all.extend_from_slice(&room[..count]);
                };
                a.note(about("end"), end);
                let filled = all.strip_suffix(CHILDS).unwrap_or_default();
                a.note(about("filled"), !filled.is_empty());
                a.note(about("its parent's first"), filled.iter().all(|byte| *byte == b'p'));
            },
            || {
                if let Some(size) = size {
                    a.note(about("set"), set_int(s, SOL_SOCKET, SO_SNDBUF, size));
                }
                assert_eq!(a.hear(), "word");
                let bytes = vec![b'p'; 1 << 16];
                while io::send(s, &bytes, libc::MSG_DONTWAIT).count().is_some() {}
                let child = a.child("child", || {
                    a.note(about("sent"), io::send(s, CHILDS, 0));
                    a.note(about("its word"), receive_text(s, 4));
                });
                let close = || a.note(about("close"), socket::close(s));
                a.until_at_rest(&[child]);
                if closes {
                    close();
                }
                a.tell("full");
                a.note(about("child"), wait_for(child));
                if !closes {
                    close();
                }
            },
        );
    }
}

fn a_childs_bytes_come_behind_those_of_a_parent_that_ends(a: &Actor) {
    write_beside_children(a, 1, false);
}

fn the_bytes_of_children_come_behind_those_of_a_parent_that_is_killed(a: &Actor) {
    write_beside_children(a, 3, true);
}

/// The reader is slow, so that the ring and the kernel's buffers are full by turns. Where the parent is killed, that is
/// before it reads anything.
fn write_beside_children(a: &Actor, children: usize, is_killed: bool) {
    const CHILDS: usize = 200_000;
    let place = a.listen();
    a.at_once(
        || {
            let s = a.connect(&place);
            a.warm_as_client(s);
            let (mut parents, mut childs, mut room) = (0, 0, vec![0; CHILDS]);
            let mut sent = None;
            if is_killed {
                sent = Some(a.hear());
                thread::sleep(Duration::from_millis(60));
            }
            let end = loop {
                let got = io::recv(s, &mut room, 0);
                let Some(count @ 1..) = got.count() else { break got };
                let others = room[..count].iter().filter(|byte| **byte == b'p').count();
                let first = room[..count].iter().position(|byte| *byte != b'p');
                assert!(others == 0 || childs == 0, "a parent's byte behind its child's");
                assert_eq!(first.unwrap_or(count), others, "in one piece");
                (parents, childs) = (parents + others, childs + count - others);
                thread::sleep(Duration::from_millis(10));
            };
            a.note("end", end);
            a.note("parent's", parents.to_string() == sent.unwrap_or_else(|| a.hear()));
            a.note("child's", childs);
        },
        || {
            let parent = a.child("parent", || {
                let s = socket::accept(place.fd).fd("accept");
                a.warm_as_server(s);
                let (bytes, mut sent) = (vec![b'p'; 9_000_000], 0);
                for _ in 0..20 {
                    let rest = &bytes[sent..];
                    sent += io::send(s, rest, libc::MSG_DONTWAIT).count().unwrap_or(0);
                    thread::sleep(Duration::from_millis(10));
                }
                a.tell(&sent.to_string());
                for _ in 0..children {
                    process::fork(|| {
                        process::alarm(18);
                        thread::sleep(Duration::from_millis(30));
                        i32::from(io::send(s, &[b'c'; CHILDS], 0).count() != Some(CHILDS))
                    });
                }
                if is_killed {
                    process::kill(process::pid(), libc::SIGKILL);
                }
            });
            a.note("parent", wait_for(parent));
        },
    );
}

/// How a parent ends that has a stream.
#[derive(Clone, Copy, Debug)]
enum Ending {
    Exits,
    IsKilled,
    BecomesAnother,
}

/// A parent that has sent so many bytes, which nobody reads for a while, and perhaps shut the stream down, ends. Its
/// child goes on then.
fn end_before_a_child(a: &Actor, place: &Place, bytes: usize, shuts: bool, ending: Ending) {
    let (parent_is_dead, dies) = std::io::pipe().expect("a pipe");
    let (child_has_ended, ends) = std::io::pipe().expect("a pipe");
    let is_told = |mut pipe: std::io::PipeReader| _ = pipe.read(&mut [0]);
    a.at_once(
        || {
            let s = a.connect(place);
            a.warm_as_client(s);
            assert_eq!(a.hear(), "ended");
            thread::sleep(Duration::from_millis(20));
            a.note("received", receive(s, 1, bytes, bytes));
            a.note("the child's", receive_to_end(s, 2));
            a.note("answer", io::send(s, b"answer", 0));
            a.note("end", io::recv(s, &mut [0; 8], 0));
            socket::close(s);
        },
        || {
            let parent = a.child("parent", || {
                let s = socket::accept(place.fd).fd("accept");
                socket::fcntl(s, libc::F_SETFD, libc::FD_CLOEXEC);
                a.warm_as_server(s);
                a.note("sent", send_all(s, 1, bytes, bytes));
                // This process has it to its end.
                let dies = dies;
                process::fork(|| {
                    process::alarm(18);
                    socket::close(dies.as_raw_fd());
                    is_told(parent_is_dead);
                    a.tell("ended");
                    match shuts {
                        true => a.note("send", io::send(s, b"behind", libc::MSG_NOSIGNAL)),
                        false => a.note("sent", send_all(s, 2, 1000, 1000)),
                    }
                    socket::shutdown(s, libc::SHUT_WR);
                    a.note("child got", receive_text(s, 6));
                    0
                });
                if shuts {
                    socket::shutdown(s, libc::SHUT_WR);
                }
                match ending {
                    Ending::Exits => {}
                    Ending::IsKilled => _ = process::kill(process::pid(), libc::SIGKILL),
                    Ending::BecomesAnother => {
                        process::exec_shell_by_list(process::ByList::Execl, c"/bin/sh", "exit 3");
                    }
                }
            });
            a.note(format!("parent that {ending:?}"), wait_for(parent));
            drop(ends);
            is_told(child_has_ended);
        },
    );
}

fn however_a_parent_ends_its_bytes_and_its_end_come_first(a: &Actor) {
    let place = a.listen();
    for ending in [Ending::Exits, Ending::IsKilled, Ending::BecomesAnother] {
        for shuts in [false, true] {
            end_before_a_child(a, &place, 300_000, shuts, ending);
        }
    }
}

/// A child that closes a stream that it has not used says nothing of where it is.
fn a_child_uses_what_its_sibling_has_closed(a: &Actor) {
    let place = a.listen();
    for execs in [false, true] {
        let s = a.pair(&place);
        a.at_once(
            || {
                a.note("sent", io::send(s, b"for the child", 0));
                a.note("received", receive_text(s, 11));
            },
            || {
                let sibling = a.child("sibling", || match execs {
                    false => _ = socket::close(s),
                    true => {
                        socket::fcntl(s, libc::F_SETFD, libc::FD_CLOEXEC);
                        process::exec_shell_by_list(process::ByList::Execl, c"/bin/sh", "exit 3");
                    }
                });
                a.note("sibling", wait_for(sibling));
                let child = a.child("child", || {
                    a.note("sent", io::send(s, b"the child's", 0));
                    a.note("received", receive_text(s, 13));
                });
                a.note("child", wait_for(child));
            },
        );
        socket::close(s);
    }
}

fn a_grandchild_uses_what_a_child_took_to_the_ring(a: &Actor) {
    let place = a.listen();
    a.at_once(
        || {
            let s = a.connect(&place);
            a.warm_as_client(s);
            a.note("fork now", io::send(s, b"fork", 0));
            a.note("sent", send_all(s, 1, 100_000, 9000));
            a.note("received", receive_to_end(s, 2));
        },
        || {
            let s = socket::accept(place.fd).fd("accept");
            let child = a.child("server", || {
                a.warm_as_server(s);
                a.note("told", receive_text(s, 4));
                let grandchild = a.child("its child", || {
                    a.note("received", receive(s, 1, 100_000, 9000));
                    a.note("sent", send_all(s, 2, 100_000, 9000));
                });
                a.note("grandchild", wait_for(grandchild));
            });
            socket::close(s);
            a.note("child", wait_for(child));
        },
    );
}

fn a_child_that_touches_nothing_disturbs_nothing(a: &Actor) {
    let s = a.stream();
    for side in ["client", "server"] {
        let forks = (side == "client") == a.is_client();
        if forks {
            let child = a.child("idle", || {});
            a.note("child", wait_for(child));
        }
        a.meet();
        question_and_answer(a, s, side);
    }
}

fn many_children_come_and_go_beside_live_streams(a: &Actor) {
    let place = a.listen();
    let streams: Vec<Fd> = (0..8).map(|_| a.pair(&place)).collect();
    for round in 0..10 {
        a.server(|| {
            let child = a.child("idle", || {});
            a.note("child", wait_for(child));
        });
        let s = streams[round % streams.len()];
        a.at_once(
            || assert_eq!(send_all(s, round as u64, 50_000, 5000), "50000 bytes sent"),
            || a.note("received", receive(s, round as u64, 50_000, 5000)),
        );
    }
}

fn a_child_forked_under_load_disturbs_nothing(a: &Actor) {
    let s = a.stream();
    const TOTAL: usize = 16 << 20;
    a.at_once(
        || a.note("sent", send_all(s, 1, TOTAL, 64_000)),
        || {
            std::thread::scope(|scope| {
                a.thread(scope, "reader", || a.note("received", receive(s, 1, TOTAL, 64_000)));
                for _ in 0..8 {
                    let child = process::fork(|| {
                        // Like a save to disk: memory is read, streams are not touched.
                        wait::poll(&[], 5);
                        0
                    });
                    assert_eq!(wait_for(child), "exited 0");
                }
            });
            a.note("children", 8);
        },
    );
    question_and_answer(a, s, "afterwards");
}

/// Whatever the other threads are in the middle of at the fork.
fn children_forked_beside_a_thread_that_wakes_its_peer_all_end(a: &Actor) {
    let s = a.stream();
    a.at_once(
        || {
            // The peer of one that waits in poll has to ring for it.
            let mut rounds = 0;
            while wait::poll(&[(s, libc::POLLIN)], 15_000).0 == Got::Value(1)
                && io::recv(s, &mut [0; 8], 0) == Got::Value(8)
                && io::send(s, b"answered", libc::MSG_NOSIGNAL).count() == Some(8)
            {
                rounds += 1;
            }
            a.note("some rounds", rounds > 0);
        },
        || {
            let enough = std::sync::atomic::AtomicBool::new(false);
            let relaxed = std::sync::atomic::Ordering::Relaxed;
            std::thread::scope(|scope| {
                a.thread(scope, "asks", || {
                    while !enough.load(relaxed) {
                        io::send(s, b"question", 0).value("send");
                        assert_eq!(receive_text(s, 8), "answered");
                    }
                });
                let ended = (0..150).filter(|_| wait_for(process::fork(|| 7)) == "exited 7");
                a.note("children", ended.count());
                enough.store(true, relaxed);
            });
            a.note("close", socket::close(s));
        },
    );
}

/// One byte through a pipe, as a turn.
struct Turn {
    out: Fd,
    into: Fd,
}

impl Turn {
    fn new() -> Turn {
        let (out, into) = socket::pipe();
        Turn { out, into }
    }

    fn give(&self) {
        io::write(self.into, b"t").value("a turn");
    }

    fn take(&self) {
        io::read(self.out, &mut [0]).value("a turn");
    }
}

fn parent_and_child_take_turns_writing(a: &Actor) {
    let s = a.stream();
    a.at_once(
        || {
            let (to_child, to_parent) = (Turn::new(), Turn::new());
            let child = a.child("writer", || {
                for round in 0..20 {
                    to_child.take();
                    io::write(s, format!("c{round:02} ").as_bytes()).value("write");
                    to_parent.give();
                }
            });
            for round in 0..20 {
                io::write(s, format!("p{round:02} ").as_bytes()).value("write");
                to_child.give();
                to_parent.take();
            }
            a.note("child", wait_for(child));
        },
        || a.note("in turns", receive_text(s, 160)),
    );
    question_and_answer(a, s, "afterwards");
}

fn parent_and_child_take_turns_reading(a: &Actor) {
    let s = a.stream();
    a.at_once(
        || a.note("sent", send_all(s, 3, 40_000, 777)),
        || {
            let (to_child, to_parent) = (Turn::new(), Turn::new());
            let piece = |round: u64| {
                let mut room = vec![0; 1000];
                io::recv(s, &mut room, libc::MSG_WAITALL).value("recv");
                room == crate::pattern::bytes(3, round * 1000, 1000)
            };
            let child = a.child("reader", || {
                for round in 0..20 {
                    to_child.take();
                    a.note("piece", piece(2 * round + 1));
                    to_parent.give();
                }
            });
            for round in 0..20 {
                a.note("piece", piece(2 * round));
                to_child.give();
                to_parent.take();
            }
            a.note("child", wait_for(child));
        },
    );
    question_and_answer(a, s, "afterwards");
}

fn a_child_that_uses_the_stream_and_ends_leaves_it_whole(a: &Actor) {
    let s = a.stream();
    for round in 0..3 {
        a.client(|| {
            let child = a.child("writer", || {
                a.note("send", io::send(s, b"from the child", 0));
            });
            a.note("child", wait_for(child));
        });
        a.server(|| a.note(format!("round {round}"), receive_text(s, 14)));
        question_and_answer(a, s, "between");
    }
}

fn a_grandchild_carries_on(a: &Actor) {
    let s = a.stream();
    a.at_once(
        || {
            let child = a.child("child", || {
                let grandchild = a.child("grandchild", || {
                    a.note("sent", send_all(s, 1, 200_000, 7000));
                    a.note("received", receive(s, 2, 200_000, 7000));
                });
                socket::close(s);
                a.note("grandchild", wait_for(grandchild));
            });
            socket::close(s);
            a.note("child", wait_for(child));
        },
        || {
            a.note("received", receive(s, 1, 200_000, 7000));
            a.note("sent", send_all(s, 2, 200_000, 7000));
            a.note("the end", receive_text(s, 1));
        },
    );
}

fn a_parent_that_dies_first_leaves_the_stream_to_its_child(a: &Actor) {
    let s = a.stream();
    a.at_once(
        || {
            let (done, waits) = (Turn::new(), Turn::new());
            // The parent is itself a child of the actor, so that it may die.
            let parent = a.child("parent", || {
                process::fork(|| {
                    process::alarm(18);
                    waits.take();
                    send_all(s, 1, 300_000, 10_000);
                    done.give();
                    0
                });
                io::send(s, b"parent", 0).value("send");
            });
            socket::close(s);
            a.note("parent", wait_for(parent));
            waits.give();
            done.take();
        },
        || {
            a.note("from the parent", receive_text(s, 6));
            a.note("from the child", receive_to_end(s, 1));
        },
    );
}

fn closing_in_the_parent_is_no_end_while_a_child_holds_on(a: &Actor) {
    let s = a.stream();
    let turn = Turn::new();
    let mut child = 0;
    a.client(|| {
        child = a.child("holder", || turn.take());
        io::send(s, b"more?", 0).value("send");
        a.note("close", socket::close(s));
    });
    a.server(|| {
        a.note("received", receive_text(s, 5));
        wait::poll(&[], 30);
        let mut room = [0; 1];
        a.note("no end yet", io::recv(s, &mut room, libc::MSG_DONTWAIT));
    });
    a.client(|| {
        turn.give();
        a.note("child", wait_for(child));
    });
    a.server(|| a.note("the end", receive_text(s, 1)));
}

fn a_killed_child_leaves_the_stream_to_its_parent(a: &Actor) {
    let s = a.stream();
    a.server(|| {
        let turn = Turn::new();
        let child = a.child("to be killed", || {
            a.note("send", io::send(s, b"child", 0));
            turn.give();
            socket::pipe_wait_for_ever(socket::pipe().0);
        });
        turn.take();
        process::kill(child, libc::SIGKILL);
        a.note("child", wait_for(child));
    });
    a.client(|| a.note("received", receive_text(s, 5)));
    question_and_answer(a, s, "afterwards");
}

fn a_child_decides_whether_its_parents_calls_wait(a: &Actor) {
    let s = a.stream();
    let child_sets = |value| {
        let child = a.child("sets it", || {
            socket::set_nonblocking(s, value);
        });
        a.note("child", wait_for(child));
    };
    a.server(|| {
        let mut room = [0; 8];
        wait::catch_signal(libc::SIGUSR1, libc::SA_RESTART);
        let set_and_signal = |own, thread| {
            child_sets(true);
            a.until_asleep(own, thread);
            process::kill_thread(thread, libc::SIGUSR1).value("tgkill");
        };
        let got = a.once_asleep("setter", set_and_signal, || io::recv(s, &mut room, 0));
        a.note("slept before, begun anew behind a handler", got);
        a.note("begins", io::recv(s, &mut room, 0));
        child_sets(false);
        wait_for_an_end(a, s);
        a.note("send", io::send(s, b"goodbye", 0));
    });
    a.client(|| a.note("received", receive_text(s, 7)));
}

/// A call that waits until another thread shuts the stream down.
fn wait_for_an_end(a: &Actor, s: Fd) {
    let end = |_, _| a.note("shutdown", socket::shutdown(s, libc::SHUT_RD));
    a.note("waits", a.once_asleep("ender", end, || io::recv(s, &mut [0; 8], 0)));
}

fn what_an_ended_child_has_set_is_the_streams(a: &Actor) {
    let place = a.listen();
    let s = a.new_stream(&place);
    a.server(|| {
        socket::set_nonblocking(s, true);
        let child = process::fork(|| {
            socket::set_nonblocking(s, false);
            0
        });
        a.note("child", wait_for(child));
    });
    a.meet();
    a.warm(s);
    a.meet();
    a.server(|| wait_for_an_end(a, s));
}

fn workers_share_a_listening_socket(a: &Actor) {
    let place = a.listen();
    const WORKERS: u64 = 3;
    const CLIENTS: u64 = 12;
    a.at_once(
        || {
            for client in 0..CLIENTS {
                let s = a.connect(&place);
                a.warm_as_client(s);
                io::send(s, b"hello worker", 0).value("send");
                a.note(format!("client {client}"), receive_text(s, 12));
                socket::close(s);
            }
        },
        || {
            let workers: Vec<_> = (0..WORKERS)
                .map(|_| {
                    a.child("worker", || {
                        for _ in 0..CLIENTS / WORKERS {
                            let s = socket::accept(place.fd).fd("accept");
                            a.warm_as_server(s);
                            assert_eq!(receive_text(s, 12), "hello worker");
                            io::send(s, b"hello client", 0).value("send");
                            socket::close(s);
                        }
                    })
                })
                .collect();
            for worker in workers {
                a.note("worker", wait_for(worker));
            }
        },
    );
}

fn a_child_forked_before_connect_connects_itself(a: &Actor) {
    let place = a.listen();
    a.at_once(
        || {
            let child = a.child("child", || {
                let s = a.connect(&place);
                a.warm_as_client(s);
                a.note("sent", send_all(s, 1, 100_000, 10_000));
                a.note("answer", receive_text(s, 2));
            });
            a.note("child", wait_for(child));
        },
        || {
            let s = socket::accept(place.fd).fd("accept");
            a.warm_as_server(s);
            a.note("received", receive(s, 1, 100_000, 10_000));
            io::send(s, b"ok", 0).value("send");
            a.note("the end", receive_text(s, 1));
        },
    );
}

fn vfork_and_exec_disturb_nothing(a: &Actor) {
    let s = a.stream();
    for round in 0..5 {
        let child = process::vfork_exec("/bin/true", &["true"]);
        a.note("child", wait_for(child));
        let child = process::vfork_exec("/nonexistent", &["nonexistent"]);
        a.note("failed child", wait_for(child));
        question_and_answer(a, s, &format!("round {round}"));
    }
}

static ITS_STREAM: AtomicI32 = AtomicI32::new(-1);
static ITS_PIPE: AtomicI32 = AtomicI32::new(-1);

/// Made by libc's function, it has memory and descriptors of its own as after a fork.
fn a_child_of_clone_shares_the_stream(a: &Actor) {
    let s = a.stream();
    a.at_once(
        || {
            a.note("received", receive_text(s, 16));
            // A receive that does not wait may be before the close.
            a.until(s, libc::POLLRDHUP);
            a.note("end", io::recv(s, &mut [0; 8], 0));
        },
        || {
            ITS_STREAM.store(s, Relaxed);
            let child = process::clone(0, || {
                io::send(ITS_STREAM.load(Relaxed), b"child's,", 0);
            });
            a.note("child", wait_for(child));
            a.note("sent", io::send(s, b"parent's", 0));
            socket::close(s);
        },
    );
}

/// It has the parent's memory, and descriptors of its own.
fn a_number_that_a_child_of_vfork_reuses_is_no_stream_to_it(a: &Actor) {
    let s = a.stream();
    let by_copy = || {
        socket::dup2(ITS_PIPE.load(Relaxed), ITS_STREAM.load(Relaxed));
        io::write(ITS_STREAM.load(Relaxed), b"to the pipe");
    };
    let by_close = || {
        socket::close(ITS_STREAM.load(Relaxed));
        let again = socket::dup(ITS_PIPE.load(Relaxed));
        io::write(again.count().map_or(-1, |fd| fd as Fd), b"to the pipe");
    };
    let by_range = || {
        let number = ITS_STREAM.load(Relaxed);
        socket::close_range(number, number);
        let null = socket::open_null();
        io::write(null, b"to nobody");
        io::write(ITS_PIPE.load(Relaxed), b"to the pipe");
    };
    for child in [by_copy as fn(), by_close, by_range] {
        a.at_once(
            || a.note("received", receive_text(s, 8)),
            || {
                let (mut pipe, given) = std::io::pipe().expect("a pipe");
                ITS_STREAM.store(s, Relaxed);
                ITS_PIPE.store(given.as_raw_fd(), Relaxed);
                let child = process::clone(libc::CLONE_VM | libc::CLONE_VFORK, child);
                a.note("child", wait_for(child));
                drop(given);
                let mut text = String::new();
                pipe.read_to_string(&mut text).expect("what the child wrote");
                a.note("pipe", text);
                a.note("sent", io::send(s, b"parent's", 0));
            },
        );
    }
    socket::close(s);
}

/// A program of 32 bits can make no call in such a child.
fn a_child_of_clone_without_a_threads_data_goes_its_way(a: &Actor) {
    let s = a.stream();
    for round in 0..5 {
        #[cfg(target_arch = "x86_64")]
        a.note("child", wait_for(process::clone_without_data()));
        question_and_answer(a, s, &format!("round {round}"));
    }
}

fn posix_spawn_disturbs_nothing(a: &Actor) {
    let s = a.stream();
    for round in 0..5 {
        let child = process::spawn(&["true"], &[]);
        a.note("child", wait_for(child));
        question_and_answer(a, s, &format!("round {round}"));
    }
}

fn system_disturbs_nothing(a: &Actor) {
    let s = a.stream();
    for round in 0..3 {
        let status = process::system("exit 3").count().unwrap_or(0);
        a.note("status", status >> 8);
        question_and_answer(a, s, &format!("round {round}"));
    }
}

/// What a client does with an echo on the other side.
pub(super) fn talk_to_an_echo(a: &Actor, s: Fd) {
    io::send(s, b"hello", 0).value("send");
    a.note("echo", receive_text(s, 5));
    std::thread::scope(|scope| {
        a.thread(scope, "writer", || {
            a.note("sent", send_all(s, 9, 300_000, 10_000));
            a.note("shutdown", socket::shutdown(s, libc::SHUT_WR));
        });
        a.note("echoed", receive_to_end(s, 9));
    });
}

fn cat_echoes_as_standard_input_and_output(a: &Actor) {
    let s = a.stream();
    a.at_once(
        || talk_to_an_echo(a, s),
        || {
            let child = a.child("cat", || {
                socket::dup2(s, 0).value("dup2");
                socket::dup2(s, 1).value("dup2");
                socket::close(s);
                process::exec(&["cat"]).value("exec");
            });
            a.note("close", socket::close(s));
            a.note("cat", wait_for(child));
        },
    );
}

fn cat_spawned_with_file_actions_echoes(a: &Actor) {
    cat_spawned_echoes(a, process::spawn);
}

fn cat_spawned_with_a_descriptor_of_it_echoes(a: &Actor) {
    cat_spawned_echoes(a, process::spawn_with_descriptor);
}

fn cat_spawned_echoes(a: &Actor, spawn: impl Fn(&[&str], &[(Fd, Fd)]) -> process::Pid) {
    let s = a.stream();
    a.at_once(
        || talk_to_an_echo(a, s),
        || {
            socket::fcntl(s, libc::F_SETFD, libc::FD_CLOEXEC).value("F_SETFD");
            let child = spawn(&["cat"], &[(s, 0), (s, 1)]);
            a.note("close", socket::close(s));
            a.note("cat", wait_for(child));
        },
    );
}

fn a_shell_spawned_with_a_descriptor_of_it_inherits_the_stream(a: &Actor) {
    let s = a.stream();
    a.client(|| a.note("send", io::send(s, b"a line\n", 0)));
    a.at_once(
        || {
            a.note("received", receive_text(s, 11));
            a.note("from the parent", receive_text(s, 6));
        },
        || {
            a.until_readable(s, 7);
            let low = socket::dup2(s, 9).fd("dup2");
            let words = ["sh", "-c", "read line <&9; echo \"got $line\" >&9"];
            a.note("shell", wait_for(process::spawn_with_descriptor(&words, &[])));
            a.note("send", io::send(low, b"parent", 0));
        },
    );
}

fn cat_started_by_vfork_reads_what_was_not_read(a: &Actor) {
    let s = a.stream();
    a.client(|| {
        io::send(s, b"unread, ", 0).value("send");
    });
    a.at_once(
        || {
            a.note("echo", receive_text(s, 8));
            io::send(s, b"and more", 0).value("send");
            a.note("echo", receive_text(s, 8));
            socket::shutdown(s, libc::SHUT_WR);
            a.note("the end", receive_text(s, 1));
        },
        || {
            a.until_readable(s, 8);
            socket::dup2(s, 0).value("dup2");
            socket::dup2(s, 1).value("dup2");
            socket::close(s);
            let child = process::vfork_exec("/bin/cat", &["cat"]);
            let null = socket::open_null();
            socket::dup2(null, 0).value("dup2");
            socket::dup2(null, 1).value("dup2");
            a.note("cat", wait_for(child));
        },
    );
}

fn a_shell_reads_lines_from_the_stream(a: &Actor) {
    let s = a.stream();
    a.at_once(
        || {
            io::send(s, b"one\ntwo\n", 0).value("send");
            a.note("answer", receive_text(s, 16));
            socket::shutdown(s, libc::SHUT_WR);
            a.note("the end", receive_text(s, 100));
        },
        || {
            let child = a.child("shell", || {
                socket::dup2(s, 0).value("dup2");
                socket::dup2(s, 1).value("dup2");
                socket::close(s);
                let script = "while read line; do echo \"got $line\"; done; echo end";
                process::exec(&["sh", "-c", script]).value("exec");
            });
            socket::close(s);
            a.note("shell", wait_for(child));
        },
    );
}

fn exec_of_an_accelerated_program_goes_on(a: &Actor) {
    let s = a.stream();
    a.at_once(
        || talk_to_an_echo(a, s),
        || {
            let child = a.child("echo", || {
                let (program, fd) = (crate::helpers::program(), s.to_string());
                process::exec(&[&program, "--helper", "echo", &fd]).value("exec");
            });
            socket::close(s);
            a.note("echo", wait_for(child));
        },
    );
}

fn exec_of_a_program_without_the_library_goes_on(a: &Actor) {
    let s = a.stream();
    a.at_once(
        || talk_to_an_echo(a, s),
        || {
            let child = a.child("echo", || {
                let (program, fd) = (crate::helpers::program(), s.to_string());
                let arguments = [program.as_str(), "--helper", "echo", &fd];
                process::exec_with_environment(&program, &arguments, &["PATH=/bin"]).value("exec");
            });
            socket::close(s);
            a.note("echo", wait_for(child));
        },
    );
}

fn exec_with_close_on_exec_ends_the_stream(a: &Actor) {
    let s = a.stream();
    a.client(|| {
        let child = a.child("true", || {
            io::send(s, b"last", 0).value("send");
            socket::fcntl(s, libc::F_SETFD, libc::FD_CLOEXEC).value("F_SETFD");
            process::exec(&["true"]).value("exec");
        });
        socket::close(s);
        a.note("true", wait_for(child));
    });
    a.server(|| a.note("received", receive_text(s, 100)));
}

/// The child had it from the start, and never closed it.
fn a_stream_that_an_ended_child_had_goes_to_the_ring(a: &Actor) {
    let place = a.listen();
    let s = a.new_stream(&place);
    a.server(|| {
        let child = process::fork(|| 0);
        a.note("child", wait_for(child));
    });
    a.meet();
    a.warm(s);
    a.meet();
    a.client(|| a.note("send", io::send(s, b"hello", 0)));
    a.server(|| a.note("received", receive_text(s, 5)));
}

/// As those of a server that forks to save its data.
fn streams_that_began_beside_a_child_go_to_rings(a: &Actor) {
    for (forks, others) in [("server", 0), ("server", 1), ("client", 0), ("client", 1)] {
        let place = a.listen();
        let earlier: Vec<Fd> = (0..others).map(|_| a.pair(&place)).collect();
        let streams: Vec<Fd> = (0..13).map(|_| a.new_stream(&place)).collect();
        let this_forks = (forks == "client") == a.is_client();
        for &s in &streams {
            // Received in so many messages that its end is the first to look for the other.
            if this_forks {
                (0..16).for_each(|_| assert_eq!(receive_text(s, 1), "x"));
            } else {
                io::send(s, &[b'x'; 16], 0).value("send");
            }
        }
        let (out, into) = socket::pipe();
        let child = this_forks.then(|| {
            a.child("idle", || {
                socket::close(into);
                io::read(out, &mut [0]).value("the parent's word");
            })
        });
        a.meet();
        (0..20).for_each(|_| a.exchange_on(&streams));
        a.meet();
        [out, into].into_iter().for_each(|fd| _ = socket::close(fd));
        if let Some(child) = child {
            a.note(format!("the {forks}'s child"), wait_for(child));
        }
        a.meet();
        a.warm_all(&place, &[&earlier[..], &streams[..]].concat());
        a.meet();
        for s in earlier.into_iter().chain(streams) {
            question_and_answer(a, s, forks);
            socket::close(s);
        }
        if place.fd >= 0 {
            socket::close(place.fd);
        }
    }
}

fn shells_started_by_lists_answer_on_the_stream(a: &Actor) {
    use process::ByList::{Execl, Execle, Execlp};
    let place = a.listen();
    for (by, path) in [(Execl, c"/bin/sh"), (Execlp, c"sh"), (Execle, c"/bin/sh")] {
        let s = a.pair(&place);
        a.meet();
        a.at_once(
            || {
                io::send(s, b"hello\n", 0).value("send");
                a.note(format!("{by:?}"), receive_text(s, 100));
            },
            || {
                let child = a.child("shell", || {
                    a.note("in vain", process::exec_shell_by_list(by, c"/no/such/shell", "true"));
                    socket::dup2(s, 0).value("dup2");
                    socket::dup2(s, 1).value("dup2");
                    socket::close(s);
                    let script = "read line; echo \"$line $* $WORD\"";
                    process::exec_shell_by_list(by, path, script).value("exec");
                });
                socket::close(s);
                a.note("shell", wait_for(child));
            },
        );
    }
}

fn unread_bytes_survive_exec(a: &Actor) {
    let s = a.stream();
    a.client(|| a.note("sent", send_all(s, 9, 100_000, 5000)));
    a.at_once(
        || {
            socket::shutdown(s, libc::SHUT_WR);
            a.note("echoed", receive_to_end(s, 9));
        },
        || {
            let child = a.child("echo", || {
                // Some are read and sent back here, the rest by the program that follows.
                let mut room = vec![0; 30_000];
                io::recv(s, &mut room, libc::MSG_WAITALL).value("recv");
                crate::pattern::write_all(s, &room).expect("the stream takes them");
                let (program, fd) = (crate::helpers::program(), s.to_string());
                process::exec(&[&program, "--helper", "echo", &fd]).value("exec");
            });
            socket::close(s);
            a.note("echo", wait_for(child));
        },
    );
}

fn bytes_written_just_before_exec_arrive(a: &Actor) {
    let s = a.stream();
    let sent = a.told_by_client(|| {
        let turn = Turn::new();
        let child = a.child("true", || {
            let block = crate::pattern::bytes(4, 0, 8 << 20);
            let got = io::send(s, &block, libc::MSG_DONTWAIT).value("send") as u64;
            io::write(turn.into, &got.to_ne_bytes()).value("write");
            process::exec(&["true"]).value("exec");
        });
        socket::close(s);
        let mut count = [0; 8];
        io::read(turn.out, &mut count).value("read");
        a.note("true", wait_for(child));
        u64::from_ne_bytes(count)
    });
    a.server(|| {
        let text = receive_to_end(s, 4);
        a.note("received", text == format!("{sent} bytes right, then 0"));
    });
}

fn a_stream_passed_to_a_child_goes_on(a: &Actor) {
    let s = a.stream();
    a.at_once(
        || talk_to_an_echo(a, s),
        || {
            let (one, other) = socket::socketpair(libc::SOCK_STREAM);
            let child = a.child("taker", || {
                socket::close(s);
                let passed = io::take_descriptor(other).fd("a passed descriptor");
                crate::helpers::echo(passed);
            });
            a.note("pass", io::pass_descriptor(one, s));
            a.note("close", socket::close(s));
            a.note("taker", wait_for(child));
        },
    );
}

fn pass_to_program(a: &Actor, s: Fd, environment: Option<&[&str]>) {
    let (one, other) = socket::socketpair(libc::SOCK_STREAM);
    for fd in [one, other, s] {
        socket::fcntl(fd, libc::F_SETFD, libc::FD_CLOEXEC).value("F_SETFD");
    }
    let child = a.child("taker", || {
        socket::dup2(other, 0).value("dup2");
        let program = crate::helpers::program();
        let arguments = [program.as_str(), "--helper", "take"];
        match environment {
            None => process::exec(&arguments),
            Some(variables) => process::exec_with_environment(&program, &arguments, variables),
        }
        .value("exec");
    });
    socket::close(other);
    a.note("pass", io::pass_descriptor(one, s));
    a.note("close", socket::close(s));
    a.note("taker", wait_for(child));
}

fn a_stream_passed_to_a_program_goes_on(a: &Actor) {
    let s = a.stream();
    a.at_once(|| talk_to_an_echo(a, s), || pass_to_program(a, s, None));
}

fn a_stream_passed_to_a_program_without_the_library_goes_on(a: &Actor) {
    let s = a.stream();
    a.at_once(|| talk_to_an_echo(a, s), || pass_to_program(a, s, Some(&["PATH=/bin"])));
}

fn a_stream_passed_with_unread_bytes_keeps_them(a: &Actor) {
    let s = a.stream();
    a.client(|| a.note("sent", send_all(s, 9, 120_000, 5000)));
    a.at_once(
        || {
            socket::shutdown(s, libc::SHUT_WR);
            a.note("echoed", receive_to_end(s, 9));
        },
        || {
            a.until_readable(s, 60_000);
            pass_to_program(a, s, Some(&["PATH=/bin"]));
        },
    );
}

fn a_daemon_keeps_its_connection(a: &Actor) {
    let s = a.stream();
    a.at_once(
        || {
            let done = Turn::new();
            let first = a.child("first", || {
                process::setsid().value("setsid");
                process::fork(|| {
                    process::alarm(18);
                    socket::close(0);
                    socket::dup2(socket::open_null(), 0).value("dup2");
                    send_all(s, 1, 200_000, 10_000);
                    let heard = receive_text(s, 2);
                    done.give();
                    i32::from(heard != "ok")
                });
            });
            socket::close(s);
            a.note("first", wait_for(first));
            done.take();
        },
        || {
            a.note("received", receive(s, 1, 200_000, 8000));
            io::send(s, b"ok", 0).value("send");
            a.note("the end", receive_text(s, 1));
        },
    );
}

fn a_stopped_peer_fills_up_and_goes_on(a: &Actor) {
    let s = a.stream();
    const TOTAL: usize = 24 << 20;
    a.at_once(
        || a.note("sent", send_all(s, 1, TOTAL, 100_000)),
        || {
            let child = a.child("reader", || a.note("received", receive(s, 1, TOTAL, 100_000)));
            for _ in 0..5 {
                process::kill(child, libc::SIGSTOP);
                wait::poll(&[], 10);
                process::kill(child, libc::SIGCONT);
                wait::poll(&[], 1);
            }
            a.note("child", wait_for(child));
        },
    );
    question_and_answer(a, s, "afterwards");
}

fn a_stopped_reader_gets_everything_after(a: &Actor) {
    let s = a.stream();
    let reader = a.told_by_server(|| {
        let child = a.child("reader", || a.note("received", receive_to_end(s, 2)));
        process::kill(child, libc::SIGSTOP);
        socket::close(s);
        child as u64
    });
    a.client(|| {
        a.note("sent", send_all(s, 2, 100_000, 50_000));
        a.note("shutdown", socket::shutdown(s, libc::SHUT_WR));
    });
    a.server(|| {
        process::kill(reader as i32, libc::SIGCONT);
        a.note("child", wait_for(reader as i32));
    });
}

/// The child answers a question while its parent is stopped, by each of the ways in which that stops itself.
fn a_child_uses_the_stream_of_a_parent_that_stopped_itself(a: &Actor) {
    for stop in [process::stop, process::stop_by_raise, process::stop_by_number] {
        let s = a.stream();
        answered_by_child(a, s, process::wait_until_parent_stopped, stop);
        question_and_answer(a, s, "afterwards");
    }
}

fn a_child_stops_its_parent_and_uses_the_stream(a: &Actor) {
    let s = a.stream();
    let stop = || {
        process::kill(process::parent(), libc::SIGSTOP).value("kill");
        process::wait_until_parent_stopped();
    };
    answered_by_child(a, s, stop, || {});
    question_and_answer(a, s, "afterwards");
}

/// A child of the server's answers a question after `first`, while its parent, after `meanwhile`, is stopped.
fn answered_by_child(a: &Actor, s: Fd, first: impl Fn(), meanwhile: impl Fn()) {
    a.at_once(
        || {
            io::send(s, b"question", libc::MSG_NOSIGNAL);
            a.note("answer", receive_text(s, 6));
        },
        || {
            let child = a.child("child", || {
                first();
                a.note("question", receive_text(s, 8));
                io::send(s, b"answer", libc::MSG_NOSIGNAL);
                process::kill(process::parent(), libc::SIGCONT);
            });
            meanwhile();
            a.note("child", wait_for(child));
        },
    );
}

fn a_child_waits_by_the_set_of_a_parent_that_stopped_itself(a: &Actor) {
    let s = a.stream();
    a.at_once(
        || {
            io::send(s, b"question", libc::MSG_NOSIGNAL);
            a.note("answer", receive_text(s, 6));
        },
        || {
            let set = wait::epoll_create();
            wait::epoll_add(set, s, libc::EPOLLIN, 7).value("epoll_ctl");
            a.note("parent is told", wait::epoll_wait(set, 4, 5000).said());
            let child = a.child("child", || {
                process::wait_until_parent_stopped();
                a.note("child is told", wait::epoll_wait(set, 4, 5000).said());
                a.note("question", receive_text(s, 8));
                io::send(s, b"answer", libc::MSG_NOSIGNAL);
                process::kill(process::parent(), libc::SIGCONT);
            });
            process::stop_by_raise();
            a.note("child", wait_for(child));
            a.note("parent is told", wait::epoll_wait(set, 4, 0).said());
        },
    );
    question_and_answer(a, s, "afterwards");
}

fn both_sides_fork_at_once(a: &Actor) {
    let s = a.stream();
    let (send_seed, receive_seed) = if a.is_client() { (1, 2) } else { (2, 1) };
    let child = a.child("child", || {
        a.note("sent", send_all(s, send_seed, 500_000, 9000));
        a.note("received", receive(s, receive_seed, 500_000, 9000));
    });
    a.note("child", wait_for(child));
    a.meet();
    question_and_answer(a, s, "afterwards");
}

fn a_child_of_a_process_without_a_free_descriptor_uses_the_stream(a: &Actor) {
    let s = a.stream();
    a.note("limit", process::limit_descriptors(3));
    a.at_once(
        || {
            let child = a.child("child", || {
                a.note("sent", send_all(s, 1, 50_000, 5000));
                a.note("received", receive(s, 2, 50_000, 5000));
            });
            a.note("child", wait_for(child));
        },
        || {
            a.note("received", receive(s, 1, 50_000, 5000));
            a.note("sent", send_all(s, 2, 50_000, 5000));
        },
    );
    question_and_answer(a, s, "afterwards");
}

static LEAVES_WORD_IN: AtomicI32 = AtomicI32::new(-1);

extern "C" fn leave_word() {
    io::write(LEAVES_WORD_IN.load(Relaxed), b"atexit").value("the last word");
}

/// The client is a child, whose main thread ends by pthread_exit(3) before `worker` does.
fn ends_by_its_last_thread(a: &Actor, worker: Option<fn(Fd)>) {
    let place = a.listen();
    a.at_once(
        || {
            let word = Turn::new();
            let child = a.child("program", || {
                let s = a.connect(&place);
                a.warm_as_client(s);
                LEAVES_WORD_IN.store(word.into, Relaxed);
                process::at_exit(leave_word).value("atexit");
                worker.map(|worker| std::thread::spawn(move || worker(s)));
                process::end_main_thread();
            });
            a.note("child", wait_for(child));
            socket::close(word.into);
            let mut last = [0; 6];
            a.note("bytes of a last word", io::read(word.out, &mut last));
        },
        || {
            let s = socket::accept(place.fd).fd("accept");
            a.warm_as_server(s);
            a.note("received", receive_text(s, 13));
        },
    );
}

fn the_last_thread_to_end_ends_the_process(a: &Actor) {
    ends_by_its_last_thread(
        a,
        Some(|s| {
            while !process::main_thread_has_ended() {
                wait::poll(&[], 1);
            }
            io::send(s, b"still here", 0).value("send");
        }),
    );
}

fn a_main_thread_that_ends_alone_ends_the_process(a: &Actor) {
    ends_by_its_last_thread(a, None);
}

fn a_signal_sent_to_a_child_at_once_reaches_it(a: &Actor) {
    let s = a.stream();
    wait::catch_signal(libc::SIGTERM, 0);
    let mut reached = 0;
    for _ in 0..100 {
        let child = process::fork(|| {
            let give_up = std::time::Instant::now() + std::time::Duration::from_secs(5);
            while wait::caught(libc::SIGTERM) == 0 && std::time::Instant::now() < give_up {
                std::thread::yield_now();
            }
            i32::from(wait::caught(libc::SIGTERM) == 0)
        });
        process::kill(child, libc::SIGTERM);
        reached += u32::from(wait_for(child) == "exited 0");
    }
    a.note("reached", reached);
    a.note("came here", wait::caught(libc::SIGTERM));
    a.client(|| a.note("send", io::send(s, b"still", 0)));
    a.server(|| a.note("received", receive_text(s, 5)));
}

/// Forks at the client; then its parent and its child use the stream in turn.
fn fork_and_take_turns(a: &Actor, s: Fd, note: impl Fn()) {
    a.at_once(
        || {
            let child = a.child("child", || {
                note();
                a.note("send", io::send(s, b"child", libc::MSG_NOSIGNAL));
                a.note("answer", receive_text(s, 6));
            });
            a.note("child", wait_for(child));
            note();
            a.note("send", io::send(s, b"parent", libc::MSG_NOSIGNAL));
            a.note("answer", receive_text(s, 6));
        },
        || {
            for who in ["child", "parent"] {
                a.note("received", receive_text(s, who.len()));
                a.note("send", io::send(s, b"answer", libc::MSG_NOSIGNAL));
            }
        },
    );
    question_and_answer(a, s, "afterwards");
}

extern "C" fn no_step() {}

static HAS_BEGUN: AtomicBool = AtomicBool::new(false);
static HAS_MADE_SETS: AtomicBool = AtomicBool::new(false);

/// As who takes a lock that the thread holds.
extern "C" fn wait_for_sets() {
    HAS_BEGUN.store(true, SeqCst);
    while !HAS_MADE_SETS.load(SeqCst) {
        std::thread::yield_now();
    }
}

fn a_step_of_a_fork_waits_for_a_thread_that_makes_sets(a: &Actor) {
    let s = a.stream();
    if !a.is_client() {
        return fork_and_take_turns(a, s, || {});
    }
    process::at_fork(wait_for_sets, no_step, no_step);
    std::thread::scope(|scope| {
        a.thread(scope, "sets", || {
            while !HAS_BEGUN.load(SeqCst) {
                std::thread::yield_now();
            }
            for _ in 0..100 {
                let set = wait::epoll_create();
                wait::epoll_add(set, s, libc::EPOLLIN, 1).value("epoll_ctl");
                socket::close(set);
            }
            HAS_MADE_SETS.store(true, SeqCst);
        });
        fork_and_take_turns(a, s, || {});
    });
}

/// Has a function called in each step of a fork, with the step's number.
macro_rules! at_each_step {
    ($work:ident) => {{
        extern "C" fn prepare() {
            $work(0);
        }
        extern "C" fn parent() {
            $work(1);
        }
        extern "C" fn child() {
            $work(2);
        }
        process::at_fork(prepare, parent, child)
    }};
}

/// What the last of each step found: before the fork, in the parent, in the child.
static FOUND: [AtomicU32; 3] = [const { AtomicU32::new(0) }; 3];

fn note_found(a: &Actor) {
    for (step, found) in ["prepare", "parent", "child"].iter().zip(&FOUND) {
        a.note(format!("found in {step}"), found.load(Relaxed));
    }
}

static IS_NESTED: AtomicBool = AtomicBool::new(false);

fn fork_in(step: usize) {
    if !IS_NESTED.swap(true, Relaxed) {
        let child = process::fork_plainly();
        if child == 0 {
            process::exit_now(7);
        }
        FOUND[step].store(process::wait_quietly(child) as u32, Relaxed);
        IS_NESTED.store(false, Relaxed);
    }
}

fn steps_of_a_fork_fork_themselves(a: &Actor) {
    let s = a.stream();
    a.client(|| at_each_step!(fork_in));
    fork_and_take_turns(a, s, || note_found(a));
}

fn use_descriptors_in(step: usize) {
    let (set, (out, into)) = (wait::epoll_create(), socket::pipe());
    let copy = socket::dup(out).fd("dup");
    let works = wait::epoll_add(set, copy, libc::EPOLLIN, 5) == Got::Value(0)
        && io::write(into, b"1") == Got::Value(1)
        && wait::poll(&[(set, libc::POLLIN)], 0).0 == Got::Value(1)
        && io::read(out, &mut [0; 8]) == Got::Value(1);
    for fd in [set, out, into, copy] {
        socket::close(fd);
    }
    FOUND[step].fetch_add(u32::from(works), Relaxed);
}

fn steps_of_a_fork_use_their_descriptors(a: &Actor) {
    let s = a.stream();
    a.client(|| at_each_step!(use_descriptors_in));
    fork_and_take_turns(a, s, || note_found(a));
}

fn raise_in(step: usize) {
    let before = wait::caught(libc::SIGUSR1);
    for _ in 0..2 {
        process::raise(libc::SIGUSR1).value("raise");
    }
    FOUND[step].store(wait::caught(libc::SIGUSR1) - before, Relaxed);
}

fn signals_raised_in_steps_of_a_fork_are_handled_there(a: &Actor) {
    let s = a.stream();
    wait::catch_signal(libc::SIGUSR1, libc::SA_RESTART);
    a.client(|| at_each_step!(raise_in));
    fork_and_take_turns(a, s, || note_found(a));
}
