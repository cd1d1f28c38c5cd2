//! A program that serves: started, ready when its port answers, ended with all its children when
//! the test lets go of it.

use crate::stage::{find, Role, Stage};
use crate::watchdog::{end_group, group_exists, signal, until, until_ended, until_listening};
use crate::Failure;
use std::ffi::OsStr;
use std::fs::File;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};

pub struct Application<'a> {
    stage: &'a Stage,
    program: String,
    command: Result<Command, Failure>,
    role: Role,
}

impl<'a> Application<'a> {
    pub fn new(stage: &'a Stage, program: &str, role: Role) -> Application<'a> {
        let command = find(program).map(Command::new);
        Application { stage, program: program.to_owned(), command, role }
    }

    pub fn args<S: AsRef<OsStr>>(mut self, arguments: impl IntoIterator<Item = S>) -> Self {
        if let Ok(command) = &mut self.command {
            command.args(arguments);
        }
        self
    }

    /// Starts it, and returns when it accepts connections on the port.
    pub fn listening_on(self, port: u16) -> Result<Running, Failure> {
        let log = format!("{}-{port}.log", self.program);
        let log = File::create(self.stage.path(&log)).map_err(|error| error.to_string())?;
        let mut command = self.command?;
        let errors = log.try_clone().map_err(|error| error.to_string())?;
        command.stdin(Stdio::null()).stdout(log).stderr(errors).process_group(0);
        command.current_dir(self.stage.path("."));
        self.stage.dress(&mut command, self.role);
        let child = command.spawn().map_err(|error| format!("{}: {error}", self.program))?;
        let mut running = Running { child, program: self.program };
        until_listening(port, &mut running.child)
            .map_err(|failure| format!("{}: {failure}", running.program))?;
        Ok(running)
    }
}

/// Ends the program, and what it started, when dropped.
pub struct Running {
    child: Child,
    program: String,
}

impl Running {
    pub fn signal(&self, number: i32) {
        signal(self.child.id(), number);
    }

    /// For a program that serves one client and ends.
    pub fn ends_well(&mut self) -> Result<(), Failure> {
        let status = until_ended(&mut self.child, &self.program, 10)?;
        if status.success() {
            Ok(())
        } else {
            Err(format!("{} ended: {status}", self.program))
        }
    }

    /// Fails when the program has ended by itself.
    pub fn still_runs(&mut self) -> Result<(), Failure> {
        match self.child.try_wait() {
            Ok(None) => Ok(()),
            Ok(Some(status)) => Err(format!("{} ended: {status}", self.program)),
            Err(error) => Err(format!("{}: {error}", self.program)),
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let leader = self.child.id();
        end_group(leader, libc::SIGTERM);
        let gone = |child: &mut Child| {
            child.try_wait().is_ok_and(|status| status.is_some()) && !group_exists(leader)
        };
        if until("it ended", 5, || gone(&mut self.child)).is_err() {
            end_group(leader, libc::SIGKILL);
            // It has been killed; there is nothing left to report.
            let _ = self.child.wait();
        }
    }
}
