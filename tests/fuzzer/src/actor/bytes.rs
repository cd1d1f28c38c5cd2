//! Bytes in and out. Every byte has its place in the sequence of its direction, so each one that
//! arrives is checked. Where a read or a write splits is not promised: counts are compared with
//! what was known to be there, and what falls short is waited for.

use crate::operation::{Flag, ReceiveCall, SendCall};
use crate::protocol::{Command, Reply};
use shunt_differential::calls::{io, socket, wait, Fd, Got};
use shunt_differential::pattern;
use std::time::{Duration, Instant};

/// Bytes that were sent may take this long to arrive: the kernel holds them back for less.
const ARRIVAL: Duration = Duration::from_millis(500);

fn bits(flags: &[Flag]) -> i32 {
    let bit = |flag: &Flag| match flag {
        Flag::Peek => libc::MSG_PEEK,
        Flag::DontWait => libc::MSG_DONTWAIT,
        Flag::WaitAll => libc::MSG_WAITALL,
        Flag::Trunc => libc::MSG_TRUNC,
        Flag::NoSignal => libc::MSG_NOSIGNAL,
        Flag::More => libc::MSG_MORE,
    };
    flags.iter().map(bit).sum()
}

/// Two parts, so that a vector has more than one.
fn parts(bytes: &[u8]) -> [&[u8]; 3] {
    let (head, tail) = bytes.split_at(bytes.len() / 3);
    [head, &[], tail]
}

fn send_once(fd: Fd, bytes: &[u8], call: SendCall, flags: i32) -> Got {
    match call {
        SendCall::Send => io::send(fd, bytes, flags),
        SendCall::Write => io::write(fd, bytes),
        SendCall::Writev => io::writev(fd, &parts(bytes)),
        SendCall::Sendmsg => io::sendmsg(fd, &parts(bytes), flags),
        SendCall::Sendto => io::sendto(fd, bytes, flags, None),
        SendCall::Sendmmsg => {
            let (got, lengths) = io::sendmmsg(fd, &parts(bytes));
            match got {
                Got::Errno(_) => got,
                _ => Got::Value(lengths.iter().map(|&length| i64::from(length)).sum()),
            }
        }
        SendCall::Sendfile => send_file(fd, bytes),
        SendCall::Number => io::send_by_number(fd, bytes),
    }
}

fn send_file(fd: Fd, bytes: &[u8]) -> Got {
    let file = socket::memfd();
    let _ = pattern::write_all(file, bytes);
    let (got, offset) = io::sendfile(fd, file, 0, bytes.len());
    socket::close(file);
    match got.count() {
        Some(count) if count as i64 != offset => Got::Errno(libc::ESPIPE),
        _ => got,
    }
}

/// One call, or several where the stream takes less than all without blocking.
pub fn send(fd: Fd, size: u32, call: SendCall, flags: &[Flag], command: &Command) -> Reply {
    let bytes = pattern::bytes(command.sequence, command.offset, size as usize);
    let give_up = Instant::now() + 4 * ARRIVAL;
    let mut sent = 0;
    loop {
        let got = send_once(fd, &bytes[sent..], call, bits(flags));
        match got {
            Got::Errno(libc::EAGAIN) if !command.may_sleep && Instant::now() < give_up => {
                wait::poll(&[(fd, libc::POLLOUT)], 100);
            }
            Got::Errno(_) if sent == 0 => return Reply::said(got),
            Got::Errno(_) => return short(sent, size, &got.to_string()),
            // Messages of no bytes were taken, and the next found no room.
            got if got.count() == Some(0)
                && call == SendCall::Sendmmsg
                && Instant::now() < give_up
                && !command.may_sleep =>
            {
                wait::poll(&[(fd, libc::POLLOUT)], 100);
            }
            got if got.count() == Some(0) && size > 0 => return short(sent, size, "took nothing"),
            got => sent += got.count().unwrap_or(0),
        }
        if sent >= size as usize {
            let touched = matches!(got, Got::ValueTouchedErrno(_));
            let said = if touched { "all, and errno was changed" } else { "all" };
            return Reply { said: said.to_owned(), moved: sent as u64 };
        }
        if command.may_sleep {
            return short(sent, size, "returned early");
        }
    }
}

fn short(sent: usize, size: u32, why: &str) -> Reply {
    Reply { said: format!("short: {sent} of {size}, {why}"), moved: sent as u64 }
}

pub fn fill(fd: Fd, command: &Command) -> Reply {
    const PIECE: usize = 60_000;
    const TOTAL_MAX: usize = 24 << 20;
    let mut sent = 0;
    while sent < TOTAL_MAX {
        let bytes = pattern::bytes(command.sequence, command.offset + sent as u64, PIECE);
        match io::send(fd, &bytes, libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL) {
            Got::Errno(error) => {
                let said = shunt_differential::calls::errno_name(error);
                return Reply { said, moved: sent as u64 };
            }
            got => sent += got.count().unwrap_or(0),
        }
    }
    Reply { said: "never full".to_owned(), moved: sent as u64 }
}

pub fn send_pieces(fd: Fd, size: u32, piece: u32, command: &Command) -> Reply {
    let (size, piece) = (size as usize, piece.max(1) as usize);
    let mut sent = 0;
    while sent < size {
        let from = command.offset + sent as u64;
        let bytes = pattern::bytes(command.sequence, from, piece.min(size - sent));
        let mut done = 0;
        while done < bytes.len() {
            match io::send(fd, &bytes[done..], libc::MSG_NOSIGNAL) {
                Got::Errno(libc::EAGAIN) => {
                    wait::poll(&[(fd, libc::POLLOUT)], 10_000);
                }
                Got::Errno(libc::EINTR) => {}
                Got::Errno(error) => {
                    let said = shunt_differential::calls::errno_name(error);
                    return Reply { said, moved: (sent + done) as u64 };
                }
                got => done += got.count().unwrap_or(0),
            }
        }
        sent += done;
    }
    Reply { said: "all".to_owned(), moved: sent as u64 }
}

/// What one receiving call gave: the bytes themselves, where the call shows them.
fn receive_once(fd: Fd, size: usize, call: ReceiveCall, flags: i32) -> (Got, Vec<u8>) {
    let mut room = vec![0; size];
    let split = || vec![vec![0u8; size / 3], Vec::new(), vec![0u8; size - size / 3]];
    let got = match call {
        ReceiveCall::Recv => io::recv(fd, &mut room, flags),
        ReceiveCall::Read => io::read(fd, &mut room),
        ReceiveCall::Recvfrom => io::recvfrom(fd, &mut room, flags).0,
        ReceiveCall::Number => io::recv_by_number(fd, &mut room),
        ReceiveCall::Readv => {
            let mut parts = split();
            let got = io::readv(fd, &mut parts);
            room = parts.concat();
            got
        }
        ReceiveCall::Recvmsg => {
            let message = io::recvmsg(fd, &[size / 3, 0, size - size / 3], flags);
            room = message.parts.concat();
            message.got
        }
        ReceiveCall::Recvmmsg => {
            let (got, lengths, parts) = io::recvmmsg(fd, &[size], flags);
            room = parts.concat();
            match got {
                Got::Value(1) => Got::Value(lengths[0].into()),
                got => got,
            }
        }
        ReceiveCall::Splice => return splice(fd, size),
    };
    (got, room)
}

fn splice(fd: Fd, size: usize) -> (Got, Vec<u8>) {
    let (out, into) = socket::pipe();
    let mut room = vec![0; size.min(1 << 16)];
    let got = io::splice(fd, into, room.len(), libc::SPLICE_F_NONBLOCK);
    if let Some(count) = got.count().filter(|&count| count > 0) {
        io::read(out, &mut room[..count]);
    }
    socket::close(out);
    socket::close(into);
    (got, room)
}

pub fn receive(fd: Fd, size: u32, call: ReceiveCall, flags: &[Flag], command: &Command) -> Reply {
    let (size, waiting) = (size as usize, command.waiting.min(u64::from(size)) as usize);
    let has = |flag| flags.contains(&flag);
    let whole = has(Flag::WaitAll) && !has(Flag::DontWait);
    let give_up = Instant::now() + ARRIVAL;
    let mut taken = 0;
    loop {
        let (got, room) = receive_once(fd, size - taken, call, bits(flags));
        let count = got.count().unwrap_or(0);
        let from = command.offset + taken as u64;
        if !has(Flag::Trunc) && room[..count] != pattern::bytes(command.sequence, from, count) {
            return wrong(&room[..count], from, command);
        }
        if has(Flag::Peek) {
            if count >= waiting || command.may_sleep || Instant::now() > give_up {
                return Reply::said(amount(got, count, size, waiting));
            }
            wait::poll(&[], 1);
            continue;
        }
        taken += count;
        let late = got.is(libc::EAGAIN) && taken < waiting && Instant::now() < give_up;
        if late {
            wait::poll(&[(fd, libc::POLLIN)], 20);
        } else if count == 0 || taken >= waiting || whole || command.may_sleep {
            let said = amount(got, taken, size, waiting);
            return Reply { said, moved: taken as u64 };
        }
    }
}

fn amount(got: Got, count: usize, size: usize, waiting: usize) -> String {
    match got {
        Got::Errno(_) if count == 0 => got.to_string(),
        Got::Errno(_) => format!("{count} of {waiting}, then {got}"),
        Got::ValueTouchedErrno(_) => format!("{count}, and errno was changed"),
        _ if count == 0 => "0".to_owned(),
        _ if count == size => "as many as asked for".to_owned(),
        _ if count == waiting => "as many as there were".to_owned(),
        _ if count > waiting => format!("more than {waiting} known"),
        _ => format!("{count} of {waiting}"),
    }
}

fn wrong(room: &[u8], from: u64, command: &Command) -> Reply {
    let expected = pattern::bytes(command.sequence, from, room.len());
    let at = room.iter().zip(&expected).position(|(got, want)| got != want).unwrap_or(0);
    let after = &room[at..];
    let head = &after[..after.len().min(16)];
    // Where the bytes that came instead stand, if they are of this sequence at all.
    let near = pattern::bytes(command.sequence, 0, (from as usize + room.len() + (1 << 16)) * 2);
    let place = (head.len() >= 8)
        .then(|| near.windows(head.len()).position(|window| window == head))
        .flatten();
    let said = match place {
        Some(place) => format!(
            "wrong at byte {} of the call, by {}",
            at,
            place as i64 - (from as i64 + at as i64)
        ),
        None => format!(
            "wrong at byte {at} of the call, of {}: {head:02x?} for {:02x?}",
            room.len(),
            &expected[at..at + head.len()]
        ),
    };
    Reply { said, moved: room.len() as u64 }
}

/// Takes all that is on its way.
pub fn drain(fd: Fd, piece: u32, command: &Command) -> Reply {
    // Who sleeps under a mark is not told of a rest that is smaller.
    let marked = socket::get_int(fd, libc::SOL_SOCKET, libc::SO_RCVLOWAT) != "1";
    let flags = if marked { libc::MSG_DONTWAIT } else { 0 };
    let mut room = vec![0; piece.max(1) as usize];
    let mut taken = 0;
    while taken < command.waiting {
        let want = room.len().min((command.waiting - taken) as usize);
        match io::recv(fd, &mut room[..want], flags) {
            Got::Errno(libc::EAGAIN) if marked => drop(wait::poll(&[], 1)),
            Got::Errno(libc::EAGAIN) => {
                wait::poll(&[(fd, libc::POLLIN)], 10_000);
            }
            Got::Errno(libc::EINTR) => {}
            got => match got.count() {
                None | Some(0) => {
                    return Reply { said: format!("ended early: {got}"), moved: taken };
                }
                Some(count) => {
                    let from = command.offset + taken;
                    if room[..count] != pattern::bytes(command.sequence, from, count) {
                        return wrong(&room[..count], from, command);
                    }
                    taken += count as u64;
                }
            },
        }
    }
    Reply { said: "all of it".to_owned(), moved: taken }
}

pub fn take_urgent(fd: Fd) -> Reply {
    let give_up = Instant::now() + ARRIVAL;
    while wait::poll(&[(fd, libc::POLLPRI)], 1).1[0] == 0 && Instant::now() < give_up {}
    let mut room = [0; 2];
    let got = io::recv(fd, &mut room, libc::MSG_OOB | libc::MSG_DONTWAIT);
    Reply::said(format!("{got} {:?}", char::from(room[0])))
}

/// Small messages to and fro, blocking or not.
pub fn ping(fd: Fd, rounds: u32) -> Reply {
    for _ in 0..rounds {
        if !whole_message(fd, true) || !whole_message(fd, false) {
            return Reply::said("broken");
        }
    }
    Reply::said("done")
}

pub fn pong(fd: Fd, rounds: u32) -> Reply {
    for _ in 0..rounds {
        if !whole_message(fd, false) || !whole_message(fd, true) {
            return Reply::said("broken");
        }
    }
    Reply::said("done")
}

fn whole_message(fd: Fd, out: bool) -> bool {
    let mut room = *b"a message";
    loop {
        let got = if out {
            io::send(fd, &room, libc::MSG_NOSIGNAL)
        } else {
            io::recv(fd, &mut room, libc::MSG_WAITALL)
        };
        match got {
            Got::Errno(libc::EAGAIN) => {
                wait::poll(&[(fd, if out { libc::POLLOUT } else { libc::POLLIN })], 10_000);
            }
            got => return got.count() == Some(room.len()) && &room == b"a message",
        }
    }
}
