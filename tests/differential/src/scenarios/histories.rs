//! Every short history of a stream: what its calls give, what poll shows and what epoll tells at both ends
//! after each step, for each kind of registration. Nobody wrote down what must come: kernel TCP says it.

use super::{scenarios, Scenario, Settings};
use crate::actor::{Actor, Place, Side, EVERYTHING};
use crate::calls::socket::Address;
use crate::calls::wait::{epoll_add, epoll_create, epoll_del, epoll_mod, epoll_wait, mask, poll};
use crate::calls::{io, socket, Fd};
use crate::pattern::describe;
use libc::{EPOLLET, EPOLLIN, EPOLLONESHOT, EPOLLOUT, EPOLLPRI, EPOLLRDHUP};
use std::collections::HashMap;
use std::time::{Duration, Instant};
use Does::*;

pub const ALL: &[Scenario] = scenarios![Settings::Rings;
    histories_as_level_triggered_epoll_tells_them,
    histories_that_begin_with_an_end_as_level_triggered_epoll_tells_them,
    histories_as_edge_triggered_epoll_tells_them,
    histories_that_begin_with_an_end_as_edge_triggered_epoll_tells_them,
    histories_as_one_shot_epoll_tells_them,
    histories_that_begin_with_an_end_as_one_shot_epoll_tells_them,
    histories_told_to_who_asks_for_bytes,
    histories_told_to_who_asks_for_room,
    histories_told_to_who_asks_for_ends,
    ends_in_every_order_before_a_receive,
    ends_in_every_order_before_a_send,
    ends_in_every_order_before_the_error_is_taken,
];

/// What one side does in one step.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Does {
    Send,
    /// Two bytes.
    ReadSome,
    /// What one call gives.
    ReadAll,
    ShutdownRead,
    ShutdownWrite,
    ShutdownBoth,
    Close,
    /// With a linger time of 0.
    Reset,
    /// Changes the registration to what it is.
    Mod,
    /// Takes the registration out and puts it in.
    DelAdd,
    TakeError,
}

type Step = (Side, Does);
type History = Vec<Step>;

/// Streams that live at the same time: a program of 32 bits has addresses for the rings of 256.
const STREAMS_MAX: usize = 240;
/// The kernel acknowledges what came after a while.
const SETTLED_MAX: Duration = Duration::from_millis(1500);
/// The library does some things a moment later than the kernel. It is waited for so long only if it differs.
const LATER_MAX: Duration = Duration::from_secs(12);

const ANY: i32 = EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLPRI;

fn histories_as_level_triggered_epoll_tells_them(a: &Actor) {
    play(a, Asks::PollAndEpoll, ANY, &long_histories(false));
}

fn histories_that_begin_with_an_end_as_level_triggered_epoll_tells_them(a: &Actor) {
    play(a, Asks::PollAndEpoll, ANY, &long_histories(true));
}

fn histories_as_edge_triggered_epoll_tells_them(a: &Actor) {
    play(a, Asks::PollAndEpoll, ANY | EPOLLET, &long_histories(false));
}

fn histories_that_begin_with_an_end_as_edge_triggered_epoll_tells_them(a: &Actor) {
    play(a, Asks::PollAndEpoll, ANY | EPOLLET, &long_histories(true));
}

fn histories_as_one_shot_epoll_tells_them(a: &Actor) {
    play(a, Asks::PollAndEpoll, ANY | EPOLLONESHOT, &long_histories(false));
}

fn histories_that_begin_with_an_end_as_one_shot_epoll_tells_them(a: &Actor) {
    play(a, Asks::PollAndEpoll, ANY | EPOLLONESHOT, &long_histories(true));
}

fn told_of(a: &Actor, events: i32) {
    for kind in [0, EPOLLET, EPOLLONESHOT, EPOLLET | EPOLLONESHOT] {
        play(a, Asks::Epoll, events | kind, &every_history(2));
    }
}

fn histories_told_to_who_asks_for_bytes(a: &Actor) {
    told_of(a, EPOLLIN);
}

fn histories_told_to_who_asks_for_room(a: &Actor) {
    told_of(a, EPOLLOUT);
}

fn histories_told_to_who_asks_for_ends(a: &Actor) {
    told_of(a, EPOLLRDHUP);
}

fn ends_in_every_order_before_a_receive(a: &Actor) {
    play(
        a,
        Asks::PollAndEpoll,
        ANY | EPOLLET,
        &every_order_of_ends(&[ReadAll, ReadAll, Send, TakeError]),
    );
}

fn ends_in_every_order_before_a_send(a: &Actor) {
    play(
        a,
        Asks::PollAndEpoll,
        ANY | EPOLLET,
        &every_order_of_ends(&[Send, Send, ReadAll, TakeError]),
    );
}

fn ends_in_every_order_before_the_error_is_taken(a: &Actor) {
    play(a, Asks::PollAndEpoll, ANY, &every_order_of_ends(&[TakeError, TakeError, Send, ReadAll]));
}

/// Those of three steps whose first one is an end, or is none. A slow machine does not play both within
/// the time of one scenario.
fn long_histories(begin_with_an_end: bool) -> Vec<History> {
    const ENDS: [Does; 5] = [ShutdownRead, ShutdownWrite, ShutdownBoth, Close, Reset];
    let begins = |history: &History| ENDS.contains(&history[0].1);
    every_history(3).into_iter().filter(|it| begins(it) == begin_with_an_end).collect()
}

/// All sequences of this length; those that one side begins stand for those of the other, which is
/// the client and the server by turns.
fn every_history(length: usize) -> Vec<History> {
    const ALPHABET: [Does; 10] = [
        Send,
        ReadSome,
        ReadAll,
        ShutdownRead,
        ShutdownWrite,
        ShutdownBoth,
        Close,
        Reset,
        Mod,
        DelAdd,
    ];
    let mut all = sequences(&ALPHABET, length);
    all.retain(|history| history[0].0 == Side::Client);
    mirror_every_other(&mut all);
    all
}

/// Who shuts writing down, and then reading, leaves the ring: what the other has not read comes again by
/// TCP, and is an edge again, behind the end that was told.
fn tells_an_edge_again(history: &[Step]) -> bool {
    [Side::Client, Side::Server].into_iter().any(|side| {
        let mut steps = history.iter().filter(|step| step.0 == side).map(|step| step.1);
        steps.any(|does| does == Send)
            && steps.any(|does| does == ShutdownWrite)
            && steps.any(|does| matches!(does, ShutdownRead | ShutdownBoth))
    })
}

/// One to three ends in every order, with bytes unread at either side or at none; then both sides do
/// `after`, one after the other.
fn every_order_of_ends(after: &[Does]) -> Vec<History> {
    const ENDS: [Does; 4] = [ShutdownRead, ShutdownWrite, Close, Reset];
    let mut all = Vec::new();
    for ends in (1..=3).flat_map(|length| sequences(&ENDS, length)) {
        if ends[0].0 != Side::Client {
            continue;
        }
        for unread in 0..4 {
            let mut history = History::new();
            history.extend((unread & 1 != 0).then_some((Side::Client, Send)));
            history.extend((unread & 2 != 0).then_some((Side::Server, Send)));
            history.extend(&ends);
            for side in [Side::Client, Side::Server] {
                let open = !has_closed(&history, side);
                history.extend(after.iter().filter(|_| open).map(|&does| (side, does)));
            }
            all.push(history);
        }
    }
    mirror_every_other(&mut all);
    all
}

/// A side that has closed does nothing more.
fn sequences(alphabet: &[Does], length: usize) -> Vec<History> {
    let mut all = vec![History::new()];
    for _ in 0..length {
        let longer = all.iter().flat_map(|history| {
            let sides = [Side::Client, Side::Server];
            let open = sides.into_iter().filter(|&side| !has_closed(history, side));
            open.flat_map(|side| alphabet.iter().map(move |&does| (side, does)))
                .map(|step| [history.as_slice(), &[step]].concat())
        });
        all = longer.collect();
    }
    all
}

fn has_closed(history: &[Step], side: Side) -> bool {
    history.contains(&(side, Close)) || history.contains(&(side, Reset))
}

fn mirror_every_other(all: &mut [History]) {
    for (side, _) in all.iter_mut().skip(1).step_by(2).flatten() {
        *side = if *side == Side::Client { Side::Server } else { Side::Client };
    }
}

/// One side of one stream in its history.
struct Part<'a> {
    history: &'a History,
    fd: Fd,
    set: Fd,
    events: i32,
    open: bool,
    /// What this side's step gave.
    gave: String,
    noted: Vec<String>,
    /// What was noted on kernel TCP, for each step.
    wanted: Vec<String>,
}

/// Whether poll is called before each look at the set: the library must not depend on it.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Asks {
    PollAndEpoll,
    Epoll,
}

fn play(a: &Actor, asks: Asks, events: i32, histories: &[History]) {
    let oracle = a.oracle().unwrap_or_default();
    let is_played = |history: &&History| events & EPOLLET == 0 || !tells_an_edge_again(history);
    let histories: Vec<&History> = histories.iter().filter(is_played).collect();
    for some in histories.chunks(STREAMS_MAX) {
        let place = a.listen();
        let streams = make(a, &place, some.len());
        a.warm_all(&place, &streams);
        let begun = streams.iter().zip(some);
        let mut parts: Vec<Part> =
            begun.map(|(&fd, &history)| begin(fd, history, events, &oracle)).collect();
        look(a, asks, &mut parts);
        let steps = some.iter().map(|history| history.len()).max().unwrap_or(0);
        for step in 0..steps {
            take_step(a, &mut parts, step);
            look(a, asks, &mut parts);
        }
        parts.into_iter().for_each(|part| end(a, part));
        a.server(|| _ = socket::close(place.fd));
    }
}

/// The n-th at one side is the other end of the n-th at the other.
fn make(a: &Actor, place: &Place, count: usize) -> Vec<Fd> {
    let mut streams = Vec::new();
    while streams.len() < count {
        let some = (count - streams.len()).min(100);
        a.client(|| {
            for _ in 0..some {
                let fd = a.tcp_socket();
                let address = Address::as_seen_by_client(a.family, place.port);
                socket::connect(fd, &address).value("connect");
                streams.push(fd);
            }
        });
        a.server(|| {
            for _ in 0..some {
                streams.push(socket::accept(place.fd).fd("accept"));
            }
        });
    }
    streams
}

fn begin<'a>(
    fd: Fd,
    history: &'a History,
    events: i32,
    oracle: &HashMap<String, String>,
) -> Part<'a> {
    let set = epoll_create();
    epoll_add(set, fd, events, 1).value("EPOLL_CTL_ADD");
    let wanted = oracle.get(&name(events, history)).map(|text| text.split("; "));
    let wanted = wanted.into_iter().flatten().map(str::to_owned).collect();
    let (gave, noted) = (String::new(), Vec::new());
    Part { history, fd, set, events, open: true, gave, noted, wanted }
}

fn end(a: &Actor, part: Part) {
    a.note(name(part.events, part.history), part.noted.join("; "));
    if part.open {
        socket::set_linger(part.fd, true, 0);
        socket::close(part.fd);
    }
    socket::close(part.set);
}

fn name(events: i32, history: &[Step]) -> String {
    let steps: Vec<String> =
        history.iter().map(|(side, does)| format!("{side:?} {does:?}")).collect();
    format!("{events:#x}: {}", steps.join(", "))
}

fn take_step(a: &Actor, parts: &mut [Part], step: usize) {
    let mut take = || {
        for part in parts.iter_mut() {
            match part.history.get(step) {
                Some(&(side, does)) if side == a.side => part.gave = take(part, does),
                _ => {}
            }
        }
    };
    if a.is_client() {
        take();
    }
    a.meet();
    if !a.is_client() {
        take();
    }
    a.meet();
}

fn take(part: &mut Part, does: Does) -> String {
    let fd = part.fd;
    match does {
        Send => io::send(fd, b"abcde", libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT).to_string(),
        ReadSome => receive(part, 2),
        ReadAll => receive(part, 1 << 16),
        ShutdownRead => socket::shutdown(fd, libc::SHUT_RD).to_string(),
        ShutdownWrite => socket::shutdown(fd, libc::SHUT_WR).to_string(),
        ShutdownBoth => socket::shutdown(fd, libc::SHUT_RDWR).to_string(),
        Reset => {
            socket::set_linger(fd, true, 0);
            close(part)
        }
        Close => close(part),
        Mod => epoll_mod(part.set, fd, part.events, 1).to_string(),
        DelAdd => {
            let deleted = epoll_del(part.set, fd);
            format!("{deleted} {}", epoll_add(part.set, fd, part.events, 1))
        }
        TakeError => socket::so_error(fd),
    }
}

fn close(part: &mut Part) -> String {
    part.open = false;
    socket::close(part.fd).to_string()
}

fn receive(part: &Part, most: usize) -> String {
    let mut room = vec![0; most];
    let got = io::recv(part.fd, &mut room, libc::MSG_DONTWAIT);
    let count = got.count().unwrap_or(0);
    format!("{got} {}", describe(&room[..count]))
}

fn mask_of(part: &Part) -> String {
    if part.open {
        mask(poll(&[(part.fd, EVERYTHING)], 0).1[0])
    } else {
        "closed".to_owned()
    }
}

/// The kernel at the other end has said of everything sent that it came.
fn is_acknowledged(part: &Part) -> bool {
    const UNACKED: usize = 24;
    let info = || socket::getsockopt(part.fd, libc::IPPROTO_TCP, libc::TCP_INFO, 256).1;
    !part.open || info()[UNACKED..][..4] == [0; 4]
}

/// Waits, boundedly, until the kernel has nothing under way.
fn settle(parts: &[Part]) {
    let give_up = Instant::now() + SETTLED_MAX;
    while !parts.iter().all(is_acknowledged) && Instant::now() < give_up {
        poll(&[], 1);
    }
}

/// Notes what both sides are told, once the last step has had its effects.
fn look(a: &Actor, asks: Asks, parts: &mut [Part]) {
    settle(parts);
    a.meet();
    settle(parts);
    a.meet();
    let give_up = Instant::now() + LATER_MAX;
    let mut told = vec![0; parts.len()];
    let mut said = vec![String::new(); parts.len()];
    let mut waits: Vec<usize> = (0..parts.len()).collect();
    while !waits.is_empty() {
        let late = Instant::now() > give_up;
        waits.retain(|&at| {
            let part = &parts[at];
            let polled = if asks == Asks::PollAndEpoll {
                format!("poll {}, ", mask_of(part))
            } else {
                String::new()
            };
            let wanted = part.wanted.get(part.noted.len());
            let has_come =
                wanted.is_none_or(|wanted| wanted.contains(&format!("{}: {polled}", part.gave)));
            if !has_come && !late {
                return true;
            }
            told[at] |= tells(part.set);
            said[at] = format!("{}: {polled}told {}", part.gave, mask(told[at]));
            !late && wanted.is_some_and(|wanted| !wanted.starts_with(&format!("{},", said[at])))
        });
        poll(&[], i32::from(!waits.is_empty()));
    }
    for (part, said) in parts.iter_mut().zip(said) {
        part.noted.push(format!("{said}, again {}", mask(tells(part.set))));
        part.gave.clear();
    }
    a.meet();
}

fn tells(set: Fd) -> u32 {
    epoll_wait(set, 4, 0).events.iter().fold(0, |all, event| all | event.0)
}
