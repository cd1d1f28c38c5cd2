//! How a direction ends: as told, behind its last byte; or broken, and then with no byte more.

use std::thread;

use super::driver::*;
use super::subject::{worsen, Subject};
use super::Of;
use crate::faulty::Faults;
use crate::{Carrier, Failure, How, Received, Receiver, Sent};

pub(super) fn half_close_leaves_data_in_flight_and_the_other_direction<S: Subject>() {
    const TOTAL: u64 = 500_000;
    let (mut near, mut far) = S::pair();
    thread::scope(|scope| {
        scope.spawn(|| {
            send_pattern(&mut near.sender, 0, TOTAL, 10_000, 1);
            shut(&mut near.sender);
        });
        receive_pattern(&mut far.receiver, 0, TOTAL, 10_000, 2);
    });
    expect_end(&mut far.receiver);
    thread::scope(|scope| {
        scope.spawn(|| send_pattern(&mut far.sender, 0, TOTAL, 10_000, 3));
        receive_pattern(&mut near.receiver, 0, TOTAL, 10_000, 4);
    });
    shut(&mut far.sender);
    expect_end(&mut near.receiver);
}

pub(super) fn the_end_comes_after_the_last_byte<S: Subject>() {
    let (mut near, mut far) = S::pair();
    send_pattern(&mut near.sender, 0, 3000, 500, 1);
    shut(&mut near.sender);
    receive_pattern(&mut far.receiver, 0, 3000, 7, 2);
    expect_end(&mut far.receiver);
}

/// Takes what comes until something else than bytes does.
fn drain(receiver: &mut impl Receiver, sent: u64) -> (u64, Result<Received, Failure>) {
    let mut got = 0;
    loop {
        let mut bytes = [0; 300];
        match receive(receiver, &mut bytes, How::TAKE) {
            Ok(Received::Bytes(count)) => {
                check(&bytes[..count], got);
                got += count as u64;
                assert!(got <= sent, "bytes that nobody sent");
            }
            Ok(Received::Empty) => match await_ready(receiver) {
                Ok(()) => {}
                Err(failure) => return (got, Err(failure)),
            },
            other => return (got, other),
        }
    }
}

pub(super) fn breakage_is_an_error_and_never_data<S: Subject>() {
    for sent in [0, 1000] {
        let (mut near, mut far) = S::pair();
        send_pattern(&mut far.sender, 0, sent, 1000, 1);
        S::sever(far);
        let (_, outcome) = drain(&mut near.receiver, sent);
        assert!(outcome.is_err(), "{outcome:?} instead of a failure");
        let bytes = [0; 1000];
        let failed = (0..100_000).any(|_| send(&mut near.sender, &bytes).is_err());
        assert!(failed, "takes bytes for a peer that broke");
    }
}

pub(super) fn death_is_told_where_declared_and_invents_nothing<S: Subject>() {
    let (mut near, mut far) = S::pair();
    send_pattern(&mut far.sender, 0, 1000, 1000, 1);
    drop(far);
    if Of::<S>::CAPABILITIES.tells_of_death {
        let (got, outcome) = drain(&mut near.receiver, 1000);
        assert!(matches!(outcome, Ok(Received::Ended) | Err(_)), "{outcome:?}");
        assert_eq!(got, 1000);
        return;
    }
    receive_pattern(&mut near.receiver, 0, 1000, 1000, 1);
    for _ in 0..100 {
        assert_eq!(receive(&mut near.receiver, &mut [0], How::TAKE), Ok(Received::Empty));
    }
}

pub(super) fn a_sender_that_breaks_at_a_byte_has_sent_those_before_it<S: Subject>() {
    for at in [0, 1, 777, 30_000] {
        let (near, mut far) = S::pair();
        let mut near = worsen(near, Faults::HARMLESS.breaking_at(at));
        thread::scope(|scope| {
            scope.spawn(|| {
                let mut bytes = vec![0; at as usize + 10];
                fill(&mut bytes, 0);
                assert_eq!(send_all(&mut near.sender, &bytes), Err(Failure::Lost));
                assert_eq!(send(&mut near.sender, &bytes), Err(Failure::Lost));
            });
            receive_pattern(&mut far.receiver, 0, at, 5000, 1);
        });
        assert_eq!(receive(&mut far.receiver, &mut [0], How::TAKE), Ok(Received::Empty));
    }
}

pub(super) fn a_receiver_that_breaks_at_a_byte_has_given_those_before_it<S: Subject>() {
    for at in [0, 1, 777, 30_000] {
        let (mut near, far) = S::pair();
        let mut far = worsen(far, Faults::HARMLESS.breaking_at(at));
        thread::scope(|scope| {
            scope.spawn(|| {
                let (got, outcome) = drain(&mut far.receiver, at);
                assert_eq!((got, outcome), (at, Err(Failure::Lost)));
            });
            // Beyond the break goes only what the carrier keeps.
            send_pattern(&mut near.sender, 0, at, 5000, 1);
            assert!(matches!(send(&mut near.sender, &[0]), Ok(Sent::Took(1) | Sent::Full)));
        });
    }
}
