//! A link whose streams somebody waits for in a set of the kernel's: the program's, or the box of a poll.

use shunt_link::Link;
use shunt_os::handles;
use shunt_readiness::interest::bits;

use crate::attach;

/// What a bell's entry asks for.
pub const BELL_EVENTS: u32 = bits::IN | bits::ET;

/// A link of a set, and by which of its bells the set sleeps beside the first. 0: by that alone.
#[derive(Clone, Copy)]
pub struct Joined {
    pub link: &'static Link,
    pub bell: u32,
}

impl Joined {
    pub fn new(link: &'static Link) -> Joined {
        Joined { link, bell: link.assign_bell(|bell, fd| attach::show_bell(link, bell, fd)) }
    }

    /// A set that was alone with the link has a bell of its own once others are there, if one can be had.
    pub fn lacks_bell(&self) -> bool {
        self.bell == 0 && self.link.is_shared()
    }

    /// As the set that lacks a bell has it now, and whether that is another. [`Link::provide_bell`] comes before.
    pub fn renew(&mut self, set_fd: i32, data: u64) -> bool {
        let link = self.link;
        self.bell = link.assign_another_bell(|bell, fd| attach::show_bell(link, bell, fd));
        if self.bell > 0 {
            self.change_bell(self.bell, set_fd, libc::EPOLL_CTL_ADD, data);
        }
        self.bell > 0
    }

    pub fn is(&self, link: &Link) -> bool {
        core::ptr::eq(self.link, link)
    }

    /// By which the set's sleepers are announced.
    pub fn bells(&self) -> impl Iterator<Item = u32> {
        core::iter::once(0).chain((self.bell > 0).then_some(self.bell))
    }

    /// Tells the peer of the set's sleepers. If there are as many as before, others may sleep, and whoever woke
    /// has perhaps taken the bell's event.
    pub fn announce(&self, before: u32, now: u32) {
        let map = self.link.own_ready();
        for bell in self.bells() {
            (before..now).for_each(|_| map.announce_sleep(bell));
            (now..before).for_each(|_| map.retract_sleep(bell));
            if before == now {
                map.clear_rung(bell);
            }
        }
    }

    /// The bells come into the kernel's set, or leave it. They are reported by `data`.
    pub fn change(&self, set_fd: i32, operation: i32, data: u64) {
        self.bells().for_each(|bell| self.change_bell(bell, set_fd, operation, data));
    }

    fn change_bell(&self, bell: u32, set_fd: i32, operation: i32, data: u64) {
        self.link.with_bells(|bells| {
            if let Some(fd) = bells.own_of(bell) {
                let _ = handles::epoll_ctl(set_fd, operation, fd, BELL_EVENTS, data);
            }
        });
    }
}
