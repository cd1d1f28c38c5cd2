//! socket numbers come and go: open, close, dup, fcntl, ioctl.

use core::ffi::{c_int, c_uint, c_void};
use core::sync::atomic::Ordering::*;

use shunt_link::elsewhere;
use shunt_os::{handles, raw, real, threads, Errno};
use shunt_stats::Reason;
use shunt_stream::ReaderOn;

use crate::calls::counts;
use crate::pool::{self, Mode, Socket};
use crate::table::{self, Entry};
use crate::wait::{epoll, poll};
use crate::{attach, inherit, process, quiet, receive, search, service, uring, Outcome};

/// Whether `fd` may be nobody's, and one of ours for a moment: nobody has asked yet what it is, and another thread
/// may be making one.
#[inline(always)]
pub fn may_be_nobodys(fd: i32) -> bool {
    !threads::is_alone() && table::get(fd) == Entry::Unknown
}

/// What `fd` is, asking the kernel if nobody has yet. Only for calls that a socket is likely to
/// get; others treat an unknown descriptor as foreign.
pub fn classify(fd: i32) -> Entry {
    match table::get(fd) {
        Entry::Unknown if process::enabled() => {
            let kind =
                handles::with_numbers(|| handles::option_int(fd, libc::SOL_SOCKET, libc::SO_TYPE));
            if kind == Err(Errno(libc::EBADF)) {
                return Entry::Unknown;
            }
            let tcp = kind == Ok(libc::SOCK_STREAM)
                && handles::option_int(fd, libc::SOL_SOCKET, libc::SO_PROTOCOL)
                    .is_ok_and(|protocol| protocol == libc::IPPROTO_TCP);
            if tcp {
                let entry = opened(fd, handles::is_nonblocking(fd), false);
                match (entry, shunt_os::peer::tuple(fd)) {
                    // It came connected from elsewhere: who called connect, and who else holds
                    // it, is not known here.
                    (Entry::Socket(index), Ok(_)) => {
                        attach::leave(index, Reason::SharedWithOtherProcess);
                    }
                    (Entry::Socket(index), Err(_)) => inherit::note_options(pool::get(index), fd),
                    _ => {}
                }
                entry
            } else {
                table::set(fd, Entry::Foreign);
                Entry::Foreign
            }
        }
        entry => entry,
    }
}

/// A new TCP socket has this number.
pub fn opened(fd: i32, nonblocking: bool, connector: bool) -> Entry {
    forget(fd);
    let entry = match pool::take(fd, nonblocking, connector) {
        Some(index) => Entry::Socket(index),
        None => Entry::Foreign,
    };
    table::set(fd, entry);
    named(fd);
    entry
}

/// A number has come to name a socket. glibc reads and writes those of standard input, output and error by
/// itself, whatever they name (stdio(3)), and a poll that sleeps in the kernel looks its numbers up anew.
fn named(fd: c_int) {
    let Entry::Socket(index) = table::get(fd) else { return };
    if fd <= libc::STDERR_FILENO {
        touch_or_leave(index, Reason::StandardStream);
    }
    if poll::numbers::is_polled(fd) {
        touch_or_leave(index, Reason::PolledNumber);
    }
}

/// A number was given to something else behind our back: drop what we thought it was.
pub fn forget(fd: i32) {
    match table::set(fd, Entry::Unknown) {
        Entry::Socket(index) => {
            // Whatever the number names now, it is not this socket.
            let socket = pool::get(index);
            let _ = socket.fd.compare_exchange(fd, -1, SeqCst, Relaxed);
            release(index, fd);
        }
        Entry::Set(index) => epoll::lost(index, fd),
        Entry::Uring(index) => uring::closed(index),
        Entry::Unknown | Entry::Foreign => {}
    }
}

/// One descriptor of the socket is gone, or is about to be. Returns what must be done to the
/// connection before the kernel closes it.
fn release(index: u32, fd: i32) -> Option<attach::Farewell> {
    let socket = pool::get(index);
    poll::numbers::give_up(fd, index);
    let stays_open = socket.descriptors.load(Acquire) > 1
        || !inherit::is_sole_holder(socket)
        || socket.recv.lock().waiting.others() + socket.send.lock().waiting.others() > 0;
    // The kernel goes on to tell of a registration whose number nobody has any more (epoll(7)), and nobody
    // can change it then.
    let registered = stays_open && epoll::forget_number(socket, fd);
    if socket.descriptors.fetch_sub(1, AcqRel) > 1 {
        let resends = attach::resends(&socket.send.lock());
        let mut aliases = socket.aliases.lock();
        aliases.retain(|alias| *alias != fd);
        if socket.fd.load(Relaxed) == fd {
            if let Some(other) = aliases.first() {
                attach::renumber(index, socket, *other, resends);
            }
        }
        drop(aliases);
        attach::wake_calls(socket);
        if registered {
            // Who sleeps in a call goes on by another number, and not by the one that closes.
            attach::leave(index, Reason::LeftInEpoll);
        }
        return None;
    }
    // Who asked for TCP may have given the descriptor to a process that we do not see.
    let alone = inherit::is_sole_holder(socket) && !socket.pinned.load(Relaxed);
    search::stop_waiting(socket);
    if matches!(socket.mode(), Mode::Plain | Mode::Attached | Mode::Left) {
        // A call that began before goes on, as in the kernel, on a descriptor of ours. The first
        // thread that comes out finds `closing`.
        let recv = socket.recv.lock();
        let send = socket.send.lock();
        if recv.waiting.others() + send.waiting.others() > 0 {
            if let Ok(kept) = handles::duplicate_at_any_rate(fd) {
                attach::renumber(index, socket, kept, attach::resends(&send));
                socket.closing.store(true, SeqCst);
                drop((recv, send));
                // What they do when a handler runs is another matter now.
                attach::wake_calls(socket);
                if registered {
                    attach::leave(index, Reason::LeftInEpoll);
                }
                return None;
            }
        }
    }
    if registered {
        attach::leave(index, Reason::LeftInEpoll);
    }
    Some(farewell(index, socket, alone))
}

/// The last call inside a closed socket is over.
pub fn finish_closing(index: u32) {
    let socket = pool::get(index);
    {
        let recv = socket.recv.lock();
        let send = socket.send.lock();
        if recv.waiting.all() + send.waiting.all() > 0 || !socket.closing.swap(false, SeqCst) {
            return;
        }
    }
    let fd = socket.fd.load(Relaxed);
    let alone = inherit::is_sole_holder(socket) && !socket.pinned.load(Relaxed);
    farewell(index, socket, alone).say(fd);
    handles::close(fd);
}

fn farewell(index: u32, socket: &'static Socket, alone: bool) -> attach::Farewell {
    if !alone && attach::writes_ring(socket) {
        // Nobody of this process is there to send again what the reader leaves in the ring, to which it may come at this
        // moment.
        attach::leave_closing(index);
    }
    let farewell = attach::detach(socket, alone);
    // One that the service thread went to meanwhile.
    search::stop_waiting(socket);
    socket.aliases.lock().clear();
    socket.close_entry();
    socket.generation.fetch_add(1, Relaxed);
    pool::give_back(index);
    farewell
}

/// Before the kernel closes `fd`.
fn before_close(fd: i32) {
    elsewhere::note();
    match table::get(fd) {
        Entry::Socket(index) => {
            table::set(fd, Entry::Unknown);
            if let Some(farewell) = release(index, fd) {
                farewell.say(fd);
            }
            receive::let_enter(pool::get(index));
        }
        Entry::Set(index) => {
            table::set(fd, Entry::Unknown);
            epoll::closed(index, fd);
        }
        Entry::Uring(index) => {
            table::set(fd, Entry::Unknown);
            uring::closed(index);
        }
        Entry::Foreign => {
            table::set(fd, Entry::Unknown);
        }
        Entry::Unknown => {}
    }
}

/// `close`.
pub fn close(fd: c_int) -> Outcome {
    if handles::is_own(fd) && !process::in_vfork_child() {
        return Outcome::Failed(libc::EBADF);
    }
    match table::get(fd) {
        Entry::Unknown => {
            elsewhere::note();
            if process::in_vfork_child() || !handles::may_be_own(fd) {
                return Outcome::PassThrough;
            }
            handles::with_numbers(|| match handles::is_own_here(fd) {
                true => Outcome::Failed(libc::EBADF),
                // SAFETY: no pointers.
                false => Outcome::Genuine(unsafe { real::close(fd) } as isize),
            })
        }
        _ if process::in_vfork_child() => {
            table::close_in_child(fd);
            Outcome::PassThrough
        }
        _ => {
            before_close(fd);
            Outcome::PassThrough
        }
    }
}

/// `close_range` and `closefrom`.
pub fn close_range(first: c_uint, last: c_uint, flags: c_int) -> Outcome {
    const UNSHARE: c_int = 2;
    const CLOEXEC: c_int = 4;
    if flags & !(UNSHARE | CLOEXEC) != 0 || first > last {
        return Outcome::PassThrough;
    }
    if flags & UNSHARE != 0 {
        // SAFETY: no pointers.
        let genuine = || unsafe { real::close_range(first, last, flags) } as isize;
        return Outcome::Genuine(quiet::split(genuine));
    }
    if flags & CLOEXEC != 0 {
        return Outcome::PassThrough;
    }
    if process::in_vfork_child() {
        table::each(first, last, |fd, _| table::close_in_child(fd));
        return Outcome::PassThrough;
    }
    table::each(first, last, |fd, _| before_close(fd));
    // None becomes ours meanwhile.
    handles::with_numbers(|| close_between_ours(first, last, flags))
}

/// The program closes its numbers, and not ours.
fn close_between_ours(first: c_uint, last: c_uint, flags: c_int) -> Outcome {
    // SAFETY: no pointers.
    let close = |from, to| unsafe { real::close_range(from, to, flags) } as isize;
    let mut from = first;
    while let Some(own) = handles::first_own_here(from, last) {
        if own > from && close(from, own - 1) != 0 {
            return Outcome::Genuine(-1);
        }
        from = own + 1;
    }
    if from > first && from > last {
        return Outcome::Handled(0);
    }
    Outcome::Genuine(close(from, last))
}

/// A FILE is made on the descriptor: stdio reads and writes behind our back. True if the ring
/// still holds bytes whose successors are on TCP already: then stdio must read through us.
pub fn fdopen(fd: c_int) -> bool {
    let Entry::Socket(index) = classify(fd) else { return false };
    touch_or_leave(index, Reason::Fdopen);
    let socket = pool::get(index);
    let recv = socket.recv.lock();
    socket.mode() == Mode::Attached && recv.reader.on() != ReaderOn::Tcp
        || socket.remains.load(Relaxed)
        || socket.unanswered.load(Relaxed)
}

/// The number is closed behind our back now, and may be something else's afterwards.
pub fn replaced(fd: c_int) {
    match process::in_vfork_child() {
        true => table::close_in_child(fd),
        false if fd >= 0 => before_close(fd),
        false => {}
    }
}

/// Somebody else, a thread of glibc's or the kernel, is about to read or write the descriptor.
pub fn before_aio(fd: c_int) {
    if let Entry::Socket(index) = classify(fd) {
        touch_or_leave(index, Reason::Aio);
    }
}

/// After `pidfd_getfd`: a descriptor of a process, perhaps of this one. A stream of ours has more
/// numbers than we know; one of another process leaves the ring there.
pub fn copied(pidfd: c_int, fd: c_int) {
    forget(fd);
    let Ok(cookie) = handles::cookie(fd) else {
        if let Some(index) = epoll::find(fd) {
            epoll::duplicated(index, fd);
        }
        return;
    };
    match pool::of_cookie(cookie) {
        Some(index) => touch_or_leave(index, Reason::PassedDescriptor),
        None => service::ask_at_door(pidfd, fd),
    }
    table::set(fd, Entry::Foreign);
}

/// Somebody whom we cannot follow is about to use the stream.
pub(super) fn touch_or_leave(index: u32, reason: Reason) {
    let socket = pool::get(index);
    if matches!(reason, Reason::Exec | Reason::PassedDescriptor) {
        // Who has it then does not tell when it is closed.
        socket.kin.note_passed();
    }
    match socket.mode() {
        Mode::Inherited => inherit::touch(index),
        _ => attach::leave(index, reason),
    }
}

/// After `dup` and fcntl(F_DUPFD): `to` names what `from` names.
pub fn duplicated(from: c_int, to: c_int) {
    if to < 0 || process::in_vfork_child() {
        return;
    }
    forget(to);
    match table::get(from) {
        Entry::Socket(index) => {
            let socket = pool::get(index);
            socket.descriptors.fetch_add(1, AcqRel);
            let mut aliases = socket.aliases.lock();
            let first = socket.fd.load(Relaxed);
            if !aliases.contains(&first) {
                aliases.push(first);
            }
            aliases.push(to);
            drop(aliases);
            table::set(to, Entry::Socket(index));
            named(to);
        }
        Entry::Set(index) => epoll::duplicated(index, to),
        Entry::Uring(index) => uring::duplicated(index, to),
        entry => {
            table::set(to, entry);
        }
    }
}

/// `dup2` and `dup3`: the number may have been in use.
pub fn duplicate_over(from: c_int, to: c_int, genuine: impl Fn() -> c_int) -> Outcome {
    if from == to {
        return Outcome::PassThrough;
    }
    if process::in_vfork_child() {
        // The copy is for the program that the child will become.
        if let Entry::Socket(index) = table::get(from) {
            touch_or_leave(index, Reason::Exec);
        }
        if handles::is_open(from) {
            table::close_in_child(to);
        }
        return Outcome::PassThrough;
    }
    let over = || {
        handles::with_numbers(|| match () {
            () if handles::is_own_here(from) => Outcome::Failed(libc::EBADF),
            // Since we looked.
            () if handles::is_own_here(to) && handles::is_open(from) => Outcome::Anew,
            () => Outcome::Genuine(genuine() as isize),
        })
    };
    let strange = table::get(to) == Entry::Unknown
        && table::get(from) == Entry::Unknown
        && !handles::is_own(to);
    // The kernel closes the old one without a word; a bad `from` leaves it alone, and one of ours is bad.
    // Beyond the limit the kernel refuses it.
    let refused = || {
        matches!(table::get(to), Entry::Socket(_))
            && raw::limit(libc::RLIMIT_NOFILE).is_ok_and(|limit| to as u64 >= limit)
    };
    if strange || handles::is_own(from) || !handles::is_open(from) || refused() {
        return over();
    }
    if handles::is_own(to) {
        return Outcome::Genuine(quiet::give(to, || genuine() as isize));
    }
    before_close(to);
    if let (true, Entry::Socket(index)) = (poll::numbers::is_polled(to), table::get(from)) {
        // Before the number is its own: what wakes the sleeper may come at once.
        touch_or_leave(index, Reason::PolledNumber);
    }
    let outcome = over();
    if let Outcome::Genuine(copy @ 0..) = outcome {
        duplicated(from, copy as c_int);
    }
    outcome
}

/// `fcntl`, after the genuine call.
#[inline]
pub fn after_fcntl(fd: c_int, command: c_int, argument: *mut c_void, result: c_int) {
    if result < 0 {
        return;
    }
    match command {
        libc::F_DUPFD | libc::F_DUPFD_CLOEXEC => duplicated(fd, result),
        libc::F_SETFL => flags_set(fd, argument as usize as c_int),
        _ => {}
    }
}

fn flags_set(fd: c_int, flags: c_int) {
    if let Entry::Socket(index) = table::get(fd) {
        set_nonblocking(index, flags & libc::O_NONBLOCK != 0);
        if flags & libc::O_ASYNC != 0 {
            touch_or_leave(index, Reason::UnsupportedOption);
        }
    }
}

fn set_nonblocking(index: u32, value: bool) {
    let socket = pool::get(index);
    let was = socket.nonblocking.swap(value, Relaxed);
    if value != was {
        // The parent's calls wait, or do not, by the same flag.
        inherit::touch(index);
    }
    if value && !was && socket.mode() == Mode::Attached {
        // Who sleeps does not notice, before a handler has run.
        attach::wake_calls(socket);
    }
}

/// `ioctl` that concerns the bytes of a stream.
///
/// # Safety
/// `argument` is what the request asks for.
pub unsafe fn ioctl(fd: c_int, request: libc::c_ulong, argument: *mut c_void) -> Outcome {
    let Entry::Socket(index) = table::get(fd) else { return Outcome::PassThrough };
    let socket = pool::get(index);
    if socket.mode() == Mode::Inherited {
        inherit::touch(index);
    }
    match request {
        libc::FIONBIO => {
            // SAFETY: the program's own arguments.
            let result = unsafe { real::ioctl(fd, request, argument) };
            if result == 0 {
                // SAFETY: the kernel has just read an int there.
                let value = unsafe { argument.cast::<c_int>().read_unaligned() };
                set_nonblocking(index, value != 0);
            }
            Outcome::Genuine(result as isize)
        }
        libc::FIONREAD if !crate::receive::is_no_address(argument) => {
            match counts::unread(socket) {
                Some(bytes) => {
                    // SAFETY: FIONREAD writes an int.
                    unsafe { argument.cast::<c_int>().write_unaligned(bytes) };
                    Outcome::Handled(0)
                }
                None => Outcome::PassThrough,
            }
        }
        libc::TIOCOUTQ if !crate::receive::is_no_address(argument) => {
            match counts::on_its_way(socket) {
                Some(bytes) => {
                    // SAFETY: SIOCOUTQ writes an int.
                    unsafe { argument.cast::<c_int>().write_unaligned(bytes) };
                    Outcome::Handled(0)
                }
                None => Outcome::PassThrough,
            }
        }
        // The mark is on TCP, behind what the ring still holds.
        SIOCATMARK
            if !crate::receive::is_no_address(argument)
                && counts::unread(socket).is_some_and(|bytes| bytes > 0) =>
        {
            // SAFETY: SIOCATMARK writes an int.
            unsafe { argument.cast::<c_int>().write_unaligned(0) };
            Outcome::Handled(0)
        }
        libc::FIOASYNC => {
            touch_or_leave(index, Reason::UnsupportedOption);
            Outcome::PassThrough
        }
        _ => Outcome::PassThrough,
    }
}

/// Whether the next byte is behind the urgent one (sockatmark(3)).
pub const SIOCATMARK: libc::c_ulong = 0x8905;
