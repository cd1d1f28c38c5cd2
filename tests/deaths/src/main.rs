//! Kills a process at each system call that it makes (before and behind it, in all its threads, the library's
//! own among them), and at each instruction of the library in the calls that move bytes, one run for each; then
//! looks at what the process at the other end saw. Nobody may hang, no byte may be wrong, what calls that
//! returned have sent must arrive, and then comes the end or a reset.
//!
//! `cargo run -p shunt-deaths -- [--only TEXT] [--points N] [--jobs N] [--plain] [--list]`. The library
//! is taken from `SHUNT_LIBRARY`. Of a series of more than N points (600) every second is taken, or every third,
//! and so on. `--plain` runs the same on kernel TCP, where the same must hold.

mod frame;
mod judge;
mod page;
mod script;
mod survivor;
mod trace;
mod victim;

use shunt_differential::fast_path;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use script::{Script, SCRIPTS};
use trace::Point;
use victim::place;

/// How long the survivor may take once the victim is dead.
const PATIENCE: Duration = Duration::from_secs(10);
/// Bytes: small, so that it is full soon.
const RING: &str = "16384";

struct Options {
    only: String,
    points: u64,
    jobs: usize,
    /// Nothing for kernel TCP.
    library: Option<PathBuf>,
}

/// A series of points.
struct Series {
    script: &'static Script,
    /// Of a call: its place, and for the how manieth time.
    call: Option<(&'static str, usize, u64)>,
}

impl Series {
    fn name(&self) -> String {
        match self.call {
            Some((call, ..)) => format!("{}, instructions of {call}", self.script.name),
            None => format!("{}, system calls", self.script.name),
        }
    }

    fn point(&self, number: u64) -> Point {
        match self.call {
            Some((_, place, time)) => Point::Instruction { place, time, number },
            None => Point::SystemCall(number),
        }
    }
}

/// Calls that move bytes, when the stream is on a ring.
const CALLS: &[(&str, &str, usize, u64)] = &[
    ("asks", "a send", place::SEND, 6),
    ("asks", "a receive", place::RECEIVE, 6),
    ("sends", "a send that wraps", place::SEND, 9),
    ("sends", "a send to a full ring", place::FILL, 5),
    ("asks", "a shutdown", place::SHUTDOWN, 1),
    ("asks", "a close", place::CLOSE, 1),
];

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let number = |text: &str| text.parse().expect("a descriptor");
    match words[..] {
        ["--victim", script, page] => victim::run(script::named(script), number(page)),
        ["--go-on", script, page, stream] => {
            victim::go_on(script::named(script), number(page), number(stream))
        }
        ["--survivor", script, page] => survivor::run(script::named(script), number(page)),
        _ => match parse(&words) {
            Ok(options) => run(&options),
            Err(message) => {
                eprintln!("{message}");
                ExitCode::from(2)
            }
        },
    }
}

fn parse(words: &[&str]) -> Result<Options, String> {
    let mut options =
        Options { only: String::new(), points: 600, jobs: 2, library: Some(library()) };
    let mut words = words.iter();
    while let Some(word) = words.next() {
        let mut value = || words.next().ok_or_else(|| format!("{word} needs a value after it"));
        let number = |text: &str| text.parse().map_err(|_| format!("{text} is not a number"));
        match *word {
            "--only" => options.only = (*value()?).to_owned(),
            "--points" => options.points = number(value()?)?,
            "--jobs" => options.jobs = number(value()?)? as usize,
            "--plain" => options.library = None,
            "--list" => {
                all().for_each(|series| println!("{}", series.name()));
                std::process::exit(0);
            }
            other => return Err(format!("{other} is not an option; see the head of src/main.rs")),
        }
    }
    match &options.library {
        Some(library) if !library.is_file() => Err(format!(
            "{} is not there: build it with `cargo build --release -p shunt-preload`, or name it in \
             SHUNT_LIBRARY",
            library.display()
        )),
        _ => Ok(options),
    }
}

fn library() -> PathBuf {
    if let Some(path) = std::env::var_os("SHUNT_LIBRARY") {
        return PathBuf::from(path);
    }
    // This binary lies in <target>/<profile>/.
    let own = std::env::current_exe().expect("this program has a path");
    let target = own.parent().and_then(Path::parent).expect("a target folder");
    target.join("release/libshunt.so")
}

fn all() -> impl Iterator<Item = Series> {
    let calls = CALLS.iter().map(|&(script, name, place, time)| Series {
        script: script::named(script),
        call: Some((name, place, time)),
    });
    SCRIPTS.iter().map(|script| Series { script, call: None }).chain(calls)
}

fn run(options: &Options) -> ExitCode {
    let (mut passed, mut failed) = (0, 0);
    let by_instruction = |series: &Series| series.call.is_some();
    let is_chosen = |series: &Series| series.name().contains(&options.only);
    for series in all().filter(is_chosen) {
        // What is counted is the library's.
        if options.library.is_none() && by_instruction(&series) {
            continue;
        }
        let started = Instant::now();
        let (points, stride, failures) = run_series(&series, options);
        let taken = points.div_ceil(stride);
        let seconds = started.elapsed().as_secs_f64();
        let verdict = if failures.is_empty() { "ok" } else { "FAILED" };
        let name = series.name();
        println!("{verdict:6} {name}: {taken} of {points} points ({seconds:.1} s)");
        failures.iter().take(20).for_each(|failure| println!("  {failure}"));
        failed += failures.len() as u64;
        passed += (taken + 1).saturating_sub(failures.len() as u64);
    }
    println!("{passed} passed, {failed} failed");
    ExitCode::from(u8::from(failed > 0 || passed == 0))
}

/// How many points there are, of how many one is taken, and what went wrong.
fn run_series(series: &Series, options: &Options) -> (u64, u64, Vec<String>) {
    let points = match count_points(series, options) {
        Ok(points) => points,
        Err(failure) => return (0, 1, vec![format!("not killed: {failure}")]),
    };
    let stride = points.div_ceil(options.points);
    let (next, failures) = (AtomicU64::new(0), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..options.jobs {
            scope.spawn(|| loop {
                let number = next.fetch_add(stride, Relaxed);
                if number >= points {
                    return;
                }
                if let Err(failure) = run_once(series, series.point(number), options, false) {
                    let failure = format!("killed at point {number}, {failure}");
                    failures.lock().expect("no panic while held").push(failure);
                }
            });
        }
    });
    (points, stride, failures.into_inner().expect("no panic while held"))
}

/// By a run to the victim's end, whose streams have been on rings.
fn count_points(series: &Series, options: &Options) -> Result<u64, String> {
    // On a busy machine a stream may end before it has found its other end.
    const RUNS_MAX: usize = 20;
    for _ in 0..RUNS_MAX {
        let run = run_once(series, series.point(u64::MAX), options, true)?;
        if run.points == 0 {
            return Err("the victim did not come to its place".to_owned());
        }
        if run.was_on_rings {
            return Ok(run.points);
        }
    }
    Err(format!("in none of {RUNS_MAX} runs all streams were on rings"))
}

struct Run {
    /// How many the victim came to.
    points: u64,
    was_on_rings: bool,
}

fn run_once(series: &Series, point: Point, options: &Options, counts: bool) -> Result<Run, String> {
    let script = series.script;
    let reports = counts.then(Reports::new);
    let (page, fd) = page::make();
    let command = |role: &str| {
        let own = std::env::current_exe().expect("this program has a path");
        let mut command = Command::new(own);
        command.args([role, script.name, &fd.to_string()]).stdin(Stdio::null());
        command.env_remove("LD_PRELOAD").env_remove("SHUNT").env_remove("SHUNT_REPORT_DIR");
        if let Some(library) = &options.library {
            command.env("LD_PRELOAD", library).env("SHUNT_RING_BYTES", RING);
            command.env("SHUNT_PAIR", "at_once");
        }
        if let Some(Reports(directory)) = &reports {
            command.env("SHUNT_REPORT_DIR", directory);
        }
        if point != series.point(u64::MAX) {
            command.stderr(Stdio::null());
        }
        command
    };
    let mut survivor = command("--survivor").spawn().expect("the survivor starts");
    let mut victim = shunt_traced::start(&mut command("--victim"));
    let none = PathBuf::new();
    let library = options.library.as_ref().unwrap_or(&none);
    let mut before = Vec::new();
    let end = trace::kill_at(victim.id() as i32, point, library, || {
        before = page.streams.iter().map(|stream| stream.done[frame::SURVIVOR].get()).collect();
    });
    // The tracer has waited for it.
    victim.wait().ok();
    page.is_dead.set(1);
    page.hold.set(0);
    let ended = until_ended(&mut survivor).map_err(|places| {
        let streams = page.streams.iter().take(script.streams);
        let states: Vec<_> = streams.map(judge::describe).collect();
        format!("{}\n{places}", states.join("\n"))
    });
    let verdict = match (ended, end.killed.is_some(), end.status) {
        (Err(places), ..) => Err(format!("the survivor hangs\n{places}")),
        (Ok(()), false, status) if status != 0 => Err(format!("the victim ended with {status}")),
        _ => judge::judge(script, page, &before),
    };
    page::unmap(page, fd);
    let place = end.killed.as_deref().unwrap_or("at its end");
    verdict.map_err(|what| format!("{place}: {what}"))?;
    let was_on_rings = reports.is_none_or(|reports| reports.were_on_rings(script, options));
    Ok(Run { points: end.points, was_on_rings })
}

/// One that hangs is ended, and where it was is told.
fn until_ended(survivor: &mut Child) -> Result<(), String> {
    let give_up = Instant::now() + PATIENCE;
    // The tracer may have waited for it already.
    while matches!(survivor.try_wait(), Ok(None)) {
        if Instant::now() > give_up {
            let places = places_of(survivor.id());
            survivor.kill().ok();
            survivor.wait().ok();
            return Err(places);
        }
        std::thread::sleep(Duration::from_micros(300));
    }
    Ok(())
}

/// Where each thread of a process is.
fn places_of(process: u32) -> String {
    let mut text = String::new();
    let tasks = std::fs::read_dir(format!("/proc/{process}/task"));
    for task in tasks.into_iter().flatten().flatten() {
        let read = |file: &str| std::fs::read_to_string(task.path().join(file)).unwrap_or_default();
        let thread = task.file_name().to_string_lossy().into_owned();
        text.push_str(&format!(
            "    thread {thread}: {}, {}\n",
            read("wchan"),
            read("syscall").trim()
        ));
    }
    text
}

/// A directory for the library's counters.
struct Reports(PathBuf);

impl Reports {
    fn new() -> Reports {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let name = format!("shunt-deaths-{}-{}", std::process::id(), COUNT.fetch_add(1, Relaxed));
        let directory = fast_path::place().join(name);
        std::fs::create_dir_all(&directory).expect("a temporary directory");
        Reports(directory)
    }

    fn were_on_rings(&self, script: &Script, options: &Options) -> bool {
        // Counted at both ends.
        options.library.is_none()
            || fast_path::upgraded_streams(&self.0) >= 2 * script.streams as u64
    }
}

impl Drop for Reports {
    fn drop(&mut self) {
        // Nothing depends on it: the place is a temporary one.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
