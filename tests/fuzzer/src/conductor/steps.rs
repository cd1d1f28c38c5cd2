//! One step: whether it can be made now, what its call can expect, and what it changes.

use super::{Conductor, Sleep, PIECE_MIN};
use crate::operation::{
    Flag, How, Mode, Operation, ReceiveCall, SendCall, Setting, Signal, Step, Who, EVERYBODY,
};
use crate::protocol::{say, Command, Job};
use crate::world::{End, EndState, Slot, Stream};
use shunt_differential::calls::{process, wait};
use std::time::Duration;

/// Longer than a kernel puts off an acknowledgement.
const ACKNOWLEDGED_MAX: Duration = Duration::from_millis(100);

/// Whether an end of the connection between these ports has sent a FIN that is not acknowledged yet: the
/// kernel's states FIN_WAIT1, LAST_ACK and CLOSING.
fn has_sent_fin(ports: [u16; 2]) -> bool {
    let [one, other] = ports.map(|port| format!(":{port:04X}"));
    let is_it = |line: &str| {
        let mut words = line.split_ascii_whitespace().skip(1);
        let mut next = || words.next().unwrap_or_default();
        let (local, remote, state) = (next(), next(), next());
        let between = |a: &str, b: &str| local.ends_with(a) && remote.ends_with(b);
        matches!(state, "04" | "09" | "0B") && (between(&one, &other) || between(&other, &one))
    };
    ["/proc/net/tcp", "/proc/net/tcp6"]
        .iter()
        .any(|path| std::fs::read_to_string(path).is_ok_and(|table| table.lines().any(is_it)))
}

/// So many bytes find room in the smallest receive buffer there is.
const NARROW_UNREAD_MAX: u64 = 1000;

/// So many bytes a ring holds back at most, and a quarter of it.
const HELD_MAX: u64 = 32 * 1024;

/// So many bytes pass a small window in a few seconds.
const NARROW_MAX: u64 = 100_000;

/// The sequence that this end writes.
pub(super) fn sequence(end: End) -> u64 {
    (end.stream * 2 + end.side + 1) as u64
}

impl Conductor<'_> {
    pub(super) fn execute(&mut self, step: &Step) {
        let end = slot_of(&step.op).and_then(|slot| self.world.end(step.by, slot));
        let reads = matches!(step.op, Operation::Receive { .. });
        let unsure = end.is_some_and(|end| {
            self.world.state(end).spoiled || !reads && self.may_have_closed(end.peer())
        });
        if self.outcome.hung.is_some() || !self.is_idle(step.by) || unsure {
            return;
        }
        let before = self.outcome.observations.get(&self.step).map_or(0, Vec::len);
        self.look_for_ring(step);
        self.perform(step.by, &step.op);
        self.settle();
        let after = self.outcome.observations.get(&self.step).map_or(0, Vec::len);
        let sleeps = self.players[&step.by].asleep.is_some();
        self.outcome.operations += u64::from(after > before || sleeps);
    }

    /// Every eighth step asks where its stream is.
    fn look_for_ring(&mut self, step: &Step) {
        if self.mode != Mode::Both || self.step % 8 != 3 {
            return;
        }
        let slot = slot_of(&step.op).unwrap_or(0);
        let Some(end) = self.world.end(step.by, slot) else { return };
        if self.world.state(end).closed || self.world.state(end.peer()).closed {
            return;
        }
        let is = self.is_on_ring(end);
        self.outcome.looked_at_ring += 1;
        self.outcome.found_on_ring += u64::from(is);
    }

    fn perform(&mut self, by: Who, op: &Operation) {
        match op {
            Operation::Send { slot, .. } => self.send(by, op, *slot),
            Operation::Receive { slot, .. } => self.receive(by, op, *slot),
            Operation::Fill { slot } => self.fill(by, op, *slot),
            Operation::Transfer { slot, .. } => self.transfer(by, op, *slot),
            Operation::Urgent { slot } => self.urgent(by, op, *slot),
            Operation::Rise { slot } => {
                if let Some(end) = self.world.end(by, *slot) {
                    self.rise(end);
                }
            }
            Operation::Shutdown { slot, how } => self.shutdown(by, op, *slot, *how),
            Operation::Close { slot } => {
                self.plainly(by, op);
                self.world.take(by, *slot);
            }
            Operation::Copy { .. } => self.copy(by, op),
            Operation::Connect { slot } => self.connect(*slot),
            Operation::Poll { slots, .. } => self.poll(by, op, slots),
            Operation::AwaitReadable { slot } => self.await_events(by, op, *slot, true),
            Operation::EpollAwait { slot, events } => {
                self.await_events(by, op, *slot, events & libc::EPOLLIN as u32 != 0);
            }
            Operation::EpollWait { .. } => self.epoll_wait(by, op),
            Operation::EpollControl { .. } => {
                self.plainly(by, op);
            }
            Operation::EpollNest => self.plainly(by, op),
            Operation::BytesWaiting { slot } => self.bytes_waiting(by, op, *slot),
            Operation::Nonblocking { slot, on, .. } => {
                let end = self.world.end(by, *slot);
                // Of several messages, those that are not begun yet do not wait then.
                if end.is_some_and(|end| self.is_sending_several(end)) {
                    return;
                }
                self.plainly(by, op);
                if let Some(end) = end {
                    self.world.state_mut(end).nonblocking = *on;
                }
            }
            Operation::Set { slot, setting } => {
                let Some(end) = self.world.end(by, *slot) else { return };
                // What a sleeping call waits for must not change.
                if self.sleeps_at(|sleep| sleep.end().stream == end.stream) {
                    return;
                }
                let narrows = matches!(setting, Setting::ReceiveBuffer(_));
                // Into a buffer that holds more than it may, the kernel lets nothing, not even what
                // acknowledges: what comes then is late, and what goes the other way stands still.
                let overfull = self.world.waiting(end) > NARROW_UNREAD_MAX;
                if narrows && (overfull || self.world.state(end.peer()).stuffed) {
                    return;
                }
                self.plainly(by, op);
                self.world.set(end, *setting);
            }
            Operation::Get { slot, setting } => {
                let buffer = matches!(setting, Setting::SendBuffer(_) | Setting::ReceiveBuffer(_));
                // The kernel lets buffers grow that nobody has set.
                if !buffer {
                    self.plainly(by, op);
                }
                let _ = slot;
            }
            Operation::Names { .. } | Operation::SocketError { .. } => self.plainly(by, op),
            Operation::StatusFlags { .. } => self.plainly(by, op),
            Operation::Fork => self.fork(by, op),
            Operation::Exec { with_library } => self.exec(by, op, *with_library),
            Operation::Pass { slot, to } => self.pass(by, op, *slot, *to),
            Operation::Exit { .. } => self.exit(by, op),
            Operation::Interrupt { whom, signal } => self.interrupt(*whom, *signal),
            Operation::Kill { whom } => self.kill(by, *whom),
        }
    }

    /// The answer is compared as it is.
    fn plainly(&mut self, by: Who, op: &Operation) {
        let reply = self.ask(by, Job::Do(op.clone()));
        self.observe(self.step, reply.said);
    }

    /// The end that a call's number stands for now.
    pub(super) fn slot_of_job(&self, who: Who, job: &Job) -> Option<End> {
        let Job::Do(op) = job else { return None };
        slot_of(op).and_then(|slot| self.world.end(who, slot))
    }

    fn sleeps_at(&self, matches: impl Fn(&Sleep) -> bool) -> bool {
        let sleeping = |who: &Who| self.players[who].asleep.as_ref();
        EVERYBODY.iter().filter_map(sleeping).any(|sleeper| matches(&sleeper.sleep))
    }

    /// Another call is writing at this end.
    pub(super) fn is_writing(&self, end: End) -> bool {
        self.sleeps_at(|sleep| matches!(sleep, Sleep::Room { end: at, .. } if *at == end))
    }

    /// Only a send that should sleep holds this end. Once it has found room the end is closed, and that may be at
    /// any time: a kernel's buffer grows when something arrives, and one is used behind a ring that stays full.
    pub(super) fn may_have_closed(&self, end: End) -> bool {
        self.is_writing(end) && self.world.holder_slots(end).is_empty()
    }

    fn is_sending_several(&self, end: End) -> bool {
        let several =
            |job: &Job| matches!(job, Job::Do(Operation::Send { call: SendCall::Sendmmsg, .. }));
        let sleepers = EVERYBODY.iter().filter_map(|who| self.players[who].asleep.as_ref());
        self.is_writing(end) && sleepers.map(|sleeper| &sleeper.job).any(several)
    }

    pub(super) fn is_reading(&self, end: End) -> bool {
        self.sleeps_at(|sleep| matches!(sleep, Sleep::Bytes { end: at, .. } if *at == end))
    }

    /// A poll sleeps until this end can be read.
    fn is_watching(&self, end: End) -> bool {
        self.sleeps_at(|sleep| {
            matches!(sleep, Sleep::Readable { end: at } | Sleep::Event { end: at } if *at == end)
        })
    }

    fn command(&self, op: &Operation, writer: End, offset: u64, waiting: u64) -> Command {
        let job = Job::Do(op.clone());
        Command { job, sequence: sequence(writer), offset, waiting, may_sleep: false }
    }

    fn send(&mut self, by: Who, op: &Operation, slot: u8) {
        let Operation::Send { size, flags, .. } = op else { return };
        let size = *size;
        let Some(end) = self.world.end(by, slot) else { return self.plainly(by, op) };
        // Only a call that sleeps keeps the peer's end: it closes while this call writes.
        let closes = !self.world.write_ends(end) && self.world.holder_slots(end.peer()).is_empty();
        if self.is_writing(end) || closes {
            return;
        }
        let state = self.world.state(end);
        let blocks = !state.nonblocking && !flags.contains(&Flag::DontWait);
        let total = self.world.waiting(end.peer()) + u64::from(size);
        let fits = (total <= self.world.room(end) && !state.stuffed) || self.world.write_ends(end);
        let timed = state.send_timeout;
        // More than a ring holds back is shown (docs/compatibility.md).
        let holds = flags.contains(&Flag::More) || state.corked;
        if holds && total > HELD_MAX.min(u64::from(self.program.settings.ring_bytes) / 4) {
            return;
        }
        let mut command = self.command(op, end, state.written, 0);
        if !fits && (!blocks || timed || state.held) {
            return;
        }
        if !fits {
            command.may_sleep = true;
            let sleep = Sleep::Room { end, size: size.into() };
            return self.put_to_sleep(by, &command, sleep);
        }
        say(self.control(by), &command);
        let reply = self.reply(by);
        // How much goes to a stream that is closed before the reset comes that answers its first bytes; or when.
        let unsure = self.world.state(end.peer()).closed && (holds || u64::from(size) > PIECE_MIN);
        if unsure && reply.moved > 0 {
            self.world.state_mut(end).spoiled = true;
            self.observe(self.step, "some");
        } else {
            self.observe(self.step, reply.said);
        }
        self.world.wrote(end, reply.moved);
        if reply.moved > 0 {
            self.world.state_mut(end).held = holds;
        }
    }

    fn receive(&mut self, by: Who, op: &Operation, slot: u8) {
        let Operation::Receive { size, flags, call, .. } = op else { return };
        let Some(end) = self.world.end(by, slot) else { return self.plainly(by, op) };
        if self.is_reading(end) {
            return;
        }
        let mut waiting = self.world.waiting(end);
        // A writer that sleeps goes on while this one reads.
        let writing = self.is_writing(end.peer());
        let state = self.world.state(end);
        let (size, low_water) = (u64::from(*size), state.low_water);
        let blocks = !state.nonblocking && !flags.contains(&Flag::DontWait);
        let timed = state.receive_timeout;
        let all = flags.contains(&Flag::WaitAll);
        let need = if all { size } else { low_water.min(size).max(1) };
        let ended = self.world.ended(end);
        let peer = self.world.state(end.peer());
        // Bytes that are held back are dropped when they come after SHUT_RD; a splice that found some may wait for
        // them, and so may a call that looks at a mark, or for all: for ever, for its looks have them acknowledged late.
        let looks_for_all = all && flags.contains(&Flag::Peek);
        let may_wait = *call == ReceiveCall::Splice || low_water > 1 || looks_for_all;
        if peer.held && (state.reading_shut || may_wait) {
            return;
        }
        // What had to wait for room comes behind the end that SHUT_RD tells (shutdown(3p)).
        let room = u64::from(self.program.settings.ring_bytes).min(self.world.room(end));
        if state.reading_shut && waiting > room / 2 {
            return;
        }
        // More than TCP's first window may not be there before some of it is read; and as little as a fourth
        // of its buffer, which grows by what is read from it, once that is full of small segments (28,381
        // bytes in one of 131,072 were seen). A peek that insists on more than that waits for ever.
        if flags.contains(&Flag::Peek) && (waiting > 60_000 || all && blocks && size > 16_000) {
            return;
        }
        // After a byte out of band a call ends at its place.
        if (all || flags.contains(&Flag::Peek)) && peer.urgent_sent {
            return;
        }
        // How many are left of what is cut is not promised, and must decide nothing.
        if (peer.stuffed || peer.crowded && all && !blocks) && (waiting > 0 || peer.cut) {
            return self.drain(by, op, end, slot);
        }
        let enough = waiting >= need || ended;
        if writing && (all || waiting == 0) {
            return;
        }
        // Whether it finds bytes, or takes the error.
        let unsure = peer.cut && state.reset;
        if peer.cut {
            waiting = 0;
        }
        let from = peer.taken;
        let mut command = self.command(op, end.peer(), from, waiting);
        if blocks && !enough && !timed {
            // Such a call would look at the same bytes again and again, or take some of them.
            if flags.contains(&Flag::Peek) && waiting > 0 {
                return;
            }
            // The kernel is woken by the acknowledgement of the FIN, takes what has come by then, and sleeps
            // until as much as the whole mark has come anew.
            if low_water > 1 && state.finished {
                return;
            }
            // Two that sleep for the same bytes may both find them, or one.
            if self.is_watching(end) {
                return;
            }
            command.may_sleep = true;
            command.waiting = size;
            // It takes what there is, and is not woken before as much as the mark has come after that.
            let count = waiting + (need - waiting).max(low_water);
            return self.put_to_sleep(by, &command, Sleep::Bytes { end, count });
        }
        if low_water > 1 && !enough && blocks {
            // What a time-out leaves below the mark is taken or not.
            return;
        }
        say(self.control(by), &command);
        let reply = self.reply(by);
        let said = self.shown(end, &reply.said);
        self.observe(self.step, said);
        self.world.took(end, reply.moved);
        self.world.state_mut(end).spoiled |= unsure;
    }

    /// How much found room is not promised, so all of it is taken and none is counted.
    fn drain(&mut self, by: Who, op: &Operation, end: End, slot: u8) {
        let cut = self.world.state(end.peer()).cut;
        let Operation::Receive { size, flags, .. } = op else { return };
        // The last send, which sleeps, closes the writer's end when it is over: with bytes unread there,
        // the reset comes while this one drains.
        let (writer, unread) = (end.peer(), self.world.waiting(end.peer()) > 0);
        let resets = unread && self.world.holder_slots(writer).is_empty();
        if cut || resets || flags.contains(&Flag::Peek) {
            return;
        }
        let waiting = self.world.waiting(end);
        let taken = self.world.state(end.peer()).taken;
        let job = Job::Drain { slot, piece: (*size).max(1000) };
        let reply = self.ask_about(by, job, sequence(end.peer()), taken, waiting);
        self.observe(self.step, reply.said);
        self.world.took(end, reply.moved);
    }

    fn fill(&mut self, by: Who, op: &Operation, slot: u8) {
        let Some(end) = self.world.end(by, slot) else { return };
        let busy = self.is_writing(end) || self.is_reading(end.peer());
        // What finds no room comes too late for a reader that has shut its direction.
        let deaf = self.world.state(end.peer()).reading_shut;
        let slow = self.world.state(end.peer()).narrow && !self.world.state(end).short;
        let corked = self.world.state(end).corked;
        if busy || deaf || slow || corked || self.world.write_ends(end) {
            return;
        }
        let command = self.command(op, end, self.world.state(end).written, 0);
        say(self.control(by), &command);
        let reply = self.reply(by);
        self.observe(self.step, reply.said);
        self.world.wrote(end, reply.moved);
        self.world.state_mut(end).stuffed = true;
        self.world.state_mut(end).crowded = true;
    }

    fn transfer(&mut self, by: Who, op: &Operation, slot: u8) {
        let Some(end) = self.world.end(by, slot) else { return };
        let Some((reader, reader_slot)) = self.idle_holder(end.peer(), Some(by)) else { return };
        let watched = self.is_watching(end.peer());
        let busy = self.is_writing(end) || self.is_reading(end.peer()) || watched;
        let (near, far) = (self.world.state(end), self.world.state(end.peer()));
        let timed = near.send_timeout || far.receive_timeout;
        if busy || timed || self.world.write_ends(end) || self.world.ended(end.peer()) {
            return;
        }
        let mut op = op.clone();
        if let (true, Operation::Transfer { size, .. }) = (far.narrow, &mut op) {
            *size = (*size).min(NARROW_MAX as u32);
        }
        let Operation::Transfer { size, read_piece, .. } = op else { return };
        let command = self.command(&op, end, near.written, 0);
        let waiting = self.world.waiting(end.peer()) + u64::from(size);
        let job = Job::Drain { slot: reader_slot, piece: read_piece };
        let drain = Command { job, offset: near.taken, waiting, ..command.clone() };
        say(self.control(by), &command);
        say(self.control(reader), &drain);
        let (sent, taken) = (self.reply(by), self.reply(reader));
        self.world.wrote(end, sent.moved);
        self.world.took(end.peer(), taken.moved);
        self.world.state_mut(end).held = false;
        self.observe(self.step, format!("{}, {}", sent.said, taken.said));
    }

    fn urgent(&mut self, by: Who, op: &Operation, slot: u8) {
        let Some(end) = self.world.end(by, slot) else { return };
        let Some((reader, slot)) = self.idle_holder(end.peer(), Some(by)) else { return };
        let busy = self.sleeps_at(|sleep| sleep.end().stream == end.stream);
        let ends = self.world.write_ends(end) || self.world.ended(end.peer());
        let in_line = self.world.state(end.peer()).urgent_in_line;
        let corked = self.world.state(end).corked;
        if busy || ends || in_line || corked || self.world.waiting(end.peer()) > 0 {
            return;
        }
        let sent = self.ask(by, Job::Do(op.clone()));
        let taken = self.ask(reader, Job::TakeUrgent { slot });
        self.world.state_mut(end).urgent_sent = true;
        self.observe(self.step, format!("{}, {}", sent.said, taken.said));
    }

    fn shutdown(&mut self, by: Who, op: &Operation, slot: u8, how: How) {
        let Some(end) = self.world.end(by, slot) else { return self.plainly(by, op) };
        // An end of stream behind bytes that found no room is seen at any time later.
        if self.world.state(end).crowded {
            return;
        }
        self.plainly(by, op);
        if self.world.state(end).reset {
            return;
        }
        if how != How::Write {
            // What had not found room yet, or is held back, comes too late.
            let peer = self.world.state(end.peer());
            let late = peer.crowded || peer.held || self.world.nagle;
            self.world.state_mut(end.peer()).cut |= late;
            for end in [end, end.peer()] {
                self.world.state_mut(end).spoiled |= late;
            }
            self.world.state_mut(end).reading_shut = true;
        }
        if how != How::Read {
            self.world.finish(end);
        }
    }

    fn copy(&mut self, by: Who, op: &Operation) {
        let Operation::Copy { from, to, call } = op else { return };
        use crate::operation::CopyCall::*;
        let source = self.world.slot(by, *from);
        let closes_first = matches!(call, Dup | Fcntl | FcntlCloexec);
        if usize::from(*from) == usize::from(*to) && closes_first {
            return;
        }
        self.plainly(by, op);
        let close_on_exec = matches!(call, Dup3 | FcntlCloexec);
        match source {
            // dup3 refuses two equal numbers, dup2 leaves everything as it is.
            _ if from == to => {}
            Some(Slot { end, .. }) => self.world.put(by, *to, Slot { end, close_on_exec }),
            None if closes_first => self.world.take(by, *to),
            None => {}
        }
    }

    fn poll(&mut self, by: Who, op: &Operation, slots: &[u8]) {
        let ends: Vec<Option<End>> = slots.iter().map(|&slot| self.world.end(by, slot)).collect();
        let each = |said: &str, change: &dyn Fn(Option<End>, &str) -> String| -> String {
            let mut words = said.split(' ');
            let first = words.next().unwrap_or_default().to_owned();
            let rest = ends.iter().zip(words).map(|(end, word)| change(*end, word));
            std::iter::once(first).chain(rest).collect::<Vec<_>>().join(" ")
        };
        let shown = |conductor: &Self, said: &str| {
            each(said, &|end, word| end.map_or(word.to_owned(), |end| conductor.shown(end, word)))
        };
        let good = |conductor: &Self, said: &str| {
            let mut words = said.split(' ').skip(1);
            ends.iter().all(|end| {
                let word = words.next().unwrap_or_default();
                end.is_none_or(|end| {
                    let unsure = conductor.is_reading(end);
                    word.contains("IN") || unsure || !conductor.world.readable(end)
                })
            })
        };
        let said = self.ask_until(by, &Job::Do(op.clone()), &shown, &good);
        self.observe(self.step, said);
    }

    /// A wait without end: it is made to return at once, or left sleeping.
    fn await_events(&mut self, by: Who, op: &Operation, slot: u8, input: bool) {
        let Some(end) = self.world.end(by, slot) else { return };
        let unsure = self.world.state(end.peer()).held
            || self.is_writing(end.peer())
            || self.is_reading(end)
            || !self.world.room_is_sure(end, self.program.settings.ring_bytes);
        if unsure || !input {
            return;
        }
        let asks_room = matches!(op, Operation::EpollAwait { events, .. } if events & 4 != 0);
        let mut command = self.command(op, end, 0, 0);
        if !self.world.readable(end) && !asks_room {
            command.may_sleep = true;
            let epoll = matches!(op, Operation::EpollAwait { .. });
            let sleep = if epoll { Sleep::Event { end } } else { Sleep::Readable { end } };
            return self.put_to_sleep(by, &command, sleep);
        }
        if asks_room {
            // Room is there at once, bytes may be.
            return self.settled_epoll(by, op, end);
        }
        say(self.control(by), &command);
        let reply = self.reply(by);
        let said = self.shown(end, &reply.said);
        self.observe(self.step, said);
    }

    fn settled_epoll(&mut self, by: Who, op: &Operation, end: End) {
        let shown = |conductor: &Self, said: &str| conductor.shown(end, said);
        let good =
            |conductor: &Self, said: &str| said.contains("IN") || !conductor.world.readable(end);
        let said = self.ask_until(by, &Job::Do(op.clone()), &shown, &good);
        self.observe(self.step, said);
    }

    fn epoll_wait(&mut self, by: Who, op: &Operation) {
        let ring_bytes = self.program.settings.ring_bytes;
        let world = &self.world;
        // What an edge or a oneshot reported cannot be taken back, so nothing may be unsure.
        let unsure = world.streams.iter().enumerate().any(|(stream, _)| {
            [0, 1].into_iter().any(|side| {
                let end = End { stream, side };
                world.state(end).spoiled
                    || !world.room_is_sure(end, ring_bytes)
                    || world.state(end).held
                    || self.is_writing(end)
                    || self.is_reading(end)
            })
        });
        if unsure {
            return;
        }
        self.await_arrivals(by);
        self.await_acknowledged_fins();
        let mut reply = self.ask(by, Job::Do(op.clone()));
        // An edge more than the kernel's is allowed: it does not come again.
        if let Some(more) = self.expected().and_then(|expected| more_than(&expected, &reply.said)) {
            let again = self.ask(by, Job::Do(op.clone())).said;
            let gone = events_of(&again).all(|event| !more.iter().any(|edge| edge == event));
            if gone {
                reply.said = self.expected().unwrap_or_default();
                self.outcome.extra_edges += 1;
            }
        }
        self.observe(self.step, reply.said);
    }

    /// Polls until what is on its way to this process has arrived.
    fn await_arrivals(&mut self, by: Who) {
        for slot in 0..crate::actor::SLOTS as u8 {
            let Some(end) = self.world.end(by, slot) else { continue };
            if !self.world.readable(end) {
                continue;
            }
            let (events, call) = (libc::POLLIN, crate::operation::PollCall::Poll);
            let job = Job::Do(Operation::Poll { slots: vec![slot], events, call });
            let give_up = std::time::Instant::now() + super::LATE;
            while !self.ask(by, job.clone()).said.contains("IN")
                && std::time::Instant::now() < give_up
                && self.outcome.hung.is_none()
            {}
        }
    }

    /// That a FIN was acknowledged is an edge, which the peer's kernel may put off for 40 ms. One behind bytes
    /// that found no room is not waited for.
    fn await_acknowledged_fins(&self) {
        let give_up = std::time::Instant::now() + ACKNOWLEDGED_MAX;
        let shut = |end: &EndState| end.finished && !end.closed;
        let waits = |stream: &Stream| stream.ends.iter().any(shut) && has_sent_fin(stream.ports);
        while self.world.streams.iter().any(waits) && std::time::Instant::now() < give_up {
            wait::poll(&[], 1);
        }
    }

    fn bytes_waiting(&mut self, by: Who, op: &Operation, slot: u8) {
        let Some(end) = self.world.end(by, slot) else { return self.plainly(by, op) };
        let writer = self.world.state(end.peer());
        let unsure = writer.held || writer.urgent_sent || writer.cut || writer.crowded;
        if unsure || self.is_writing(end.peer()) || self.is_reading(end) {
            return;
        }
        let waiting = self.world.waiting(end).to_string();
        let shown = |_: &Self, said: &str| said.to_owned();
        let said = self.ask_until(by, &Job::Do(op.clone()), &shown, &|_, said| said == waiting);
        self.observe(self.step, said);
    }

    fn fork(&mut self, by: Who, op: &Operation) {
        let Some(child) = by.child() else { return };
        if self.players[&child].hello.is_some() {
            return;
        }
        self.plainly(by, op);
        self.greet(child);
        self.world.fork(by, child);
    }

    /// Bytes whose sender was killed are lost to a new holder: docs/compatibility.md says so.
    fn loses_bytes(&self, end: End) -> bool {
        self.world.waiting(end) > 0 && self.world.state(end.peer()).killed
    }

    fn exec(&mut self, by: Who, op: &Operation, _with_library: bool) {
        if by.process() != by {
            return;
        }
        if let Some(thread) = by.thread() {
            // Its sleeping calls would end with it.
            if self.players[&thread].asleep.is_some() {
                return;
            }
        }
        let slots = self.world.slots.get(&by).copied().unwrap_or_default();
        if slots.iter().flatten().any(|slot| self.loses_bytes(slot.end)) {
            return;
        }
        say(self.control(by), &self.command(op, End { stream: 0, side: 0 }, 0, 0));
        if let Some(thread) = by.thread() {
            self.player(thread).gone = true;
        }
        self.greet(by);
        for (slot, held) in (0..).zip(slots) {
            if held.is_some_and(|held| held.close_on_exec) {
                self.world.take(by, slot);
            }
        }
        let gone = self.players[&by].gone;
        self.observe(self.step, if gone { "exec failed" } else { "goes on" });
    }

    fn pass(&mut self, by: Who, op: &Operation, slot: u8, to: u8) {
        let taker = match by {
            Who::Client => Who::Server,
            Who::Server => Who::Client,
            _ => return,
        };
        let Some(end) = self.world.end(by, slot) else { return };
        if !self.is_idle(taker) || self.loses_bytes(end) {
            return;
        }
        let passed = self.ask(by, Job::Do(op.clone()));
        let taken = self.ask(taker, Job::Take { slot: to });
        self.observe(self.step, format!("{}, {}", passed.said, taken.said));
        self.world.put(taker, to, Slot { end, close_on_exec: false });
    }

    fn exit(&mut self, by: Who, op: &Operation) {
        // A process whose calls sleep ends like one that is killed.
        say(self.control(by), &self.command(op, End { stream: 0, side: 0 }, 0, 0));
        let process = by.process();
        self.await_end(process);
        self.observe(self.step, "ended");
    }

    fn await_end(&mut self, process: Who) {
        for who in [Some(process), process.thread()].into_iter().flatten() {
            while !self.players[&who].gone && self.outcome.hung.is_none() {
                self.wait_message(who);
            }
            match self.player(who).asleep.take().map(|sleeper| sleeper.sleep) {
                None | Some(Sleep::Event { .. }) => {}
                Some(sleep) => self.world.leave_call(sleep.end()),
            }
        }
        self.world.end_process(process);
    }

    fn interrupt(&mut self, whom: Who, signal: Signal) {
        let player = &self.players[&whom];
        let (Some(hello), Some(sleeper)) = (player.hello, &player.asleep) else { return };
        // Whether what is held back has come by then depends on acknowledgements.
        if matches!(&sleeper.sleep, Sleep::Bytes { end, .. } if self.world.state(end.peer()).held) {
            return;
        }
        let (number, ends) = match (signal, &sleeper.sleep) {
            (Signal::Interrupting, _) => (libc::SIGUSR1, true),
            // Whether it had written something decides if it goes on.
            (Signal::Restarting, Sleep::Room { .. }) => return,
            (Signal::Restarting, Sleep::Readable { .. } | Sleep::Event { .. }) => {
                (libc::SIGUSR2, true)
            }
            (Signal::Restarting, Sleep::Bytes { end, .. }) => {
                (libc::SIGUSR2, self.world.waiting(*end) > 0)
            }
        };
        self.await_sleep(whom);
        process::signal_thread(hello.process, hello.thread, number);
        self.observe(self.step, "interrupted");
        if ends {
            self.player(whom).asleep.iter_mut().for_each(|sleeper| sleeper.disturbed = true);
            self.join(whom);
        } else {
            self.await_sleep(whom);
        }
    }

    fn kill(&mut self, by: Who, whom: Who) {
        let whom = whom.process();
        let Some(hello) = self.players[&whom].hello else { return };
        let slots = self.world.slots.get(&whom).copied().unwrap_or_default();
        // Bytes that a killed process leaves to another holder: docs/compatibility.md.
        let leaves = |slot: &Slot| {
            let own = slots.iter().flatten().filter(|other| other.end == slot.end).count();
            self.world.waiting(slot.end) > 0 && self.world.holders(slot.end) > own
        };
        if whom == by.process() || self.players[&whom].gone || slots.iter().flatten().any(leaves) {
            return;
        }
        for held in slots.iter().flatten() {
            self.world.state_mut(held.end).killed = true;
        }
        process::kill(hello.process, libc::SIGKILL);
        self.await_end(whom);
        self.observe(self.step, "killed");
    }
}

fn slot_of(op: &Operation) -> Option<u8> {
    match op {
        Operation::Send { slot, .. } | Operation::Receive { slot, .. } => Some(*slot),
        Operation::Transfer { slot, .. } | Operation::Shutdown { slot, .. } => Some(*slot),
        Operation::SocketError { slot } | Operation::BytesWaiting { slot } => Some(*slot),
        Operation::Fill { slot } | Operation::Urgent { slot } => Some(*slot),
        Operation::Names { slot } => Some(*slot),
        Operation::EpollControl { slot, .. } => Some(*slot),
        Operation::Poll { slots, .. } => slots.first().copied(),
        Operation::AwaitReadable { slot } | Operation::EpollAwait { slot, .. } => Some(*slot),
        _ => None,
    }
}

/// The events in an answer of `epoll_wait`.
fn events_of(said: &str) -> impl Iterator<Item = &str> {
    let inner = said.split_once('[').map_or("", |(_, rest)| rest.trim_end_matches(']'));
    inner.split(' ').filter(|event| !event.is_empty())
}

/// Those events that an answer has beyond all that are expected.
fn more_than(expected: &str, said: &str) -> Option<Vec<String>> {
    let expects = |event: &str| events_of(expected).any(|wanted| wanted == event);
    let all = events_of(expected).all(|wanted| events_of(said).any(|event| event == wanted));
    let more: Vec<String> =
        events_of(said).filter(|event| !expects(event)).map(str::to_owned).collect();
    (all && !more.is_empty()).then_some(more)
}
