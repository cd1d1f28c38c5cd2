//! Reads the stats segments that the library leaves in the report directory, to know when a
//! stream is on the ring and to prove afterwards that it was, or that it was not.

use shunt_stats::{read_file, Carrier, Snapshot, Stream};
use std::fs::File;
use std::path::{Path, PathBuf};

/// Where directories of segments lie: in memory, where there is such a place. Some file systems search long for
/// the number of a new file where many were just deleted.
pub fn place() -> PathBuf {
    let memory = Path::new("/dev/shm");
    if memory.is_dir() {
        memory.to_owned()
    } else {
        std::env::temp_dir()
    }
}

/// The segments of every process of one run, those that ended included.
pub fn segments(directory: &Path) -> Vec<Snapshot> {
    let Ok(entries) = std::fs::read_dir(directory) else { return Vec::new() };
    entries
        .flatten()
        .filter_map(|entry| File::open(entry.path()).ok())
        .filter_map(|file| read_file(&file).ok())
        .collect()
}

/// Both ends of a stream carry both directions on the ring.
pub fn is_upgraded(directory: &Path, client_port: u16, server_port: u16) -> bool {
    let segments = segments(directory);
    let on_ring = |local: u16, peer: u16| {
        streams(&segments).any(|stream| ports(stream) == Some((local, peer)) && is_on_ring(stream))
    };
    on_ring(client_port, server_port) && on_ring(server_port, client_port)
}

/// Both ends of a stream use TCP both ways, and the end of `own_port` names this reason.
pub fn has_left(directory: &Path, own_port: u16, peer_port: u16, reason: &str) -> bool {
    let segments = segments(directory);
    let on_tcp = |local: u16, peer: u16| {
        streams(&segments).find(|stream| {
            ports(stream) == Some((local, peer))
                && stream.carrier_tx == Carrier::Tcp
                && stream.carrier_rx == Carrier::Tcp
        })
    };
    let named = |stream: &Stream| stream.reason.is_some_and(|it| it.name() == reason);
    on_tcp(own_port, peer_port).is_some_and(named) && on_tcp(peer_port, own_port).is_some()
}

/// How many ends of the streams of one listener carry both directions on the ring.
pub fn ends_on_rings(directory: &Path, server_port: u16) -> usize {
    let is_of_listener = |stream: &&Stream| {
        ports(stream).is_some_and(|(local, peer)| [local, peer].contains(&server_port))
    };
    let segments = segments(directory);
    streams(&segments).filter(is_of_listener).filter(|stream| is_on_ring(stream)).count()
}

fn is_on_ring(stream: &Stream) -> bool {
    stream.carrier_tx == Carrier::Shm && stream.carrier_rx == Carrier::Shm
}

fn streams(segments: &[Snapshot]) -> impl Iterator<Item = &Stream> {
    segments.iter().flat_map(|segment| &segment.streams)
}

fn ports(stream: &Stream) -> Option<(u16, u16)> {
    Some((stream.local?.port(), stream.peer?.port()))
}

/// Streams that went up, over all processes of a run.
pub fn upgraded_streams(directory: &Path) -> u64 {
    segments(directory).iter().map(|segment| segment.totals.streams_upgraded).sum()
}

/// Why streams stayed on TCP, in words, for the report of a failure.
pub fn reasons(directory: &Path) -> String {
    let segments = segments(directory);
    if segments.is_empty() {
        return "no process left a stats segment".to_owned();
    }
    let each = segments.iter().map(|segment| {
        let totals = &segment.totals;
        let streams: Vec<String> = segment.streams.iter().map(describe).collect();
        format!(
            "{} (pid {}): {} streams, {} upgraded, {} reverted, passed through: {:?}; open: {}",
            segment.program,
            segment.pid,
            totals.streams,
            totals.streams_upgraded,
            totals.streams_reverted,
            totals.pass_through,
            streams.join(", ")
        )
    });
    each.collect::<Vec<_>>().join("\n    ")
}

fn describe(stream: &Stream) -> String {
    format!(
        "{:?} tx {:?} rx {:?} because {:?}",
        ports(stream),
        stream.carrier_tx,
        stream.carrier_rx,
        stream.reason
    )
}
