//! The directory in which the processes under one `shunt run --report` keep their counters.
//!
//! Descendants may run as other users, so everybody may make files in it (as in `/tmp`), but only
//! its owner may list them; its name cannot be guessed.

use std::fs::{self, DirBuilder, File, Permissions};
use std::io::{self, Read};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use shunt_stats::Snapshot;

/// How the directory's name starts; `shunt stat` recognises counters by it.
pub const DIRECTORY_PREFIX: &str = "shunt-report-";
/// All may create and enter, nobody but the owner may list or remove another's files.
const MODE: u32 = 0o1733;

pub struct ReportDir {
    path: PathBuf,
}

/// What the files say.
pub struct Counters {
    pub processes: Vec<Snapshot>,
    pub unreadable: Vec<String>,
}

impl ReportDir {
    /// Makes the directory in memory if there is a place for that, else among temporary files.
    pub fn create() -> Result<ReportDir> {
        let name = format!("{DIRECTORY_PREFIX}{:016x}", random()?);
        let places = [PathBuf::from("/dev/shm"), std::env::temp_dir()];
        let mut outcome = Err(io::ErrorKind::NotFound.into());
        for path in places.map(|place| place.join(&name)) {
            outcome = make(&path);
            if outcome.is_ok() {
                return Ok(ReportDir { path });
            }
        }
        outcome.context("no directory for the counters can be made in /dev/shm or TMPDIR")?;
        unreachable!("an outcome that is no error has returned")
    }

    /// One that another process made.
    pub fn existing(path: PathBuf) -> ReportDir {
        ReportDir { path }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn read(&self) -> Counters {
        let mut counters = Counters { processes: Vec::new(), unreadable: Vec::new() };
        for entry in fs::read_dir(&self.path).into_iter().flatten().flatten() {
            match read_segment(&entry.path()) {
                Ok(process) => counters.processes.push(process),
                Err(error) => counters
                    .unreadable
                    .push(format!("{}: {error:#}", entry.file_name().to_string_lossy())),
            }
        }
        counters.processes.sort_by_key(|process| (process.start_time, process.pid));
        counters
    }

    pub fn remove(&self) {
        // What cannot be removed stays behind in a place for temporary files.
        let _ = fs::remove_dir_all(&self.path);
    }
}

/// Anybody may have put anything here: a FIFO must not make us wait, nor a link lead us away.
fn read_segment(path: &Path) -> Result<Snapshot> {
    let flags = libc::O_NONBLOCK | libc::O_NOFOLLOW;
    let file = File::options().read(true).custom_flags(flags).open(path)?;
    Ok(shunt_stats::read_file(&file)?)
}

fn make(path: &Path) -> io::Result<()> {
    DirBuilder::new().mode(0o700).create(path)?;
    // The mode given to mkdir would lose what the umask forbids.
    fs::set_permissions(path, Permissions::from_mode(MODE))
}

fn random() -> Result<u64> {
    let mut bytes = [0; 8];
    File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(u64::from_ne_bytes(bytes))
}
