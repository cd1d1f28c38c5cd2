//! The JSON that `shunt run --report` and `shunt stat --json` write. `docs/design/stats.md` is its
//! documentation; others rely on the keys.

use std::collections::BTreeMap;

use serde::Serialize;
use shunt_stats::{Carrier, Reason, Snapshot, Stream, Totals};

/// Goes up when a key changes its meaning or goes away; new keys may come at any time.
pub const SCHEMA: u32 = 1;

#[derive(Serialize)]
pub struct Report {
    pub schema: u32,
    pub shunt: &'static str,
    pub program: String,
    pub command: Vec<String>,
    /// Why the program itself ran plain. It is in `totals.pass_through` too.
    pub reason: Option<&'static str>,
    pub ended: Ended,
    pub seconds: f64,
    /// Descendants that were still running when this was written.
    pub still_running: usize,
    /// Counters that could not be read, with the reason.
    pub unreadable: Vec<String>,
    pub totals: TotalsJson,
    pub processes: Vec<ReportProcess>,
}

#[derive(Serialize, Clone, Copy)]
#[serde(rename_all = "snake_case")]
pub enum Ended {
    Status(i32),
    Signal(i32),
}

#[derive(Serialize)]
pub struct ReportProcess {
    pub pid: u32,
    pub program: String,
    pub totals: TotalsJson,
}

#[derive(Serialize)]
pub struct Stat {
    pub schema: u32,
    pub shunt: &'static str,
    /// Processes that this user may not look into.
    pub not_looked_at: usize,
    pub unreadable: Vec<String>,
    pub totals: TotalsJson,
    pub processes: Vec<StatProcess>,
}

#[derive(Serialize)]
pub struct StatProcess {
    pub pid: u32,
    pub program: String,
    pub totals: TotalsJson,
    pub streams: Vec<StreamJson>,
}

#[derive(Serialize)]
pub struct TotalsJson {
    streams: u64,
    streams_eligible: u64,
    streams_eligible_upgraded: u64,
    streams_upgraded: u64,
    streams_reverted: u64,
    pass_through: BTreeMap<&'static str, u64>,
    eligible_on_tcp: BTreeMap<&'static str, u64>,
    bytes_sent: BTreeMap<&'static str, u64>,
    bytes_received: BTreeMap<&'static str, u64>,
}

#[derive(Serialize)]
pub struct StreamJson {
    local: Option<String>,
    peer: Option<String>,
    carrier: &'static str,
    reason: Option<&'static str>,
    bytes_sent: u64,
    bytes_received: u64,
    messages_sent: u64,
    messages_received: u64,
    carrier_sent: &'static str,
    carrier_received: &'static str,
    upgraded: bool,
    reverted: bool,
}

impl From<&Totals> for TotalsJson {
    fn from(totals: &Totals) -> Self {
        TotalsJson {
            streams: totals.streams,
            streams_eligible: totals.streams_eligible,
            streams_eligible_upgraded: totals.streams_eligible_upgraded,
            streams_upgraded: totals.streams_upgraded,
            streams_reverted: totals.streams_reverted,
            pass_through: reasons(&totals.pass_through),
            eligible_on_tcp: reasons(&totals.eligible_on_tcp),
            bytes_sent: carriers(&totals.bytes_sent),
            bytes_received: carriers(&totals.bytes_received),
        }
    }
}

impl From<&Stream> for StreamJson {
    fn from(stream: &Stream) -> Self {
        StreamJson {
            local: stream.local.map(|address| address.to_string()),
            peer: stream.peer.map(|address| address.to_string()),
            carrier: stream.carrier().name(),
            reason: stream.reason.map(Reason::name),
            bytes_sent: total(&stream.bytes_sent),
            bytes_received: total(&stream.bytes_received),
            messages_sent: stream.messages_sent,
            messages_received: stream.messages_received,
            carrier_sent: stream.carrier_tx.name(),
            carrier_received: stream.carrier_rx.name(),
            upgraded: stream.upgraded,
            reverted: stream.reverted,
        }
    }
}

impl From<&Snapshot> for StatProcess {
    fn from(process: &Snapshot) -> Self {
        StatProcess {
            pid: process.pid,
            program: process.program.clone(),
            totals: (&process.totals).into(),
            streams: process.streams.iter().map(StreamJson::from).collect(),
        }
    }
}

impl From<&Snapshot> for ReportProcess {
    fn from(process: &Snapshot) -> Self {
        ReportProcess {
            pid: process.pid,
            program: process.program.clone(),
            totals: (&process.totals).into(),
        }
    }
}

/// The sums over all processes, and reasons that no library could count.
pub fn sum<'a>(processes: impl IntoIterator<Item = &'a Snapshot>, extra: Option<Reason>) -> Totals {
    let mut totals = Totals::default();
    processes.into_iter().for_each(|process| totals.add(&process.totals));
    if let Some(reason) = extra {
        *totals.pass_through.entry(reason).or_default() += 1;
    }
    totals
}

fn reasons(counts: &BTreeMap<Reason, u64>) -> BTreeMap<&'static str, u64> {
    counts.iter().map(|(reason, count)| (reason.name(), *count)).collect()
}

/// The carriers of this build are always there, others when they carried something.
fn carriers(bytes: &BTreeMap<Carrier, u64>) -> BTreeMap<&'static str, u64> {
    let always = [Carrier::Tcp, Carrier::Shm].map(|carrier| (carrier.name(), 0));
    let counted = bytes.iter().map(|(carrier, bytes)| (carrier.name(), *bytes));
    always.into_iter().chain(counted).collect()
}

/// Saturating, since the numbers come out of memory that somebody else writes.
fn total(bytes: &BTreeMap<Carrier, u64>) -> u64 {
    bytes.values().fold(0, |sum, bytes| bytes.saturating_add(sum))
}
