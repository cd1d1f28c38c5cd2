//! sendmsg and recvmsg, and the descriptors that messages take along.

use core::ffi::c_int;
use core::mem::zeroed;
use core::sync::atomic::Ordering::*;

use libc::{cmsghdr, iovec, msghdr};
use shunt_link::elsewhere;
use shunt_os::{memory, real};
use shunt_stats::Reason;

use super::counts;
use super::io::{self, vector};
use crate::pool::{self, Mode};
use crate::receive;
use crate::table::{self, Entry};
use crate::{inherit, process, Outcome};

/// `recvmsg`, of which there are two for programs of 32 bits: `genuine` is the one that was called.
///
/// # Safety
/// As the program's call.
pub unsafe fn receive_message(
    fd: c_int,
    message: *mut msghdr,
    flags: c_int,
    genuine: impl FnOnce(*mut msghdr, c_int) -> isize,
) -> Outcome {
    let genuine = || genuine(message, flags);
    if receive::is_no_address(message.cast()) {
        return Outcome::PassThrough;
    }
    let Entry::Socket(index) = table::get(fd) else {
        let result = genuine();
        if result >= 0 {
            // SAFETY: the kernel has filled the message in.
            unsafe { note_passed(message) };
        }
        return Outcome::Genuine(result);
    };
    // SAFETY: as the program's call.
    let Some(parts) = (unsafe { parts_of(fd, message) }) else { return Outcome::PassThrough };
    leave_if_it_tells_times(index);
    // SAFETY: it is there, as far as that is asked.
    let header = unsafe { *message };
    let outcome = io::receive(fd, parts, flags, genuine);
    let socket = pool::get(index);
    let tells_unread = socket.messages_tell_unread.load(Relaxed);
    // SAFETY: as the program's call; what the kernel writes for a TCP stream.
    unsafe {
        match outcome {
            Outcome::Handled(_) => {
                if !header.msg_name.is_null() {
                    (*message).msg_namelen = 0;
                }
                (*message).msg_flags = flags & libc::MSG_CMSG_CLOEXEC;
                if tells_unread {
                    put_unread(message, counts::unread_or_end(socket));
                } else {
                    (*message).msg_controllen = 0;
                }
            }
            Outcome::Genuine(0..) if tells_unread && socket.mode() == Mode::Attached => {
                correct_unread(message, counts::unread_or_end(socket));
            }
            _ => {}
        }
    }
    outcome
}

/// Of a stream with such an option the kernel alone receives messages, from the first one on.
fn leave_if_it_tells_times(index: u32) {
    let socket = pool::get(index);
    if socket.messages_tell_times.load(Relaxed) && !socket.pinned.load(Relaxed) {
        super::descriptor::touch_or_leave(index, Reason::UnsupportedOption);
        process::count(Reason::UnsupportedOption);
    }
}

const TCP_INQ: c_int = 36;

/// After a message of a ring: how many bytes follow it, where that was asked for (Linux, put_cmsg).
///
/// # Safety
/// `message` is the program's, and has in it what the program has put there.
unsafe fn put_unread(message: *mut msghdr, unread: c_int) {
    const HEAD: usize = size_of::<cmsghdr>();
    // SAFETY: as the caller's.
    let message = unsafe { &mut *message };
    let room = if message.msg_control.is_null() { 0 } else { message.msg_controllen };
    // SAFETY: sizes alone.
    let (length, space) = unsafe { (libc::CMSG_LEN(4) as usize, libc::CMSG_SPACE(4) as usize) };
    let given = length.min(room);
    if given < length {
        message.msg_flags |= libc::MSG_CTRUNC;
    }
    if room < HEAD {
        message.msg_controllen = 0;
        return;
    }
    // SAFETY: zero is a valid header.
    let mut head: cmsghdr = unsafe { zeroed() };
    head.cmsg_len = given as _;
    head.cmsg_level = libc::IPPROTO_TCP;
    head.cmsg_type = TCP_INQ;
    let place = message.msg_control.cast::<u8>();
    let number = unread.to_ne_bytes();
    // SAFETY: `given` bytes of the program's room, of which the header takes the first.
    unsafe {
        place.cast::<cmsghdr>().write_unaligned(head);
        place.add(HEAD).copy_from_nonoverlapping(number.as_ptr(), given - HEAD);
    }
    message.msg_controllen = space.min(room) as _;
}

/// The kernel has put how many bytes follow by TCP; there may be more.
///
/// # Safety
/// The kernel has filled the message in.
unsafe fn correct_unread(message: *const msghdr, unread: c_int) {
    // SAFETY: filled in by the kernel, and within the control buffer.
    unsafe {
        let mut head = libc::CMSG_FIRSTHDR(message);
        while !head.is_null() {
            let is_it = (*head).cmsg_level == libc::IPPROTO_TCP && (*head).cmsg_type == TCP_INQ;
            if is_it && (*head).cmsg_len as usize >= libc::CMSG_LEN(4) as usize {
                libc::CMSG_DATA(head).cast::<c_int>().write_unaligned(unread);
            }
            head = libc::CMSG_NXTHDR(message, head);
        }
    }
}

/// After a `recvfrom` that asked for an address: a connected stream gives none.
///
/// # Safety
/// `length` is where the program wants its length.
pub unsafe fn no_address(length: *mut u32, outcome: Outcome) -> Outcome {
    if receive::is_no_address(length.cast()) {
        return Outcome::Failed(libc::EFAULT);
    }
    // SAFETY: the program's own.
    unsafe {
        if (length.read_unaligned() as i32) < 0 {
            return Outcome::Failed(libc::EINVAL);
        }
        length.write_unaligned(0);
    }
    outcome
}

/// Descriptors that came with a message have numbers that we may remember as something else.
unsafe fn note_passed(message: *const msghdr) {
    // SAFETY: filled in by the kernel.
    let mut header = unsafe { libc::CMSG_FIRSTHDR(message) };
    while !header.is_null() {
        // SAFETY: within the control buffer.
        let (level, kind, length) =
            unsafe { ((*header).cmsg_level, (*header).cmsg_type, (*header).cmsg_len) };
        if level == libc::SOL_SOCKET && kind == libc::SCM_RIGHTS {
            let count = (length - size_of::<libc::cmsghdr>()) / size_of::<c_int>();
            for at in 0..count {
                // SAFETY: within this control message.
                let fd =
                    unsafe { libc::CMSG_DATA(header).cast::<c_int>().add(at).read_unaligned() };
                super::descriptor::forget(fd);
            }
        }
        // SAFETY: within the control buffer.
        header = unsafe { libc::CMSG_NXTHDR(message, header) };
    }
}

/// `sendmsg`.
///
/// # Safety
/// As the program's call.
pub unsafe fn send_message(fd: c_int, message: *const msghdr, flags: c_int) -> Outcome {
    if receive::is_no_address(message.cast_mut().cast()) {
        return Outcome::PassThrough;
    }
    let stream = table::get(fd);
    if !matches!(stream, Entry::Socket(_)) {
        before_passing_in(message);
        elsewhere::note();
        return Outcome::PassThrough;
    }
    // SAFETY: as the program's call.
    let Some(parts) = (unsafe { parts_of(fd, message) }) else { return Outcome::PassThrough };
    // SAFETY: it is there, as far as that is asked.
    let header = unsafe { *message };
    if !header.msg_control.is_null() && header.msg_controllen > 0 {
        before_passing_in(message);
        if let Entry::Socket(index) = stream {
            // Ancillary data on TCP is time stamps and zero copy: the kernel's.
            super::descriptor::touch_or_leave(index, Reason::UnsupportedOption);
            // Bytes of the ring may still be on their way to TCP: behind them.
            // SAFETY: the program's own arguments.
            return io::send(fd, parts, flags, || unsafe { real::sendmsg(fd, message, flags) });
        }
    }
    // SAFETY: the program's own arguments.
    io::send(fd, parts, flags, || unsafe { real::sendmsg(fd, message, flags) })
}

/// The parts of a message, if the kernel does not refuse it for what it says of itself.
///
/// # Safety
/// The program passes it with `fd`.
#[inline]
unsafe fn parts_of<'a>(fd: c_int, message: *const msghdr) -> Option<&'a [iovec]> {
    if !io::may_look(fd, message, 1) {
        return None;
    }
    // SAFETY: it is there, as far as that is asked.
    let header = unsafe { &*message };
    if !io::may_look(fd, header.msg_iov, header.msg_iovlen) {
        return None;
    }
    // SAFETY: as above.
    unsafe { listed(header) }
}

/// As [`parts_of`], where that is there.
///
/// # Safety
/// As the program's call.
pub(super) unsafe fn listed<'a>(header: &msghdr) -> Option<&'a [iovec]> {
    if is_refused(header) {
        return None;
    }
    // SAFETY: as the caller's.
    let parts = unsafe { vector(header.msg_iov, header.msg_iovlen) };
    (header.msg_iovlen == 0 || !parts.is_empty()).then_some(parts)
}

/// Whether the kernel takes nothing of such a message: its name is of negative length, or it has too
/// many parts.
fn is_refused(header: &msghdr) -> bool {
    !header.msg_name.is_null() && (header.msg_namelen as i32) < 0 || header.msg_iovlen > 1024
}

/// Descriptors that a message takes along are about to be in other hands. What is not there to be read
/// the kernel refuses.
pub(super) fn before_passing_in(message: *const msghdr) {
    if !memory::is_readable(message, size_of::<msghdr>()) {
        return;
    }
    // SAFETY: it is there.
    let (control, length) = unsafe { ((*message).msg_control, (*message).msg_controllen) };
    if control.is_null() || length == 0 || !memory::is_readable(control, length) {
        return;
    }
    let end = control as usize + length;
    // SAFETY: the program's control buffer.
    let mut header = unsafe { libc::CMSG_FIRSTHDR(message) };
    while !header.is_null() {
        // SAFETY: within the control buffer.
        let (level, kind, length) =
            unsafe { ((*header).cmsg_level, (*header).cmsg_type, (*header).cmsg_len) };
        // What is no message, and what follows it, the kernel refuses.
        if length < size_of::<libc::cmsghdr>() || length > end - header as usize {
            break;
        }
        if level == libc::SOL_SOCKET && kind == libc::SCM_RIGHTS {
            let count = (length - size_of::<libc::cmsghdr>()) / size_of::<c_int>();
            for at in 0..count {
                // SAFETY: within this control message.
                let fd =
                    unsafe { libc::CMSG_DATA(header).cast::<c_int>().add(at).read_unaligned() };
                process_passing(fd);
            }
        }
        // SAFETY: within the control buffer.
        header = unsafe { libc::CMSG_NXTHDR(message, header) };
    }
}

fn process_passing(fd: c_int) {
    let errno = shunt_os::errno();
    inherit::before_passing(fd);
    shunt_os::set_errno(errno);
}
