//! Where a recipe plays: a private folder, free ports, and commands that start plain or under
//! `shunt run`.

use std::cell::Cell;
use std::env;
use std::fs::{self, Permissions};
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use anyhow::{anyhow, Context, Result};

use super::server::Program;
use crate::child::is_root;
use crate::library::{self, Library};

/// Which of the two ends run under Shunt.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    Plain,
    Accelerated,
    ServerAlone,
    ClientAlone,
}

impl Mode {
    pub fn name(self) -> &'static str {
        match self {
            Mode::Plain => "plain",
            Mode::Accelerated => "accelerated",
            Mode::ServerAlone => "server alone",
            Mode::ClientAlone => "client alone",
        }
    }

    pub fn accelerates_servers(self) -> bool {
        matches!(self, Mode::Accelerated | Mode::ServerAlone)
    }

    pub fn accelerates_clients(self) -> bool {
        matches!(self, Mode::Accelerated | Mode::ClientAlone)
    }
}

/// The folder of all stages. It holds copies of `shunt` and the library, because other users must
/// be able to read them wherever they were built.
pub struct Theatre {
    folder: PathBuf,
    shunt: PathBuf,
}

/// A user other than root.
#[derive(Clone, Copy)]
pub struct User {
    pub uid: u32,
    pub gid: u32,
}

/// One recipe in one mode.
pub struct Stage {
    pub mode: Mode,
    pub port: u16,
    /// For the server behind the one that clients reach.
    pub port_behind: u16,
    pub folder: PathBuf,
    pub seconds: u32,
    pub is_root: bool,
    shunt: PathBuf,
    commands: Cell<u32>,
    streams: Cell<Streams>,
}

/// What the clients' reports say.
#[derive(Clone, Copy, Default)]
pub struct Streams {
    pub eligible: u64,
    pub upgraded: u64,
}

impl Theatre {
    pub fn open() -> Result<Theatre> {
        let folder = env::temp_dir().join(format!("shunt-demo-{}", std::process::id()));
        fs::create_dir(&folder).with_context(|| folder.display().to_string())?;
        let theatre = Theatre { shunt: folder.join("shunt"), folder };
        fs::set_permissions(&theatre.folder, Permissions::from_mode(0o755))?;
        install(&env::current_exe()?, &theatre.shunt)?;
        // Without the library `shunt run` says what to do; the plain half works.
        if let Ok(Library::At(library)) = library::find() {
            install(&library, &theatre.folder.join("libshunt.so"))?;
        }
        Ok(theatre)
    }

    pub fn stage(&self, recipe: &str, mode: Mode, seconds: u32) -> Result<Stage> {
        let folder = self.folder.join(format!("{recipe}-{}", mode.name().replace(' ', "-")));
        fs::create_dir(&folder)?;
        if let Some(user) = unprivileged_user() {
            std::os::unix::fs::chown(&folder, Some(user.uid), Some(user.gid))?;
        }
        fs::set_permissions(&folder, Permissions::from_mode(0o755))?;
        let [port, port_behind] = free_ports()?;
        Ok(Stage {
            mode,
            port,
            port_behind,
            folder,
            seconds,
            is_root: is_root(),
            shunt: self.shunt.clone(),
            commands: Cell::default(),
            streams: Cell::default(),
        })
    }
}

impl Drop for Theatre {
    fn drop(&mut self) {
        // What cannot be removed stays behind in a place for temporary files.
        let _ = fs::remove_dir_all(&self.folder);
    }
}

impl Stage {
    /// A program of this recipe; in this stage's mode, unless it says otherwise.
    pub fn command(&self, name: &str) -> Program<'_> {
        self.commands.set(self.commands.get() + 1);
        let number = self.commands.get();
        Program::new(self, name, format!("{name}-{number}"))
    }

    pub(super) fn shunt(&self) -> &Path {
        &self.shunt
    }

    /// Adds what a client's report says.
    pub(super) fn note_report(&self, report: &Path) -> Result<()> {
        let text = fs::read(report).with_context(|| format!("no report {}", report.display()))?;
        let report: serde_json::Value = serde_json::from_slice(&text)?;
        let count = |key: &str| report["totals"][key].as_u64().unwrap_or(0);
        let before = self.streams.get();
        self.streams.set(Streams {
            eligible: before.eligible + count("streams_eligible"),
            upgraded: before.upgraded + count("streams_eligible_upgraded"),
        });
        Ok(())
    }

    pub fn take_streams(&self) -> Streams {
        self.streams.take()
    }
}

/// The number that follows `label` in a program's output.
pub fn number_after(output: &str, label: &str) -> Result<f64> {
    let number = output.split_once(label).and_then(|(_, rest)| {
        let rest = rest.trim_start();
        let end = rest.find(|c: char| !(c.is_ascii_digit() || c == '.')).unwrap_or(rest.len());
        rest[..end].parse().ok()
    });
    number.ok_or_else(|| anyhow!("no number after `{label}` in:\n{output}"))
}

/// Whom programs run as that refuse to run as root; nobody else if this is not root.
pub fn unprivileged_user() -> Option<User> {
    if !is_root() {
        return None;
    }
    let users = fs::read_to_string("/etc/passwd").unwrap_or_default();
    let find = |name: &str| {
        let line = users.lines().find(|line| line.split(':').next() == Some(name))?;
        let mut fields = line.split(':').skip(2);
        Some(User { uid: fields.next()?.parse().ok()?, gid: fields.next()?.parse().ok()? })
    };
    Some(find("postgres").or_else(|| find("nobody")).unwrap_or(User { uid: 65534, gid: 65534 }))
}

fn free_ports() -> Result<[u16; 2]> {
    let listeners = [TcpListener::bind("127.0.0.1:0")?, TcpListener::bind("127.0.0.1:0")?];
    let [first, second] = &listeners;
    Ok([first.local_addr()?.port(), second.local_addr()?.port()])
}

fn install(from: &Path, to: &Path) -> Result<()> {
    fs::copy(from, to).with_context(|| format!("cannot copy {}", from.display()))?;
    fs::set_permissions(to, Permissions::from_mode(0o755))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_number_after_a_label_is_found() {
        let number = |output, label| number_after(output, label).unwrap();
        assert_eq!(number("x\nRequests/sec:  12345.67\n", "Requests/sec:"), 12345.67);
        assert_eq!(number("\"GET\",\"1.50\",\"2\"", "\"GET\",\""), 1.5);
        assert_eq!(number("tps = 7", "tps ="), 7.0);
        assert!(number_after("tps = none", "tps =").is_err());
    }
}
