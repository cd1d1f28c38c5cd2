//! The table of the word `end`: who changes what into what. `Writer` and `Reader` do nothing else
//! (the exploration checks every change against it, and meets every row), and the documentation is
//! drawn from it.

use crate::End;

/// Which process makes the change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    Writer,
    Reader,
}

/// One row. Offsets in `from` and `to` mean nothing here.
#[derive(Clone, Copy, Debug)]
pub struct Transition {
    pub from: End,
    pub to: End,
    pub by: Side,
    pub when: &'static str,
}

const fn row(from: End, to: End, by: Side, when: &'static str) -> Transition {
    Transition { from, to, by, when }
}

use End::{Agreed, Closed, Down, Idle, Open, Recalled, Seen, Stop};
use Side::{Reader, Writer};

pub const TRANSITIONS: [Transition; 19] = [
    row(Idle, Agreed, Reader, "no thread of its process sleeps natively for the stream"),
    row(Agreed, Idle, Reader, "it withdraws: stop or close"),
    row(Agreed, Open, Writer, "up: bytes from `up_at` on are in the ring"),
    row(Open, Seen, Reader, "it noticed: no byte at or beyond `up_at` is taken from TCP"),
    row(Open, Recalled(0), Writer, "down, unnoticed: bytes `up_at..R` are sent by TCP as well"),
    row(Open, Stop(0), Reader, "it leaves before it crossed: C is `up_at`"),
    row(Open, Closed(0), Reader, "as stop, and its descriptor is closed"),
    row(Seen, Down(0), Writer, "down: the ring ends at R, later bytes are on TCP"),
    row(Seen, Stop(0), Reader, "it leaves the ring at C: bytes `C..tail` are sent by TCP"),
    row(Seen, Closed(0), Reader, "as stop, and its descriptor is closed"),
    row(Down(0), Idle, Reader, "it has taken every byte before R"),
    row(Recalled(0), Idle, Writer, "the bytes are on TCP"),
    row(Stop(0), Idle, Writer, "the bytes are on TCP"),
    row(Open, Stop(0), Writer, "the reader died: C is `up_at`"),
    row(Seen, Stop(0), Writer, "the reader died: C is its head"),
    row(Open, Down(0), Reader, "the writer died: R is its tail"),
    row(Seen, Down(0), Reader, "the writer died: R is its tail"),
    row(Stop(0), Down(0), Reader, "the writer died re-sending: the rest is in the ring, up to R"),
    row(Recalled(0), Down(0), Reader, "the writer died re-sending: as above"),
];

impl Transition {
    #[must_use]
    pub fn is(&self, from: End, to: End, by: Side) -> bool {
        use core::mem::discriminant as kind;
        kind(&self.from) == kind(&from) && kind(&self.to) == kind(&to) && self.by == by
    }
}
