//! Streams that were closed while bytes of the ring were not where the next reader finds them: they
//! are on their way to TCP, or lie in the ring, and the end of the stream is held back behind them.

use core::sync::atomic::Ordering::*;

use shunt_carriers::{shm, tcp, Part, Sender, Sent};
use shunt_link::{elsewhere, Link};
use shunt_os::handles;
use shunt_pairing::message::Kind;
use shunt_stream::{Writer, WriterOn};

use super::links::released;
use super::{running, tag, Request, Work};
use crate::attach::{self, Broken};
use crate::inherit::Kin;
use crate::pool::{SendSide, Socket};

/// The sending half of a closed stream. The service has a descriptor of its own, and the slot,
/// until everything is sent.
pub struct Orphan {
    fd: i32,
    writer: Writer,
    producer: shm::Sender,
    link: &'static Link,
    slot: u32,
    /// The program left bytes unread, so that its close is a reset, behind what it wrote.
    resets: bool,
    /// Its program had shut it down before, and the FIN was held back.
    ends: bool,
    /// The reader was asked to stop, since it has sent something: a reset will follow the FIN.
    answers: bool,
    /// It was reset while TCP had no room for the rest, which a reset drops.
    dropped: bool,
    /// Other processes have the stream, and go on with it behind what is sent here.
    shared: Option<Kin>,
}

/// What the rest of the process knows of one.
pub struct Kept {
    pub fd: i32,
    peer_pid: i32,
}

/// The stream's descriptor closes while bytes of the ring are not where TCP would have them. False
/// if the service cannot keep one; otherwise the slot is its business. Who has the stream besides (`shared`) is told
/// when all is sent.
pub fn keep_after_close(socket: &Socket, send: &mut SendSide, resets: bool, shared: bool) -> bool {
    let (Some(link), Some(service)) = (socket.link(), running()) else { return false };
    let Ok(fd) = handles::duplicate_at_any_rate(socket.fd.load(Relaxed)) else { return false };
    let Some(producer) = send.producer.take() else {
        handles::close(fd);
        return false;
    };
    let slot = socket.slot.load(Relaxed);
    let writer = core::mem::take(&mut send.writer);
    link.make_orphan(slot);
    service.orphans.lock().push(Kept { fd, peer_pid: link.peer_pid });
    let (ends, answers) = (send.fin_pending, false);
    let shared = shared.then(|| socket.kin.hand_over());
    if shared.is_none() {
        attach::incoming(link, slot).keep_reader();
    }
    let dropped = false;
    let orphan =
        Orphan { fd, writer, producer, link, slot, resets, ends, answers, dropped, shared };
    service.ask(Request::Finish(orphan));
    true
}

/// Has the peers take what orphans hold; false if there are none. For signal handlers too.
pub fn hurry_orphans() -> bool {
    let Some(service) = running() else { return false };
    let some = has_orphan(|_| true);
    if some {
        service.hurry.store(true, Release);
        handles::ring(service.bell);
    }
    some
}

/// Whether a closed stream of this process is not finished, with a peer's process that, by its number, `is` so. True also
/// while the service is at them.
pub fn has_orphan(is: impl Fn(i32) -> bool) -> bool {
    let any = |kept: &[Kept]| kept.iter().any(|it| is(it.peer_pid));
    running().is_some_and(|it| it.orphans.try_lock().is_none_or(|kept| any(&kept)))
}

impl Orphan {
    /// Goes on as far as it can; true when nothing is left to do.
    fn advance(&mut self) -> Result<bool, Broken> {
        let words = attach::outgoing(self.link, self.slot);
        let mut companion = tcp::Sender::new(self.fd);
        let mut buffer = [0u8; 16 * 1024];
        loop {
            match self.writer.on() {
                WriterOn::Tcp => return Ok(true),
                WriterOn::Ring => {
                    let tail = self.producer.tail();
                    if self.writer.observe(&words, tail)? == WriterOn::Ring {
                        return Ok(false);
                    }
                }
                WriterOn::Resend { .. } if self.dropped => return Ok(true),
                WriterOn::Resend { from, to } => {
                    let length = (to - from).min(buffer.len() as u64) as usize;
                    self.producer.copy_back(from, &mut buffer[..length])?;
                    let part = Part::of(&buffer[..length]);
                    // SAFETY: the buffer is our own.
                    match unsafe { companion.try_send([part].into_iter()) } {
                        Ok(Sent::Took(count)) => self.writer.resent(&words, from + count as u64)?,
                        Ok(Sent::Full) => return Ok(false),
                        Err(_) => return Ok(true),
                    };
                }
            }
        }
    }

    /// Ends the ring where it is: what the reader has not taken stays there.
    fn go_down(&mut self) -> Result<(), Broken> {
        if self.writer.on() == WriterOn::Ring {
            let tail = self.producer.tail();
            self.writer.go_down(&attach::outgoing(self.link, self.slot), tail)?;
            self.producer.wake_receiver();
        }
        Ok(())
    }

    /// The peer sent to a stream that was closed: TCP would answer with a reset, behind which the peer
    /// still finds what it has not read. So the bytes go by TCP before, if they are sure to fit.
    fn reset(&mut self) {
        if matches!(self.writer.on(), WriterOn::Resend { .. }) {
            self.dropped = true;
            self.resets = true;
            return;
        }
        let words = attach::outgoing(self.link, self.slot);
        let few = self.producer.ring().unread().is_ok_and(|bytes| words.fit_window(bytes));
        if few && self.writer.on() == WriterOn::Ring && attach::is_seen(self.link, self.slot) {
            self.answers = true;
            attach::tell(self.link, Kind::Yield, self.slot);
        } else {
            let _ = self.go_down();
        }
    }

    /// Closes the connection, which nobody else has.
    fn close(&self) {
        let fd = self.fd;
        if self.resets && self.ends {
            handles::shut_writing(fd);
        }
        if self.resets {
            // A reset drops what is not sent yet.
            shunt_os::tcp::push(fd);
            handles::close_will_reset(fd);
        } else if shunt_os::tcp::readable(fd).is_ok_and(|bytes| bytes > 0) {
            // The close is a reset, for what came since: a FIN came before it. Otherwise
            // the close is the FIN: who has seen it is answered with resets at once.
            handles::shut_writing(fd);
        }
        handles::close(fd);
        attach::incoming(self.link, self.slot).reader_is_closed();
    }

    /// The peer's process is gone.
    fn reader_died(&mut self) -> Result<(), Broken> {
        let tail = self.producer.tail();
        self.writer.reader_died(&attach::outgoing(self.link, self.slot), tail)?;
        Ok(())
    }
}

impl Work {
    pub(super) fn take_in(&mut self, mut orphan: Orphan) {
        let data = tag::ORPHAN | orphan.fd as u64;
        let events = (libc::EPOLLIN | libc::EPOLLOUT | libc::EPOLLET) as u32;
        let _ =
            handles::epoll_ctl(self.service.epoll, libc::EPOLL_CTL_ADD, orphan.fd, events, data);
        // What its reader said before it came here was said to a stream, or to nobody.
        let _ = if !orphan.link.is_alive() {
            orphan.reader_died()
        } else if orphan.producer.ring().unread().is_ok_and(|bytes| bytes == 0) {
            orphan.go_down()
        } else {
            Ok(())
        };
        self.orphans.push(orphan);
        self.finish_orphans();
    }

    /// Something happened on an orphan's connection.
    pub(super) fn orphan_event(&mut self, fd: i32) {
        if shunt_os::tcp::readable(fd).is_ok_and(|bytes| bytes > 0) {
            let is_answered = |orphan: &&mut Orphan| {
                orphan.fd == fd && !orphan.resets && !orphan.answers && orphan.shared.is_none()
            };
            self.orphans.iter_mut().filter(is_answered).for_each(Orphan::reset);
        }
        self.finish_orphans();
    }

    /// The reader has taken everything.
    pub(super) fn let_go_of_orphan(&mut self, link: &'static Link, slot: u32) {
        let of_slot =
            |orphan: &&mut Orphan| core::ptr::eq(orphan.link, link) && orphan.slot == slot;
        self.orphans.iter_mut().filter(of_slot).for_each(|orphan| {
            let _ = orphan.go_down();
        });
        self.finish_orphans();
    }

    pub(super) fn orphans_of_dead(&mut self, link: &'static Link) {
        self.orphans.iter_mut().filter(|orphan| core::ptr::eq(orphan.link, link)).for_each(
            |orphan| {
                let _ = orphan.reader_died();
            },
        );
        self.finish_orphans();
    }

    pub(super) fn hurry(&self) {
        if !self.service.hurry.swap(false, AcqRel) {
            return;
        }
        for orphan in &self.orphans {
            attach::tell(orphan.link, Kind::Yield, orphan.slot);
        }
    }

    pub(super) fn finish_orphans(&mut self) {
        let service = self.service;
        self.orphans.retain_mut(|orphan| match orphan.advance() {
            Ok(false) => true,
            Ok(true) | Err(Broken) => {
                let fd = orphan.fd;
                let _ = handles::epoll_ctl(service.epoll, libc::EPOLL_CTL_DEL, fd, 0, 0);
                match orphan.shared.take() {
                    Some(kin) => {
                        if orphan.ends {
                            handles::shut_writing(fd);
                            attach::outgoing(orphan.link, orphan.slot).fin_is_sent();
                        }
                        kin.announce();
                        let number = kin.number();
                        let former = attach::FormerSlot::at(orphan.link, orphan.slot, fd, number);
                        if kin.let_go() && former.is_some_and(attach::FormerSlot::gives_up_unread) {
                            handles::close_will_reset(fd);
                        }
                        handles::close(fd);
                    }
                    None => orphan.close(),
                }
                elsewhere::note();
                orphan.producer.leave();
                orphan.link.vacate(orphan.slot);
                released(orphan.link, orphan.slot);
                service.orphans.lock().retain(|kept| kept.fd != fd);
                false
            }
        });
    }
}
