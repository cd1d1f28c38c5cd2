//! The other side: what a segment says, as plain values.
//!
//! The segment was written by somebody else, may still change, may be cut short or made up. It is
//! therefore copied in by `read`, never mapped (a file that shrinks would end the reader), and
//! every word is checked. Sums that make no sense saturate; they do not panic.

use std::collections::BTreeMap;
use std::fmt;
use std::fs::File;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::unix::fs::FileExt;

use crate::catalog::{Carrier, Reason};
use crate::layout::*;
use crate::writer::eligible;
use std::mem::offset_of;

const HEADER_PAGE_BYTES: usize = offset_of!(SegmentLayout, entries);
const ENTRY_BYTES: usize = std::mem::size_of::<Entry>();
/// How often a segment is read again because a stream closed meanwhile.
const READS_MAX: usize = 4;

/// Why a file is not a segment.
#[derive(Debug, PartialEq, Eq)]
pub enum Invalid {
    NotASegment,
    Truncated,
    OtherVersion(u32),
    Unreadable(io::ErrorKind),
}

impl fmt::Display for Invalid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Invalid::NotASegment => write!(f, "this is not a segment of Shunt counters"),
            Invalid::Truncated => write!(f, "the segment is shorter than it should be"),
            Invalid::OtherVersion(version) => write!(
                f,
                "the segment has layout version {version}, this command reads version {VERSION}"
            ),
            Invalid::Unreadable(kind) => write!(f, "the segment cannot be read: {kind}"),
        }
    }
}

impl std::error::Error for Invalid {}

/// All that one process counted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Snapshot {
    pub pid: u32,
    pub start_time: u64,
    pub program: String,
    /// Over closed and open streams.
    pub totals: Totals,
    /// The open streams.
    pub streams: Vec<Stream>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    pub streams: u64,
    pub streams_eligible: u64,
    pub streams_eligible_upgraded: u64,
    pub streams_upgraded: u64,
    pub streams_reverted: u64,
    pub pass_through: BTreeMap<Reason, u64>,
    /// Why eligible streams were never upgraded.
    pub eligible_on_tcp: BTreeMap<Reason, u64>,
    pub bytes_sent: BTreeMap<Carrier, u64>,
    pub bytes_received: BTreeMap<Carrier, u64>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stream {
    pub local: Option<SocketAddr>,
    pub peer: Option<SocketAddr>,
    pub carrier_tx: Carrier,
    pub carrier_rx: Carrier,
    /// Why bytes go by TCP; absent when neither direction does.
    pub reason: Option<Reason>,
    pub bytes_sent: BTreeMap<Carrier, u64>,
    pub bytes_received: BTreeMap<Carrier, u64>,
    pub messages_sent: u64,
    pub messages_received: u64,
    pub peer_is_shunt: bool,
    pub upgraded: bool,
    pub reverted: bool,
}

/// Reads a segment that its process may be writing to at this moment.
pub fn read_file(file: &File) -> Result<Snapshot, Invalid> {
    let length = file.metadata().map_err(unreadable)?.len();
    let mut page = vec![0; HEADER_PAGE_BYTES];
    if length < HEADER_PAGE_BYTES as u64 {
        return Err(Invalid::NotASegment);
    }
    for attempt in 1.. {
        file.read_exact_at(&mut page, 0).map_err(unreadable)?;
        let touched = check_header(&page)?;
        if length != SEGMENT_BYTES as u64 {
            return Err(Invalid::Truncated);
        }
        let mut entries = vec![0; touched * ENTRY_BYTES];
        file.read_exact_at(&mut entries, HEADER_PAGE_BYTES as u64).map_err(unreadable)?;
        let before = Words(&page).closes();
        let snapshot = snapshot(Words(&page), &entries);
        file.read_exact_at(&mut page, 0).map_err(unreadable)?;
        // A stream that closed meanwhile may have been counted twice or not at all. A process
        // killed while it closed one leaves the counts apart for ever.
        let after = Words(&page).closes();
        if (before == after && after.0 == after.1) || attempt == READS_MAX {
            return Ok(snapshot);
        }
    }
    unreachable!("the loop returns at READS_MAX")
}

/// The number of entries that were ever used.
fn check_header(page: &[u8]) -> Result<usize, Invalid> {
    let words = Words(page);
    // SYNC magic -> Segment::create: the header is whole. (`read` copies the page in one call.)
    if words.u64(offset_of!(Header, magic)) != MAGIC {
        return Err(Invalid::NotASegment);
    }
    match words.u32(offset_of!(Header, version)) {
        VERSION => {}
        other => return Err(Invalid::OtherVersion(other)),
    }
    if words.u32(offset_of!(Header, entries)) as usize != ENTRIES {
        return Err(Invalid::NotASegment);
    }
    let touched = offset_of!(SegmentLayout, allocation) + offset_of!(Allocation, entries_touched);
    Ok((words.u32(touched) as usize).clamp(1, ENTRIES))
}

fn snapshot(header: Words, entries: &[u8]) -> Snapshot {
    let mut totals = closed_totals(Words(&header.0[offset_of!(SegmentLayout, totals)..]));
    let (overflow, own) = entries.split_at(ENTRY_BYTES);
    let overflow = stream(Words(overflow));
    add_all(&mut totals.bytes_sent, &overflow.bytes_sent);
    add_all(&mut totals.bytes_received, &overflow.bytes_received);

    let mut streams = Vec::new();
    for entry in own.chunks_exact(ENTRY_BYTES).map(Words) {
        if entry.u32(offset_of!(Entry, state)) == ENTRY_OPEN {
            let stream = stream(entry);
            totals.add_open(&stream);
            streams.push(stream);
        }
    }
    Snapshot {
        pid: header.u32(offset_of!(Header, pid)),
        start_time: header.u64(offset_of!(Header, start_time)),
        program: program(header),
        totals,
        streams,
    }
}

fn program(header: Words) -> String {
    let length = (header.u32(offset_of!(Header, program_bytes)) as usize).min(PROGRAM_BYTES_MAX);
    let start = offset_of!(Header, program);
    let text = String::from_utf8_lossy(&header.0[start..start + length]);
    // What is shown on a terminal must not steer it.
    text.chars().map(|c| if c.is_control() { '?' } else { c }).collect()
}

fn closed_totals(words: Words) -> Totals {
    use crate::layout::Totals as Layout;
    let reasons = |at: usize| {
        let count = |reason: &Reason| (*reason, words.u64(at + 8 * *reason as usize));
        Reason::ALL.iter().map(count).filter(|(_, count)| *count > 0).collect()
    };
    Totals {
        streams: words.u64(offset_of!(Layout, streams)),
        streams_eligible: words.u64(offset_of!(Layout, streams_eligible)),
        streams_eligible_upgraded: words.u64(offset_of!(Layout, streams_eligible_upgraded)),
        streams_upgraded: words.u64(offset_of!(Layout, streams_upgraded)),
        streams_reverted: words.u64(offset_of!(Layout, streams_reverted)),
        pass_through: reasons(offset_of!(Layout, pass_through)),
        eligible_on_tcp: reasons(offset_of!(Layout, eligible_on_tcp)),
        bytes_sent: words.carriers(offset_of!(Layout, bytes_sent)),
        bytes_received: words.carriers(offset_of!(Layout, bytes_received)),
    }
}

fn stream(entry: Words) -> Stream {
    let flags = entry.u32(offset_of!(Entry, flags));
    let (sent, received) = (offset_of!(Entry, sent), offset_of!(Entry, received));
    let (carrier_tx, carrier_rx) = (entry.flow_carrier(sent), entry.flow_carrier(received));
    let (local, peer) = addresses(entry);
    let on_tcp = carrier_tx == Carrier::Tcp || carrier_rx == Carrier::Tcp;
    let reason = u16::try_from(entry.u32(offset_of!(Entry, reason))).ok();
    Stream {
        local,
        peer,
        carrier_tx,
        carrier_rx,
        reason: reason.filter(|_| on_tcp).and_then(Reason::from_number),
        bytes_sent: entry.carriers(sent + offset_of!(Flow, bytes)),
        bytes_received: entry.carriers(received + offset_of!(Flow, bytes)),
        messages_sent: entry.u64(sent + offset_of!(Flow, messages)),
        messages_received: entry.u64(received + offset_of!(Flow, messages)),
        peer_is_shunt: flags & PEER_IS_SHUNT != 0,
        upgraded: flags & UPGRADED != 0,
        reverted: flags & REVERTED != 0,
    }
}

fn addresses(entry: Words) -> (Option<SocketAddr>, Option<SocketAddr>) {
    let ports = entry.u32(offset_of!(Entry, ports));
    // SYNC family -> StreamEntry::set_addresses: addresses and ports are written.
    let family = entry.u32(offset_of!(Entry, family));
    let address = |at: usize, port: u32| {
        let bytes: [u8; 16] = entry.0.get(at..at + 16)?.try_into().ok()?;
        let [a, b, c, d, ..] = bytes;
        let ip: IpAddr = match family {
            4 => Ipv4Addr::new(a, b, c, d).into(),
            6 => Ipv6Addr::from(bytes).into(),
            _ => return None,
        };
        Some(SocketAddr::new(ip, port as u16))
    };
    (address(offset_of!(Entry, local), ports >> 16), address(offset_of!(Entry, peer), ports))
}

impl Stream {
    pub fn eligible(&self) -> bool {
        let flags = if self.peer_is_shunt { PEER_IS_SHUNT } else { 0 };
        let bytes = sum(&self.bytes_sent).saturating_add(sum(&self.bytes_received));
        eligible(flags, self.messages_sent.max(self.messages_received), bytes)
    }

    /// One word for both directions: TCP if either still uses it.
    pub fn carrier(&self) -> Carrier {
        self.carrier_tx.min(self.carrier_rx)
    }
}

impl Totals {
    /// Adds another process.
    pub fn add(&mut self, other: &Totals) {
        let pairs = [
            (&mut self.streams, other.streams),
            (&mut self.streams_eligible, other.streams_eligible),
            (&mut self.streams_eligible_upgraded, other.streams_eligible_upgraded),
            (&mut self.streams_upgraded, other.streams_upgraded),
            (&mut self.streams_reverted, other.streams_reverted),
        ];
        pairs.into_iter().for_each(|(to, from)| *to = to.saturating_add(from));
        add_all(&mut self.pass_through, &other.pass_through);
        add_all(&mut self.eligible_on_tcp, &other.eligible_on_tcp);
        add_all(&mut self.bytes_sent, &other.bytes_sent);
        add_all(&mut self.bytes_received, &other.bytes_received);
    }

    /// What the writer's `fold` will add when this stream closes.
    fn add_open(&mut self, stream: &Stream) {
        if stream.eligible() {
            self.streams_eligible = self.streams_eligible.saturating_add(1);
            let upgraded = u64::from(stream.upgraded);
            self.streams_eligible_upgraded =
                self.streams_eligible_upgraded.saturating_add(upgraded);
            if let Some(reason) = stream.reason.filter(|_| !stream.upgraded) {
                add_all(&mut self.eligible_on_tcp, &BTreeMap::from([(reason, 1)]));
            }
        }
        if let Some(reason) = stream.reason.filter(|_| !stream.upgraded || stream.reverted) {
            add_all(&mut self.pass_through, &BTreeMap::from([(reason, 1)]));
        }
        add_all(&mut self.bytes_sent, &stream.bytes_sent);
        add_all(&mut self.bytes_received, &stream.bytes_received);
    }
}

fn sum(of: &BTreeMap<Carrier, u64>) -> u64 {
    of.values().fold(0, |sum, bytes| bytes.saturating_add(sum))
}

fn add_all<Key: Ord + Copy>(to: &mut BTreeMap<Key, u64>, from: &BTreeMap<Key, u64>) {
    for (key, value) in from {
        let sum = to.entry(*key).or_default();
        *sum = sum.saturating_add(*value);
    }
}

fn unreadable(error: io::Error) -> Invalid {
    match error.kind() {
        io::ErrorKind::UnexpectedEof => Invalid::Truncated,
        kind => Invalid::Unreadable(kind),
    }
}

/// Words at byte offsets; what lies beyond the end reads as zero.
#[derive(Clone, Copy)]
struct Words<'a>(&'a [u8]);

impl Words<'_> {
    fn u64(&self, at: usize) -> u64 {
        let bytes = self.0.get(at..at + 8).and_then(|bytes| bytes.try_into().ok());
        bytes.map_or(0, u64::from_ne_bytes)
    }

    fn u32(&self, at: usize) -> u32 {
        let bytes = self.0.get(at..at + 4).and_then(|bytes| bytes.try_into().ok());
        bytes.map_or(0, u32::from_ne_bytes)
    }

    fn carriers(&self, at: usize) -> BTreeMap<Carrier, u64> {
        let all =
            Carrier::ALL.iter().map(|carrier| (*carrier, self.u64(at + 8 * *carrier as usize)));
        all.filter(|(_, bytes)| *bytes > 0).collect()
    }

    fn flow_carrier(&self, flow: usize) -> Carrier {
        let number = u8::try_from(self.u32(flow + offset_of!(Flow, carrier))).unwrap_or(0);
        Carrier::from_number(number).unwrap_or(Carrier::Tcp)
    }

    fn closes(&self) -> (u64, u64) {
        use crate::layout::Totals as Layout;
        let totals = offset_of!(SegmentLayout, totals);
        let at = |field: usize| self.u64(totals + field);
        (at(offset_of!(Layout, closes_begun)), at(offset_of!(Layout, closes_done)))
    }
}
