//! The messages of a control channel: one datagram each, fixed size, little-endian, version first.
//!
//! | kind | from | carries | descriptors |
//! |---|---|---|---|
//! | Greet | who listened | | |
//! | Hello | who connected, when greeted | its view of the connection, as the slot how many bytes its rings have at most, as the id 1 if it has a slot for the stream in a link to the process | its end, its bell |
//! | Welcome | who listened (the master) | slot | link memory, its end, its bell |
//! | Refuse | either, instead of the above | | |
//! | Offer | either, on a live link | id, its view, slot if it is the master | its end |
//! | Accept | answer to Offer | id, slot | its end |
//! | Decline | answer to Offer | id | |
//! | Stopped | reader that left a ring; who closes says it only if bytes are unread, or when asked | slot | |
//! | Yield | writer that would go on over TCP: the reader is to stop, if its head is the one named | slot, head and 1 as the id, or 0 for any | |
//! | FinHeld | writer that was shut down or closed with bytes unread in the ring | slot | |
//! | Drained | reader, when it has taken them, or if it is closed | slot | |
//! | Released | guest that is done with a slot after the master | slot | |
//! | Bell | who has more wait sets than one on the link | as the slot its number | a further bell |
//!
//! A descriptor travels only to a process whose service thread has just spoken or holds a live
//! link: one that lies unread in a queue would keep a connection open after its program closed it.

use shunt_os::peer::{Endpoint, Tuple};

/// Every message has this size.
pub const BYTES: usize = 96;
const VERSION: u32 = 0x5348_000c;
/// No slot is meant.
pub const NO_SLOT: u32 = u32::MAX;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Hello = 1,
    Welcome = 2,
    Refuse = 3,
    Offer = 4,
    Accept = 5,
    Decline = 6,
    Stopped = 7,
    Released = 8,
    Greet = 9,
    FinHeld = 10,
    Drained = 11,
    Yield = 12,
    Bell = 13,
}

/// One message, whatever its kind; fields that a kind does not use are zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Message {
    pub kind: Kind,
    pub slot: u32,
    pub id: u64,
    pub tuple: Tuple,
}

impl Message {
    /// A message of `kind` about `slot`.
    pub fn of(kind: Kind, slot: u32) -> Message {
        Message { kind, slot, id: 0, tuple: Tuple::default() }
    }

    pub fn encode(&self) -> [u8; BYTES] {
        let mut out = [0u8; BYTES];
        out[0..4].copy_from_slice(&VERSION.to_le_bytes());
        out[4..8].copy_from_slice(&(self.kind as u32).to_le_bytes());
        out[8..12].copy_from_slice(&self.slot.to_le_bytes());
        out[16..24].copy_from_slice(&self.id.to_le_bytes());
        put(&mut out[24..48], &self.tuple.local);
        put(&mut out[48..72], &self.tuple.remote);
        out
    }

    /// `None` for anything that is not a message of this version.
    pub fn decode(bytes: &[u8]) -> Option<Message> {
        if bytes.len() != BYTES || word(bytes, 0) != VERSION {
            return None;
        }
        let kind = match word(bytes, 4) {
            1 => Kind::Hello,
            2 => Kind::Welcome,
            3 => Kind::Refuse,
            4 => Kind::Offer,
            5 => Kind::Accept,
            6 => Kind::Decline,
            7 => Kind::Stopped,
            8 => Kind::Released,
            9 => Kind::Greet,
            10 => Kind::FinHeld,
            11 => Kind::Drained,
            12 => Kind::Yield,
            13 => Kind::Bell,
            _ => return None,
        };
        let id = u64::from(word(bytes, 16)) | u64::from(word(bytes, 20)) << 32;
        let tuple = Tuple { local: get(&bytes[24..48]), remote: get(&bytes[48..72]) };
        Some(Message { kind, slot: word(bytes, 8), id, tuple })
    }
}

fn word(bytes: &[u8], at: usize) -> u32 {
    let mut four = [0; 4];
    four.copy_from_slice(&bytes[at..at + 4]);
    u32::from_le_bytes(four)
}

fn put(out: &mut [u8], e: &Endpoint) {
    out[..16].copy_from_slice(&e.address);
    out[16..18].copy_from_slice(&e.port.to_le_bytes());
    out[20..24].copy_from_slice(&e.scope.to_le_bytes());
}

fn get(bytes: &[u8]) -> Endpoint {
    let mut address = [0; 16];
    address.copy_from_slice(&bytes[..16]);
    Endpoint {
        address,
        port: u16::from_le_bytes([bytes[16], bytes[17]]),
        _zero: 0,
        scope: word(bytes, 20),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_survives_encoding() {
        let end = |port| Endpoint { address: [port as u8; 16], port, _zero: 0, scope: 3 };
        let tuple = Tuple { local: end(80), remote: end(40000) };
        for kind in [Kind::Hello, Kind::Offer, Kind::Released] {
            let message = Message { kind, slot: 7, id: u64::MAX - 1, tuple };
            assert_eq!(Message::decode(&message.encode()), Some(message));
        }
    }

    #[test]
    fn nonsense_is_refused() {
        let good = Message::of(Kind::Stopped, 1).encode();
        assert_eq!(Message::decode(&good[..95]), None);
        assert_eq!(Message::decode(&[]), None);
        for at in 0..8 {
            let mut bad = good;
            bad[at] ^= 0x5a;
            assert_eq!(Message::decode(&bad), None, "byte {at}");
        }
    }
}
