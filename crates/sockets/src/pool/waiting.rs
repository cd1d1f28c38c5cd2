//! Who waits on one half of a stream.

use shunt_os::threads;

/// The calls on one half that wait.
#[derive(Clone, Copy)]
pub struct Waiting {
    count: u32,
    /// Those of them that take no bytes: they look at them, or poll.
    lookers: u32,
    /// The thread that came last.
    last: usize,
}

impl Waiting {
    pub const NONE: Waiting = Waiting { count: 0, lookers: 0, last: 0 };

    /// A call of this thread begins to wait. One that it left by `siglongjmp` is over.
    pub fn begin(&mut self, looks: bool) {
        let me = threads::name();
        if self.count == 0 || self.last != me {
            self.count += 1;
            self.lookers += u32::from(looks);
        }
        self.last = me;
    }

    /// What was begun with the same `looks`.
    pub fn end(&mut self, looks: bool) {
        self.count = self.count.saturating_sub(1);
        self.lookers = self.lookers.saturating_sub(u32::from(looks)).min(self.count);
        if self.last == threads::name() {
            self.last = 0;
        }
    }

    /// Calls of other threads.
    pub fn others(&self) -> u32 {
        self.count - u32::from(self.count > 0 && self.last == threads::name())
    }

    pub fn all(&self) -> u32 {
        self.count
    }

    /// Calls that take bytes when some come.
    pub fn takers(&self) -> u32 {
        self.count - self.lookers
    }

    /// Those of other threads.
    pub fn other_takers(&self) -> u32 {
        self.others().saturating_sub(self.lookers)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_that_was_jumped_out_of_holds_no_close_up() {
        let mut waiting = Waiting::NONE;
        waiting.begin(false);
        // Its siglongjmp: no end. The same thread closes, or waits again.
        assert_eq!(waiting.others(), 0);
        waiting.begin(false);
        waiting.end(false);
        assert_eq!(waiting.all(), 0);
        waiting.begin(false);
        std::thread::scope(|scope| {
            scope.spawn(|| assert_eq!(waiting.others(), 1));
        });
    }

    #[test]
    fn who_looks_takes_nothing() {
        let mut waiting = Waiting::NONE;
        waiting.begin(true);
        assert_eq!((waiting.all(), waiting.takers()), (1, 0));
        std::thread::scope(|scope| {
            scope.spawn(|| waiting.begin(false));
        });
        assert_eq!((waiting.all(), waiting.takers(), waiting.other_takers()), (2, 1, 1));
        waiting.end(true);
        assert_eq!((waiting.all(), waiting.takers()), (1, 1));
    }
}
