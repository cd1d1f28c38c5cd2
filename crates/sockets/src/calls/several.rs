//! Several messages by one call: sendmmsg and recvmmsg.

use core::ffi::{c_int, c_uint};
use core::sync::atomic::Ordering::*;

use libc::{iovec, mmsghdr, msghdr};
use shunt_link::elsewhere;
use shunt_os::clock::{self, Span};
use shunt_os::{handles, memory, real, threads};
use shunt_readiness::interest::bits;

use super::io::{self, find, vector, Found};
use super::messages::{before_passing_in, listed, receive_message, send_message};
use super::wait::of_timespec;
use crate::pool::{self, Mode};
use crate::receive::{self, leave_native};
use crate::search::{note, Way};
use crate::table;
use crate::wait::state;
use crate::{attach, send, Outcome};

/// The stream that a call of several messages began with. Each message looks its number up anew, and another
/// thread may have put something else there while one slept: the kernel would go on with the stream, the call ends
/// with what it has.
struct Begun {
    fd: c_int,
    stream: Option<(u32, u32)>,
}

impl Begun {
    fn with(fd: c_int) -> Begun {
        Begun { fd, stream: Begun::named(fd) }
    }

    fn named(fd: c_int) -> Option<(u32, u32)> {
        let index = table::socket(fd)?;
        Some((index, pool::get(index).generation.load(Acquire)))
    }

    fn is_named_still(&self) -> bool {
        Begun::named(self.fd) == self.stream
    }

    /// As the kernel's loop, which puts the error back that ended it behind messages (do_recvmmsg).
    fn leave_reset_to_next_call(&self) {
        if let Some((index, _)) = self.stream.filter(|_| self.is_named_still()) {
            pool::get(index).recv.lock().reset_pending = true;
        }
    }
}

/// `recvmmsg`: one message after the other, as the kernel does. `genuine_one` is the `recvmsg` beside it.
///
/// # Safety
/// As the program's call.
pub unsafe fn receive_messages(
    fd: c_int,
    (messages, count): (*mut mmsghdr, c_uint),
    flags: c_int,
    time: *mut impl Span,
    genuine: impl FnOnce() -> isize,
    genuine_one: impl Fn(*mut msghdr, c_int) -> isize,
) -> Outcome {
    // SAFETY: as the program's call. What the kernel refuses it refuses before it looks at the socket.
    let Ok(limit) = (unsafe { of_timespec(time) }) else { return Outcome::PassThrough };
    let end = limit.map(|ns| clock::now_ns().saturating_add(ns));
    match find(fd) {
        Found::Plain(index, socket) => {
            threads::add(&socket.native_recv, 1);
            if socket.mode() == Mode::Plain {
                let got = genuine();
                let errno = shunt_os::errno();
                // SAFETY: the kernel has filled in `got` messages.
                let lengths =
                    (0..got.max(0) as usize).map(|at| unsafe { (*messages.add(at)).msg_len });
                note(index, socket, Way::In, lengths.map(|length| length as isize).sum());
                leave_native(index, socket);
                shunt_os::set_errno(errno);
                return Outcome::Genuine(got);
            }
            leave_native(index, socket);
        }
        // The kernel's loop tells a pending error before it looks for bytes.
        Found::Attached(_, socket, _) if socket.companion_stirred.is_set() => {
            if let Some(pending) = attach::take_error(socket) {
                return Outcome::Failed(pending);
            }
        }
        Found::Attached(..) => {}
        Found::Left(socket)
            if receive::remaining(socket) > 0
                || socket.unanswered.load(Relaxed)
                || attach::is_reset_owed(socket) =>
        {
            if let Some(pending) = attach::take_error(socket) {
                return Outcome::Failed(pending);
            }
        }
        _ => return Outcome::PassThrough,
    }
    if count == 0 {
        return Outcome::PassThrough;
    }
    let mut left = limit;
    // SAFETY: as the program's call.
    let outcome = unsafe {
        one_by_one(fd, messages, count as usize, flags, genuine_one, |got| {
            left = end.map(|end| end.saturating_sub(clock::now_ns()));
            got < count as usize && left != Some(0)
        })
    };
    if let (Outcome::Handled(_), Some(left)) = (&outcome, left) {
        // SAFETY: the program's own, as it was read.
        unsafe { time.write_unaligned(Span::of(left / SECOND_NS, left % SECOND_NS)) };
    }
    outcome
}

fn error_of(outcome: &Outcome) -> Option<c_int> {
    match *outcome {
        Outcome::Failed(error) => Some(error),
        Outcome::Genuine(-1) => Some(shunt_os::errno()),
        _ => None,
    }
}

const SECOND_NS: u64 = 1_000_000_000;

/// Messages up to one after which it does not go on. Those of a stream that has ended are empty.
///
/// # Safety
/// As the program's call.
unsafe fn one_by_one(
    fd: c_int,
    messages: *mut mmsghdr,
    count: usize,
    flags: c_int,
    genuine_one: impl Fn(*mut msghdr, c_int) -> isize,
    mut goes_on: impl FnMut(usize) -> bool,
) -> Outcome {
    let begun = Begun::with(fd);
    let mut flags = flags;
    for at in 0..count {
        if at > 0 && !begun.is_named_still() {
            return Outcome::Handled(at as isize);
        }
        // SAFETY: the program passes `count` messages.
        let one = unsafe { messages.add(at) };
        // SAFETY: as above.
        let message = unsafe { &raw mut (*one).msg_hdr };
        let how = flags & !libc::MSG_WAITFORONE;
        // SAFETY: as above.
        let outcome = match unsafe { receive_message(fd, message, how, &genuine_one) } {
            Outcome::PassThrough => Outcome::Genuine(genuine_one(message, how)),
            other => other,
        };
        match outcome {
            Outcome::Handled(bytes) | Outcome::Genuine(bytes) if bytes >= 0 => {
                // SAFETY: as above.
                unsafe { (*one).msg_len = bytes as c_uint };
                if !goes_on(at + 1) {
                    return Outcome::Handled(at as isize + 1);
                }
            }
            Outcome::Failed(_) | Outcome::Genuine(_) | Outcome::Anew if at > 0 => {
                if error_of(&outcome) == Some(libc::ECONNRESET) {
                    begun.leave_reset_to_next_call();
                }
                return Outcome::Handled(at as isize);
            }
            other => return other,
        }
        if flags & libc::MSG_WAITFORONE != 0 {
            flags |= libc::MSG_DONTWAIT;
        }
    }
    Outcome::Handled(count as isize)
}

/// `sendmmsg`.
///
/// # Safety
/// As the program's call.
pub unsafe fn send_messages(
    fd: c_int,
    messages: *mut mmsghdr,
    count: c_uint,
    flags: c_int,
) -> Outcome {
    if !matches!(find(fd), Found::Attached(..) | Found::Plain(..)) || count == 0 {
        for at in 0..(count as usize).min(1024) {
            let one = messages.wrapping_add(at);
            if !memory::is_readable(one, size_of::<mmsghdr>()) {
                break;
            }
            // SAFETY: it is there.
            before_passing_in(unsafe { &raw const (*one).msg_hdr });
        }
        elsewhere::note();
        return Outcome::PassThrough;
    }
    let begun = Begun::with(fd);
    let count = (count as usize).min(1024);
    let mut at = 0;
    while at < count {
        if at > 0 && !begun.is_named_still() {
            return Outcome::Handled(at as isize);
        }
        let one = messages.wrapping_add(at);
        // SAFETY: the program passes `count` messages.
        let (outcome, taken) = match unsafe { Several::gather(fd, one, count - at, flags) } {
            Some(several) => (several.send(fd, flags), several.messages),
            None if !memory::is_readable(one, size_of::<mmsghdr>()) => {
                return if at > 0 { Outcome::Handled(at as isize) } else { Outcome::PassThrough };
            }
            // SAFETY: it is there.
            None => (unsafe { send_one(fd, &raw const (*one).msg_hdr, flags) }, 1),
        };
        match outcome {
            Outcome::Handled(bytes) | Outcome::Genuine(bytes) if bytes >= 0 => {
                // SAFETY: `taken` messages, each of which was looked at.
                let (sent, whole) = unsafe { note_lengths(one, taken, bytes as usize) };
                at += sent;
                if !whole {
                    return Outcome::Handled(at as isize);
                }
            }
            Outcome::Failed(_) | Outcome::Genuine(_) | Outcome::Anew if at > 0 => {
                return Outcome::Handled(at as isize);
            }
            other => return other,
        }
    }
    Outcome::Handled(count as isize)
}

/// `sendmsg` of one of several messages.
///
/// # Safety
/// As the program's call.
unsafe fn send_one(fd: c_int, message: *const msghdr, flags: c_int) -> Outcome {
    // SAFETY: as the program's call.
    match unsafe { send_message(fd, message, flags) } {
        // SAFETY: the program's own arguments.
        Outcome::PassThrough => Outcome::Genuine(unsafe { real::sendmsg(fd, message, flags) }),
        other => other,
    }
}

/// Says in each of `count` messages how many of `bytes` it had. Returns how many messages were sent, and whether that
/// is all of them, whole: the next one would stand where the rest of one that is cut belongs.
///
/// # Safety
/// There are `count` messages, writable, with their parts.
unsafe fn note_lengths(messages: *mut mmsghdr, count: usize, bytes: usize) -> (usize, bool) {
    let mut left = bytes;
    for at in 0..count {
        // SAFETY: the caller's promise.
        let (one, wanted) = unsafe {
            let one = messages.add(at);
            (one, send::wanted(vector((*one).msg_hdr.msg_iov, (*one).msg_hdr.msg_iovlen)))
        };
        let had = left.min(wanted);
        if had == 0 && wanted > 0 {
            return (at, false);
        }
        // SAFETY: as above.
        unsafe { (*one).msg_len = had as c_uint };
        left -= had;
        if had < wanted {
            return (at + 1, false);
        }
    }
    (count, true)
}

const GATHERED_MAX: usize = 64;

/// Messages that follow each other in a call, whose bytes are sent as those of one. To a stream that is the same;
/// and a number that another thread closes while one waits does not keep the others from going on.
struct Several {
    parts: [iovec; GATHERED_MAX],
    count: usize,
    messages: usize,
}

impl Several {
    /// Two messages and more, of bytes alone, to a peer that has not ended; `None` if the first is to be sent by
    /// itself.
    ///
    /// # Safety
    /// The program passes `count` messages.
    unsafe fn gather(
        fd: c_int,
        messages: *mut mmsghdr,
        count: usize,
        flags: c_int,
    ) -> Option<Several> {
        const BYTES_MAX: usize = 1 << 30;
        const FLAGS: c_int = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL | libc::MSG_MORE;
        if count < 2 || flags & !FLAGS != 0 {
            return None;
        }
        let none = iovec { iov_base: core::ptr::null_mut(), iov_len: 0 };
        let mut several = Several { parts: [none; GATHERED_MAX], count: 0, messages: 0 };
        let is_there = |part: &iovec| part.iov_len == 0 || !receive::is_no_address(part.iov_base);
        let mut bytes = 0usize;
        for at in 0..count {
            let one = messages.wrapping_add(at);
            if !memory::is_readable(one, size_of::<mmsghdr>()) {
                break;
            }
            // SAFETY: it is there.
            let header = unsafe { (*one).msg_hdr };
            // SAFETY: as the program's call.
            let Some(parts) = (unsafe { listed(&header) }) else { break };
            let is_plain = header.msg_name.is_null()
                && header.msg_controllen == 0
                && parts.iter().all(is_there);
            bytes = bytes.saturating_add(send::wanted(parts));
            let end = several.count + parts.len();
            if !is_plain || end > GATHERED_MAX || bytes > BYTES_MAX {
                break;
            }
            several.parts[several.count..end].copy_from_slice(parts);
            several.count = end;
            several.messages += 1;
        }
        // The time that a send may take is for each message; and the first one may be answered by a reset, which the
        // second is told of.
        let is_limited = || handles::option_timeout(fd, libc::SO_SNDTIMEO).is_some();
        let ends = bits::RDHUP | bits::HUP | bits::ERR;
        let has_peer = || {
            let Found::Attached(_, socket, _) = find(fd) else { return false };
            state::mask(socket, ends).is_some_and(|mask| mask & ends == 0)
        };
        (several.messages > 1 && bytes > 0 && !is_limited() && has_peer()).then_some(several)
    }

    fn send(&self, fd: c_int, flags: c_int) -> Outcome {
        let parts = &self.parts[..self.count];
        // SAFETY: all zeros is a message of nothing.
        let mut message: msghdr = unsafe { core::mem::zeroed() };
        message.msg_iov = parts.as_ptr().cast_mut();
        message.msg_iovlen = parts.len() as _;
        // SAFETY: the program's parts.
        let genuine = || unsafe { real::sendmsg(fd, &raw const message, flags) };
        match io::send(fd, parts, flags, genuine) {
            Outcome::PassThrough => Outcome::Genuine(genuine()),
            other => other,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_that_is_cut_is_the_last_one() {
        let mut bytes = [0u8; 4];
        let mut parts =
            [4, 0, 4].map(|iov_len| iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len });
        // SAFETY: all zeros is a message of nothing.
        let mut messages: [mmsghdr; 3] = unsafe { core::mem::zeroed() };
        for (message, part) in messages.iter_mut().zip(&mut parts) {
            message.msg_hdr.msg_iov = part;
            message.msg_hdr.msg_iovlen = 1;
        }
        let mut sent = |count: usize, bytes| {
            // SAFETY: three messages, with their parts.
            let told = unsafe { note_lengths(messages.as_mut_ptr(), count, bytes) };
            (told, messages.map(|message| message.msg_len))
        };
        assert_eq!(sent(1, 3), ((1, false), [3, 0, 0]));
        assert_eq!(sent(1, 4), ((1, true), [4, 0, 0]));
        assert_eq!(sent(3, 4), ((2, false), [4, 0, 0]));
        assert_eq!(sent(3, 7), ((3, false), [4, 0, 3]));
        assert_eq!(sent(3, 8), ((3, true), [4, 0, 4]));
    }
}
