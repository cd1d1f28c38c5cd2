//! What a registration in an epoll set reports (epoll(7), epoll_ctl(2)).
//!
//! | trigger | after a report | reported again when |
//! |---|---|---|
//! | level | stays a candidate | still ready at the next wait |
//! | edge (EPOLLET) | no candidate | something happened since |
//! | one-shot (EPOLLONESHOT) | disabled | re-armed by MOD, if ready then or later |

/// Event bits, numerically those of `epoll_ctl(2)`.
pub mod bits {
    pub const IN: u32 = 0x001;
    pub const PRI: u32 = 0x002;
    pub const OUT: u32 = 0x004;
    pub const ERR: u32 = 0x008;
    pub const HUP: u32 = 0x010;
    pub const RDNORM: u32 = 0x040;
    pub const WRNORM: u32 = 0x100;
    pub const RDHUP: u32 = 0x2000;
    pub const EXCLUSIVE: u32 = 1 << 28;
    pub const WAKEUP: u32 = 1 << 29;
    pub const ONESHOT: u32 = 1 << 30;
    pub const ET: u32 = 1 << 31;
}

/// What the program asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Interest {
    pub events: u32,
    pub data: u64,
    /// A one-shot registration that has fired.
    pub disabled: bool,
}

/// What to do with a candidate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Report {
    /// Bits for the program; 0 is nothing to report.
    pub events: u32,
    /// Whether it stays a candidate for the next wait.
    pub stays: bool,
}

impl Interest {
    pub fn new(events: u32, data: u64) -> Interest {
        Interest { events, data, disabled: false }
    }

    pub fn is_edge(&self) -> bool {
        self.events & bits::ET != 0
    }

    /// Whether readability is asked for.
    pub fn wants_in(&self) -> bool {
        !self.disabled && self.events & (bits::IN | bits::RDNORM | bits::RDHUP | bits::PRI) != 0
    }

    /// Whether writability is asked for.
    pub fn wants_out(&self) -> bool {
        !self.disabled && self.events & (bits::OUT | bits::WRNORM) != 0
    }

    /// What a candidate whose state is `mask` reports; marks a one-shot as fired.
    pub fn report(&mut self, mask: u32) -> Report {
        if self.disabled {
            return Report { events: 0, stays: false };
        }
        let events = mask & (self.events & 0xffff | bits::ERR | bits::HUP);
        if events != 0 && self.events & bits::ONESHOT != 0 {
            self.disabled = true;
        }
        Report { events, stays: events != 0 && !self.is_edge() && !self.disabled }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn level_stays_and_edge_does_not() {
        let mut level = Interest::new(bits::IN, 1);
        assert_eq!(level.report(bits::IN | bits::OUT), Report { events: bits::IN, stays: true });
        assert_eq!(level.report(bits::OUT), Report { events: 0, stays: false });
        let mut edge = Interest::new(bits::IN | bits::OUT | bits::ET, 1);
        let both = bits::IN | bits::OUT;
        assert_eq!(edge.report(both), Report { events: both, stays: false });
    }

    #[test]
    fn errors_are_reported_unasked_and_one_shot_fires_once() {
        let mut once = Interest::new(bits::IN | bits::ONESHOT, 1);
        assert_eq!(once.report(bits::HUP | bits::ERR).events, bits::HUP | bits::ERR);
        assert_eq!(once.report(bits::IN), Report { events: 0, stays: false });
        assert!(!once.wants_in());
    }
}
