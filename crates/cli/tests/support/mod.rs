//! What the tests of the command share: the command itself, a folder for each test, and a program
//! that counts as the library does, so that these tests need no library.
// UNSAFETY: the counting program maps a segment.
#![allow(unsafe_code, dead_code)]

use std::env;
use std::ffi::CString;
use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::fd::{AsRawFd, FromRawFd, IntoRawFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use shunt_stats::{Carrier, Segment, MEMFD_NAME, SEGMENT_BYTES};

/// Tells the test executable to be the counting program instead, and how it is to end.
const ROLE: &str = "SHUNT_TEST_ROLE";

/// `shunt`, with some harmless shared object in the place of the library. With this setting a run
/// measures nothing first, and leaves the user's folders alone.
pub fn shunt() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_shunt"));
    command.env("SHUNT_LIBRARY", harmless_library()).env("SHUNT_SPIN_NS", "50000");
    command
}

/// The C library, which every program loads anyway.
pub fn harmless_library() -> PathBuf {
    let maps = fs::read_to_string("/proc/self/maps").unwrap();
    let path = maps
        .lines()
        .find_map(|line| line.find('/').map(|at| &line[at..]).filter(|it| it.contains("libc.so")));
    PathBuf::from(path.expect("the C library is mapped"))
}

pub fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

pub fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

/// One line on standard error that holds all these words.
pub fn assert_one_line(output: &Output, words: &[&str]) {
    let text = stderr(output);
    assert_eq!(text.lines().count(), 1, "{text}");
    assert!(words.iter().all(|word| text.contains(word)), "{text}");
}

/// A folder that goes away with the value.
pub struct Folder(PathBuf);

impl Folder {
    pub fn new() -> Folder {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("shunt-cli-{}-{}", std::process::id(), NEXT.fetch_add(1, Relaxed));
        let path = env::temp_dir().join(name);
        fs::create_dir(&path).unwrap();
        Folder(path)
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    pub fn file(&self, name: &str, content: &[u8], mode: u32) -> PathBuf {
        let path = self.path(name);
        // Another process writes it: an executable that we had open, if only until a forked test
        // of another thread has exec'ed, could not be started.
        let mut install = Command::new("install");
        install.arg("-m").arg(format!("{mode:o}")).arg("/dev/stdin").arg(&path);
        let mut install = install.stdin(Stdio::piped()).spawn().unwrap();
        install.stdin.take().unwrap().write_all(content).unwrap();
        assert!(install.wait().unwrap().success());
        path
    }

    pub fn names(&self) -> Vec<String> {
        let entries = fs::read_dir(&self.0).unwrap();
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

pub fn json(path: &Path) -> serde_json::Value {
    serde_json::from_slice(&fs::read(path).unwrap()).unwrap()
}

/// The words that run the counting program, which is a test of the calling executable by that name.
pub fn counting_program() -> [String; 4] {
    let own = env::current_exe().unwrap().into_os_string().into_string().unwrap();
    [own, "be_the_counting_program".into(), "--exact".into(), "--nocapture".into()]
}

/// How the counting program ends.
#[derive(Clone, Copy)]
pub enum End {
    Return,
    Killed,
    /// After its standard input.
    WithInput,
}

pub fn role(end: End) -> (&'static str, &'static str) {
    let end = match end {
        End::Return => "return",
        End::Killed => "killed",
        End::WithInput => "with input",
    };
    (ROLE, end)
}

/// To be called by the test `be_the_counting_program`, which does nothing in an ordinary run.
pub fn count_if_told() {
    let Ok(end) = env::var(ROLE) else { return };
    let segment = new_segment();
    count(&segment);
    println!("counted by {}", std::process::id());
    match end.as_str() {
        // SAFETY: no memory is involved.
        "killed" => _ = unsafe { libc::raise(libc::SIGKILL) },
        "with input" => _ = std::io::stdin().read_to_end(&mut Vec::new()),
        _ => {}
    }
}

/// Two streams: one closed, one open, on a ring.
fn count(segment: &Segment) {
    let closed = segment.open_stream();
    closed.sent(Carrier::Tcp, 100);
    segment.close_stream(closed);
    let open = segment.open_stream();
    open.set_addresses(&[127, 0, 0, 1], 6379, &[127, 0, 0, 1], 40000);
    open.set_carrier_tx(Carrier::Shm);
    open.set_carrier_rx(Carrier::Shm);
    open.peer_is_shunt();
    open.upgraded();
    (0..9).for_each(|_| open.sent(Carrier::Shm, 10));
    open.received(Carrier::Shm, 7);
}

/// In the report's directory if there is one, else in a memfd, as the library does.
fn new_segment() -> Segment {
    let pid = std::process::id();
    let file = match env::var_os("SHUNT_REPORT_DIR") {
        Some(folder) => {
            let path = PathBuf::from(folder).join(format!("{pid}-1"));
            File::options().read(true).write(true).create_new(true).mode(0o600).open(path).unwrap()
        }
        None => {
            let name = CString::new(MEMFD_NAME).unwrap();
            // SAFETY: the name is terminated and lives through the call.
            let fd = unsafe { libc::memfd_create(name.as_ptr(), libc::MFD_CLOEXEC) };
            assert!(fd >= 0);
            // SAFETY: a new descriptor that nobody else owns.
            unsafe { File::from_raw_fd(fd) }
        }
    };
    file.set_len(SEGMENT_BYTES as u64).unwrap();
    let access = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: a new mapping at a place that the kernel chooses.
    let base = unsafe {
        libc::mmap(ptr::null_mut(), SEGMENT_BYTES, access, libc::MAP_SHARED, file.as_raw_fd(), 0)
    };
    assert_ne!(base, libc::MAP_FAILED);
    let _stays_open = file.into_raw_fd();
    let base = NonNull::new(base.cast()).unwrap();
    // SAFETY: page-aligned, zero, of this size, and never unmapped.
    unsafe { Segment::create(base, pid, own_start_time(), b"counting") }
}

fn own_start_time() -> u64 {
    let stat = fs::read_to_string("/proc/self/stat").unwrap();
    stat.rsplit_once(") ").unwrap().1.split(' ').nth(19).unwrap().parse().unwrap()
}
