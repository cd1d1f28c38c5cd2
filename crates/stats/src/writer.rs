//! The library's side: count into a mapped segment.
//!
//! Nothing here allocates, locks, calls the system or panics. Handles are plain numbers and pointers
//! that stay valid as long as the mapping. Entries are handed out from a stack of freed ones, then
//! from those never used, so the cost does not grow with the number of open streams.
// UNSAFETY: turns a mapped address into references to the segment's atomics.
#![allow(unsafe_code)]

use core::ptr::NonNull;
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use core::sync::atomic::{AtomicU32, AtomicU64};

use crate::catalog::{Carrier, Reason};
use crate::layout::*;

/// Streams with more messages than this in one direction are worth an upgrade.
const ELIGIBLE_MESSAGES_ABOVE: u64 = 8;
/// So are streams that carried this much.
const ELIGIBLE_BYTES_MIN: u64 = 64 * 1024;

/// The segment of this process.
#[derive(Clone, Copy)]
pub struct Segment {
    layout: &'static SegmentLayout,
}

/// The counters of one stream. The entry is the stream's until `close_stream`; a handle used after
/// that counts into whatever stream has the entry then, and harms nothing else.
#[derive(Clone, Copy)]
pub struct StreamEntry {
    segment: Segment,
    entry: &'static Entry,
    index: u32,
}

impl Segment {
    /// Makes a segment of zeroed memory.
    ///
    /// # Safety
    /// `base` is page-aligned, and `SEGMENT_BYTES` from there stay mapped, readable and writable, for
    /// as long as the segment or any entry of it is used. They are zero, and no other process writes
    /// to them.
    pub unsafe fn create(base: NonNull<u8>, pid: u32, start_time: u64, program: &[u8]) -> Segment {
        // SAFETY: the caller promises an aligned mapping of this size that stays; the layout consists
        // of atomics only, for which any bytes are valid, and none is written but through them.
        let layout: &'static SegmentLayout = unsafe { base.cast().as_ref() };
        let header = &layout.header;
        header.version.store(VERSION, Relaxed);
        header.pid.store(pid, Relaxed);
        header.start_time.store(start_time, Relaxed);
        header.entries.store(ENTRIES as u32, Relaxed);
        header.program_bytes.store(program.len().min(PROGRAM_BYTES_MAX) as u32, Relaxed);
        for (word, bytes) in header.program.iter().zip(program.chunks(8)) {
            word.store(word_of(bytes), Relaxed);
        }
        let segment = Segment { layout };
        layout.allocation.entries_touched.store(1, Relaxed);
        // SYNC magic -> reader::check_header: the header is whole.
        header.magic.store(MAGIC, Release);
        segment
    }

    /// The segment that [`create`](Segment::create) made at `base`.
    ///
    /// # Safety
    /// As for `create`, which was called with the same address.
    pub unsafe fn at(base: NonNull<u8>) -> Segment {
        // SAFETY: the caller's promise.
        Segment { layout: unsafe { base.cast().as_ref() } }
    }

    /// The entry with the index of one that `open_stream` gave; a foreign index is the shared one.
    pub fn entry_at(&self, index: u32) -> StreamEntry {
        let index = if (index as usize) < ENTRIES { index } else { OVERFLOW };
        StreamEntry { segment: *self, entry: self.entry(index), index }
    }

    /// Gives an entry back that was opened by mistake: it never counted.
    pub fn abandon_stream(&self, stream: StreamEntry) {
        self.close_stream(stream);
        self.layout.totals.streams.fetch_sub(1, Relaxed);
    }

    /// Counts a stream and gives it an entry; a shared one if all are taken.
    pub fn open_stream(&self) -> StreamEntry {
        add(&self.layout.totals.streams, 1);
        let index = self.take_freed().or_else(|| self.take_untouched()).unwrap_or(OVERFLOW);
        let entry = self.entry(index);
        entry.state.store(ENTRY_OPEN, Release);
        StreamEntry { segment: *self, entry, index }
    }

    /// Counts a call, or a whole process, left to the kernel. A stream's own reason is set by
    /// `StreamEntry::set_reason` and appears in the totals without being counted here.
    pub fn count(&self, reason: Reason) {
        if let Some(counter) = self.layout.totals.pass_through.get(reason as usize) {
            add(counter, 1);
        }
    }

    /// Adds the stream's numbers to the totals and frees its entry. To be called once for a stream.
    pub fn close_stream(&self, stream: StreamEntry) {
        if stream.index == OVERFLOW {
            return;
        }
        let entry = stream.entry;
        add(&self.layout.totals.closes_begun, 1);
        self.fold(entry);
        clear(entry);
        entry.state.store(ENTRY_FREE, Release);
        add(&self.layout.totals.closes_done, 1);
        self.give_back(stream.index);
    }

    fn fold(&self, entry: &Entry) {
        let totals = &self.layout.totals;
        let flags = entry.flags.load(Relaxed);
        if is_eligible(entry, flags) {
            add(&totals.streams_eligible, 1);
            if flags & UPGRADED != 0 {
                add(&totals.streams_eligible_upgraded, 1);
            } else if let Some(counter) =
                totals.eligible_on_tcp.get(entry.reason.load(Relaxed) as usize)
            {
                add(counter, 1);
            }
        }
        if flags & UPGRADED == 0 || flags & REVERTED != 0 {
            let reason = match entry.reason.load(Relaxed) {
                reason if reason == Reason::NotTriedYet as u32 => Reason::TooFewMessages as usize,
                reason => reason as usize,
            };
            if let Some(counter) = totals.pass_through.get(reason) {
                add(counter, 1);
            }
        }
        fold_flow(&totals.bytes_sent, &entry.sent);
        fold_flow(&totals.bytes_received, &entry.received);
    }

    fn entry(&self, index: u32) -> &'static Entry {
        let entries = &self.layout.entries.0;
        entries.get(index as usize).unwrap_or(&entries[OVERFLOW as usize])
    }

    /// Takes the top of the stack. The change count in its upper half keeps a thread that was
    /// interrupted between its two steps from putting an outdated `next_free` on top.
    fn take_freed(&self) -> Option<u32> {
        let top = &self.layout.allocation.free_top;
        // SYNC free_top -> Segment::give_back: the entry's `next_free` is written.
        let mut seen = top.load(Acquire);
        loop {
            let index = seen as u32;
            if index == OVERFLOW {
                return None;
            }
            let next = self.entry(index).next_free.load(Relaxed);
            match top.compare_exchange_weak(seen, above(seen, next), AcqRel, Acquire) {
                Ok(_) => return Some(index),
                Err(now) => seen = now,
            }
        }
    }

    fn give_back(&self, index: u32) {
        let top = &self.layout.allocation.free_top;
        let mut seen = top.load(Relaxed);
        loop {
            self.entry(index).next_free.store(seen as u32, Relaxed);
            // SYNC free_top -> Segment::take_freed: the entry's `next_free` is written.
            match top.compare_exchange_weak(seen, above(seen, index), Release, Relaxed) {
                Ok(_) => return,
                Err(now) => seen = now,
            }
        }
    }

    fn take_untouched(&self) -> Option<u32> {
        let touched = &self.layout.allocation.entries_touched;
        touched
            .fetch_update(Relaxed, Relaxed, |next| (next < ENTRIES as u32).then_some(next + 1))
            .ok()
    }
}

impl StreamEntry {
    /// Its number in the segment.
    pub fn index(&self) -> u32 {
        self.index
    }

    /// IPv4 addresses as `[a, b, c, d]`, IPv6 as 16 bytes, in network order; ports in host order.
    /// Other lengths are ignored.
    pub fn set_addresses(&self, local: &[u8], local_port: u16, peer: &[u8], peer_port: u16) {
        let family = match (local.len(), peer.len()) {
            (4, 4) => 4,
            (16, 16) => 6,
            _ => return,
        };
        for (to, from) in [(&self.entry.local, local), (&self.entry.peer, peer)] {
            for (word, bytes) in to.iter().zip(from.chunks(8)) {
                word.store(word_of(bytes), Relaxed);
            }
        }
        self.entry.ports.store(u32::from(local_port) << 16 | u32::from(peer_port), Relaxed);
        // SYNC family -> reader::addresses: addresses and ports are written.
        self.entry.family.store(family, Release);
    }

    pub fn set_carrier_tx(&self, carrier: Carrier) {
        self.entry.sent.carrier.store(carrier as u32, Relaxed);
    }

    pub fn set_carrier_rx(&self, carrier: Carrier) {
        self.entry.received.carrier.store(carrier as u32, Relaxed);
    }

    /// Why the stream is on TCP now. A stream starts with `not_tried_yet`.
    pub fn set_reason(&self, reason: Reason) {
        self.entry.reason.store(reason as u32, Relaxed);
    }

    /// Counts one message. The caller holds the stream's send lock.
    #[inline]
    pub fn sent(&self, carrier: Carrier, bytes: u64) {
        self.count(&self.entry.sent, carrier, bytes);
    }

    /// Messages sent so far.
    #[inline]
    pub fn messages_sent(&self) -> u64 {
        self.entry.sent.messages.load(Relaxed)
    }

    /// Counts one message. The caller holds the stream's receive lock.
    #[inline]
    pub fn received(&self, carrier: Carrier, bytes: u64) {
        self.count(&self.entry.received, carrier, bytes);
    }

    /// The stream left TCP in at least one direction. Counted once for a stream.
    pub fn upgraded(&self) {
        self.mark_and_count(UPGRADED, &self.segment.layout.totals.streams_upgraded);
    }

    /// The stream went back to TCP before its end. Counted once for a stream.
    pub fn reverted(&self) {
        self.mark_and_count(REVERTED, &self.segment.layout.totals.streams_reverted);
    }

    /// The process at the other end was found to run under Shunt on this host.
    pub fn peer_is_shunt(&self) {
        self.entry.flags.fetch_or(PEER_IS_SHUNT, Relaxed);
        let (searched, found) = (Reason::PeerNotFound as u32, Reason::NotTriedYet as u32);
        let _ = self.entry.reason.compare_exchange(searched, found, Relaxed, Relaxed);
    }

    #[inline]
    fn count(&self, flow: &Flow, carrier: Carrier, bytes: u64) {
        let Some(counter) = flow.bytes.get(carrier as usize) else { return };
        if self.index == OVERFLOW {
            add(counter, bytes);
            add(&flow.messages, 1);
            return;
        }
        // Nobody else writes while the caller has the lock, so no locked instruction is needed.
        counter.store(counter.load(Relaxed).wrapping_add(bytes), Relaxed);
        flow.messages.store(flow.messages.load(Relaxed).wrapping_add(1), Relaxed);
    }

    fn mark_and_count(&self, flag: u32, counter: &AtomicU64) {
        let before = match self.index {
            OVERFLOW => 0,
            _ => self.entry.flags.fetch_or(flag, Relaxed),
        };
        if before & flag == 0 {
            add(counter, 1);
        }
    }
}

fn is_eligible(entry: &Entry, flags: u32) -> bool {
    let messages = entry.sent.messages.load(Relaxed).max(entry.received.messages.load(Relaxed));
    let bytes = bytes_of(&entry.sent).saturating_add(bytes_of(&entry.received));
    eligible(flags, messages, bytes)
}

/// The one definition of "eligible", for streams that close here and for those the reader finds open.
pub(crate) fn eligible(flags: u32, messages_one_way: u64, bytes_both_ways: u64) -> bool {
    flags & PEER_IS_SHUNT != 0
        && (messages_one_way > ELIGIBLE_MESSAGES_ABOVE || bytes_both_ways >= ELIGIBLE_BYTES_MIN)
}

fn bytes_of(flow: &Flow) -> u64 {
    flow.bytes.iter().fold(0, |sum, counter| counter.load(Relaxed).saturating_add(sum))
}

fn fold_flow(totals: &[AtomicU64; CARRIERS], flow: &Flow) {
    for (total, counter) in totals.iter().zip(&flow.bytes) {
        add(total, counter.load(Relaxed));
    }
}

fn clear(entry: &Entry) {
    for flow in [&entry.sent, &entry.received] {
        flow.bytes.iter().for_each(|counter| counter.store(0, Relaxed));
        flow.messages.store(0, Relaxed);
        flow.carrier.store(Carrier::Tcp as u32, Relaxed);
    }
    let words: [&AtomicU32; 3] = [&entry.flags, &entry.reason, &entry.family];
    words.iter().for_each(|word| word.store(0, Relaxed));
}

/// The stack's next top: `index`, under a change count one higher than that of `seen`.
fn above(seen: u64, index: u32) -> u64 {
    (seen >> 32).wrapping_add(1) << 32 | u64::from(index)
}

/// At most eight bytes as they lie in memory, the rest zero.
fn word_of(bytes: &[u8]) -> u64 {
    let mut word = [0; 8];
    for (to, from) in word.iter_mut().zip(bytes) {
        *to = *from;
    }
    u64::from_ne_bytes(word)
}

fn add(counter: &AtomicU64, value: u64) {
    counter.fetch_add(value, Relaxed);
}
