//! What the conductor and the actors say to each other, over one socket for each actor.

use crate::operation::{Family, Operation};
use serde::{de::DeserializeOwned, Deserialize, Serialize};
use shunt_differential::calls::{io, Fd, Got};

#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Job {
    Do(Operation),
    Listen {
        family: Family,
    },
    /// The client's half of [`Operation::Connect`].
    Open {
        slot: u8,
        family: Family,
        port: u16,
        nagle: bool,
    },
    /// The server's half.
    Accept {
        slot: u8,
        nagle: bool,
    },
    /// The two halves of [`Operation::Rise`].
    Ping {
        slot: u8,
        rounds: u32,
    },
    Pong {
        slot: u8,
        rounds: u32,
    },
    /// The reader's half of [`Operation::Transfer`].
    Drain {
        slot: u8,
        piece: u32,
    },
    /// The other end's half of [`Operation::Urgent`].
    TakeUrgent {
        slot: u8,
    },
    /// The receiver's half of [`Operation::Pass`].
    Take {
        slot: u8,
    },
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Command {
    pub job: Job,
    /// The sequence that is written or expected, and where it goes on.
    pub sequence: u64,
    pub offset: u64,
    /// Bytes that are known to be on their way to the reader.
    pub waiting: u64,
    /// The actor says when it is about to make the call, since it may sleep in it.
    pub may_sleep: bool,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Reply {
    pub said: String,
    /// Bytes written, or taken for good.
    pub moved: u64,
}

impl Reply {
    pub fn said(text: impl std::fmt::Display) -> Reply {
        Reply { said: text.to_string(), moved: 0 }
    }
}

/// The first message of every actor.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Hello {
    pub process: i32,
    pub thread: i32,
}

/// An actor says this, alone, when it is about to make a call that may sleep.
pub const BEGINS: &[u8] = b"begins";

pub fn say(control: Fd, message: &impl Serialize) -> Got {
    let text = serde_json::to_vec(message).expect("messages are plain data");
    io::send(control, &text, libc::MSG_NOSIGNAL)
}

/// Nothing when the other side is gone.
pub fn hear(control: Fd) -> Option<Vec<u8>> {
    let mut room = vec![0; 1 << 14];
    loop {
        match io::recv(control, &mut room, 0) {
            Got::Errno(libc::EINTR) => {}
            got => {
                let count = got.count().filter(|&count| count > 0)?;
                room.truncate(count);
                return Some(room);
            }
        }
    }
}

pub fn hear_as<T: DeserializeOwned>(control: Fd) -> Option<T> {
    serde_json::from_slice(&hear(control)?).ok()
}
