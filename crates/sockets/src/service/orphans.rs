//! Streams that were closed while bytes of the ring were on their way to TCP.

use core::sync::atomic::Ordering::*;

use shunt_carriers::{tcp, Part, Sender, Sent};
use shunt_link::Link;
use shunt_os::handles;
use shunt_stream::{Writer, WriterOn};

use super::links::released;
use super::{running, Request, Work};
use crate::attach::{self, Broken};
use crate::pool::{SendSide, Socket};
/// What is left of a stream that was closed while its ring bytes were on their way to TCP.
pub struct Orphan {
    pub(super) fd: i32,
    pub(super) writer: Writer,
    pub(super) link: &'static Link,
    pub(super) slot: u32,
    pub(super) bytes: Vec<u8>,
    pub(super) start: u64,
}

/// The stream's descriptor closes while bytes of the ring are still on their way to TCP: the
/// service keeps a descriptor of its own, and the slot, until they are sent. False if it cannot.
pub fn resend_after_close(socket: &Socket, send: &mut SendSide) -> bool {
    let (Some(link), Some(producer)) = (socket.link(), &send.producer) else { return false };
    let WriterOn::Resend { from, to } = send.writer.on() else { return false };
    let Some(service) = running() else { return false };
    let Ok(fd) = handles::duplicate(socket.fd.load(Relaxed)) else { return false };
    let mut bytes = vec![0u8; (to - from) as usize];
    if producer.copy_back(from, &mut bytes).is_err() {
        handles::close(fd);
        return false;
    }
    let slot = socket.slot.load(Relaxed);
    let writer = core::mem::take(&mut send.writer);
    service.ask(Request::Finish(Orphan { fd, writer, link, slot, bytes, start: from }));
    true
}

impl Orphan {
    pub(super) fn advance(&mut self) -> Result<bool, Broken> {
        let words = attach::outgoing(self.link, self.slot);
        while let WriterOn::Resend { from, to } = self.writer.on() {
            let rest = &self.bytes[(from - self.start) as usize..(to - self.start) as usize];
            // SAFETY: a slice of our own.
            match unsafe { tcp::Sender::new(self.fd).try_send([Part::of(rest)].into_iter()) } {
                Ok(Sent::Took(count)) => self.writer.resent(&words, from + count as u64)?,
                Ok(Sent::Full) => return Ok(false),
                Err(_) => return Ok(true),
            };
        }
        Ok(true)
    }
}

impl Work {
    pub(super) fn finish_orphans(&mut self) {
        let epoll = self.service.epoll;
        self.orphans.retain_mut(|orphan| match orphan.advance() {
            Ok(false) => true,
            Ok(true) | Err(Broken) => {
                let _ = handles::epoll_ctl(epoll, libc::EPOLL_CTL_DEL, orphan.fd, 0, 0);
                handles::close(orphan.fd);
                released(orphan.link, orphan.slot);
                false
            }
        });
    }
}
