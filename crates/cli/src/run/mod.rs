//! `shunt run`: start a program with the library loaded.
//!
//! Without a report this process becomes the program. With one it stays as the parent
//! (`supervise.rs`), and the counters of the program and all its descendants, also of those that
//! are killed, are files in a directory of ours (`report_dir.rs`).

mod family;
mod process;
mod program;
mod report_dir;
mod signals;
mod supervise;

use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};

use shunt_stats::Reason;

use crate::library::{self, Library, PRELOAD_VARIABLE, SPIN_VARIABLE};
use crate::{args, calibrate};
use program::{Refused, Treatment};

pub use family::start_time;
pub use report_dir::{ReportDir, DIRECTORY_PREFIX};
pub use supervise::update_report;

/// The exit status of `env` and `timeout` for a failure of their own.
const OWN_FAILURE: u8 = 125;

/// Returns only if the program was not started.
pub fn run(args: &args::Run) -> ExitCode {
    let Err(refused) = start(args);
    eprintln!("shunt: {}", refused.message);
    ExitCode::from(refused.status)
}

fn start(args: &args::Run) -> Result<std::convert::Infallible, Refused> {
    let Some((name, arguments)) = args.command.split_first() else {
        return Err(own("no program was named; try `shunt run redis-server`"));
    };
    let path = program::find(name)?;
    let mut command = Command::new(&path);
    command.arg0(name).args(arguments);
    signals::inherit_sigpipe(&mut command);
    let reason = accelerate(&mut command, program::judge(&path)?)?;
    match &args.report {
        Some(report) => supervise::run(command, &args.command, report, reason),
        None => Err(not_started(&path, command.exec())),
    }
}

/// Settings of AddressSanitizer's runtime.
const ASAN_OPTIONS: &str = "ASAN_OPTIONS";

/// Makes the program load the library; or says on one line why it runs without.
fn accelerate(command: &mut Command, treatment: Treatment) -> Result<Option<Reason>, Refused> {
    let shown = command.get_program().to_string_lossy().into_owned();
    let plain = |reason, is| {
        eprintln!("shunt: {shown} {is}, so it runs without acceleration");
        Ok(Some(reason))
    };
    let programs = match treatment {
        Treatment::Accelerate(programs) => programs,
        Treatment::RunPlain(reason, is) => return plain(reason, is),
    };
    let library = match library::find().map_err(own)? {
        Library::At(library) => library,
        Library::BadSetting(path) => {
            let path = path.display();
            eprintln!("shunt: SHUNT_LIBRARY={path} is not a readable file, so {shown} runs without acceleration");
            return Ok(Some(Reason::BadSetting));
        }
    };
    if program::has_address_sanitizer(std::path::Path::new(command.get_program())) {
        // GCC's runtime is a library, which insists on being the first one otherwise.
        let mut options = std::env::var_os(ASAN_OPTIONS).unwrap_or_default();
        options.push(if options.is_empty() { "" } else { ":" });
        options.push("verify_asan_link_order=0");
        command.env(ASAN_OPTIONS, options);
    }
    let before = std::env::var_os(PRELOAD_VARIABLE);
    match library::preload_value(&library, programs, before).map_err(own)? {
        Some(value) => command.env(PRELOAD_VARIABLE, value),
        None => {
            let is = "is a 32-bit program, and no library for such is installed";
            return plain(Reason::OtherArchitecture, is);
        }
    };
    if let Some(spin_ns) = calibrate::spin_ns_for_programs() {
        command.env(SPIN_VARIABLE, spin_ns.to_string());
    }
    Ok(None)
}

fn own(message: impl std::fmt::Display) -> Refused {
    Refused { status: OWN_FAILURE, message: message.to_string() }
}

fn not_started(path: &std::path::Path, error: std::io::Error) -> Refused {
    let status = match error.raw_os_error() {
        Some(libc::ENOENT) => program::NOT_FOUND,
        _ => program::NOT_EXECUTABLE,
    };
    Refused { status, message: format!("{} could not be started: {error}", path.display()) }
}
