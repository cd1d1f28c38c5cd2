//! The handover's words where they lie: in a slot of a link's shared memory.
// UNSAFETY: reaches them by address.
#![allow(unsafe_code)]

use core::ptr::NonNull;
use core::sync::atomic::Ordering::{Acquire, Relaxed, SeqCst};

use shunt_link::{Link, Side};
use shunt_ring::Direction;
use shunt_stream::Words;

/// Who has shut a direction down: the program, whose FIN is held back or about to be sent, or the end of its process.
const BY_PROGRAM: u64 = 1;
const BY_ITS_END: u64 = 2;
/// The program, and TCP has the FIN.
const BY_TCP: u64 = 3;
/// The program, and the connection was reset before the FIN could be sent.
const IN_VAIN: u64 = 4;
/// The program, whose FIN is held back: no byte follows those of the ring.
const AT_TAIL: u64 = 5;

/// The words of a slot that no link has ([`VACANT`](shunt_link::VACANT)): who looks at a stream without its locks may do
/// so in the moment in which another thread takes it out. What is found here means nothing.
// SAFETY: atomics, of which all bits may be 0, and spare bytes.
static NOWHERE: Direction = unsafe { core::mem::zeroed() };

/// The words of one direction of a slot, for [`Writer`](shunt_stream::Writer) and
/// [`Reader`](shunt_stream::Reader). The mapping outlives every stream in it.
#[derive(Clone, Copy)]
pub struct SlotWords {
    direction: NonNull<Direction>,
    /// Bytes of its ring.
    capacity: u32,
}

// SAFETY: the address is of a shared mapping, valid on every thread; only atomics are reached by it.
unsafe impl Send for SlotWords {}

/// The words of the direction that this end writes.
pub fn outgoing(link: &Link, slot: u32) -> SlotWords {
    SlotWords::of(link, slot, link.side)
}

/// The words of the direction that this end reads.
pub fn incoming(link: &Link, slot: u32) -> SlotWords {
    SlotWords::of(link, slot, link.side.other())
}

/// When the connection of a reader that closed is closed for the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Close {
    /// By the program's own call.
    ByItself,
    /// Later: something is held back before its end.
    Later,
    /// As above, and that was done.
    Done,
}

/// Bits of [`leaving`](shunt_ring::ConsumerLine::leaving).
const RESETS: u64 = 1;
const KEPT: u64 = 2;
const DONE: u64 = 4;
const BEHIND_TCP: u64 = 8;

impl SlotWords {
    /// Whether another process may read the stream as well.
    pub fn reader_shares(&self) -> bool {
        self.direction().consumer.shared.load(Relaxed) != 0
    }

    /// Says so to the writer. `member`: the stream's number in the reader's family, 0 if it has none.
    pub fn share_reader(&self, member: u32) {
        self.direction().consumer.shared.store(u64::from(member) + 1, SeqCst);
    }

    /// Whether the slot is still that of the stream with this number: it may be another's by now.
    pub fn is_shared_as(&self, member: u32) -> bool {
        member != 0 && self.direction().consumer.shared.load(SeqCst) == u64::from(member) + 1
    }

    /// Whether so many bytes are sure to fit the reader's TCP window. Its receive buffer may have been set, and
    /// the kernel counts there what it has allocated for them.
    pub fn fit_window(&self, bytes: u64) -> bool {
        const FEW: u64 = 48 * 1024;
        let window = self.direction().consumer.window.load(Relaxed);
        bytes <= if window == 0 { FEW } else { FEW.min(window / 4) }
    }

    /// Whether the reader gave the stream up with bytes unread, so that a reset comes in any case.
    pub fn reader_resets(&self) -> bool {
        self.direction().consumer.leaving.load(Relaxed) & RESETS != 0
    }

    /// Says so to the writer, before the reader leaves the ring.
    pub fn announce_reset(&self) {
        self.direction().consumer.leaving.fetch_or(RESETS, SeqCst);
    }

    /// Whose close it is that the writer finds.
    pub fn reader_close(&self) -> Close {
        match self.direction().consumer.leaving.load(SeqCst) {
            bits if bits & DONE != 0 => Close::Done,
            bits if bits & KEPT != 0 => Close::Later,
            _ => Close::ByItself,
        }
    }

    /// The connection of a reader that closed is kept open for now.
    pub fn keep_reader(&self) {
        self.direction().consumer.leaving.fetch_or(KEPT, SeqCst);
    }

    /// It is closed.
    pub fn reader_is_closed(&self) {
        self.direction().consumer.leaving.fetch_or(DONE, SeqCst);
    }

    /// Whether what the ring has left, now that its writer is gone, comes behind bytes of TCP's, and not before.
    pub fn is_behind_tcp(&self) -> bool {
        self.direction().consumer.leaving.load(SeqCst) & BEHIND_TCP != 0
    }

    /// Says so to others who read the stream.
    pub fn set_behind_tcp(&self) {
        self.direction().consumer.leaving.fetch_or(BEHIND_TCP, SeqCst);
    }

    /// Whether the writer's program has shut the direction down, or its process ends in order: its FIN is not
    /// that of a sudden death.
    pub fn writer_shut(&self) -> bool {
        self.direction().wake.shut.load(Acquire) != 0
    }

    /// Whether the writer's program has shut the direction down, of which TCP has not heard: what its process does then
    /// comes behind the FIN. All that it wrote before is published.
    pub fn fin_is_due(&self) -> bool {
        matches!(self.direction().wake.shut.load(Acquire), BY_PROGRAM | AT_TAIL)
    }

    /// Whether it is held back, and no byte follows those of the ring. All of these are published.
    pub fn fin_is_held(&self) -> bool {
        self.direction().wake.shut.load(Acquire) == AT_TAIL
    }

    /// Says so to the reader.
    pub fn hold_fin(&self) {
        self.direction().wake.shut.store(AT_TAIL, SeqCst);
    }

    /// TCP has the FIN, and knows what comes behind it.
    pub fn fin_is_sent(&self) {
        let shut = &self.direction().wake.shut;
        for due in [BY_PROGRAM, AT_TAIL] {
            let _ = shut.compare_exchange(due, BY_TCP, SeqCst, Relaxed);
        }
    }

    /// The connection is reset, and the FIN would not have come to the reader before.
    pub fn drop_fin(&self) {
        self.direction().wake.shut.store(IN_VAIN, SeqCst);
    }

    /// Whether that was so.
    pub fn fin_is_dropped(&self) -> bool {
        self.direction().wake.shut.load(Relaxed) == IN_VAIN
    }

    /// The program shuts the direction down: says so to the reader, before the FIN is sent.
    pub fn shut_writer(&self) {
        self.direction().wake.shut.store(BY_PROGRAM, SeqCst);
    }

    /// The process ends in order: the same, unless the program has done it.
    pub fn writer_ends(&self) {
        let _ = self.direction().wake.shut.compare_exchange(0, BY_ITS_END, SeqCst, Relaxed);
    }

    /// How many bytes the stream had had by TCP when the present segment began.
    pub fn by_tcp(&self) -> u64 {
        self.direction().consumer.by_tcp.load(Relaxed)
    }

    /// Writer, before it opens the segment.
    pub fn set_by_tcp(&self, bytes: u64) {
        self.direction().consumer.by_tcp.store(bytes, Relaxed);
    }

    fn of(link: &Link, slot: u32, writer: Side) -> SlotWords {
        let memory = &link.memory;
        let direction = match slot < memory.slots() {
            true => memory.direction(slot, writer),
            false => NonNull::from(&NOWHERE),
        };
        SlotWords { direction, capacity: memory.ring_bytes() }
    }

    #[inline(always)]
    fn direction(&self) -> &Direction {
        // SAFETY: a link's memory stays mapped while a stream stands in it.
        unsafe { self.direction.as_ref() }
    }
}

impl Words for SlotWords {
    fn tail(&self) -> u64 {
        self.direction().tail()
    }
    fn set_tail(&self, offset: u64) {
        self.direction().set_tail(offset);
    }
    fn show_held(&self) {
        self.direction().show_held(self.capacity.into());
    }
    fn up_at(&self) -> u64 {
        self.direction().up_at()
    }
    fn set_up_at(&self, offset: u64) {
        self.direction().set_up_at(offset);
    }
    fn head(&self) -> u64 {
        self.direction().head()
    }
    fn end(&self) -> u64 {
        self.direction().end()
    }
    fn end_cas(&self, from: u64, to: u64) -> Result<(), u64> {
        self.direction().end_cas(from, to)
    }
}
