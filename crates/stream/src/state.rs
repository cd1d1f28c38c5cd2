//! A stream as one side sees it: the carrier of each direction, and which halves are closed.
//!
//! The halves are the caller's to keep (one [`Sending`] under the send lock, one [`Receiving`] under
//! the receive lock); what a shutdown, a FIN or an error makes of them is decided here.

use crate::{Reader, ReaderOn, Writer, WriterOn};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Carrier {
    Tcp,
    Ring,
}

/// The half this side writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Sending {
    Open,
    /// Shut by the program, its FIN not yet sent: bytes of the ring go to TCP before it.
    Closing,
    /// The FIN is sent.
    Closed,
    Failed,
}

/// The half this side reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Receiving {
    Open,
    /// Shut by the program: it sees an end whenever nothing is at hand.
    Shut,
    /// Every byte and then TCP's end has been seen.
    Ended,
    Failed,
}

/// What happens to a half.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Event {
    /// `shutdown` of this half, or close.
    Shutdown,
    /// Sending: the companion was shut down, which [`Sending::fin_due`] allowed.
    FinSent,
    /// Receiving: TCP ended and [`Reader::tcp_ended`] did not answer `Ring`.
    TcpEnded,
    /// A reset, an error of the kernel's, or a violation.
    Failed,
}

impl Event {
    pub const ALL: [Event; 4] = [Event::Shutdown, Event::FinSent, Event::TcpEnded, Event::Failed];
}

impl Sending {
    pub const ALL: [Sending; 4] =
        [Sending::Open, Sending::Closing, Sending::Closed, Sending::Failed];

    #[must_use]
    pub const fn after(self, event: Event) -> Sending {
        match (self, event) {
            (_, Event::Failed) => Sending::Failed,
            (Sending::Open, Event::Shutdown) => Sending::Closing,
            (Sending::Closing, Event::FinSent) => Sending::Closed,
            (same, Event::Shutdown | Event::FinSent | Event::TcpEnded) => same,
        }
    }

    #[must_use]
    pub const fn may_write(self) -> bool {
        matches!(self, Sending::Open)
    }

    /// Whether the FIN may be sent now: asked after [`Writer::go_down`] and each [`Writer::resent`].
    #[must_use]
    pub fn fin_due(self, writer: &Writer) -> bool {
        self == Sending::Closing && writer.on() == WriterOn::Tcp
    }
}

impl Receiving {
    pub const ALL: [Receiving; 4] =
        [Receiving::Open, Receiving::Shut, Receiving::Ended, Receiving::Failed];

    #[must_use]
    pub const fn after(self, event: Event) -> Receiving {
        match (self, event) {
            (_, Event::Failed) => Receiving::Failed,
            (Receiving::Open, Event::Shutdown) => Receiving::Shut,
            (Receiving::Open | Receiving::Shut, Event::TcpEnded) => Receiving::Ended,
            (same, Event::Shutdown | Event::FinSent | Event::TcpEnded) => same,
        }
    }
}

/// For counters and reports. Taken under the two locks one after the other, so the two directions
/// need not be of the same moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Snapshot {
    pub sends_on: Carrier,
    pub sending: Sending,
    pub receives_on: Carrier,
    pub receiving: Receiving,
    /// A handover is under way: bytes are re-sent, or still come by the carrier that was left.
    pub moving: bool,
}

impl Snapshot {
    #[must_use]
    pub fn of(
        writer: &Writer,
        sending: Sending,
        reader: &Reader,
        receiving: Receiving,
    ) -> Snapshot {
        let (sends_on, resends) = match writer.on() {
            WriterOn::Tcp => (Carrier::Tcp, false),
            WriterOn::Ring => (Carrier::Ring, false),
            WriterOn::Resend { .. } => (Carrier::Tcp, true),
        };
        let (receives_on, crosses) = match reader.on() {
            ReaderOn::Tcp => (Carrier::Tcp, false),
            ReaderOn::Ring => (Carrier::Ring, false),
            ReaderOn::Crossing { .. } | ReaderOn::Salvage { .. } => (Carrier::Tcp, true),
        };
        Snapshot { sends_on, sending, receives_on, receiving, moving: resends || crosses }
    }
}
