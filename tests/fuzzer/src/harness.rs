//! The command: which programs are run, by how many jobs, for how long, and what is said of them.

use crate::check::{check, Verdict};
use crate::conductor::Outcome;
use crate::operation::{Mode, Program};
use crate::servers::Servers;
use crate::{generate, shrink};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// A job that fails this often says nothing new.
const FAILURES_MAX: u64 = 100;
/// A job mostly sleeps, and a machine that is busy finds more.
const JOBS_PER_CORE: usize = 6;

struct Options {
    seconds: u64,
    operations: u64,
    seed: u64,
    jobs: usize,
    mode: Option<Mode>,
    replay: Option<PathBuf>,
    /// Shrunk failures are written here.
    failures: Option<PathBuf>,
    /// How often replayed programs are run.
    times: u64,
    /// How often a random program that differs is run again. It fails if it differs in half of these: what
    /// depends on the moment is told, and is no failure. 0: the first difference is one.
    again: u64,
    shows: bool,
}

fn options(arguments: &[String]) -> Result<Options, String> {
    let mut options = Options {
        seconds: u64::MAX,
        operations: u64::MAX,
        seed: 1,
        jobs: JOBS_PER_CORE * std::thread::available_parallelism().map_or(1, usize::from),
        mode: None,
        replay: None,
        failures: None,
        times: 1,
        again: 0,
        shows: false,
    };
    let mut words = arguments.iter();
    while let Some(word) = words.next() {
        let value = words.next().ok_or_else(|| format!("{word} needs a value"))?;
        let number = || value.parse::<u64>().map_err(|_| format!("{word} needs a number"));
        match word.as_str() {
            "--seconds" => options.seconds = number()?,
            "--operations" => options.operations = number()?,
            "--seed" => options.seed = number()?,
            "--jobs" => options.jobs = number()? as usize,
            "--show" => options.shows = value == "yes",
            "--times" => options.times = number()?,
            "--again" => options.again = number()?,
            "--replay" => options.replay = Some(value.into()),
            "--failures" => options.failures = Some(value.into()),
            "--mode" => {
                options.mode = Some(match value.as_str() {
                    "both" => Mode::Both,
                    "server" => Mode::Server,
                    "client" => Mode::Client,
                    other => return Err(format!("there is no mode {other}")),
                });
            }
            other => return Err(format!("{other} is not known")),
        }
    }
    if options.seconds == u64::MAX && options.operations == u64::MAX {
        options.seconds = 60;
    }
    Ok(options)
}

#[derive(Default)]
struct Figures {
    programs: AtomicU64,
    eligible: AtomicU64,
    reached_ring: AtomicU64,
    operations: AtomicU64,
    looked: AtomicU64,
    found: AtomicU64,
    late: AtomicU64,
    extra_edges: AtomicU64,
    not_promised: AtomicU64,
    plain_hung: AtomicU64,
    rare: AtomicU64,
    failures: AtomicU64,
}

struct Run {
    options: Options,
    library: PathBuf,
    figures: Figures,
    next: AtomicU64,
    give_up: Option<Instant>,
    /// One report at a time.
    reporting: Mutex<()>,
    /// Each failure in short, which is said again at the end.
    failed: Mutex<Vec<String>>,
}

pub fn main(arguments: &[String]) -> i32 {
    let options = match options(arguments) {
        Ok(options) => options,
        Err(error) => {
            eprintln!("shunt-fuzzer: {error}");
            return 2;
        }
    };
    let Some(library) = library() else {
        eprintln!("shunt-fuzzer: no library; build it, or set SHUNT_LIBRARY");
        return 2;
    };
    let give_up = Instant::now().checked_add(Duration::from_secs(options.seconds));
    let next = AtomicU64::new(options.seed);
    let run = Run {
        options,
        library,
        figures: Figures::default(),
        next,
        give_up,
        reporting: Mutex::new(()),
        failed: Mutex::default(),
    };
    match run.options.replay.clone() {
        Some(path) => run.replay(&path),
        None => {
            run.replay(&Path::new(env!("CARGO_MANIFEST_DIR")).join("found"));
            run.random_programs();
        }
    }
    run.conclude()
}

fn library() -> Option<PathBuf> {
    let named = std::env::var_os("SHUNT_LIBRARY").map(PathBuf::from);
    let built = || {
        let target = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target");
        let target = std::env::var_os("CARGO_TARGET_DIR").map_or(target, PathBuf::from);
        target.join("release/libshunt.so")
    };
    named.unwrap_or_else(built).canonicalize().ok()
}

impl Run {
    /// One file, or all of a folder.
    fn replay(&self, path: &Path) {
        let mut files: Vec<PathBuf> = match std::fs::read_dir(path) {
            Ok(entries) => entries.flatten().map(|entry| entry.path()).collect(),
            Err(_) => vec![path.to_owned()],
        };
        files.retain(|file| file.extension().is_some_and(|extension| extension == "txt"));
        files.sort();
        let servers = Servers::start(&self.library, usize::MAX);
        servers.shows.set(self.options.shows);
        for file in files {
            let text = std::fs::read_to_string(&file).unwrap_or_default();
            match Program::from_text(&text) {
                Ok(program) => {
                    for _ in 0..self.options.times {
                        self.one(&program, &servers, false);
                    }
                }
                Err(error) => {
                    println!("{}: {error}", file.display());
                    self.figures.failures.fetch_add(1, Relaxed);
                }
            }
        }
    }

    fn random_programs(&self) {
        std::thread::scope(|scope| {
            for job in 0..self.options.jobs {
                scope.spawn(move || {
                    let servers = Servers::start(&self.library, job);
                    servers.shows.set(self.options.shows);
                    while !self.is_over() {
                        let seed = self.next.fetch_add(1, Relaxed);
                        let program = generate::program(seed, self.options.mode);
                        self.one(&program, &servers, true);
                    }
                });
            }
        });
    }

    fn is_over(&self) -> bool {
        self.give_up.is_some_and(|give_up| Instant::now() > give_up)
            || self.figures.operations.load(Relaxed) >= self.options.operations
            || self.figures.failures.load(Relaxed) >= FAILURES_MAX
    }

    fn one(&self, program: &Program, servers: &Servers, shrinks: bool) {
        let begun = Instant::now();
        let (verdict, outcome) = check(program, servers);
        if self.options.shows {
            println!("seed {}: {:?}", program.settings.seed, begun.elapsed());
        }
        self.count(program, &outcome);
        match verdict {
            Verdict::Same => {}
            Verdict::NotPromised => drop(self.figures.not_promised.fetch_add(1, Relaxed)),
            Verdict::PlainHung(hung) => {
                // A fault of the fuzzer's world, not of the library.
                self.figures.plain_hung.fetch_add(1, Relaxed);
                let _reporting = self.reporting.lock().expect("reports do not panic");
                println!("seed {}: the plain run hung: {hung}", program.settings.seed);
                self.keep("plain", program, &hung);
            }
            Verdict::Different(difference) => {
                let first = difference.describe(program);
                println!("seed {} differs, {first}", program.settings.seed);
                let may_be_rare = shrinks && difference.hung.is_none();
                if may_be_rare && self.is_rare(program, servers) {
                    return;
                }
                self.figures.failures.fetch_add(1, Relaxed);
                let short: Vec<&str> = first.lines().take(4).collect();
                let short = format!("failed: seed {}, {}", program.settings.seed, short.join("\n"));
                self.failed.lock().expect("reports do not panic").push(short);
                if !shrinks {
                    return;
                }
                let (small, again) = shrink::shrink(program, servers);
                let _reporting = self.reporting.lock().expect("reports do not panic");
                let said = again.map_or("it did not fail again".to_owned(), |difference| {
                    difference.describe(&small)
                });
                println!("shrunk, seed {}: {said}\n{}", small.settings.seed, small.to_text());
                self.keep("found", &small, &said);
            }
        }
    }

    /// Whether a program that differed once seldom does. One that hung fails however seldom it does.
    fn is_rare(&self, program: &Program, servers: &Servers) -> bool {
        let again = self.options.again;
        let differs = |_: &u64| matches!(check(program, servers).0, Verdict::Different(_));
        let differed = (0..again).filter(differs).count() as u64;
        let rare = 2 * differed < again;
        if rare {
            self.figures.rare.fetch_add(1, Relaxed);
            println!("seed {} differed in {differed} of {again} runs more", program.settings.seed);
            self.keep("rare", program, "it differs seldom");
        }
        rare
    }

    fn keep(&self, kind: &str, program: &Program, said: &str) {
        let Some(folder) = &self.options.failures else { return };
        let comment: String = said.lines().map(|line| format!("# {line}\n")).collect();
        let path = folder.join(format!("{kind}-{}.txt", program.settings.seed));
        if let Err(error) = std::fs::write(&path, comment + &program.to_text()) {
            println!("{} cannot be written: {error}", path.display());
        }
    }

    fn count(&self, program: &Program, outcome: &Outcome) {
        let figures = &self.figures;
        figures.programs.fetch_add(1, Relaxed);
        figures.operations.fetch_add(outcome.operations, Relaxed);
        figures.looked.fetch_add(outcome.looked_at_ring, Relaxed);
        figures.found.fetch_add(outcome.found_on_ring, Relaxed);
        figures.late.fetch_add(outcome.late, Relaxed);
        figures.extra_edges.fetch_add(outcome.extra_edges, Relaxed);
        if program.settings.mode == Mode::Both {
            figures.eligible.fetch_add(1, Relaxed);
            figures.reached_ring.fetch_add(u64::from(outcome.reached_ring), Relaxed);
        }
    }

    fn conclude(&self) -> i32 {
        let of = |figure: &AtomicU64| figure.load(Relaxed);
        let figures = &self.figures;
        let percent = |part: u64, whole: u64| 100.0 * part as f64 / whole.max(1) as f64;
        let (first, next) = (self.options.seed, of(&self.next));
        println!(
            "seeds {first}..{next}: {} programs, {} operations; of programs with both sides \
             accelerated {:.1} % had streams on a ring, where {:.1} % of their operations were; \
             {} answers came late, {} edges came twice, {} programs showed what is not promised, {} hung plain; \
             {} differed seldom; {} failures",
            of(&figures.programs),
            of(&figures.operations),
            percent(of(&figures.reached_ring), of(&figures.eligible)),
            percent(of(&figures.found), of(&figures.looked)),
            of(&figures.late),
            of(&figures.extra_edges),
            of(&figures.not_promised),
            of(&figures.plain_hung),
            of(&figures.rare),
            of(&figures.failures),
        );
        for failed in self.failed.lock().expect("reports do not panic").iter() {
            println!("{failed}");
        }
        let failed = of(&figures.failures);
        println!("{} passed, {failed} failed", of(&figures.programs).saturating_sub(failed));
        i32::from(failed > 0)
    }
}
