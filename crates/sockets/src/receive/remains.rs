//! What a writer that is gone has left in its ring, once several processes have the stream: each call
//! takes what is there, whichever process makes it. What comes behind it the kernel has.

use core::sync::atomic::Ordering::*;

use shunt_stream::Words;

use super::peek::PEEK;
use super::sources::{how, parts, rest_natively};
use super::Request;
use crate::pool::Socket;
use crate::send::wanted;
use crate::wait::blocking::Patience;

/// Receives some of it; `None` if nothing is left.
pub fn receive_remains(socket: &Socket, request: Request<'_>) -> Option<isize> {
    if !socket.remains.load(Acquire) || request.flags & (libc::MSG_OOB | libc::MSG_ERRQUEUE) != 0 {
        return None;
    }
    let wanted = wanted(request.vector);
    let got = {
        let mut recv = socket.recv.lock();
        let consumer = recv.consumer.as_mut()?;
        let into = || parts(request.vector, 0);
        // SAFETY: the program's own buffer; a bad one faults as a genuine call would report.
        unsafe { consumer.take_remains(into, how(request.flags)) }.ok().filter(|got| *got > 0)?
    };
    if got == wanted || request.flags & PEEK != 0 {
        return Some(got as isize);
    }
    // What follows is there, or will never be.
    let request = Request { flags: request.flags | libc::MSG_DONTWAIT, ..request };
    let mut patience = Patience::new(libc::SO_RCVTIMEO, None);
    Some((got + rest_natively(socket, &mut patience, request, got)) as isize)
}

/// How much is left of it.
pub fn remaining(socket: &Socket) -> u64 {
    if !socket.remains.load(Acquire) {
        return 0;
    }
    let recv = socket.recv.lock();
    recv.consumer.as_ref().map_or(0, |consumer| {
        let words = consumer.words();
        words.tail().saturating_sub(words.head())
    })
}
