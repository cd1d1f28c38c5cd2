//! What a carrier does with bytes between the send and the receive.

use super::driver::*;
use super::subject::Subject;
use super::Of;
use crate::{Carrier, How, Received, Sender, Sent};

/// More than any carrier here keeps.
const KEPT_BYTES_MAX: u64 = 8 << 20;
/// So often `Full` in turn is no accident.
const FULL_TRIES: u32 = 50;

/// Sends until the carrier is full; says how many bytes it took.
pub(super) fn stuff(sender: &mut impl Sender) -> u64 {
    let (mut total, mut full) = (0, 0);
    let mut bytes = [0; 1000];
    while full < FULL_TRIES {
        fill(&mut bytes, total);
        match send(sender, &bytes).expect("a sound carrier") {
            Sent::Took(count) => {
                total += count as u64;
                full = 0;
            }
            Sent::Full => full += 1,
        }
        assert!(total < KEPT_BYTES_MAX, "takes without end what nobody reads");
    }
    total
}

pub(super) fn full_until_drained<S: Subject>() {
    assert!(Of::<S>::CAPABILITIES.flow_control);
    let (mut near, mut far) = S::pair();
    let mut at = 0;
    for round in 0..3 {
        let total = stuff(&mut near.sender);
        assert!(total > 0);
        // The pattern starts anew in each round.
        receive_pattern(&mut far.receiver, 0, total, 4000, round);
        await_ready(&mut near.sender).expect("room after all was taken");
        at += total;
    }
    assert!(at > 0);
    shut(&mut near.sender);
    expect_end(&mut far.receiver);
}

pub(super) fn accepted_bytes_are_the_carriers_own<S: Subject>() {
    assert!(Of::<S>::CAPABILITIES.keeps_bytes);
    let (mut near, mut far) = S::pair();
    let mut bytes = [0; 3000];
    fill(&mut bytes, 0);
    let mut sent = 0;
    while sent < bytes.len() {
        if let Sent::Took(count) = send(&mut near.sender, &bytes[sent..]).expect("sound") {
            bytes[sent..sent + count].fill(0);
            sent += count;
        }
    }
    receive_pattern(&mut far.receiver, 0, 3000, 3000, 1);
}

pub(super) fn unread_bytes_are_known_where_declared<S: Subject>() {
    let known = |count| Of::<S>::CAPABILITIES.completions.then_some(count);
    let (mut near, mut far) = S::pair();
    assert_eq!(near.sender.unread(), Ok(known(0)));
    send_pattern(&mut near.sender, 0, 1000, 100, 1);
    assert_eq!(near.sender.unread(), Ok(known(1000)));
    receive_pattern(&mut far.receiver, 0, 400, 400, 1);
    assert_eq!(near.sender.unread(), Ok(known(600)));
    receive_pattern(&mut far.receiver, 400, 1000, 600, 1);
    assert_eq!(near.sender.unread(), Ok(known(0)));
}

/// A carrier that keeps borders would give one send with each receive.
pub(super) fn small_sends_coalesce_where_declared<S: Subject>() {
    let (mut near, mut far) = S::pair();
    let (mut sent, mut receives) = (0, 0);
    for _ in 0..100 {
        send_pattern(&mut near.sender, sent, sent + 10, 10, 1);
        sent += 10;
    }
    let mut got = 0;
    while got < sent {
        let mut bytes = [0; 1000];
        match receive(&mut far.receiver, &mut bytes, How::TAKE).expect("a sound carrier") {
            Received::Bytes(count) => {
                check(&bytes[..count], got);
                got += count as u64;
                receives += 1;
            }
            Received::Empty => await_ready(&mut far.receiver).expect("a sound carrier"),
            Received::Ended => panic!("an end that nobody made"),
        }
    }
    let capabilities = Of::<S>::CAPABILITIES;
    if capabilities.coalesces && capabilities.exact_readiness {
        assert!(receives < 100, "{receives} receives for 100 sends");
    }
}
