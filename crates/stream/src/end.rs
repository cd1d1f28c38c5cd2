//! The word that arbitrates a handover: a tag in the low three bits, an offset above it.
//! It lies in memory that the peer writes, so decoding fails rather than trusts.

use crate::Violation;

/// The largest stream offset that fits beside a tag (2 EiB).
pub const OFFSET_MAX: u64 = u64::MAX >> TAG_BITS;

const TAG_BITS: u32 = 3;

/// Where a ring segment stands. The table in the crate's documentation says who may change what.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum End {
    /// No segment, and the reader has not agreed to one.
    Idle,
    /// No segment; the writer may begin one.
    Agreed,
    /// A segment has begun at `up_at`; the reader may still be taking TCP bytes without limit.
    Open,
    /// The reader has noticed the segment and takes TCP bytes only up to `up_at`.
    Seen,
    /// The segment ends here; later bytes are on TCP.
    Down(u64),
    /// The writer took the unnoticed segment back; it ended here.
    Recalled(u64),
    /// The reader left the ring here.
    Stop(u64),
    /// The reader closed its descriptor here.
    Closed(u64),
}

impl End {
    #[must_use]
    pub const fn encode(self) -> u64 {
        let (tag, offset) = match self {
            End::Idle => (0, 0),
            End::Agreed => (1, 0),
            End::Open => (2, 0),
            End::Seen => (3, 0),
            End::Down(offset) => (4, offset),
            End::Recalled(offset) => (5, offset),
            End::Stop(offset) => (6, offset),
            End::Closed(offset) => (7, offset),
        };
        debug_assert!(offset <= OFFSET_MAX);
        offset << TAG_BITS | tag
    }

    pub const fn decode(word: u64) -> Result<End, Violation> {
        let offset = word >> TAG_BITS;
        Ok(match (word & 7, offset) {
            (0, 0) => End::Idle,
            (1, 0) => End::Agreed,
            (2, 0) => End::Open,
            (3, 0) => End::Seen,
            (4, offset) => End::Down(offset),
            (5, offset) => End::Recalled(offset),
            (6, offset) => End::Stop(offset),
            (7, offset) => End::Closed(offset),
            _ => return Err(Violation::Undefined { word }),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_end_survives_its_encoding() {
        let plain = [End::Idle, End::Agreed, End::Open, End::Seen];
        let placed = [End::Down, End::Recalled, End::Stop, End::Closed]
            .into_iter()
            .flat_map(|end| [0, 1, OFFSET_MAX].map(end));
        for end in plain.into_iter().chain(placed) {
            assert_eq!(End::decode(end.encode()), Ok(end));
        }
    }

    #[test]
    fn zeroed_memory_is_idle() {
        assert_eq!(End::decode(0), Ok(End::Idle));
    }

    #[test]
    fn an_offset_where_none_belongs_is_a_violation() {
        for tag in 0..4 {
            assert!(End::decode(1 << TAG_BITS | tag).is_err());
        }
    }
}
