//! What a carrier does by itself. Who stands above leaves out what the carrier already does; who
//! writes a carrier is held to what it declares: the conformance suite tests each line that can be
//! seen from outside.

/// One constant for each carrier.
///
/// | | tcp | shm | verbs (to come) | iwarp (to come) |
/// |---|---|---|---|---|
/// | `keeps_bytes` | yes | yes | no: memory is the device's until completion | as verbs |
/// | `flow_control` | yes | yes | no: credits are to be counted above | no |
/// | `coalesces` | yes | yes | no: one work request a send | no |
/// | `integrity` | no: 16 bits | yes: nothing travels | yes: CRC of the link | yes: CRC32c |
/// | `completions` | no: the peer's kernel has it | yes | yes | yes |
/// | `ordered` | yes | yes | yes on one queue pair | yes |
/// | `registration` | no | no | yes | no |
/// | `tells_of_death` | yes | no: the companion does | no | yes |
/// | `exact_readiness` | yes | yes | yes | yes |
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capabilities {
    /// What was accepted is the carrier's own: the program may reuse its memory at once, and the
    /// bytes arrive even if this process ends.
    pub keeps_bytes: bool,
    /// Says [`Full`](crate::Sent::Full) when the reader does not keep up, and never drops a byte.
    pub flow_control: bool,
    /// Many small sends may be taken by one receive.
    pub coalesces: bool,
    /// A damaged byte is noticed, or cannot come about.
    pub integrity: bool,
    /// Knows which bytes the peer's program side has taken: [`Sender::unread`](crate::Sender::unread).
    pub completions: bool,
    /// Bytes come in the order of the sends.
    pub ordered: bool,
    /// Memory must be made known to a device before bytes can be sent from or received into it.
    pub registration: bool,
    /// Reports by itself that the peer's process is gone: an end or a breakage, not mere silence.
    pub tells_of_death: bool,
    /// What reports itself ready makes progress when it is tried next. Without this, readiness may
    /// be spurious, as that of `epoll(7)` may be for a program.
    pub exact_readiness: bool,
}
