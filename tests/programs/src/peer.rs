//! A program that asks: run to its end, with its output for the test to judge.

use crate::stage::{find, Role, Stage};
use crate::watchdog::{end_group, until_ended};
use crate::Failure;
use std::ffi::OsStr;
use std::fs::File;
use std::hash::{DefaultHasher, Hasher};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

const SECONDS_MAX: u64 = 60;

pub struct Peer<'a> {
    stage: &'a Stage,
    program: String,
    command: Result<Command, Failure>,
    role: Role,
    input: Option<PathBuf>,
}

impl<'a> Peer<'a> {
    pub fn new(stage: &'a Stage, program: &str, role: Role) -> Peer<'a> {
        let command = find(program).map(Command::new);
        Peer { stage, program: program.to_owned(), command, role, input: None }
    }

    pub fn args<S: AsRef<OsStr>>(mut self, arguments: impl IntoIterator<Item = S>) -> Self {
        if let Ok(command) = &mut self.command {
            command.args(arguments);
        }
        self
    }

    pub fn input(mut self, path: PathBuf) -> Self {
        self.input = Some(path);
        self
    }

    /// Starts it and lets it run; see [`Working::output`].
    pub fn start(self) -> Result<Working, Failure> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let name = format!("{}-{}", self.program, COUNT.fetch_add(1, Relaxed));
        let output = self.stage.path(&format!("{name}.out"));
        let errors = self.stage.path(&format!("{name}.log"));
        let create = |path: &PathBuf| File::create(path).map_err(|error| error.to_string());
        let mut command = self.command?;
        let input = match self.input {
            Some(path) => Stdio::from(File::open(path).map_err(|error| error.to_string())?),
            None => Stdio::null(),
        };
        command.stdin(input).stdout(create(&output)?).stderr(create(&errors)?).process_group(0);
        command.current_dir(self.stage.path("."));
        self.stage.dress(&mut command, self.role);
        let child = command.spawn().map_err(|error| format!("{}: {error}", self.program))?;
        Ok(Working { child, program: self.program, output, errors })
    }

    /// Runs it to its end; anything but success is a failure.
    pub fn output(self) -> Result<Vec<u8>, Failure> {
        self.start()?.output()
    }

    pub fn text(self) -> Result<String, Failure> {
        self.start()?.text()
    }

    pub fn succeeds(self) -> Result<(), Failure> {
        self.output().map(|_| ())
    }
}

/// A peer at work.
pub struct Working {
    child: Child,
    program: String,
    output: PathBuf,
    errors: PathBuf,
}

impl Working {
    pub fn output(mut self) -> Result<Vec<u8>, Failure> {
        let status = until_ended(&mut self.child, &self.program, SECONDS_MAX)?;
        let output = std::fs::read(&self.output).map_err(|error| error.to_string())?;
        if status.success() {
            return Ok(output);
        }
        let errors = std::fs::read_to_string(&self.errors).unwrap_or_default();
        let said = crate::stage::last_words(&output, 600);
        Err(format!("{} ended with {status}: {}\n{said}", self.program, errors.trim_end()))
    }

    pub fn text(self) -> Result<String, Failure> {
        self.output().map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
    }
}

impl Drop for Working {
    fn drop(&mut self) {
        end_group(self.child.id(), libc::SIGKILL);
        // It has been killed; there is nothing left to report.
        let _ = self.child.wait();
    }
}

/// Bytes that no two places repeat, the same in every run.
pub fn content(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed | 1;
    let mut bytes = Vec::with_capacity(len + 8);
    while bytes.len() < len {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend_from_slice(&state.to_le_bytes());
    }
    bytes.truncate(len);
    bytes
}

pub fn digest(bytes: &[u8]) -> String {
    let mut hasher = DefaultHasher::new();
    hasher.write(bytes);
    format!("{} bytes {:016x}", bytes.len(), hasher.finish())
}

/// Fails, with both digests, unless the content is what it should be.
pub fn same(what: &str, got: &[u8], wanted: &[u8]) -> Result<(), Failure> {
    if got == wanted {
        return Ok(());
    }
    let at = got.iter().zip(wanted).position(|(g, w)| g != w);
    let at = at.unwrap_or(got.len().min(wanted.len()));
    let (got, wanted) = (digest(got), digest(wanted));
    Err(format!("{what}: got {got}, wanted {wanted}, first difference at byte {at}"))
}

/// Fails unless the text has the word.
pub fn says(text: &str, word: &str) -> Result<(), Failure> {
    if text.contains(word) {
        Ok(())
    } else {
        Err(format!("{word:?} is missing in: {text}"))
    }
}

pub fn never_says(text: &str, word: &str) -> Result<(), Failure> {
    if text.contains(word) {
        Err(format!("{word:?} was said: {text}"))
    } else {
        Ok(())
    }
}
