//! A poll that asks one stream alone, and only whether there is something to read, sleeps on the stream's own wake word, as a
//! blocking receive does: a link's bell would wake every thread that polls a stream of the link.

use core::ffi::c_void;

use libc::pollfd;
use shunt_os::critical;
use shunt_os::{clock, park, set_errno};
use shunt_ring::{Direction, FUTEX};

use super::bells::BellBox;
use super::held::Held;
use super::Slept;
use crate::pool::Socket;
use crate::wait::{blocking, Signals};

/// Of these the word tells, or the service thread by it, or nobody ever (tcp_poll in the kernel's net/ipv4/tcp.c).
const TOLD: i16 = libc::POLLIN
    | libc::POLLRDNORM
    | libc::POLLRDBAND
    | libc::POLLPRI
    | libc::POLLRDHUP
    | libc::POLLERR
    | libc::POLLHUP
    | libc::POLLNVAL;

/// The one stream that a poll asks.
pub(super) struct Lone {
    socket: &'static Socket,
    direction: &'static Direction,
}

impl Lone {
    /// Of a list whose streams are held. `None`: it names something else too, asks for more than the word tells, or its
    /// bytes come by TCP for now; or signals are let in for the sleep, which the kernel's poll alone can do.
    pub(super) fn of(list: &[pollfd], held: &Held, signals: Signals) -> Option<Lone> {
        let mut named = list.iter().enumerate().filter(|(_, entry)| entry.fd >= 0);
        let (position, entry) = named.next()?;
        if named.next().is_some() || entry.events & !TOLD != 0 || !signals.mask.is_null() {
            return None;
        }
        let socket = held.stream(position)?;
        let direction = blocking::direction(socket, false)?;
        blocking::on_ring(socket).then_some(Lone { socket, direction })
    }

    /// Whether the stream stands where it stood, and its bytes come by the ring.
    fn is_there(&self) -> bool {
        let direction = blocking::direction(self.socket, false);
        direction.is_some_and(|now| core::ptr::eq(now, self.direction))
            && blocking::on_ring(self.socket)
    }

    /// Sleeps until something stirs, unless it has already.
    pub(super) fn sleep(
        self,
        list: &[pollfd],
        held: &mut Held,
        bell_box: &mut Option<BellBox>,
        left: impl Fn() -> Option<u64>,
        signals: Signals,
    ) -> Slept {
        let word = self.direction.wake.want_data(FUTEX);
        if !self.is_there() {
            return Slept::Well;
        }
        if held.is_stirred(list) {
            return Slept::Not;
        }
        let mut sleeper = Sleeper { held, bell_box };
        let itself = (&raw mut sleeper).cast();
        let wait = |limit| {
            let word_at = &self.direction.wake.data_wanted;
            // SAFETY: `cancelled` takes a sleeper, which outlives the call, as the limit does.
            unsafe { park::wait_cancellable(word_at, word, limit, Sleeper::cancelled, itself) }
        };
        let span = clock::span(left().unwrap_or(blocking::FAR_NS));
        match critical::sleep_unless_handled(signals.handled, span, wait) {
            Some(Err(error)) if error.0 == libc::EINTR => {
                set_errno(libc::EINTR);
                Slept::Failed
            }
            _ => Slept::Well,
        }
    }
}

/// What a thread that sleeps must give back.
struct Sleeper<'a> {
    held: &'a mut Held,
    bell_box: &'a mut Option<BellBox>,
}

impl Sleeper<'_> {
    /// The thread was cancelled in its sleep.
    ///
    /// # Safety
    /// `itself` is a sleeper, and nobody uses it afterwards.
    unsafe extern "C" fn cancelled(itself: *mut c_void) {
        // SAFETY: the caller's word.
        let sleeper = unsafe { &mut *itself.cast::<Sleeper>() };
        critical::forget_limit();
        sleeper.held.let_go();
        if let Some(bell_box) = sleeper.bell_box {
            bell_box.give_back();
        }
    }
}
