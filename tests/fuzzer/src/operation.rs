//! The one `Operation` that random programs are made of, and the textual form of a program: a
//! line of settings, then a line for each step. What the generator makes, the actors execute and
//! the shrinker cuts is this, and a found failure is kept as it.

use serde::{Deserialize, Serialize};

/// Who executes a step.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize, Hash)]
pub enum Who {
    Client,
    Server,
    /// A second thread of the client's process.
    ClientThread,
    ServerThread,
    /// A forked child of the client's process; there is one at most at any time.
    ClientChild,
    ServerChild,
}

pub const EVERYBODY: [Who; 6] = [
    Who::Client,
    Who::Server,
    Who::ClientThread,
    Who::ServerThread,
    Who::ClientChild,
    Who::ServerChild,
];

/// A process, by the actor that is its first thread.
pub const PROCESSES: [Who; 4] = [Who::Client, Who::Server, Who::ClientChild, Who::ServerChild];

impl Who {
    /// The process that the actor is a thread of.
    pub fn process(self) -> Who {
        match self {
            Who::ClientThread => Who::Client,
            Who::ServerThread => Who::Server,
            other => other,
        }
    }

    pub fn is_child(self) -> bool {
        matches!(self, Who::ClientChild | Who::ServerChild)
    }

    pub fn child(self) -> Option<Who> {
        match self {
            Who::Client => Some(Who::ClientChild),
            Who::Server => Some(Who::ServerChild),
            _ => None,
        }
    }

    pub fn thread(self) -> Option<Who> {
        match self {
            Who::Client => Some(Who::ClientThread),
            Who::Server => Some(Who::ServerThread),
            _ => None,
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum SendCall {
    Send,
    Write,
    Writev,
    Sendmsg,
    Sendto,
    Sendmmsg,
    Sendfile,
    Number,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum ReceiveCall {
    Recv,
    Read,
    Readv,
    Recvmsg,
    Recvfrom,
    Recvmmsg,
    Number,
    Splice,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Flag {
    Peek,
    DontWait,
    WaitAll,
    Trunc,
    NoSignal,
    More,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum How {
    Read,
    Write,
    Both,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum CopyCall {
    Dup,
    Dup2,
    Dup3,
    Fcntl,
    FcntlCloexec,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Setting {
    NoDelay(bool),
    KeepAlive(bool),
    SendBuffer(u32),
    ReceiveBuffer(u32),
    LowWater(u32),
    LingerZero(bool),
    ReceiveTimeoutMs(u32),
    SendTimeoutMs(u32),
    UrgentInLine(bool),
    Cork(bool),
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum PollCall {
    Poll,
    Ppoll,
    Select,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Register {
    Add,
    Modify,
    Delete,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Signal {
    /// Its handler was installed without SA_RESTART.
    Interrupting,
    /// Its handler was installed with SA_RESTART.
    Restarting,
}

/// Descriptors are named by slots: each process has a table of them, which a fork copies. Slot N
/// begins as this process's end of stream N.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Operation {
    Send {
        slot: u8,
        size: u32,
        call: SendCall,
        flags: Vec<Flag>,
    },
    Receive {
        slot: u8,
        size: u32,
        call: ReceiveCall,
        flags: Vec<Flag>,
    },
    /// Writes without waiting until the stream takes no more.
    Fill {
        slot: u8,
    },
    /// Writes in pieces while the other end reads in pieces of another size.
    Transfer {
        slot: u8,
        size: u32,
        piece: u32,
        read_piece: u32,
    },
    /// Sends one byte out of band, which the other end takes.
    Urgent {
        slot: u8,
    },
    /// Exchanges messages until the stream is on the ring, if it can be.
    Rise {
        slot: u8,
    },
    Shutdown {
        slot: u8,
        how: How,
    },
    Close {
        slot: u8,
    },
    Copy {
        from: u8,
        to: u8,
        call: CopyCall,
    },
    /// Opens a further connection, into the same slot of both processes.
    Connect {
        slot: u8,
    },
    Poll {
        slots: Vec<u8>,
        events: i16,
        call: PollCall,
    },
    /// Sleeps in poll until the stream can be read.
    AwaitReadable {
        slot: u8,
    },
    EpollControl {
        set: u8,
        slot: u8,
        register: Register,
        events: u32,
    },
    EpollWait {
        set: u8,
    },
    /// Puts the first set into the second.
    EpollNest,
    /// Sleeps in epoll_wait until something comes of a fresh set with this stream in it.
    EpollAwait {
        slot: u8,
        events: u32,
    },
    BytesWaiting {
        slot: u8,
    },
    Nonblocking {
        slot: u8,
        on: bool,
        by_ioctl: bool,
    },
    Set {
        slot: u8,
        setting: Setting,
    },
    Get {
        slot: u8,
        setting: Setting,
    },
    Names {
        slot: u8,
    },
    SocketError {
        slot: u8,
    },
    StatusFlags {
        slot: u8,
    },
    Fork,
    /// Becomes another program that goes on with the same slots.
    Exec {
        with_library: bool,
    },
    /// Passes a descriptor to the other first process, into its slot.
    Pass {
        slot: u8,
        to: u8,
    },
    /// Ends the executing process.
    Exit {
        at_once: bool,
    },
    /// A signal for another actor, asleep or not.
    Interrupt {
        whom: Who,
        signal: Signal,
    },
    /// SIGKILL for another process.
    Kill {
        whom: Who,
    },
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Step {
    pub by: Who,
    pub op: Operation,
}

/// Which sides run with the library.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Mode {
    Plain,
    Both,
    Server,
    Client,
}

impl Mode {
    pub fn accelerates(self, process: Who) -> bool {
        let server = matches!(process, Who::Server | Who::ServerChild | Who::ServerThread);
        match self {
            Mode::Plain => false,
            Mode::Both => true,
            Mode::Server => server,
            Mode::Client => !server,
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Start {
    /// The program begins with the first message.
    Tcp,
    /// The streams have carried as many messages as begin an upgrade.
    Changing,
    /// The streams are on the ring.
    Ring,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Family {
    V4,
    V6,
    Mapped,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Settings {
    pub seed: u64,
    /// How the accelerated run is accelerated.
    pub mode: Mode,
    pub start: Start,
    pub family: Family,
    pub ring_bytes: u32,
    /// Whether small messages may wait for an acknowledgement.
    pub nagle: bool,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Program {
    pub settings: Settings,
    pub steps: Vec<Step>,
}

impl Program {
    pub fn to_text(&self) -> String {
        let settings = serde_json::to_string(&self.settings).expect("settings are plain data");
        let steps = self.steps.iter().map(|step| serde_json::to_string(step).expect("plain data"));
        std::iter::once(settings).chain(steps).map(|line| line + "\n").collect()
    }

    /// Reads what `to_text` wrote; empty lines and lines that begin with `#` are comments.
    pub fn from_text(text: &str) -> Result<Program, String> {
        let mut lines = text
            .lines()
            .enumerate()
            .filter(|(_, line)| !line.trim().is_empty() && !line.starts_with('#'));
        let wrong = |at: usize, error: serde_json::Error| format!("line {}: {error}", at + 1);
        let (at, first) = lines.next().ok_or("no line of settings")?;
        let settings = serde_json::from_str(first).map_err(|error| wrong(at, error))?;
        let steps: Result<Vec<Step>, String> = lines
            .map(|(at, line)| serde_json::from_str(line).map_err(|error| wrong(at, error)))
            .collect();
        Ok(Program { settings, steps: steps? })
    }
}

#[cfg(test)]
mod tests {
    use super::Program;
    use crate::generate;

    #[test]
    fn a_program_reads_as_it_was_written() {
        for seed in 0..50 {
            let program = generate::program(seed, None);
            assert_eq!(Program::from_text(&program.to_text()), Ok(program));
        }
    }

    #[test]
    fn a_seed_gives_one_program() {
        assert_eq!(generate::program(7, None), generate::program(7, None));
        assert_ne!(generate::program(7, None).steps, generate::program(8, None).steps);
    }
}
