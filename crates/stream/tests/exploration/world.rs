//! What both processes share in the model: the words and bytes of one direction, and the kernel's
//! TCP connection. The byte at stream offset n has the value n, so every misplaced byte shows.

use shunt_stream::End;

/// Small on purpose: two bytes make the ring fill, wrap and be re-used.
pub const RING_BYTES: usize = 2;

/// How many items the kernel holds on one side of the wire; one place is kept for the end.
const TCP_ITEMS_MAX: usize = 3;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Item {
    Byte(u64),
    Fin,
    Reset,
}

/// What the law says must never happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Broken {
    WrongByte {
        expected: u64,
        got: u64,
    },
    EndBeforeTheLastByte {
        got: u64,
        written: u64,
    },
    ViolationBetweenHonestPeers,
    Panic,
    LossNotNoticed,
    NotInTheTable,
    /// A close is to be a reset, though nothing is unread.
    ResetOfWhatWasRead,
    NotDelivered {
        got: u64,
        written: u64,
    },
    EndNotDelivered,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct World {
    pub tail: u64,
    pub up_at: u64,
    pub head: u64,
    pub end: u64,
    cells: [u64; RING_BYTES],
    /// Sent, not yet arrived; then arrived, not yet received.
    pub in_flight: Vec<Item>,
    pub arrived: Vec<Item>,
    /// Nobody holds the reader's descriptor any more.
    pub receiver_closed: bool,
    /// The offset after the last byte that TCP accepted.
    pub tcp_next: u64,
    /// Bytes published by the writer, taken by any reader.
    pub written: u64,
    pub got: u64,
    /// The stream's end as a reader saw it.
    pub seen_end: Option<StreamEnd>,
    /// The reader died with bytes in a ring that the writer had left: only a reset is right.
    pub lost: bool,
    pub was_reset: bool,
    pub broken: Option<Broken>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum StreamEnd {
    Eof,
    Reset,
}

/// What a receive gives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Received {
    Nothing,
    Bytes(u64),
    End,
}

impl World {
    pub fn breaks(&mut self, how: Broken) {
        if !self.lost || how == Broken::LossNotNoticed {
            self.broken.get_or_insert(how);
        }
    }

    pub fn end(&self) -> End {
        End::decode(self.end).expect("only honest code writes the word")
    }

    /// Copies a byte into the ring and publishes it; false when the ring is full.
    pub fn ring_put(&mut self, offset: u64, floor: u64) -> bool {
        if offset - self.head.max(floor) >= RING_BYTES as u64 {
            return false;
        }
        self.cells[offset as usize % RING_BYTES] = offset;
        self.tail = offset + 1;
        self.written = self.written.max(offset + 1);
        true
    }

    pub fn ring_byte(&self, offset: u64) -> u64 {
        self.cells[offset as usize % RING_BYTES]
    }

    /// Takes a byte from the ring and publishes that it is taken.
    pub fn ring_take(&mut self, offset: u64) {
        self.take(self.ring_byte(offset));
        self.head = offset + 1;
    }

    /// A native send of one byte; false when the kernel's buffer is full.
    pub fn tcp_send(&mut self, byte: u64) -> bool {
        if self.receiver_closed {
            self.was_reset = true;
            return false;
        }
        if self.in_flight.len() >= TCP_ITEMS_MAX - 1 {
            return false;
        }
        self.in_flight.push(Item::Byte(byte));
        self.tcp_next = byte + 1;
        self.written = self.written.max(byte + 1);
        true
    }

    pub fn tcp_end(&mut self, how: Item) {
        self.was_reset |= how == Item::Reset;
        self.in_flight.push(how);
    }

    pub fn deliver(&mut self) {
        let item = self.in_flight.remove(0);
        self.arrived.push(item);
    }

    pub fn can_deliver(&self) -> bool {
        !self.in_flight.is_empty() && self.arrived.len() < TCP_ITEMS_MAX
    }

    /// A native receive of at most `limit` bytes.
    pub fn tcp_receive(&mut self, limit: u64) -> Received {
        let is_byte = |item: &&Item| matches!(item, Item::Byte(_));
        let count = self.arrived.iter().take_while(is_byte).take(limit as usize).count();
        if count == 0 {
            return if self.arrived.is_empty() || limit == 0 {
                Received::Nothing
            } else {
                Received::End
            };
        }
        for item in self.arrived.drain(..count).collect::<Vec<_>>() {
            if let Item::Byte(byte) = item {
                self.take(byte);
            }
        }
        Received::Bytes(count as u64)
    }

    /// The reader tells its program that the stream has ended, as TCP says.
    pub fn show_end(&mut self) {
        let reset = self.arrived.first() == Some(&Item::Reset);
        self.seen_end = Some(if reset { StreamEnd::Reset } else { StreamEnd::Eof });
        if !reset && self.got != self.written {
            self.breaks(Broken::EndBeforeTheLastByte { got: self.got, written: self.written });
        }
    }

    fn take(&mut self, byte: u64) {
        if byte != self.got {
            self.breaks(Broken::WrongByte { expected: self.got, got: byte });
        }
        self.got += 1;
    }
}
