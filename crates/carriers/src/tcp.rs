//! The kernel socket as a carrier: where every stream starts, what it can always go back to, and the
//! measure of every other carrier.
//!
//! The descriptor is the program's and stays it; a half is only its number. What the program's own
//! call does on a stream that is on TCP alone is not made here but by the genuine function.
// UNSAFETY: passes the program's memory on to the kernel.
#![allow(unsafe_code)]

use shunt_os::{handles, tcp, Errno};

use crate::carrier::{Event, Half};
use crate::{Capabilities, Carrier, Failure, How, Part, Received, Sent, Shut, Wait};

pub struct Tcp;

impl Carrier for Tcp {
    const CAPABILITIES: Capabilities = Capabilities {
        keeps_bytes: true,
        flow_control: true,
        coalesces: true,
        integrity: false,
        completions: false,
        ordered: true,
        registration: false,
        tells_of_death: true,
        exact_readiness: true,
    };
    type Sender = Sender;
    type Receiver = Receiver;
}

#[derive(Clone, Copy, Debug)]
pub struct Sender {
    fd: i32,
    holds: bool,
}

#[derive(Clone, Copy, Debug)]
pub struct Receiver {
    fd: i32,
}

impl Sender {
    pub const fn new(fd: i32) -> Sender {
        Sender { fd, holds: false }
    }

    /// The kernel is to hold back what is sent from now on, if `holds`.
    pub fn hold(&mut self, holds: bool) {
        self.holds = holds;
    }
}

impl Receiver {
    pub const fn new(fd: i32) -> Receiver {
        Receiver { fd }
    }
}

impl Half for Sender {
    fn ready(&mut self) -> Result<bool, Failure> {
        Ok(tcp::has_room(self.fd))
    }

    fn announce(&mut self) -> Wait {
        Wait::Descriptor { fd: self.fd, event: Event::Writable }
    }
}

impl crate::Sender for Sender {
    #[inline]
    unsafe fn try_send(&mut self, parts: impl Iterator<Item = Part>) -> Result<Sent, Failure> {
        let mut asked = false;
        let pieces = pieces(parts, &mut asked);
        // SAFETY: the caller's promise.
        match unsafe { tcp::send_now(self.fd, pieces, self.holds) } {
            Ok(0) if asked => Ok(Sent::Full),
            Ok(count) => Ok(Sent::Took(count)),
            Err(Errno::AGAIN) => Ok(Sent::Full),
            Err(error) => Err(failure(error)),
        }
    }

    fn try_shut(&mut self) -> Result<Shut, Failure> {
        handles::shut_writing(self.fd);
        Ok(Shut::Done)
    }

    /// The kernel counts what the peer's kernel has not acknowledged, which is another thing.
    fn unread(&mut self) -> Result<Option<u64>, Failure> {
        Ok(None)
    }
}

impl Half for Receiver {
    fn ready(&mut self) -> Result<bool, Failure> {
        Ok(tcp::has_news(self.fd))
    }

    fn announce(&mut self) -> Wait {
        Wait::Descriptor { fd: self.fd, event: Event::Readable }
    }
}

impl crate::Receiver for Receiver {
    #[inline]
    unsafe fn try_receive(
        &mut self,
        parts: impl Iterator<Item = Part>,
        how: How,
    ) -> Result<Received, Failure> {
        let mut asked = false;
        let pieces = pieces(parts, &mut asked);
        // SAFETY: the caller's promise.
        match unsafe { tcp::receive_now(self.fd, pieces, how.peek, how.discard) } {
            Ok(0) if asked => Ok(Received::Ended),
            Ok(count) => Ok(Received::Bytes(count)),
            Err(Errno::AGAIN) => Ok(Received::Empty),
            Err(error) => Err(failure(error)),
        }
    }
}

/// The parts as the kernel takes them; notes whether there is a byte to move at all.
#[inline]
fn pieces<'a>(
    parts: impl Iterator<Item = Part> + 'a,
    asked: &'a mut bool,
) -> impl Iterator<Item = (*mut u8, usize)> + 'a {
    parts.map(move |part| {
        *asked |= part.len > 0;
        (part.base, part.len)
    })
}

#[cold]
fn failure(error: Errno) -> Failure {
    if error == Errno::FAULT {
        Failure::BadMemory
    } else {
        Failure::Kernel(error)
    }
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;
    use crate::conformance::subject::connection;
    use crate::conformance::{await_ready, receive, send};
    use crate::{Receiver as _, Sender as _};
    use std::os::fd::AsRawFd;

    const NOWHERE: Part = Part { base: 8 as *mut u8, len: 10 };

    #[test]
    fn a_bad_address_is_told_and_the_connection_goes_on() {
        let (near, far) = connection();
        let mut sender = Sender::new(near.as_raw_fd());
        let mut receiver = Receiver::new(far.as_raw_fd());
        // SAFETY: no memory at all, which the kernel can tell.
        assert_eq!(unsafe { sender.try_send([NOWHERE].into_iter()) }, Err(Failure::BadMemory));
        assert_eq!(send(&mut sender, &[7]), Ok(Sent::Took(1)));
        await_ready(&mut receiver).expect("a sound connection");
        // SAFETY: as above.
        let received = unsafe { receiver.try_receive([NOWHERE].into_iter(), How::TAKE) };
        assert_eq!(received, Err(Failure::BadMemory));
        let mut byte = [0];
        assert_eq!(receive(&mut receiver, &mut byte, How::TAKE), Ok(Received::Bytes(1)));
        assert_eq!(byte, [7]);
    }

    /// The kernel forgets an error once it has told it, so bytes and an error must not meet in
    /// one call.
    #[test]
    fn an_error_behind_bytes_that_fill_a_part_is_told_by_the_next_receive() {
        let (near, far) = connection();
        let mut sender = Sender::new(near.as_raw_fd());
        let mut receiver = Receiver::new(far.as_raw_fd());
        assert_eq!(send(&mut sender, &[7; 10]), Ok(Sent::Took(10)));
        await_ready(&mut receiver).expect("a sound connection");
        handles::close_will_reset(near.as_raw_fd());
        drop(near);
        while handles::poll_now(far.as_raw_fd(), libc::POLLIN) & libc::POLLERR == 0 {}
        let (mut first, mut second) = ([0; 10], [0; 10]);
        let parts = [Part::into(&mut first), Part::into(&mut second)];
        // SAFETY: mutable arrays.
        let received = unsafe { receiver.try_receive(parts.into_iter(), How::TAKE) };
        assert_eq!(received, Ok(Received::Bytes(10)));
        let then = receive(&mut receiver, &mut first, How::TAKE);
        assert_eq!(then, Err(Failure::Kernel(Errno(libc::ECONNRESET))));
    }
}
