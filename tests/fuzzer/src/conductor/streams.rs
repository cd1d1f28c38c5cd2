//! Steps of more than one job: connecting, rising to the ring, the beginning and the end.

use super::Conductor;
use crate::operation::{Flag, Mode, Operation, ReceiveCall, Start, Step, Who, PROCESSES};
use crate::protocol::Job;
use crate::world::End;
use shunt_differential::fast_path;

/// Messages to and fro before the counters are looked at.
const ROUNDS: u32 = 8;
const ATTEMPTS_MAX: u32 = 40;

impl Conductor<'_> {
    /// A further connection of the two first processes, into the same slot of both.
    pub(super) fn connect(&mut self, slot: u8) {
        let free = |who| self.is_idle(who) && self.world.slot(who, slot).is_none();
        if !free(Who::Client) || !free(Who::Server) || self.world.streams.len() >= 4 {
            return;
        }
        let settings = &self.program.settings;
        let (family, nagle, port) = (settings.family, settings.nagle, self.port);
        let opened = self.ask(Who::Client, Job::Open { slot, family, port, nagle });
        let accepted = self.ask(Who::Server, Job::Accept { slot, nagle });
        self.world.connect(slot, [opened.moved as u16, port]);
        self.observe(self.step, format!("{}, {}", opened.said, accepted.said));
        // Most streams of a program that begins on the ring are to be there.
        if self.program.settings.start == Start::Ring && slot != 0 && slot != 4 {
            self.rise(End { stream: self.world.streams.len() - 1, side: 0 });
        }
    }

    /// What the settings ask for before the first step.
    pub(super) fn start(&mut self) {
        let end = End { stream: 0, side: 0 };
        match self.program.settings.start {
            Start::Tcp => {}
            Start::Changing => self.exchange(end),
            Start::Ring => self.rise(end),
        }
        self.outcome.observations.clear();
    }

    fn exchange(&mut self, end: End) {
        let Some((near, near_slot)) = self.idle_holder(end, None) else { return };
        let Some((far, far_slot)) = self.idle_holder(end.peer(), Some(near)) else { return };
        let command = |job| crate::protocol::Command {
            job,
            sequence: 0,
            offset: 0,
            waiting: 0,
            may_sleep: false,
        };
        let (ping, pong) = (self.control(near), self.control(far));
        crate::protocol::say(pong, &command(Job::Pong { slot: far_slot, rounds: ROUNDS }));
        crate::protocol::say(ping, &command(Job::Ping { slot: near_slot, rounds: ROUNDS }));
        let (there, back) = (self.reply(near), self.reply(far));
        self.outcome.observations.entry(self.step).or_default().pop();
        self.observe(self.step, format!("{} and {}", there.said, back.said));
    }

    /// Nothing is on its way and nobody waits, so that messages can go to and fro.
    fn can_exchange(&self, end: End) -> bool {
        let sleeps = |who: &Who| {
            let asleep = &self.players[who].asleep;
            asleep.as_ref().is_some_and(|s| s.sleep.end().stream == end.stream)
        };
        let fit = |end: End| {
            let state = self.world.state(end);
            self.world.waiting(end) == 0
                && !self.world.ended(end)
                && state.low_water <= 1
                && !state.receive_timeout
                && !state.urgent_in_line
                && !state.corked
        };
        fit(end) && fit(end.peer()) && !crate::operation::EVERYBODY.iter().any(sleeps)
    }

    pub(super) fn rise(&mut self, end: End) {
        if !self.can_exchange(end) {
            return;
        }
        self.exchange(end);
        let mut attempts = 0;
        while self.mode == Mode::Both && attempts < ATTEMPTS_MAX && !self.is_on_ring(end) {
            self.exchange(end);
            attempts += 1;
        }
    }

    pub(super) fn is_on_ring(&mut self, end: End) -> bool {
        let [client, server] = self.world.streams[end.stream].ports;
        let is = fast_path::is_upgraded(&self.servers.reports, client, server);
        self.outcome.reached_ring |= is;
        is
    }

    /// Whatever is on its way arrives, and every end closes.
    pub(super) fn finish(&mut self) {
        let steps = self.program.steps.len();
        let mut index = steps;
        for stream in 0..self.world.streams.len() {
            for side in [0, 1] {
                let end = End { stream, side };
                // How much came before a cut is not promised: some runs would have nothing left to ask for.
                let least = u32::from(self.is_cut(end));
                let size = (self.world.waiting(end) as u32).max(least);
                if let (Some((by, slot)), 1..) = (self.idle_holder(end, None), size) {
                    let (call, flags) = (ReceiveCall::Recv, vec![Flag::DontWait]);
                    let op = Operation::Receive { slot, size, call, flags };
                    self.step = index;
                    self.execute(&Step { by, op });
                }
                index += 1;
            }
        }
        for who in PROCESSES {
            for slot in 0..crate::actor::SLOTS as u8 {
                let idle = [Some(who), who.thread()].into_iter().flatten();
                let by = idle.into_iter().find(|&who| self.is_idle(who));
                if let (Some(by), Some(_)) = (by, self.world.slot(who, slot)) {
                    self.step = index;
                    self.execute(&Step { by, op: Operation::Close { slot } });
                }
                index += 1;
            }
        }
    }
}
