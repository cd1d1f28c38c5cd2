//! What the conductor knows of the streams without asking: who holds which end, how many bytes
//! are on their way, what has ended. It decides whether a call may be made to wait and what a
//! reader can expect; what the calls return is never taken from it but from the plain run.

use crate::actor::SLOTS;
use crate::operation::{Setting, Who, PROCESSES};
use std::collections::BTreeMap;

/// A stream and one of its two ends.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct End {
    pub stream: usize,
    pub side: usize,
}

impl End {
    pub fn peer(self) -> End {
        End { stream: self.stream, side: 1 - self.side }
    }
}

/// One end, and the direction that it writes.
#[derive(Clone, Debug)]
pub struct EndState {
    pub written: u64,
    /// Of what this end wrote, taken by the other.
    pub taken: u64,
    /// Nothing more will be written: shut down or closed.
    pub finished: bool,
    /// Bytes of this end may have been lost by a reset.
    pub cut: bool,
    /// The kernel may hold the last bytes back, for MSG_MORE or TCP_CORK.
    pub held: bool,
    pub corked: bool,
    /// More was written than surely fits; until all is taken nobody knows if there is room.
    pub stuffed: bool,
    /// A small send buffer was full once: what the peer takes then is acknowledged at any time later.
    pub late_room: bool,
    /// More was written than surely fits into TCP's window; until all is taken nobody knows what has arrived.
    pub crowded: bool,
    pub reading_shut: bool,
    pub closed: bool,
    pub reset: bool,
    pub nonblocking: bool,
    pub low_water: u64,
    pub linger_zero: bool,
    pub receive_timeout: bool,
    pub send_timeout: bool,
    pub small_buffers: bool,
    /// Its window is small: what the other end sends beyond it moves by the kernel's probes, seconds long.
    pub narrow: bool,
    /// Its send buffer is small.
    pub short: bool,
    pub urgent_in_line: bool,
    pub urgent_sent: bool,
    /// An error may have been taken by a call of which that is not promised.
    pub spoiled: bool,
    /// A process that wrote here was killed.
    pub killed: bool,
}

impl EndState {
    fn new() -> EndState {
        EndState {
            written: 0,
            taken: 0,
            finished: false,
            cut: false,
            held: false,
            corked: false,
            stuffed: false,
            late_room: false,
            crowded: false,
            reading_shut: false,
            closed: false,
            reset: false,
            nonblocking: false,
            low_water: 1,
            linger_zero: false,
            receive_timeout: false,
            send_timeout: false,
            small_buffers: false,
            narrow: false,
            short: false,
            urgent_in_line: false,
            urgent_sent: false,
            spoiled: false,
            killed: false,
        }
    }
}

#[derive(Clone, Debug)]
pub struct Stream {
    pub ends: [EndState; 2],
    /// Of the client and of the server.
    pub ports: [u16; 2],
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Slot {
    pub end: End,
    pub close_on_exec: bool,
}

#[derive(Default)]
pub struct World {
    pub streams: Vec<Stream>,
    pub slots: BTreeMap<Who, [Option<Slot>; SLOTS]>,
    /// Ends that sleeping calls keep open.
    pub in_calls: Vec<End>,
    /// Ends whose readers should be looked at, since the other end has just ended.
    pub stirred: Vec<End>,
    /// Small messages may wait for an acknowledgement.
    pub nagle: bool,
}

impl World {
    pub fn connect(&mut self, slot: u8, ports: [u16; 2]) {
        let stream = self.streams.len();
        self.streams.push(Stream { ends: [EndState::new(), EndState::new()], ports });
        for (side, who) in [Who::Client, Who::Server].into_iter().enumerate() {
            self.put(who, slot, Slot { end: End { stream, side }, close_on_exec: false });
        }
    }

    fn index(slot: u8) -> usize {
        usize::from(slot) % SLOTS
    }

    pub fn slot(&self, who: Who, slot: u8) -> Option<Slot> {
        self.slots.get(&who.process()).and_then(|slots| slots[World::index(slot)])
    }

    pub fn end(&self, who: Who, slot: u8) -> Option<End> {
        self.slot(who, slot).map(|slot| slot.end)
    }

    pub fn state(&self, end: End) -> &EndState {
        &self.streams[end.stream].ends[end.side]
    }

    pub fn state_mut(&mut self, end: End) -> &mut EndState {
        &mut self.streams[end.stream].ends[end.side]
    }

    /// Bytes that this end can read.
    pub fn waiting(&self, end: End) -> u64 {
        let writer = self.state(end.peer());
        writer.written.saturating_sub(writer.taken)
    }

    /// Nothing will come after what is waiting.
    pub fn ended(&self, end: End) -> bool {
        self.state(end.peer()).finished || self.state(end).reset || self.state(end).reading_shut
    }

    pub fn readable(&self, end: End) -> bool {
        self.waiting(end) >= self.state(end).low_water || self.ended(end)
    }

    /// What this end may have on its way without ever waiting for room.
    pub fn room(&self, end: End) -> u64 {
        let small = self.state(end).small_buffers || self.state(end.peer()).small_buffers;
        if small {
            1000
        } else {
            100_000
        }
    }

    /// A call that writes returns at once, with success or without.
    pub fn write_ends(&self, end: End) -> bool {
        self.state(end).finished || self.state(end).reset || self.state(end.peer()).closed
    }

    pub fn room_is_sure(&self, end: End, ring_bytes: u32) -> bool {
        let sure = (u64::from(ring_bytes) / 8).min(self.room(end) / 2);
        let state = self.state(end);
        self.write_ends(end)
            || (!state.stuffed && !state.late_room && self.waiting(end.peer()) <= sure)
    }

    pub fn wrote(&mut self, end: End, bytes: u64) {
        let total = self.waiting(end.peer()) + bytes;
        let room = self.room(end);
        let state = self.state_mut(end);
        state.written += bytes;
        state.stuffed |= total > room;
        state.crowded |= total > room / 2;
        state.late_room |= state.short && state.stuffed;
        // Who has shut both ways answers the first of them that finds room with a reset.
        let crowded = state.crowded;
        let deaf = self.state(end.peer()).reading_shut && self.state(end.peer()).finished;
        self.state_mut(end).spoiled |= crowded && deaf && bytes > 0;
        if bytes > 0 && self.state(end.peer()).closed && !self.state(end).reset {
            self.state_mut(end).reset = true;
            self.stirred.push(end);
        }
    }

    /// Takes back what a sleeping call was expected to write.
    pub fn unwrite(&mut self, end: End, bytes: u64) {
        self.state_mut(end).written -= bytes;
    }

    pub fn took(&mut self, end: End, bytes: u64) {
        let writer = self.state_mut(end.peer());
        writer.taken += bytes;
        if writer.taken >= writer.written && !writer.cut {
            writer.stuffed = false;
            writer.crowded = false;
        }
    }

    pub fn finish(&mut self, end: End) {
        if !self.state(end).finished && !self.state(end).reset {
            self.state_mut(end).finished = true;
            self.stirred.push(end.peer());
        }
    }

    pub fn holders(&self, end: End) -> usize {
        let slots = self.slots.values().flatten().flatten();
        slots.filter(|slot| slot.end == end).count()
            + self.in_calls.iter().filter(|&&held| held == end).count()
    }

    pub fn put(&mut self, who: Who, slot: u8, new: Slot) {
        let slots = self.slots.entry(who.process()).or_insert([None; SLOTS]);
        let old = slots[World::index(slot)].replace(new);
        self.released(old);
    }

    pub fn take(&mut self, who: Who, slot: u8) {
        let slots = self.slots.entry(who.process()).or_insert([None; SLOTS]);
        let old = slots[World::index(slot)].take();
        self.released(old);
    }

    pub fn end_process(&mut self, who: Who) {
        for slot in self.slots.remove(&who).into_iter().flatten() {
            self.released(slot);
        }
    }

    pub fn fork(&mut self, parent: Who, child: Who) {
        let slots = self.slots.get(&parent).copied().unwrap_or([None; SLOTS]);
        self.slots.insert(child, slots);
    }

    /// A sleeping call has returned.
    pub fn leave_call(&mut self, end: End) {
        if let Some(at) = self.in_calls.iter().position(|&held| held == end) {
            self.in_calls.remove(at);
        }
        self.close_if_free(end);
    }

    fn released(&mut self, slot: Option<Slot>) {
        if let Some(slot) = slot {
            self.close_if_free(slot.end);
        }
    }

    fn close_if_free(&mut self, end: End) {
        if self.holders(end) > 0 || self.state(end).closed {
            return;
        }
        let reset = self.waiting(end) > 0 || self.state(end).linger_zero;
        // What the other kernel has not taken into its window is lost with a reset.
        let much = self.state(end).crowded || self.state(end).held;
        // Any acknowledgement has the kernel send what it holds back, and a ring is not told of one.
        if self.state(end.peer()).held {
            self.state_mut(end.peer()).spoiled = true;
        }
        let state = self.state_mut(end);
        state.closed = true;
        state.finished = true;
        if reset {
            state.cut = much;
            // With Nagle's algorithm some of the unread bytes may arrive after the end; and what was held back goes
            // by a ring, and not by TCP, so that a receive that sleeps takes it, or the error.
            let unlike = self.nagle || self.state(end).held;
            let survivor = self.state_mut(end.peer());
            survivor.reset = true;
            survivor.spoiled |= unlike;
        } else if self.state(end).crowded {
            // Behind bytes that found no room, the end of the stream arrives at any time later.
            self.state_mut(end.peer()).spoiled = true;
        }
        self.stirred.push(end.peer());
    }

    /// A first process that holds this end in some slot, with that slot.
    pub fn holder_slots(&self, end: End) -> Vec<(Who, u8)> {
        let of = |who: &Who| self.slots.get(who).map(|slots| (*who, slots));
        let mut found = Vec::new();
        for (who, slots) in PROCESSES.iter().filter_map(of) {
            for (index, slot) in slots.iter().enumerate() {
                if slot.is_some_and(|slot| slot.end == end) {
                    found.push((who, index as u8));
                }
            }
        }
        found
    }

    pub fn set(&mut self, end: End, setting: Setting) {
        let state = self.state_mut(end);
        match setting {
            Setting::SendBuffer(_) => (state.small_buffers, state.short) = (true, true),
            Setting::ReceiveBuffer(_) => (state.small_buffers, state.narrow) = (true, true),
            Setting::LowWater(bytes) => state.low_water = u64::from(bytes.max(1)),
            Setting::LingerZero(on) => state.linger_zero = on,
            Setting::ReceiveTimeoutMs(time) => state.receive_timeout = time > 0,
            Setting::SendTimeoutMs(time) => state.send_timeout = time > 0,
            Setting::UrgentInLine(on) => state.urgent_in_line = on,
            Setting::Cork(on) => (state.corked, state.held) = (on, state.held && on),
            Setting::NoDelay(_) | Setting::KeepAlive(_) => {}
        }
    }
}
