//! Sockets come into being and are set up. All of it is the kernel's; we take notes.

use core::ffi::{c_int, c_long, c_void};
use core::sync::atomic::Ordering::*;

use libc::{sa_family_t, sockaddr, socklen_t};
use shunt_link::elsewhere;
use shunt_os::{handles, memory, tcp};
use shunt_readiness::interest::bits;
use shunt_stats::Reason;

use crate::calls::counts;
use crate::calls::descriptor::{classify, forget, opened, touch_or_leave};
use crate::pool::{self, Mode, Socket};
use crate::send::held;
use crate::table::{self, Entry};
use crate::wait::{self, epoll, state};
use crate::{attach, inherit, process, receive, search, send, Outcome};

/// After a successful `socket`.
pub fn created(fd: c_int, domain: c_int, kind: c_int, protocol: c_int) {
    let stream = kind & 0xf == libc::SOCK_STREAM;
    let inet = domain == libc::AF_INET || domain == libc::AF_INET6;
    let tcp = protocol == 0 || protocol == libc::IPPROTO_TCP;
    if stream && inet && tcp {
        opened(fd, kind & libc::SOCK_NONBLOCK != 0, false);
    } else {
        forget(fd);
        table::set(fd, Entry::Foreign);
    }
}

/// `accept` and `accept4`.
pub fn accepting(listener: c_int, genuine: impl FnOnce() -> isize) -> Outcome {
    let Entry::Socket(index) = table::get(listener) else { return Outcome::PassThrough };
    let socket = pool::get(index);
    match wait::blocking::may_not_wait(socket, 0) {
        true => Outcome::PassThrough,
        false => wait::kernel::wait(socket, listener, &wait::kernel::ACCEPTS, genuine),
    }
}

/// After a successful `accept` or `accept4` on `listener`.
pub fn accepted(listener: c_int, fd: c_int, flags: c_int) {
    match classify(listener) {
        Entry::Socket(listener) => {
            let stream = opened(fd, flags & libc::SOCK_NONBLOCK != 0, false);
            if let Entry::Socket(index) = stream {
                let listener = pool::get(listener);
                inherit::take_options(pool::get(index), listener);
                if listener.has_odd_option.load(Relaxed) {
                    attach::leave(index, Reason::UnsupportedOption);
                }
            }
        }
        _ => {
            forget(fd);
            table::set(fd, Entry::Foreign);
        }
    }
}

/// Before `connect`.
///
/// # Safety
/// `address` is what the program passes.
pub unsafe fn connecting(fd: c_int, address: *const sockaddr, length: socklen_t) {
    elsewhere::note();
    let Entry::Socket(index) = classify(fd) else { return };
    let socket = pool::get(index);
    socket.connector.store(true, Relaxed);
    let family = size_of::<sa_family_t>();
    let is_there = length as usize >= family && memory::is_there(address, family);
    // SAFETY: it is there.
    if is_there && i32::from(unsafe { (*address).sa_family }) == libc::AF_UNSPEC {
        disconnecting(index, socket);
    }
}

/// Before the end of the connection alone (connect(2), "dissolve the association"): the socket may get
/// another, which stays on TCP.
fn disconnecting(index: u32, socket: &'static Socket) {
    let is_ours = matches!(socket.mode(), Mode::Attached | Mode::Inherited);
    if is_ours || tcp::is_connected(socket.fd.load(Relaxed)) {
        touch_or_leave(index, Reason::Disconnected);
        attach::abandon(socket);
        socket.shut_reading.store(false, SeqCst);
        socket.shut_writing.store(false, SeqCst);
    }
}

/// `shutdown`.
pub fn shutdown(fd: c_int, how: c_int) -> Outcome {
    elsewhere::note();
    let Entry::Socket(index) = table::get(fd) else { return Outcome::PassThrough };
    if !(libc::SHUT_RD..=libc::SHUT_RDWR).contains(&how) {
        return Outcome::PassThrough;
    }
    let socket = pool::get(index);
    if how == libc::SHUT_RD || how == libc::SHUT_RDWR {
        socket.shut_reading.store(true, SeqCst);
    }
    if both_have_ended(socket, fd) {
        // It fails, and wakes all the same (Linux, inet_shutdown).
        epoll::stir_anew(socket, u32::MAX);
        return Outcome::Failed(libc::ENOTCONN);
    }
    if how == libc::SHUT_WR || how == libc::SHUT_RDWR {
        socket.shut_writing.store(true, SeqCst);
    }
    let both = socket.shut_reading.load(SeqCst) && socket.shut_writing.load(SeqCst);
    if both && socket.mode() == Mode::Plain {
        // From here on the kernel answers every byte of the peer's with a reset: no ring any more.
        socket.pinned.store(true, SeqCst);
        search::stop_waiting(socket);
        // Who puts it on one at this moment has looked at the mark before, and is done after.
        drop(socket.recv.lock());
    }
    match socket.mode() {
        Mode::Attached => {
            let outcome = send::shutdown(index, socket, how);
            epoll::stir_anew(socket, u32::MAX);
            outcome
        }
        Mode::Inherited => {
            inherit::touch(index);
            epoll::stir_on_tcp(socket, u32::MAX);
            Outcome::PassThrough
        }
        Mode::Left => {
            epoll::stir_on_tcp(socket, u32::MAX);
            Outcome::PassThrough
        }
        _ => Outcome::PassThrough,
    }
}

/// `getpeername`: as [`shutdown`], when the kernel has not heard yet.
pub fn peer_asked(fd: c_int) -> Outcome {
    let Entry::Socket(index) = table::get(fd) else { return Outcome::PassThrough };
    if both_have_ended(pool::get(index), fd) {
        return Outcome::Failed(libc::ENOTCONN);
    }
    Outcome::PassThrough
}

/// Whether both ends have sent a FIN, if one of them is held back: to TCP that is no connection.
fn both_have_ended(socket: &Socket, fd: c_int) -> bool {
    socket.mode() == Mode::Attached && attach::have_ended(socket, &mut socket.recv.lock(), fd)
}

/// An option that was set wakes who waits for `wakes`, where the stream is `ready`: an edge.
fn wake_anew(index: u32, wakes: u32, ready: u32) {
    let socket = pool::get(index);
    inherit::touch(index);
    match socket.mode() {
        Mode::Attached if state::mask(socket, ready).is_some_and(|mask| mask & ready != 0) => {
            epoll::stir_anew(socket, wakes);
        }
        Mode::Left if handles::poll_now(socket.fd.load(Relaxed), ready as i16) != 0 => {
            epoll::stir_on_tcp(socket, wakes);
        }
        _ => {}
    }
}

/// A low-water mark that is set wakes where something is readable with it, and where it has ended (Linux,
/// tcp_set_rcvlowat). Where the stream leaves for it, the kernel makes the first of these edges.
fn wake_for_low_water(index: u32, of_one_byte: bool) {
    let ready = bits::RDHUP | if of_one_byte { bits::IN } else { 0 };
    wake_anew(index, bits::IN | bits::RDNORM | bits::PRI, ready);
}

/// The size of a buffer was set. That of the send buffer wakes, whatever it was before, where there is room
/// (Linux, sk_setsockopt).
fn size_set(index: u32, name: c_int) {
    attach::sizes_changed(pool::get(index));
    if matches!(name, libc::SO_SNDBUF | libc::SO_SNDBUFFORCE) {
        wake_anew(index, bits::OUT | bits::WRNORM, bits::OUT);
    }
}

/// Before `getsockopt`: one option is another way to receive, and one takes the error of an end, which may be
/// another's, or not be made yet.
pub fn option_asked(fd: c_int, level: c_int, name: c_int) {
    const TCP_ZEROCOPY_RECEIVE: c_int = 35;
    match (level, name) {
        (libc::IPPROTO_TCP, TCP_ZEROCOPY_RECEIVE) => {
            if let Entry::Socket(index) = classify(fd) {
                touch_or_leave(index, Reason::ZeroCopy);
            }
        }
        (libc::SOL_SOCKET, libc::SO_ERROR) => {
            let Entry::Socket(index) = classify(fd) else { return };
            let socket = pool::get(index);
            match socket.mode() {
                Mode::Inherited if tcp::peer_has_ended(fd) => inherit::touch(index),
                Mode::Attached if receive::is_dying(socket) => {
                    receive::await_death(socket, socket.generation.load(Acquire));
                }
                _ => {}
            }
        }
        _ => {}
    }
}

/// After a successful `getsockopt`: what the kernel does not know is told as well.
///
/// # Safety
/// The kernel has put as many bytes to `value` as `length` says.
pub unsafe fn option_told(
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *mut c_void,
    length: *const u32,
) {
    const SO_MEMINFO: c_int = 55;
    let add: fn(&Socket, &counts::Answer) = match (level, name) {
        (libc::SOL_SOCKET, libc::SO_ERROR) => counts::add_error,
        (libc::SOL_SOCKET, SO_MEMINFO) => counts::add_to_memory,
        (libc::IPPROTO_TCP, libc::TCP_INFO) => counts::add_to_info,
        _ => return,
    };
    let Entry::Socket(index) = table::get(fd) else { return };
    // SAFETY: by the caller's word.
    let answer = unsafe { counts::Answer::new(value, length.read_unaligned() as usize) };
    add(pool::get(index), &answer);
}

/// After a successful `setsockopt`: options that the ring cannot serve send the stream home.
///
/// # Safety
/// `value` is readable for `length`, as the kernel has just found.
pub unsafe fn option_set(fd: c_int, level: c_int, name: c_int, value: *const c_void, length: u32) {
    let Entry::Socket(index) = table::get(fd) else { return };
    const SO_ZEROCOPY: c_int = 60;
    // With times of 64 bits, whatever the program's are.
    const SO_TIMESTAMP_NEW: c_int = 63;
    const SO_TIMESTAMPNS_NEW: c_int = 64;
    const SO_TIMESTAMPING_NEW: c_int = 65;
    const SO_RCVTIMEO_NEW: c_int = 66;
    const SO_SNDTIMEO_NEW: c_int = 67;
    const SO_ATTACH: [c_int; 4] = [26, 50, 51, 52];
    const TCP_ULP: c_int = 31;
    const TCP_INQ: c_int = 36;
    const TCP_REPAIR: c_int = 19;
    const TCP_MD5: [c_int; 2] = [14, 32];
    let on = length >= 4 && {
        // SAFETY: the kernel accepted the option and its length.
        unsafe { value.cast::<c_int>().read_unaligned() != 0 }
    };
    // With a time-out before now nothing is waited for, and it reads back as none.
    let negative = |bytes: usize| {
        // SAFETY: as above; the seconds come first, and have their sign in their last byte.
        length as usize >= bytes && unsafe { value.cast::<i8>().add(bytes - 1).read() } < 0
    };
    const SIZES: [c_int; 4] =
        [libc::SO_SNDBUF, libc::SO_RCVBUF, libc::SO_SNDBUFFORCE, libc::SO_RCVBUFFORCE];
    if level == libc::SOL_SOCKET && SIZES.contains(&name) {
        return size_set(index, name);
    }
    let reason = match (level, name) {
        (libc::SOL_SOCKET, SO_ZEROCOPY) if on => Reason::ZeroCopy,
        (
            libc::SOL_SOCKET,
            libc::SO_TIMESTAMP | libc::SO_TIMESTAMPNS | SO_TIMESTAMP_NEW | SO_TIMESTAMPNS_NEW,
        ) if on => return pool::get(index).messages_tell_times.store(true, Relaxed),
        (libc::IPPROTO_TCP, TCP_INQ) => {
            return pool::get(index).messages_tell_unread.store(on, Relaxed);
        }
        (libc::IPPROTO_TCP, libc::TCP_CORK) if on => {
            return pool::get(index).is_corked.store(true, Relaxed);
        }
        (libc::IPPROTO_TCP, libc::TCP_CORK) => {
            pool::get(index).is_corked.store(false, Relaxed);
            return held::show(pool::get(index));
        }
        (libc::IPPROTO_TCP, libc::TCP_NODELAY) if on => return held::show(pool::get(index)),
        (libc::SOL_SOCKET, libc::SO_TIMESTAMPING | SO_TIMESTAMPING_NEW) if on => {
            Reason::UnsupportedOption
        }
        (libc::SOL_SOCKET, SO_RCVTIMEO_NEW | SO_SNDTIMEO_NEW) if negative(8) => {
            Reason::UnsupportedOption
        }
        (libc::SOL_SOCKET, libc::SO_RCVTIMEO | libc::SO_SNDTIMEO)
            if negative(size_of::<c_long>()) =>
        {
            Reason::UnsupportedOption
        }
        (libc::SOL_SOCKET, name) if SO_ATTACH.contains(&name) => Reason::UnsupportedOption,
        (libc::SOL_SOCKET, libc::SO_PEEK_OFF | libc::SO_RCVLOWAT) => Reason::UnsupportedOption,
        (libc::IPPROTO_TCP, TCP_ULP | TCP_REPAIR) => Reason::UnsupportedOption,
        (libc::IPPROTO_TCP, name) if TCP_MD5.contains(&name) => Reason::UnsupportedOption,
        _ => return,
    };
    if reason == Reason::UnsupportedOption && name == libc::SO_RCVLOWAT && level == libc::SOL_SOCKET
    {
        // One byte is the default and changes nothing.
        let is_default = handles::option_int(fd, level, name).is_ok_and(|value| value <= 1);
        wake_for_low_water(index, is_default);
        if is_default {
            return;
        }
    }
    pool::get(index).has_odd_option.store(true, Relaxed);
    touch_or_leave(index, reason);
    process::count(reason);
}
