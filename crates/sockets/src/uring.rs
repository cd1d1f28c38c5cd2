//! io_uring(7). The kernel takes a program's requests out of memory, without a call for each of them. Where it takes
//! them within `io_uring_enter` alone, and the program makes that by `syscall()` or by liburing's functions, they are
//! looked at before that. As long as a ring is asked for nothing but what has to do with files, or for changes of
//! epoll sets, which are carried out here, streams go to rings of ours; any other request takes the process's streams
//! to TCP for good, and so does any io_uring that was made or entered in another way.

use core::ffi::c_int;
use core::sync::atomic::{AtomicU32, Ordering::*};

use libc::epoll_event;
use shunt_os::lock::Lock;
use shunt_os::uring::{carried_out, opcode, Request, Ring, ASYNC, FIXED_FILE, QUIET};
use shunt_os::{handles, proc, Errno};
use shunt_stats::Reason;

use crate::table::{self, Entry};
use crate::{attach, process, quiet};

/// One that is looked at.
struct Watched {
    ring: Ring,
    /// How many descriptors the program has of it.
    numbers: u32,
    /// How many requests have been looked at; wraps.
    seen: u32,
}

static WATCHED: Lock<Vec<Option<Watched>>> = Lock::new(Vec::new());
/// Rings that are being made: they have a number, and no entry.
static MAKING: AtomicU32 = AtomicU32::new(0);

/// How long the service waits for one that is being made, in ns.
const MAKING_NS_MAX: u64 = 100_000_000;

/// Whether nobody cares any more.
fn is_over() -> bool {
    !process::enabled()
        || quiet::keeps_to_tcp() == Some(Reason::IoUring)
        || process::in_vfork_child()
}

/// What makes a ring.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Maker {
    /// io_uring_setup(2).
    Kernel,
    /// liburing, by whose functions alone the ring is entered: requests are taken as they lie.
    Liburing,
}

/// Around what makes a ring: `genuine` returns its descriptor, or an error below 0.
///
/// # Safety
/// `parameters` is what that fills in.
pub unsafe fn make(maker: Maker, parameters: *const u32, genuine: impl FnOnce() -> c_int) -> c_int {
    if is_over() {
        return genuine();
    }
    MAKING.fetch_add(1, SeqCst);
    let fd = genuine();
    if fd >= 0 {
        // SAFETY: it has been filled in.
        match unsafe { Ring::of(fd, parameters, maker == Maker::Liburing) } {
            Some(ring) => watch(fd, ring),
            None => quiet::saw_io_uring(),
        }
    }
    MAKING.fetch_sub(1, SeqCst);
    fd
}

fn watch(fd: c_int, ring: Ring) {
    let (seen, _) = ring.counts();
    let mut all = WATCHED.lock();
    let index = all.iter().position(Option::is_none).unwrap_or(all.len());
    if index == all.len() {
        all.push(None);
    }
    all[index] = Some(Watched { ring, numbers: 1, seen });
    drop(all);
    table::set(fd, Entry::Uring(index as u32));
}

fn with<T>(index: u32, act: impl FnOnce(&mut Watched) -> T) -> Option<T> {
    WATCHED.lock().get_mut(index as usize)?.as_mut().map(act)
}

/// The program has it under `to` as well.
pub fn duplicated(index: u32, to: c_int) {
    if with(index, |it| it.numbers += 1).is_some() {
        table::set(to, Entry::Uring(index));
    }
}

/// One of its numbers is gone, or is about to be.
pub fn closed(index: u32) {
    let mut all = WATCHED.lock();
    let Some(place) = all.get_mut(index as usize) else { return };
    if let Some(watched) = place {
        watched.numbers -= 1;
        if watched.numbers > 0 {
            return;
        }
    }
    let last = place.take();
    drop(all);
    if let Some(watched) = last {
        watched.ring.unmap();
    }
}

/// What is entered, and how far.
#[derive(Clone, Copy)]
pub enum Entered {
    /// As many requests as are told, by flags of `io_uring_enter`.
    ByNumber { count: u32, flags: u32 },
    /// Those up to this one, which wraps.
    ByLiburing { made: u32 },
}

/// Before the kernel takes requests. Those that are carried out here are written over: who asks for the same again
/// writes them anew, as liburing and libuv do. `control` is `epoll_ctl`, whose error is an error number.
pub fn enter(
    fd: c_int,
    entered: Entered,
    mut control: impl FnMut(c_int, c_int, c_int, *mut epoll_event) -> Result<(), c_int>,
) {
    /// The number is a place among registered rings.
    const REGISTERED_RING: u32 = 1 << 4;
    if is_over() {
        return;
    }
    let index = match (table::get(fd), entered) {
        (_, Entered::ByNumber { flags, .. }) if flags & REGISTERED_RING != 0 => {
            return quiet::saw_io_uring();
        }
        (Entry::Uring(index), _) => index,
        // The kernel refuses it.
        (_, Entered::ByNumber { .. }) if fd < 0 => return,
        // One that liburing has registered has no number.
        _ => return quiet::saw_io_uring(),
    };
    let begin = with(index, |it| {
        let (taken, made) = it.ring.counts();
        let count = match entered {
            Entered::ByNumber { count, .. } => made.wrapping_sub(taken).min(count),
            Entered::ByLiburing { made } => made.wrapping_sub(taken),
        };
        let is_seen = taken.wrapping_sub(it.seen) as i32 <= 0 && count <= it.ring.entries();
        is_seen.then_some((taken, count))
    });
    let Some(Some((taken, count))) = begin else { return quiet::saw_io_uring() };
    for at in 0..count {
        let at = taken.wrapping_add(at);
        let Some(Some(request)) = with(index, |it| it.ring.request(at)) else {
            return quiet::saw_io_uring();
        };
        let answer = match request.opcode {
            _ if concerns_no_stream(&request) => continue,
            opcode::EPOLL_CTL if is_plain(&request) => {
                let (set, operation, fd) =
                    (request.fd, request.length as c_int, request.offset as c_int);
                let result = control(set, operation, fd, request.address as usize as *mut _);
                carried_out(&request, result.map_or_else(|error| -error, |()| 0))
            }
            _ => None,
        };
        let Some(answer) = answer else { return quiet::saw_io_uring() };
        with(index, |it| it.ring.replace(at, answer));
    }
    with(index, |it| {
        // Threads may enter it at a time.
        let ahead = taken.wrapping_add(count).wrapping_sub(it.seen);
        it.seen = it.seen.wrapping_add((ahead as i32).max(0) as u32);
    });
}

/// Whether it is carried out in its turn, and the kernel does not refuse it.
fn is_plain(request: &Request) -> bool {
    request.flags & !(ASYNC | QUIET) == 0
        && (request.priority, request.detail, request.buffer, request.file) == (0, 0, 0, 0)
        && request.personality == 0
}

/// Whether it has to do with files that are no sockets, or with none. Nobody is told of such a file by us.
fn concerns_no_stream(request: &Request) -> bool {
    use opcode::*;
    match request.opcode {
        NOP | TIMEOUT | TIMEOUT_REMOVE | ASYNC_CANCEL => true,
        READV | WRITEV | FSYNC | READ_FIXED | WRITE_FIXED | SYNC_FILE_RANGE | FALLOCATE | READ
        | WRITE | FADVISE => {
            let kind = || handles::option_int(request.fd, libc::SOL_SOCKET, libc::SO_TYPE);
            request.flags & FIXED_FILE == 0 && kind() == Err(Errno(libc::ENOTSOCK))
        }
        _ => false,
    }
}

/// Before `io_uring_register`: with files and rings of its own, requests mean others than their numbers say.
pub fn register(fd: c_int, operation: u32) {
    /// IORING_REGISTER_ and UNREGISTER_BUFFERS, EVENTFD, EVENTFD_ASYNC, PROBE, BUFFERS2, BUFFERS_UPDATE, IOWQ_AFF,
    /// IOWQ_MAX_WORKERS: buffers, who is told, threads, and what the kernel can do.
    const OF_NO_FILE: [u32; 11] = [0, 1, 4, 5, 7, 8, 15, 16, 17, 18, 19];
    if fd >= 0 && !OF_NO_FILE.contains(&operation) && !is_over() {
        quiet::saw_io_uring();
    }
}

/// Whether there is a ring whose requests are not looked at, or were not.
pub fn some_is_unseen() -> bool {
    let leads = || {
        let known = |fd| matches!(table::get(fd), Entry::Uring(_));
        proc::some_leads_to("anon_inode:[io_uring]", known)
    };
    let passed = |it: &Watched| it.ring.counts().0.wrapping_sub(it.seen) as i32 > 0;
    if WATCHED.lock().iter().flatten().any(passed) {
        return true;
    }
    leads() && {
        attach::wait_until(MAKING_NS_MAX, || MAKING.load(SeqCst) == 0);
        leads()
    }
}

/// In a forked child, which has none of the mappings.
///
/// # Safety
/// It has one thread.
pub unsafe fn after_fork() {
    // SAFETY: by the caller's word.
    unsafe { WATCHED.force_open() };
    MAKING.store(0, Relaxed);
    if WATCHED.lock().is_empty() {
        return;
    }
    table::each(0, u32::MAX, |fd, entry| {
        if let Entry::Uring(_) = entry {
            table::set(fd, Entry::Unknown);
        }
    });
    WATCHED.lock().clear();
}
