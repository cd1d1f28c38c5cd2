//! What a peer can do wrong in the words of a handover. The stream then goes to the error path: it
//! is reset; nobody else's stream is touched.

use crate::End;
use core::fmt;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Violation {
    /// The word is no encoding of an [`End`].
    Undefined { word: u64 },
    /// The word says what an honest peer cannot have made of it.
    Unexpected(End),
    /// An offset lies outside what this side knows to be possible.
    OutOfRange { offset: u64, from: u64, to: u64 },
    /// The word changed more often than an honest peer can change it during one call.
    Restless,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Violation::Undefined { word } => write!(f, "the end word {word:#x} has no meaning"),
            Violation::Unexpected(end) => {
                write!(f, "the peer cannot have reached {end:?} from here")
            }
            Violation::OutOfRange { offset, from, to } => {
                write!(f, "the peer's offset {offset} is not within {from}..={to}")
            }
            Violation::Restless => write!(f, "the peer changes the end word without pause"),
        }
    }
}

impl std::error::Error for Violation {}

/// Accepts an offset of the peer's only within what is known.
pub(crate) fn within(offset: u64, from: u64, to: u64) -> Result<u64, Violation> {
    if from <= offset && offset <= to {
        Ok(offset)
    } else {
        Err(Violation::OutOfRange { offset, from, to })
    }
}
