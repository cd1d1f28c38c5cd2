//! A program from a seed. Weights favour what moves bytes, so that streams get to the ring and
//! are used there; whatever ends a stream or takes it off the ring is rarer.

use crate::operation::{
    CopyCall, Family, Flag, How, Mode, Operation, PollCall, Program, ReceiveCall, Register,
    SendCall, Setting, Settings, Signal, Start, Step, Who, EVERYBODY, PROCESSES,
};
use crate::random::Random;
use crate::servers::RING_BYTES;

struct Generator {
    random: Random,
    /// Slots that have been filled by some operation.
    slots: Vec<u8>,
    children: Vec<Who>,
    /// Programs differ in how wild they are: most keep their streams on the ring.
    wild: bool,
    small: bool,
}

pub fn program(seed: u64, mode: Option<Mode>) -> Program {
    let mut random = Random::new(seed);
    let any_mode = random.weighted(&[80, 10, 10]);
    let modes = [Mode::Both, Mode::Server, Mode::Client];
    let settings = Settings {
        seed,
        mode: mode.unwrap_or(modes[any_mode]),
        start: [Start::Tcp, Start::Changing, Start::Ring][random.weighted(&[1, 2, 10])],
        family: [Family::V4, Family::V6, Family::Mapped][random.weighted(&[8, 1, 1])],
        ring_bytes: RING_BYTES[random.weighted(&[6, 2, 3])],
        // Not yet: what an end finds then depends on acknowledgements that nobody sees.
        nagle: false,
    };
    let count = 10 + random.below(90) + if random.once_in(4) { random.below(300) } else { 0 };
    let (wild, small) = (random.once_in(3), random.once_in(2));
    let mut generator = Generator { random, slots: vec![0], children: Vec::new(), wild, small };
    let mut steps: Vec<Step> = (0..count).map(|_| generator.step()).collect();
    hold_some_back(&mut steps, seed);
    Program { settings, steps }
}

/// In some programs, some of the sends that can hold their bytes back do, and some streams are corked.
fn hold_some_back(steps: &mut [Step], seed: u64) {
    let mut random = Random::new(!seed);
    if !random.once_in(4) {
        return;
    }
    for step in steps {
        match &mut step.op {
            Operation::Send {
                call: SendCall::Send | SendCall::Sendmsg | SendCall::Sendto,
                flags,
                ..
            } if random.once_in(6) => flags.push(Flag::More),
            Operation::Set { setting, .. } => {
                if let Setting::KeepAlive(on) = *setting {
                    *setting = Setting::Cork(on);
                }
            }
            _ => {}
        }
    }
}

impl Generator {
    fn step(&mut self) -> Step {
        let by = self.who();
        Step { by, op: self.operation(by) }
    }

    fn who(&mut self) -> Who {
        if !self.children.is_empty() && self.random.once_in(4) {
            return self.random.pick(&self.children);
        }
        EVERYBODY[self.random.weighted(&[5, 5, 3, 3])]
    }

    fn slot(&mut self) -> u8 {
        if self.random.once_in(60) {
            return self.random.below(8) as u8;
        }
        self.random.pick(&self.slots)
    }

    fn new_slot(&mut self) -> u8 {
        let slot = self.random.below(5) as u8;
        if !self.slots.contains(&slot) {
            self.slots.push(slot);
        }
        slot
    }

    fn size(&mut self) -> u32 {
        let bound = [2, 10, 200, 5000, 30_000, 80_000];
        let weights: &[u32] =
            if self.small { &[10, 20, 40, 5, 1, 0] } else { &[3, 5, 20, 20, 8, 3] };
        let bound = bound[self.random.weighted(weights)];
        self.random.below(bound)
    }

    fn operation(&mut self, by: Who) -> Operation {
        let ends = if self.wild { 2 } else { 1 };
        let leaves = if self.wild { 4 } else { 0 };
        match self.random.weighted(&[
            200,
            200, // send, receive
            2,
            6,
            8, // fill, transfer, rise
            40,
            20,
            30,
            40,
            8, // poll, await, epoll control, wait, await
            20,
            12,
            6, // bytes waiting, nonblocking, set and get
            8,
            4, // names and the like, connect
            10,
            4 * ends,
            3 * ends, // copy, close, shutdown
            12,       // interrupt
            3,        // fork
            ends,
            leaves,
            leaves,
            leaves,
            leaves, // exit or kill, exec, pass, urgent, marks
        ]) {
            0 => self.send(),
            1 => self.receive(),
            2 => Operation::Fill { slot: self.slot() },
            3 => self.transfer(),
            4 => Operation::Rise { slot: self.slot() },
            5 => self.poll(),
            6 => Operation::AwaitReadable { slot: self.slot() },
            7 => self.epoll_control(),
            8 => Operation::EpollWait { set: self.random.below(2) as u8 },
            9 => self.epoll_await(),
            10 => Operation::BytesWaiting { slot: self.slot() },
            11 => Operation::Nonblocking {
                slot: self.slot(),
                on: self.random.once_in(2),
                by_ioctl: self.random.once_in(2),
            },
            12 => self.option(),
            13 => self.question(),
            14 => Operation::Connect { slot: self.new_slot() },
            15 => self.copy(),
            16 => Operation::Close { slot: self.slot() },
            17 => Operation::Shutdown {
                slot: self.slot(),
                how: self.random.pick(&[How::Read, How::Write, How::Write, How::Both]),
            },
            18 => Operation::Interrupt {
                whom: self.random.pick(&EVERYBODY),
                signal: self.random.pick(&[Signal::Interrupting, Signal::Restarting]),
            },
            19 => {
                self.children.extend(by.child().filter(|child| !self.children.contains(child)));
                Operation::Fork
            }
            20 => self.end_of_process(),
            21 => Operation::Exec { with_library: !self.random.once_in(3) },
            22 => Operation::Pass { slot: self.slot(), to: self.new_slot() },
            23 => Operation::Urgent { slot: self.slot() },
            _ => self.mark(),
        }
    }

    fn send(&mut self) -> Operation {
        use SendCall::*;
        let call = [Send, Write, Writev, Sendmsg, Sendto, Sendmmsg, Sendfile, Number]
            [self.random.weighted(&[8, 8, 4, 4, 2, 2, 2, 2])];
        let mut flags = Vec::new();
        if matches!(call, Send | Sendmsg | Sendto) {
            for (flag, times) in [(Flag::DontWait, 5), (Flag::NoSignal, 5)] {
                if self.random.once_in(times) {
                    flags.push(flag);
                }
            }
        }
        Operation::Send { slot: self.slot(), size: self.size(), call, flags }
    }

    fn receive(&mut self) -> Operation {
        use ReceiveCall::*;
        let splices = u32::from(self.wild);
        let call = [Recv, Read, Readv, Recvmsg, Recvfrom, Recvmmsg, Number, Splice]
            [self.random.weighted(&[10, 8, 4, 4, 2, 2, 2, splices])];
        let mut flags = Vec::new();
        if matches!(call, Recv | Recvmsg | Recvfrom | Recvmmsg) {
            let peeks = call != Recvmmsg && self.random.once_in(8);
            let choices = [(Flag::DontWait, 2), (Flag::WaitAll, 6), (Flag::Trunc, 25)];
            for (flag, times) in choices {
                if self.random.once_in(times) {
                    flags.push(flag);
                }
            }
            if peeks && !flags.contains(&Flag::Trunc) {
                flags.push(Flag::Peek);
            }
        }
        // Readers tend to take more than one message.
        let size = (self.size() * (1 + self.random.below(3))).max(1);
        Operation::Receive { slot: self.slot(), size, call, flags }
    }

    fn transfer(&mut self) -> Operation {
        let size = if self.random.once_in(8) {
            self.random.below(6 << 20)
        } else {
            self.random.below(300_000)
        };
        let mut piece = || [100, 1448, 4096, 65_536, 1 << 20][self.random.below(5) as usize];
        let (piece, read_piece) = (piece(), piece());
        // Small pieces of megabytes take long and show nothing more.
        let size = size.min(piece.min(read_piece) * 1000);
        Operation::Transfer { slot: self.slot(), size, piece, read_piece }
    }

    fn poll(&mut self) -> Operation {
        let call = self.random.pick(&[PollCall::Poll, PollCall::Ppoll, PollCall::Select]);
        let count = 1 + self.random.below(3);
        let slots = (0..count).map(|_| self.slot()).collect();
        let all = libc::POLLIN | libc::POLLOUT | libc::POLLRDHUP | libc::POLLPRI;
        let events = self.random.pick(&[all, libc::POLLIN, libc::POLLIN | libc::POLLOUT, all]);
        Operation::Poll { slots, events, call }
    }

    fn events(&mut self) -> u32 {
        let input = libc::EPOLLIN as u32;
        let (output, ended) = (libc::EPOLLOUT as u32, libc::EPOLLRDHUP as u32);
        let mut events =
            self.random.pick(&[input, input | output, input | ended, input | output | ended]);
        match self.random.below(6) {
            0 | 1 => events |= libc::EPOLLET as u32,
            2 => events |= libc::EPOLLONESHOT as u32,
            3 if self.random.once_in(4) => events |= (libc::EPOLLET | libc::EPOLLONESHOT) as u32,
            _ => {}
        }
        events
    }

    fn epoll_control(&mut self) -> Operation {
        let register =
            [Register::Add, Register::Modify, Register::Delete][self.random.weighted(&[4, 3, 1])];
        if self.wild && self.random.once_in(20) {
            return Operation::EpollNest;
        }
        Operation::EpollControl {
            set: self.random.below(2) as u8,
            slot: self.slot(),
            register,
            events: self.events(),
        }
    }

    fn epoll_await(&mut self) -> Operation {
        Operation::EpollAwait { slot: self.slot(), events: self.events() }
    }

    fn option(&mut self) -> Operation {
        let (on, size) = (self.random.once_in(2), 2000 + self.random.below(60_000));
        let time = if on { 0 } else { 60 + self.random.below(30) };
        let setting = match self.random.below(8) {
            0 => Setting::NoDelay(true),
            1 => Setting::KeepAlive(on),
            2 => Setting::SendBuffer(size),
            3 => Setting::ReceiveBuffer(size),
            4 if self.random.once_in(4) => Setting::ReceiveTimeoutMs(time),
            5 => Setting::SendTimeoutMs(time),
            6 => Setting::LingerZero(self.wild && on),
            _ => Setting::KeepAlive(!on),
        };
        let slot = self.slot();
        if self.random.once_in(2) {
            Operation::Get { slot, setting }
        } else {
            Operation::Set { slot, setting }
        }
    }

    /// Options that take a stream off the ring.
    fn mark(&mut self) -> Operation {
        let size = 1 + self.random.below(100);
        let setting = if self.random.once_in(3) {
            Setting::UrgentInLine(true)
        } else {
            Setting::LowWater(size)
        };
        Operation::Set { slot: self.slot(), setting }
    }

    fn question(&mut self) -> Operation {
        let slot = self.slot();
        match self.random.below(3) {
            0 => Operation::Names { slot },
            1 => Operation::SocketError { slot },
            _ => Operation::StatusFlags { slot },
        }
    }

    fn copy(&mut self) -> Operation {
        use CopyCall::*;
        let call = self.random.pick(&[Dup, Dup2, Dup3, Fcntl, FcntlCloexec]);
        Operation::Copy { from: self.slot(), to: self.new_slot(), call }
    }

    fn end_of_process(&mut self) -> Operation {
        if self.random.once_in(2) {
            return Operation::Exit { at_once: self.random.once_in(2) };
        }
        Operation::Kill { whom: self.random.pick(&PROCESSES) }
    }
}
