//! sendfile.

use core::ffi::c_int;
use core::ptr::null_mut;
use core::sync::atomic::Ordering::*;

use shunt_link::elsewhere;
use shunt_os::{real, threads};

use super::io::{find, Found};
use crate::pool::{Mode, Socket};
use crate::search::{note, Way};
use crate::table::{self, Entry};
use crate::wait::blocking::Patience;
use crate::{send, Outcome};

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
