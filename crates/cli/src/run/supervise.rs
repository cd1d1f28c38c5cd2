//! `shunt run --report`: the parent of the program until it ends.
//!
//! The report is written when the program ends, since `shunt` ends with it. Descendants that are
//! left then are waited for by a process in the background, which writes the report again at the
//! end of the last one and removes the directory of counters.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{bail, Context, Result};
use shunt_stats::{Reason, Snapshot};

use super::process::{self, Change, Pid};
use super::program::Refused;
use super::report_dir::{Counters, ReportDir};
use super::signals::{self, Event, Signal, Signals};
use super::{family, not_started, own};
use crate::args;
use crate::library::REPORT_DIR_VARIABLE;
use crate::report::{self, Ended, Report, ReportProcess, SCHEMA};

pub fn run(
    mut command: Command,
    words: &[OsString],
    report: &Path,
    reason: Option<Reason>,
) -> Result<std::convert::Infallible, Refused> {
    let report = std::path::absolute(report).map_err(own)?;
    check_writable(&report).map_err(|error| own(format!("{error:#}")))?;
    let counters = ReportDir::create().map_err(|error| own(format!("{error:#}")))?;
    command.env(REPORT_DIR_VARIABLE, counters.path());

    let signals = Signals::block().map_err(own)?;
    signals.prepare(&mut command);
    process::adopt_orphans();
    let started = Instant::now();
    let path = PathBuf::from(command.get_program());
    let child = match command.spawn() {
        Ok(child) => child.id() as Pid,
        Err(error) => {
            counters.remove();
            return Err(not_started(&path, error));
        }
    };
    let ended = accompany(&signals, child);

    let summary =
        Summary { words, program: &path, ended, seconds: started.elapsed().as_secs_f64(), reason };
    let own_pid = std::process::id() as Pid;
    let mut left = family::descendants(&[own_pid]);
    left.retain(|pid| *pid != own_pid);
    if let Err(error) = write(&report, &summary.report(&counters.read(), left.len())) {
        eprintln!("shunt: {error:#}");
    }
    let waits = !left.is_empty() && report.is_file();
    if !waits || wait_in_background(&left, &counters, &report).is_err() {
        counters.remove();
    }
    process::end_as(ended)
}

/// Passes signals on until the program ends.
fn accompany(signals: &Signals, child: Pid) -> Ended {
    loop {
        match signals.wait() {
            Event::Forward(signal) => signals::send(child, signal),
            Event::Nothing => {}
            Event::Child => {
                while let Some(change) = process::next_change() {
                    match change {
                        Change::Ended(pid, ended) if pid == child => return ended,
                        Change::Stopped(pid, signal) if pid == child && by_terminal(signal) => {
                            signals::stop_self();
                        }
                        _ => {}
                    }
                }
            }
        }
    }
}

/// A program stopped by SIGSTOP may be continued by whoever did that, without our knowledge.
fn by_terminal(signal: Signal) -> bool {
    matches!(signal, libc::SIGTSTP | libc::SIGTTIN | libc::SIGTTOU)
}

/// What the report says beside the counters.
struct Summary<'a> {
    words: &'a [OsString],
    program: &'a Path,
    ended: Ended,
    seconds: f64,
    reason: Option<Reason>,
}

impl Summary<'_> {
    fn report(&self, counters: &Counters, still_running: usize) -> Report {
        Report {
            schema: SCHEMA,
            shunt: env!("CARGO_PKG_VERSION"),
            program: self.program.to_string_lossy().into_owned(),
            command: self.words.iter().map(|word| word.to_string_lossy().into_owned()).collect(),
            reason: self.reason.map(Reason::name),
            ended: self.ended,
            seconds: self.seconds,
            still_running,
            unreadable: counters.unreadable.clone(),
            totals: (&report::sum(&counters.processes, self.reason)).into(),
            processes: counters.processes.iter().map(ReportProcess::from).collect(),
        }
    }
}

/// Fails before the program has run, rather than after hours.
fn check_writable(report: &Path) -> Result<()> {
    let shown = report.display();
    if report.is_dir() {
        bail!("the report cannot be written: {shown} is a directory; name a file in it");
    }
    if report.file_name().is_none() {
        bail!("the report cannot be written: {shown} names no file");
    }
    let error = match File::options().write(true).create_new(true).open(beside(report)) {
        Ok(_) => {
            let _ = fs::remove_file(beside(report));
            return Ok(());
        }
        Err(error) => error,
    };
    if report.exists() && File::options().append(true).open(report).is_ok() {
        return Ok(());
    }
    bail!("the report cannot be written to {shown}: {error}; name a file that you may write")
}

/// Whoever looks at the report sees a whole one: it is written beside and then renamed. Only what
/// cannot be replaced so (a device, a pipe, a file in a folder of somebody else) is written to.
fn write(report: &Path, content: &impl serde::Serialize) -> Result<()> {
    let mut text = serde_json::to_vec_pretty(content)?;
    text.push(b'\n');
    let replaceable = fs::metadata(report).map_or(true, |there| there.is_file());
    let context = || format!("the report could not be written to {}", report.display());
    if replaceable && write_beside(report, &text).is_ok() {
        return fs::rename(beside(report), report).with_context(context);
    }
    File::options()
        .write(true)
        .truncate(true)
        .open(report)
        .and_then(|mut file| file.write_all(&text))
        .with_context(context)
}

fn write_beside(report: &Path, text: &[u8]) -> std::io::Result<()> {
    File::options().write(true).create_new(true).open(beside(report))?.write_all(text)
}

fn beside(report: &Path) -> PathBuf {
    let mut name = OsString::from(".");
    name.push(report.file_name().unwrap_or_default());
    name.push(format!(".{}", std::process::id()));
    report.with_file_name(name)
}

/// Starts `shunt update-report`, which this process does not wait for.
fn wait_in_background(left: &[Pid], counters: &ReportDir, report: &Path) -> Result<()> {
    let mut command = Command::new("/proc/self/exe");
    command.arg("update-report").arg(counters.path()).arg(report);
    command.args(left.iter().map(Pid::to_string));
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.env_remove(crate::library::PRELOAD_VARIABLE).current_dir("/");
    process::in_own_session(&mut command);
    command.spawn()?;
    Ok(())
}

/// The process in the background: waits for the last descendant, then brings the report up to date.
pub fn update_report(args: &args::UpdateReport) -> Result<()> {
    let counters = ReportDir::existing(args.counters.clone());
    // Who cannot be waited for is counted as far as it came.
    let waited = wait_for_all(&args.descendants, &counters);
    let updated = update(&args.report, &counters.read());
    counters.remove();
    waited.and(updated)
}

fn wait_for_all(descendants: &[Pid], counters: &ReportDir) -> Result<()> {
    let new_files = family::watch_new_files(counters.path())?;
    let mut known = descendants.to_vec();
    loop {
        known.extend(counters.read().processes.iter().filter_map(live));
        known = family::descendants(&known);
        if known.is_empty() {
            return Ok(());
        }
        family::wait_for_end_of_any(&known, &new_files)?;
    }
}

/// The process that wrote these counters, if it runs; its number may have gone to another since.
fn live(process: &Snapshot) -> Option<Pid> {
    let pid = process.pid as Pid;
    (family::start_time(pid)? == process.start_time).then_some(pid)
}

/// Replaces the counters in a report and keeps the rest.
fn update(report: &Path, counters: &Counters) -> Result<()> {
    let mut content: serde_json::Value = serde_json::from_slice(&fs::read(report)?)?;
    let reason = content["reason"].as_str().and_then(Reason::from_name);
    let totals: report::TotalsJson = (&report::sum(&counters.processes, reason)).into();
    let processes: Vec<_> = counters.processes.iter().map(ReportProcess::from).collect();
    content["still_running"] = 0.into();
    content["unreadable"] = counters.unreadable.clone().into();
    content["totals"] = serde_json::to_value(totals)?;
    content["processes"] = serde_json::to_value(processes)?;
    write(report, &content)
}
