//! The law over real carriers: bytes of a stream that is handed over between TCP and a ring in any
//! order arrive once each and in order, and then the end, although both carriers are faulty at both
//! ends and break now and then.
//!
//! `stream` explores the protocol over a model; here the same [`Writer`] and [`Reader`] run over a
//! socket and a slot of shared memory, in one thread, so that a seed says all.
// UNSAFETY: hands slices to carriers.
#![allow(unsafe_code)]

use shunt_stream::{Reader, ReaderOn, StopOutcome, Writer, WriterOn};

use crate::conformance::subject::{slot_pair, worsen, End, Subject, TcpSubject, RING_BYTES};
use crate::conformance::{byte, fill, watched};
use crate::faulty::{Dice, Faults, Faulty};
use crate::parts::up_to;
use crate::shm::{self, SlotWords};
use crate::{tcp, Failure, How, Part, Received, Receiver, Sender, Sent, Shut};

const SEEDS: u64 = 120;
const STEPS: u32 = 400;
const PIECE_MAX: u64 = 6000;
/// A carrier on the ring breaks after fewer bytes than this, once in a while.
const BREAK_MAX: u64 = 40_000;

#[derive(Clone, Copy, Debug)]
enum Operation {
    Write(u64),
    Up,
    Down,
    /// The writer's service thread.
    Serve,
    Read(u64),
    Agree,
    Stop,
}

impl Operation {
    fn roll(dice: &mut Dice) -> Operation {
        match dice.below(100) {
            0..35 => Operation::Write(1 + dice.below(PIECE_MAX)),
            35..45 => Operation::Up,
            45..50 => Operation::Down,
            50..55 => Operation::Serve,
            55..85 => Operation::Read(1 + dice.below(PIECE_MAX)),
            85..97 => Operation::Agree,
            _ => Operation::Stop,
        }
    }
}

/// What a run has met, so that the test knows it has tested something.
#[derive(Debug, Default)]
struct Met {
    ups: u32,
    downs: u32,
    stops: u32,
    resends: u32,
    breaks: u32,
    ring_bytes: u64,
    tcp_bytes: u64,
}

struct WriterEnd {
    writer: Writer,
    words: SlotWords,
    ring: Faulty<shm::Sender>,
    tcp: Faulty<tcp::Sender>,
    /// Bytes that either carrier has accepted.
    offset: u64,
}

impl WriterEnd {
    fn send(carrier: &mut impl Sender, bytes: &[u8]) -> Result<u64, Failure> {
        // SAFETY: a slice is readable.
        match unsafe { carrier.try_send([Part::of(bytes)].into_iter()) }? {
            Sent::Took(count) => Ok(count as u64),
            Sent::Full => Ok(0),
        }
    }

    fn write(&mut self, count: u64, dice: &mut Dice, met: &mut Met) {
        let mut bytes = vec![0; count as usize];
        fill(&mut bytes, self.offset);
        let tail = self.ring.inner().tail();
        let taken = match self.writer.observe(&self.words, tail).expect("honest peers") {
            WriterOn::Resend { .. } => return,
            WriterOn::Tcp => Self::send(&mut self.tcp, &bytes).expect("TCP does not break here"),
            WriterOn::Ring => match Self::send(&mut self.ring, &bytes) {
                Ok(taken) => taken,
                Err(Failure::Left) => 0,
                Err(Failure::Lost) => {
                    met.breaks += 1;
                    self.ring.mend(Some(1 + dice.below(BREAK_MAX)));
                    self.down(met);
                    0
                }
                Err(other) => panic!("{other}"),
            },
        };
        self.offset += taken;
    }

    fn up(&mut self, met: &mut Met) {
        if self.writer.may_go_up(&self.words) {
            self.ring.inner().ring().start_at(self.offset);
            met.ups += u32::from(self.writer.go_up(&self.words, self.offset));
        }
    }

    fn down(&mut self, met: &mut Met) {
        met.downs += u32::from(self.writer.on() == WriterOn::Ring);
        let tail = self.ring.inner().tail();
        self.writer.go_down(&self.words, tail).expect("honest peers");
    }

    /// Sends again by TCP what the reader left in the ring, as far as TCP takes it.
    fn serve(&mut self, met: &mut Met) {
        let tail = self.ring.inner().tail();
        self.writer.observe(&self.words, tail).expect("honest peers");
        while let WriterOn::Resend { from, to } = self.writer.on() {
            let mut bytes = vec![0; (to - from).min(1000) as usize];
            self.ring.inner().copy_back(from, &mut bytes).expect("the ring still has them");
            let sent = Self::send(&mut self.tcp, &bytes).expect("TCP does not break here");
            if sent == 0 {
                return;
            }
            met.resends += 1;
            self.writer.resent(&self.words, from + sent).expect("honest peers");
        }
    }

    /// FIN follows the last byte, on TCP. True once it is sent.
    fn shut(&mut self, met: &mut Met) -> bool {
        self.down(met);
        self.serve(met);
        self.writer.on() == WriterOn::Tcp && self.tcp.try_shut() == Ok(Shut::Done)
    }
}

struct ReaderEnd {
    reader: Reader,
    words: SlotWords,
    ring: Faulty<shm::Receiver>,
    tcp: Faulty<tcp::Receiver>,
    /// Bytes given so far.
    offset: u64,
    ended: bool,
}

impl ReaderEnd {
    /// Receives up to `limit` bytes and compares them with the pattern.
    fn receive(carrier: &mut impl Receiver, offset: u64, limit: u64) -> Result<Received, Failure> {
        let mut bytes = vec![0; PIECE_MAX as usize];
        let parts = up_to([Part::into(&mut bytes)].into_iter(), limit);
        // SAFETY: a mutable slice is writable.
        let received = unsafe { carrier.try_receive(parts, How::TAKE) }?;
        if let Received::Bytes(count) = received {
            for (at, found) in (offset..).zip(&bytes[..count]) {
                assert_eq!(*found, byte(at), "byte {at}");
            }
        }
        Ok(received)
    }

    fn observe(&mut self) -> ReaderOn {
        let on = self.reader.observe(&self.words, self.offset).expect("honest peers");
        if on == ReaderOn::Ring {
            self.ring.inner().cross_to(self.offset);
        }
        on
    }

    fn read(&mut self, wanted: u64, dice: &mut Dice, met: &mut Met) {
        if self.observe() == ReaderOn::Ring {
            return self.read_ring(wanted, dice, met);
        }
        let allowed = self.reader.may_read_tcp(self.offset).unwrap_or(0);
        match Self::receive(&mut self.tcp, self.offset, wanted.min(allowed)) {
            Ok(Received::Bytes(count)) => {
                self.offset += count as u64;
                met.tcp_bytes += count as u64;
            }
            Ok(Received::Empty) => {}
            Ok(Received::Ended) => {
                let on = self.reader.tcp_ended(&self.words, self.offset);
                assert_eq!(on, Ok(ReaderOn::Tcp), "TCP ended with bytes in the ring");
                self.ended = true;
            }
            Err(failure) => panic!("{failure}"),
        }
    }

    fn read_ring(&mut self, wanted: u64, dice: &mut Dice, met: &mut Met) {
        match Self::receive(&mut self.ring, self.offset, wanted) {
            Ok(Received::Bytes(count)) => {
                self.offset += count as u64;
                met.ring_bytes += count as u64;
            }
            // The ring's end, not the stream's: `observe` goes on with TCP.
            Ok(Received::Empty | Received::Ended) => {}
            Err(Failure::Lost) => {
                met.breaks += 1;
                self.ring.mend(Some(1 + dice.below(BREAK_MAX)));
                self.stop(met);
            }
            Err(failure) => panic!("{failure}"),
        }
    }

    fn stop(&mut self, met: &mut Met) {
        let outcome = self.reader.stop(&self.words, self.offset).expect("honest peers");
        met.stops += u32::from(outcome == StopOutcome::Asked);
    }
}

/// One direction of a stream, both ends, over a faulty socket and a faulty slot.
fn ends(dice: &mut Dice) -> (WriterEnd, ReaderEnd, Box<dyn std::any::Any>) {
    let (near_tcp, far_tcp) = TcpSubject::pair();
    let (near_ring, far_ring) = slot_pair(RING_BYTES);
    let words = (near_ring.sender.words(), far_ring.receiver.words());
    let breaking = Faults::HARMLESS.breaking_at(1 + dice.below(BREAK_MAX));
    let End { sender: tcp_out, ground: near, .. } = worsen(near_tcp, Faults::HARMLESS);
    let End { receiver: tcp_in, ground: far, .. } = worsen(far_tcp, Faults::HARMLESS);
    let writer = WriterEnd {
        writer: Writer::new(),
        words: words.0,
        ring: worsen(near_ring, breaking).sender,
        tcp: tcp_out,
        offset: 0,
    };
    let reader = ReaderEnd {
        reader: Reader::new(),
        words: words.1,
        ring: worsen(far_ring, breaking).receiver,
        tcp: tcp_in,
        offset: 0,
        ended: false,
    };
    (writer, reader, Box::new((near, far)))
}

fn run(seed: u64, met: &mut Met) {
    let mut dice = Dice::new(seed);
    let (mut writer, mut reader, _ground) = ends(&mut dice);
    for _ in 0..STEPS {
        match Operation::roll(&mut dice) {
            Operation::Write(count) => writer.write(count, &mut dice, met),
            Operation::Up => writer.up(met),
            Operation::Down => writer.down(met),
            Operation::Serve => writer.serve(met),
            Operation::Read(count) => reader.read(count, &mut dice, met),
            Operation::Agree => {
                reader.reader.agree(&reader.words).expect("honest peers");
            }
            Operation::Stop => reader.stop(met),
        }
        assert!(!reader.ended, "an end that nobody made");
    }
    let mut shut = false;
    while !reader.ended {
        shut = shut || writer.shut(met);
        reader.read(PIECE_MAX, &mut dice, met);
    }
    assert_eq!(reader.offset, writer.offset, "bytes written and bytes read");
}

#[test]
fn bytes_handed_over_between_faulty_carriers_arrive_once_and_in_order() {
    watched(|| {
        let mut met = Met::default();
        for seed in 0..SEEDS {
            println!("seed {seed}");
            run(seed, &mut met);
        }
        let all = [met.ups, met.downs, met.stops, met.resends, met.breaks];
        assert!(all.into_iter().all(|count| count >= 20), "{met:?}");
        assert!(met.ring_bytes > 1 << 20 && met.tcp_bytes > 1 << 20, "{met:?}");
    });
}
