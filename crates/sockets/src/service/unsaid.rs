//! Messages to peers, and those that did not fit into a link's channel.

use shunt_link::Link;
use shunt_os::{clock, handles};
use shunt_pairing::message::{Kind, Message};

use super::{Request, Work};
use crate::pool;

/// Between attempts: at first, and while nothing fits.
const PAUSE_NS: u64 = 1_000_000;
const PAUSE_NS_MAX: u64 = 64_000_000;

/// What did not fit, until when it waits, and for how long it did.
#[derive(Default)]
pub(super) struct Unsaid {
    requests: Vec<(&'static Link, Request)>,
    until: u64,
    pause_ns: u64,
}

impl Unsaid {
    /// How long the thread may sleep before the next attempt, if there is anything to say.
    pub(super) fn waits_ns(&self) -> Option<u64> {
        let waits = || self.until.saturating_sub(clock::now_ns());
        (!self.requests.is_empty()).then(waits)
    }

    fn pause(&mut self, pause_ns: u64) {
        self.pause_ns = pause_ns;
        self.until = clock::now_ns() + pause_ns;
    }

    fn push(&mut self, link: &'static Link, request: Request) {
        self.requests.push((link, request));
    }

    fn waits_for(&self, link: &Link) -> bool {
        self.requests.iter().any(|(full, _)| core::ptr::eq(*full, link))
    }
}

impl Work {
    /// Sends a control message; later if the channel is full.
    pub(super) fn say(&mut self, link: &'static Link, message: Message) {
        if !link.is_alive() {
            // Its channel is closed, and the number may be another's.
            return;
        }
        if message.kind == Kind::FinHeld && !holds_fin(link, message.slot) {
            // It was put off for so long that its stream is through, and its slot may be another's.
            return;
        }
        let sent = handles::send_message(link.control, &message.encode(), &[]);
        if sent.is_err_and(|error| error.0 == libc::EAGAIN) {
            self.put_off(link, Request::Tell { link, message });
        }
    }

    /// What did not fit into a link's channel, which is full if the peer's service thread does not run, or has as much to
    /// say itself.
    pub(super) fn put_off(&mut self, link: &'static Link, request: Request) {
        if self.unsaid.requests.is_empty() {
            self.unsaid.pause(PAUSE_NS);
        }
        self.unsaid.push(link, request);
    }

    /// Says what did not fit, if it is time: of each link as much as fits now.
    pub(super) fn say_again(&mut self) {
        if self.unsaid.waits_ns() != Some(0) {
            return;
        }
        let requests = core::mem::take(&mut self.unsaid.requests);
        let (before, pause_ns) = (requests.len(), self.unsaid.pause_ns);
        for (link, request) in requests.into_iter().filter(|(link, _)| link.is_alive()) {
            match self.unsaid.waits_for(link) {
                true => self.unsaid.push(link, request),
                false => self.serve(request),
            }
        }
        let moved = self.unsaid.requests.len() < before;
        self.unsaid.pause(if moved { PAUSE_NS } else { (2 * pause_ns).min(PAUSE_NS_MAX) });
    }
}

/// Whether who stands in a slot holds its FIN back.
fn holds_fin(link: &Link, slot: u32) -> bool {
    match link.stream(slot) {
        Some(index) => pool::get(index).send.lock().fin_pending,
        None => link.is_orphan(slot),
    }
}
