//! sendfile(2): a file is read straight into the ring.

use core::sync::atomic::Ordering::*;

use shunt_os::{raw, sys};
use shunt_stream::WriterOn;

use super::{count_sent, wait, Request};
use crate::attach::{break_stream, observe_writer, resend, try_go_up};
use crate::pool::{Mode, Socket};
use crate::wait::blocking::{self, Watch};

/// Reads up to `count` bytes of `input` straight into the ring, for sendfile. `None`: the stream
/// is not on the ring, or the ring is full.
pub fn send_from(
    socket: &'static Socket,
    input: i32,
    offset: Option<i64>,
    count: usize,
) -> Option<Result<usize, i32>> {
    let mut side = socket.send.lock();
    if socket.mode() != Mode::Attached {
        return None;
    }
    if side.fin_pending {
        shunt_os::signals::raise_sigpipe();
        return Some(Err(libc::EPIPE));
    }
    if !matches!(observe_writer(socket, &mut side), Ok(WriterOn::Ring)) {
        let up = matches!(side.writer.on(), WriterOn::Tcp) && try_go_up(socket, &mut side);
        if !up {
            return None;
        }
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
    Some(Ok(total))
}

/// Waits for room in the ring, or in TCP for what the ring had; for sendfile and splice.
pub fn wait_for_room(
    index: u32,
    socket: &'static Socket,
    fd: i32,
    patience: &mut blocking::Patience,
    has_some: bool,
) -> Option<i32> {
    let watch = Watch::new(socket, true);
    {
        let mut side = socket.send.lock();
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
    }
    wait(
        index,
        socket,
        &watch,
        Request {
            fd,
            generation: socket.generation.load(Relaxed),
            vector: &[],
            flags: 0,
            already: 0,
        },
        patience,
        has_some,
    )
}
