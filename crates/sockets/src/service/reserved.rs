//! Slots in which the peer's end of a stream stands, while ours cannot come there: another process has it too,
//! since a fork after it was shown. It comes there when this process has it alone.

use core::sync::atomic::Ordering::*;

use shunt_link::Link;
use shunt_stats::Reason;

use super::links::released;
use super::{settle, Work};
use crate::attach;
use crate::pool::{self, Mode};

pub(super) struct Reserved {
    pub(super) index: u32,
    pub(super) generation: u32,
    pub(super) link: &'static Link,
    pub(super) slot: u32,
}

impl Reserved {
    fn is_wanted(&self) -> bool {
        let socket = pool::get(self.index);
        socket.generation.load(Relaxed) == self.generation
            && socket.mode() == Mode::Plain
            && self.link.is_alive()
    }
}

impl Work {
    /// Puts a stream where its peer's end stands; later, if it must be.
    pub(super) fn follow(&mut self, reserved: Reserved) {
        let Reserved { index, generation, link, slot } = reserved;
        match attach::attach(index, generation, link, slot) {
            Ok(()) => {}
            Err(Reason::SharedWithOtherProcess) => {
                pool::get(index).has_reserved.store(true, Relaxed);
                self.reserved.push(reserved);
            }
            Err(_) => released(link, slot),
        }
    }

    /// This process has the stream alone.
    pub(super) fn follow_now(&mut self, index: u32, generation: u32) {
        let socket = pool::get(index);
        if socket.generation.load(Relaxed) != generation {
            return;
        }
        socket.has_reserved.store(false, Relaxed);
        let is_its = |it: &Reserved| it.index == index && it.generation == generation;
        match self.reserved.iter().position(is_its) {
            Some(at) => {
                let reserved = self.reserved.swap_remove(at);
                self.follow(reserved);
            }
            None => settle(socket, generation, Reason::PeerDied),
        }
    }

    /// Gives back slots of streams that were closed, and forgets those of links that are gone.
    pub(super) fn drop_unwanted(&mut self) {
        self.reserved.retain(|it| {
            let wanted = it.is_wanted();
            if !wanted {
                released(it.link, it.slot);
            }
            wanted
        });
    }
}
