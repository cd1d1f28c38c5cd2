//! Where one test happens: a directory, free ports, who gets the library, and what the counters
//! say in the end. Everything is gone when the stage is.

use crate::application::Application;
use crate::peer::Peer;
use crate::{Failure, Outcome};
use shunt_stats::{read_file, Snapshot};
use std::fs::File;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// Of the streams that qualify, so many in a hundred must have gone up.
const UPGRADED_PERCENT_MIN: u64 = 95;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mode {
    Plain,
    Both,
    Server,
    Client,
}

impl Mode {
    pub fn named(text: &str) -> Result<Mode, Failure> {
        match text {
            "plain" => Ok(Mode::Plain),
            "both" => Ok(Mode::Both),
            "server" => Ok(Mode::Server),
            "client" => Ok(Mode::Client),
            other => Err(format!("{other} is not a mode: plain, both, server or client")),
        }
    }
}

/// What a program is in its test. Neighbours differ, so with one side accelerated no two
/// programs that talk to each other have the library, also in a chain.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Role {
    Client,
    Server,
    /// Behind a server that is a proxy.
    Backend,
}

/// What the loader may make of `$PLATFORM` (ld.so(8)), for programs of 64 bits and of 32.
const PLATFORMS_64: [&str; 4] = ["x86_64", "haswell", "xeon_phi", "aarch64"];
const PLATFORM_32: &str = "i686";

fn library_file(platform: &str) -> String {
    format!("libshunt-{platform}.so")
}

pub struct Stage {
    pub mode: Mode,
    directory: PathBuf,
}

impl Stage {
    pub fn set(mode: Mode, library: &Path) -> Stage {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let name = format!("shunt-prog-{}-{}", std::process::id(), COUNT.fetch_add(1, Relaxed));
        let directory = std::env::temp_dir().join(name);
        std::fs::create_dir_all(directory.join("report")).expect("a temporary directory");
        // Programs that run as another user write reports too, and must find the library.
        open_to_all(&directory.join("report"), 0o1733);
        open_to_all(&directory, 0o755);
        if mode != Mode::Plain {
            let beside = |platform: &str| library.with_file_name(library_file(platform));
            let copy = |from: &Path, platform: &str| {
                let to = directory.join(library_file(platform));
                std::fs::copy(from, &to).expect("the library is readable");
                open_to_all(&to, 0o755);
            };
            PLATFORMS_64.iter().for_each(|platform| copy(library, platform));
            // Without it, programs of 32 bits fail the tests that have them, and no others.
            if beside(PLATFORM_32).is_file() {
                copy(&beside(PLATFORM_32), PLATFORM_32);
            }
        }
        Stage { mode, directory }
    }

    pub fn application(&self, program: &str) -> Application<'_> {
        Application::new(self, program, Role::Server)
    }

    pub fn backend(&self, program: &str) -> Application<'_> {
        Application::new(self, program, Role::Backend)
    }

    pub fn peer(&self, program: &str) -> Peer<'_> {
        Peer::new(self, program, Role::Client)
    }

    /// Gives the command the library when its role has it in this mode.
    pub fn dress(&self, command: &mut Command, role: Role) {
        command.env_remove("LD_PRELOAD").env_remove("SHUNT_REPORT_DIR").env_remove("SHUNT");
        let accelerated = match self.mode {
            Mode::Plain => false,
            Mode::Both => true,
            Mode::Server => role == Role::Server,
            Mode::Client => role != Role::Server,
        };
        if accelerated {
            command.env("LD_PRELOAD", self.directory.join(library_file("$PLATFORM")));
            command.env("SHUNT_REPORT_DIR", self.directory.join("report"));
            // As `shunt run` does for who needs it.
            command.env("ASAN_OPTIONS", "verify_asan_link_order=0");
        }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }

    pub fn folder(&self, name: &str) -> PathBuf {
        let path = self.path(name);
        std::fs::create_dir_all(&path).expect("a folder in the temporary directory");
        open_to_all(&path, 0o777);
        path
    }

    pub fn file(&self, name: &str, content: impl AsRef<[u8]>) -> PathBuf {
        let path = self.path(name);
        std::fs::write(&path, content).expect("a file in the temporary directory");
        open_to_all(&path, 0o644);
        path
    }

    /// A port that nobody listens on at this moment.
    pub fn port(&self) -> u16 {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        listener.local_addr().expect("a bound socket has a name").port()
    }

    fn segments(&self) -> Vec<Snapshot> {
        let entries = std::fs::read_dir(self.path("report")).into_iter().flatten().flatten();
        entries
            .filter_map(|entry| File::open(entry.path()).ok())
            .filter_map(|file| read_file(&file).ok())
            .collect()
    }

    /// Sums over all processes: streams, eligible, eligible and upgraded, upgraded.
    fn sums(&self) -> [u64; 4] {
        self.segments().iter().fold([0; 4], |[all, eligible, both, upgraded], segment| {
            let t = &segment.totals;
            [
                all + t.streams,
                eligible + t.streams_eligible,
                both + t.streams_eligible_upgraded,
                upgraded + t.streams_upgraded,
            ]
        })
    }

    /// Streams that were on a ring and went back to TCP.
    pub fn reverted(&self) -> u64 {
        self.segments().iter().map(|segment| segment.totals.streams_reverted).sum()
    }

    /// Ends of streams that were on a ring.
    pub fn upgraded(&self) -> u64 {
        let [.., upgraded] = self.sums();
        upgraded
    }

    pub fn counters(&self) -> String {
        let [streams, eligible, both, upgraded] = self.sums();
        format!("{streams} streams, {upgraded} upgraded, {both} of {eligible} eligible")
    }

    /// The counters must show the fast path where it can run, and nothing of it where not.
    pub fn judge(&self) -> Outcome {
        let [streams, eligible, both, upgraded] = self.sums();
        match self.mode {
            Mode::Plain => Ok(()),
            _ if streams == 0 => Err("no stream was counted: was the library loaded?".to_owned()),
            Mode::Both if upgraded == 0 || eligible == 0 => {
                Err(format!("no stream was upgraded: {}", self.counters()))
            }
            Mode::Both if both * 100 < eligible * UPGRADED_PERCENT_MIN => {
                Err(format!("too few were upgraded: {}", self.counters()))
            }
            Mode::Server | Mode::Client if upgraded > 0 => {
                Err(format!("upgraded with one side accelerated: {}", self.counters()))
            }
            _ => Ok(()),
        }
    }

    /// What helps to understand a failure: every process's counters and the programs' last words.
    pub fn circumstances(&self) -> String {
        let mut text = String::new();
        for segment in self.segments() {
            let totals = &segment.totals;
            text.push_str(&format!(
                "  {} (pid {}): {} streams, {} upgraded of {} eligible, {} reverted, passed \
                 through {:?}, of them eligible {:?}\n",
                segment.program,
                segment.pid,
                totals.streams,
                totals.streams_upgraded,
                totals.streams_eligible,
                totals.streams_reverted,
                totals.pass_through,
                totals.eligible_on_tcp
            ));
        }
        for entry in std::fs::read_dir(&self.directory).into_iter().flatten().flatten() {
            if entry.path().extension().is_some_and(|extension| extension == "log") {
                let log = std::fs::read(entry.path()).unwrap_or_default();
                if !log.is_empty() {
                    let words = last_words(&log, 1500);
                    text.push_str(&format!("  {}: {words}\n", entry.path().display()));
                }
            }
        }
        text
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        // Nothing depends on it: the directory is in the system's temporary place.
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

/// The end of a program's output; content that is no text is only counted.
pub fn last_words(output: &[u8], bytes_max: usize) -> String {
    match std::str::from_utf8(output) {
        Ok(text) => {
            let from = text.len().saturating_sub(bytes_max);
            let from = (from..=text.len()).find(|&at| text.is_char_boundary(at)).unwrap_or(0);
            text[from..].trim_end().to_owned()
        }
        Err(_) => format!("({} bytes that are no text)", output.len()),
    }
}

fn open_to_all(path: &Path, mode: u32) {
    let permissions = std::fs::Permissions::from_mode(mode);
    std::fs::set_permissions(path, permissions).expect("our own file");
}

pub fn is_root() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    status.lines().any(|line| line.starts_with("Uid:") && line.split('\t').nth(2) == Some("0"))
}

/// Where the program is, or which package has it.
pub fn find(program: &str) -> Result<PathBuf, Failure> {
    const PLACES: &[&str] = &["/usr/bin", "/usr/sbin", "/bin", "/usr/lib/postgresql/*/bin"];
    const PACKAGES: &[(&str, &str)] = &[
        ("redis", "redis-server redis-tools"),
        ("nginx", "nginx"),
        ("wrk", "wrk"),
        ("memcached", "memcached"),
        ("postgres", "postgresql"),
        ("initdb", "postgresql"),
        ("psql", "postgresql"),
        ("pgbench", "postgresql"),
        ("haproxy", "haproxy"),
        ("sockperf", "sockperf"),
        ("iperf3", "iperf3"),
        ("NPtcp", "netpipe-tcp"),
        ("socat", "socat"),
        ("curl", "curl"),
        ("java", "default-jdk-headless"),
        ("node", "nodejs"),
        ("python3", "python3"),
    ];
    let versioned = std::fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let postgresql: Vec<PathBuf> = versioned.map(|entry| entry.path().join("bin")).collect();
    let from_path = std::env::var_os("PATH").unwrap_or_default();
    let places = PLACES.iter().map(PathBuf::from).chain(postgresql);
    places
        .chain(std::env::split_paths(&from_path))
        .map(|place| place.join(program))
        .find(|path| path.is_file())
        .ok_or_else(|| {
            let known = PACKAGES.iter().find(|(start, _)| program.starts_with(start));
            let package = known.map_or(program, |(_, package)| package);
            format!("{program} is not installed: apt-get install {package}")
        })
}
