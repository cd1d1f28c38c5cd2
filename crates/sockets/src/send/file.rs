//! sendfile(2): a file is read straight into the ring.

use core::sync::atomic::Ordering::*;

use shunt_os::{raw, sys};
use shunt_stream::WriterOn;

use super::rest::look_at_growth;
use super::{count_sent, refused, told_to_resend, wait, Request};
use crate::attach::{break_stream, closed_unheard, observe_writer, resend, try_go_up};
use crate::outcome::Outcome;
use crate::pool::{Mode, SendSide, Socket};
use crate::wait::blocking::{self, Patience, Watch};

/// A call that gives a stream bytes which are not in the program's memory (sendfile, splice), and may
/// sleep for room before. Who made it calls [`end`](Self::end).
pub struct Delivery {
    index: u32,
    pub(super) socket: &'static Socket,
    generation: u32,
    /// The program's number, or another of the stream's once that was closed in a sleep.
    pub(super) fd: i32,
    patience: Patience,
    /// Counted in the socket's `waiting`.
    waiting: bool,
}

impl Delivery {
    pub fn new(index: u32, socket: &'static Socket, generation: u32, fd: i32) -> Delivery {
        let patience = Patience::new(libc::SO_SNDTIMEO, Some(index));
        Delivery { index, socket, generation, fd, patience, waiting: false }
    }

    /// Whether the stream is the one that the call began with, and ours. Its lock is held.
    pub(super) fn is_ours(&self) -> bool {
        self.socket.generation.load(Relaxed) == self.generation
            && self.socket.mode() == Mode::Attached
    }

    /// Whether what is sent next goes into the ring, or behind what a ring has to send again.
    pub fn is_on_ring(&self) -> bool {
        let side = self.socket.send.lock();
        self.is_ours() && side.writer.on() != WriterOn::Tcp
    }

    pub fn is_full(&self) -> bool {
        super::is_full(self.index, self.socket)
    }

    pub fn may_not_wait(&self) -> bool {
        self.patience.may_not_wait(self.socket, 0)
    }

    /// The kernel does the rest, and holds the stream meanwhile: a close need not wait for it.
    pub(super) fn leave_to_kernel(&mut self, side: &mut SendSide) {
        if self.waiting && !self.socket.closing.load(Relaxed) {
            self.waiting = false;
            side.waiting.end(false);
        }
    }

    /// The call is over.
    pub fn end(&mut self) {
        if self.waiting && self.socket.generation.load(Relaxed) == self.generation {
            self.socket.send.lock().waiting.end(false);
        }
        self.waiting = false;
        if self.socket.closing.load(Relaxed) {
            crate::calls::descriptor::finish_closing(self.index);
        }
    }

    /// Waits for room in the ring, or in TCP for what the ring had; `Some` ends the call so, or with what
    /// it has moved if it `has_some`.
    pub fn wait_for_room(&mut self, has_some: bool) -> Option<Outcome> {
        let socket = self.socket;
        let watch = Watch::new(socket, true);
        {
            let mut side = socket.send.lock();
            if !self.is_ours() {
                return None;
            }
            let is_full = match observe_writer(socket, &mut side) {
                Ok(WriterOn::Ring) => {
                    let free = side.producer.as_mut().map(|producer| producer.ring().free());
                    !matches!(free, Some(Ok(free)) if free > 0)
                }
                Ok(WriterOn::Resend { .. }) => matches!(resend(socket, &mut side), Ok(false)),
                _ => false,
            };
            if !is_full {
                return None;
            }
            if !self.waiting {
                self.waiting = true;
                side.waiting.begin(false);
            }
        }
        let (fd, generation) = (self.fd, self.generation);
        let request = Request { fd, generation, vector: &[], flags: 0 };
        let ended = wait(self.index, socket, &watch, request, &mut self.patience, has_some);
        if let Some(fd) = blocking::other_number(socket, self.fd) {
            self.fd = fd;
            self.patience.renamed = true;
        }
        ended
    }
}

/// Reads up to `count` bytes of `input` straight into the ring, for sendfile. `None`: the stream
/// is not on the ring, or the ring is full.
pub fn send_from(
    delivery: &Delivery,
    input: i32,
    offset: Option<i64>,
    count: usize,
) -> Option<Result<usize, i32>> {
    let socket = delivery.socket;
    let mut side = socket.send.lock();
    if !delivery.is_ours() {
        return None;
    }
    if side.fin_pending {
        return Some(Err(refused(socket, 0)));
    }
    match observe_writer(socket, &mut side) {
        Ok(WriterOn::Ring) if socket.told_reset.load(Relaxed) => {
            return Some(Err(refused(socket, 0)));
        }
        Ok(WriterOn::Ring) => {}
        Ok(WriterOn::Tcp) if !closed_unheard(socket) => {
            if let Some(number) = told_to_resend(socket, &mut side) {
                return Some(Err(number));
            }
            if !try_go_up(socket, &mut side) {
                return None;
            }
        }
        _ => return None,
    }
    let producer = side.producer.as_mut()?;
    let mut total = 0usize;
    while total < count {
        let Ok((base, free)) = producer.ring().writable() else {
            drop(side);
            break_stream(socket);
            return None;
        };
        let length = free.min(count - total);
        if length == 0 {
            break;
        }
        let at = offset.map(|offset| raw::in_registers(offset as u64 + total as u64));
        // SAFETY: `length` bytes of the ring are free and this thread holds the send lock. The
        // kernel writes them; what the peer scribbles meanwhile only hurts what it reads.
        let result = unsafe {
            match at {
                Some([low, high]) => {
                    sys!(libc::SYS_pread64, input, base.as_ptr(), length, low, high)
                }
                None => sys!(libc::SYS_read, input, base.as_ptr(), length),
            }
        };
        match result {
            Ok(0) => {
                if total == 0 {
                    return Some(Ok(0));
                }
                break;
            }
            Ok(got) => {
                producer.ring().stage(got);
                total += got;
                if got < length {
                    break;
                }
            }
            Err(error) if total == 0 => return Some(Err(error.0)),
            Err(_) => break,
        }
    }
    if total == 0 {
        return None;
    }
    producer.publish();
    count_sent(socket, total);
    look_at_growth(delivery.index, socket, &mut side);
    Some(Ok(total))
}
