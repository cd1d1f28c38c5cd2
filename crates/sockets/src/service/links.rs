//! Live links: what their peers say on the control channel, their slots, and their end.

use core::sync::atomic::{AtomicBool, Ordering::*};

use shunt_link::{Link, Side};
use shunt_os::handles::{self, Received};
use shunt_os::lock::Lock;
use shunt_os::peer::Endpoint;
use shunt_pairing::message::{Kind, Message, BYTES, NO_SLOT};

use super::offers::{close_passed, Offered};
use super::{running, Work};
use crate::attach;
use crate::pool;
use crate::wait::epoll;

/// Links that are gone and that nobody stands on, but whose bells a poll may yet sleep by.
static UNRETIRED: Lock<Vec<&'static Link>> = Lock::new(Vec::new());
static SOME_UNRETIRED: AtomicBool = AtomicBool::new(false);

pub(super) struct Known {
    pub(super) link: &'static Link,
    /// Server addresses of the streams it has carried: who else serves them is asked first.
    pub(super) serves: Vec<Endpoint>,
}

/// Live links to processes that serve `server`.
pub fn links_serving(server: &Endpoint) -> Vec<&'static Link> {
    let Some(service) = running() else { return Vec::new() };
    let links = service.links.lock();
    links
        .iter()
        .filter(|known| known.link.is_alive() && known.serves.contains(server))
        .map(|known| known.link)
        .collect()
}

/// One stream is done with its slot. The peer is told if it was before, and has the slot to free: mostly nothing
/// need be said.
pub fn released(link: &'static Link, slot: u32) {
    if !link.is_alive() {
        return retire_if_empty(link);
    }
    if free_if_last(link, slot, link.side) || !link.memory.leave_second(slot, link.side) {
        return;
    }
    match link.side {
        Side::Master => _ = free_if_last(link, slot, Side::Guest),
        Side::Guest => attach::tell(link, Kind::Released, slot),
    }
}

/// The peer is gone: once no stream stands on the link, its descriptors and memory go.
pub fn retire_if_empty(link: &'static Link) {
    if link.is_alive() || !link.is_empty() {
        return;
    }
    epoll::forget_link(link);
    // Who is counted later finds no stream on it.
    if link.is_polled() {
        let mut unretired = UNRETIRED.lock();
        if !unretired.iter().any(|known| core::ptr::eq(*known, link)) {
            unretired.push(link);
        }
        return SOME_UNRETIRED.store(true, Relaxed);
    }
    link.retire();
}

/// Now and then: those that could not be retired when their last stream left.
pub(super) fn retire_others() {
    if !SOME_UNRETIRED.load(Relaxed) {
        return;
    }
    let mut unretired = UNRETIRED.lock();
    unretired.retain(|link| {
        let stays = link.is_polled();
        if !stays {
            link.retire();
        }
        stays
    });
    SOME_UNRETIRED.store(!unretired.is_empty(), Relaxed);
}

/// In a forked child: the links are the parent's.
///
/// # Safety
/// The process has one thread.
pub(super) unsafe fn after_fork() {
    // SAFETY: one thread, by the caller's word.
    unsafe { UNRETIRED.force_open() };
    for link in UNRETIRED.lock().drain(..) {
        // SAFETY: as above.
        unsafe { link.open_after_fork() };
        link.retire();
    }
    SOME_UNRETIRED.store(false, Relaxed);
}

/// `side` is done with a slot, whose master this process may be. True if the slot is free by that.
pub(super) fn free_if_last(link: &'static Link, slot: u32, side: Side) -> bool {
    let last = link.side == Side::Master && link.slots.release(slot, side);
    if last {
        link.slots.put_back(slot, |warm| link.memory.reset_slot(slot, warm));
    }
    last
}

/// Gives a slot back to which no stream of this process came, for both sides.
pub(super) fn return_slot(link: &'static Link, slot: u32) {
    if slot != NO_SLOT {
        for side in [Side::Master, Side::Guest] {
            free_if_last(link, slot, side);
        }
    }
}

impl Work {
    pub(super) fn link_of(&self, control: i32) -> Option<&'static Link> {
        let links = self.service.links.lock();
        links.iter().map(|k| k.link).find(|l| l.control == control && l.is_alive())
    }

    pub(super) fn listen(&mut self, control: i32) {
        let Some(link) = self.link_of(control) else { return };
        // A flood from a hostile peer must not keep the others waiting.
        for _ in 0..64 {
            let mut buffer = [0u8; BYTES + 8];
            let mut received = match handles::receive_message(control, &mut buffer) {
                Err(error) if error.0 == libc::EAGAIN => return,
                Err(error) if error.0 == libc::EINTR => continue,
                Err(_) => return self.lose(link),
                Ok(received) if received.bytes == 0 => return self.lose(link),
                Ok(received) => received,
            };
            let message = Message::decode(&buffer[..received.bytes]);
            let known = match message {
                Some(message) => self.hear(link, &message, &mut received),
                None => false,
            };
            close_passed(&received);
            if !known {
                return self.lose(link);
            }
        }
    }

    /// Before children are answered: what became of streams whose peers are gone.
    pub(super) fn hear_the_dead(&mut self) {
        let gone = |link: &&Link| handles::poll_now(link.control, 0) & libc::POLLHUP != 0;
        let links = self.service.links.lock();
        let controls: Vec<i32> =
            links.iter().map(|k| k.link).filter(gone).map(|link| link.control).collect();
        drop(links);
        controls.into_iter().for_each(|control| self.listen(control));
    }

    /// One message of a live link; false if it is nonsense.
    pub(super) fn hear(
        &mut self,
        link: &'static Link,
        message: &Message,
        received: &mut Received,
    ) -> bool {
        match message.kind {
            Kind::Stopped => match link.stream(message.slot) {
                Some(index) => attach::flush(index, pool::get(index)),
                None => self.finish_orphans(),
            },
            // A reader that has closed meanwhile, when nothing was left to be taken, said nothing.
            Kind::Yield => {
                let head = message.id.checked_sub(1);
                let stops = |index| attach::stop_for_writer(pool::get(index), head);
                if !link.stream(message.slot).is_some_and(stops) {
                    attach::tell(link, Kind::Stopped, message.slot);
                }
            }
            Kind::FinHeld => {
                let hears = |index| attach::fin_is_held(pool::get(index));
                if !link.stream(message.slot).is_some_and(hears) {
                    attach::fin_is_held_for_nobody(link, message.slot);
                }
            }
            Kind::Drained => match link.stream(message.slot) {
                Some(index) => attach::send_held_fin(index, pool::get(index)),
                None => self.let_go_of_orphan(link, message.slot),
            },
            Kind::Released => _ = free_if_last(link, message.slot, link.side.other()),
            Kind::Bell => {
                // Without one it is rung by the first.
                if let Some(&bell) = received.passed[..received.passed_count].first() {
                    let Ok(copy) = handles::duplicate(bell) else { return true };
                    if !handles::may_be_eventfd(copy) || !link.accept_bell(message.slot, copy) {
                        handles::close(copy);
                        return false;
                    }
                }
            }
            Kind::Offer => self.consider(link, message, received),
            Kind::Accept => return self.accepted(link, message, received),
            Kind::Decline => self.declined(link, message),
            Kind::Refuse => return false,
            Kind::Greet | Kind::Hello | Kind::Welcome => return false,
        }
        true
    }

    /// The peer is gone: its streams are finished by this side alone.
    pub(super) fn lose(&mut self, link: &'static Link) {
        if !link.bury() {
            return;
        }
        link.close_control();
        let streams: Vec<u32> = link.streams().collect();
        for index in streams {
            attach::peer_died(index, pool::get(index));
        }
        let lost: Vec<Offered>;
        (lost, self.offered) = core::mem::take(&mut self.offered)
            .into_iter()
            .partition(|o| core::ptr::eq(o.link, link));
        self.orphans_of_dead(link);
        self.drop_unwanted();
        link.wake_own();
        self.service.links.lock().retain(|known| !core::ptr::eq(known.link, link));
        retire_if_empty(link);
        for offer in lost {
            self.try_elsewhere(offer.index, offer.generation, offer.tuple, 0);
        }
    }
}
