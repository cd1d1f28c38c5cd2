//! What the streams carry: frames that name their writer and their number, so that a lost, doubled, torn or
//! mixed byte shows as what it is.

pub const BYTES: usize = 32;

/// Who writes. The victim and its child share a stream.
pub const VICTIM: usize = 0;
pub const CHILD: usize = 1;
pub const SURVIVOR: usize = 2;
pub const WRITERS: usize = 3;

pub fn frame(writer: usize, number: u64) -> [u8; BYTES] {
    let mut bytes = [0; BYTES];
    bytes[0] = writer as u8;
    bytes[1..8].copy_from_slice(&number.to_le_bytes()[..7]);
    for (at, piece) in bytes[8..].chunks_mut(8).enumerate() {
        piece.copy_from_slice(&mix((number << 8 | writer as u64) * 3 + at as u64).to_le_bytes());
    }
    bytes
}

pub fn frames(writer: usize, from: u64, count: u64) -> Vec<u8> {
    (from..from + count).flat_map(|number| frame(writer, number)).collect()
}

fn mix(seed: u64) -> u64 {
    let mut x = seed.wrapping_add(0x9E37_79B9_7F4A_7C15);
    x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    x ^ (x >> 31)
}

/// Checks what comes, frame by frame; each writer's come in their order.
#[derive(Default)]
pub struct Checker {
    /// Whole frames of each writer.
    pub counts: [u64; WRITERS],
    /// What has come of the next one.
    pub tail: Vec<u8>,
    pub is_wrong: bool,
    /// How many of the child's had come before the victim's last.
    pub child_before_victim: u64,
    /// The victim was killed within a call, in the middle of a frame, behind which its child's came.
    is_torn: bool,
    /// The first of the survivor's may have any number up to this one.
    first_at_most: u64,
}

impl Checker {
    /// The survivor's next has a number from `least` to `most`.
    pub fn between(least: u64, most: u64) -> Checker {
        let mut checker = Checker { first_at_most: most, ..Checker::default() };
        checker.counts[SURVIVOR] = least;
        checker
    }

    pub fn take(&mut self, piece: &[u8]) {
        self.tail.extend_from_slice(piece);
        let tail = std::mem::take(&mut self.tail);
        let mut rest = tail.as_slice();
        while let Some(one) = rest.first_chunk() {
            let bytes = self.take_frame(one);
            rest = &rest[bytes..];
        }
        self.tail = rest.to_vec();
    }

    /// How many of the bytes are of the frame that begins there.
    fn take_frame(&mut self, one: &[u8; BYTES]) -> usize {
        let writer = usize::from(one[0]);
        if writer == SURVIVOR && self.counts[SURVIVOR] < self.first_at_most {
            let number = (self.counts[SURVIVOR]..=self.first_at_most)
                .find(|number| *one == frame(SURVIVOR, *number));
            self.counts[SURVIVOR] = number.unwrap_or(self.first_at_most);
        }
        self.first_at_most = 0;
        let next = |writer: usize| frame(writer, self.counts[writer]);
        if writer < WRITERS && *one == next(writer) {
            self.counts[writer] += 1;
            if writer == VICTIM {
                self.child_before_victim = self.counts[CHILD];
            }
            return BYTES;
        }
        let (victims, childs) = (next(VICTIM), next(CHILD));
        let is_torn_at =
            |at: &usize| one[..*at] == victims[..*at] && one[*at..] == childs[..BYTES - *at];
        match (1..BYTES).find(is_torn_at) {
            Some(at) if !self.is_torn => {
                self.is_torn = true;
                self.child_before_victim = self.counts[CHILD];
                at
            }
            _ => {
                self.is_wrong = true;
                BYTES
            }
        }
    }

    /// What is left over is the beginning of somebody's next frame.
    pub fn ends_well(&self) -> bool {
        let next = |writer: usize| frame(writer, self.counts[writer]);
        !self.is_wrong && (0..WRITERS).any(|writer| next(writer).starts_with(&self.tail))
    }
}
