//! The writer's end of one direction: decides whether the next byte goes to TCP or to the ring.
//!
//! Called by the program's sending threads and by the service thread, always under the send lock.
//! Promises that bytes reach each carrier in an order the reader can follow, provided the caller
//! obeys what [`WriterOn`] says.

use crate::violation::within;
use crate::words::{change, end, LOOKS_MAX};
use crate::{End, Violation, Words, OFFSET_MAX};

/// Where the next byte goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum WriterOn {
    /// To TCP.
    Tcp,
    /// To the ring.
    Ring,
    /// Nowhere yet: first the ring's bytes `from..to` go to TCP, and [`Writer::resent`] is told.
    /// No newer byte and no FIN is sent before; a program's send waits as on a full buffer.
    Resend { from: u64, to: u64 },
}

/// What the death of the reader's process leaves to be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ReaderDied {
    /// Go on as [`WriterOn`] says. Whoever still holds the descriptor reads on from TCP; if nobody
    /// does, the kernel answers.
    On(WriterOn),
    /// The ring's bytes `from..to` were never read, and later bytes or a FIN may be on TCP already.
    /// Reset the connection: another holder of the descriptor must not miss bytes silently.
    Lost { from: u64, to: u64 },
}

/// One per direction, in the writing process. Use under the send lock only.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Writer {
    on: WriterOn,
    up_at: u64,
    reader_gone: bool,
}

impl Default for Writer {
    fn default() -> Self {
        Writer::new()
    }
}

impl Writer {
    /// A new direction is on TCP. The words are zeroed.
    #[must_use]
    pub const fn new() -> Writer {
        Writer { on: WriterOn::Tcp, up_at: 0, reader_gone: false }
    }

    /// Takes the direction over from a dead process that shared it. `tcp_next` is the stream offset
    /// after the last byte that TCP accepted; it says how much of a re-send is done.
    pub fn take_over(words: &impl Words, tcp_next: u64) -> Result<Writer, Violation> {
        let end = end(words)?;
        let mut writer = Writer { up_at: words.up_at(), ..Writer::new() };
        let tail = words.tail();
        match end {
            End::Idle | End::Agreed | End::Down(_) => {}
            End::Open | End::Seen => writer.on = WriterOn::Ring,
            End::Stop(from) | End::Closed(from) => {
                writer.take_back(words, from.max(tcp_next), tail)?;
            }
            End::Recalled(to) => {
                writer.take_back(words, writer.up_at.max(tcp_next), to)?;
            }
        }
        Ok(writer)
    }

    #[must_use]
    pub const fn on(&self) -> WriterOn {
        self.on
    }

    /// Whether [`Writer::go_up`] would be tried: one load, for every send on TCP.
    #[must_use]
    pub fn may_go_up(&self, words: &impl Words) -> bool {
        self.on == WriterOn::Tcp && !self.reader_gone && words.end() == End::Agreed.encode()
    }

    /// TCP to ring at `offset`, the number of bytes written so far. False when the reader has not
    /// agreed, or withdrew in time: the writer stays on TCP.
    ///
    /// Precondition: send lock held, so that no native send is in flight and `offset` is exact.
    /// Afterwards: `Producer::start_at(offset)` before the first ring byte.
    #[must_use]
    pub fn go_up(&mut self, words: &impl Words, offset: u64) -> bool {
        if !self.may_go_up(words) || offset > OFFSET_MAX {
            return false;
        }
        // Nobody looks at these two before `Open`, so it does no harm if that fails.
        words.set_tail(offset);
        words.set_up_at(offset);
        if !change(words, End::Agreed, End::Open) {
            return false;
        }
        self.up_at = offset;
        self.on = WriterOn::Ring;
        true
    }

    /// Whether [`observe`](Self::observe) would say that the next byte goes to the ring, by the `end` word
    /// alone: for the usual send.
    #[must_use]
    #[inline]
    pub const fn stays(&self, end: u64) -> bool {
        matches!(self.on, WriterOn::Ring)
            && (end == End::Open.encode() || end == End::Seen.encode())
    }

    /// Before every send, and by the service thread on a control message: has the reader left?
    ///
    /// Precondition: send lock held; `tail` is the producer's, everything before it published.
    pub fn observe(&mut self, words: &impl Words, tail: u64) -> Result<WriterOn, Violation> {
        if self.on == WriterOn::Ring {
            match end(words)? {
                End::Open | End::Seen => {}
                End::Stop(from) | End::Closed(from) => self.reader_left(words, from, tail)?,
                other => return Err(Violation::Unexpected(other)),
            }
        }
        Ok(self.on)
    }

    /// Ring to TCP: revert, shutdown, close, a ring that stays full. The answer is `Tcp` or
    /// `Resend`, never `Ring`. Then wake the reader (`data_wanted`).
    ///
    /// Precondition: as [`Writer::observe`].
    pub fn go_down(&mut self, words: &impl Words, tail: u64) -> Result<WriterOn, Violation> {
        for _ in 0..LOOKS_MAX {
            match self.recall(words, tail)? {
                WriterOn::Ring => {
                    if change(words, End::Seen, End::Down(tail)) {
                        self.on = WriterOn::Tcp;
                    }
                }
                on => return Ok(on),
            }
        }
        if self.on == WriterOn::Ring {
            Err(Violation::Restless)
        } else {
            Ok(self.on)
        }
    }

    /// As [`Writer::go_down`], but a ring that its reader has come to stays: `Ring`. That one takes what the
    /// ring has from there, and cannot leave before it has, unless it is asked to stop.
    ///
    /// Precondition: as [`Writer::observe`].
    pub fn recall(&mut self, words: &impl Words, tail: u64) -> Result<WriterOn, Violation> {
        for _ in 0..LOOKS_MAX {
            if self.on != WriterOn::Ring {
                return Ok(self.on);
            }
            match end(words)? {
                // The reader may be in a native receive without limit, and would take bytes that
                // follow on TCP for those in the ring. So these go to TCP as well, in order.
                End::Open => {
                    if change(words, End::Open, End::Recalled(tail)) {
                        self.take_back(words, self.up_at, tail)?;
                    }
                }
                End::Seen => return Ok(self.on),
                End::Stop(from) | End::Closed(from) => self.reader_left(words, from, tail)?,
                other => return Err(Violation::Unexpected(other)),
            }
        }
        if self.on == WriterOn::Ring {
            Err(Violation::Restless)
        } else {
            Ok(self.on)
        }
    }

    /// TCP has accepted the ring's bytes before `upto`. May be told after each partial send; when
    /// all are sent, the writer is on TCP (and the reader can see it, [`crate::Reader::answered`]).
    ///
    /// Precondition: send lock held since the bytes were sent.
    pub fn resent(&mut self, words: &impl Words, upto: u64) -> Result<WriterOn, Violation> {
        if let WriterOn::Resend { from, to } = self.on {
            debug_assert!(from <= upto && upto <= to, "resent({upto}) is not within {from}..={to}");
            self.take_back(words, upto.clamp(from, to), to)?;
        }
        Ok(self.on)
    }

    /// The reader's process is known to have ended, or to have become another program: nobody
    /// touches the ring's other end any more. (A link that merely broke is not that.)
    ///
    /// Precondition: as [`Writer::observe`].
    pub fn reader_died(&mut self, words: &impl Words, tail: u64) -> Result<ReaderDied, Violation> {
        self.reader_gone = true;
        match (self.on, end(words)?) {
            (WriterOn::Ring, end @ (End::Open | End::Seen)) => {
                // A reader that had not crossed yet may show a head from an earlier segment.
                let from = within(words.head().max(self.up_at), self.up_at, tail)?;
                if !change(words, end, End::Stop(from)) {
                    return Err(Violation::Restless);
                }
                self.take_back(words, from, tail)?;
            }
            (WriterOn::Ring, End::Stop(from) | End::Closed(from)) => {
                self.reader_left(words, from, tail)?;
            }
            (WriterOn::Ring, other) => return Err(Violation::Unexpected(other)),
            (WriterOn::Tcp, End::Down(to)) => {
                let from = words.head().max(self.up_at);
                if from < to {
                    return Ok(ReaderDied::Lost { from, to });
                }
            }
            (WriterOn::Tcp | WriterOn::Resend { .. }, _) => {}
        }
        Ok(ReaderDied::On(self.on))
    }

    fn reader_left(&mut self, words: &impl Words, at: u64, tail: u64) -> Result<(), Violation> {
        let from = within(at, self.up_at, tail)?;
        self.take_back(words, from, tail)
    }

    /// The bytes `from..to` remain to be sent by TCP; when none do, says so in the word.
    fn take_back(&mut self, words: &impl Words, from: u64, to: u64) -> Result<(), Violation> {
        if from < to {
            self.on = WriterOn::Resend { from, to };
            return Ok(());
        }
        self.on = WriterOn::Tcp;
        match end(words)? {
            // Newer bytes follow on TCP only after this: while the word says `Stop` or `Recalled`,
            // what TCP lacks is in the ring, should this process die.
            end @ (End::Stop(_) | End::Recalled(_)) if change(words, end, End::Idle) => Ok(()),
            End::Closed(_) => Ok(()),
            other => Err(Violation::Unexpected(other)),
        }
    }
}
