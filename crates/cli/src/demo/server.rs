//! The programs that a stage starts, and their certain end.

use std::ffi::OsString;
use std::fs::{self, File};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{bail, Context, Result};

use super::install;
use super::stage::{unprivileged_user, Stage};
use crate::{child, interrupt};

const START_TIME_MAX: Duration = Duration::from_secs(20);
/// Beyond the seconds that the measure itself takes.
const CLIENT_TIME_MAX: Duration = Duration::from_secs(40);
const STOP_TIME_MAX: Duration = Duration::from_secs(5);
const GLANCE_EVERY: Duration = Duration::from_millis(5);

/// A program about to be started.
pub struct Program<'a> {
    stage: &'a Stage,
    name: String,
    files: String,
    args: Vec<OsString>,
    never_accelerated: bool,
    core: Option<usize>,
    unprivileged: bool,
}

impl<'a> Program<'a> {
    pub fn new(stage: &'a Stage, name: &str, files: String) -> Program<'a> {
        Program {
            stage,
            name: name.to_owned(),
            files,
            args: Vec::new(),
            never_accelerated: false,
            core: None,
            unprivileged: false,
        }
    }

    pub fn args<'b>(mut self, args: impl IntoIterator<Item = &'b str>) -> Program<'a> {
        self.args.extend(args.into_iter().map(OsString::from));
        self
    }

    pub fn arg(self, arg: &str) -> Program<'a> {
        self.args([arg])
    }

    /// Not as root.
    pub fn unprivileged(self) -> Program<'a> {
        Program { unprivileged: true, ..self }
    }

    /// Never accelerated; for what is not measured.
    pub fn plain(self) -> Program<'a> {
        Program { never_accelerated: true, ..self }
    }

    pub fn on_core(self, core: usize) -> Program<'a> {
        Program { core: Some(core), ..self }
    }

    /// Starts a server and returns when it listens on the stage's port.
    pub fn serve(self) -> Result<Server> {
        let port = self.stage.port;
        self.serve_at(port)
    }

    pub fn serve_at(self, port: u16) -> Result<Server> {
        let accelerated = self.stage.mode.accelerates_servers() && !self.never_accelerated;
        let server = self.start(accelerated)?;
        server.wait_until("does not listen", || is_listening(port))?;
        Ok(server)
    }

    /// Runs a client to its end and gives what it printed.
    pub fn output(self) -> Result<String> {
        let stage = self.stage;
        let accelerated = stage.mode.accelerates_clients() && !self.never_accelerated;
        let deadline = Instant::now() + CLIENT_TIME_MAX + Duration::from_secs(stage.seconds.into());
        let client = self.start(accelerated)?;
        while client.ended()?.is_none() {
            interrupt::check()?;
            if Instant::now() > deadline {
                bail!("{} did not end in time and printed:\n{}", client.name, client.printed());
            }
            sleep(GLANCE_EVERY);
        }
        let printed = client.printed();
        match client.ended()? {
            Some(status) if status.success() => {}
            Some(status) => bail!("{} failed ({status}) and printed:\n{printed}", client.name),
            None => {}
        }
        if accelerated {
            stage.note_report(&client.report)?;
        }
        Ok(printed)
    }

    fn start(self, accelerated: bool) -> Result<Server> {
        interrupt::check()?;
        let path = install::find(&self.name).with_context(|| format!("no {}", self.name))?;
        let folder = &self.stage.folder;
        let report = folder.join(format!("{}.json", self.files));
        let output = folder.join(format!("{}.out", self.files));
        let mut command =
            if accelerated { self.under_shunt(&path, &report) } else { Command::new(&path) };
        command.args(&self.args).current_dir(folder).env("LC_ALL", "C");
        let file = File::create(&output)?;
        command.stdin(Stdio::null()).stdout(file.try_clone()?).stderr(file);
        // Its own group, so that Ctrl-C reaches only the demo, which ends it in order.
        command.process_group(0);
        if let Some(user) = unprivileged_user().filter(|_| self.unprivileged) {
            command.uid(user.uid).gid(user.gid);
        }
        child::ends_with_us(&mut command);
        if let Some(core) = self.core {
            child::on_core(&mut command, core);
        }
        let child = command.spawn().with_context(|| format!("cannot start {}", self.name))?;
        Ok(Server { name: self.name, child: Some(child).into(), output, report })
    }

    fn under_shunt(&self, path: &Path, report: &Path) -> Command {
        let mut command = Command::new(self.stage.shunt());
        command.arg("run").arg("--report").arg(report).arg("--").arg(path);
        command
    }
}

/// A program that runs. It is ended when this value goes.
pub struct Server {
    name: String,
    child: std::cell::RefCell<Option<Child>>,
    output: PathBuf,
    report: PathBuf,
}

impl Server {
    pub fn wait_until_it_says(&self, words: &str) -> Result<()> {
        self.wait_until(&format!("does not say `{words}`"), || self.printed().contains(words))
    }

    /// Fails if it does not.
    pub fn still_runs(&self) -> Result<()> {
        if let Some(status) = self.ended()? {
            bail!("{} ended ({status}) and printed:\n{}", self.name, self.printed());
        }
        Ok(())
    }

    fn wait_until(&self, otherwise: &str, is_so: impl Fn() -> bool) -> Result<()> {
        let deadline = Instant::now() + START_TIME_MAX;
        while !is_so() {
            interrupt::check()?;
            self.still_runs()?;
            if Instant::now() > deadline {
                bail!("{} {otherwise}; it printed:\n{}", self.name, self.printed());
            }
            sleep(GLANCE_EVERY);
        }
        Ok(())
    }

    fn ended(&self) -> Result<Option<ExitStatus>> {
        match &mut *self.child.borrow_mut() {
            Some(child) => Ok(child.try_wait()?),
            None => Ok(None),
        }
    }

    fn printed(&self) -> String {
        String::from_utf8_lossy(&fs::read(&self.output).unwrap_or_default()).into_owned()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let Some(mut process) = self.child.get_mut().take() else { return };
        let has_ended = |child: &mut Child| !matches!(child.try_wait(), Ok(None));
        if has_ended(&mut process) {
            return;
        }
        let pid = process.id() as i32;
        // All of them take SIGINT as the wish to end at once but in order.
        child::send(pid, libc::SIGINT);
        let deadline = Instant::now() + STOP_TIME_MAX;
        while !has_ended(&mut process) && Instant::now() < deadline {
            sleep(GLANCE_EVERY);
        }
        child::send(-pid, libc::SIGKILL);
        let _ = process.wait();
    }
}

/// Asks the kernel's table, since a trial connection would be the server's first client.
fn is_listening(port: u16) -> bool {
    const LISTEN: &str = "0A";
    let ending = format!(":{port:04X}");
    let listens = |line: &str| {
        let mut fields = line.split_ascii_whitespace().skip(1);
        let local = fields.next().unwrap_or_default();
        local.ends_with(&ending) && fields.nth(1) == Some(LISTEN)
    };
    // Java's sockets are of the second kind, whatever the address.
    ["/proc/net/tcp", "/proc/net/tcp6"]
        .map(|table| fs::read_to_string(table).unwrap_or_default())
        .iter()
        .any(|table| table.lines().skip(1).any(listens))
}
