//! Whether a stream is on a ring, by the counters that the library leaves in the report directory.

use std::fs::File;
use std::net::TcpStream;

use shunt_stats::{read_file, Carrier};

use crate::peer::Peer;

/// Exchanges after which a stream that is not on a ring will not be.
const EXCHANGES_MAX: usize = 2000;

/// Exchanges messages until both directions of the stream are on a ring. False if the subject is not under
/// Shunt.
pub fn upgrade(peer: &mut Peer) -> bool {
    let Some(directory) = std::env::var_os("SHUNT_REPORT_DIR") else { return false };
    for _ in 0..EXCHANGES_MAX {
        exchange(peer);
        if is_on_ring(&directory, &peer.stream) {
            // What was on its way by TCP has come.
            (0..8).for_each(|_| exchange(peer));
            return true;
        }
    }
    panic!("the stream is not on a ring after {EXCHANGES_MAX} exchanges");
}

pub fn exchange(peer: &mut Peer) {
    use std::io::{Read, Write};
    peer.stream.write_all(b"question").expect("send");
    peer.reads(8);
    peer.sends(8);
    peer.stream.read_exact(&mut [0; 8]).expect("receive");
}

fn is_on_ring(directory: &std::ffi::OsStr, stream: &TcpStream) -> bool {
    let local = stream.local_addr().expect("it is connected");
    let entries = std::fs::read_dir(directory).expect("the report directory is there").flatten();
    let segments = entries.filter_map(|entry| read_file(&File::open(entry.path()).ok()?).ok());
    let ends = segments.flat_map(|segment| segment.streams).filter(|end| {
        (end.local == Some(local) || end.peer == Some(local))
            && end.carrier_tx == Carrier::Shm
            && end.carrier_rx == Carrier::Shm
    });
    ends.count() == 2
}
