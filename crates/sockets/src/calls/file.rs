//! sendfile.

use core::ffi::c_int;
use core::ptr::null_mut;
use core::sync::atomic::Ordering::*;

use shunt_link::elsewhere;
use shunt_os::{real, threads};

use super::io::{find, Found};
use crate::pool::Mode;
use crate::search::{note, Way};
use crate::send::{self, Delivery};
use crate::table::{self, Entry};
use crate::Outcome;

/// An offset from which on some file systems have no bytes and say EOVERFLOW (8 TiB; ext4 ends at 16).
const FAR: i64 = 1 << 43;

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
    mut genuine: impl FnMut(c_int) -> isize,
) -> Outcome {
    if let Entry::Socket(index) = table::get(input) {
        // A socket is no source for sendfile, but it is for the kernel to say so.
        let _ = index;
        return Outcome::PassThrough;
    }
    if count == 0 {
        return Outcome::PassThrough;
    }
    let (index, socket, generation) = match find(out) {
        Found::Attached(index, socket, generation) => (index, socket, generation),
        Found::Plain(index, socket) => {
            let generation = socket.generation.load(Acquire);
            threads::add(&socket.native_send, 1);
            if socket.mode() == Mode::Plain {
                let result = genuine(out);
                let errno = shunt_os::errno();
                send::note_room(socket, count, result);
                threads::take(&socket.native_send);
                note(index, socket, Way::Out, result);
                shunt_os::set_errno(errno);
                return Outcome::Genuine(result);
            }
            threads::take(&socket.native_send);
            (index, socket, generation)
        }
        _ => {
            elsewhere::note();
            return Outcome::PassThrough;
        }
    };
    let mut delivery = Delivery::new(index, socket, generation, out);
    // SAFETY: the caller's word.
    let outcome = unsafe { deliver(&mut delivery, input, offset, count, &mut genuine) };
    let errno = shunt_os::errno();
    delivery.end();
    shunt_os::set_errno(errno);
    outcome
}

/// # Safety
/// `offset` is null or the program's own.
unsafe fn deliver<O: Offset>(
    delivery: &mut Delivery,
    input: c_int,
    offset: *mut O,
    count: usize,
    genuine: &mut dyn FnMut(c_int) -> isize,
) -> Outcome {
    // SAFETY: the program's own pointer.
    let start = (!offset.is_null()).then(|| unsafe { offset.read_unaligned() }.get());
    // What an offset, or a file's, cannot name is for the kernel to judge.
    let end = start.unwrap_or(0).checked_add_unsigned(count as u64);
    let within =
        start.is_none_or(|start| start >= 0) && end.is_some_and(|end| end <= O::MAX.min(FAR));
    if !shunt_os::handles::is_regular_file(input) || !within {
        return send::on_tcp(delivery, count, genuine);
    }
    let mut total = 0usize;
    let failed = loop {
        let at = start.map(|start| start + total as i64);
        match send::send_from(delivery, input, at, count - total) {
            Some(Ok(0)) => break None,
            Some(Ok(got)) => {
                total += got;
                if total == count {
                    break None;
                }
            }
            Some(Err(number)) => break Some(Outcome::Failed(number)),
            None if !delivery.is_on_ring() && total == 0 => {
                return send::on_tcp(delivery, count, genuine);
            }
            None if !delivery.is_on_ring() => {
                // The kernel sends the rest.
                let (mut at, left) = (at, count - total);
                let at = at.as_mut().map_or(null_mut(), |at| at as *mut i64);
                // SAFETY: a place of our own, or none.
                let mut rest = |out| unsafe { real::sendfile64(out, input, at, left) };
                let errno = shunt_os::errno();
                let sent = match send::on_tcp(delivery, left, &mut rest) {
                    Outcome::Handled(sent) | Outcome::Genuine(sent) => sent,
                    Outcome::Failed(_) | Outcome::PassThrough | Outcome::Anew => 0,
                };
                shunt_os::set_errno(errno);
                total += sent.max(0) as usize;
                break None;
            }
            None if delivery.may_not_wait() => {
                if delivery.is_full() {
                    break Some(Outcome::Failed(libc::EAGAIN));
                }
            }
            None => {
                let ended = delivery.wait_for_room(total > 0);
                if ended.is_some() {
                    break ended;
                }
            }
        }
    };
    if let (Some(outcome), 0) = (failed, total) {
        return outcome;
    }
    if let Some(start) = start {
        // SAFETY: the program's own pointer.
        unsafe { offset.write_unaligned(O::of(start + total as i64)) };
    }
    Outcome::Handled(total as isize)
}
