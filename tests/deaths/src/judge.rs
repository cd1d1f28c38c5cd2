//! What kernel TCP promises to who survives.

use crate::frame::{BYTES, CHILD, SURVIVOR, VICTIM};
use crate::page::{Outcome, Page, Stream};
use crate::script::{Script, Survivor};

/// Taken down just before the victim is killed: what the survivor had sent by then, on each stream.
pub type Before = Vec<u64>;

/// What is wrong, if anything is.
pub fn judge(script: &Script, page: &Page, before: &Before) -> Result<(), String> {
    if page.victim_read_wrong.get() != 0 {
        return Err("the victim's end read what was not sent".to_owned());
    }
    if page.child_began.get() != page.child_finished.get() {
        return Err("the victim's child could not go on".to_owned());
    }
    for (number, stream) in page.streams.iter().take(script.streams).enumerate() {
        let sent = before.get(number).copied().unwrap_or(0);
        judge_stream(script, stream, sent)
            .map_err(|what| format!("stream {number}: {what}; {}", describe(stream)))?;
    }
    Ok(())
}

fn judge_stream(script: &Script, stream: &Stream, sent_before: u64) -> Result<(), String> {
    if stream.is_wrong.get() != 0 {
        return Err("wrong bytes".to_owned());
    }
    for writer in [VICTIM, CHILD] {
        let got = stream.got[writer].get() * BYTES as u64;
        let tail = if writer == VICTIM { stream.tail.get() } else { 0 };
        if got + tail < stream.done[writer].get() {
            return Err(format!("bytes of a call that returned are missing (writer {writer})"));
        }
        if got > stream.begun[writer].get() {
            return Err(format!("more bytes than were written (writer {writer})"));
        }
    }
    let alone_from = stream.alone_from.get();
    if alone_from != 0 && stream.child_before_victim.get() >= alone_from {
        return Err("what the victim had sent came behind what its child sent then".to_owned());
    }
    let has_begun = stream.begun[VICTIM].get() > 0;
    let error = stream.write_error.get() as i32;
    // An error is told once: the writer may have been told.
    let reset_was_told = script.survivor == Survivor::Streams && error == libc::ECONNRESET;
    let resets = stream.shut.get() == 0 && stream.moving.get() == 0;
    let unread_for_sure = sent_before > stream.taken_at_most.get();
    let all_is_read = stream.begun_before.get() == stream.taken.get();
    match stream.outcome() {
        Outcome::None if has_begun => return Err("not read to its end".to_owned()),
        Outcome::Error(libc::ECONNRESET | libc::EPIPE) if all_is_read && has_begun => {
            return Err("reset, though all was read".to_owned());
        }
        Outcome::End if unread_for_sure && resets && !reset_was_told => {
            return Err("ended in order, though bytes were left unread".to_owned());
        }
        Outcome::Error(libc::ECONNRESET | libc::EPIPE) | Outcome::End | Outcome::None => {}
        Outcome::Error(_) => return Err("an error that TCP does not give".to_owned()),
    }
    if stream.outcome() != Outcome::None && !matches!(error, libc::EPIPE | libc::ECONNRESET) {
        return Err("writing failed with another error than TCP's".to_owned());
    }
    Ok(())
}

/// What both ends have noted of a stream.
pub fn describe(stream: &Stream) -> String {
    format!(
        "{:?}, writing: {}; got {:?} frames and {} bytes, sent {:?}, of which for sure {:?}; the survivor sent \
         {}, {} of them by calls that returned, of which {} were taken, {} at most",
        stream.outcome(),
        stream.write_error.get(),
        [VICTIM, CHILD].map(|writer| stream.got[writer].get()),
        stream.tail.get(),
        [VICTIM, CHILD].map(|writer| stream.begun[writer].get()),
        [VICTIM, CHILD].map(|writer| stream.done[writer].get()),
        stream.begun_before.get(),
        stream.done[SURVIVOR].get(),
        stream.taken.get(),
        stream.taken_at_most.get(),
    )
}
