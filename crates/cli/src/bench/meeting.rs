//! How the two processes of a benchmark meet, whatever carries their bytes.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::unix::net::{UnixListener, UnixStream};

use anyhow::Result;

use super::ring::RingEnd;
use crate::args::Way;

/// One end of what is measured.
pub trait End: Read + Write {
    /// No more will be written.
    fn finish(&mut self) -> io::Result<()>;
}

impl End for TcpStream {
    fn finish(&mut self) -> io::Result<()> {
        self.shutdown(Shutdown::Write)
    }
}

impl End for UnixStream {
    fn finish(&mut self) -> io::Result<()> {
        self.shutdown(Shutdown::Write)
    }
}

impl End for RingEnd {
    fn finish(&mut self) -> io::Result<()> {
        self.close_writing();
        Ok(())
    }
}

/// Where clients are awaited.
pub enum Host {
    Tcp(TcpListener),
    Unix(UnixListener),
    Ring(String),
}

impl Host {
    pub fn new(way: Way, at: &str) -> Result<Host> {
        Ok(match way {
            Way::Tcp | Way::Shunt => Host::Tcp(TcpListener::bind("127.0.0.1:0")?),
            Way::Unix => Host::Unix(UnixListener::bind(at)?),
            Way::Ring => {
                RingEnd::make(at)?;
                Host::Ring(at.to_owned())
            }
        })
    }

    /// What the client is to be told.
    pub fn address(&self, at: &str) -> Result<String> {
        Ok(match self {
            Host::Tcp(listener) => listener.local_addr()?.to_string(),
            _ => at.to_owned(),
        })
    }
}

/// Something to do with one end, for all kinds of ends.
pub trait WithEnd {
    type Output;
    fn run(self, end: &mut impl End) -> Result<Self::Output>;
}

pub fn accept<W: WithEnd>(host: &Host, work: W) -> Result<W::Output> {
    match host {
        Host::Tcp(listener) => work.run(&mut without_delay(listener.accept()?.0)?),
        Host::Unix(listener) => work.run(&mut listener.accept()?.0),
        Host::Ring(path) => work.run(&mut RingEnd::server(path)?),
    }
}

pub fn connect<W: WithEnd>(way: Way, at: &str, work: W) -> Result<W::Output> {
    match way {
        Way::Tcp | Way::Shunt => work.run(&mut without_delay(TcpStream::connect(at)?)?),
        Way::Unix => work.run(&mut UnixStream::connect(at)?),
        Way::Ring => work.run(&mut RingEnd::client(at)?),
    }
}

/// Each message goes at once, as in the programs whose latency matters.
fn without_delay(stream: TcpStream) -> io::Result<TcpStream> {
    stream.set_nodelay(true)?;
    Ok(stream)
}

/// Whether the other side ended before the first byte of a message.
pub fn read_message(end: &mut impl Read, message: &mut [u8]) -> io::Result<bool> {
    match end.read_exact(message) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == ErrorKind::UnexpectedEof => Ok(false),
        Err(error) => Err(error),
    }
}
