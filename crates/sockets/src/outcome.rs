//! How a call ended.

/// The ways out of every call; `preload::boundary` turns them into a return value and `errno`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Served here; `errno` is left alone.
    Handled(isize),
    /// Served here, with this `errno`.
    Failed(i32),
    /// The genuine call was made and set `errno` by itself.
    Genuine(isize),
    /// The genuine call is to be made.
    PassThrough,
    /// A handler with SA_RESTART came into a sleep, and the number may stand for something else by now:
    /// the call is begun anew (signal(7)).
    Anew,
}
