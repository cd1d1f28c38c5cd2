//! Faults that the exploration must find: each is a step left out or done in the wrong order,
//! in the words ([`crate::port`]) or in what a caller does ([`crate::sides`]).

use shunt_stream::End;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mutant {
    /// The writer goes up though the reader has not agreed.
    UpWithoutAgreement,
    /// `Open` is stored, not compared: a reader that withdrew is not noticed.
    UpWithoutCompare,
    /// `Open` becomes visible before `up_at`.
    UpAtIsStoredLate,
    /// The reader takes bytes beyond `up_at` from TCP.
    ReaderIgnoresTheLimit,
    /// `Down` is stored, not compared: a reader that stopped is not noticed.
    DownWithoutCompare,
    /// A segment that the reader has not noticed is left behind as if it had.
    DownDoesNotRecall,
    /// `Stop` is stored, not compared: a writer that went down is not noticed.
    StopWithoutCompare,
    /// A newer byte goes to TCP while older ones wait to be re-sent.
    NewerByteBeforeResend,
    /// The writer sends its FIN while bytes wait to be re-sent.
    FinBeforeResend,
    /// The writer believes a stopped reader had taken nothing of the segment.
    ResendFromTheStart,
    /// Who takes over a re-send does not look how far TCP got.
    TakeOverStartsAgain,
    /// The reader leaves although the writer went down before it and bytes are in the ring.
    StopDoesNotDrain,
    /// The reader takes TCP's end for the stream's though the writer died re-sending.
    NoSalvage,
    /// The writer does not act for a dead reader.
    ReaderDeathIgnored,
    /// The reader does not act for a dead writer.
    WriterDeathIgnored,
    /// Nobody looks at the word between the program's sends.
    NoServiceThread,
}

impl Mutant {
    pub const ALL: [Mutant; 16] = [
        Mutant::UpWithoutAgreement,
        Mutant::UpWithoutCompare,
        Mutant::UpAtIsStoredLate,
        Mutant::ReaderIgnoresTheLimit,
        Mutant::DownWithoutCompare,
        Mutant::DownDoesNotRecall,
        Mutant::StopWithoutCompare,
        Mutant::NewerByteBeforeResend,
        Mutant::FinBeforeResend,
        Mutant::ResendFromTheStart,
        Mutant::TakeOverStartsAgain,
        Mutant::StopDoesNotDrain,
        Mutant::NoSalvage,
        Mutant::ReaderDeathIgnored,
        Mutant::WriterDeathIgnored,
        Mutant::NoServiceThread,
    ];

    /// Whether this change of the word is done without comparing.
    pub fn stores_blindly(self, from: u64, to: u64) -> bool {
        let (Ok(from), Ok(to)) = (End::decode(from), End::decode(to)) else { return false };
        match self {
            Mutant::UpWithoutAgreement | Mutant::UpWithoutCompare => to == End::Open,
            Mutant::DownWithoutCompare => matches!((from, to), (End::Seen, End::Down(_))),
            Mutant::DownDoesNotRecall => matches!((from, to), (End::Seen, End::Down(_))),
            Mutant::ResendFromTheStart => matches!((from, to), (End::Stop(_), End::Idle)),
            Mutant::StopWithoutCompare => matches!(to, End::Stop(_)),
            _ => false,
        }
    }
}
