//! One state of the model, and every step that can be taken from it.

use crate::mutants::Mutant;
use crate::port::Port;
use crate::sides::{Holder, ReaderOp, ReaderSide, WriterOp, WriterSide};
use crate::world::{Broken, Item, World};
use shunt_stream::{End, ReaderOn, Side, WriterOn};

/// How much the model does.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    pub bytes: u64,
    pub ups: u8,
    pub agreements: u8,
    pub stops: u8,
    /// The reader's threads sleep in native receives where they may.
    pub sleeps: bool,
    /// The reader may become a program without our library after a stop; false: only once the
    /// stop is answered.
    pub leaves_at_once: bool,
    pub leaves: bool,
    pub closes: bool,
    pub writer_dies: bool,
    pub reader_dies: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    Deliver,
    Writer(WriterOp),
    Reader(ReaderOp),
    /// The operation that is under way makes one more access.
    WriterStep,
    ReaderStep,
    /// The reader's process becomes a program without our library.
    ReaderLeaves,
    /// Killed at any step; `Holder` says who else holds the descriptor.
    WriterDies(Holder, Item),
    ReaderDies(Holder),
}

/// An operation under way, with what its accesses returned so far.
type Pending<Op> = Option<(Op, Vec<u64>)>;

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct State {
    pub world: World,
    pub writer: WriterSide,
    writing: Pending<WriterOp>,
    pub reader: ReaderSide,
    reading: Pending<ReaderOp>,
    /// The process that shared the words has ended, and nobody took its place.
    pub writer_gone: bool,
    pub reader_gone: bool,
    died: bool,
}

impl State {
    pub fn new() -> State {
        State {
            world: World::default(),
            writer: WriterSide::new(),
            writing: None,
            reader: ReaderSide::new(),
            reading: None,
            writer_gone: false,
            reader_gone: false,
            died: false,
        }
    }

    pub fn actions(&self, bounds: &Bounds, actions: &mut Vec<Action>) {
        if self.world.broken.is_some() {
            return;
        }
        if self.world.can_deliver() {
            actions.push(Action::Deliver);
        }
        match self.writing {
            Some(_) => actions.push(Action::WriterStep),
            None => self.writer_ops(bounds, |op| actions.push(Action::Writer(op))),
        }
        match self.reading {
            Some(_) => actions.push(Action::ReaderStep),
            None => self.reader_ops(bounds, |op| actions.push(Action::Reader(op))),
        }
        if self.reader_can_leave(bounds) {
            actions.push(Action::ReaderLeaves);
        }
        if bounds.writer_dies && !self.died && self.writer.holder == Holder::Shunt {
            let heirs = [(Holder::Nobody, Item::Fin), (Holder::Nobody, Item::Reset)];
            actions.extend(heirs.map(|(holder, end)| Action::WriterDies(holder, end)));
            actions.push(Action::WriterDies(Holder::Heir, Item::Fin));
        }
        if bounds.reader_dies && !self.died && self.reader.holder == Holder::Shunt {
            let heirs = [Holder::Nobody, Holder::Foreign, Holder::Heir];
            actions.extend(heirs.map(Action::ReaderDies));
        }
    }

    fn writer_ops(&self, bounds: &Bounds, mut may: impl FnMut(WriterOp)) {
        let writer = &self.writer;
        match writer.holder {
            Holder::Heir => may(WriterOp::TakeOver),
            Holder::Shunt => {
                let on = writer.protocol.on();
                if !writer.closing && writer.offset < bounds.bytes {
                    may(WriterOp::Write);
                }
                if !writer.closing && writer.ups < bounds.ups && on == WriterOn::Tcp {
                    may(WriterOp::Up);
                }
                if on == WriterOn::Ring {
                    may(WriterOp::Down);
                }
                if on != WriterOn::Tcp {
                    may(WriterOp::Serve);
                }
                if !writer.fin_sent {
                    may(WriterOp::Shutdown);
                }
                if self.reader_gone && !writer.told {
                    may(WriterOp::ReaderDied);
                }
            }
            Holder::Foreign | Holder::Nobody => {}
        }
    }

    fn reader_ops(&self, bounds: &Bounds, mut may: impl FnMut(ReaderOp)) {
        let reader = &self.reader;
        let reads = |may: &mut dyn FnMut(ReaderOp)| {
            if self.world.seen_end.is_none() {
                may(ReaderOp::Read { limit: 1 });
                may(ReaderOp::Read { limit: u64::MAX });
            }
        };
        match reader.holder {
            Holder::Heir => may(ReaderOp::TakeOver),
            Holder::Foreign => reads(&mut may),
            Holder::Shunt if reader.sleeps => may(ReaderOp::Wake),
            Holder::Shunt => {
                reads(&mut may);
                if bounds.sleeps && self.world.seen_end.is_none() {
                    may(ReaderOp::Sleep);
                }
                if reader.agreements < bounds.agreements {
                    may(ReaderOp::Agree);
                }
                if reader.stops < bounds.stops {
                    may(ReaderOp::Stop);
                }
                if bounds.closes {
                    may(ReaderOp::Close);
                }
                if self.writer_gone && !reader.told {
                    may(ReaderOp::WriterDied);
                }
            }
            Holder::Nobody => {}
        }
    }

    fn reader_can_leave(&self, bounds: &Bounds) -> bool {
        let unanswered = matches!(self.world.end(), End::Stop(_) | End::Recalled(_));
        bounds.leaves
            && self.reading.is_none()
            && self.reader.holder == Holder::Shunt
            && !self.reader.sleeps
            && self.reader.may_leave
            && self.reader.protocol.on() == ReaderOn::Tcp
            && (bounds.leaves_at_once || !unanswered)
    }

    /// Does `action`, an operation's accesses in portions of `steps`.
    pub fn act(&mut self, action: Action, steps: u32, mutant: Option<Mutant>) {
        match action {
            Action::Deliver => self.world.deliver(),
            Action::Writer(op) => {
                self.writing = Some((op, Vec::new()));
                self.step_writer(steps, mutant);
            }
            Action::WriterStep => self.step_writer(steps, mutant),
            Action::Reader(op) => {
                self.reading = Some((op, Vec::new()));
                self.step_reader(steps, mutant);
            }
            Action::ReaderStep => self.step_reader(steps, mutant),
            Action::ReaderLeaves => {
                self.reader.holder = Holder::Foreign;
                self.reader_gone = true;
            }
            Action::WriterDies(holder, end) => self.writer_dies(holder, end),
            Action::ReaderDies(holder) => self.reader_dies(holder),
        }
        self.note_loss();
    }

    fn step_writer(&mut self, steps: u32, mutant: Option<Mutant>) {
        let Some((op, mut log)) = self.writing.take() else { return };
        let mut side = self.writer;
        let run = |port: &Port| side.run(op, port);
        if self.world.advance(&mut log, steps, mutant, Side::Writer, run) {
            self.writer = side;
        } else {
            self.writing = Some((op, log));
        }
    }

    fn step_reader(&mut self, steps: u32, mutant: Option<Mutant>) {
        let Some((op, mut log)) = self.reading.take() else { return };
        let mut side = self.reader;
        let run = |port: &Port| side.run(op, port);
        if self.world.advance(&mut log, steps, mutant, Side::Reader, run) {
            self.reader = side;
        } else {
            self.reading = Some((op, log));
        }
        let closed = op == ReaderOp::Close && self.reading.is_none();
        self.world.receiver_closed |= closed;
    }

    fn writer_dies(&mut self, holder: Holder, end: Item) {
        self.died = true;
        self.writing = None;
        self.writer.holder = holder;
        if holder == Holder::Nobody {
            self.writer_gone = true;
            if end == Item::Reset {
                self.world.in_flight.clear();
            }
            if end == Item::Reset || !self.writer.fin_sent {
                self.world.tcp_end(end);
            }
        }
    }

    fn reader_dies(&mut self, holder: Holder) {
        self.died = true;
        self.reading = None;
        self.reader.holder = holder;
        self.reader_gone = holder != Holder::Heir;
        self.world.receiver_closed = holder == Holder::Nobody;
    }

    /// The one corner: the writer is down, the reader's process is dead, and bytes that only it
    /// could read are in the ring, while another process holds the descriptor.
    fn note_loss(&mut self) {
        let killed = self.died && self.reader.holder == Holder::Foreign;
        if let (true, End::Down(to)) = (killed, self.world.end()) {
            self.world.lost |= self.world.head.max(self.world.up_at) < to;
        }
    }

    /// Lets everything that is under way come to rest, without any decision by a program: kernel
    /// and service threads work, and the reader reads. `None` when all is as the law says.
    pub fn settle(&self, mutant: Option<Mutant>) -> Option<Broken> {
        let mut now = self.clone();
        loop {
            let before = now.clone();
            now.settle_once(mutant);
            if now == before || now.world.broken.is_some() {
                break;
            }
        }
        let world = &now.world;
        let (got, written) = (world.got, world.written);
        let excused = world.lost || world.was_reset || world.receiver_closed;
        if world.broken.is_some() || excused {
            return world.broken;
        }
        if got != written {
            return Some(Broken::NotDelivered { got, written });
        }
        let ends = now.writer.fin_sent || now.writer_gone;
        (ends && world.seen_end.is_none()).then_some(Broken::EndNotDelivered)
    }

    fn settle_once(&mut self, mutant: Option<Mutant>) {
        while self.world.can_deliver() {
            self.world.deliver();
        }
        self.act(Action::WriterStep, u32::MAX, mutant);
        self.act(Action::ReaderStep, u32::MAX, mutant);
        let mut due = Vec::new();
        self.writer_ops(&NOTHING_NEW, |op| due.push(op));
        for op in due {
            if op != WriterOp::Down && (op != WriterOp::Shutdown || self.writer.closing) {
                self.act(Action::Writer(op), u32::MAX, mutant);
            }
        }
        let mut due = Vec::new();
        self.reader_ops(&NOTHING_NEW, |op| due.push(op));
        for op in due {
            if op != (ReaderOp::Read { limit: 1 }) {
                self.act(Action::Reader(op), u32::MAX, mutant);
            }
        }
    }
}

const NOTHING_NEW: Bounds = Bounds {
    bytes: 0,
    ups: 0,
    agreements: 0,
    stops: 0,
    sleeps: false,
    leaves_at_once: false,
    leaves: false,
    closes: false,
    writer_dies: false,
    reader_dies: false,
};
