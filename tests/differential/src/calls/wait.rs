//! Waiting for readiness, and the signals that interrupt it.

use super::{Fd, Got};
use std::mem::zeroed;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};

extern "C" {
    fn __poll_chk(set: *mut libc::pollfd, count: libc::nfds_t, timeout: i32, room: usize) -> i32;
}

const NAMES: &[(u32, &str)] = &[
    (libc::EPOLLIN as u32, "IN"),
    (libc::EPOLLPRI as u32, "PRI"),
    (libc::EPOLLOUT as u32, "OUT"),
    (libc::EPOLLERR as u32, "ERR"),
    (libc::EPOLLHUP as u32, "HUP"),
    (libc::POLLNVAL as u32, "NVAL"),
    (libc::EPOLLRDNORM as u32, "RDNORM"),
    (libc::EPOLLRDBAND as u32, "RDBAND"),
    (libc::EPOLLWRNORM as u32, "WRNORM"),
    (libc::EPOLLWRBAND as u32, "WRBAND"),
    (libc::EPOLLRDHUP as u32, "RDHUP"),
];

/// A mask in words; poll and epoll use the same bits.
pub fn mask(bits: u32) -> String {
    let known: u32 = NAMES.iter().map(|(bit, _)| bit).sum();
    let mut words: Vec<String> = NAMES
        .iter()
        .filter(|(bit, _)| bits & bit != 0)
        .map(|(_, name)| (*name).to_owned())
        .collect();
    if bits & !known != 0 {
        words.push(format!("{:#x}", bits & !known));
    }
    if words.is_empty() {
        "none".to_owned()
    } else {
        words.join("|")
    }
}

fn entries(set: &[(Fd, i16)]) -> Vec<libc::pollfd> {
    set.iter().map(|&(fd, events)| libc::pollfd { fd, events, revents: 0x4000 }).collect()
}

fn answers(entries: &[libc::pollfd]) -> Vec<u32> {
    entries.iter().map(|entry| entry.revents as u16 as u32).collect()
}

pub fn poll(set: &[(Fd, i16)], timeout_ms: i32) -> (Got, Vec<u32>) {
    let mut entries = entries(set);
    let got = call!(libc::poll(entries.as_mut_ptr(), entries.len() as _, timeout_ms));
    (got, answers(&entries))
}

pub fn poll_checked(set: &[(Fd, i16)], timeout_ms: i32) -> (Got, Vec<u32>) {
    let mut entries = entries(set);
    let room = size_of_val(entries.as_slice());
    let got = call!(__poll_chk(entries.as_mut_ptr(), entries.len() as _, timeout_ms, room));
    (got, answers(&entries))
}

/// Asks for a hundred entries of one descriptor; for signal handlers too.
pub fn poll_a_hundred_times_in_one(fd: Fd, events: i16) -> Got {
    let mut entries = [libc::pollfd { fd, events, revents: 0 }; 100];
    call!(libc::poll(entries.as_mut_ptr(), entries.len() as libc::nfds_t, 0))
}

/// Whether a wait with a mask is under way, for signal handlers.
pub static IS_IN_MASKED_WAIT: AtomicBool = AtomicBool::new(false);

/// From right before the call to right behind it: what prepares it may take as long as a timer.
fn marked(call: impl FnOnce() -> Got) -> Got {
    IS_IN_MASKED_WAIT.store(true, Relaxed);
    let got = call();
    IS_IN_MASKED_WAIT.store(false, Relaxed);
    got
}

pub fn ppoll(set: &[(Fd, i16)], timeout_ms: i64, blocked: &[i32]) -> (Got, Vec<u32>) {
    let mut entries = entries(set);
    let (time, signals) = (timespec(timeout_ms), signal_set(blocked));
    let (start, count) = (entries.as_mut_ptr(), entries.len() as _);
    let got = marked(|| call!(libc::ppoll(start, count, &raw const time, &raw const signals)));
    (got, answers(&entries))
}

fn timespec(milliseconds: i64) -> libc::timespec {
    libc::timespec {
        tv_sec: (milliseconds / 1000) as _,
        tv_nsec: (milliseconds % 1000 * 1_000_000) as _,
    }
}

fn descriptor_set(members: &[Fd]) -> libc::fd_set {
    // SAFETY: fd_set is plain data, for which zero is the empty set; members are below 1024.
    unsafe {
        let mut set: libc::fd_set = zeroed();
        for &fd in members {
            libc::FD_SET(fd, &raw mut set);
        }
        set
    }
}

fn members(set: &libc::fd_set, asked: &[Fd]) -> Vec<bool> {
    // SAFETY: the descriptors asked for are below FD_SETSIZE.
    asked.iter().map(|&fd| unsafe { libc::FD_ISSET(fd, set) }).collect()
}

/// What select was asked, and then what it answered.
#[derive(Default)]
pub struct Selection {
    pub read: Vec<Fd>,
    pub write: Vec<Fd>,
    pub except: Vec<Fd>,
}

fn said(got: Got, asked: &Selection, sets: &[libc::fd_set; 3]) -> String {
    let show =
        |ready: Vec<bool>| ready.iter().map(|&is| if is { '1' } else { '0' }).collect::<String>();
    format!(
        "{got} read {} write {} except {}",
        show(members(&sets[0], &asked.read)),
        show(members(&sets[1], &asked.write)),
        show(members(&sets[2], &asked.except))
    )
}

fn sets_of(asked: &Selection) -> ([libc::fd_set; 3], i32) {
    let all = [&asked.read, &asked.write, &asked.except];
    let highest = all.iter().flat_map(|fds| fds.iter()).max().map_or(0, |fd| fd + 1);
    (all.map(|fds| descriptor_set(fds)), highest)
}

pub fn select(asked: &Selection, timeout_ms: i64) -> String {
    let (mut sets, count) = sets_of(asked);
    let mut time = libc::timeval {
        tv_sec: (timeout_ms / 1000) as _,
        tv_usec: (timeout_ms % 1000 * 1000) as _,
    };
    let [read, write, except] = &mut sets;
    let got = call!(libc::select(
        count,
        &raw mut *read,
        &raw mut *write,
        &raw mut *except,
        &raw mut time
    ));
    said(got, asked, &sets)
}

pub fn pselect(asked: &Selection, timeout_ms: i64, blocked: &[i32]) -> String {
    let (mut sets, count) = sets_of(asked);
    let (time, signals) = (timespec(timeout_ms), signal_set(blocked));
    let [read, write, except] = &mut sets;
    let sets_at = [&raw mut *read, &raw mut *write, &raw mut *except];
    let got = marked(|| {
        let [read, write, except] = sets_at;
        call!(libc::pselect(count, read, write, except, &raw const time, &raw const signals))
    });
    said(got, asked, &sets)
}

pub fn epoll_create() -> Fd {
    call!(libc::epoll_create1(libc::EPOLL_CLOEXEC)).fd("epoll_create1")
}

pub fn epoll_ctl(set: Fd, operation: i32, fd: Fd, events: i32, data: u64) -> Got {
    let mut event = libc::epoll_event { events: events as u32, u64: data };
    call!(libc::epoll_ctl(set, operation, fd, &raw mut event))
}

pub fn epoll_add(set: Fd, fd: Fd, events: i32, data: u64) -> Got {
    epoll_ctl(set, libc::EPOLL_CTL_ADD, fd, events, data)
}

pub fn epoll_mod(set: Fd, fd: Fd, events: i32, data: u64) -> Got {
    epoll_ctl(set, libc::EPOLL_CTL_MOD, fd, events, data)
}

pub fn epoll_del(set: Fd, fd: Fd) -> Got {
    epoll_ctl(set, libc::EPOLL_CTL_DEL, fd, 0, 0)
}

/// What epoll said: the call's result, then each event's mask and data.
pub struct Events {
    pub got: Got,
    pub events: Vec<(u32, u64)>,
}

impl Events {
    /// In the order of data, since POSIX promises none between descriptors.
    pub fn said(&self) -> String {
        let mut events = self.events.clone();
        events.sort_by_key(|&(_, data)| data);
        let each: Vec<String> =
            events.iter().map(|&(bits, data)| format!("{}={data}", mask(bits))).collect();
        format!("{} [{}]", self.got, each.join(" "))
    }
}

fn events(got: Got, room: &[libc::epoll_event]) -> Events {
    let count = got.count().unwrap_or(0);
    Events { got, events: room[..count].iter().map(|event| (event.events, event.u64)).collect() }
}

fn room(count: usize) -> Vec<libc::epoll_event> {
    vec![libc::epoll_event { events: 0, u64: 0 }; count]
}

pub fn epoll_wait(set: Fd, max: usize, timeout_ms: i32) -> Events {
    let mut room = room(max);
    let got = call!(libc::epoll_wait(set, room.as_mut_ptr(), max as i32, timeout_ms));
    events(got, &room)
}

/// In an instruction of ours, of which no library knows.
pub fn epoll_wait_by_instruction(set: Fd, max: usize, timeout_ms: i32) -> Events {
    let mut room = room(max);
    let (start, number) = (room.as_mut_ptr(), libc::SYS_epoll_pwait);
    // SAFETY: as many events are written, and there is no mask.
    let got = unsafe { shunt_os::sys!(number, set, start, max, timeout_ms, 0, 8) };
    let got = got.map_or_else(|error| Got::Errno(error.0), |count| Got::Value(count as i64));
    events(got, &room)
}

pub fn epoll_pwait(set: Fd, max: usize, timeout_ms: i32, blocked: &[i32]) -> Events {
    let (mut room, signals) = (room(max), signal_set(blocked));
    let start = room.as_mut_ptr();
    let got =
        marked(|| call!(libc::epoll_pwait(set, start, max as i32, timeout_ms, &raw const signals)));
    events(got, &room)
}

pub fn eventfd(value: u32) -> Fd {
    call!(libc::eventfd(value, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK)).fd("eventfd")
}

fn signal_set(signals: &[i32]) -> libc::sigset_t {
    // SAFETY: sigset_t is plain data; both functions write the set that they are given.
    unsafe {
        let mut set: libc::sigset_t = zeroed();
        libc::sigemptyset(&raw mut set);
        for &signal in signals {
            libc::sigaddset(&raw mut set, signal);
        }
        set
    }
}

pub fn block_signals(signals: &[i32]) {
    let set = signal_set(signals);
    call!(libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, null_mut())).value("sigmask");
}

static CAUGHT: [AtomicU32; 32] = [const { AtomicU32::new(0) }; 32];

extern "C" fn count_signal(signal: i32) {
    if let Some(count) = CAUGHT.get(signal as usize) {
        count.fetch_add(1, Relaxed);
    }
}

/// Counts a signal from now on; see [`caught`].
pub fn catch_signal(signal: i32, flags: i32) {
    catch_signal_with(signal, flags, count_signal);
}

pub fn catch_signal_with(signal: i32, flags: i32, handler: extern "C" fn(i32)) {
    // SAFETY: sigaction is plain data.
    let mut action: libc::sigaction = unsafe { zeroed() };
    action.sa_sigaction = handler as *const () as usize;
    action.sa_flags = flags;
    call!(libc::sigaction(signal, &raw const action, null_mut())).value("sigaction");
}

/// As [`catch_signal`] by signal(3), which sets SA_RESTART; `interrupts`: siginterrupt(3) takes it away again.
pub fn catch_by_signal(signal: i32, interrupts: bool) {
    extern "C" {
        fn siginterrupt(signal: i32, interrupts: i32) -> i32;
    }
    // SAFETY: as above.
    let before = unsafe { libc::signal(signal, count_signal as *const () as usize) };
    assert!(before != libc::SIG_ERR);
    if interrupts {
        // SAFETY: no pointers.
        call!(siginterrupt(signal, 1)).value("siginterrupt");
    }
}

pub fn caught(signal: i32) -> u32 {
    CAUGHT[signal as usize].load(Relaxed)
}

/// Gives a signal its default action: Rust's start-up ignores SIGPIPE, programs do not.
pub fn default_signal(signal: i32) {
    // SAFETY: SIG_DFL is always a valid action.
    unsafe { libc::signal(signal, libc::SIG_DFL) };
}
