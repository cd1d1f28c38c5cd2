//! The reader's end of one direction: decides whether the next byte comes from TCP or the ring.
//!
//! Called by the program's receiving threads and by the service thread, always under the receive
//! lock. `offset` is always the number of bytes this direction has given so far, whichever carrier
//! brought them; the caller counts it (on the ring it equals the consumer's head).

use crate::violation::within;
use crate::words::{change, end, LOOKS_MAX};
use crate::{End, Violation, Words, OFFSET_MAX};

/// Where the next byte comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ReaderOn {
    /// TCP, and its end of stream or error is the stream's.
    Tcp,
    /// TCP, but not a byte at or beyond `up_at`; then the ring.
    Crossing { up_at: u64 },
    /// The ring. TCP is not read, whatever it has.
    Ring,
    /// The writer died while it re-sent the ring's bytes `from..to`: TCP until its end or error,
    /// then [`Reader::tcp_ended`], and the rest from the ring.
    Salvage { from: u64, to: u64 },
}

/// What a reader that wants to leave the ring must know.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum StopOutcome {
    /// On TCP, and every byte that is still to come comes by TCP.
    Tcp,
    /// On TCP, and the writer's library has bytes to re-send: tell its service thread. This process
    /// may leave at once. If it waits for [`Reader::answered`], and the writer dies meanwhile, it
    /// can still reach the bytes: it then stops once more, and does what that answers.
    Asked,
    /// The writer was first, and its later bytes are on TCP. The bytes before `to` must be taken
    /// (as [`Reader::observe`] says) and passed on by this process before it can leave.
    MustDrain { to: u64 },
}

/// What closing leaves to be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CloseOutcome {
    /// Bytes were left unread in the ring: TCP would answer with a reset, so the last holder of the
    /// descriptor closes it with one.
    pub unread: bool,
    /// The writer's library has bytes to re-send to whoever else holds the descriptor: tell it.
    pub asked: bool,
}

/// One per direction, in the reading process. Use under the receive lock only.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Reader {
    on: ReaderOn,
    up_at: u64,
    agrees: bool,
    /// TCP's end was the stream's: the words say nothing any more.
    ended: bool,
}

impl Default for Reader {
    fn default() -> Self {
        Reader::new()
    }
}

impl Reader {
    /// Whether the next byte comes from the ring, as far as is known.
    #[must_use]
    #[inline]
    pub const fn is_on_ring(&self) -> bool {
        matches!(self.on, ReaderOn::Ring)
    }

    /// A new direction is on TCP. The words are zeroed.
    #[must_use]
    pub const fn new() -> Reader {
        Reader { on: ReaderOn::Tcp, up_at: 0, agrees: true, ended: false }
    }

    /// Takes the direction over from a dead process that shared it. The caller's `offset` is then
    /// `head` if that is at or beyond `up_at` in a segment, and the kernel's count otherwise.
    pub fn take_over(words: &impl Words) -> Result<Reader, Violation> {
        let mut reader = Reader::new();
        if let End::Seen | End::Down(_) = end(words)? {
            let up_at = within(words.up_at(), 0, OFFSET_MAX)?;
            reader.up_at = up_at;
            let crossed = words.head() >= up_at;
            reader.on = if crossed { ReaderOn::Ring } else { ReaderOn::Crossing { up_at } };
        }
        Ok(reader)
    }

    #[must_use]
    pub const fn on(&self) -> ReaderOn {
        self.on
    }

    /// How many bytes may be taken from TCP by one native receive; `None` while on the ring.
    /// A peek obeys the same limit.
    #[must_use]
    pub const fn may_read_tcp(&self, offset: u64) -> Option<u64> {
        match self.on {
            ReaderOn::Tcp | ReaderOn::Salvage { .. } => Some(u64::MAX),
            ReaderOn::Crossing { up_at } => Some(up_at.saturating_sub(offset)),
            ReaderOn::Ring => None,
        }
    }

    /// Whether a thread may sleep in a genuine receive or wait on TCP alone: no byte can come by the
    /// ring before this process agrees to it (or agrees again).
    ///
    /// Precondition: receive lock held, and `agree` is not called before the sleeper has returned.
    #[must_use]
    pub fn may_sleep_natively(&self, words: &impl Words) -> bool {
        match self.on {
            ReaderOn::Tcp if self.ended => true,
            ReaderOn::Tcp => !matches!(end(words), Ok(End::Agreed | End::Open)),
            ReaderOn::Salvage { .. } => true,
            ReaderOn::Crossing { .. } | ReaderOn::Ring => false,
        }
    }

    /// Lets the writer go up. True when it may, now or already; false while an earlier segment is
    /// being re-sent, and for good after `close` or `writer_died`.
    ///
    /// Precondition: receive lock held, and no thread of this process sleeps natively for the
    /// stream, nor will unless [`Reader::may_sleep_natively`].
    pub fn agree(&mut self, words: &impl Words) -> Result<bool, Violation> {
        if !self.agrees || self.ended {
            return Ok(false);
        }
        Ok(match end(words)? {
            End::Idle => change(words, End::Idle, End::Agreed),
            End::Agreed | End::Open | End::Seen | End::Down(_) => true,
            End::Recalled(_) | End::Stop(_) | End::Closed(_) => false,
        })
    }

    /// Before every receive on TCP, and whenever the ring is empty or TCP has nothing: where does
    /// the byte at `offset` come from? When the answer becomes `Ring`, `Consumer::start_at(offset)`
    /// comes before the first look into the ring. On `Ring` with bytes at hand it need not be asked.
    ///
    /// Precondition: receive lock held, no native receive in flight.
    pub fn observe(&mut self, words: &impl Words, offset: u64) -> Result<ReaderOn, Violation> {
        match self.on {
            ReaderOn::Tcp if self.ended => {}
            ReaderOn::Tcp => self.look_for_segment(words, offset)?,
            ReaderOn::Crossing { up_at } => self.cross(up_at, offset)?,
            ReaderOn::Ring => self.look_for_end(words, offset)?,
            // One who shares the writer's end has sent all of it.
            ReaderOn::Salvage { to, .. } if to <= offset => self.on = ReaderOn::Tcp,
            ReaderOn::Salvage { .. } => {}
        }
        Ok(self.on)
    }

    /// Leaves the ring (exec, a passed descriptor, `off`), or withdraws the agreement to one.
    ///
    /// Precondition: as [`Reader::observe`].
    pub fn stop(&mut self, words: &impl Words, offset: u64) -> Result<StopOutcome, Violation> {
        self.leave(words, offset, End::Stop)
    }

    /// The stop's bytes are on TCP, all of them.
    #[must_use]
    pub fn answered(&self, words: &impl Words) -> bool {
        !matches!(end(words), Ok(End::Stop(_) | End::Recalled(_)))
    }

    /// The descriptor is about to be closed in this process, and nothing is read any more.
    ///
    /// Precondition: as [`Reader::observe`].
    pub fn close(&mut self, words: &impl Words, offset: u64) -> Result<CloseOutcome, Violation> {
        self.agrees = false;
        Ok(match self.leave(words, offset, End::Closed)? {
            StopOutcome::Tcp => CloseOutcome { unread: false, asked: false },
            StopOutcome::Asked => CloseOutcome { unread: awaited(words, offset)?, asked: true },
            StopOutcome::MustDrain { .. } => CloseOutcome { unread: true, asked: false },
        })
    }

    /// The writer's process is known to have ended, or to have become another program. What it
    /// published, or held back, is still to be read: go on as the answer says.
    ///
    /// Precondition: as [`Reader::observe`].
    pub fn writer_died(&mut self, words: &impl Words, offset: u64) -> Result<ReaderOn, Violation> {
        self.agrees = false;
        if self.ended {
            return Ok(self.on);
        }
        words.show_held();
        // Who shares the writer's end may act for it at the same time.
        for _ in 0..LOOKS_MAX {
            let tail = words.tail();
            match end(words)? {
                End::Idle | End::Agreed | End::Down(_) | End::Closed(_) => {}
                open @ (End::Open | End::Seen) => {
                    if tail > OFFSET_MAX {
                        return Err(Violation::Restless);
                    }
                    if !change(words, open, End::Down(tail)) {
                        continue;
                    }
                    if open == End::Open {
                        self.enter(words, offset)?;
                    }
                }
                End::Stop(from) => self.salvage(from, tail)?,
                End::Recalled(to) => self.salvage(words.up_at(), to)?,
            }
            return Ok(self.on);
        }
        Err(Violation::Restless)
    }

    /// TCP reported, at `offset`, its end of stream or an error after which it gives nothing more
    /// (not EAGAIN, not EINTR). Told of every such end before the program sees it: if the answer
    /// is `Ring`, that is not the stream's end yet (`Consumer::start_at(offset)`, and TCP is asked
    /// again afterwards); otherwise it is.
    ///
    /// An honest writer ends TCP only when nothing is missing on it, so an end that comes while the
    /// word says otherwise is the writer's death, noticed before the link's close.
    ///
    /// Precondition: as [`Reader::observe`].
    pub fn tcp_ended(&mut self, words: &impl Words, offset: u64) -> Result<ReaderOn, Violation> {
        if self.on == ReaderOn::Tcp {
            self.writer_died(words, offset)?;
        }
        match self.on {
            // If TCP lost bytes before `from`, its error is the stream's: nothing may follow a gap.
            ReaderOn::Salvage { from, to } if from <= offset && offset < to => {
                end_at(words, to)?;
                self.up_at = offset;
                self.cross(offset, offset)?;
            }
            ReaderOn::Salvage { .. } | ReaderOn::Crossing { .. } | ReaderOn::Tcp => {
                self.on = ReaderOn::Tcp;
                self.ended = true;
            }
            ReaderOn::Ring => {}
        }
        Ok(self.on)
    }

    fn look_for_segment(&mut self, words: &impl Words, offset: u64) -> Result<(), Violation> {
        match end(words)? {
            End::Open if change(words, End::Open, End::Seen) => self.enter(words, offset),
            // Recalled at that very moment, or one of the states without a segment to read.
            End::Open | End::Idle | End::Agreed => Ok(()),
            End::Recalled(_) | End::Stop(_) | End::Closed(_) => Ok(()),
            other => Err(Violation::Unexpected(other)),
        }
    }

    /// The segment is noticed: from now on TCP is read up to `up_at` only.
    fn enter(&mut self, words: &impl Words, offset: u64) -> Result<(), Violation> {
        let up_at = within(words.up_at(), offset, OFFSET_MAX)?;
        self.up_at = up_at;
        self.on = ReaderOn::Crossing { up_at };
        self.cross(up_at, offset)
    }

    fn cross(&mut self, up_at: u64, offset: u64) -> Result<(), Violation> {
        if within(offset, 0, up_at)? == up_at {
            self.on = ReaderOn::Ring;
        }
        Ok(())
    }

    fn look_for_end(&mut self, words: &impl Words, head: u64) -> Result<(), Violation> {
        match end(words)? {
            End::Seen => Ok(()),
            End::Down(to) => {
                if within(to, head, words.tail())? == head {
                    self.finish(words, to)?;
                }
                Ok(())
            }
            other => Err(Violation::Unexpected(other)),
        }
    }

    fn finish(&mut self, words: &impl Words, to: u64) -> Result<(), Violation> {
        if !change(words, End::Down(to), End::Idle) {
            return Err(Violation::Restless);
        }
        self.on = ReaderOn::Tcp;
        Ok(())
    }

    fn salvage(&mut self, from: u64, to: u64) -> Result<(), Violation> {
        if from < within(to, from, OFFSET_MAX)? {
            self.on = ReaderOn::Salvage { from, to };
        }
        Ok(())
    }

    fn leave(
        &mut self,
        words: &impl Words,
        offset: u64,
        left_at: fn(u64) -> End,
    ) -> Result<StopOutcome, Violation> {
        match self.on {
            ReaderOn::Salvage { to, .. } if offset < to => {
                return Ok(StopOutcome::MustDrain { to });
            }
            ReaderOn::Salvage { .. } => self.on = ReaderOn::Tcp,
            _ => {}
        }
        if self.ended {
            return Ok(StopOutcome::Tcp);
        }
        let in_segment = self.on != ReaderOn::Tcp;
        for _ in 0..LOOKS_MAX {
            match (in_segment, end(words)?) {
                (false, End::Idle | End::Closed(_)) => return Ok(StopOutcome::Tcp),
                (false, End::Recalled(_) | End::Stop(_)) => return Ok(StopOutcome::Asked),
                (false, End::Agreed) => {
                    if change(words, End::Agreed, End::Idle) {
                        return Ok(StopOutcome::Tcp);
                    }
                }
                (false, End::Open) => {
                    let up_at = within(words.up_at(), offset, OFFSET_MAX)?;
                    if change(words, End::Open, left_at(up_at)) {
                        return Ok(StopOutcome::Asked);
                    }
                }
                (true, End::Seen) => {
                    if change(words, End::Seen, left_at(offset.max(self.up_at))) {
                        self.on = ReaderOn::Tcp;
                        return Ok(StopOutcome::Asked);
                    }
                }
                (true, End::Down(to)) => {
                    if within(to, offset.max(self.up_at), words.tail())? > offset.max(self.up_at) {
                        return Ok(StopOutcome::MustDrain { to });
                    }
                    self.finish(words, to)?;
                    return Ok(StopOutcome::Tcp);
                }
                (_, other) => return Err(Violation::Unexpected(other)),
            }
        }
        Err(Violation::Restless)
    }
}

/// Ends the ring of a dead writer, whatever the word says.
fn end_at(words: &impl Words, to: u64) -> Result<(), Violation> {
    for _ in 0..LOOKS_MAX {
        if change(words, end(words)?, End::Down(to)) {
            return Ok(());
        }
    }
    Err(Violation::Restless)
}

/// Whether the writer still has bytes to send again to a reader that left.
fn awaited(words: &impl Words, offset: u64) -> Result<bool, Violation> {
    Ok(match end(words)? {
        // What was sent again may be here before the writer says so.
        End::Stop(at) | End::Closed(at) => words.tail() > at.max(offset),
        End::Recalled(to) => to > offset,
        _ => false,
    })
}
