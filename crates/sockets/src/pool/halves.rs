//! The two directions of a stream while it is attached.

use shunt_carriers::shm;
use shunt_stream::{Reader, Writer};

use super::Waiting;
use crate::receive::flow::Flow;

/// The receiving half while attached.
pub struct RecvSide {
    pub reader: Reader,
    pub consumer: Option<shm::Receiver>,
    /// Stream offset of the next byte the program gets.
    pub offset: u64,
    pub offset_known: bool,
    /// The writer holds its FIN until the ring is drained, so that this end can still leave.
    pub fin_held: bool,
    /// The writer was shut down: the end of the stream follows the ring's last byte.
    pub peer_shut: bool,
    /// Calls that found nothing and have not ended yet: a close lets them finish.
    pub waiting: Waiting,
    /// Bytes that this direction carried on rings alone: the offset less TCP's own count.
    pub ring_only: u64,
    /// As many that it carried so in slots where the stream stood before, which are in no offset any more.
    pub before: u64,
    /// ECONNRESET to be told once the ring is drained: the dead peer left bytes unread.
    pub reset_pending: bool,
    /// How often the program looked for bytes here, and may have found that there were no more.
    pub misses: u32,
    pub flow: Flow,
    /// Up to this offset bytes were in the ring when this reader left it, and come by TCP anew: what was told
    /// of once is to be had.
    pub owed: u64,
    /// What TCP had when the stream left the ring.
    pub left: Option<LeftWith>,
    pub told: Told,
}

/// How many of a direction's bytes on rings TCP_INFO counted last, and when they were news to it.
#[derive(Clone, Copy)]
pub struct Told {
    pub bytes: u64,
    pub at_ns: u64,
}

impl Told {
    const NOTHING: Told = Told { bytes: 0, at_ns: 0 };
}

/// What has arrived by TCP when a stream leaves the ring for good.
#[derive(Clone, Copy)]
pub struct LeftWith {
    /// The stream's bytes since it began.
    pub arrived: u64,
    /// The kernel's own count, an end included.
    pub received: u64,
}

/// The sending half while attached.
pub struct SendSide {
    pub writer: Writer,
    /// As in [`RecvSide`].
    pub waiting: Waiting,
    pub producer: Option<shm::Sender>,
    /// Bytes that earlier segments of this direction carried on the ring alone.
    pub ring_only: u64,
    /// As in [`RecvSide`].
    pub before: u64,
    /// Where the present segment began.
    pub up_at: u64,
    /// Sends on TCP since the last segment; the ring is taken again when the stream goes on.
    pub since_down: u32,
    /// shutdown(SHUT_WR) was called.
    pub shut: bool,
    /// What the kernel answered to a re-send; the next send of the program's is told.
    pub failed: Option<i32>,
    /// The FIN waits until the ring's bytes are sent again.
    pub fin_pending: bool,
    /// The ring's room was reckoned before its reader came to it.
    pub is_narrow: bool,
    /// Looks at a full ring since its reader was asked to stop; 0 if it was not, or has moved since.
    pub looks_for_stop: u32,
    /// While [`full`](Socket::full): the reader's cursor as it was seen last.
    pub full_head: u64,
    /// When the first of the bytes that are held back came, in ns.
    pub held_since_ns: u64,
    /// The service thread looks whether bytes are held back for long.
    pub is_held_watched: bool,
    pub told: Told,
}

impl RecvSide {
    /// For a plain stream that is put in a slot.
    pub fn fresh(&self, consumer: shm::Receiver) -> RecvSide {
        RecvSide { consumer: Some(consumer), waiting: self.waiting, ..RecvSide::new() }
    }

    /// For one that comes from a slot of a link that is gone: offsets are TCP's own counts again.
    pub fn renewed(&self, consumer: shm::Receiver) -> RecvSide {
        RecvSide {
            before: self.before + self.ring_only,
            misses: self.misses,
            told: self.told,
            ..self.fresh(consumer)
        }
    }

    /// For a stream that stands in no slot.
    pub(crate) const fn new() -> RecvSide {
        RecvSide {
            reader: Reader::new(),
            consumer: None,
            offset: 0,
            offset_known: false,
            fin_held: false,
            peer_shut: false,
            waiting: Waiting::NONE,
            ring_only: 0,
            before: 0,
            reset_pending: false,
            misses: 0,
            flow: Flow::NONE,
            owed: 0,
            left: None,
            told: Told::NOTHING,
        }
    }
}

impl SendSide {
    /// For a plain stream that is put in a slot.
    pub fn fresh(&self, producer: shm::Sender) -> SendSide {
        SendSide { producer: Some(producer), waiting: self.waiting, ..SendSide::new() }
    }

    /// As for the receiving half.
    pub fn renewed(&self, producer: shm::Sender) -> SendSide {
        SendSide { before: self.before + self.ring_only, told: self.told, ..self.fresh(producer) }
    }

    /// For a stream that stands in no slot.
    pub(crate) const fn new() -> SendSide {
        SendSide {
            writer: Writer::new(),
            waiting: Waiting::NONE,
            producer: None,
            ring_only: 0,
            before: 0,
            up_at: 0,
            since_down: 0,
            shut: false,
            fin_pending: false,
            failed: None,
            looks_for_stop: 0,
            full_head: 0,
            is_narrow: false,
            held_since_ns: 0,
            is_held_watched: false,
            told: Told::NOTHING,
        }
    }
}
