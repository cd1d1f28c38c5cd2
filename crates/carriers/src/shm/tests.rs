//! What only shared memory has: segments that have not begun or were left, bells, words that lie.
// UNSAFETY: gives receivers buffers of its own.
#![allow(unsafe_code)]

use core::sync::atomic::Ordering::Relaxed;

use shunt_link::{Link, VACANT};
use shunt_os::handles;
use shunt_ring::{FUTEX, WAIT_SET};
use shunt_stream::{End as Word, Reader, Words, Writer};

use crate::conformance::subject::{slot_pair, up, End, ShmSubject, Subject, RING_BYTES, SLOT};
use crate::conformance::{await_ready, receive, send};
use crate::shm::{incoming, outgoing, Shm, WHOLE};
use crate::{Failure, How, Part, Received, Sender, Sent, Shut};

const RING: usize = RING_BYTES as usize;

fn link_of(end: &End<Shm>) -> &'static Link {
    end.ground.downcast_ref::<&'static Link>().expect("a link")
}

fn space_wanted(end: &End<Shm>) -> u32 {
    end.receiver.ring.direction().wake.space_wanted.load(Relaxed)
}

fn got(count: usize) -> Result<Received, Failure> {
    Ok(Received::Bytes(count))
}

#[test]
fn a_full_ring_that_its_receiver_left_is_not_merely_full() {
    let (mut near, mut far) = slot_pair(RING_BYTES);
    up(&mut near.sender, &mut far.receiver, 0);
    assert_eq!(send(&mut near.sender, &[1; RING]), Ok(Sent::Took(RING)));
    assert_eq!(send(&mut near.sender, &[1]), Ok(Sent::Full));
    let words = far.receiver.words();
    words.end_cas(Word::Seen.encode(), Word::Stop(0).encode()).expect("nobody else changes it");
    assert_eq!(send(&mut near.sender, &[1]), Err(Failure::Left));
    await_ready(&mut near.sender).expect("who waited is told to try");
    assert_eq!(near.sender.try_shut(), Err(Failure::Left));
}

#[test]
fn a_segment_that_nobody_noticed_is_shut_later() {
    let (mut near, far) = slot_pair(RING_BYTES);
    Reader::new().agree(&far.receiver.words()).expect("honest peers");
    assert!(Writer::new().go_up(&near.sender.words(), 0));
    assert_eq!(near.sender.try_shut(), Ok(Shut::Later));
    let words = far.receiver.words();
    words.end_cas(Word::Open.encode(), Word::Seen.encode()).expect("nobody else changes it");
    assert_eq!(near.sender.try_shut(), Ok(Shut::Done));
    assert_eq!(near.sender.try_shut(), Ok(Shut::Done), "twice is once");
}

#[test]
fn an_end_beyond_the_last_byte_is_a_lie() {
    for lie in [Word::Down(5).encode(), 1 << 3] {
        let (mut near, mut far) = slot_pair(RING_BYTES);
        up(&mut near.sender, &mut far.receiver, 0);
        far.receiver.words().end_cas(Word::Seen.encode(), lie).expect("nobody else changes it");
        assert_eq!(receive(&mut far.receiver, &mut [0], How::TAKE), Err(Failure::Corrupt));
    }
}

/// Two processes have the ring's memory; the second receiver stands for that of the other one.
#[test]
fn what_a_writer_left_is_taken_once() {
    let (mut near, mut far) = <ShmSubject>::pair();
    assert_eq!(send(&mut near.sender, b"remains"), Ok(Sent::Took(7)));
    let link = link_of(&far);
    // SAFETY: the link is for ever, and the two take turns.
    let mut other = unsafe { crate::shm::Receiver::attach(link, SLOT) };
    let take = |receiver: &mut crate::shm::Receiver, how: How| {
        let mut room = [0; 3];
        let base = room.as_mut_ptr();
        let parts = || [Part { base, len: 3 }].into_iter();
        // SAFETY: `room` outlives the call.
        let count = unsafe { receiver.take_remains(parts, how) }.expect("an honest peer");
        String::from_utf8_lossy(&room[..count]).into_owned()
    };
    assert_eq!(take(&mut far.receiver, How::TAKE), "rem");
    assert_eq!(take(&mut other, How::PEEK), "ain");
    assert_eq!(take(&mut other, How::TAKE), "ain");
    assert_eq!(take(&mut far.receiver, How::TAKE), "s");
    assert_eq!(take(&mut other, How::TAKE), "");
}

/// The last bytes and the end are published between a look into the ring and one at the word.
#[test]
fn an_end_seen_before_the_last_bytes_is_no_end_yet() {
    let (mut near, mut far) = <ShmSubject>::pair();
    assert_eq!(send(&mut near.sender, &[1; 5]), Ok(Sent::Took(5)));
    assert_eq!(near.sender.try_shut(), Ok(Shut::Done));
    assert_eq!(far.receiver.ended(), Ok(false));
    assert_eq!(receive(&mut far.receiver, &mut [0; 9], How::TAKE), got(5));
    assert_eq!(receive(&mut far.receiver, &mut [0; 9], How::TAKE), Ok(Received::Ended));
}

#[test]
fn a_slot_that_no_link_has_is_looked_at_in_vain() {
    let (_near, far) = <ShmSubject>::pair();
    let link = link_of(&far);
    for words in [incoming(link, VACANT), outgoing(link, link.memory.slots())] {
        assert!(!words.writer_shut() && !words.fin_is_held() && !words.reader_shares());
        assert_eq!((words.tail(), words.end()), (0, 0));
    }
}

#[test]
fn a_waiting_set_is_marked_and_its_bell_rung_once() {
    let (mut near, mut far) = <ShmSubject>::pair();
    let link = link_of(&far);
    let map = link.own_ready();
    map.announce_sleep(0);
    far.receiver.ring.want_data(WAIT_SET);
    assert_eq!(send(&mut near.sender, &[1]), Ok(Sent::Took(1)));
    let mut marked = VACANT;
    map.drain(|slot| marked = slot);
    assert_eq!(marked, 1);
    assert!(own_bell_rings(link));
    link.with_bells(|bells| handles::silence(bells.own()));
    assert_eq!(send(&mut near.sender, &[2]), Ok(Sent::Took(1)));
    assert!(!own_bell_rings(link), "nobody waits now");
    assert_eq!(receive(&mut far.receiver, &mut [0; 9], How::TAKE), Ok(Received::Bytes(2)));
}

/// Fills a ring in which `room` bytes may lie unread, and has its sender wait.
fn a_quarter_wakes(mut near: End<Shm>, mut far: End<Shm>, room: usize) {
    assert_eq!(send(&mut near.sender, &[1; RING]), Ok(Sent::Took(room)));
    near.sender.ring().want_space(FUTEX);
    let mut bytes = [0; RING];
    let less = &mut bytes[..room / 4 - 1];
    assert_eq!(receive(&mut far.receiver, less, How::TAKE), got(room / 4 - 1));
    assert_ne!(space_wanted(&far) & FUTEX, 0);
    assert_eq!(receive(&mut far.receiver, &mut [0], How::TAKE), got(1));
    assert_eq!(space_wanted(&far) & FUTEX, 0);
}

#[test]
fn a_sender_is_woken_for_a_quarter_of_the_ring_and_not_for_less() {
    let (near, far) = <ShmSubject>::pair();
    a_quarter_wakes(near, far, RING);
}

#[test]
fn a_sender_that_may_have_less_unread_is_woken_for_a_quarter_of_that() {
    let (mut near, far) = <ShmSubject>::pair();
    near.sender.set_room(RING as u64 / 2);
    a_quarter_wakes(near, far, RING / 2);
}

#[test]
fn a_sender_is_not_woken_by_a_receiver_that_knows_of_less_than_is_there() {
    let (mut near, mut far) = <ShmSubject>::pair();
    assert_eq!(send(&mut near.sender, &[1; RING / 2]), Ok(Sent::Took(RING / 2)));
    assert_eq!(receive(&mut far.receiver, &mut [0], How::TAKE), got(1));
    assert_eq!(send(&mut near.sender, &[1; RING]), Ok(Sent::Took(RING / 2 + 1)));
    near.sender.ring().want_space(FUTEX);
    assert_eq!(receive(&mut far.receiver, &mut [0], How::TAKE), got(1));
    assert_ne!(space_wanted(&far) & FUTEX, 0);
}

/// Shows [`WHOLE`] bytes, of a send that goes on for `more`.
fn show(sender: &mut crate::shm::Sender, more: usize) {
    let bytes = [1; WHOLE];
    // SAFETY: the bytes are this function's own.
    let staged = unsafe { sender.ring().stage_copy(bytes.as_ptr(), WHOLE) };
    assert_eq!(staged, Ok(WHOLE));
    sender.ring().announce(more);
    sender.publish();
}

#[test]
fn a_send_that_is_shown_in_pieces_is_taken_together() {
    let (mut near, mut far) = slot_pair(4 * WHOLE as u32);
    up(&mut near.sender, &mut far.receiver, 0);
    let (mut room, mut sent) = ([0; 2 * WHOLE], 0);
    // Who sends the rest may be without a core for longer than a reader waits.
    let together = (0..1000).any(|_| {
        show(&mut near.sender, WHOLE);
        sent += 2 * WHOLE as u64;
        let words = near.sender.words();
        let whole = std::thread::scope(|scope| {
            let sender = &mut near.sender;
            scope.spawn(move || {
                while words.head() < sent - WHOLE as u64 {
                    std::thread::yield_now();
                }
                show(sender, 0);
            });
            receive(&mut far.receiver, &mut room, How::TAKE) == got(2 * WHOLE)
        });
        if !whole {
            assert_eq!(receive(&mut far.receiver, &mut room, How::TAKE), got(WHOLE));
        }
        whole
    });
    assert!(together, "the rest came right behind the beginning, 1000 times");
}

#[test]
fn what_was_announced_and_does_not_come_is_not_waited_for_long() {
    for how in [How::PEEK, How::TAKE] {
        let (mut near, mut far) = slot_pair(4 * WHOLE as u32);
        up(&mut near.sender, &mut far.receiver, 0);
        show(&mut near.sender, 1);
        assert_eq!(receive(&mut far.receiver, &mut [0; 2 * WHOLE], how), got(WHOLE));
    }
}

#[test]
fn a_send_that_found_no_room_announces_nothing() {
    let (mut near, mut far) = slot_pair(4 * WHOLE as u32);
    up(&mut near.sender, &mut far.receiver, 0);
    assert_eq!(send(&mut near.sender, &[1; 5 * WHOLE]), Ok(Sent::Took(4 * WHOLE)));
    assert_eq!(far.receiver.available(), Ok(4 * WHOLE));
    assert!(!far.receiver.ring.is_amid_a_send());
}

fn own_bell_rings(link: &Link) -> bool {
    let mut rings = false;
    link.with_bells(|bells| rings = handles::poll_now(bells.own(), libc::POLLIN) != 0);
    rings
}
