//! Bytes whose every position can be checked: a reader says how many arrived right, and where the
//! first wrong one stands, so a lost, doubled or swapped byte shows as what it is.

use crate::calls::{io, wait, Fd, Got};

/// The bytes `from..from + len` of the endless sequence that `seed` names.
pub fn bytes(seed: u64, from: u64, len: usize) -> Vec<u8> {
    let skip = (from % 8) as usize;
    let mut bytes = vec![0; (skip + len).next_multiple_of(8)];
    for (word, piece) in (from / 8..).zip(bytes.chunks_exact_mut(8)) {
        piece.copy_from_slice(&mix(seed, word).to_le_bytes());
    }
    bytes.truncate(skip + len);
    bytes.drain(..skip);
    bytes
}

fn mix(seed: u64, word: u64) -> u64 {
    let mut x = (seed << 40) ^ word.wrapping_add(0x9E37_79B9_7F4A_7C15);
    x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    x ^ (x >> 31)
}

/// Compares what arrived with the sequence, piece by piece.
pub struct Checker {
    seed: u64,
    offset: u64,
    wrong: Option<u64>,
}

impl Checker {
    pub fn new(seed: u64) -> Checker {
        Checker { seed, offset: 0, wrong: None }
    }

    pub fn starting_at(seed: u64, offset: u64) -> Checker {
        Checker { offset, ..Checker::new(seed) }
    }

    pub fn take(&mut self, piece: &[u8]) {
        if self.wrong.is_none() {
            let expected = bytes(self.seed, self.offset, piece.len());
            if piece != expected {
                let at = piece.iter().zip(&expected).position(|(got, want)| got != want);
                self.wrong = at.map(|at| self.offset + at as u64);
            }
        }
        self.offset += piece.len() as u64;
    }

    pub fn count(&self) -> u64 {
        self.offset
    }

    pub fn verdict(&self) -> String {
        match self.wrong {
            None => format!("{} bytes right", self.offset),
            Some(at) => format!("{} bytes, wrong from byte {at}", self.offset),
        }
    }
}

/// What a received piece is, in a form that a transcript can hold.
pub fn describe(piece: &[u8]) -> String {
    String::from_utf8_lossy(piece).escape_debug().to_string()
}

/// Writes the first `total` bytes of a sequence in calls of `piece` bytes, waiting in poll
/// whenever the stream takes no more. Says how that ended.
pub fn send_all(fd: Fd, seed: u64, total: usize, piece: usize) -> String {
    let mut sent = 0;
    let mut block = Vec::new();
    let mut block_from = 0;
    while sent < total {
        let want = piece.min(total - sent);
        if block_from + block.len() < sent + want {
            block = bytes(seed, sent as u64, want.max((1 << 16).min(total - sent)));
            block_from = sent;
        }
        let start = sent - block_from;
        match io::send(fd, &block[start..start + want], libc::MSG_NOSIGNAL) {
            Got::Errno(libc::EAGAIN) => {
                wait::poll(&[(fd, libc::POLLOUT)], 10_000);
            }
            Got::Errno(libc::EINTR) => {}
            Got::Errno(_) if sent < total => return "failed".to_owned(),
            got => match got.count() {
                Some(0) | None => return format!("{got} after {sent}"),
                Some(count) => sent += count,
            },
        }
    }
    format!("{sent} bytes sent")
}

/// Reads up to `total` bytes of a sequence in calls of `piece` bytes and checks each.
pub fn receive(fd: Fd, seed: u64, total: usize, piece: usize) -> String {
    let mut checker = Checker::new(seed);
    let mut room = vec![0; piece];
    while checker.count() < total as u64 {
        let want = piece.min(total - checker.count() as usize);
        match io::recv(fd, &mut room[..want], 0) {
            Got::Errno(libc::EAGAIN) => {
                wait::poll(&[(fd, libc::POLLIN)], 10_000);
            }
            Got::Errno(libc::EINTR) => {}
            got => match got.count() {
                Some(0) | None => return format!("{}, then {got}", checker.verdict()),
                Some(count) => checker.take(&room[..count]),
            },
        }
    }
    checker.verdict()
}

/// Reads a sequence until its end or an error, and says both.
pub fn receive_to_end(fd: Fd, seed: u64) -> String {
    receive(fd, seed, usize::MAX / 2, 1 << 16)
}

/// Reads exactly this many bytes of text; shorter when the stream ends before.
pub fn receive_text(fd: Fd, len: usize) -> String {
    let mut text = Vec::new();
    while text.len() < len {
        let mut room = vec![0; len - text.len()];
        match io::recv(fd, &mut room, 0) {
            Got::Errno(libc::EINTR) => {}
            Got::Errno(libc::EAGAIN) => {
                wait::poll(&[(fd, libc::POLLIN)], 10_000);
            }
            got => match got.count() {
                Some(0) | None => return format!("{}, then {got}", describe(&text)),
                Some(count) => text.extend_from_slice(&room[..count]),
            },
        }
    }
    describe(&text)
}

/// Writes all of it with plain write, waiting in poll whenever the stream takes no more.
pub fn write_all(fd: Fd, mut bytes: &[u8]) -> Result<(), Got> {
    while !bytes.is_empty() {
        match io::write(fd, bytes) {
            Got::Errno(libc::EAGAIN) => {
                wait::poll(&[(fd, libc::POLLOUT)], 10_000);
            }
            got => bytes = &bytes[got.count().ok_or(got)?..],
        }
    }
    Ok(())
}
