//! What the scenarios and the fuzzer share: the calls under test as thin wrappers, bytes whose
//! position can be checked, and the counters that tell when a stream is on a ring.

pub mod calls;
pub mod fast_path;
pub mod pattern;
