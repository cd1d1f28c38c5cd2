//! A peer that writes anything into the words can end its own stream with a violation. It cannot
//! make this side panic, loop, or send bytes that were never written.

use proptest::prelude::*;
use shunt_stream::{Reader, Words, Writer, WriterOn};
use std::cell::Cell;

/// Words that say whatever the peer likes, differently at every look.
struct Hostile {
    values: Vec<u64>,
    at: Cell<usize>,
}

impl Hostile {
    fn next(&self) -> u64 {
        let at = self.at.replace(self.at.get() + 1);
        self.values[at % self.values.len()]
    }
}

impl Words for Hostile {
    fn tail(&self) -> u64 {
        self.next()
    }
    fn set_tail(&self, _: u64) {}
    fn show_held(&self) {}
    fn up_at(&self) -> u64 {
        self.next()
    }
    fn set_up_at(&self, _: u64) {}
    fn head(&self) -> u64 {
        self.next()
    }
    fn end(&self) -> u64 {
        self.next()
    }
    fn end_cas(&self, _: u64, _: u64) -> Result<(), u64> {
        let found = self.next();
        if found.is_multiple_of(2) {
            Ok(())
        } else {
            Err(found)
        }
    }
}

/// Mostly small offsets under every tag, so that checks are passed as well as failed.
fn any_word() -> impl Strategy<Value = u64> {
    prop_oneof![0..256u64, (0..32u64).prop_map(|offset| offset << 3), any::<u64>()]
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(4_000) })]

    #[test]
    fn a_hostile_peer_gets_a_violation_at_most(
        values in prop::collection::vec(any_word(), 1..40),
        calls in prop::collection::vec((0..13u8, 0..40u64), 1..60),
    ) {
        let words = Hostile { values, at: Cell::new(0) };
        let (mut writer, mut reader) = (Writer::new(), Reader::new());
        // A caller's own offsets only grow.
        let (mut tail, mut offset) = (0, 0);
        for (call, by) in calls {
            // An answer or a violation: returning at all is the claim.
            let _ = match call {
                0 => { let _ = writer.go_up(&words, tail); Ok(()) }
                1 => writer.observe(&words, tail).map(drop),
                2 => writer.go_down(&words, tail).map(drop),
                3 => match writer.on() {
                    WriterOn::Resend { from, to } => {
                        prop_assert!(from < to && to <= tail);
                        writer.resent(&words, (from + by).min(to)).map(drop)
                    }
                    WriterOn::Ring => { tail += by; Ok(()) }
                    WriterOn::Tcp => { tail += by; Ok(()) }
                },
                4 => writer.reader_died(&words, tail).map(drop),
                5 => Writer::take_over(&words, by).map(drop),
                6 => reader.agree(&words).map(drop),
                7 => reader.observe(&words, offset).map(drop),
                8 => { offset += by.min(reader.may_read_tcp(offset).unwrap_or(by)); Ok(()) }
                9 => reader.stop(&words, offset).map(drop),
                10 => reader.writer_died(&words, offset).map(drop),
                11 => writer.recall(&words, tail).map(drop),
                _ => reader.tcp_ended(&words, offset).map(drop),
            };
        }
    }
}
