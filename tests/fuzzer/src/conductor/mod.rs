//! Executes one program: hands each step to its actor and goes on when the state is settled.
//!
//! A step whose call the world says will sleep is left sleeping, and its result is taken when the
//! world says that it must have woken. A step whose actor is gone or asleep, or that would make
//! the rest unpredictable, is left out, in the plain run and in the accelerated one alike.

mod steps;
mod streams;

use crate::actor::SLOTS;
use crate::operation::{Flag, Mode, Operation, Program, SendCall, Who, EVERYBODY, PROCESSES};
use crate::protocol::{hear, say, Command, Hello, Job, Reply, BEGINS};
use crate::servers::{pair, Servers};
use crate::world::{End, World};
use shunt_differential::calls::{process, wait, Fd};
use std::collections::BTreeMap;
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::{Duration, Instant};

/// Events of the other process may come this late.
const LATE: Duration = Duration::from_millis(1000);

/// So many bytes arrive at once by every carrier.
const PIECE_MIN: u64 = 500;

/// What a sleeping call waits for.
#[derive(Clone, Debug)]
enum Sleep {
    Bytes {
        end: End,
        count: u64,
    },
    Readable {
        end: End,
    },
    /// As `Readable`, in epoll: that does not keep the stream open.
    Event {
        end: End,
    },
    Room {
        end: End,
        size: u64,
    },
}

impl Sleep {
    fn end(&self) -> End {
        match self {
            Sleep::Bytes { end, .. } | Sleep::Room { end, .. } => *end,
            Sleep::Readable { end } | Sleep::Event { end } => *end,
        }
    }
}

struct Sleeper {
    step: usize,
    job: Job,
    sleep: Sleep,
    /// Its call was interrupted or its stream cut, so that how much it moved is not promised.
    disturbed: bool,
}

struct Player {
    control: OwnedFd,
    hello: Option<Hello>,
    asleep: Option<Sleeper>,
    gone: bool,
}

/// What each step saw, in parts; steps that were left out saw nothing.
pub type Observations = BTreeMap<usize, Vec<String>>;

#[derive(Default)]
pub struct Outcome {
    pub observations: Observations,
    /// A call that never returned, with where every thread was.
    pub hung: Option<String>,
    pub operations: u64,
    pub looked_at_ring: u64,
    pub found_on_ring: u64,
    pub reached_ring: bool,
    /// Observations that became the plain run's only after a while.
    pub late: u64,
    /// Events of epoll that the plain run did not see, and that did not come again.
    pub extra_edges: u64,
}

pub struct Conductor<'a> {
    program: &'a Program,
    mode: Mode,
    servers: &'a Servers,
    /// What the plain run saw.
    oracle: Option<&'a Observations>,
    players: BTreeMap<Who, Player>,
    world: World,
    port: u16,
    step: usize,
    outcome: Outcome,
    pids: Vec<i32>,
}

/// Runs a program plain when there is no oracle, otherwise as its settings say.
pub fn run(program: &Program, servers: &Servers, oracle: Option<&Observations>) -> Outcome {
    let mode = if oracle.is_some() { program.settings.mode } else { Mode::Plain };
    let mut conductor = Conductor {
        program,
        mode,
        servers,
        oracle,
        players: BTreeMap::new(),
        world: World { nagle: program.settings.nagle, ..World::default() },
        port: 0,
        step: 0,
        outcome: Outcome::default(),
        pids: Vec::new(),
    };
    conductor.begin();
    conductor.connect(0);
    conductor.start();
    for (index, step) in program.steps.iter().enumerate() {
        conductor.step = index;
        if servers.shows.get() {
            println!("{index}: {:?} {:?}", step.by, step.op);
        }
        conductor.execute(step);
    }
    conductor.finish();
    conductor.end()
}

impl Conductor<'_> {
    fn begin(&mut self) {
        let (client, server) = pair();
        for (who, pass) in [(Who::Client, client), (Who::Server, server)] {
            let server = if self.mode.accelerates(who) {
                self.servers.with_rings_of(self.program.settings.ring_bytes)
            } else {
                &self.servers.plain
            };
            let ends = server.fork(pass);
            let players =
                [(Some(who), ends.own), (who.thread(), ends.thread), (who.child(), ends.child)];
            for (who, control) in players {
                let player = Player { control, hello: None, asleep: None, gone: false };
                self.players.insert(who.expect("both have a thread and a child"), player);
            }
            self.world.slots.insert(who, [None; SLOTS]);
            self.greet(who);
            self.greet(who.thread().expect("both have a thread"));
        }
        let family = self.program.settings.family;
        self.port = self.ask(Who::Server, Job::Listen { family }).moved as u16;
    }

    /// Takes the first message of an actor that has just come into being.
    fn greet(&mut self, who: Who) {
        let hello: Option<Hello> =
            self.wait_message(who).and_then(|text| serde_json::from_slice(&text).ok());
        self.pids.extend(hello.map(|hello| hello.process));
        self.player(who).hello = hello;
        self.player(who).gone = hello.is_none();
    }

    fn player(&mut self, who: Who) -> &mut Player {
        self.players.get_mut(&who).expect("every actor has a socket")
    }

    fn control(&self, who: Who) -> Fd {
        self.players[&who].control.as_raw_fd()
    }

    /// Alive and not in a call.
    fn is_idle(&self, who: Who) -> bool {
        let player = &self.players[&who];
        player.hello.is_some() && !player.gone && player.asleep.is_none()
    }

    /// One message, unless the watchdog's time runs out or the actor is gone.
    fn wait_message(&mut self, who: Who) -> Option<Vec<u8>> {
        if self.outcome.hung.is_some() {
            return None;
        }
        let control = self.control(who);
        let deadline = Instant::now() + self.servers.watchdog.get();
        while wait::poll(&[(control, libc::POLLIN)], 500).1[0] == 0 {
            if Instant::now() > deadline {
                self.outcome.hung = Some(self.describe_hang(who));
                return None;
            }
        }
        let heard = hear(control);
        if heard.is_none() {
            self.player(who).gone = true;
        }
        heard
    }

    fn reply(&mut self, who: Who) -> Reply {
        match self.wait_message(who) {
            Some(text) => serde_json::from_slice(&text).unwrap_or_default(),
            None => Reply::said("the process is gone"),
        }
    }

    fn ask(&mut self, who: Who, job: Job) -> Reply {
        self.ask_about(who, job, 0, 0, 0)
    }

    fn ask_about(&mut self, who: Who, job: Job, sequence: u64, offset: u64, waiting: u64) -> Reply {
        say(self.control(who), &Command { job, sequence, offset, waiting, may_sleep: false });
        self.reply(who)
    }

    /// Some idle actor whose process holds this end, with the slot.
    fn idle_holder(&self, end: End, other_than: Option<Who>) -> Option<(Who, u8)> {
        let holders = self.world.holder_slots(end);
        let actors = holders.into_iter().flat_map(|(process, slot)| {
            [Some(process), process.thread()].into_iter().flatten().map(move |who| (who, slot))
        });
        actors.into_iter().find(|&(who, _)| self.is_idle(who) && Some(who) != other_than)
    }

    fn observe(&mut self, step: usize, part: impl Into<String>) {
        let part = part.into();
        if self.servers.shows.get() {
            println!("  {:?} {step}: {part}", self.mode);
        }
        self.outcome.observations.entry(step).or_default().push(part);
    }

    /// What the plain run saw where the next part of this step goes.
    fn expected(&self) -> Option<String> {
        let part = self.outcome.observations.get(&self.step).map_or(0, Vec::len);
        self.oracle?.get(&self.step)?.get(part).cloned()
    }

    /// Everything that must follow from the last operation: calls that wake, ends that show.
    fn settle(&mut self) {
        loop {
            let wakes = |who: &Who| {
                self.players[who].asleep.as_ref().is_some_and(|sleeper| self.must_wake(sleeper))
            };
            if let Some(who) = EVERYBODY.into_iter().find(wakes) {
                self.end_sleep(who);
                self.join(who);
            } else if let Some(end) = self.world.stirred.pop() {
                self.look_at_end(end);
            } else {
                return;
            }
        }
    }

    fn must_wake(&self, sleeper: &Sleeper) -> bool {
        match sleeper.sleep {
            Sleep::Bytes { end, count } => {
                self.world.waiting(end) >= count || self.world.ended(end)
            }
            Sleep::Readable { end } => self.world.readable(end),
            Sleep::Event { end } => self.world.readable(end) && !self.world.state(end).closed,
            Sleep::Room { end, .. } => {
                self.world.write_ends(end) || self.world.waiting(end.peer()) == 0
            }
        }
    }

    /// A poll that is woken looks its numbers up anew, and sleeps on if they name something else by then that
    /// has nothing to tell. A signal ends it.
    fn end_sleep(&mut self, who: Who) {
        let (Some(hello), Some(sleeper)) = (self.players[&who].hello, &self.players[&who].asleep)
        else {
            return;
        };
        if !matches!(sleeper.sleep, Sleep::Readable { .. } | Sleep::Event { .. }) {
            return;
        }
        let (step, control) = (sleeper.step, self.control(who));
        let said = format!("{who:?} sleeps on");
        let part = self.outcome.observations.get(&step).map_or(0, Vec::len);
        let expected = self.oracle.is_none_or(|oracle| {
            oracle.get(&step).and_then(|parts| parts.get(part)).is_some_and(|it| *it == said)
        });
        // With the oracle's word that it wakes, it is waited for.
        let late = LATE.as_millis() as i32;
        if !expected || wait::poll(&[(control, libc::POLLIN)], late).1[0] != 0 {
            return;
        }
        self.observe(step, said);
        process::signal_thread(hello.process, hello.thread, libc::SIGUSR1);
        self.player(who).asleep.iter_mut().for_each(|sleeper| sleeper.disturbed = true);
    }

    /// Takes the result of a call that has slept.
    fn join(&mut self, who: Who) {
        let Some(sleeper) = self.player(who).asleep.take() else { return };
        let end = sleeper.sleep.end();
        let reply = self.reply(who);
        // A send that sleeps beside it may have taken the error.
        let beside = self.is_writing(end) && self.world.state(end).reset;
        self.world.state_mut(end).spoiled |= beside;
        let said = match &sleeper.job {
            Job::Do(Operation::Send { .. }) => {
                let Sleep::Room { size, .. } = sleeper.sleep else { return };
                self.world.unwrite(end, size);
                self.world.wrote(end, reply.moved);
                // How much had found room before is the kernel's affair.
                let ended = self.world.write_ends(end);
                self.world.state_mut(end).spoiled |= ended;
                // With a signal, perhaps, that another thread of its process was sent.
                let unsure = sleeper.disturbed || ended || reply.said.starts_with("all");
                if unsure && self.outcome.hung.is_none() {
                    "some".to_owned()
                } else {
                    reply.said
                }
            }
            // Its number has been closed: what came in several pieces cannot be asked for.
            job @ Job::Do(Operation::Receive { .. })
                if self.slot_of_job(who, job) != Some(end) && reply.moved > 0 =>
            {
                // Nor how many pieces there were, and so what is left.
                if self.world.waiting(end) > PIECE_MIN || self.sends_several() {
                    self.world.state_mut(end).spoiled = true;
                    self.world.state_mut(end.peer()).spoiled = true;
                }
                self.world.took(end, reply.moved);
                "some".to_owned()
            }
            Job::Do(op @ Operation::Receive { .. }) => {
                let reply = self.take_rest(who, op, end, reply);
                self.world.took(end, reply.moved);
                if is_short_peek(op)
                    && !reply.said.contains("wrong")
                    && (reply.said.starts_with("as many") || reply.said.contains(" of "))
                {
                    // Whether it found a first piece or all is not promised.
                    "some".to_owned()
                } else {
                    self.shown(end, &reply.said)
                }
            }
            _ => self.shown(end, &reply.said),
        };
        // The signal was another thread's.
        let wrote = matches!(sleeper.job, Job::Do(Operation::Send { .. }));
        let said = if wrote { &said } else { said.trim_end_matches(" and SIGPIPE") };
        self.observe(sleeper.step, format!("{who:?} woke: {said}"));
        if !matches!(sleeper.sleep, Sleep::Event { .. }) {
            self.world.leave_call(end);
        }
    }

    /// This step sends its bytes in several messages.
    fn sends_several(&self) -> bool {
        let op = self.program.steps.get(self.step).map(|step| &step.op);
        matches!(op, Some(Operation::Send { call: SendCall::Sendmmsg, .. }))
    }

    /// The first of several pieces may have ended the sleep: takes what was there by now.
    fn take_rest(&mut self, who: Who, op: &Operation, end: End, first: Reply) -> Reply {
        let Operation::Receive { slot, size, call, flags } = op else { return first };
        let there = self.world.waiting(end).min(u64::from(*size));
        let whole = flags.contains(&Flag::WaitAll) || flags.contains(&Flag::Peek);
        if first.moved == 0 || whole {
            return first;
        }
        if first.moved >= there {
            let all = first.moved == u64::from(*size);
            let said = if all { "as many as asked for" } else { "as many as there were" };
            return Reply { said: said.to_owned(), ..first };
        }
        let size = (u64::from(*size) - first.moved) as u32;
        let op = Operation::Receive { slot: *slot, size, call: *call, flags: flags.clone() };
        let offset = self.world.state(end.peer()).taken + first.moved;
        let rest = there - first.moved;
        let reply = self.ask_about(who, Job::Do(op), steps::sequence(end.peer()), offset, rest);
        let all = reply.moved == u64::from(size);
        let said = if all { "as many as asked for".to_owned() } else { reply.said };
        Reply { said, moved: first.moved + reply.moved }
    }

    /// Without what is not promised at this moment.
    fn shown(&self, end: End, said: &str) -> String {
        let unsure_room = !self.world.room_is_sure(end, self.program.settings.ring_bytes);
        // A call that sleeps for more takes what there is, soon.
        let held = self.world.state(end.peer()).held || self.is_reading(end);
        if self.is_cut(end) && !said.contains("wrong") {
            return "cut".to_owned();
        }
        without(said, unsure_room, held)
    }

    fn is_cut(&self, end: End) -> bool {
        self.world.state(end.peer()).cut
            || self.world.state(end).spoiled
            || self.may_have_closed(end.peer())
    }

    /// A stream has just ended: what does poll say at the end that did not end it?
    fn look_at_end(&mut self, end: End) {
        let Some((who, slot)) = self.idle_holder(end, None) else { return };
        let ended = |said: &str| ["RDHUP", "HUP", "ERR"].iter().any(|word| said.contains(word));
        let events = libc::POLLIN | libc::POLLOUT | libc::POLLRDHUP | libc::POLLPRI;
        let call = crate::operation::PollCall::Poll;
        let job = Job::Do(Operation::Poll { slots: vec![slot], events, call });
        if self.is_cut(end) && self.world.state(end).reset {
            // What poll says of it is not promised, but what is asked next is to come after the reset.
            let give_up = Instant::now() + LATE;
            while !ended(&self.ask(who, job.clone()).said)
                && Instant::now() < give_up
                && self.outcome.hung.is_none()
            {
                wait::poll(&[], 1);
            }
        }
        let said =
            self.ask_until(who, &job, &|world: &Self, said| world.shown(end, said), &|_, said| {
                ended(said)
            });
        self.observe(self.step, format!("{who:?} finds {said}"));
    }

    /// Asks again until the answer is the plain run's, or there is none until it is good.
    fn ask_until(
        &mut self,
        who: Who,
        job: &Job,
        shown: &dyn Fn(&Self, &str) -> String,
        good: &dyn Fn(&Self, &str) -> bool,
    ) -> String {
        let prefix = format!("{who:?} finds ");
        let expected = self.expected();
        let give_up = Instant::now() + if expected.is_some() { LATE } else { LATE / 5 };
        let mut first = true;
        loop {
            let reply = self.ask(who, job.clone());
            let said = shown(self, &reply.said);
            let done = match &expected {
                Some(wanted) => said == *wanted.strip_prefix(&prefix).unwrap_or(wanted),
                None => good(self, &reply.said),
            };
            if done || Instant::now() > give_up || self.outcome.hung.is_some() {
                self.outcome.late += u64::from(done && !first);
                return said;
            }
            first = false;
            wait::poll(&[], 1);
        }
    }

    /// Gives a command whose call is expected to sleep, and returns when it does.
    fn put_to_sleep(&mut self, who: Who, command: &Command, sleep: Sleep) {
        say(self.control(who), command);
        let begun = self.wait_message(who);
        if begun.as_deref() != Some(BEGINS) {
            return;
        }
        self.await_sleep(who);
        if !matches!(sleep, Sleep::Event { .. }) {
            self.world.in_calls.push(sleep.end());
        }
        if let Sleep::Room { end, size } = sleep {
            // Who reads gets all of it in the end.
            self.world.wrote(end, size);
        }
        let sleeper =
            Sleeper { step: self.step, job: command.job.clone(), sleep, disturbed: false };
        self.player(who).asleep = Some(sleeper);
    }

    /// Until the thread sleeps in the kernel, or has answered.
    fn await_sleep(&self, who: Who) {
        let Some(hello) = self.players[&who].hello else { return };
        let path = format!("/proc/{}/task/{}/stat", hello.process, hello.thread);
        let asleep = || {
            let stat = std::fs::read_to_string(&path).unwrap_or_default();
            stat.rsplit(") ").next().is_some_and(|rest| rest.starts_with(['S', 'Z']))
        };
        let answered = || wait::poll(&[(self.control(who), libc::POLLIN)], 0).1[0] != 0;
        let give_up = Instant::now() + LATE;
        // With the library, a child's first use of a stream sleeps until its parent has answered, before the call.
        let pause_ms = i32::from(self.mode != Mode::Plain && who.is_child());
        let mut looks = 0;
        while looks < 3 && !answered() && Instant::now() < give_up {
            looks = if asleep() { looks + 1 } else { 0 };
            wait::poll(&[], pause_ms);
            std::thread::yield_now();
        }
    }

    fn end(mut self) -> Outcome {
        for &pid in &self.pids {
            process::kill(pid, libc::SIGKILL);
        }
        let reached = &mut self.outcome.reached_ring;
        if self.mode == Mode::Both {
            *reached |= shunt_differential::fast_path::upgraded_streams(&self.servers.reports) > 0;
        }
        self.servers.plain.reap();
        if self.mode != Mode::Plain {
            self.servers.with_rings_of(self.program.settings.ring_bytes).reap();
            self.servers.forget_counters();
        }
        self.outcome
    }

    fn describe_hang(&self, who: Who) -> String {
        let mut text = format!("{who:?} does not answer at step {}", self.step);
        if self.servers.watchdog.get() < crate::servers::WATCHDOG {
            // It was described when it was first seen.
            return text;
        }
        for process in PROCESSES {
            let Some(hello) = self.players[&process].hello else { continue };
            text.push_str(&format!("\n{process:?}:\n{}", crate::stacks::of(hello.process)));
        }
        text
    }
}

/// A look at bytes that does not wait for all.
fn is_short_peek(op: &Operation) -> bool {
    let Operation::Receive { flags, .. } = op else { return false };
    flags.contains(&Flag::Peek) && !flags.contains(&Flag::WaitAll)
}

/// Masks without the words that are not promised at this moment.
fn without(said: &str, room: bool, input: bool) -> String {
    let unsure = |word: &str| {
        (room && matches!(word, "OUT" | "WRNORM")) || (input && matches!(word, "IN" | "RDNORM"))
    };
    if !(room || input) {
        return said.to_owned();
    }
    let group = |group: &str| {
        let words: Vec<&str> = group.split('|').filter(|word| !unsure(word)).collect();
        if words.is_empty() {
            "none".to_owned()
        } else {
            words.join("|")
        }
    };
    said.split(' ').map(group).collect::<Vec<_>>().join(" ")
}
