//! Cuts a side's operation into steps: one access to what is shared is one step.
//!
//! An operation is ordinary code over a [`Port`]. It is run again from its start for every step:
//! accesses made in earlier steps return what they returned then, one more is done, and at the next
//! the run is abandoned by unwinding. So production code is interleaved at every single access,
//! and can be killed between any two.

use crate::mutants::Mutant;
use crate::world::{Broken, Received, World};
use shunt_stream::{End, Side, Violation, Words, TRANSITIONS};
use std::cell::{Cell, RefCell};
use std::panic::{catch_unwind, resume_unwind, AssertUnwindSafe};
use std::sync::atomic::{AtomicU32, Ordering};

pub struct Port<'a> {
    world: RefCell<&'a mut World>,
    /// What the operation's accesses have returned so far.
    log: RefCell<&'a mut Vec<u64>>,
    next: Cell<usize>,
    fresh: Cell<u32>,
    pub mutant: Option<Mutant>,
    by: Side,
}

/// Which rows of the table some run has met, one bit each.
pub static ROWS_MET: AtomicU32 = AtomicU32::new(0);

struct Suspend;

impl World {
    /// Runs `operation` for at most `steps` new accesses; true when it has finished.
    pub fn advance(
        &mut self,
        log: &mut Vec<u64>,
        steps: u32,
        mutant: Option<Mutant>,
        by: Side,
        operation: impl FnOnce(&Port) -> Result<(), Violation>,
    ) -> bool {
        let port = Port {
            world: RefCell::new(self),
            log: RefCell::new(log),
            next: Cell::new(0),
            fresh: Cell::new(steps),
            mutant,
            by,
        };
        match catch_unwind(AssertUnwindSafe(|| operation(&port))) {
            Ok(Ok(())) => {}
            Ok(Err(_)) => self.breaks(Broken::ViolationBetweenHonestPeers),
            Err(cause) if cause.is::<Suspend>() => return false,
            Err(_) => self.breaks(Broken::Panic),
        }
        true
    }
}

impl Port<'_> {
    fn access(&self, act: impl FnOnce(&mut World) -> u64) -> u64 {
        let mut log = self.log.borrow_mut();
        let at = self.next.replace(self.next.get() + 1);
        if let Some(&known) = log.get(at) {
            return known;
        }
        if self.fresh.get() == 0 {
            drop(log);
            resume_unwind(Box::new(Suspend));
        }
        self.fresh.set(self.fresh.get() - 1);
        let value = act(&mut self.world.borrow_mut());
        log.push(value);
        value
    }

    pub fn is(&self, mutant: Mutant) -> bool {
        self.mutant == Some(mutant)
    }

    pub fn ring_put(&self, offset: u64, floor: u64) -> bool {
        self.access(|world| world.ring_put(offset, floor).into()) == 1
    }

    pub fn ring_take(&self, offset: u64) {
        self.access(|world| {
            world.ring_take(offset);
            0
        });
    }

    pub fn tcp_send(&self, byte: u64) -> bool {
        self.access(|world| world.tcp_send(byte).into()) == 1
    }

    /// Sends a byte from the ring by TCP.
    pub fn tcp_resend(&self, offset: u64) -> bool {
        self.access(|world| world.tcp_send(world.ring_byte(offset)).into()) == 1
    }

    pub fn tcp_receive(&self, limit: u64) -> Received {
        const END: u64 = u64::MAX;
        let received = self.access(|world| match world.tcp_receive(limit) {
            Received::Nothing => 0,
            Received::Bytes(count) => count,
            Received::End => END,
        });
        match received {
            0 => Received::Nothing,
            END => Received::End,
            count => Received::Bytes(count),
        }
    }

    pub fn look(&self, at: impl FnOnce(&World) -> u64) -> u64 {
        self.access(|world| at(world))
    }

    /// Anything else an operation does to the world.
    pub fn with(&self, act: impl FnOnce(&mut World)) {
        self.access(|world| {
            act(world);
            0
        });
    }
}

impl Words for Port<'_> {
    fn tail(&self) -> u64 {
        self.access(|world| world.tail)
    }
    fn set_tail(&self, offset: u64) {
        self.with(|world| world.tail = offset);
    }
    /// These writers hold nothing back; those of `long_runs` do.
    fn show_held(&self) {}
    fn up_at(&self) -> u64 {
        self.access(|world| world.up_at)
    }
    fn set_up_at(&self, offset: u64) {
        if !self.is(Mutant::UpAtIsStoredLate) {
            self.with(|world| world.up_at = offset);
        }
    }
    fn head(&self) -> u64 {
        self.access(|world| world.head)
    }
    fn end(&self) -> u64 {
        let word = self.access(|world| world.end);
        // To the mutants below an agreement is not needed, a segment always seen.
        if self.is(Mutant::UpWithoutAgreement) && word == End::Idle.encode() {
            return End::Agreed.encode();
        }
        if self.is(Mutant::DownDoesNotRecall) && word == End::Open.encode() {
            return End::Seen.encode();
        }
        if let (true, Ok(End::Stop(_))) = (self.is(Mutant::ResendFromTheStart), End::decode(word)) {
            return End::Stop(self.up_at()).encode();
        }
        word
    }
    fn end_cas(&self, from: u64, to: u64) -> Result<(), u64> {
        let blind = self.mutant.is_some_and(|mutant| mutant.stores_blindly(from, to));
        const DONE: u64 = u64::MAX;
        let found = self.access(|world| {
            if world.end == from || blind {
                if self.mutant.is_none() && !is_in_table(from, to, self.by) {
                    world.breaks(Broken::NotInTheTable);
                }
                world.end = to;
                DONE
            } else {
                world.end
            }
        });
        if found == DONE {
            Ok(())
        } else {
            Err(found)
        }
    }
}

fn is_in_table(from: u64, to: u64, by: Side) -> bool {
    let (Ok(from), Ok(to)) = (End::decode(from), End::decode(to)) else { return false };
    let row = TRANSITIONS.iter().position(|row| row.is(from, to, by));
    if let Some(row) = row {
        ROWS_MET.fetch_or(1 << row, Ordering::Relaxed);
    }
    row.is_some()
}
