//! Atomics and orderings: core's normally, loom's under `cfg(loom)`.
//!
//! Every ordering stronger than `Relaxed` in this crate is named by a [`Point`]. In a normal build
//! the functions below are constants; in a model one point can be weakened for the current thread,
//! which is how the mutants show that each ordering is needed.

#[cfg(not(loom))]
pub use core::sync::atomic::{AtomicU32, AtomicU64};
#[cfg(loom)]
pub use loom::sync::atomic::{AtomicU32, AtomicU64};

pub(crate) use core::sync::atomic::Ordering::{self, Relaxed};

/// One end of a labelled pair. The label beside its use is the name without the role.
/// A point added here does not compile in the models until it has a mutant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(not(loom), allow(dead_code))]
pub(crate) enum Point {
    TailPublish,
    TailObserve,
    HeldPublish,
    HeldObserve,
    LatestPublish,
    LatestObserve,
    HeadPublish,
    HeadObserve,
    EndSet,
    EndObserve,
    EndLost,
    DataWaiter,
    DataWaker,
    SpaceWaiter,
    SpaceWaker,
    LowWaterWaker,
    MarkPublish,
    MarkObserve,
    SummaryPublish,
    SummaryObserve,
    SleeperAnnounce,
    SleeperRetract,
    SleeperTake,
}

#[cfg(not(loom))]
mod orders {
    use super::{Ordering, Point};

    #[inline(always)]
    pub(crate) const fn release(_: Point) -> Ordering {
        Ordering::Release
    }

    #[inline(always)]
    pub(crate) const fn acquire(_: Point) -> Ordering {
        Ordering::Acquire
    }

    #[inline(always)]
    pub(crate) fn acquire_fence(_: Point) {
        core::sync::atomic::fence(Ordering::Acquire)
    }

    /// The full fence between "I stored mine" and "I read yours".
    #[inline(always)]
    pub(crate) fn fence(_: Point) {
        core::sync::atomic::fence(Ordering::SeqCst)
    }
}

#[cfg(loom)]
mod orders {
    use super::{Ordering, Point};
    use std::cell::Cell;

    std::thread_local! {
        static WEAKENED: Cell<Option<Point>> = const { Cell::new(None) };
    }

    /// Takes the strength out of one point for every model that this thread runs from now on:
    /// a store or load becomes relaxed, an acquire fence nothing, a full
    /// fence an acquire-release one.
    #[cfg(test)]
    pub(crate) fn weaken(point: Option<Point>) {
        WEAKENED.set(point);
    }

    fn unless_weakened(point: Point, ordering: Ordering) -> Ordering {
        if WEAKENED.get() == Some(point) {
            Ordering::Relaxed
        } else {
            ordering
        }
    }

    pub(crate) fn release(point: Point) -> Ordering {
        unless_weakened(point, Ordering::Release)
    }

    pub(crate) fn acquire(point: Point) -> Ordering {
        unless_weakened(point, Ordering::Acquire)
    }

    pub(crate) fn acquire_fence(point: Point) {
        if WEAKENED.get() != Some(point) {
            loom::sync::atomic::fence(Ordering::Acquire)
        }
    }

    pub(crate) fn fence(point: Point) {
        let weakened = WEAKENED.get() == Some(point);
        loom::sync::atomic::fence(if weakened { Ordering::AcqRel } else { Ordering::SeqCst })
    }
}

pub(crate) use orders::*;
