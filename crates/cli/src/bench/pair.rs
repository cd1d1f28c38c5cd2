//! Starts the two processes of a benchmark and collects what they found.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use anyhow::{anyhow, bail, Context, Result};
use clap::ValueEnum;

use super::workload::Outcome;
use crate::args::{self, Pin, Way};
use crate::child;
use crate::library::{self, Library, Programs, PRELOAD_VARIABLE, REPORT_DIR_VARIABLE};
use crate::report;
use crate::run::ReportDir;

pub struct Pair<'a> {
    args: &'a args::Bench,
    size: usize,
    folder: PathBuf,
}

/// One way in one round.
pub struct Sample {
    pub client: Outcome,
    pub server_cpu_seconds: f64,
    /// Streams that left TCP; absent for ways that have none.
    pub streams_upgraded: Option<u64>,
}

impl<'a> Pair<'a> {
    pub fn new(args: &'a args::Bench, size: usize) -> Result<Pair<'a>> {
        let name = format!("shunt-bench-{}", std::process::id());
        let places = [PathBuf::from("/dev/shm"), std::env::temp_dir()];
        let folder = places.map(|place| place.join(&name)).into_iter();
        let folder = folder.into_iter().find(|folder| fs::create_dir(folder).is_ok());
        let folder =
            folder.ok_or_else(|| anyhow!("no folder can be made in /dev/shm or TMPDIR"))?;
        Ok(Pair { args, size, folder })
    }

    pub fn run(&self, way: Way) -> Result<Sample> {
        let counters = if way == Way::Shunt { Some(ReportDir::create()?) } else { None };
        let outcome = self.run_counted(way, counters.as_ref());
        if let Some(counters) = &counters {
            counters.remove();
        }
        outcome
    }

    fn run_counted(&self, way: Way, counters: Option<&ReportDir>) -> Result<Sample> {
        let at = self.folder.join("meeting").display().to_string();
        let (server_core, client_core) = match self.args.pin {
            Pin::Two => (Some(0), Some(1)),
            Pin::One => (Some(0), Some(0)),
            Pin::Free => (None, None),
        };
        let mut server = Peer::start(self.command("server", way, &at, server_core, counters)?)?;
        let address = server.line().context("the server did not start")?;
        let mut client =
            Peer::start(self.command("client", way, &address, client_core, counters)?)?;
        let client_line = client.line().context("the client failed")?;
        let server_line = server.line().context("the server failed")?;
        // The next pair meets at the same place.
        let _ = fs::remove_file(&at);
        Ok(Sample {
            client: serde_json::from_str(&client_line)?,
            server_cpu_seconds: server_line.parse()?,
            streams_upgraded: counters
                .map(|counters| report::sum(&counters.read().processes, None).streams_upgraded),
        })
    }

    fn command(
        &self,
        side: &str,
        way: Way,
        at: &str,
        core: Option<usize>,
        counters: Option<&ReportDir>,
    ) -> Result<Command> {
        let mut command = Command::new("/proc/self/exe");
        let measure = self.args.measure.to_possible_value();
        let measure = measure.as_ref().map_or("", |value| value.get_name());
        command.args(["bench-peer", side, super::summary::name(way), measure, at]);
        command.args([self.size.to_string(), self.args.seconds.to_string()]);
        command.stdin(Stdio::null()).stdout(Stdio::piped());
        command.env_remove(PRELOAD_VARIABLE).env_remove(REPORT_DIR_VARIABLE);
        if let Some(counters) = counters {
            let Library::At(library) = library::find()? else { bail!("the library is gone") };
            let value = library::preload_value(&library, Programs::Own, None)?;
            command.env(PRELOAD_VARIABLE, value.unwrap_or_default());
            command.env(REPORT_DIR_VARIABLE, counters.path());
        }
        child::ends_with_us(&mut command);
        if let Some(core) = core {
            child::on_core(&mut command, core);
        }
        Ok(command)
    }
}

impl Drop for Pair<'_> {
    fn drop(&mut self) {
        // What cannot be removed stays behind in a place for temporary files.
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// One process; it is ended when this value goes.
struct Peer {
    child: Child,
    lines: BufReader<std::process::ChildStdout>,
}

impl Peer {
    fn start(mut command: Command) -> Result<Peer> {
        let mut child = command.spawn()?;
        let output = child.stdout.take().context("no pipe to the process")?;
        Ok(Peer { child, lines: BufReader::new(output) })
    }

    fn line(&mut self) -> Result<String> {
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
