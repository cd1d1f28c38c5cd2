//! Readiness and waiting: who is told to wait is told when to go on.

use std::thread;

use super::driver::*;
use super::pressure::stuff;
use super::subject::Subject;
use super::Of;
use crate::carrier::Half;
use crate::faulty::Dice;
use crate::{Carrier, How, Received, Sent};

pub(super) fn ready_means_progress<S: Subject>() {
    let exact = Of::<S>::CAPABILITIES.exact_readiness;
    let (mut near, mut far) = S::pair();
    let mut dice = Dice::new(7);
    let (mut sent, mut got) = (0, 0);
    let mut buffer = vec![0; 4000];
    assert!(!exact || !far.receiver.ready().expect("sound"), "ready for what nobody sent");
    for step in 0..4000 {
        let count = 1 + dice.below(4000) as usize;
        if dice.hits(50) && near.sender.ready().expect("a sound carrier") {
            fill(&mut buffer[..count], sent);
            match send(&mut near.sender, &buffer[..count]).expect("a sound carrier") {
                Sent::Took(count) => sent += count as u64,
                Sent::Full => assert!(!exact, "full though ready, step {step}"),
            }
        } else if far.receiver.ready().expect("a sound carrier") {
            match receive(&mut far.receiver, &mut buffer[..count], How::TAKE).expect("sound") {
                Received::Bytes(count) => {
                    check(&buffer[..count], got);
                    got += count as u64;
                }
                Received::Empty => assert!(!exact, "empty though ready, step {step}"),
                Received::Ended => panic!("an end that nobody made"),
            }
        }
    }
    assert!(got > 0);
    receive_pattern(&mut far.receiver, got, sent, 4000, 1);
    shut(&mut near.sender);
    await_ready(&mut far.receiver).expect("an end is ready");
    expect_end(&mut far.receiver);
}

/// One byte to and fro: each side sleeps, or nearly, at every turn.
pub(super) fn no_wake_up_is_lost<S: Subject>() {
    const TURNS: u64 = 3000;
    let (mut near, mut far) = S::pair();
    thread::scope(|scope| {
        scope.spawn(|| {
            for turn in 0..TURNS {
                send_pattern(&mut near.sender, turn, turn + 1, 1, 1);
                receive_pattern(&mut near.receiver, turn, turn + 1, 1, 1);
            }
        });
        scope.spawn(|| {
            for turn in 0..TURNS {
                receive_pattern(&mut far.receiver, turn, turn + 1, 1, 1);
                send_pattern(&mut far.sender, turn, turn + 1, 1, 1);
            }
        });
    });
}

/// Between announcing and sleeping anything may happen; the sleep then ends at once.
pub(super) fn news_after_the_announcement_end_the_wait<S: Subject>() {
    let (mut near, mut far) = S::pair();
    let wait = far.receiver.announce();
    send_pattern(&mut near.sender, 0, 1, 1, 1);
    sleep(wait);
    receive_pattern(&mut far.receiver, 0, 1, 1, 1);
    let wait = far.receiver.announce();
    shut(&mut near.sender);
    sleep(wait);
    expect_end(&mut far.receiver);
}

pub(super) fn room_after_the_announcement_ends_the_wait<S: Subject>() {
    let (mut near, mut far) = S::pair();
    let total = stuff(&mut near.sender);
    let wait = near.sender.announce();
    receive_pattern(&mut far.receiver, 0, total, 4000, 1);
    sleep(wait);
    await_ready(&mut near.sender).expect("room after all was taken");
}
