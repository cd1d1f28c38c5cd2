//! The two processes: what a program's calls and the service thread do, written as production does
//! it over [`Writer`] and [`Reader`].

use crate::mutants::Mutant;
use crate::port::Port;
use crate::world::{Broken, Item, Received};
use shunt_stream::{Reader, ReaderDied, ReaderOn, StopOutcome, Violation, Writer, WriterOn};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum WriterOp {
    Write,
    Up,
    Down,
    /// `shutdown(SHUT_WR)` or close: down, then FIN, as soon as nothing waits to be re-sent.
    Shutdown,
    /// The service thread looks at the word and re-sends one byte.
    Serve,
    ReaderDied,
    /// Another process takes the direction over.
    TakeOver,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ReaderOp {
    Agree,
    /// One receive that asks for this many bytes of TCP; one byte of the ring.
    Read {
        limit: u64,
    },
    /// A thread goes to sleep in a native receive, if it may, and later returns from it with bytes.
    Sleep,
    Wake,
    Stop,
    Close,
    WriterDied,
    TakeOver,
}

/// Who holds a side's descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Holder {
    /// The process with our library.
    Shunt,
    /// It died; a process that shares everything with it goes on.
    Heir,
    /// A process without our library, which uses TCP alone.
    Foreign,
    /// Nobody, or a stream that has failed.
    Nobody,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct WriterSide {
    pub protocol: Writer,
    pub holder: Holder,
    /// Bytes accepted from the program: the offset of the next.
    pub offset: u64,
    floor: u64,
    pub ups: u8,
    pub closing: bool,
    pub fin_sent: bool,
    pub told: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ReaderSide {
    pub protocol: Reader,
    pub holder: Holder,
    pub offset: u64,
    pub agreements: u8,
    pub stops: u8,
    /// The last stop succeeded: this process may become another program.
    pub may_leave: bool,
    pub sleeps: bool,
    pub told: bool,
    /// For the record: what this run has met.
    pub must_drain: bool,
    pub salvaged: bool,
}

impl WriterSide {
    pub fn new() -> WriterSide {
        WriterSide {
            protocol: Writer::new(),
            holder: Holder::Shunt,
            offset: 0,
            floor: 0,
            ups: 0,
            closing: false,
            fin_sent: false,
            told: false,
        }
    }

    pub fn run(&mut self, op: WriterOp, port: &Port) -> Result<(), Violation> {
        match op {
            WriterOp::Write => self.write(port)?,
            WriterOp::Up => {
                if self.protocol.go_up(port, self.offset) {
                    if port.is(Mutant::UpAtIsStoredLate) {
                        port.with(|world| world.up_at = self.offset);
                    }
                    self.floor = self.offset;
                    self.ups += 1;
                }
            }
            WriterOp::Down => {
                self.protocol.go_down(port, self.offset)?;
            }
            WriterOp::Shutdown => self.shutdown(port)?,
            WriterOp::Serve => self.serve(port)?,
            WriterOp::ReaderDied => self.reader_died(port)?,
            WriterOp::TakeOver => {
                let mut tcp_next = port.look(|world| world.tcp_next);
                if port.is(Mutant::TakeOverStartsAgain) {
                    tcp_next = 0;
                }
                self.protocol = Writer::take_over(port, tcp_next)?;
                self.offset = port.look(|world| world.written);
                self.floor = port.look(|world| world.up_at);
                self.holder = Holder::Shunt;
            }
        }
        Ok(())
    }

    fn write(&mut self, port: &Port) -> Result<(), Violation> {
        let accepted = match self.protocol.observe(port, self.offset)? {
            WriterOn::Tcp => port.tcp_send(self.offset),
            WriterOn::Ring => port.ring_put(self.offset, self.floor),
            WriterOn::Resend { .. } => {
                port.is(Mutant::NewerByteBeforeResend) && port.tcp_send(self.offset)
            }
        };
        self.offset += u64::from(accepted);
        Ok(())
    }

    fn shutdown(&mut self, port: &Port) -> Result<(), Violation> {
        self.closing = true;
        let on = self.protocol.go_down(port, self.offset)?;
        if on == WriterOn::Tcp || port.is(Mutant::FinBeforeResend) {
            port.with(|world| world.tcp_end(Item::Fin));
            self.fin_sent = true;
        }
        Ok(())
    }

    fn serve(&mut self, port: &Port) -> Result<(), Violation> {
        if port.is(Mutant::NoServiceThread) {
            return Ok(());
        }
        if let WriterOn::Resend { from, .. } = self.protocol.observe(port, self.offset)? {
            if port.tcp_resend(from) {
                self.protocol.resent(port, from + 1)?;
            }
        }
        Ok(())
    }

    fn reader_died(&mut self, port: &Port) -> Result<(), Violation> {
        self.told = true;
        if port.is(Mutant::ReaderDeathIgnored) {
            return Ok(());
        }
        let lost = matches!(self.protocol.reader_died(port, self.offset)?, ReaderDied::Lost { .. });
        port.with(|world| {
            if world.lost && !lost {
                world.breaks(Broken::LossNotNoticed);
            }
            if lost {
                world.tcp_end(Item::Reset);
            }
        });
        if lost {
            self.holder = Holder::Nobody;
        }
        Ok(())
    }
}

impl ReaderSide {
    pub fn new() -> ReaderSide {
        ReaderSide {
            protocol: Reader::new(),
            holder: Holder::Shunt,
            offset: 0,
            agreements: 0,
            stops: 0,
            may_leave: false,
            sleeps: false,
            told: false,
            must_drain: false,
            salvaged: false,
        }
    }

    pub fn run(&mut self, op: ReaderOp, port: &Port) -> Result<(), Violation> {
        match op {
            ReaderOp::Read { limit } if self.holder == Holder::Foreign => {
                if port.tcp_receive(limit) == Received::End {
                    port.with(|world| world.show_end());
                }
            }
            ReaderOp::Read { limit } => self.read(port, limit)?,
            ReaderOp::Sleep => self.sleeps = self.protocol.may_sleep_natively(port),
            ReaderOp::Wake => self.receive(port, u64::MAX)?,
            ReaderOp::Agree => {
                if self.protocol.agree(port)? {
                    self.agreements += 1;
                    self.may_leave = false;
                }
            }
            ReaderOp::Stop => {
                self.stops += 1;
                let outcome = self.protocol.stop(port, self.offset)?;
                self.must_drain = matches!(outcome, StopOutcome::MustDrain { .. });
                self.may_leave = !self.must_drain;
                if port.is(Mutant::StopDoesNotDrain) {
                    self.protocol = Reader::new();
                    self.may_leave = true;
                }
            }
            ReaderOp::Close => self.close(port)?,
            ReaderOp::WriterDied => {
                self.told = true;
                if !port.is(Mutant::WriterDeathIgnored) {
                    self.protocol.writer_died(port, self.offset)?;
                }
            }
            ReaderOp::TakeOver => {
                self.offset = port.look(|world| world.got);
                self.protocol = Reader::take_over(port)?;
                self.holder = Holder::Shunt;
            }
        }
        Ok(())
    }

    fn read(&mut self, port: &Port, limit: u64) -> Result<(), Violation> {
        if self.protocol.observe(port, self.offset)? == ReaderOn::Ring {
            if self.offset < shunt_stream::Words::tail(port) {
                port.ring_take(self.offset);
                self.offset += 1;
            }
            return Ok(());
        }
        let mut allowed = self.protocol.may_read_tcp(self.offset).unwrap_or(0);
        if port.is(Mutant::ReaderIgnoresTheLimit) {
            allowed = u64::MAX;
        }
        self.receive(port, limit.min(allowed))
    }

    fn receive(&mut self, port: &Port, limit: u64) -> Result<(), Violation> {
        let received = port.tcp_receive(limit);
        self.sleeps &= received == Received::Nothing;
        match received {
            Received::Nothing => {}
            Received::Bytes(count) => self.offset += count,
            Received::End => {
                let ignored = port.is(Mutant::NoSalvage) || port.is(Mutant::WriterDeathIgnored);
                if ignored || self.protocol.tcp_ended(port, self.offset)? == ReaderOn::Tcp {
                    port.with(|world| world.show_end());
                } else {
                    self.salvaged = true;
                }
            }
        }
        Ok(())
    }

    /// The process closes its descriptor; in the model a foreign process may hold another.
    fn close(&mut self, port: &Port) -> Result<(), Violation> {
        let outcome = self.protocol.close(port, self.offset)?;
        port.with(|world| {
            if !outcome.asked {
                world.lost = outcome.unread;
            } else if outcome.unread && self.offset >= world.tail {
                world.breaks(Broken::ResetOfWhatWasRead);
            }
        });
        self.holder = Holder::Nobody;
        Ok(())
    }
}
