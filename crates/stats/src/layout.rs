//! The bytes of a segment. `docs/design/stats.md` draws them; both change together.
//!
//! Every word is an atomic, because the reader is another process and looks at any time. A segment
//! has one writing process; a forked child makes a segment of its own.

use core::mem::{offset_of, size_of};
use core::sync::atomic::{AtomicU32, AtomicU64};

/// "SHUNTSTA" as it stands in the file.
pub(crate) const MAGIC: u64 = u64::from_le_bytes(*b"SHUNTSTA");
/// Goes up with every change of the layout that an older reader would misread.
pub const VERSION: u32 = 3;
/// The name of the memfd that holds the segment of a process started without a report.
pub const MEMFD_NAME: &str = "shunt-stats";
/// The longest program name that is kept; longer ones are cut.
pub const PROGRAM_BYTES_MAX: usize = 64;

pub(crate) const CARRIERS: usize = 4;
pub(crate) const REASONS_MAX: usize = 64;
/// Entry 0 is shared by the streams that found no entry of their own.
pub(crate) const ENTRIES: usize = 16_384;
pub(crate) const OVERFLOW: u32 = 0;
/// Streams of one process that can have an entry of their own at the same time.
pub const STREAMS_MAX: usize = ENTRIES - 1;
/// The size of a segment. The file is sparse: entries that were never used take no memory.
pub const SEGMENT_BYTES: usize = size_of::<SegmentLayout>();

pub(crate) const ENTRY_FREE: u32 = 0;
pub(crate) const ENTRY_OPEN: u32 = 1;

pub(crate) const PEER_IS_SHUNT: u32 = 1;
pub(crate) const UPGRADED: u32 = 2;
pub(crate) const REVERTED: u32 = 4;

#[repr(C, align(64))]
pub(crate) struct Header {
    /// Written last, so a segment with this word has a whole header.
    pub magic: AtomicU64,
    pub version: AtomicU32,
    pub pid: AtomicU32,
    /// Clock ticks after boot, as in `/proc/PID/stat`; tells a reused pid.
    pub start_time: AtomicU64,
    pub entries: AtomicU32,
    pub program_bytes: AtomicU32,
    pub program: [AtomicU64; PROGRAM_BYTES_MAX / 8],
}

/// Sums over the streams that are closed, except where a field says otherwise.
#[repr(C, align(64))]
pub(crate) struct Totals {
    /// Counted when the stream opens.
    pub streams: AtomicU64,
    pub streams_eligible: AtomicU64,
    pub streams_eligible_upgraded: AtomicU64,
    /// Counted when it happens, once for each stream; so is the next.
    pub streams_upgraded: AtomicU64,
    pub streams_reverted: AtomicU64,
    /// Between these two, a closing stream moves from its entry into the sums.
    pub closes_begun: AtomicU64,
    pub closes_done: AtomicU64,
    pub bytes_sent: [AtomicU64; CARRIERS],
    pub bytes_received: [AtomicU64; CARRIERS],
    pub pass_through: [AtomicU64; REASONS_MAX],
    /// Of eligible streams that were never upgraded.
    pub eligible_on_tcp: [AtomicU64; REASONS_MAX],
}

/// Who has entries. Only the writer follows these words.
#[repr(C, align(64))]
pub(crate) struct Allocation {
    /// Entries below this number were used at some time; the reader looks no further.
    pub entries_touched: AtomicU32,
    /// Top of the stack of freed entries: a change count above, the entry below, 0 when empty.
    pub free_top: AtomicU64,
}

/// One direction of a stream; in its own line, since each has its own thread in many programs.
#[repr(C, align(64))]
pub(crate) struct Flow {
    pub bytes: [AtomicU64; CARRIERS],
    pub messages: AtomicU64,
    pub carrier: AtomicU32,
}

#[repr(C, align(64))]
pub(crate) struct Entry {
    pub state: AtomicU32,
    /// The entry below this one in the stack of freed entries.
    pub next_free: AtomicU32,
    pub flags: AtomicU32,
    pub reason: AtomicU32,
    /// 4, 6, or 0 while the addresses are not known.
    pub family: AtomicU32,
    /// The local port in the upper half, the peer's in the lower.
    pub ports: AtomicU32,
    /// Network byte order; an IPv4 address is in the first four bytes.
    pub local: [AtomicU64; 2],
    pub peer: [AtomicU64; 2],
    pub sent: Flow,
    pub received: Flow,
}

#[repr(C, align(4096))]
pub(crate) struct SegmentLayout {
    pub header: Header,
    pub totals: Totals,
    pub allocation: Allocation,
    pub entries: EntryTable,
}

#[repr(C, align(4096))]
pub(crate) struct EntryTable(pub [Entry; ENTRIES]);

// A segment is read by a command that may have another word size than its writer.
const _: () = assert!(size_of::<AtomicU64>() == 8 && align_of::<AtomicU64>() == 8);
const _: () = assert!(size_of::<Header>() == 128);
const _: () = assert!(offset_of!(Header, start_time) == 16);
const _: () = assert!(offset_of!(Header, entries) == 24);
const _: () = assert!(size_of::<Totals>() == 1152);
const _: () = assert!(offset_of!(Totals, bytes_sent) == 56);
const _: () = assert!(size_of::<Allocation>() == 64);
const _: () = assert!(offset_of!(Allocation, free_top) == 8);
const _: () = assert!(size_of::<Flow>() == 64);
const _: () = assert!(offset_of!(Flow, messages) == 32);
const _: () = assert!(offset_of!(Flow, carrier) == 40);
const _: () = assert!(offset_of!(Entry, local) == 24);
const _: () = assert!(size_of::<Entry>() == 192);
const _: () = assert!(offset_of!(Header, program) == 32);
const _: () = assert!(offset_of!(Totals, pass_through) == 120);
const _: () = assert!(offset_of!(Entry, peer) == 40);
const _: () = assert!(offset_of!(Entry, sent) == 64);
const _: () = assert!(offset_of!(Entry, received) == 128);
const _: () = assert!(offset_of!(SegmentLayout, totals) == 128);
const _: () = assert!(offset_of!(SegmentLayout, allocation) == 1280);
const _: () = assert!(offset_of!(SegmentLayout, entries) == 4096);
const _: () = assert!(SEGMENT_BYTES == 4096 + ENTRIES * 192);
const _: () = assert!(crate::Reason::ALL.len() <= REASONS_MAX);
const _: () = assert!(crate::Carrier::ALL.len() == CARRIERS);
