//! The shared words of one direction, as the handover needs them. Production implements this over
//! atomics in mapped memory, the model checker over plain cells, so both run the same code.

use crate::{End, Violation};

/// `end` is loaded with `Acquire`, `end_cas` is `AcqRel` (`Acquire` when it fails); `tail` and `head`
/// are loaded with `Acquire` and stored with `Release`. For `up_at`, `Relaxed` is enough: it is
/// stored before `Open` is set, and read after that was seen in `end`.
///
/// Everything an end hands over is published by its `end_cas`: the writer stores `tail` and
/// `up_at` before it sets `Open`, and every ring byte before it sets `Down`. `tests/orderings.rs`
/// shows with loom that these orderings suffice, and that weaker ones do not.
pub trait Words {
    /// Stored by the writer, mostly by its `Producer`: every ring byte before it is written.
    fn tail(&self) -> u64;
    fn set_tail(&self, offset: u64);

    /// By the reader, or a child of the writer's, once the writer is gone: moves `tail` behind what the writer held
    /// back, if it did.
    fn show_held(&self);

    /// Stored by the writer: the segment's first offset. Meaningful once `end` has been `Open`.
    fn up_at(&self) -> u64;
    fn set_up_at(&self, offset: u64);

    /// Stored by the reader's `Consumer`: every ring byte before it is taken. Lies before `up_at`,
    /// from an earlier segment, until the reader has crossed (`Consumer::start_at`).
    fn head(&self) -> u64;

    /// The word of [`End`], changed by both sides, always by compare-exchange.
    fn end(&self) -> u64;
    /// `Err` carries the value found.
    fn end_cas(&self, from: u64, to: u64) -> Result<(), u64>;
}

pub(crate) fn end(words: &impl Words) -> Result<End, Violation> {
    End::decode(words.end())
}

/// True when this side was first.
pub(crate) fn change(words: &impl Words, from: End, to: End) -> bool {
    words.end_cas(from.encode(), to.encode()).is_ok()
}

/// An honest peer changes the word at most this often during one call: `Open`, `Seen`, `Stop`
/// under the writer's eyes; `Open`, `Recalled`, `Idle` under the reader's.
pub(crate) const LOOKS_MAX: u32 = 4;
