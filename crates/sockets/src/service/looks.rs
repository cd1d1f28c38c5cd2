//! Streams at which the service thread looks from time to time, until there is nothing to look for: rings that are
//! full, or have grown, and bytes that are held back.

use core::sync::atomic::Ordering::Relaxed;

use shunt_os::{clock, handles, lock::Lock};

use super::Service;
use crate::send::{held, rest, still_full, Resting, FULL_NS_MAX, REST_NS};
use crate::{inherit, pool};

/// How often it is looked at streams whose last bytes are held back, in ns.
const HELD_NS: u64 = held::HELD_NS_MAX / 4;

pub(super) struct Looks {
    /// Streams whose rings were found full by sends that may not wait.
    full: Lock<Vec<(u32, u32)>>,
    /// Streams whose rings have grown.
    resting: Lock<Vec<Resting>>,
    /// Streams whose last bytes are held back.
    held: Lock<Vec<(u32, u32)>>,
}

/// Which lists had streams before the thread slept: one that has come meanwhile has not waited.
#[derive(Clone, Copy)]
pub(super) struct Waited {
    full: bool,
    resting: bool,
    held: bool,
}

/// When each list was looked at last, in ns.
#[derive(Default)]
pub(super) struct Last {
    full: u64,
    resting: u64,
    held: u64,
}

impl Waited {
    /// How long the thread may sleep, in ns; `None` is for ever.
    pub(super) fn sleeps_ns(self) -> Option<u64> {
        let full = self.full.then_some(FULL_NS_MAX);
        let resting = self.resting.then_some(REST_NS);
        let held = self.held.then_some(HELD_NS);
        [full, resting, held].into_iter().flatten().min()
    }
}

impl Looks {
    pub(super) const fn new() -> Looks {
        Looks {
            full: Lock::new(Vec::new()),
            resting: Lock::new(Vec::new()),
            held: Lock::new(Vec::new()),
        }
    }

    pub(super) fn waited(&self) -> Waited {
        Waited {
            full: !self.full.lock().is_empty(),
            resting: !self.resting.lock().is_empty(),
            held: !self.held.lock().is_empty(),
        }
    }

    /// In the service thread: looks at those lists for which it is time.
    pub(super) fn look(&self, waited: Waited, last: &mut Last) {
        let is_time = |some: bool, last: &mut u64, every: u64| {
            let is_time = some && clock::now_ns() - *last >= every;
            if is_time {
                *last = clock::now_ns();
            }
            is_time
        };
        if is_time(waited.full, &mut last.full, FULL_NS_MAX) {
            // Those that stay full for two looks on end leave their rings. Of those that have, children may wait.
            keep(&self.full, |&mut (index, generation)| {
                let socket = pool::get(index);
                socket.generation.load(Relaxed) == generation
                    && (still_full(index, socket) || inherit::is_to_be_answered(socket))
            });
        }
        if is_time(waited.resting, &mut last.resting, REST_NS) {
            let streams = self.resting.lock().len();
            keep(&self.resting, |stream| rest(stream, streams));
        }
        if is_time(waited.held, &mut last.held, HELD_NS) {
            keep(&self.held, |&mut (index, generation)| held::look(index, generation));
        }
    }

    /// # Safety
    /// As for [`Lock::force_open`].
    pub(super) unsafe fn force_open(&self) {
        // SAFETY: the caller's promise.
        unsafe {
            self.full.force_open();
            self.resting.force_open();
            self.held.force_open();
        }
    }
}

/// Keeps those of a list for which `looks_on` says so, without its lock.
fn keep<T>(list: &Lock<Vec<T>>, looks_on: impl FnMut(&mut T) -> bool) {
    let mut streams = core::mem::take(&mut *list.lock());
    streams.retain_mut(looks_on);
    list.lock().append(&mut streams);
}

impl Service {
    /// A ring is full: if its reader takes nothing for long, the stream goes on over TCP.
    pub fn watch_full(&self, index: u32, generation: u32) {
        let mut full = self.looks.full.lock();
        if !full.contains(&(index, generation)) {
            self.watch(&mut full, (index, generation));
        }
    }

    /// A ring has grown: its memory is given back when the stream rests. How many such streams there are.
    pub fn watch_rest(&self, stream: Resting) -> usize {
        let mut resting = self.looks.resting.lock();
        self.watch(&mut resting, stream);
        resting.len()
    }

    /// Bytes are held back: they are shown after a while.
    pub fn watch_held(&self, index: u32, generation: u32) {
        self.watch(&mut self.looks.held.lock(), (index, generation));
    }

    /// The thread sleeps for ever while it has nothing to look at.
    fn watch<T>(&self, list: &mut Vec<T>, stream: T) {
        list.push(stream);
        if list.len() == 1 {
            handles::ring(self.bell);
        }
    }
}
