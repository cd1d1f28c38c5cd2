//! One run of one scenario: two processes, their transcripts, and a watchdog that ends what hangs
//! and says where it hung.

use crate::actor::{Carrier, Side, GOES_ON, WARM_UP};
use crate::calls::socket::Family;
use crate::calls::{io, process, socket, wait, Fd, Got};
use crate::fast_path;
use std::fs::File;
use std::os::fd::{FromRawFd, OwnedFd};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// Where the accelerated programs of a run leave their stats segments, in its directory.
const REPORT: &str = "shunt-report-here";
/// A run of which nothing is heard for so long hangs. One that goes on takes as long as the machine lets it.
const WATCHDOG_SECONDS: u64 = 20;
/// Processes that an actor left behind may take this long to end.
const LEFT_OVER_SECONDS: u64 = 5;

/// Which of the two sides runs with the library.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mode {
    Plain,
    Both,
    Server,
    Client,
}

impl Mode {
    fn accelerates(self, side: Side) -> bool {
        match self {
            Mode::Plain => false,
            Mode::Both => true,
            Mode::Server => side == Side::Server,
            Mode::Client => side == Side::Client,
        }
    }
}

#[derive(Clone, Copy)]
pub struct Setting {
    pub scenario: &'static str,
    pub mode: Mode,
    pub carrier: Carrier,
    pub family: Family,
    /// Otherwise every stream is set O_NONBLOCK after its warm-up.
    pub blocks: bool,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Note {
    pub who: String,
    pub what: String,
    pub got: String,
}

/// What happened, as far as two runs are compared, and what explains it.
pub struct Record {
    pub notes: Vec<Note>,
    /// Something went wrong that no comparison is needed for.
    pub trouble: Option<String>,
    pub stderr: String,
    pub hung: bool,
    /// Notes and signs of life.
    heard: u64,
}

/// A directory that goes when the run ends.
struct Directory(PathBuf);

impl Directory {
    fn new() -> Directory {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let name = format!("shunt-diff-{}-{}", process::pid(), COUNT.fetch_add(1, Relaxed));
        let path = fast_path::place().join(name);
        std::fs::create_dir_all(&path).expect("a temporary directory");
        Directory(path)
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        // Nothing depends on it: the place is a temporary one.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

struct Running {
    side: Side,
    child: Child,
    control: OwnedFd,
    open: bool,
}

/// The files that take part.
pub struct Files {
    /// For LD_PRELOAD, so that it may hold the loader's `$PLATFORM`.
    pub library: PathBuf,
    /// This program once more, built for another kind of programs: it plays the server's side, and each
    /// side starts the other one's file where it starts a program.
    pub other: Option<PathBuf>,
}

/// With the record of kernel TCP, each side can read what was noted there (`Actor::oracle`).
pub fn run(setting: &Setting, files: &Files, oracle: Option<&Record>) -> Record {
    let directory = Directory::new();
    if let Some(oracle) = oracle {
        write_oracle(oracle, &directory.0);
    }
    let (beside_client, beside_server) = pair();
    let mut sides = [
        start(setting, Side::Client, beside_client, files, &directory.0),
        start(setting, Side::Server, beside_server, files, &directory.0),
    ];
    let mut record =
        Record { notes: Vec::new(), trouble: None, stderr: String::new(), hung: false, heard: 0 };
    let finished = listen(&mut sides, setting, &directory.0, &mut record);
    record.hung = !finished;
    if !finished {
        record.trouble = Some(describe_hang(&sides, &record));
        sides.iter().for_each(kill_group);
    }
    for running in &mut sides {
        let status = running.child.wait().expect("the actor is our child");
        let got = match (status.code(), status.signal()) {
            (Some(code), _) => format!("exited {code}"),
            (None, signal) => format!("killed by {}", signal.unwrap_or(0)),
        };
        let who = format!("{:?}", running.side).to_lowercase();
        if got != "exited 0" && record.trouble.is_none() {
            record.trouble = Some(format!("{who} {got}"));
        }
        kill_group(running);
        record.notes.push(Note { who, what: "the process".to_owned(), got });
    }
    for name in ["client", "server"] {
        let text = std::fs::read_to_string(directory.0.join(name)).unwrap_or_default();
        record.stderr.push_str(&text);
    }
    if finished {
        check_path(setting, &directory.0, &mut record);
    }
    record.notes.retain(|note| note.what != WARM_UP);
    record
}

fn write_oracle(oracle: &Record, directory: &Path) {
    for who in ["client", "server"] {
        let notes = oracle.notes.iter().filter(|note| note.who == who);
        let notes: Vec<_> = notes.map(|note| [&note.what, &note.got]).collect();
        let text = serde_json::to_string(&notes).expect("notes are text");
        std::fs::write(oracle_file(directory, who), text).expect("a file for the oracle");
    }
}

fn oracle_file(directory: &Path, who: &str) -> PathBuf {
    directory.join(format!("oracle-{who}"))
}

/// The fast path must not have run where it cannot.
fn check_path(setting: &Setting, directory: &Path, record: &mut Record) {
    let report = directory.join(REPORT);
    let wrong = match (setting.mode, setting.carrier) {
        (Mode::Server | Mode::Client, _) => (fast_path::upgraded_streams(&report) > 0
            && !crate::scenarios::pairs_with_itself(setting.scenario))
        .then_some("a stream with one accelerated side was counted as upgraded"),
        _ => None,
    };
    if let (Some(wrong), None) = (wrong, &record.trouble) {
        record.trouble = Some(format!("{wrong}\n    {}", fast_path::reasons(&report)));
    }
}

fn pair() -> (OwnedFd, OwnedFd) {
    let (one, other) = socket::socketpair(libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC);
    (owned(one), owned(other))
}

#[allow(unsafe_code)] // UNSAFETY: takes ownership of descriptors that were just made.
fn owned(fd: Fd) -> OwnedFd {
    // SAFETY: the caller has just made the descriptor and uses it no more.
    unsafe { OwnedFd::from_raw_fd(fd) }
}

fn start(
    setting: &Setting,
    side: Side,
    beside: OwnedFd,
    files: &Files,
    directory: &Path,
) -> Running {
    let (control, actor_control) = pair();
    let name = format!("{side:?}").to_lowercase();
    let stderr = File::create(directory.join(&name)).expect("a file for stderr");
    let own = std::env::current_exe().expect("this program has a path");
    let other = files.other.as_ref().unwrap_or(&own);
    let (program, starts) = if side == Side::Server { (other, &own) } else { (&own, other) };
    let mut command = Command::new(program);
    command
        .env(crate::helpers::PROGRAM_VARIABLE, starts)
        .env(crate::actor::ORACLE_VARIABLE, oracle_file(directory, &name))
        .args(["--act", &name, setting.scenario])
        .args([format!("{:?}", setting.carrier), format!("{:?}", setting.family)])
        .arg(setting.blocks.to_string())
        .stdin(Stdio::from(beside))
        .stdout(Stdio::from(actor_control))
        .stderr(Stdio::from(stderr))
        .env_remove("LD_PRELOAD")
        .env_remove("SHUNT_REPORT_DIR")
        .process_group(0);
    if setting.mode.accelerates(side) {
        let report = directory.join(REPORT);
        std::fs::create_dir_all(&report).expect("a report directory");
        command.env("LD_PRELOAD", &files.library).env("SHUNT_REPORT_DIR", report);
    }
    let child = command.spawn().expect("this binary starts");
    Running { side, child, control, open: true }
}

/// Takes in both transcripts until both have ended; false when neither has said anything for the watchdog's time.
fn listen(
    sides: &mut [Running; 2],
    setting: &Setting,
    directory: &Path,
    record: &mut Record,
) -> bool {
    let within = |seconds| Instant::now() + Duration::from_secs(seconds);
    let mut deadline = within(WATCHDOG_SECONDS);
    let mut heard = 0;
    while sides.iter().any(|running| running.open) {
        let left = deadline.saturating_duration_since(Instant::now()).as_millis() as i32;
        if left == 0 {
            return false;
        }
        let set: Vec<(Fd, i16)> = sides
            .iter()
            .map(|running| if running.open { fd_of(running) } else { -1 })
            .map(|fd| (fd, libc::POLLIN))
            .collect();
        let (_, ready) = wait::poll(&set, left.min(200));
        for (running, ready) in sides.iter_mut().zip(ready) {
            if ready != 0 {
                take_message(running, setting, directory, record);
            }
        }
        let ended = |running: &mut Running| running.child.try_wait().is_ok_and(|s| s.is_some());
        if sides.iter_mut().all(ended) {
            deadline = deadline.min(within(LEFT_OVER_SECONDS));
        } else if record.heard > heard {
            heard = record.heard;
            deadline = within(WATCHDOG_SECONDS);
        }
    }
    true
}

fn fd_of(running: &Running) -> Fd {
    std::os::fd::AsRawFd::as_raw_fd(&running.control)
}

fn take_message(running: &mut Running, setting: &Setting, directory: &Path, record: &mut Record) {
    let mut room = vec![0; 1 << 16];
    let count = match io::recv(fd_of(running), &mut room, 0) {
        Got::Errno(libc::EINTR) => return,
        got => got.count().unwrap_or(0),
    };
    if count == 0 {
        running.open = false;
    } else if &room[..count] == GOES_ON {
        record.heard += 1;
    } else if room[0] == b'?' {
        let answer = answer(&String::from_utf8_lossy(&room[..count]), setting, directory);
        io::send(fd_of(running), if answer { b"yes" } else { b"no!" }, libc::MSG_NOSIGNAL);
    } else if let Ok(line) = serde_json::from_slice::<serde_json::Value>(&room[..count]) {
        let text = |key: &str| line[key].as_str().unwrap_or_default().to_owned();
        let note = Note { who: text("who"), what: text("what"), got: text("got") };
        if note.what == WARM_UP {
            // The fast path must have run where it should; what stands in the way may be gone at the end.
            record.trouble.get_or_insert_with(|| {
                let reasons = fast_path::reasons(&directory.join(REPORT));
                format!("a stream did not reach the ring in the warm-up\n    {reasons}")
            });
        }
        record.notes.push(note);
        record.heard += 1;
    }
}

/// Nothing is awaited where nothing can come.
fn answer(question: &str, setting: &Setting, directory: &Path) -> bool {
    if setting.mode != Mode::Both {
        return true;
    }
    let report = directory.join(REPORT);
    let words: Vec<&str> = question.split(' ').collect();
    let number = |at: usize| words.get(at).and_then(|word| word.parse().ok()).unwrap_or(0);
    match words[0] {
        "?upgraded" => fast_path::is_upgraded(&report, number(1), number(2)),
        "?left" => fast_path::has_left(&report, number(1), number(2), words[3]),
        "?all-upgraded" => {
            fast_path::ends_on_rings(&report, number(1)) == 2 * usize::from(number(2))
        }
        _ => false,
    }
}

fn kill_group(running: &Running) {
    process::kill(-(running.child.id() as i32), libc::SIGKILL);
}

/// Every process of both groups: where it is and what it last said.
fn describe_hang(sides: &[Running; 2], record: &Record) -> String {
    let mut text = format!("hung: neither said anything for {WATCHDOG_SECONDS} s");
    let groups: Vec<String> = sides.iter().map(|side| side.child.id().to_string()).collect();
    for entry in std::fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Ok(stat) = std::fs::read_to_string(entry.path().join("stat")) else { continue };
        let fields: Vec<&str> = stat.rsplit(") ").next().unwrap_or("").split(' ').collect();
        if fields.len() > 2 && groups.contains(&fields[2].to_owned()) {
            text.push_str(&describe_threads(&entry.path(), fields[0]));
        }
    }
    for who in ["client", "server"] {
        let last = record.notes.iter().rfind(|note| note.who.starts_with(who));
        let said = last.map_or("nothing".to_owned(), |note| {
            format!("{}: {} = {}", note.who, note.what, note.got)
        });
        text.push_str(&format!("\n    {who} last said {said}"));
    }
    text
}

fn describe_threads(process: &Path, state: &str) -> String {
    let mut text = String::new();
    for task in std::fs::read_dir(process.join("task")).into_iter().flatten().flatten() {
        let read = |name: &str| {
            std::fs::read_to_string(task.path().join(name)).unwrap_or_default().trim().to_owned()
        };
        let command = std::fs::read_to_string(process.join("cmdline")).unwrap_or_default();
        text.push_str(&format!(
            "\n    {} {} [{state}] thread {}: in {} (system call {})",
            process.display(),
            command.replace('\0', " ").trim(),
            task.file_name().to_string_lossy(),
            read("wchan"),
            read("syscall"),
        ));
    }
    text
}
