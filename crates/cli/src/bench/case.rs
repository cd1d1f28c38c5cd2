//! What two processes measure together in one go: a measure and its numbers.

use serde::{Deserialize, Serialize};

use crate::args::bench::{Measure, Pin, Way};
use crate::figures::count;

#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize, Debug)]
pub struct Case {
    pub measure: Measure,
    pub pin: Pin,
    /// Bytes in a message.
    pub size: usize,
    pub streams: u32,
    /// Streams that carry messages.
    pub active: u32,
    /// Requests that wait for their reply at a time.
    pub outstanding: u32,
    /// Pause before each message.
    pub think_us: u32,
    /// Messages that start in a second; 0: as soon as can be.
    pub per_second: u32,
    /// Pairs of processes that do the same at the same time.
    pub pairs: u32,
}

impl Case {
    /// On one stream, without pauses.
    pub fn new(measure: Measure, pin: Pin, size: u32) -> Case {
        let size = size as usize;
        Case {
            measure,
            pin,
            size,
            streams: 1,
            active: 1,
            outstanding: 1,
            think_us: 0,
            per_second: 0,
            pairs: 1,
        }
    }

    /// Over many streams. No more are active than there are.
    pub fn over(self, streams: u32, active: u32, outstanding: Option<u32>) -> Case {
        let active = active.min(streams);
        let outstanding = outstanding.unwrap_or(active).min(active);
        Case { streams, active, outstanding, ..self }
    }

    pub fn thinking(self, think_us: u32) -> Case {
        Case { think_us, ..self }
    }

    pub fn paced(self, per_second: u32) -> Case {
        Case { per_second, ..self }
    }

    pub fn by(self, pairs: u32) -> Case {
        Case { pairs, ..self }
    }

    /// The ways that make sense. A bare ring has no connections and no epoll; copying is a limit for
    /// bandwidth only.
    pub fn ways(&self) -> &'static [Way] {
        match self.measure {
            Measure::Latency | Measure::Rate | Measure::Think => {
                &[Way::Tcp, Way::Unix, Way::Ring, Way::Shunt]
            }
            Measure::Stream => {
                &[Way::Tcp, Way::Unix, Way::Ring, Way::Shunt, Way::Copy, Way::Single]
            }
            Measure::Connect | Measure::Streams | Measure::Idle => {
                &[Way::Tcp, Way::Unix, Way::Shunt]
            }
        }
    }

    /// Of the value that is compared.
    pub fn unit(&self) -> &'static str {
        match self.measure {
            Measure::Latency | Measure::Think => "us",
            Measure::Stream => "GB/s",
            Measure::Rate => "messages/s",
            Measure::Connect => "connections/s",
            Measure::Streams => "request-replies/s",
            Measure::Idle => "CPU ms/s",
        }
    }

    pub fn smaller_is_better(&self) -> bool {
        matches!(self.measure, Measure::Latency | Measure::Think | Measure::Idle)
    }

    /// Whether single operations are timed.
    pub fn has_percentiles(&self) -> bool {
        !matches!(self.measure, Measure::Stream | Measure::Rate | Measure::Idle)
    }

    /// Whether so few messages go over a stream that none is worth an upgrade.
    pub fn is_too_short_to_upgrade(&self) -> bool {
        self.measure == Measure::Connect
    }

    /// In words, for headings.
    pub fn what(&self) -> String {
        let Case { streams, active, outstanding, think_us, per_second, size, pairs, .. } = *self;
        match self.measure {
            _ if pairs > 1 => format!("{pairs} pairs of processes: {}", self.by(1).what()),
            Measure::Latency => format!("half a round trip, {size} bytes"),
            Measure::Stream => format!("one stream, {size} bytes"),
            Measure::Rate => format!("messages one way, {size} bytes"),
            Measure::Connect => format!("connect, one exchange, close, {size} bytes"),
            Measure::Streams => format!(
                "request and reply through epoll, {}, {active} active, {outstanding} outstanding, {size} bytes", count(streams, "stream")
            ),
            Measure::Think if per_second > 0 => {
                format!("half a round trip, {per_second} a second, {size} bytes")
            }
            Measure::Think => format!("half a round trip, pauses of {think_us} us, {size} bytes"),
            Measure::Idle => count(streams, "idle stream"),
        }
    }

    pub fn cores(&self) -> &'static str {
        match self.pin {
            Pin::Two => "a core each",
            Pin::One if self.pairs > 1 => "all on one core",
            Pin::One => "both on one core",
            Pin::Free => "any core",
        }
    }
}

pub fn name(way: Way) -> &'static str {
    match way {
        Way::Tcp => "tcp",
        Way::Unix => "unix",
        Way::Ring => "ring",
        Way::Shunt => "shunt",
        Way::Copy => "copy",
        Way::Single => "single",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_more_streams_are_active_than_there_are() {
        let case = Case::new(Measure::Streams, Pin::Two, 14);
        let numbers = |case: Case| (case.streams, case.active, case.outstanding);
        assert_eq!(numbers(case.over(8, 100, None)), (8, 8, 8));
        assert_eq!(numbers(case.over(100, 8, None)), (100, 8, 8));
        assert_eq!(numbers(case.over(100, 8, Some(1))), (100, 8, 1));
        assert_eq!(numbers(case.over(100, 8, Some(9))), (100, 8, 8));
    }

    #[test]
    fn a_case_travels_as_json() {
        let case = Case::new(Measure::Think, Pin::One, 14).paced(1000).by(4);
        let text = serde_json::to_string(&case).unwrap();
        assert_eq!(serde_json::from_str::<Case>(&text).unwrap(), case);
    }
}
