//! What reaches a thread that sleeps in poll: the bells of the links.

use core::sync::atomic::{AtomicBool, Ordering::Relaxed};

use shunt_link::Link;
use shunt_os::handles;
use shunt_os::lock::Lock;

use crate::wait::joined::Joined;

/// An epoll set with link bells; one for each thread that sleeps, kept for the next sleeper.
pub struct BellBox {
    /// -1 if no descriptor was to be had.
    pub fd: i32,
    links: Vec<Joined>,
}

static BOXES: Lock<Vec<BellBox>> = Lock::new(Vec::new());
/// Whether a first box has been made.
static PROVIDED: AtomicBool = AtomicBool::new(false);

/// Makes the first box before anybody sleeps: later the program may allow itself few descriptors, and needs
/// them all.
pub fn provide() {
    if !PROVIDED.load(Relaxed) {
        take().give_back();
    }
}

/// One that nobody sleeps in.
pub fn take() -> BellBox {
    if let Some(bell_box) = BOXES.lock().pop() {
        return bell_box;
    }
    PROVIDED.store(true, Relaxed);
    BellBox { fd: handles::epoll().unwrap_or(-1), links: Vec::new() }
}

impl BellBox {
    /// For the next sleeper; what stays behind is not used any more.
    pub fn give_back(&mut self) {
        let bell_box = core::mem::replace(self, BellBox { fd: -1, links: Vec::new() });
        if bell_box.fd >= 0 {
            BOXES.lock().push(bell_box);
        }
    }

    /// Comes to hold the bells of these, and says by which. No lock is held.
    pub fn join(&mut self, links: &[&'static Link]) -> Vec<Joined> {
        // A stream may stand on a dead one, and be asked for still.
        self.links.retain(|joined| joined.link.is_alive() || !joined.link.is_empty());
        links.iter().map(|link| self.join_one(link)).collect()
    }

    fn join_one(&mut self, link: &'static Link) -> Joined {
        if let Some(known) = self.links.iter_mut().find(|known| known.is(link)) {
            if known.lacks_bell() {
                link.provide_bell();
                known.renew(self.fd, 0);
            }
            return *known;
        }
        link.provide_bell();
        let joined = Joined::new(link, self.fd, 0);
        self.links.push(joined);
        joined
    }

    /// Takes the rings that woke us, so that the next sleep is not ended by them.
    pub fn empty(&self) {
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; 16];
        while matches!(handles::epoll_wait(self.fd, &mut events, 0), Ok(16)) {}
    }
}

/// In a forked child: the boxes are the parent's.
///
/// # Safety
/// The process has one thread.
pub unsafe fn after_fork() {
    // SAFETY: one thread, by the caller's word.
    unsafe { BOXES.force_open() };
    PROVIDED.store(false, Relaxed);
    for bell_box in BOXES.lock().drain(..) {
        handles::close(bell_box.fd);
    }
}
