//! The words of one direction as they lie in shared memory.
//!
//! Three lines of 64 bytes, apart so that the two sides do not steal each other's cache lines: one
//! that only the writer stores, one that only the reader stores, one for the rare words that both
//! change. Zeroed memory is a valid direction: nothing written, nothing ended, nobody waiting.

use crate::latest::WORDS;
use crate::sync::{AtomicU32, AtomicU64};

/// Stored by the writer alone.
#[repr(C, align(64))]
pub struct ProducerLine {
    /// Offset behind the last byte written.
    pub tail: AtomicU64,
    /// Offset at which the present segment of the ring began.
    pub up_at: AtomicU64,
    /// Offset behind the last byte that may already be written to `latest`.
    pub reserved: AtomicU64,
    /// Offset from which on every byte was written to `latest`; all ones if the last were not.
    pub since: AtomicU64,
    /// The last bytes once more: the byte at offset `o` lies at `o % 32`.
    pub latest: [AtomicU64; WORDS],
}

/// Stored by the reader alone, but for one word.
#[repr(C, align(64))]
pub struct ConsumerLine {
    /// Offset of the first byte not yet read.
    pub head: AtomicU64,
    /// How many bytes the reader would have unread at most; 0 is no bound of its own.
    pub window: AtomicU64,
    /// Not 0: another process may read the stream as well, by TCP, so that nothing may be left here
    /// for the reader behind which TCP goes on. It is one more than the stream's number in the reader's family, which
    /// tells that process whose slot this is.
    pub shared: AtomicU64,
    /// How the reader gives the stream up, in bits of the carrier; 0 while it does not.
    pub leaving: AtomicU64,
    /// How many bytes the stream had had by TCP when the present segment began. The writer stores it, in this line since
    /// it does so seldom.
    pub by_tcp: AtomicU64,
    /// By which bell the reader's process is told of the stream, also of room in what it writes itself; stored by that
    /// process alone.
    pub told_by: AtomicU32,
    #[cfg(not(loom))]
    reserved: u32,
    spare: [u64; 2],
}

/// Changed rarely; what both change, only by read-modify-write.
#[repr(C, align(64))]
pub struct WakeLine {
    /// Where the handover stands, in the words of `stream`; 0 at first.
    pub end: AtomicU64,
    /// Ways in which the reader waits for bytes: [`WAIT_SET`](crate::WAIT_SET), [`FUTEX`](crate::FUTEX).
    pub data_wanted: AtomicU32,
    /// Ways in which the writer waits for space.
    pub space_wanted: AtomicU32,
    /// Offset of the byte that lies at the array's start; stored by the writer alone.
    pub origin: AtomicU64,
    /// 1 once the writer's program has shut the direction down, 2 if its process ends in order before.
    pub shut: AtomicU64,
    /// When the writer's side marked the stream for its reader last, in the clock of the link. Here, since
    /// who marks has just asked for the reader's wish, and who is told looks at it next.
    pub marked_at: AtomicU64,
    /// Offset up to which a send that is shown in pieces goes on without waiting; stored by the writer alone.
    pub going_to: AtomicU64,
    /// Offset behind the last byte that the writer keeps from its reader for a while, which is to have it if the writer
    /// dies meanwhile; stored by the writer alone. No more than the tail if there is none.
    pub held: AtomicU64,
    /// How many bytes are unread at most where a writer that waits for space is woken; stored by the writer alone.
    pub low_water: AtomicU64,
}

/// One direction of a stream: everything but its bytes.
#[repr(C)]
#[derive(Default)]
pub struct Direction {
    pub producer: ProducerLine,
    pub consumer: ConsumerLine,
    pub wake: WakeLine,
}

impl Direction {
    pub fn new() -> Direction {
        Direction::default()
    }
}

impl Default for ProducerLine {
    fn default() -> ProducerLine {
        ProducerLine {
            tail: AtomicU64::new(0),
            up_at: AtomicU64::new(0),
            reserved: AtomicU64::new(0),
            since: AtomicU64::new(0),
            latest: core::array::from_fn(|_| AtomicU64::new(0)),
        }
    }
}

impl Default for ConsumerLine {
    fn default() -> ConsumerLine {
        ConsumerLine {
            head: AtomicU64::new(0),
            window: AtomicU64::new(0),
            shared: AtomicU64::new(0),
            leaving: AtomicU64::new(0),
            by_tcp: AtomicU64::new(0),
            told_by: AtomicU32::new(0),
            #[cfg(not(loom))]
            reserved: 0,
            spare: [0; 2],
        }
    }
}

impl Default for WakeLine {
    fn default() -> WakeLine {
        WakeLine {
            end: AtomicU64::new(0),
            data_wanted: AtomicU32::new(0),
            space_wanted: AtomicU32::new(0),
            origin: AtomicU64::new(0),
            shut: AtomicU64::new(0),
            marked_at: AtomicU64::new(0),
            going_to: AtomicU64::new(0),
            held: AtomicU64::new(0),
            low_water: AtomicU64::new(0),
        }
    }
}

/// Two processes, perhaps of different builds, share these bytes: a change here is a new version.
#[cfg(not(loom))]
const _: () = {
    use core::mem::{align_of, offset_of, size_of};
    assert!(size_of::<ProducerLine>() == 64 && align_of::<ProducerLine>() == 64);
    assert!(size_of::<ConsumerLine>() == 64 && align_of::<ConsumerLine>() == 64);
    assert!(size_of::<WakeLine>() == 64 && align_of::<WakeLine>() == 64);
    assert!(size_of::<Direction>() == 192 && align_of::<Direction>() == 64);
    assert!(offset_of!(Direction, producer) == 0);
    assert!(offset_of!(Direction, consumer) == 64);
    assert!(offset_of!(Direction, wake) == 128);
    assert!(offset_of!(ProducerLine, tail) == 0);
    assert!(offset_of!(ProducerLine, up_at) == 8);
    assert!(offset_of!(ProducerLine, reserved) == 16);
    assert!(offset_of!(ProducerLine, since) == 24);
    assert!(offset_of!(ProducerLine, latest) == 32);
    assert!(offset_of!(ConsumerLine, head) == 0);
    assert!(offset_of!(ConsumerLine, window) == 8);
    assert!(offset_of!(ConsumerLine, shared) == 16 && offset_of!(ConsumerLine, leaving) == 24);
    assert!(offset_of!(ConsumerLine, by_tcp) == 32 && offset_of!(ConsumerLine, told_by) == 40);
    assert!(offset_of!(WakeLine, end) == 0);
    assert!(offset_of!(WakeLine, data_wanted) == 8);
    assert!(offset_of!(WakeLine, space_wanted) == 12);
    assert!(offset_of!(WakeLine, origin) == 16 && offset_of!(WakeLine, shut) == 24);
    assert!(offset_of!(WakeLine, marked_at) == 32 && offset_of!(WakeLine, going_to) == 40);
    assert!(offset_of!(WakeLine, held) == 48 && offset_of!(WakeLine, low_water) == 56);
};
