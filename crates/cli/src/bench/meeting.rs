//! How the two processes of a benchmark meet, whatever carries their bytes.

use std::fs::File;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixListener, UnixStream};

use anyhow::{bail, Result};

use super::copy::CopyEnd;
use super::epoll::Epoll;
use super::ring::RingEnd;
use super::single::SingleEnd;
use crate::args::bench::Way;

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

impl End for CopyEnd {
    fn finish(&mut self) -> io::Result<()> {
        self.close_writing();
        Ok(())
    }
}

impl End for SingleEnd {
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
    /// With the size of the messages.
    Copy(String, usize),
    Single(String),
}

impl Host {
    pub fn new(way: Way, at: &str, size: usize) -> Result<Host> {
        Ok(match way {
            Way::Tcp | Way::Shunt => Host::Tcp(TcpListener::bind("127.0.0.1:0")?),
            Way::Unix => Host::Unix(UnixListener::bind(at)?),
            Way::Ring => {
                RingEnd::make(at)?;
                Host::Ring(at.to_owned())
            }
            Way::Copy => {
                CopyEnd::make(at)?;
                Host::Copy(at.to_owned(), size)
            }
            Way::Single => {
                SingleEnd::make(at)?;
                Host::Single(at.to_owned())
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
        Host::Copy(path, size) => work.run(&mut CopyEnd::server(path, *size)?),
        Host::Single(path) => work.run(&mut SingleEnd::server(path)?),
    }
}

/// `size`: of the messages that will be exchanged.
pub fn connect<W: WithEnd>(way: Way, at: &str, size: usize, work: W) -> Result<W::Output> {
    match way {
        Way::Tcp | Way::Shunt => work.run(&mut without_delay(TcpStream::connect(at)?)?),
        Way::Unix => work.run(&mut UnixStream::connect(at)?),
        Way::Ring => work.run(&mut RingEnd::client(at)?),
        Way::Copy => work.run(&mut CopyEnd::client(at, size)?),
        Way::Single => work.run(&mut SingleEnd::client(at)?),
    }
}

/// A stream for an epoll loop.
pub fn open_stream(way: Way, at: &str) -> Result<File> {
    match way {
        Way::Tcp | Way::Shunt => never_waiting(TcpStream::connect(at)?),
        Way::Unix => {
            let stream = UnixStream::connect(at)?;
            stream.set_nonblocking(true)?;
            Ok(OwnedFd::from(stream).into())
        }
        Way::Ring | Way::Copy | Way::Single => bail!("epoll knows nothing of shared memory"),
    }
}

fn never_waiting(stream: TcpStream) -> Result<File> {
    stream.set_nonblocking(true)?;
    Ok(OwnedFd::from(without_delay(stream)?).into())
}

impl Host {
    pub fn add_to(&self, epoll: &Epoll, name: usize) -> Result<()> {
        match self {
            Host::Tcp(listener) => epoll.add(listener, name)?,
            Host::Unix(listener) => epoll.add(listener, name)?,
            Host::Ring(_) | Host::Copy(..) | Host::Single(_) => {
                bail!("epoll knows nothing of shared memory")
            }
        }
        Ok(())
    }

    pub fn accept_stream(&self) -> Result<File> {
        match self {
            Host::Tcp(listener) => never_waiting(listener.accept()?.0),
            Host::Unix(listener) => {
                let stream = listener.accept()?.0;
                stream.set_nonblocking(true)?;
                Ok(OwnedFd::from(stream).into())
            }
            Host::Ring(_) | Host::Copy(..) | Host::Single(_) => {
                bail!("shared memory accepts nobody")
            }
        }
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
