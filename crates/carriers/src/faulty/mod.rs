//! Any other carrier, made worse on purpose: it moves fewer bytes than it could, pretends for a few
//! looks that there is nothing, says ready when it is not, wakes for nothing, and breaks at a byte.
//!
//! All of it is what a caller must stand anyway. What happens follows from the seed and the calls
//! made, and from nothing else: time passes in looks, so a test repeats exactly and never sleeps for
//! a fault's sake.
// UNSAFETY: hands the program's memory through.
#![allow(unsafe_code)]

mod dice;

use core::marker::PhantomData;

use crate::carrier::Half;
use crate::parts::up_to;
use crate::{
    Capabilities, Carrier, Failure, How, Part, Received, Receiver, Sender, Sent, Shut, Wait,
};

pub use dice::Dice;

/// What goes wrong, and how often (percent of the calls).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Faults {
    /// Fewer bytes than could be moved, down to one.
    pub short: u64,
    /// `Full` or `Empty` for up to [`DELAY_LOOKS_MAX`] looks, whatever is there.
    pub delay: u64,
    /// Ready, though it may not be; woken, though nothing came.
    pub spurious: u64,
    /// So many bytes are moved, and not one more.
    pub breaks_at: Option<u64>,
}

/// How long a delay lasts at most; a look is a try or a question.
pub const DELAY_LOOKS_MAX: u64 = 5;

impl Faults {
    pub const NONE: Faults = Faults { short: 0, delay: 0, spurious: 0, breaks_at: None };
    /// All that a sound caller stands without noticing.
    pub const HARMLESS: Faults = Faults { short: 50, delay: 25, spurious: 25, breaks_at: None };

    #[must_use]
    pub const fn breaking_at(self, byte: u64) -> Faults {
        Faults { breaks_at: Some(byte), ..self }
    }
}

/// The carrier `C` with faults in both halves.
pub struct FaultyCarrier<C>(PhantomData<C>);

impl<C: Carrier> Carrier for FaultyCarrier<C> {
    const CAPABILITIES: Capabilities = Capabilities { exact_readiness: false, ..C::CAPABILITIES };
    type Sender = Faulty<C::Sender>;
    type Receiver = Faulty<C::Receiver>;
}

/// A half with faults.
pub struct Faulty<H> {
    inner: H,
    dice: Dice,
    faults: Faults,
    moved: u64,
    looks_left: u64,
    /// The caller may sleep unless its next look says otherwise, so that look is not delayed.
    announced: bool,
}

impl<H> Faulty<H> {
    pub fn new(inner: H, faults: Faults, seed: u64) -> Faulty<H> {
        Faulty { inner, dice: Dice::new(seed), faults, moved: 0, looks_left: 0, announced: false }
    }

    /// The half without its faults.
    pub fn inner(&mut self) -> &mut H {
        &mut self.inner
    }

    pub fn into_inner(self) -> H {
        self.inner
    }

    /// It is whole again, until it breaks at another byte counted from here.
    pub fn mend(&mut self, breaks_at: Option<u64>) {
        self.moved = 0;
        self.faults.breaks_at = breaks_at;
    }

    fn broken(&self) -> bool {
        self.faults.breaks_at == Some(self.moved)
    }

    /// One look passes; true while a delay lasts.
    fn delayed(&mut self) -> bool {
        if self.looks_left == 0 && self.dice.hits(self.faults.delay) {
            self.looks_left = 1 + self.dice.below(DELAY_LOOKS_MAX);
        }
        let delayed = self.looks_left > 0;
        self.looks_left = self.looks_left.saturating_sub(1);
        delayed
    }

    /// How many bytes this try may move.
    fn limit(&mut self) -> u64 {
        let until_break = self.faults.breaks_at.map_or(u64::MAX, |at| at - self.moved);
        let short = if self.dice.hits(self.faults.short) {
            let bits = self.dice.below(14);
            1 + self.dice.below(1 << bits)
        } else {
            u64::MAX
        };
        short.min(until_break)
    }
}

impl<H: Half> Half for Faulty<H> {
    fn ready(&mut self) -> Result<bool, Failure> {
        if self.broken() || self.dice.hits(self.faults.spurious) {
            return Ok(true);
        }
        if !core::mem::take(&mut self.announced) && self.delayed() {
            return Ok(false);
        }
        self.inner.ready()
    }

    /// While a delay lasts nobody may sleep: no news would come of its end.
    fn announce(&mut self) -> Wait {
        if self.broken() || self.looks_left > 0 || self.dice.hits(self.faults.spurious) {
            return Wait::Now;
        }
        self.announced = true;
        self.inner.announce()
    }
}

impl<S: Sender> Sender for Faulty<S> {
    unsafe fn try_send(&mut self, parts: impl Iterator<Item = Part>) -> Result<Sent, Failure> {
        if self.broken() {
            return Err(Failure::Lost);
        }
        if self.delayed() {
            return Ok(Sent::Full);
        }
        let limit = self.limit();
        // SAFETY: the caller's promise, for no more than the caller's parts.
        let sent = unsafe { self.inner.try_send(up_to(parts, limit)) }?;
        if let Sent::Took(count) = sent {
            self.moved += count as u64;
        }
        Ok(sent)
    }

    fn try_shut(&mut self) -> Result<Shut, Failure> {
        if self.broken() {
            return Err(Failure::Lost);
        }
        if self.delayed() {
            return Ok(Shut::Later);
        }
        self.inner.try_shut()
    }

    fn unread(&mut self) -> Result<Option<u64>, Failure> {
        self.inner.unread()
    }
}

impl<R: Receiver> Receiver for Faulty<R> {
    unsafe fn try_receive(
        &mut self,
        parts: impl Iterator<Item = Part>,
        how: How,
    ) -> Result<Received, Failure> {
        if self.broken() {
            return Err(Failure::Lost);
        }
        if self.delayed() {
            return Ok(Received::Empty);
        }
        let limit = self.limit();
        // SAFETY: the caller's promise, for no more than the caller's parts.
        let received = unsafe { self.inner.try_receive(up_to(parts, limit), how) }?;
        if let (Received::Bytes(count), false) = (received, how.peek) {
            self.moved += count as u64;
        }
        Ok(received)
    }
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;
    use crate::conformance::subject::{ShmSubject, Subject};
    use crate::conformance::{receive, send};

    fn trace(seed: u64) -> Vec<String> {
        let (near, far) = <ShmSubject>::pair();
        let faults = Faults::HARMLESS.breaking_at(9000);
        let mut sender = Faulty::new(near.sender, faults, seed);
        let mut receiver = Faulty::new(far.receiver, faults, seed + 1);
        let mut bytes = [0; 500];
        let step = |_| {
            let sent = send(&mut sender, &bytes);
            format!("{sent:?} {:?}", receive(&mut receiver, &mut bytes, How::TAKE))
        };
        (0..200).map(step).collect()
    }

    #[test]
    fn a_seed_says_all() {
        assert_eq!(trace(3), trace(3));
        assert_ne!(trace(3), trace(4));
    }

    #[test]
    fn every_kind_of_fault_happens() {
        let trace = trace(3);
        for sight in ["Full", "Empty", "Took(500)", "Took(1)", "Err(Lost)"] {
            assert!(trace.iter().any(|line| line.contains(sight)), "{sight} in {trace:?}");
        }
    }
}
