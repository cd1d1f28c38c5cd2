//! Bytes arrive in order and once, in whatever sizes they are sent and received.
// UNSAFETY: hands parts of slices to carriers.
#![allow(unsafe_code)]

use std::thread;

use super::driver::*;
use super::subject::{Subject, RING_BYTES};
use super::Of;
use crate::faulty::Dice;
use crate::{Carrier, How, Part, Received, Receiver, Sender, Sent};

pub(super) fn bytes_arrive_in_order_and_once<S: Subject>() {
    assert!(Of::<S>::CAPABILITIES.ordered, "there is no carrier yet that this suite could test so");
    for (seed, send_max, receive_max) in [(1, 700, 700), (2, 1, 64), (3, 20_000, 300)] {
        let total = if send_max == 1 { 20_000 } else { 1 << 20 };
        let (mut near, mut far) = S::pair();
        thread::scope(|scope| {
            scope.spawn(|| send_pattern(&mut near.sender, 0, total, send_max, seed));
            scope.spawn(|| receive_pattern(&mut far.receiver, 0, total, receive_max, seed + 100));
        });
    }
}

pub(super) fn every_size_arrives_whole<S: Subject>() {
    let (mut near, mut far) = S::pair();
    let ring = RING_BYTES as usize;
    let sizes = [1, 2, 3, 63, 64, 65, 1000, ring / 2 + 1, ring - 1, ring, ring + 1, 3 * ring + 7];
    let sizes = sizes.into_iter().chain([65_535, 65_536, 300_001]);
    let mut offset = 0;
    for size in sizes {
        let mut sent = vec![0; size];
        fill(&mut sent, offset);
        thread::scope(|scope| {
            scope.spawn(|| send_all(&mut near.sender, &sent).expect("a sound carrier"));
            let mut got = vec![0; size];
            assert_eq!(receive_all(&mut far.receiver, &mut got), Ok(size));
            check(&got, offset);
        });
        offset += size as u64;
    }
    shut(&mut near.sender);
    expect_end(&mut far.receiver);
}

pub(super) fn both_directions_run_at_once<S: Subject>() {
    const TOTAL: u64 = 1 << 20;
    let (mut near, mut far) = S::pair();
    thread::scope(|scope| {
        scope.spawn(|| send_pattern(&mut near.sender, 0, TOTAL, 5000, 1));
        scope.spawn(|| receive_pattern(&mut far.receiver, 0, TOTAL, 3000, 2));
        scope.spawn(|| send_pattern(&mut far.sender, 77, 77 + TOTAL, 400, 3));
        scope.spawn(|| receive_pattern(&mut near.receiver, 77, 77 + TOTAL, 9000, 4));
    });
}

pub(super) fn many_small_are_followed_by_few_large<S: Subject>() {
    let (mut near, mut far) = S::pair();
    let (small, large) = (30_000, 2 << 20);
    thread::scope(|scope| {
        scope.spawn(|| {
            send_pattern(&mut near.sender, 0, small, 16, 1);
            send_pattern(&mut near.sender, small, large, 200_000, 2);
        });
        scope.spawn(|| receive_pattern(&mut far.receiver, 0, large, 100_000, 3));
    });
}

/// Cuts a buffer into parts of any size, none included.
fn cut(bytes: &mut [u8], dice: &mut Dice) -> Vec<Part> {
    let mut parts = Vec::new();
    let mut rest = bytes;
    while !rest.is_empty() {
        let count = (dice.below(rest.len() as u64 / 3 + 3) as usize).min(rest.len());
        let (first, behind) = rest.split_at_mut(count);
        parts.push(Part::into(first));
        rest = behind;
    }
    parts
}

pub(super) fn parts_are_gathered_and_scattered<S: Subject>() {
    let mut dice = Dice::new(42);
    let (mut near, mut far) = S::pair();
    let mut offset = 0;
    for size in (1..60).map(|step| step * 37) {
        let (mut sent, mut got) = (vec![0; size], vec![0; size]);
        fill(&mut sent, offset);
        send_parts(&mut near.sender, &cut(&mut sent, &mut dice)).expect("a sound carrier");
        let parts = cut(&mut got, &mut dice);
        assert_eq!(receive_parts(&mut far.receiver, &parts), Ok(size));
        check(&got, offset);
        offset += size as u64;
    }
}

pub(super) fn peeked_bytes_stay_and_discarded_ones_go<S: Subject>() {
    let (mut near, mut far) = S::pair();
    send_pattern(&mut near.sender, 0, 1000, 1000, 1);
    for how in [How::PEEK, How::PEEK] {
        let mut some = [0; 100];
        let count = until_bytes::<S>(&mut far.receiver, &mut some, how);
        check(&some[..count], 0);
    }
    let (mut first, mut second) = ([0; 7], [0; 50]);
    let count = loop {
        let parts = [Part::into(&mut first), Part::into(&mut second)];
        // SAFETY: mutable arrays.
        match unsafe { far.receiver.try_receive(parts.into_iter(), How::PEEK) } {
            Ok(Received::Bytes(count)) => break count,
            other => assert_eq!(other, Ok(Received::Empty)),
        }
    };
    check(&first[..count.min(7)], 0);
    check(&second[..count.saturating_sub(7)], 7);
    let discard = How { peek: false, discard: true };
    let mut untouched = [0xEE; 200];
    let gone = until_bytes::<S>(&mut far.receiver, &mut untouched, discard) as u64;
    assert_eq!(untouched, [0xEE; 200]);
    let counted = How { peek: true, discard: true };
    assert!(until_bytes::<S>(&mut far.receiver, &mut untouched, counted) > 0);
    receive_pattern(&mut far.receiver, gone, 1000, 300, 2);
}

fn until_bytes<S: Subject>(
    receiver: &mut <Of<S> as Carrier>::Receiver,
    bytes: &mut [u8],
    how: How,
) -> usize {
    loop {
        match receive(receiver, bytes, how).expect("a sound carrier") {
            Received::Bytes(count) => return count,
            Received::Empty => await_ready(receiver).expect("a sound carrier"),
            Received::Ended => panic!("an end that nobody made"),
        }
    }
}

pub(super) fn nothing_asked_moves_nothing<S: Subject>() {
    let (mut near, mut far) = S::pair();
    // SAFETY: no parts.
    let sent = unsafe { near.sender.try_send(std::iter::empty()) };
    assert!(matches!(sent, Ok(Sent::Took(0) | Sent::Full)), "{sent:?}");
    assert!(matches!(send(&mut near.sender, &[]), Ok(Sent::Took(0) | Sent::Full)));
    for _ in 0..20 {
        assert_eq!(receive(&mut far.receiver, &mut [0], How::TAKE), Ok(Received::Empty));
    }
    send_pattern(&mut near.sender, 0, 10, 10, 1);
    let nothing = receive(&mut far.receiver, &mut [], How::TAKE);
    assert!(matches!(nothing, Ok(Received::Bytes(0) | Received::Empty)), "{nothing:?}");
    receive_pattern(&mut far.receiver, 0, 10, 10, 1);
}
