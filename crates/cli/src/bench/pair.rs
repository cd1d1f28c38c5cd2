//! Starts the processes of a benchmark, by twos, and collects what they found.

use std::ffi::OsString;
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use anyhow::{anyhow, bail, Context, Result};

use super::case::{name, Case};
use super::record::Record;
use super::workload::Outcome;
use crate::args::bench::{Pin, Way};
use crate::library::{
    self, Library, Programs, PRELOAD_VARIABLE, REPORT_DIR_VARIABLE, SPIN_VARIABLE,
};
use crate::report;
use crate::run::ReportDir;
use crate::{calibrate, child};

/// Where pairs of processes meet, one after the other.
pub struct Meeting {
    folder: PathBuf,
}

/// One way in one round of a case.
pub struct Turn {
    pub round: u32,
    pub way: Way,
    pub case: Case,
    pub seconds: f64,
}

impl Meeting {
    pub fn new() -> Result<Meeting> {
        let name = format!("shunt-bench-{}", std::process::id());
        let places = [PathBuf::from("/dev/shm"), std::env::temp_dir()];
        let folder = places.map(|place| place.join(&name)).into_iter();
        let folder = folder.into_iter().find(|folder| fs::create_dir(folder).is_ok());
        let folder =
            folder.ok_or_else(|| anyhow!("no folder can be made in /dev/shm or TMPDIR"))?;
        Ok(Meeting { folder })
    }

    pub fn run(&self, turn: &Turn) -> Result<Record> {
        let counters = if turn.way == Way::Shunt { Some(ReportDir::create()?) } else { None };
        let outcome = self.run_counted(turn, counters.as_ref());
        if let Some(counters) = &counters {
            counters.remove();
        }
        outcome
    }

    fn run_counted(&self, turn: &Turn, counters: Option<&ReportDir>) -> Result<Record> {
        let (server_core, client_core) = match turn.case.pin {
            Pin::Two => (Some(0), Some(1)),
            Pin::One => (Some(0), Some(0)),
            Pin::Free => (None, None),
        };
        let pairs = 0..turn.case.pairs;
        let places: Vec<String> =
            pairs.map(|pair| self.folder.join(pair.to_string()).display().to_string()).collect();
        let (mut servers, mut clients) = (Vec::new(), Vec::new());
        for at in &places {
            servers.push(Peer::start(command("server", turn, at, server_core, counters)?)?);
        }
        for server in &mut servers {
            let address = server.line().context("the server did not start")?;
            clients.push(Peer::start(command("client", turn, &address, client_core, counters)?)?);
        }
        let (mut outcome, mut server_cpu_seconds) = (Outcome::default(), 0.0);
        for client in &mut clients {
            let line = client.line().context("the client failed")?;
            outcome = outcome.and(serde_json::from_str(&line)?);
        }
        for server in &mut servers {
            let line = server.line().context("the server failed")?;
            server_cpu_seconds += line.parse::<f64>()?;
        }
        // The next ones meet at the same places.
        places.iter().for_each(|at| drop(fs::remove_file(at)));
        let streams_upgraded =
            counters.map(|counters| report::sum(&counters.read().processes, None).streams_upgraded);
        let turn = (turn.round, turn.way, turn.case);
        Ok(Record::new(turn, &outcome, server_cpu_seconds, streams_upgraded))
    }
}

/// This executable again, as one of the two.
fn command(
    side: &str,
    turn: &Turn,
    at: &str,
    core: Option<usize>,
    counters: Option<&ReportDir>,
) -> Result<Command> {
    let mut command = Command::new("/proc/self/exe");
    command.args(["bench-peer", side, name(turn.way), at]);
    command.args([serde_json::to_string(&turn.case)?, turn.seconds.to_string()]);
    command.stdin(Stdio::null()).stdout(Stdio::piped());
    if turn.way == Way::Single {
        // It may be forbidden; who asked for it says so.
        command.stderr(Stdio::null());
    }
    command.env_remove(PRELOAD_VARIABLE).env_remove(REPORT_DIR_VARIABLE);
    if let Some(counters) = counters {
        command.env(PRELOAD_VARIABLE, preload()?);
        command.env(REPORT_DIR_VARIABLE, counters.path());
        if let Some(spin_ns) = calibrate::kept_spin_ns() {
            command.env(SPIN_VARIABLE, spin_ns.to_string());
        }
    }
    child::ends_with_us(&mut command);
    if let Some(core) = core {
        child::on_core(&mut command, core);
    }
    Ok(command)
}

/// The value of `LD_PRELOAD` that loads the library into this executable.
pub fn preload() -> Result<OsString> {
    let Library::At(library) = library::find()? else { bail!("the library is gone") };
    Ok(library::preload_value(&library, Programs::Own, None)?.unwrap_or_default())
}

impl Drop for Meeting {
    fn drop(&mut self) {
        // What cannot be removed stays behind in a place for temporary files.
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// One process; it is ended when this value goes.
pub struct Peer {
    child: Child,
    lines: BufReader<std::process::ChildStdout>,
}

impl Peer {
    pub fn start(mut command: Command) -> Result<Peer> {
        let mut child = command.spawn()?;
        let output = child.stdout.take().context("no pipe to the process")?;
        Ok(Peer { child, lines: BufReader::new(output) })
    }

    pub fn line(&mut self) -> Result<String> {
        let mut line = String::new();
        if self.lines.read_line(&mut line)? == 0 {
            return Err(anyhow!("it ended without a result"));
        }
        Ok(line.trim_end().to_owned())
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        // After its result a process ends by itself; one without a result is of no more use.
        if self.lines.fill_buf().is_err() || self.child.try_wait().is_ok_and(|it| it.is_none()) {
            let _ = self.child.kill();
        }
        let _ = self.child.wait();
    }
}
