//! Bytes in and out: every form of read and write that reaches a socket.

use core::ffi::{c_int, c_void};
use core::sync::atomic::Ordering::*;

use libc::iovec;
use shunt_link::elsewhere;
use shunt_os::critical::{self, Handled};
use shunt_os::{memory, threads};

use crate::pool::{self, stage, Mode, Socket};
pub use crate::receive::usual::receive_at_once;
use crate::receive::{self, leave_native};
use crate::search::{note, Way};
pub use crate::send::usual::send_at_once;
use crate::table::{self, Entry};
use crate::{attach, inherit, send, wait, Outcome};

/// What a call on `fd` finds.
pub(super) enum Found {
    /// Nothing of ours.
    Foreign,
    Plain(u32, &'static Socket),
    Attached(u32, &'static Socket, u32),
    /// Left the ring for good; one reset may still be due.
    Left(&'static Socket),
}

#[inline]
pub(super) fn find(fd: c_int) -> Found {
    if receive_is_kernels(fd) {
        return Found::Foreign;
    }
    let Some(index) = table::socket(fd) else { return Found::Foreign };
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
            Found::Left(socket)
        }
        Mode::Free => Found::Foreign,
    }
}

/// Whether `fd` is nothing of ours, so that a receive is the kernel's alone.
#[inline(always)]
pub fn receive_is_kernels(fd: c_int) -> bool {
    match table::get(fd) {
        Entry::Socket(_) => return false,
        // The number may be one that a descriptor of ours has for a moment.
        Entry::Unknown => shunt_os::handles::await_numbers(),
        Entry::Foreign | Entry::Set(_) | Entry::Uring(_) => {}
    }
    true
}

/// As [`receive_is_kernels`], of a send, which is noted.
#[inline(always)]
pub fn send_is_kernels(fd: c_int) -> bool {
    let is_kernels = receive_is_kernels(fd);
    if is_kernels {
        elsewhere::note();
    }
    is_kernels
}

/// A receive of any form. `genuine` makes the program's own call.
#[inline]
pub fn receive(
    fd: c_int,
    vector: &[iovec],
    flags: c_int,
    genuine: impl FnOnce() -> isize,
) -> Outcome {
    let began = critical::handled();
    match find(fd) {
        Found::Foreign => Outcome::PassThrough,
        Found::Plain(index, socket) => {
            let generation = socket.generation.load(Acquire);
            let request = receive::Request { fd, generation, vector, flags };
            threads::add(&socket.native_recv, 1);
            if socket.mode() == Mode::Plain {
                let waits = flags & (libc::MSG_OOB | libc::MSG_ERRQUEUE) == 0
                    && socket.stage.load(Relaxed) == stage::YOUNG
                    && !wait::blocking::may_not_wait(socket, flags);
                let outcome = match waits {
                    true => wait::kernel::wait(socket, fd, &wait::kernel::RECEIVES, genuine),
                    false => Outcome::Genuine(genuine()),
                };
                let Outcome::Genuine(result) = outcome else {
                    leave_native(index, socket);
                    return outcome;
                };
                if result == 0 && receive::ended_by_death(socket, request) {
                    leave_native(index, socket);
                    return Outcome::Failed(libc::ECONNRESET);
                }
                if flags & (libc::MSG_PEEK | libc::MSG_OOB) == 0 {
                    let errno = shunt_os::errno();
                    note(index, socket, Way::In, result);
                    shunt_os::set_errno(errno);
                }
                leave_native(index, socket);
                return Outcome::Genuine(result);
            }
            leave_native(index, socket);
            receive::receive(index, socket, request, genuine)
        }
        Found::Attached(index, socket, generation) => receive::receive(
            index,
            socket,
            receive::Request { fd, generation, vector, flags },
            genuine,
        ),
        Found::Left(socket) => {
            let generation = socket.generation.load(Acquire);
            let request = receive::Request { fd, generation, vector, flags };
            attach::take_up_unanswered(socket);
            if let Some(outcome) = receive::receive_remains(socket, request) {
                return outcome;
            }
            let mut recv = socket.recv.lock();
            if core::mem::take(&mut recv.reset_pending) {
                return Outcome::Failed(libc::ECONNRESET);
            }
            drop(recv);
            if attach::told_before_receive(socket) {
                return Outcome::Failed(libc::ECONNRESET);
            }
            match wait_or_end(began, fd, flags, libc::POLLIN) {
                Outcome::PassThrough if socket.unanswered.load(Relaxed) => {
                    receive::before_end(socket, request, Outcome::Genuine(genuine()))
                }
                outcome => outcome,
            }
        }
    }
}

/// The kernel's own call, by a stream that may have gone to TCP a moment ago.
fn wait_or_end(began: Handled, fd: c_int, flags: c_int, events: i16) -> Outcome {
    if flags & libc::MSG_DONTWAIT == 0 && wait::is_interrupted(began, fd, events) {
        return Outcome::Failed(libc::EINTR);
    }
    Outcome::PassThrough
}

/// `read` and `readv`: unlike a receive, one of no bytes returns at once.
#[inline]
pub fn read(fd: c_int, vector: &[iovec], genuine: impl FnOnce() -> isize) -> Outcome {
    if vector.iter().all(|part| part.iov_len == 0) || !vector.iter().all(receive::is_buffer) {
        return Outcome::PassThrough;
    }
    receive(fd, vector, 0, genuine)
}

/// `write`.
#[inline]
pub fn write(fd: c_int, vector: &[iovec], genuine: impl FnOnce() -> isize) -> Outcome {
    if !vector.iter().all(receive::is_buffer) {
        return Outcome::PassThrough;
    }
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
    if vector.len() > 1 {
        let sent = send::usual::send_parts_at_once(fd, vector, flags);
        if sent > 0 {
            return Outcome::Handled(sent as isize);
        }
    }
    let began = critical::handled();
    match find(fd) {
        Found::Foreign => {
            elsewhere::note();
            Outcome::PassThrough
        }
        Found::Left(socket) => {
            if let Some(number) = attach::told_before_send(socket) {
                return Outcome::Failed(number);
            }
            elsewhere::note();
            wait_or_end(began, fd, flags, libc::POLLOUT)
        }
        Found::Plain(index, socket) => {
            if let Some(reason) = send::kernels_alone(flags) {
                attach::leave(index, reason);
            }
            let generation = socket.generation.load(Acquire);
            let request = send::Request { fd, generation, vector, flags };
            // The generation is that of the descriptor's stream if the descriptor still names it.
            if send::is_large(socket, request) && table::get(fd) == Entry::Socket(index) {
                return send::send(index, socket, request, genuine);
            }
            threads::add(&socket.native_send, 1);
            if socket.mode() == Mode::Plain {
                return send::native(index, socket, request, genuine);
            }
            threads::take(&socket.native_send);
            send::send(index, socket, request, genuine)
        }
        Found::Attached(index, socket, generation) => {
            let request = send::Request { fd, generation, vector, flags };
            send::send(index, socket, request, genuine)
        }
    }
}

const ADDRESS_MAX: u32 = 128;

/// Whether the kernel would take this for the address of a message. Some programs pass one with every
/// message: what is merely not mapped is not asked about.
#[inline(always)]
pub fn may_be_address(place: *const c_void, length: u32) -> bool {
    length <= ADDRESS_MAX && (length == 0 || !receive::is_no_address(place.cast_mut()))
}

/// `sendto` with an address, which a connected stream ignores; but what is none the kernel refuses.
pub fn send_to(
    fd: c_int,
    vector: &[iovec],
    flags: c_int,
    address: (*const c_void, u32),
    genuine: impl FnOnce() -> isize,
) -> Outcome {
    let (place, length) = address;
    if !may_be_address(place, length) && matches!(find(fd), Found::Attached(..)) {
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
    if count == 0 || count > 1024 || receive::is_no_address(base.cast_mut().cast()) {
        return &[];
    }
    // SAFETY: the program passes `count` of them.
    let parts = unsafe { core::slice::from_raw_parts(base, count) };
    if parts.iter().all(receive::is_part) {
        parts
    } else {
        &[]
    }
}

/// Whether what the program passes with a descriptor may be looked at. Of a stream on a ring that is not asked: it
/// would cost as much as the call.
#[inline]
pub fn may_look<T>(fd: c_int, at: *const T, count: usize) -> bool {
    let on_ring =
        || table::socket(fd).is_some_and(|index| pool::get(index).mode() == Mode::Attached);
    count == 0
        || count > 1024
        || memory::is_on_stack(at)
        || on_ring()
        || memory::is_readable(at, count * size_of::<T>())
}

/// One buffer as an iovec.
#[inline]
pub fn single(base: *const c_void, length: usize) -> [iovec; 1] {
    [iovec { iov_base: base.cast_mut(), iov_len: length }]
}
