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
    /// The link's bells come into the kernel's set, where they are reported by `data`. [`Link::provide_bell`] comes before.
    pub fn new(link: &'static Link, set_fd: i32, data: u64) -> Joined {
        let bell = link.assign_bell(|bell, fd| attach::show_bell(link, bell, fd));
        let mut joined = Joined { link, bell };
        joined.change_bell(0, set_fd, libc::EPOLL_CTL_ADD, data);
        joined.add_own(set_fd, data);
        joined
    }

    /// A set that was alone with the link has a bell of its own once others are there, if one can be had.
    pub fn lacks_bell(&self) -> bool {
        self.bell == 0 && self.link.is_shared()
    }

    /// As the set that lacks a bell has it now, and whether that is another. [`Link::provide_bell`] comes before.
    pub fn renew(&mut self, set_fd: i32, data: u64) -> bool {
        let link = self.link;
        self.bell = link.assign_another_bell(|bell, fd| attach::show_bell(link, bell, fd));
        self.add_own(set_fd, data);
        self.bell > 0
    }

    fn add_own(&mut self, set_fd: i32, data: u64) {
        if self.bell > 0 && !self.change_bell(self.bell, set_fd, libc::EPOLL_CTL_ADD, data) {
            self.link.return_bell(self.bell);
            self.bell = 0;
        }
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

    /// The bells leave the kernel's set.
    pub fn take_out(&self, set_fd: i32) {
        self.bells().for_each(|bell| _ = self.change_bell(bell, set_fd, libc::EPOLL_CTL_DEL, 0));
    }

    /// False if that cannot be.
    fn change_bell(&self, bell: u32, set_fd: i32, operation: i32, data: u64) -> bool {
        let mut is_done = false;
        self.link.with_bells(|bells| {
            if let Some(fd) = bells.own_of(bell) {
                is_done = handles::epoll_ctl(set_fd, operation, fd, BELL_EVENTS, data).is_ok();
            }
        });
        is_done
    }
}

/// How a set has joined a link, if it has.
pub fn find(all: &[Joined], link: &Link) -> Option<Joined> {
    all.iter().find(|joined| joined.is(link)).copied()
}
