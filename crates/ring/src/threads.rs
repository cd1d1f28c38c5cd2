//! Two threads on one ring, for miri: it reports unordered access and lets loads be stale.
// UNSAFETY: hands buffers to the two ends by address.
#![allow(unsafe_code)]

use crate::rig::Rig;

#[test]
fn bytes_arrive_in_order_between_threads() {
    const BYTES: u64 = if cfg!(miri) { 300 } else { 300_000 };
    let rig = Rig::new(16);
    let (mut producer, mut consumer) = (rig.producer(), rig.consumer());
    std::thread::scope(|scope| {
        scope.spawn(move || {
            while producer.tail() < BYTES {
                let start = producer.tail();
                let piece: Vec<u8> = (start..BYTES.min(start + 7)).map(|i| i as u8).collect();
                // SAFETY: a buffer of its own.
                let wrote = unsafe { producer.write(piece.as_ptr(), piece.len()) };
                if wrote.expect("an honest peer") == 0 {
                    std::thread::yield_now();
                }
            }
        });
        while consumer.head() < BYTES {
            let (start, mut piece) = (consumer.head(), [0; 11]);
            // SAFETY: a buffer of its own.
            let count = unsafe { consumer.read(piece.as_mut_ptr(), piece.len()) };
            match count.expect("an honest peer") {
                0 => std::thread::yield_now(),
                count => assert!((start..).zip(&piece[..count]).all(|(i, &byte)| byte == i as u8)),
            }
        }
    });
}
