//! Thousands of handovers in one run, in both directions at once, over two queues a direction: the
//! kernel's and the ring's. Operations are drawn at random; the oracle is the sequence written.

use proptest::prelude::*;
use shunt_stream::{Reader, ReaderOn, StopOutcome, Words, Writer, WriterOn};
use std::cell::Cell;
use std::collections::VecDeque;

const RING_BYTES: u64 = 64;
const TCP_BYTES: usize = 48;

#[derive(Clone, Copy, Debug)]
enum Operation {
    Write(u8),
    /// As above, but on the ring its bytes are not shown.
    Hold(u8),
    Read(u8),
    Agree,
    Up,
    Down,
    Recall,
    Serve(u8),
    Stop,
}

fn operation() -> impl Strategy<Value = Operation> {
    prop_oneof![
        4 => (1..40u8).prop_map(Operation::Write),
        1 => (1..8u8).prop_map(Operation::Hold),
        4 => (1..40u8).prop_map(Operation::Read),
        3 => Just(Operation::Agree),
        3 => Just(Operation::Up),
        1 => Just(Operation::Down),
        1 => Just(Operation::Recall),
        2 => (1..40u8).prop_map(Operation::Serve),
        1 => Just(Operation::Stop),
    ]
}

#[derive(Default)]
struct Shared {
    tail: Cell<u64>,
    held: Cell<u64>,
    up_at: Cell<u64>,
    head: Cell<u64>,
    end: Cell<u64>,
}

impl Words for Shared {
    fn tail(&self) -> u64 {
        self.tail.get()
    }
    fn set_tail(&self, offset: u64) {
        self.tail.set(offset);
    }
    fn show_held(&self) {
        self.tail.set(self.tail.get().max(self.held.get()));
    }
    fn up_at(&self) -> u64 {
        self.up_at.get()
    }
    fn set_up_at(&self, offset: u64) {
        self.up_at.set(offset);
    }
    fn head(&self) -> u64 {
        self.head.get()
    }
    fn end(&self) -> u64 {
        self.end.get()
    }
    fn end_cas(&self, from: u64, to: u64) -> Result<(), u64> {
        if self.end.get() != from {
            return Err(self.end.get());
        }
        self.end.set(to);
        Ok(())
    }
}

/// A byte that tells its offset from its neighbours', however far they are.
fn byte_at(offset: u64) -> u8 {
    (offset.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8
}

/// One direction: both ends, and what lies between them.
struct Direction {
    words: Shared,
    ring: [u8; RING_BYTES as usize],
    tcp: VecDeque<u8>,
    writer: Writer,
    reader: Reader,
    written: u64,
    floor: u64,
    got: u64,
    ups: u32,
    recalls_and_stops: u32,
    /// The reader wanted to leave, and could not.
    has_to_drain: bool,
}

impl Direction {
    fn new() -> Direction {
        Direction {
            words: Shared::default(),
            ring: [0; RING_BYTES as usize],
            tcp: VecDeque::new(),
            writer: Writer::new(),
            reader: Reader::new(),
            written: 0,
            floor: 0,
            got: 0,
            ups: 0,
            recalls_and_stops: 0,
            has_to_drain: false,
        }
    }

    fn run(&mut self, operation: Operation) {
        match operation {
            Operation::Write(count) => {
                self.write(count.into());
                self.show();
            }
            Operation::Hold(count) => self.write(count.into()),
            Operation::Read(count) => self.read(count.into()),
            Operation::Agree => {
                self.reader.agree(&self.words).unwrap();
            }
            Operation::Up => {
                if self.writer.go_up(&self.words, self.written) {
                    self.floor = self.written;
                    self.ups += 1;
                }
            }
            Operation::Down => {
                self.show();
                let on = self.writer.go_down(&self.words, self.written).unwrap();
                assert_ne!(on, WriterOn::Ring);
                self.recalls_and_stops += u32::from(on != WriterOn::Tcp);
            }
            Operation::Recall => {
                self.show();
                let on = self.writer.recall(&self.words, self.written).unwrap();
                self.recalls_and_stops += u32::from(matches!(on, WriterOn::Resend { .. }));
            }
            Operation::Serve(count) => self.serve(count.into()),
            Operation::Stop => match self.reader.stop(&self.words, self.got).unwrap() {
                StopOutcome::MustDrain { to } => {
                    assert!(to > self.got);
                    self.has_to_drain = true;
                }
                StopOutcome::Tcp | StopOutcome::Asked => {
                    assert_eq!(self.reader.on(), ReaderOn::Tcp);
                }
            },
        }
    }

    fn write(&mut self, count: u64) {
        let room = match self.writer.observe(&self.words, self.written).unwrap() {
            WriterOn::Tcp => (TCP_BYTES - self.tcp.len()) as u64,
            WriterOn::Ring => RING_BYTES - (self.written - self.words.head().max(self.floor)),
            WriterOn::Resend { .. } => 0,
        };
        for _ in 0..count.min(room) {
            let byte = byte_at(self.written);
            if self.writer.on() == WriterOn::Tcp {
                self.tcp.push_back(byte);
            } else {
                self.ring[(self.written % RING_BYTES) as usize] = byte;
                self.words.held.set(self.written + 1);
            }
            self.written += 1;
        }
    }

    fn show(&mut self) {
        if self.writer.on() == WriterOn::Ring {
            self.words.set_tail(self.written);
        }
    }

    fn read(&mut self, count: u64) {
        if self.reader.observe(&self.words, self.got).unwrap() == ReaderOn::Ring {
            for _ in 0..count.min(self.words.tail() - self.got) {
                self.take(self.ring[(self.got % RING_BYTES) as usize]);
                self.words.head.set(self.got);
            }
            return;
        }
        let limit = self.reader.may_read_tcp(self.got).unwrap();
        for _ in 0..count.min(limit).min(self.tcp.len() as u64) {
            let byte = self.tcp.pop_front().unwrap();
            self.take(byte);
        }
    }

    fn take(&mut self, byte: u8) {
        assert_eq!(byte, byte_at(self.got), "at offset {}", self.got);
        self.got += 1;
        assert!(self.got <= self.written);
    }

    fn serve(&mut self, count: u64) {
        let before = self.writer.on();
        let on = self.writer.observe(&self.words, self.written).unwrap();
        let WriterOn::Resend { from, to } = on else { return };
        self.recalls_and_stops += u32::from(before == WriterOn::Ring);
        let upto = to.min(from + count).min(from + (TCP_BYTES - self.tcp.len()) as u64);
        for offset in from..upto {
            self.tcp.push_back(self.ring[(offset % RING_BYTES) as usize]);
        }
        self.writer.resent(&self.words, upto).unwrap();
    }

    /// The writer's process is killed, and the kernel ends its connection: what it wrote must arrive by reading alone.
    fn die(&mut self, link_first: bool) {
        if link_first {
            self.reader.writer_died(&self.words, self.got).unwrap();
        }
        for _ in 0..20 {
            self.read(u64::MAX);
            if self.reader.observe(&self.words, self.got).unwrap() == ReaderOn::Ring {
                self.reader.writer_died(&self.words, self.got).unwrap();
            } else if self.tcp.is_empty() {
                self.reader.tcp_ended(&self.words, self.got).unwrap();
            }
        }
        assert_eq!(self.got, self.written);
    }

    /// Nothing new is written: what is under way must arrive by serving and reading alone.
    fn settle(&mut self) {
        self.show();
        for _ in 0..20 {
            self.serve(u64::MAX / 2);
            self.read(u64::MAX);
        }
        assert_eq!(self.got, self.written);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, max_shrink_iters: 500, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn thousands_of_handovers_in_both_directions_lose_nothing(
        operations in prop::collection::vec((0..2usize, operation()), 60_000..60_001)
    ) {
        let mut directions = [Direction::new(), Direction::new()];
        for &(which, operation) in &operations {
            directions[which].run(operation);
        }
        for direction in &mut directions {
            direction.settle();
            prop_assert!(direction.ups > 500, "only {} handovers", direction.ups);
            prop_assert!(direction.recalls_and_stops > 100);
        }
    }

    #[test]
    fn any_short_run_settles(operations in prop::collection::vec(operation(), 0..60)) {
        let mut direction = Direction::new();
        for operation in operations {
            direction.run(operation);
        }
        direction.settle();
    }

    /// Whoever gets the stream from him needs no ring.
    #[test]
    fn a_reader_whose_writer_only_recalls_can_leave_at_any_time(
        operations in prop::collection::vec(operation(), 0..400),
    ) {
        let mut direction = Direction::new();
        for operation in operations {
            let ends = matches!(operation, Operation::Down);
            direction.run(if ends { Operation::Recall } else { operation });
        }
        prop_assert!(!direction.has_to_drain);
        direction.settle();
    }

    #[test]
    fn a_writer_that_is_killed_leaves_all_it_wrote(
        operations in prop::collection::vec(operation(), 0..60),
        link_first in any::<bool>(),
    ) {
        let mut direction = Direction::new();
        for operation in operations {
            direction.run(operation);
        }
        direction.die(link_first);
    }
}
