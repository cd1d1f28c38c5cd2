//! A peer that scribbles over every word of the mapping never makes this side panic or reach
//! outside of it. The guards of the rig, miri and AddressSanitizer watch the reach.
// UNSAFETY: hands buffers to the two ends by address.
#![allow(unsafe_code)]

use proptest::prelude::*;

use crate::rig::{cases, Rig};
use crate::sync::{AtomicU32, Relaxed};
use crate::{Consumer, Corrupt, Direction, Producer, ReadyMap, BELLS, SLOTS};

#[derive(Clone, Copy, Debug)]
enum Word {
    Tail,
    UpAt,
    Reserved,
    Since,
    Latest(usize),
    Head,
    End,
    DataWanted,
    SpaceWanted,
    Origin,
    Held,
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Scribble(Word, u64),
    /// Scribbles a value near what stands there: plausible lies.
    Nudge(Word, i8),
    Write(usize),
    WriteInPlace(usize),
    Read(usize),
    Peek(usize, usize),
    ReadInPlace(usize),
    CopyBack(u64, usize),
    Look,
    Wait,
    StartAt(u64),
    Attach,
    Hold(usize),
    ShowHeld,
}

fn word() -> impl Strategy<Value = Word> {
    use Word::*;
    prop::sample::select(
        &[
            Tail,
            UpAt,
            Reserved,
            Since,
            Latest(0),
            Latest(3),
            Head,
            End,
            DataWanted,
            SpaceWanted,
            Origin,
            Held,
        ][..],
    )
}

fn value() -> impl Strategy<Value = u64> {
    prop_oneof![any::<u64>(), 0u64..200, u64::MAX - 200..=u64::MAX, (0..64u32).prop_map(|b| 1 << b)]
}

const BUFFER: usize = 200;

fn step() -> impl Strategy<Value = Step> {
    use Step::*;
    let len = || 0..=BUFFER;
    prop_oneof![
        3 => (word(), value()).prop_map(|(word, value)| Scribble(word, value)),
        3 => (word(), any::<i8>()).prop_map(|(word, by)| Nudge(word, by)),
        2 => len().prop_map(Write),
        2 => len().prop_map(WriteInPlace),
        2 => len().prop_map(Read),
        2 => (prop_oneof![len(), Just(usize::MAX)], len()).prop_map(|(skip, len)| Peek(skip, len)),
        2 => len().prop_map(ReadInPlace),
        2 => (value(), len()).prop_map(|(from, len)| CopyBack(from, len)),
        1 => Just(Look),
        1 => Just(Wait),
        1 => value().prop_map(StartAt),
        1 => Just(Attach),
        1 => len().prop_map(Hold),
        1 => Just(ShowHeld),
    ]
}

fn scribble(direction: &Direction, word: Word, change: impl Fn(u64) -> u64) {
    let wide = match word {
        Word::Tail => &direction.producer.tail,
        Word::UpAt => &direction.producer.up_at,
        Word::Reserved => &direction.producer.reserved,
        Word::Since => &direction.producer.since,
        Word::Latest(word) => &direction.producer.latest[word],
        Word::Head => &direction.consumer.head,
        Word::End => &direction.wake.end,
        Word::Origin => &direction.wake.origin,
        Word::Held => &direction.wake.held,
        narrow => return scribble_narrow(direction, narrow, change),
    };
    wide.store(change(wide.load(Relaxed)), Relaxed);
}

fn scribble_narrow(direction: &Direction, word: Word, change: impl Fn(u64) -> u64) {
    let narrow = match word {
        Word::DataWanted => &direction.wake.data_wanted,
        _ => &direction.wake.space_wanted,
    };
    narrow.store(change(narrow.load(Relaxed).into()) as u32, Relaxed);
}

struct Victim {
    rig: Rig,
    producer: Producer,
    consumer: Consumer,
    capacity: usize,
    buffer: [u8; BUFFER],
}

impl Victim {
    fn new(capacity: usize) -> Victim {
        let rig = Rig::new(capacity as u32);
        let (producer, consumer) = (rig.producer(), rig.consumer());
        Victim { rig, producer, consumer, capacity, buffer: [7; BUFFER] }
    }

    /// What each call answers is a count that its caller may rely on, or `Corrupt`.
    fn perform(&mut self, step: Step) -> Result<(), Corrupt> {
        let direction = self.rig.direction();
        let buffer = self.buffer.as_mut_ptr();
        match step {
            Step::Scribble(word, value) => scribble(direction, word, |_| value),
            Step::Nudge(word, by) => scribble(direction, word, |now| now.wrapping_add(by as u64)),
            Step::Write(len) => {
                // SAFETY: lengths are at most the buffer's.
                let count = unsafe { self.producer.write(buffer, len)? };
                assert!(count <= len && count <= self.capacity);
            }
            Step::WriteInPlace(len) => {
                let (place, room) = self.producer.writable()?;
                let count = len.min(room);
                // SAFETY: exactly what `writable` offered; a lie would show in the guards.
                unsafe { place.write_bytes(9, count) };
                self.producer.stage(count);
                self.producer.publish();
            }
            Step::Read(len) => {
                // SAFETY: lengths are at most the buffer's.
                let count = unsafe { self.consumer.read(buffer, len)? };
                assert!(count <= len && count <= self.capacity);
            }
            Step::Peek(skip, len) => {
                // SAFETY: lengths are at most the buffer's.
                let count = unsafe { self.consumer.peek(skip, buffer, len)? };
                assert!(count <= len && count <= self.capacity);
            }
            Step::ReadInPlace(len) => {
                let (place, there) = self.consumer.readable()?;
                let count = len.min(there);
                // SAFETY: exactly what `readable` offered, and at most the buffer's length.
                unsafe { place.copy_to_nonoverlapping(self.buffer_start(), count) };
                self.consumer.skip(count);
            }
            // SAFETY: lengths are at most the buffer's.
            Step::CopyBack(from, len) => unsafe { self.producer.copy_back(from, buffer, len)? },
            Step::Look => {
                assert!(self.producer.free()? <= self.capacity);
                assert!(self.producer.unread()? <= self.capacity as u64);
                assert!(self.consumer.available()? <= self.capacity);
                assert!(self.consumer.available_fresh()? <= self.capacity);
            }
            Step::Wait => {
                self.producer.want_space(1);
                self.consumer.want_data(2);
                self.producer.take_data_waiters();
                self.consumer.take_space_waiters();
            }
            Step::StartAt(offset) => {
                self.producer.start_at(offset);
                self.consumer.start_at(direction.up_at());
            }
            Step::Hold(len) => {
                // SAFETY: lengths are at most the buffer's.
                let count = unsafe { self.producer.stage_copy(buffer, len)? };
                assert!(count <= len && count <= self.capacity);
                self.producer.hold();
            }
            Step::ShowHeld => direction.show_held(self.capacity as u64),
            Step::Attach => {
                self.producer = self.rig.producer();
                self.consumer = self.rig.consumer();
            }
        }
        Ok(())
    }

    fn buffer_start(&mut self) -> core::ptr::NonNull<u8> {
        core::ptr::NonNull::from(&mut self.buffer).cast()
    }
}

proptest! {
    #![proptest_config(cases(1_000, 6))]

    #[test]
    fn scribbled_words_never_panic_and_never_reach_outside(
        log in 0u32..8,
        steps in prop::collection::vec(step(), 0..if cfg!(miri) { 25 } else { 200 }),
    ) {
        let mut victim = Victim::new(1 << log);
        for step in steps {
            let _ = victim.perform(step);
            prop_assert!(victim.rig.guards_are_whole());
        }
    }

    #[test]
    fn scribbled_indices_are_believed_only_if_plausible(
        capacity_log in 0u32..8,
        start in 0u64..1 << 61,
        head in value(),
        tail in value(),
    ) {
        let capacity = 1u64 << capacity_log;
        let mut victim = Victim::new(capacity as usize);
        victim.producer.start_at(start);
        victim.consumer.start_at(start);
        victim.rig.direction().set_tail(tail);
        let plausible = tail >= start && tail - start <= capacity;
        prop_assert_eq!(victim.consumer.available_fresh().is_ok(), plausible);
        victim.rig.direction().set_head(head);
        // A head before the segment is one that has not crossed over yet; the tail is our own.
        prop_assert_eq!(victim.producer.unread().is_ok(), head <= start);
    }
}

#[test]
fn an_index_that_goes_back_is_corrupt() {
    let mut victim = Victim::new(16);
    victim.perform(Step::Write(10)).unwrap();
    victim.perform(Step::Read(4)).unwrap();
    assert_eq!(victim.producer.unread(), Ok(6));
    victim.rig.direction().set_head(3);
    assert_eq!(victim.producer.unread(), Err(Corrupt));
    victim.rig.direction().set_tail(9);
    assert_eq!(victim.consumer.available_fresh(), Err(Corrupt));
}

#[test]
fn words_of_a_hostile_writer_change_bytes_and_nothing_else() {
    for (reserved, since) in [(0, 0), (u64::MAX, 0), (10, u64::MAX), (42, 0), (10, 10), (9, 9)] {
        let mut victim = Victim::new(64);
        victim.perform(Step::Write(10)).unwrap();
        let line = &victim.rig.direction().producer;
        line.reserved.store(reserved, Relaxed);
        line.since.store(since, Relaxed);
        line.latest.iter().for_each(|word| word.store(u64::MAX, Relaxed));
        let mut got = [1u8; 12];
        // SAFETY: the buffer has that many.
        assert_eq!(unsafe { victim.consumer.read(got.as_mut_ptr(), 12) }, Ok(10));
        assert!(got[..10] == [7; 10] || got[..10] == [0xFF; 10]);
        assert_eq!(got[10..], [1, 1]);
        assert_eq!(victim.producer.unread(), Ok(0));
    }
}

proptest! {
    #![proptest_config(cases(500, 2))]

    #[test]
    fn a_drain_gives_each_marked_slot_once(
        slots in prop::collection::vec(0..SLOTS + 100, 0..if cfg!(miri) { 20 } else { 200 }),
    ) {
        let map = ReadyMap::new();
        slots.iter().for_each(|&slot| map.mark(slot));
        let mut marked: Vec<u32> = slots.into_iter().filter(|&slot| slot < SLOTS).collect();
        marked.sort_unstable();
        marked.dedup();
        prop_assert_eq!(map.any(), !marked.is_empty());
        let mut drained = Vec::new();
        map.drain(|slot| drained.push(slot));
        prop_assert_eq!(drained, marked);
        prop_assert!(!map.any());
        map.drain(|_| panic!("a slot came twice"));
    }
}

#[test]
fn a_scribbled_map_gives_only_slots_that_exist() {
    // SAFETY: any bytes are a valid map; this is what a peer could leave there.
    let map: ReadyMap = unsafe {
        let mut map = core::mem::MaybeUninit::<ReadyMap>::uninit();
        map.as_mut_ptr().cast::<u8>().write_bytes(0xFF, size_of::<ReadyMap>());
        map.assume_init()
    };
    let mut count = 0;
    map.drain(|slot| {
        assert!(slot < SLOTS);
        count += 1;
    });
    assert_eq!(count, SLOTS);
    for bell in [0, 1, BELLS as u32, u32::MAX] {
        map.retract_sleep(bell);
        map.announce_sleep(bell);
        let rung = map.take_sleeper(&AtomicU32::new(bell));
        assert!(rung.is_none_or(|rung| (rung as usize) < BELLS));
    }
}

#[test]
fn a_bell_is_rung_once_until_it_is_answered() {
    let map = ReadyMap::new();
    for bell in 0..BELLS as u32 {
        let told_by = AtomicU32::new(bell);
        assert_eq!(map.take_sleeper(&told_by), None, "nobody sleeps");
        map.announce_sleep(bell);
        map.announce_sleep(bell);
        assert_eq!(map.take_sleeper(&told_by), Some(bell));
        assert_eq!(map.take_sleeper(&told_by), None, "rung already");
        map.retract_sleep(bell);
        assert_eq!(map.take_sleeper(&told_by), Some(bell), "the other one still sleeps");
        map.retract_sleep(bell);
        assert_eq!(map.take_sleeper(&told_by), None, "nobody sleeps");
        map.retract_sleep(bell);
        assert_eq!(map.take_sleeper(&told_by), None, "one retraction too many does no harm");
    }
}

#[test]
fn a_stream_is_told_of_by_its_own_bell() {
    let map = ReadyMap::new();
    map.announce_sleep(0);
    map.announce_sleep(1);
    let (of_all, of_some) = (AtomicU32::new(0), AtomicU32::new(1));
    assert_eq!(map.take_sleeper(&of_some), Some(1));
    assert_eq!(map.take_sleeper(&of_some), None, "rung already");
    assert_eq!(map.take_sleeper(&of_all), Some(0));
    let of_none = AtomicU32::new(2);
    assert_eq!(map.take_sleeper(&of_none), None, "nobody sleeps by that one");
}
