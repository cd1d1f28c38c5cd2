//! What a program that becomes another leaves to the new one: which of the descriptors that it finds are streams
//! that this process has alone, and who called connect. Without it they would stay on TCP.
//!
//! It is a memfd under a number that both know, the only descriptor of ours that exec does not close. The new
//! program reads it before it starts, and closes it. Where the new program is none of ours it would stay open,
//! and a later one would find it, which knows less: others may have the streams by then. So it is left only if
//! the environment has the new program accelerated and its file can be, and it names the process, the sockets, and
//! that file. Whether its programs are ours does not change from one exec to the next.

use core::ffi::{c_char, c_int};
use core::mem::{size_of, size_of_val, zeroed};
use core::sync::atomic::{AtomicI32, Ordering::*};

use shunt_os::{handles, mapping, memory, proc, raw, sys, tcp, threads};

use crate::calls::descriptor::{duplicated, opened};
use crate::pool::{self, Mode};
use crate::table::{self, Entry};
use crate::{attach, process, quiet, wait};

/// The file that a program is made of.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
#[repr(C)]
struct File {
    device: u64,
    number: u64,
}

/// All of it is the same to programs of 32 and of 64 bits.
#[derive(Clone, Copy)]
#[repr(C)]
struct Head {
    magic: u64,
    process: u64,
    start_time: u64,
    file: File,
    count: u64,
}

/// A descriptor.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Heirloom {
    cookie: u64,
    fd: i32,
    is: u32,
}

/// Bits of what an heirloom is.
mod is {
    /// It called connect.
    pub const CONNECTOR: u32 = 1;
    /// Nobody was told yet that its peer died with bytes unread, and the kernel does not tell that.
    pub const RESET: u32 = 2;
}

const MAGIC: u64 = u64::from_le_bytes(*b"ShntHeir");
/// More streams stay on TCP.
const COUNT_MAX: usize = 1024;

/// The bequest of an exec that is under way, or -1.
static LEFT: AtomicI32 = AtomicI32::new(-1);

/// What exec is called with, as far as it matters here.
#[derive(Clone, Copy)]
pub struct Image {
    file: By,
    environment: *const *const c_char,
}

#[derive(Clone, Copy)]
enum By {
    Path(*const c_char),
    Search(*const c_char),
    Descriptor(c_int),
}

impl Image {
    pub fn at(path: *const c_char, environment: *const *const c_char) -> Image {
        Image { file: By::Path(path), environment }
    }

    /// By PATH, if the name has no slash.
    pub fn searched(name: *const c_char, environment: *const *const c_char) -> Image {
        Image { file: By::Search(name), environment }
    }

    pub fn open(fd: c_int, environment: *const *const c_char) -> Image {
        Image { file: By::Descriptor(fd), environment }
    }

    /// The file, if the library can be in what is made of it.
    fn file(&self) -> Option<File> {
        match self.file {
            By::Path(path) => dynamic_at(path),
            By::Descriptor(fd) if is_dynamic(fd, true) => {
                file_at(fd, c"".as_ptr(), libc::AT_EMPTY_PATH)
            }
            By::Descriptor(_) => None,
            By::Search(name) => {
                let text = text(name)?;
                if text.contains(&b'/') {
                    return dynamic_at(name);
                }
                // SAFETY: a NUL-terminated name.
                let folders = unsafe { libc::getenv(c"PATH".as_ptr()) };
                if folders.is_null() {
                    return None;
                }
                let found = self::text(folders)?.split(|byte| *byte == b':').find_map(|folder| {
                    let mut path = folder.to_vec();
                    path.extend((!folder.is_empty()).then_some(b'/'));
                    path.extend(text);
                    path.push(0);
                    file_at(libc::AT_FDCWD, path.as_ptr().cast(), 0).map(|_| path)
                });
                dynamic_at(found?.as_ptr().cast())
            }
        }
    }

    /// Whether its environment has it accelerated as this program was.
    fn is_accelerated(&self) -> bool {
        let mut preload = 0;
        let mut at = self.environment;
        loop {
            if !memory::is_readable(at, size_of::<*const c_char>()) {
                return false;
            }
            // SAFETY: it is there.
            let variable = unsafe { at.read_unaligned() };
            if variable.is_null() {
                return preload == process::preload();
            }
            let Some(variable) = text(variable) else { return false };
            if variable == b"SHUNT=off" {
                return false;
            }
            if let (0, Some(value)) = (preload, variable.strip_prefix(b"LD_PRELOAD=")) {
                preload = digest(value);
            }
            at = at.wrapping_add(1);
        }
    }
}

/// A text of the program's, if it is there.
fn text<'a>(start: *const c_char) -> Option<&'a [u8]> {
    const PAGE: usize = 4096;
    let mut end = start.cast::<u8>();
    loop {
        let rest = PAGE - end as usize % PAGE;
        if !memory::is_readable(end, rest) {
            return None;
        }
        // SAFETY: the rest of a page that is there.
        let page = unsafe { core::slice::from_raw_parts(end, rest) };
        if let Some(length) = page.iter().position(|byte| *byte == 0) {
            let length = end as usize + length - start as usize;
            // SAFETY: up to the NUL all of it is there.
            return Some(unsafe { core::slice::from_raw_parts(start.cast(), length) });
        }
        end = end.wrapping_add(rest);
    }
}

/// A number for a text (FNV-1a); not 0.
pub fn digest(text: &[u8]) -> u64 {
    let step = |sum: u64, byte: &u8| (sum ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3);
    text.iter().fold(0xcbf2_9ce4_8422_2325, step) | 1
}

fn file_at(folder: c_int, path: *const c_char, flags: c_int) -> Option<File> {
    // SAFETY: zero is a valid buffer.
    let mut found: libc::statx = unsafe { zeroed() };
    let (asked, into) = (libc::STATX_INO | libc::STATX_TYPE, &raw mut found);
    // SAFETY: a buffer of that size; the kernel judges the path.
    unsafe { sys!(libc::SYS_statx, folder, path, flags, asked, into) }.ok()?;
    let is_file = i32::from(found.stx_mode) & libc::S_IFMT as i32 == libc::S_IFREG as i32;
    let device = u64::from(found.stx_dev_major) << 32 | u64::from(found.stx_dev_minor);
    is_file.then_some(File { device, number: found.stx_ino })
}

/// As [`file_at`], of one that the loader prepares, and with it the library.
fn dynamic_at(path: *const c_char) -> Option<File> {
    let file = file_at(libc::AT_FDCWD, path, 0)?;
    open(path).filter(|opened| is_dynamic(opened.0, true)).map(|_| file)
}

/// A descriptor for a look at a file.
struct Opened(c_int);

impl Drop for Opened {
    fn drop(&mut self) {
        // SAFETY: made by `open`, and known to nobody else.
        let _ = unsafe { sys!(libc::SYS_close, self.0) };
    }
}

fn open(path: *const c_char) -> Option<Opened> {
    let flags = libc::O_RDONLY | libc::O_CLOEXEC | libc::O_NONBLOCK | libc::O_NOCTTY;
    // SAFETY: the kernel judges the path.
    let fd = unsafe { sys!(libc::SYS_openat, libc::AT_FDCWD, path, flags) }.ok()?;
    Some(Opened(fd as c_int))
}

/// Whether a program names a loader (elf(5), PT_INTERP), and gets no rights by its file, with which the loader
/// leaves our library out; `or_script`: or its interpreter is such a one.
fn is_dynamic(fd: c_int, or_script: bool) -> bool {
    let mut start = [0u8; 1024];
    // SAFETY: a writable buffer; the offset is 0 however many registers it takes.
    let got = unsafe { sys!(libc::SYS_pread64, fd, start.as_mut_ptr(), start.len(), 0, 0) };
    let start = &start[..got.unwrap_or(0).min(start.len())];
    if let (true, Some(line)) = (or_script, start.strip_prefix(b"#!")) {
        let line = line.split(|byte| *byte == b'\n').next().unwrap_or(&[]);
        let mut words = line.split(|byte| matches!(byte, b' ' | b'\t'));
        let Some(mut path) = words.find(|word| !word.is_empty()).map(<[u8]>::to_vec) else {
            return false;
        };
        path.push(0);
        return open(path.as_ptr().cast()).is_some_and(|opened| is_dynamic(opened.0, false));
    }
    names_a_loader(start) && !gives_rights(fd)
}

fn gives_rights(fd: c_int) -> bool {
    // SAFETY: zero is a valid buffer.
    let mut found: libc::statx = unsafe { zeroed() };
    let (none, asked, into) = (c"".as_ptr(), libc::STATX_MODE, &raw mut found);
    // SAFETY: a buffer of that size.
    let told = unsafe { sys!(libc::SYS_statx, fd, none, libc::AT_EMPTY_PATH, asked, into) };
    let name = c"security.capability".as_ptr();
    // SAFETY: a name, and no buffer.
    let is_capable = unsafe { sys!(libc::SYS_fgetxattr, fd, name, 0, 0) }.is_ok();
    let rights = libc::S_ISUID | libc::S_ISGID;
    told.is_err() || is_capable || u32::from(found.stx_mode) & rights != 0
}

/// Whether an ELF file of either size has a program header of that kind, as far as its start shows.
fn names_a_loader(start: &[u8]) -> bool {
    const PT_INTERP: u64 = 3;
    let number = |at: usize, bytes: usize| -> Option<u64> {
        let bytes = start.get(at..at.checked_add(bytes)?)?;
        Some(bytes.iter().rev().fold(0, |sum, byte| sum << 8 | u64::from(*byte)))
    };
    // Where the table's place, its entries' size and their number stand.
    let places = match start.get(..5) {
        Some(b"\x7fELF\x02") => [(32, 8), (54, 2), (56, 2)],
        Some(b"\x7fELF\x01") => [(28, 4), (42, 2), (44, 2)],
        _ => return false,
    };
    let [Some(table), Some(size), Some(count)] = places.map(|(at, bytes)| number(at, bytes)) else {
        return false;
    };
    (0..count).any(|entry| {
        let at = table.checked_add(entry * size).and_then(|at| usize::try_from(at).ok());
        at.and_then(|at| number(at, 4)) == Some(PT_INTERP)
    })
}

/// Streams that this process has alone, that nothing keeps on TCP, and that exec leaves open. With several
/// threads another may do something to them meanwhile.
pub(super) fn heirlooms() -> Vec<Heirloom> {
    let mut all = Vec::new();
    if !threads::program_is_alone() || quiet::keeps_to_tcp().is_some() || !handles::keeps_bequests()
    {
        return all;
    }
    table::each(0, u32::MAX, |fd, entry| {
        let Entry::Socket(index) = entry else { return };
        let socket = pool::get(index);
        let flags = [
            &socket.pinned,
            &socket.has_odd_option,
            &socket.closing,
            &socket.shut_reading,
            &socket.shut_writing,
        ];
        let is_one = all.len() < COUNT_MAX
            && matches!(socket.mode(), Mode::Plain | Mode::Attached)
            && !flags.iter().any(|flag| flag.load(SeqCst))
            && socket.kin.may_pair()
            && handles::survives_exec(fd)
            && tcp::is_connected(fd)
            && wait::epoll::are_closed_by_exec(socket);
        if let (true, Ok(cookie)) = (is_one, handles::cookie(fd)) {
            let is = if socket.connector.load(Relaxed) { is::CONNECTOR } else { 0 };
            all.push(Heirloom { cookie, fd, is });
        }
    });
    all
}

/// Streams of which the new program is to be told that they were reset, whoever has them besides.
fn owed_resets() -> Vec<Heirloom> {
    let mut all = Vec::new();
    table::each(0, u32::MAX, |fd, entry| {
        let Entry::Socket(index) = entry else { return };
        let is_one = all.len() < COUNT_MAX
            && attach::is_reset_owed(pool::get(index))
            && handles::survives_exec(fd);
        if let (true, Ok(cookie)) = (is_one, handles::cookie(fd)) {
            all.push(Heirloom { cookie, fd, is: is::RESET });
        }
    });
    all
}

/// Leaves those to the new program that are on TCP by now.
pub(super) fn leave(mut all: Vec<Heirloom>, image: &Image) {
    let is_on_tcp = |it: &Heirloom| match table::get(it.fd) {
        Entry::Socket(index) => {
            let socket = pool::get(index);
            let in_a_ring = socket.remains.load(Relaxed) || socket.unanswered.load(Relaxed);
            matches!(socket.mode(), Mode::Plain | Mode::Left) && !in_a_ring
        }
        _ => false,
    };
    all.retain(is_on_tcp);
    if handles::keeps_bequests() {
        all.extend(owed_resets());
        all.truncate(COUNT_MAX);
    }
    if all.is_empty() || !image.is_accelerated() {
        return;
    }
    let Some(file) = image.file() else { return };
    let (process, start_time) = (process::pid() as u64, proc::own_start_time());
    let head = Head { magic: MAGIC, process, start_time, file, count: all.len() as u64 };
    let bytes = size_of::<Head>() + size_of_val(&all[..]);
    let Ok(made) = mapping::create(c"shunt-heir", bytes as u64, false) else { return };
    let parts = [
        libc::iovec { iov_base: (&raw const head).cast_mut().cast(), iov_len: size_of::<Head>() },
        libc::iovec { iov_base: all.as_mut_ptr().cast(), iov_len: size_of_val(&all[..]) },
    ];
    // SAFETY: two readable parts.
    let written = unsafe { sys!(libc::SYS_writev, made, parts.as_ptr(), parts.len()) };
    if written == Ok(bytes) {
        LEFT.store(handles::bequeath(made).unwrap_or(-1), Relaxed);
    }
    handles::close(made);
}

/// The exec failed.
pub(super) fn take_back() {
    let left = LEFT.swap(-1, Relaxed);
    if left >= 0 {
        handles::close(left);
    }
}

/// What the program that this process was before has left to it.
pub struct Bequest(Vec<Heirloom>);

/// Reads what was left to this program, and closes it. `None` if nothing was, or to another.
pub fn read_bequest() -> Option<Bequest> {
    let fd = handles::bequest()?;
    let mut words = [0u64; size_of::<Head>() / 8];
    // SAFETY: as many bytes.
    let into = unsafe {
        core::slice::from_raw_parts_mut(words.as_mut_ptr().cast::<u8>(), size_of::<Head>())
    };
    if !mapping::read_start(fd, into) {
        return None;
    }
    // SAFETY: integers of that size.
    let head = unsafe { words.as_ptr().cast::<Head>().read() };
    if head.magic != MAGIC {
        return None;
    }
    let all = read_rest(fd, &head);
    handles::close(fd);
    let is_ours = head.process == raw::getpid() as u64
        && head.start_time == proc::own_start_time()
        && executes(head.file);
    Some(Bequest(all?)).filter(|_| is_ours)
}

fn read_rest(fd: c_int, head: &Head) -> Option<Vec<Heirloom>> {
    let count = usize::try_from(head.count).ok().filter(|count| *count <= COUNT_MAX)?;
    let mut bytes = vec![0u8; size_of::<Head>() + count * size_of::<Heirloom>()];
    if !mapping::read_start(fd, &mut bytes) {
        return None;
    }
    let rest = bytes[size_of::<Head>()..].chunks_exact(size_of::<Heirloom>());
    // SAFETY: integers, of as many bytes.
    Some(rest.map(|it| unsafe { it.as_ptr().cast::<Heirloom>().read_unaligned() }).collect())
}

/// Whether this program was made of that file, or by its first line (execve(2), "Interpreter scripts").
fn executes(file: File) -> bool {
    // SAFETY: getauxval has no preconditions.
    let path = unsafe { libc::getauxval(libc::AT_EXECFN) } as *const c_char;
    let is_it = |path| file_at(libc::AT_FDCWD, path, 0) == Some(file);
    !path.is_null() && is_it(path) || is_it(c"/proc/self/exe".as_ptr())
}

impl Bequest {
    /// The streams are known from the start, as if this program had made them.
    pub fn accept(self) {
        let mut known: Vec<(u64, c_int)> = Vec::new();
        for it in self.0 {
            // Others run before us, and may have closed it.
            let owes_reset = it.is & is::RESET != 0;
            let is_it = handles::cookie(it.fd) == Ok(it.cookie)
                && table::get(it.fd) == Entry::Unknown
                && (tcp::is_connected(it.fd) || owes_reset);
            if !is_it {
                continue;
            }
            match known.iter().find(|(cookie, _)| *cookie == it.cookie) {
                Some((_, first)) => duplicated(*first, it.fd),
                None => {
                    let connector = it.is & is::CONNECTOR != 0;
                    let entry = opened(it.fd, handles::is_nonblocking(it.fd), connector);
                    if let (Entry::Socket(index), true) = (entry, owes_reset) {
                        attach::begin_with_reset(index);
                    }
                    known.push((it.cookie, it.fd));
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_that_the_loader_prepares_are_known() {
        assert!(dynamic_at(c"/proc/self/exe".as_ptr()).is_some(), "this test is one");
        assert!(dynamic_at(c"/dev/null".as_ptr()).is_none());
        assert!(dynamic_at(core::ptr::null()).is_none());
        assert!(!names_a_loader(b"\x7fELF\x02"));
        assert!(!names_a_loader(&[0xff; 64]));
        let mut hostile = [0xff; 64];
        hostile[..5].copy_from_slice(b"\x7fELF\x02");
        assert!(!names_a_loader(&hostile));
    }

    #[test]
    fn a_name_without_a_slash_is_searched_for() {
        let none = core::ptr::null();
        assert!(Image::searched(c"sh".as_ptr(), none).file().is_some());
        assert!(Image::searched(c"no-such-program".as_ptr(), none).file().is_none());
        assert!(Image::searched(core::ptr::null(), none).file().is_none());
    }

    #[test]
    fn the_environment_says_whether_the_next_program_is_ours() {
        let ours = |variables: &[&core::ffi::CStr]| {
            let all = variables.iter().map(|it| it.as_ptr()).chain([core::ptr::null()]);
            let all: Vec<_> = all.collect();
            Image::at(core::ptr::null(), all.as_ptr()).is_accelerated()
        };
        // This process was not.
        assert!(ours(&[c"A=1"]));
        assert!(!ours(&[c"A=1", c"SHUNT=off"]));
        assert!(!ours(&[c"LD_PRELOAD=/some/library.so"]));
        assert!(!Image::at(core::ptr::null(), core::ptr::null()).is_accelerated());
    }
}
