//! What this process is: its settings, read once, and its counters.

use core::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicU32, AtomicU64, Ordering::*};

use shunt_link::memory::RING_BYTES_MAX;
use shunt_os::lock::Lock;
use shunt_os::proc::{self, put_digits};
use shunt_os::{mapping, raw, sys, threads};
use shunt_readiness::policy;
use shunt_stats::{Reason, Segment, SEGMENT_BYTES};

use crate::inherit;

/// Bytes of a ring that nobody has set. Where addresses are few, less: the kernel's buffer has the rest.
const RING_BYTES_UNSET: u32 =
    if cfg!(target_pointer_width = "64") { RING_BYTES_MAX } else { 1 << 20 };

static ENABLED: AtomicBool = AtomicBool::new(false);
static PID: AtomicI32 = AtomicI32::new(0);
static SECRET: AtomicU32 = AtomicU32::new(0);
static RING_BYTES: AtomicU32 = AtomicU32::new(RING_BYTES_UNSET);
/// A copy: programs overwrite their environment (setproctitle).
static REPORT_DIR: Lock<Option<Vec<u8>>> = Lock::new(None);
static FILES: AtomicU64 = AtomicU64::new(0);
static SEGMENT: Lock<Option<Segment>> = Lock::new(None);
/// How often it could not be made, though the program's limits allow it: that is not tried for ever.
static FAILURES: AtomicU32 = AtomicU32::new(0);
const FAILURES_MAX: u32 = 16;
static SEGMENT_AT: AtomicPtr<u8> = AtomicPtr::new(core::ptr::null_mut());
static SEGMENT_FD: AtomicI32 = AtomicI32::new(-1);
static BAD_SETTING: AtomicBool = AtomicBool::new(false);
static PRELOAD: AtomicU64 = AtomicU64::new(0);
static PAIRS_AT_ONCE: AtomicBool = AtomicBool::new(false);

/// Whether calls are looked at at all. False before start-up has run, under `SHUNT=off`, in
/// a set-uid program, and where there is no `errno` to keep.
#[inline]
pub fn enabled() -> bool {
    ENABLED.load(Relaxed) && threads::has_data()
}

/// Looks at calls again, or no more.
pub fn set_enabled(enabled: bool) {
    ENABLED.store(enabled, SeqCst);
}

/// Reads the settings. Called once, before `main`.
pub fn start() {
    // SAFETY: getauxval has no preconditions.
    let secure = unsafe { libc::getauxval(libc::AT_SECURE) } != 0;
    if secure {
        return;
    }
    PID.store(raw::getpid(), Relaxed);
    shunt_os::threads::start();
    let off = setting(c"SHUNT") == Some(b"off");
    // Read in any case: one that is left open would be taken by a later program.
    let bequest = inherit::read_bequest();
    if off {
        return;
    }
    PRELOAD.store(setting(c"LD_PRELOAD").map_or(0, inherit::digest), Relaxed);
    *REPORT_DIR.lock() = setting(c"SHUNT_REPORT_DIR").map(<[u8]>::to_vec);
    if let Some(bytes) = number_setting(c"SHUNT_RING_BYTES", is_ring) {
        RING_BYTES.store(bytes, Relaxed);
    }
    if let Some(ns) = number_setting(c"SHUNT_SPIN_NS", |ns| ns <= policy::SPIN_NS_MAX) {
        policy::set_spin_ns(ns);
    }
    match setting(c"SHUNT_PAIR") {
        None => {}
        Some(b"at_once") => PAIRS_AT_ONCE.store(true, Relaxed),
        Some(_) => BAD_SETTING.store(true, Relaxed),
    }
    inherit::be_first_at_fork();
    ENABLED.store(true, Relaxed);
    shunt_os::handles::make_room();
    if let Some(bequest) = bequest {
        bequest.accept();
    }
}

/// The setting by which programs are accelerated as this one was, as [`inherit::digest`] says; 0 if there
/// was none.
pub fn preload() -> u64 {
    PRELOAD.load(Relaxed)
}

/// Whether streams are looked for with their first message, and the call waits for what comes of
/// it: for tests, whose streams would end before they reach a ring.
#[inline]
pub fn pairs_at_once() -> bool {
    PAIRS_AT_ONCE.load(Relaxed)
}

/// Whether a setting could not be understood: nothing is accelerated then.
pub fn has_bad_setting() -> bool {
    BAD_SETTING.load(Relaxed)
}

/// A setting that is a number. With one that cannot be understood the program runs plain; the reason
/// is counted when it opens a socket.
fn number_setting(name: &core::ffi::CStr, is_valid: impl Fn(u32) -> bool) -> Option<u32> {
    let number = parse_number(setting(name)?).filter(|number| is_valid(*number));
    if number.is_none() {
        BAD_SETTING.store(true, Relaxed);
    }
    number
}

/// Digits and nothing else.
fn parse_number(text: &[u8]) -> Option<u32> {
    let text = core::str::from_utf8(text).ok()?;
    text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok())?
}

fn setting(name: &core::ffi::CStr) -> Option<&'static [u8]> {
    // SAFETY: getenv with a NUL-terminated name; called before the program can change it.
    let value = unsafe { libc::getenv(name.as_ptr()) };
    if value.is_null() {
        return None;
    }
    // SAFETY: getenv returns a NUL-terminated string.
    Some(unsafe { core::ffi::CStr::from_ptr(value) }.to_bytes())
}

/// The process this library was started in, or was forked into. A child of vfork differs.
#[inline]
pub fn pid() -> i32 {
    PID.load(Relaxed)
}

/// Whether the caller runs in a child of vfork: in its parent's memory, which it must not change.
pub fn in_vfork_child() -> bool {
    raw::getpid() != pid()
}

/// Whether a ring may have so many bytes.
pub fn is_ring(bytes: u32) -> bool {
    bytes.is_power_of_two() && (4096..=RING_BYTES_MAX).contains(&bytes)
}

/// Bytes of one ring, at most.
pub fn ring_bytes() -> u32 {
    RING_BYTES.load(Relaxed)
}

/// The upper half of the data that we put into epoll registrations; random, so that no program's
/// own data is taken for ours.
pub fn secret() -> u32 {
    let known = SECRET.load(Relaxed);
    if known != 0 {
        return known;
    }
    let mut fresh = 0u32;
    // SAFETY: four writable bytes.
    let got = unsafe { sys!(libc::SYS_getrandom, &raw mut fresh, 4, 0) };
    if got.is_err() {
        fresh = shunt_os::clock::now_ns() as u32;
    }
    fresh |= 0x8100_0001;
    match SECRET.compare_exchange(0, fresh, Relaxed, Relaxed) {
        Ok(_) => fresh,
        Err(other) => other,
    }
}

/// Counts a call or process left to the kernel.
pub fn count(reason: Reason) {
    if let Some(segment) = segment() {
        segment.count(reason);
    }
}

/// The counters, if they were made: one load.
#[inline]
pub fn known_segment() -> Option<Segment> {
    let base = SEGMENT_AT.load(Acquire);
    // SAFETY: made by `Segment::create` at this address, and never unmapped.
    core::ptr::NonNull::new(base).map(|base| unsafe { Segment::at(base) })
}

/// The counters; made when the first TCP socket appears. `None` when that failed: nothing is
/// counted then, and everything else goes on.
pub fn segment() -> Option<Segment> {
    let mut held = SEGMENT.lock();
    let may_try = || {
        let is_allowed = shunt_os::handles::has_room() && mapping::may_have(SEGMENT_BYTES as u64);
        is_allowed && FAILURES.load(Relaxed) < FAILURES_MAX
    };
    if held.is_none() && may_try() {
        *held = create_segment();
        FAILURES.fetch_add(u32::from(held.is_none()), Relaxed);
        if held.is_some() && has_bad_setting() {
            if let Some(segment) = *held {
                segment.count(Reason::BadSetting);
            }
        }
    }
    *held
}

fn create_segment() -> Option<Segment> {
    let fd = report_file()
        .or_else(|| mapping::create(c"shunt-stats", SEGMENT_BYTES as u64, false).ok())?;
    let Ok(mapped) = mapping::map(fd, SEGMENT_BYTES) else {
        shunt_os::handles::close(fd);
        return None;
    };
    SEGMENT_FD.store(fd, Relaxed);
    let mut path = [0u8; 256];
    // SAFETY: a literal path and a writable buffer.
    let length = unsafe {
        sys!(libc::SYS_readlink, c"/proc/self/exe".as_ptr(), path.as_mut_ptr(), path.len())
    };
    SEGMENT_AT.store(mapped.base.as_ptr(), Release);
    let path = &path[..length.unwrap_or(0).min(256)];
    let program = path.rsplit(|b| *b == b'/').next().unwrap_or(b"");
    // SAFETY: a fresh zero mapping of this size that is never unmapped.
    Some(unsafe { Segment::create(mapped.base, pid() as u32, proc::own_start_time(), program) })
}

fn report_file() -> Option<i32> {
    let dir = REPORT_DIR.lock().clone()?;
    let mut path = [0u8; 300];
    if dir.is_empty() || dir.len() > 200 {
        return None;
    }
    path[..dir.len()].copy_from_slice(&dir);
    let mut at = dir.len();
    path[at] = b'/';
    at += 1;
    at += put_digits(&mut path[at..], pid() as u64);
    path[at] = b'-';
    at += 1;
    // A process that execs keeps its pid: the first free number is taken.
    for attempt in 0..64 {
        let file = FILES.fetch_add(1, Relaxed) + attempt;
        let end = at + put_digits(&mut path[at..], file);
        path[end] = 0;
        let flags = libc::O_CREAT | libc::O_EXCL | libc::O_RDWR | libc::O_CLOEXEC;
        // SAFETY: a NUL-terminated path.
        let open = || unsafe {
            sys!(libc::SYS_openat, libc::AT_FDCWD, path.as_ptr(), flags, 0o600).map(|fd| fd as i32)
        };
        match shunt_os::handles::keep_high_at_once(open) {
            Ok(fd) => {
                if mapping::set_size(fd, SEGMENT_BYTES as u64).is_ok() {
                    return Some(fd);
                }
                shunt_os::handles::close(fd);
                // SAFETY: a NUL-terminated path.
                let _ = unsafe { sys!(libc::SYS_unlinkat, libc::AT_FDCWD, path.as_ptr(), 0) };
                return None;
            }
            Err(error) if error.0 == libc::EEXIST => {}
            Err(_) => return None,
        }
    }
    None
}

/// In a forked child: it is another process with counters of its own, made when needed.
///
/// # Safety
/// The process has one thread.
pub unsafe fn after_fork() {
    PID.store(raw::getpid(), Relaxed);
    // SAFETY: one thread, by the caller's word.
    unsafe {
        SEGMENT.force_open();
        REPORT_DIR.force_open();
    }
    *SEGMENT.lock() = None;
    SEGMENT_AT.store(core::ptr::null_mut(), Relaxed);
    let fd = SEGMENT_FD.swap(-1, Relaxed);
    // The program may have taken its number.
    if shunt_os::handles::is_own(fd) {
        shunt_os::handles::close(fd);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_digits_that_fit() {
        assert_eq!(parse_number(b"0"), Some(0));
        assert_eq!(parse_number(b"50000"), Some(50_000));
        for text in ["", "+5", "-1", "5e4", "50 us", "4294967296", " 5"] {
            assert_eq!(parse_number(text.as_bytes()), None, "{text:?}");
        }
    }
}
