//! The orderings that `Words` asks for, checked with loom: a whole segment against a reader, with
//! real atomics under the production code. `RUSTFLAGS="--cfg loom" cargo test -p shunt-stream
//! --test orderings --release`. Each mutant weakens one ordering and must be found.
#![cfg(loom)]

// UNSAFETY: only to reach into loom's cells, which check the access themselves.

use loom::cell::UnsafeCell;
use loom::sync::atomic::{AtomicU64, Ordering, Ordering::*};
use loom::sync::Arc;
use loom::thread;
use shunt_stream::{Reader, ReaderOn, Words, Writer, WriterOn};

/// The orderings under test, as `Words` states them.
#[derive(Clone, Copy)]
struct Orderings {
    end_load: Ordering,
    end_cas: Ordering,
    tail_store: Ordering,
    tail_load: Ordering,
}

const AS_STATED: Orderings =
    Orderings { end_load: Acquire, end_cas: AcqRel, tail_store: Release, tail_load: Acquire };

struct Shared {
    orderings: Orderings,
    tail: AtomicU64,
    up_at: AtomicU64,
    head: AtomicU64,
    end: AtomicU64,
    /// Ring bytes 0 and 1. Loom reports a read that races with the write.
    ring: [UnsafeCell<u64>; 2],
    /// How many bytes TCP has brought; the kernel orders them, and nothing else, for us.
    tcp: AtomicU64,
}

impl Words for Shared {
    fn tail(&self) -> u64 {
        self.tail.load(self.orderings.tail_load)
    }
    fn set_tail(&self, offset: u64) {
        self.tail.store(offset, self.orderings.tail_store);
    }
    fn show_held(&self) {}
    fn up_at(&self) -> u64 {
        self.up_at.load(Relaxed)
    }
    fn set_up_at(&self, offset: u64) {
        self.up_at.store(offset, Relaxed);
    }
    fn head(&self) -> u64 {
        self.head.load(Acquire)
    }
    fn end(&self) -> u64 {
        self.end.load(self.orderings.end_load)
    }
    fn end_cas(&self, from: u64, to: u64) -> Result<(), u64> {
        let failed = if self.orderings.end_cas == AcqRel { Acquire } else { Relaxed };
        self.end.compare_exchange(from, to, self.orderings.end_cas, failed).map(drop)
    }
}

impl Shared {
    fn put(&self, offset: u64) {
        // SAFETY: loom checks that nobody reads this byte meanwhile; that is the test.
        #[allow(unsafe_code)]
        self.ring[offset as usize % 2].with_mut(|byte| unsafe { *byte = offset });
        self.set_tail(offset + 1);
    }

    fn get(&self, offset: u64) -> u64 {
        // SAFETY: loom checks that nobody writes this byte meanwhile; that is the test.
        #[allow(unsafe_code)]
        self.ring[offset as usize % 2].with(|byte| unsafe { *byte })
    }
}

/// Byte 0 goes by TCP, byte 1 by the ring, then the writer goes down.
fn run(orderings: Orderings) {
    loom::model(move || {
        let shared = Arc::new(Shared {
            orderings,
            tail: AtomicU64::new(0),
            up_at: AtomicU64::new(0),
            head: AtomicU64::new(0),
            end: AtomicU64::new(0),
            ring: [UnsafeCell::new(7), UnsafeCell::new(7)],
            tcp: AtomicU64::new(1),
        });
        let mut reader = Reader::new();
        assert_eq!(reader.agree(&*shared), Ok(true));

        let theirs = Arc::clone(&shared);
        let writing = thread::spawn(move || {
            let mut writer = Writer::new();
            assert!(writer.go_up(&*theirs, 1));
            theirs.put(1);
            if let WriterOn::Resend { from: 1, to: 2 } = writer.go_down(&*theirs, 2).unwrap() {
                theirs.tcp.store(2, Relaxed);
                writer.resent(&*theirs, 2).unwrap();
            }
        });

        let mut offset = 0;
        for _ in 0..3 {
            if reader.observe(&*shared, offset).unwrap() == ReaderOn::Ring {
                if shared.tail() > offset {
                    assert_eq!(shared.get(offset), offset);
                    offset += 1;
                    shared.head.store(offset, Release);
                }
            } else {
                let limit = reader.may_read_tcp(offset).unwrap();
                offset += shared.tcp.load(Relaxed).saturating_sub(offset).min(limit);
            }
        }
        writing.join().unwrap();
        assert!(offset <= 2);
    });
}

#[test]
fn the_orderings_as_stated_suffice() {
    run(AS_STATED);
}

#[test]
#[should_panic]
fn a_relaxed_change_of_the_end_word_is_found() {
    run(Orderings { end_cas: Relaxed, end_load: Relaxed, ..AS_STATED });
}

#[test]
#[should_panic]
fn a_relaxed_store_of_the_tail_is_found() {
    run(Orderings { tail_store: Relaxed, ..AS_STATED });
}

#[test]
#[should_panic]
fn a_relaxed_load_of_the_tail_is_found() {
    run(Orderings { tail_load: Relaxed, ..AS_STATED });
}
