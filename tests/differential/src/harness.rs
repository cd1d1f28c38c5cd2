//! Chooses what to run, runs it several at a time, compares, and sums up.

use crate::actor::Carrier;
use crate::calls::socket::Family;
use crate::diff::differences;
use crate::run::{run, Files, Mode, Record, Setting};
use crate::scenarios::{self, Scenario, Settings};
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::Mutex;
use std::time::Instant;

/// After this many hangs the rest is not run: the library is broken enough to know it.
const HANGS_MAX: usize = 25;

static HANGS: AtomicUsize = AtomicUsize::new(0);

struct Options {
    only: Vec<String>,
    modes: Vec<Mode>,
    carriers: Vec<Carrier>,
    /// Only calls that block, or only such as do not.
    blocks: Option<bool>,
    jobs: usize,
    show: bool,
    other: Option<PathBuf>,
}

pub fn main(arguments: &[String]) -> i32 {
    let options = match parse(arguments) {
        Ok(options) => options,
        Err(message) => {
            eprintln!("{message}");
            return 2;
        }
    };
    let library = library();
    if options.modes != [Mode::Plain] && !is_there(&library) {
        eprintln!(
            "{} is not there: build it with `cargo build --release -p shunt-preload`, or name it \
             in SHUNT_LIBRARY",
            library.display()
        );
        println!("0 passed, 1 failed");
        return 1;
    }
    let files = Files { library, other: options.other.clone() };
    let chosen: Vec<&Scenario> = scenarios::all()
        .filter(|scenario| {
            options.only.is_empty() || options.only.iter().any(|text| scenario.name.contains(text))
        })
        .collect();
    let (next, passed, failed) = (AtomicUsize::new(0), AtomicUsize::new(0), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..options.jobs {
            scope.spawn(|| {
                while let Some(scenario) = chosen.get(next.fetch_add(1, Relaxed)) {
                    let outcome = check(scenario, &options, &files);
                    passed.fetch_add(outcome.passed, Relaxed);
                    failed.lock().expect("no panic while held").extend(outcome.failed);
                }
            });
        }
    });
    let failed = failed.into_inner().expect("no panic while held");
    if !failed.is_empty() {
        println!("failed:");
        failed.iter().for_each(|name| println!("  {name}"));
    }
    println!("{} passed, {} failed", passed.load(Relaxed), failed.len());
    i32::from(!failed.is_empty() || chosen.is_empty())
}

/// The loader puts the name of what the program runs on in the place of `$PLATFORM` (ld.so(8)).
fn is_there(library: &std::path::Path) -> bool {
    let name = library.display().to_string();
    let platforms = if name.contains("$PLATFORM") { &["x86_64", "i686"][..] } else { &[""] };
    let files = platforms.iter().map(|platform| name.replace("$PLATFORM", platform));
    files.map(PathBuf::from).all(|file| file.is_file())
}

fn library() -> PathBuf {
    if let Some(path) = std::env::var_os("SHUNT_LIBRARY") {
        return PathBuf::from(path);
    }
    // This binary lies in <target>/<profile>/.
    let own = std::env::current_exe().expect("this program has a path");
    let target = own.parent().and_then(|profile| profile.parent()).expect("a target folder");
    target.join("release/libshunt.so")
}

struct Outcome {
    passed: usize,
    failed: Vec<String>,
}

/// One scenario in every setting asked for that it is run in, each against kernel TCP in the same setting.
fn check(scenario: &Scenario, options: &Options, files: &Files) -> Outcome {
    let started = Instant::now();
    let mut outcome = Outcome { passed: 0, failed: Vec::new() };
    for (setting, modes) in settings(scenario, options) {
        let oracle = run(&setting, files, None);
        if options.show {
            show(&oracle);
        }
        if let Some(text) = plain_trouble(&oracle) {
            outcome.failed.push(report(&setting, &text, &oracle));
            continue;
        }
        for mode in modes {
            let setting = Setting { mode, ..setting };
            if HANGS.load(Relaxed) >= HANGS_MAX {
                outcome.failed.push(format!("{} ({mode:?}): not run", scenario.name));
                continue;
            }
            let other = run(&setting, files, Some(&oracle));
            HANGS.fetch_add(usize::from(other.hung), Relaxed);
            match compare(&oracle, &other) {
                None => outcome.passed += 1,
                Some(text) => outcome.failed.push(report(&setting, &text, &other)),
            }
        }
    }
    let verdict = if outcome.failed.is_empty() { "ok" } else { "FAILED" };
    println!("{verdict:6} {} ({:.1} s)", scenario.name, started.elapsed().as_secs_f64());
    outcome
}

/// Settings that share an oracle, and the modes that are compared with it.
fn settings(scenario: &Scenario, options: &Options) -> Vec<(Setting, Vec<Mode>)> {
    let mut all = Vec::new();
    for &carrier in &options.carriers {
        for family in [Family::V4, Family::V6, Family::Mapped] {
            for blocks in [true, false] {
                let setting =
                    Setting { scenario: scenario.name, mode: Mode::Plain, carrier, family, blocks };
                let modes = options.modes.iter().copied();
                let modes: Vec<Mode> =
                    modes.filter(|&mode| runs(scenario, &setting, mode)).collect();
                if !modes.is_empty() && options.blocks.is_none_or(|only| only == blocks) {
                    all.push((setting, modes));
                }
            }
        }
    }
    all
}

fn runs(scenario: &Scenario, setting: &Setting, mode: Mode) -> bool {
    let at_home = (setting.carrier, setting.family) == (Carrier::Ring, Family::V4)
        && matches!(mode, Mode::Plain | Mode::Both);
    match (scenario.settings, setting.blocks) {
        // Whether kernel TCP does the same twice is asked over one family.
        (Settings::All, true) => mode != Mode::Plain || setting.family == Family::V4,
        (Settings::All, false) => at_home && !scenarios::waits_in_calls(scenario.name),
        (Settings::Ring, blocks) => at_home && blocks,
        (Settings::Rings, blocks) => {
            let chosen = match setting.family {
                Family::V4 => true,
                Family::V6 => mode == Mode::Both,
                Family::Mapped => false,
            };
            setting.carrier == Carrier::Ring && chosen && blocks
        }
    }
}

/// A scenario that does not even run on kernel TCP is wrong itself.
fn plain_trouble(oracle: &Record) -> Option<String> {
    oracle.trouble.as_ref().map(|trouble| format!("  fails on kernel TCP: {trouble}\n"))
}

fn compare(oracle: &Record, other: &Record) -> Option<String> {
    let differences = differences(oracle, other);
    match (&other.trouble, differences) {
        (None, None) => None,
        (Some(trouble), None) => Some(format!("  {trouble}\n")),
        (None, Some(text)) => Some(text),
        (Some(trouble), Some(text)) => Some(format!("  {trouble}\n{text}")),
    }
}

fn report(setting: &Setting, text: &str, record: &Record) -> String {
    let name = format!(
        "{} ({:?}, on {:?}, {:?}{})",
        setting.scenario,
        setting.mode,
        setting.carrier,
        setting.family,
        if setting.blocks { "" } else { ", not blocking" }
    );
    let mut block = format!("FAILED {name}\n{text}");
    if !record.stderr.is_empty() {
        block.push_str(&format!("  stderr: {}\n", record.stderr.trim_end()));
    }
    print!("{block}");
    name
}

fn show(record: &Record) {
    for note in &record.notes {
        let line = serde_json::json!({ "who": note.who, "what": note.what, "got": note.got });
        println!("{line}");
    }
}

fn parse(arguments: &[String]) -> Result<Options, String> {
    let mut options = Options {
        only: Vec::new(),
        modes: vec![Mode::Plain, Mode::Both, Mode::Server, Mode::Client],
        carriers: vec![Carrier::Tcp, Carrier::Changing, Carrier::Ring],
        blocks: None,
        // Most of the time is waiting.
        jobs: 4,
        show: false,
        other: None,
    };
    let mut arguments = arguments.iter();
    while let Some(argument) = arguments.next() {
        let mut value =
            || arguments.next().ok_or_else(|| format!("{argument} needs a value after it"));
        match argument.as_str() {
            "--only" => options.only.push(value()?.clone()),
            "--mode" => options.modes = vec![mode(value()?)?],
            "--carrier" => options.carriers = vec![carrier(value()?)?],
            "--blocks" => options.blocks = Some(value()? == "yes"),
            "--jobs" => {
                let text = value()?;
                options.jobs = text.parse().map_err(|_| format!("{text} is not a number"))?;
            }
            "--other" => options.other = Some(PathBuf::from(value()?)),
            "--show" => options.show = true,
            "--list" => {
                scenarios::all().for_each(|scenario| println!("{}", scenario.name));
                std::process::exit(0);
            }
            other => return Err(format!("{other} is not an option; see the head of src/main.rs")),
        }
    }
    Ok(options)
}

fn mode(text: &str) -> Result<Mode, String> {
    match text {
        "plain" => Ok(Mode::Plain),
        "both" => Ok(Mode::Both),
        "server" => Ok(Mode::Server),
        "client" => Ok(Mode::Client),
        other => Err(format!("{other} is not a mode: plain, both, server or client")),
    }
}

fn carrier(text: &str) -> Result<Carrier, String> {
    match text {
        "tcp" => Ok(Carrier::Tcp),
        "changing" => Ok(Carrier::Changing),
        "ring" => Ok(Carrier::Ring),
        other => Err(format!("{other} is not a carrier: tcp, changing or ring")),
    }
}
