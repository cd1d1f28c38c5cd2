//! Bytes in and out: every form of read and write that reaches a socket.

use core::ffi::{c_int, c_uint, c_void};
use core::ptr::null_mut;
use core::sync::atomic::Ordering::*;

use libc::{iovec, mmsghdr, msghdr};
use shunt_link::elsewhere;
use shunt_os::{memory, real, threads};
use shunt_stats::Reason;

use crate::pool::{self, Mode, Socket};
use crate::receive::{self, leave_native};
use crate::search::{note, Way};
use crate::table::{self, Entry};
use crate::wait::blocking::Patience;
use crate::{attach, inherit, send, Outcome};

/// What a call on `fd` finds.
enum Found {
    /// Nothing of ours.
    Foreign,
    Plain(u32, &'static Socket),
    Attached(u32, &'static Socket, u32),
    /// Left the ring for good; one reset may still be due.
    Left(&'static Socket),
}

#[inline]
fn find(fd: c_int) -> Found {
    let index = match table::get(fd) {
        Entry::Socket(index) => index,
        entry => {
            if entry == Entry::Unknown {
                // The number may be one that a descriptor of ours has for a moment.
                shunt_os::handles::await_numbers();
            }
            return Found::Foreign;
        }
    };
    let socket = pool::get(index);
    let generation = socket.generation.load(Acquire);
    match socket.mode() {
        Mode::Plain => Found::Plain(index, socket),
        // The generation is that of the descriptor's stream if the descriptor still names it.
        Mode::Attached if table::get(fd) != Entry::Socket(index) => Found::Foreign,
        Mode::Attached => Found::Attached(index, socket, generation),
        Mode::Left => Found::Left(socket),
        Mode::Inherited => {
            inherit::touch(index);
            Found::Foreign
        }
        Mode::Free => Found::Foreign,
    }
}

/// A receive of any form. `genuine` makes the program's own call.
#[inline]
pub fn receive(
    fd: c_int,
    vector: &[iovec],
    flags: c_int,
    genuine: impl FnOnce() -> isize,
) -> Outcome {
    match find(fd) {
        Found::Foreign => Outcome::PassThrough,
        Found::Plain(index, socket) => {
            threads::add(&socket.native_recv, 1);
            if socket.mode() == Mode::Plain {
                let result = genuine();
                if flags & (libc::MSG_PEEK | libc::MSG_OOB) == 0 {
                    let errno = shunt_os::errno();
                    note(index, socket, Way::In, result);
                    shunt_os::set_errno(errno);
                }
                leave_native(index, socket);
                return Outcome::Genuine(result);
            }
            leave_native(index, socket);
            let generation = socket.generation.load(Acquire);
            receive::receive(
                index,
                socket,
                receive::Request { fd, generation, vector, flags },
                genuine,
            )
        }
        Found::Attached(index, socket, generation) => receive::receive(
            index,
            socket,
            receive::Request { fd, generation, vector, flags },
            genuine,
        ),
        Found::Left(socket) => {
            let mut recv = socket.recv.lock();
            if core::mem::take(&mut recv.reset_pending) {
                return Outcome::Failed(libc::ECONNRESET);
            }
            Outcome::PassThrough
        }
    }
}

/// `read` and `readv`: unlike a receive, one of no bytes returns at once.
#[inline]
pub fn read(fd: c_int, vector: &[iovec], genuine: impl FnOnce() -> isize) -> Outcome {
    if vector.iter().all(|part| part.iov_len == 0) {
        return Outcome::PassThrough;
    }
    receive(fd, vector, 0, genuine)
}

/// `write`.
#[inline]
pub fn write(fd: c_int, vector: &[iovec], genuine: impl FnOnce() -> isize) -> Outcome {
    send(fd, vector, 0, genuine)
}

/// `writev`: unlike `write`, one of no bytes returns before the socket is asked.
#[inline]
pub fn write_parts(fd: c_int, vector: &[iovec], genuine: impl FnOnce() -> isize) -> Outcome {
    if vector.iter().all(|part| part.iov_len == 0) {
        return Outcome::PassThrough;
    }
    write(fd, vector, genuine)
}

/// The flags of preadv2 and pwritev2 that mean something on a stream, or nothing. What others mean, and
/// what a call of no bytes does, the kernel says, of a stream that is on TCP.
fn flags_now(fd: c_int, vector: &[iovec], flags: c_int) -> Option<c_int> {
    const RWF_NOAPPEND: c_int = 0x20;
    let quiet =
        libc::RWF_HIPRI | libc::RWF_DSYNC | libc::RWF_SYNC | libc::RWF_APPEND | RWF_NOAPPEND;
    if flags & !(quiet | libc::RWF_NOWAIT) != 0 {
        super::descriptor::before_aio(fd);
        return None;
    }
    let now = if flags & libc::RWF_NOWAIT != 0 { libc::MSG_DONTWAIT } else { 0 };
    vector.iter().any(|part| part.iov_len > 0).then_some(now)
}

/// `preadv2` at the stream's own place.
pub fn read_now(
    fd: c_int,
    vector: &[iovec],
    flags: c_int,
    genuine: impl FnOnce() -> isize,
) -> Outcome {
    let now = flags_now(fd, vector, flags);
    now.map_or(Outcome::PassThrough, |now| receive(fd, vector, now, genuine))
}

/// `pwritev2` at the stream's own place.
pub fn write_now(
    fd: c_int,
    vector: &[iovec],
    flags: c_int,
    genuine: impl FnOnce() -> isize,
) -> Outcome {
    let now = flags_now(fd, vector, flags);
    now.map_or(Outcome::PassThrough, |now| send(fd, vector, now, genuine))
}

/// A send of any form.
#[inline]
pub fn send(fd: c_int, vector: &[iovec], flags: c_int, genuine: impl FnOnce() -> isize) -> Outcome {
    match find(fd) {
        Found::Foreign | Found::Left(_) => {
            elsewhere::note();
            Outcome::PassThrough
        }
        Found::Plain(index, socket) => {
            if flags & (libc::MSG_OOB | libc::MSG_ZEROCOPY | libc::MSG_FASTOPEN) != 0 {
                attach::leave(index, Reason::UrgentData);
            }
            let generation = socket.generation.load(Acquire);
            let request = send::Request { fd, generation, vector, flags, already: 0 };
            if send::is_large(socket, request) {
                return send::in_pieces(index, socket, request, genuine);
            }
            threads::add(&socket.native_send, 1);
            if socket.mode() == Mode::Plain {
                return send::native(index, socket, request, 0, Some(genuine));
            }
            threads::take(&socket.native_send);
            send::send(index, socket, request, genuine)
        }
        Found::Attached(index, socket, generation) => {
            let request = send::Request { fd, generation, vector, flags, already: 0 };
            send::send(index, socket, request, genuine)
        }
    }
}

/// `sendto` with an address, which a connected stream ignores; but what is none the kernel refuses.
pub fn send_to(
    fd: c_int,
    vector: &[iovec],
    flags: c_int,
    address: (*const c_void, u32),
    genuine: impl FnOnce() -> isize,
) -> Outcome {
    const ADDRESS_MAX: u32 = 128;
    let (place, length) = address;
    let is_address = length <= ADDRESS_MAX && memory::is_readable(place, length as usize);
    if !is_address && matches!(find(fd), Found::Attached(..)) {
        let error = if length > ADDRESS_MAX { libc::EINVAL } else { libc::EFAULT };
        return Outcome::Failed(error);
    }
    send(fd, vector, flags, genuine)
}

/// The iovecs of a program's call; empty if the kernel must judge them.
///
/// # Safety
/// As the program's call.
pub unsafe fn vector<'a>(base: *const iovec, count: usize) -> &'a [iovec] {
    if base.is_null() || count == 0 || count > 1024 {
        return &[];
    }
    // SAFETY: the program passes `count` of them.
    unsafe { core::slice::from_raw_parts(base, count) }
}

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
    if !matches!(table::get(fd), Entry::Socket(_)) {
        let result = genuine();
        if result >= 0 {
            // SAFETY: the kernel has filled the message in.
            unsafe { note_passed(message) };
        }
        return Outcome::Genuine(result);
    }
    // SAFETY: as the program's call.
    let header = unsafe { *message };
    if is_refused(&header) {
        return Outcome::PassThrough;
    }
    // SAFETY: as the program's call.
    let parts = unsafe { vector(header.msg_iov, header.msg_iovlen) };
    let outcome = receive(fd, parts, flags, genuine);
    if let Outcome::Handled(_) = outcome {
        // SAFETY: as the program's call; what the kernel writes for a TCP stream without
        // ancillary data.
        unsafe {
            (*message).msg_namelen = 0;
            (*message).msg_controllen = 0;
            (*message).msg_flags = flags & libc::MSG_CMSG_CLOEXEC;
        }
    }
    outcome
}

/// After a `recvfrom` that asked for an address: a connected stream gives none.
///
/// # Safety
/// `length` is where the program wants its length.
pub unsafe fn no_address(length: *mut u32, outcome: Outcome) -> Outcome {
    if !memory::is_readable(length, size_of::<u32>()) {
        return Outcome::Failed(libc::EFAULT);
    }
    // SAFETY: it is there.
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
    let header = unsafe { *message };
    if is_refused(&header) {
        return Outcome::PassThrough;
    }
    if !header.msg_control.is_null() && header.msg_controllen > 0 {
        before_passing_in(message);
        if let Entry::Socket(index) = stream {
            // Ancillary data on TCP is time stamps and zero copy: the kernel's.
            super::descriptor::touch_or_leave(index, Reason::UnsupportedOption);
            // Bytes of the ring may still be on their way to TCP: behind them.
            // SAFETY: as the program's call.
            let parts = unsafe { vector(header.msg_iov, header.msg_iovlen) };
            // SAFETY: the program's own arguments.
            return send(fd, parts, flags, || unsafe { real::sendmsg(fd, message, flags) });
        }
    }
    // SAFETY: as the program's call.
    let parts = unsafe { vector(header.msg_iov, header.msg_iovlen) };
    // SAFETY: the program's own arguments.
    send(fd, parts, flags, || unsafe { real::sendmsg(fd, message, flags) })
}

/// Whether the kernel takes nothing of such a message: its name is of negative length, or it has too
/// many parts.
fn is_refused(header: &msghdr) -> bool {
    (header.msg_namelen as i32) < 0 || header.msg_iovlen > 1024
}

/// Descriptors that a message takes along are about to be in other hands. What is not there to be read
/// the kernel refuses.
fn before_passing_in(message: *const msghdr) {
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

/// `recvmmsg`: one message after the other, as the kernel does. `genuine_one` is the `recvmsg` beside it.
///
/// # Safety
/// As the program's call.
pub unsafe fn receive_messages(
    fd: c_int,
    messages: *mut mmsghdr,
    count: c_uint,
    flags: c_int,
    genuine: impl FnOnce() -> isize,
    genuine_one: impl Fn(*mut msghdr, c_int) -> isize,
) -> Outcome {
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
        Found::Attached(_, socket, _) if socket.companion_stirred.load(Acquire) => {
            match shunt_os::handles::option_int(fd, libc::SOL_SOCKET, libc::SO_ERROR) {
                Ok(0) | Err(_) => {}
                Ok(pending) => return Outcome::Failed(pending),
            }
        }
        Found::Attached(..) => {}
        _ => return Outcome::PassThrough,
    }
    if count == 0 {
        return Outcome::PassThrough;
    }
    let mut flags = flags;
    for at in 0..count as usize {
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
                if bytes == 0 {
                    return Outcome::Handled(at as isize + 1);
                }
            }
            Outcome::Failed(_) | Outcome::Genuine(_) if at > 0 => {
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
    for at in 0..(count as usize).min(1024) {
        let one = messages.wrapping_add(at);
        if !memory::is_readable(one, size_of::<mmsghdr>()) {
            return if at > 0 { Outcome::Handled(at as isize) } else { Outcome::PassThrough };
        }
        // SAFETY: it is there.
        let outcome = unsafe { send_message(fd, &raw const (*one).msg_hdr, flags) };
        let outcome = match outcome {
            Outcome::PassThrough => {
                // SAFETY: the program's own arguments.
                Outcome::Genuine(unsafe { real::sendmsg(fd, &raw const (*one).msg_hdr, flags) })
            }
            other => other,
        };
        match outcome {
            Outcome::Handled(bytes) | Outcome::Genuine(bytes) if bytes >= 0 => {
                // SAFETY: as above.
                let wanted = unsafe {
                    (*one).msg_len = bytes as c_uint;
                    send::wanted(vector((*one).msg_hdr.msg_iov, (*one).msg_hdr.msg_iovlen))
                };
                if (bytes as usize) < wanted {
                    // The next message would stand where this one's rest belongs.
                    return Outcome::Handled(at as isize + 1);
                }
            }
            Outcome::Failed(_) | Outcome::Genuine(_) if at > 0 => {
                return Outcome::Handled(at as isize);
            }
            other => return other,
        }
    }
    Outcome::Handled((count as isize).min(1024))
}

/// An offset in a file as programs have it.
pub trait Offset: Copy {
    const MAX: i64;
    fn get(self) -> i64;
    fn of(value: i64) -> Self;
}

impl Offset for i64 {
    const MAX: i64 = i64::MAX;
    #[inline]
    fn get(self) -> i64 {
        self
    }
    #[inline]
    fn of(value: i64) -> i64 {
        value
    }
}

/// Of programs of 32 bits that know 32-bit files alone.
impl Offset for i32 {
    const MAX: i64 = i32::MAX as i64;
    #[inline]
    fn get(self) -> i64 {
        self.into()
    }
    #[inline]
    fn of(value: i64) -> i32 {
        value as i32
    }
}

/// `sendfile` to a stream: the file is read straight into the ring.
///
/// # Safety
/// `offset` is null or the program's own.
pub unsafe fn send_file<O: Offset>(
    out: c_int,
    input: c_int,
    offset: *mut O,
    count: usize,
    mut genuine: impl FnMut() -> isize,
) -> Outcome {
    if let Entry::Socket(index) = table::get(input) {
        // A socket is no source for sendfile, but it is for the kernel to say so.
        let _ = index;
        return Outcome::PassThrough;
    }
    if count == 0 {
        return Outcome::PassThrough;
    }
    let (index, socket) = match find(out) {
        Found::Attached(index, socket, _) => (index, socket),
        Found::Plain(index, socket) => {
            threads::add(&socket.native_send, 1);
            if socket.mode() == Mode::Plain {
                let result = genuine();
                let errno = shunt_os::errno();
                if result < count as isize {
                    socket.fulls.fetch_add(1, Relaxed);
                }
                threads::take(&socket.native_send);
                note(index, socket, Way::Out, result);
                shunt_os::set_errno(errno);
                return Outcome::Genuine(result);
            }
            threads::take(&socket.native_send);
            (index, socket)
        }
        _ => {
            elsewhere::note();
            return Outcome::PassThrough;
        }
    };
    // SAFETY: the program's own pointer.
    let start = (!offset.is_null()).then(|| unsafe { offset.read_unaligned() }.get());
    let mut patience = Patience::new(libc::SO_SNDTIMEO, None);
    // What an offset cannot name is for the kernel to judge.
    let end = start.unwrap_or(0).checked_add_unsigned(count as u64);
    let within = start.is_none_or(|start| start >= 0) && end.is_some_and(|end| end <= O::MAX);
    if !shunt_os::handles::is_regular_file(input) || !within {
        return send::on_tcp(index, socket, out, &mut patience, count, &mut genuine);
    }
    let mut total = 0usize;
    let failed = loop {
        let at = start.map(|start| start + total as i64);
        match send::send_from(socket, input, at, count - total) {
            Some(Ok(0)) => break None,
            Some(Ok(got)) => {
                total += got;
                if total == count {
                    break None;
                }
            }
            Some(Err(number)) => break Some(number),
            None if !on_ring(socket) && total == 0 => {
                return send::on_tcp(index, socket, out, &mut patience, count, &mut genuine);
            }
            None if !on_ring(socket) => {
                // The kernel sends the rest.
                let (mut at, left) = (at, count - total);
                let at = at.as_mut().map_or(null_mut(), |at| at as *mut i64);
                // SAFETY: a place of our own, or none.
                let mut rest = || unsafe { real::sendfile64(out, input, at, left) };
                let errno = shunt_os::errno();
                let sent = match send::on_tcp(index, socket, out, &mut patience, left, &mut rest) {
                    Outcome::Handled(sent) | Outcome::Genuine(sent) => sent,
                    Outcome::PassThrough => rest(),
                    Outcome::Failed(_) => 0,
                };
                shunt_os::set_errno(errno);
                total += sent.max(0) as usize;
                break None;
            }
            None if socket.nonblocking.load(Relaxed) => {
                if send::is_full(index, socket) {
                    break Some(libc::EAGAIN);
                }
            }
            None => {
                if let Some(number) =
                    send::wait_for_room(index, socket, out, &mut patience, total > 0)
                {
                    break Some(number);
                }
            }
        }
    };
    if let (Some(number), 0) = (failed, total) {
        return Outcome::Failed(number);
    }
    if let Some(start) = start {
        // SAFETY: the program's own pointer.
        unsafe { offset.write_unaligned(O::of(start + total as i64)) };
    }
    Outcome::Handled(total as isize)
}

fn on_ring(socket: &Socket) -> bool {
    socket.mode() == Mode::Attached && socket.send.lock().writer.on() != shunt_stream::WriterOn::Tcp
}

/// One buffer as an iovec.
#[inline]
pub fn single(base: *const c_void, length: usize) -> [iovec; 1] {
    [iovec { iov_base: base.cast_mut(), iov_len: length }]
}
