//! What the tests do with halves: send and receive a pattern, waiting as the contract says.
// UNSAFETY: hands slices to carriers, polls descriptors.
#![allow(unsafe_code)]

use std::panic::resume_unwind;
use std::sync::mpsc::{channel, RecvTimeoutError};
use std::time::Duration;

use shunt_os::park;

use crate::carrier::Half;
use crate::faulty::Dice;
use crate::parts::behind;
use crate::{Event, Failure, How, Part, Received, Receiver, Sender, Sent, Shut, Wait};

const WATCHDOG: Duration = Duration::from_secs(100);

/// Runs a test that may hang.
pub(crate) fn watched(test: impl FnOnce() + Send + 'static) {
    let (done, ended) = channel();
    let thread = std::thread::spawn(move || {
        test();
        let _ = done.send(());
    });
    match ended.recv_timeout(WATCHDOG) {
        Err(RecvTimeoutError::Timeout) => panic!("somebody waits for ever"),
        _ => thread.join().unwrap_or_else(|cause| resume_unwind(cause)),
    }
}

/// The byte at an offset of every stream here: neighbours, pages and rings apart differ.
pub(crate) fn byte(offset: u64) -> u8 {
    (offset.wrapping_add(1).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 56) as u8
}

pub(crate) fn fill(bytes: &mut [u8], from: u64) {
    for (at, place) in (from..).zip(bytes) {
        *place = byte(at);
    }
}

#[track_caller]
pub(super) fn check(bytes: &[u8], from: u64) {
    for (at, found) in (from..).zip(bytes) {
        assert_eq!(*found, byte(at), "byte {at}");
    }
}

pub(crate) fn send(sender: &mut impl Sender, bytes: &[u8]) -> Result<Sent, Failure> {
    // SAFETY: a slice is readable.
    unsafe { sender.try_send([Part::of(bytes)].into_iter()) }
}

pub(crate) fn receive(
    receiver: &mut impl Receiver,
    bytes: &mut [u8],
    how: How,
) -> Result<Received, Failure> {
    // SAFETY: a mutable slice is writable.
    unsafe { receiver.try_receive([Part::into(bytes)].into_iter(), how) }
}

/// Announce, look again, sleep.
pub(crate) fn await_ready(half: &mut impl Half) -> Result<(), Failure> {
    while !half.ready()? {
        let wait = half.announce();
        if half.ready()? {
            break;
        }
        sleep(wait);
    }
    Ok(())
}

pub(super) fn sleep(wait: Wait) {
    match wait {
        Wait::Now => {}
        Wait::Word { word, value } => drop(park::wait(word, value, None)),
        Wait::Descriptor { fd, event } => {
            let events = match event {
                Event::Readable => libc::POLLIN,
                Event::Writable => libc::POLLOUT,
            };
            let mut entry = libc::pollfd { fd, events, revents: 0 };
            // SAFETY: one entry.
            unsafe { libc::poll(&raw mut entry, 1, -1) };
        }
    }
}

/// Sends all parts, however many tries that takes.
pub(super) fn send_parts(sender: &mut impl Sender, parts: &[Part]) -> Result<(), Failure> {
    let wanted: usize = parts.iter().map(|part| part.len).sum();
    let mut sent = 0;
    while sent < wanted {
        // SAFETY: the tests' parts are slices.
        match unsafe { sender.try_send(behind(parts.iter().copied(), sent)) }? {
            Sent::Took(count) => {
                assert!(0 < count && count <= wanted - sent, "took {count}");
                sent += count;
            }
            Sent::Full => await_ready(sender)?,
        }
    }
    Ok(())
}

/// Receives until the parts are full or the end; says how many bytes.
pub(super) fn receive_parts(
    receiver: &mut impl Receiver,
    parts: &[Part],
) -> Result<usize, Failure> {
    let wanted: usize = parts.iter().map(|part| part.len).sum();
    let mut got = 0;
    while got < wanted {
        let rest = behind(parts.iter().copied(), got);
        // SAFETY: the tests' parts are mutable slices.
        match unsafe { receiver.try_receive(rest, How::TAKE) }? {
            Received::Bytes(count) => {
                assert!(0 < count && count <= wanted - got, "gave {count}");
                got += count;
            }
            Received::Empty => await_ready(receiver)?,
            Received::Ended => break,
        }
    }
    Ok(got)
}

pub(super) fn send_all(sender: &mut impl Sender, bytes: &[u8]) -> Result<(), Failure> {
    send_parts(sender, &[Part::of(bytes)])
}

pub(super) fn receive_all(
    receiver: &mut impl Receiver,
    bytes: &mut [u8],
) -> Result<usize, Failure> {
    receive_parts(receiver, &[Part::into(bytes)])
}

/// Sends the pattern `from..to` in pieces of at most `piece_max`.
pub(super) fn send_pattern(
    sender: &mut impl Sender,
    from: u64,
    to: u64,
    piece_max: u64,
    seed: u64,
) {
    let mut dice = Dice::new(seed);
    let mut buffer = vec![0; piece_max as usize];
    let mut at = from;
    while at < to {
        let count = (1 + dice.below(piece_max)).min(to - at) as usize;
        fill(&mut buffer[..count], at);
        send_all(sender, &buffer[..count]).expect("a sound carrier");
        at += count as u64;
    }
}

/// Receives the pattern `from..to` in pieces of at most `piece_max`, and nothing else.
pub(super) fn receive_pattern(
    receiver: &mut impl Receiver,
    from: u64,
    to: u64,
    piece_max: u64,
    seed: u64,
) {
    let mut dice = Dice::new(seed);
    let mut buffer = vec![0; piece_max as usize];
    let mut at = from;
    while at < to {
        let wanted = (1 + dice.below(piece_max)).min(to - at) as usize;
        let count = receive_all(receiver, &mut buffer[..wanted]).expect("a sound carrier");
        assert_eq!(count, wanted, "the stream ended early, at {at}");
        check(&buffer[..count], at);
        at += count as u64;
    }
}

/// No byte follows.
pub(super) fn shut(sender: &mut impl Sender) {
    while sender.try_shut().expect("a sound carrier") == Shut::Later {}
}

/// The next thing is the end, and it stays the end.
pub(super) fn expect_end(receiver: &mut impl Receiver) {
    for _ in 0..2 {
        let mut byte = [0];
        let got = receive_all(receiver, &mut byte).expect("an end, not a failure");
        assert_eq!(got, 0, "a byte behind the end");
    }
}
