//! The writer and the reader of a segment together, over a real file.
// UNSAFETY: maps memory as the library does.
#![allow(unsafe_code)]
#![cfg(feature = "reader")]

use std::alloc::{alloc_zeroed, Layout};
use std::collections::HashSet;
use std::fs::File;
use std::io::Write;
use std::ptr::NonNull;

use shunt_stats::{
    read_file, Carrier, Invalid, Reason, Segment, Snapshot, SEGMENT_BYTES, STREAMS_MAX,
};

/// A segment in ordinary memory, and its bytes as a reader finds them in a file.
struct Memory {
    base: NonNull<u8>,
    segment: Segment,
}

impl Memory {
    fn new(program: &[u8]) -> Memory {
        let layout = Layout::from_size_align(SEGMENT_BYTES, 4096).unwrap();
        // SAFETY: the size is not zero.
        let base = NonNull::new(unsafe { alloc_zeroed(layout) }).unwrap();
        // SAFETY: aligned, zeroed, of the right size, and never freed.
        let segment = unsafe { Segment::create(base, 42, 7, program) };
        Memory { base, segment }
    }

    fn bytes(&self) -> Vec<u8> {
        // SAFETY: the memory is initialised, and no test writes while it copies.
        unsafe { std::slice::from_raw_parts(self.base.as_ptr(), SEGMENT_BYTES) }.to_vec()
    }

    fn read(&self) -> Snapshot {
        read_bytes(&self.bytes()).unwrap()
    }
}

fn read_bytes(bytes: &[u8]) -> Result<Snapshot, Invalid> {
    let mut file = temporary_file();
    file.write_all(bytes).unwrap();
    read_file(&file)
}

fn temporary_file() -> File {
    static NEXT: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
    let number = NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    let path = std::env::temp_dir().join(format!("shunt-segment-{}-{number}", std::process::id()));
    let file = File::options().read(true).write(true).create_new(true).open(&path).unwrap();
    std::fs::remove_file(path).unwrap();
    file
}

#[test]
fn open_and_closed_streams_are_summed() {
    let memory = Memory::new(b"redis-server");
    let closed = memory.segment.open_stream();
    closed.sent(Carrier::Tcp, 10);
    memory.segment.close_stream(closed);
    let open = memory.segment.open_stream();
    open.set_addresses(&[127, 0, 0, 1], 6379, &[127, 0, 0, 2], 40000);
    open.set_carrier_tx(Carrier::Shm);
    open.set_carrier_rx(Carrier::Shm);
    open.sent(Carrier::Tcp, 1);
    open.sent(Carrier::Shm, 2);
    open.received(Carrier::Shm, 4);

    let read = memory.read();
    assert_eq!((read.pid, read.start_time, read.program.as_str()), (42, 7, "redis-server"));
    assert_eq!(read.totals.streams, 2);
    assert_eq!(read.totals.bytes_sent[&Carrier::Tcp], 11);
    assert_eq!(read.totals.bytes_sent[&Carrier::Shm], 2);
    assert_eq!(read.totals.bytes_received[&Carrier::Shm], 4);
    assert_eq!(read.totals.pass_through[&Reason::TooFewMessages], 1);
    let [stream] = &read.streams[..] else { panic!("one stream is open") };
    assert_eq!(stream.local.unwrap().to_string(), "127.0.0.1:6379");
    assert_eq!(stream.peer.unwrap().to_string(), "127.0.0.2:40000");
    assert_eq!((stream.carrier(), stream.reason), (Carrier::Shm, None));
}

#[test]
fn ipv6_addresses_come_back() {
    let memory = Memory::new(b"x");
    let local = std::net::Ipv6Addr::LOCALHOST.octets();
    memory.segment.open_stream().set_addresses(&local, 1, &local, 65535);
    assert_eq!(memory.read().streams[0].peer.unwrap().to_string(), "[::1]:65535");
}

#[test]
fn eligible_needs_a_peer_and_more_than_eight_messages_or_64_kib() {
    let memory = Memory::new(b"x");
    let cases = [(true, 8, 1, 0), (true, 9, 1, 1), (false, 9, 1, 0), (true, 1, 65536, 1)];
    let mut expected = 0;
    for close in [false, true] {
        for (peer, messages, bytes, eligible) in cases {
            let stream = memory.segment.open_stream();
            if peer {
                stream.peer_is_shunt();
                stream.upgraded();
            }
            (0..messages).for_each(|_| stream.received(Carrier::Shm, bytes));
            if close {
                memory.segment.close_stream(stream);
            }
            expected += eligible;
            assert_eq!(memory.read().totals.streams_eligible, expected);
            assert_eq!(memory.read().totals.streams_eligible_upgraded, expected);
        }
    }
}

#[test]
fn what_kept_eligible_streams_on_tcp_is_counted_apart() {
    let memory = Memory::new(b"x");
    let stream = |messages: u32, reason, upgraded| {
        let stream = memory.segment.open_stream();
        stream.peer_is_shunt();
        (0..messages).for_each(|_| stream.received(Carrier::Tcp, 1));
        stream.set_reason(reason);
        if upgraded {
            stream.upgraded();
        }
        stream
    };
    let expected = [(Reason::Exec, 1), (Reason::Fdopen, 1)].into();
    let open = [stream(9, Reason::Exec, false), stream(9, Reason::Fdopen, false)];
    let others = [stream(8, Reason::Exec, false), stream(9, Reason::Exec, true)];
    assert_eq!(memory.read().totals.eligible_on_tcp, expected);
    open.into_iter().chain(others).for_each(|stream| memory.segment.close_stream(stream));
    assert_eq!(memory.read().totals.eligible_on_tcp, expected);
}

#[test]
fn upgrade_and_revert_count_once_a_stream() {
    let memory = Memory::new(b"x");
    let stream = memory.segment.open_stream();
    for _ in 0..3 {
        stream.upgraded();
        stream.reverted();
    }
    stream.set_reason(Reason::Exec);
    let totals = memory.read().totals;
    assert_eq!((totals.streams_upgraded, totals.streams_reverted), (1, 1));
    assert_eq!(totals.pass_through[&Reason::Exec], 1);
}

#[test]
fn a_reused_entry_starts_clean() {
    let memory = Memory::new(b"x");
    let first = memory.segment.open_stream();
    first.set_addresses(&[127, 0, 0, 1], 1, &[127, 0, 0, 1], 2);
    first.set_reason(Reason::Exec);
    first.sent(Carrier::Shm, 5);
    first.upgraded();
    memory.segment.close_stream(first);
    memory.segment.open_stream();
    let read = memory.read();
    assert_eq!(read.streams.len(), 1);
    assert_eq!(read.streams[0].local, None);
    assert_eq!(read.streams[0].reason, Some(Reason::NotTriedYet));
    assert!(!read.streams[0].upgraded && read.streams[0].bytes_sent.is_empty());
}

#[test]
fn streams_beyond_the_entries_are_still_counted() {
    let memory = Memory::new(b"x");
    let all: Vec<_> = (0..STREAMS_MAX).map(|_| memory.segment.open_stream()).collect();
    let extra = memory.segment.open_stream();
    extra.sent(Carrier::Tcp, 3);
    memory.segment.close_stream(extra);
    let read = memory.read();
    assert_eq!(read.totals.streams, STREAMS_MAX as u64 + 1);
    assert_eq!(read.totals.bytes_sent[&Carrier::Tcp], 3);
    assert_eq!(read.streams.len(), STREAMS_MAX);
    all.into_iter().for_each(|stream| memory.segment.close_stream(stream));
    assert!(memory.read().streams.is_empty());
}

#[test]
fn threads_never_share_an_entry() {
    let memory = Memory::new(b"x");
    let segment = memory.segment;
    std::thread::scope(|scope| {
        for thread in 0..4u16 {
            scope.spawn(move || {
                for round in 0..200 {
                    let held: Vec<_> = (0..16).map(|_| segment.open_stream()).collect();
                    for stream in &held {
                        stream.set_addresses(&[0; 4], thread, &[0; 4], round);
                        stream.sent(Carrier::Tcp, 1);
                    }
                    let leave_open = usize::from(round == 199) * 16;
                    held.into_iter().skip(leave_open).for_each(|one| segment.close_stream(one));
                }
            });
        }
    });
    let read = memory.read();
    assert_eq!(read.totals.bytes_sent[&Carrier::Tcp], 4 * 200 * 16);
    assert_eq!(read.streams.len(), 64);
    let ports: HashSet<_> = read.streams.iter().map(|one| one.local.unwrap().port()).collect();
    assert_eq!(ports.len(), 4);
}

#[test]
fn long_and_strange_program_names_are_tamed() {
    assert_eq!(Memory::new(&[b'a'; 200]).read().program.len(), 64);
    assert_eq!(Memory::new(b"a\x1b[2J\n").read().program, "a?[2J?");
    assert_eq!(Memory::new(&[0xff, b'b']).read().program, "\u{fffd}b");
}

#[test]
fn what_is_not_a_segment_is_refused() {
    let whole = Memory::new(b"x").bytes();
    assert_eq!(read_bytes(b""), Err(Invalid::NotASegment));
    assert_eq!(read_bytes(&[0; 8192]), Err(Invalid::NotASegment));
    assert_eq!(read_bytes(&whole[..whole.len() - 1]), Err(Invalid::Truncated));
    let mut newer = whole;
    newer[8] = 9;
    assert_eq!(read_bytes(&newer), Err(Invalid::OtherVersion(9)));
}

#[test]
fn any_bytes_after_the_magic_are_read_without_panic() {
    let memory = Memory::new(b"x");
    for _ in 0..50 {
        memory.segment.open_stream();
    }
    let whole = memory.bytes();
    let mut random = 0x9e37_79b9_7f4a_7c15_u64;
    let mut next = || {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        random
    };
    for _ in 0..60 {
        let mut bytes = whole.clone();
        for _ in 0..400 {
            let at = 12 + (next() as usize) % 16_000;
            bytes[at] = if next() % 2 == 0 { 0xff } else { next() as u8 };
        }
        // The number of entries must stay what it is for the rest to be looked at.
        bytes[24..28].copy_from_slice(&whole[24..28]);
        let _ = read_bytes(&bytes);
    }
    let full = [&whole[..28], &vec![0xff; whole.len() - 28][..]].concat();
    let _ = read_bytes(&full).unwrap();
}
