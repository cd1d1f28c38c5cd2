//! `shunt calibrate`, and what `shunt run` makes of what it keeps. No test says what is measured: whether a
//! busy machine can be is left open, and only what must follow either way is asserted.

mod support;

use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

use support::{assert_one_line, json, shunt, stderr, stdout, Folder};

/// Tells the test executable to use a stream and end.
const ROLE: &str = "SHUNT_TEST_SOCKET";
const SAY: [&str; 3] = ["sh", "-c", "echo ${SHUNT_SPIN_NS-usual}"];

/// A folder for what is kept.
struct Cache(Folder);

impl Cache {
    fn new() -> Cache {
        Cache(Folder::new())
    }

    /// `shunt` for somebody who has set nothing.
    fn shunt(&self) -> Command {
        let mut command = shunt();
        command.env("XDG_CACHE_HOME", self.0.path("cache"));
        command.env_remove("SHUNT_SPIN_NS").env_remove("SHUNT");
        command
    }

    fn calibrate(&self, option: &str) -> Output {
        let output = self.shunt().arg("calibrate").args(option.split(' ')).output().unwrap();
        assert!(output.status.success(), "{}", stderr(&output));
        output
    }

    fn names(&self) -> Vec<String> {
        let entries = fs::read_dir(self.0.path("cache/shunt"));
        let names = entries.into_iter().flatten().map(|it| it.unwrap().file_name());
        names.map(|name| name.into_string().unwrap()).collect()
    }

    fn file(&self) -> Option<PathBuf> {
        let name = self.names().into_iter().find(|name| name.starts_with("calibration-"))?;
        Some(self.0.path("cache/shunt").join(name))
    }

    /// What a program is to find in its environment.
    fn kept(&self) -> String {
        let kept = self.file().and_then(|file| {
            let kept: toml::Table = fs::read_to_string(file).unwrap().parse().unwrap();
            Some(kept.get("useful_spin_ns")?.to_string())
        });
        kept.unwrap_or("usual".into())
    }

    /// Keeps this spin.
    fn keep(&self, spin_ns: u32) {
        self.calibrate("--quick --force");
        let file = self.file().unwrap();
        let text = fs::read_to_string(&file).unwrap();
        let others = text.lines().filter(|line| !line.starts_with("useful_spin_ns"));
        let lines: Vec<&str> = others.collect();
        let text =
            lines.join("\n").replace("[wake]", &format!("useful_spin_ns = {spin_ns}\n[wake]"));
        fs::write(file, text).unwrap();
    }
}

/// What the program says, that runs as ever.
fn said(command: &mut Command) -> String {
    let output = command.arg("run").args(SAY).output().unwrap();
    assert_eq!((output.status.code(), stderr(&output).as_str()), (Some(0), ""));
    stdout(&output).trim_end().to_owned()
}

#[test]
fn what_is_measured_is_kept_and_shown_until_it_is_deleted() {
    let cache = Cache::new();
    let output = cache.shunt().args(["calibrate", "--show"]).output().unwrap();
    assert_one_line(&output, &["nothing is kept", "calibrate"]);
    assert!(!output.status.success());

    let measured = stdout(&cache.calibrate("--quick --force"));
    let file = cache.file().unwrap();
    assert_eq!(cache.names().len(), 1);
    assert!(measured.contains(file.to_str().unwrap()), "{measured}");
    assert_eq!(stdout(&cache.calibrate("--show")), measured);

    assert!(stdout(&cache.calibrate("--delete")).starts_with("deleted"));
    assert_eq!(cache.names(), [""; 0]);
    assert!(stdout(&cache.calibrate("--delete")).starts_with("nothing is kept"));
}

#[test]
fn everything_is_measured_of_every_size() {
    let cache = Cache::new();
    let measured = stdout(&cache.calibrate("--force"));
    assert!(measured.contains("1048576"), "{measured}");
    assert!(measured.contains("Shunt copies twice at every size"), "{measured}");
    let kept: toml::Table = fs::read_to_string(cache.file().unwrap()).unwrap().parse().unwrap();
    assert_eq!(kept["quick"].as_bool(), Some(false));
    assert_eq!(kept["copy"].as_array().unwrap().len(), 8);
}

#[test]
fn the_first_run_keeps_what_it_measured_and_the_program_has_it() {
    let cache = Cache::new();
    assert_eq!(said(&mut cache.shunt()), cache.kept());
    assert_eq!(cache.names().len(), 1, "a calibration, or that there was none to be had");
    assert_eq!(said(&mut cache.shunt()), cache.kept());
}

#[test]
fn a_run_whose_children_end_unseen_measures_as_well() {
    let cache = Cache::new();
    let script = "trap '' CHLD; exec \"$@\"";
    let own = cache.shunt();
    let mut command = Command::new("sh");
    command.args(["-c", script, "sh"]).arg(own.get_program());
    command.envs(own.get_envs().filter_map(|(name, value)| Some((name, value?))));
    command.env_remove("SHUNT_SPIN_NS");
    assert_eq!(said(&mut command), cache.kept());
}

#[test]
fn runs_at_the_same_time_leave_one_whole_file() {
    let cache = Cache::new();
    let start = || cache.shunt().arg("run").args(SAY).stdout(Stdio::piped()).spawn().unwrap();
    let runs: Vec<_> = (0..6).map(|_| start()).collect();
    for run in runs {
        let output = run.wait_with_output().unwrap();
        assert!(output.status.success());
        let said = stdout(&output).trim_end().to_owned();
        // Who comes while another measures does not wait for it.
        assert!(said == "usual" || said == cache.kept(), "{said}");
    }
    assert_eq!(cache.names().len(), 1);
}

#[test]
fn what_is_kept_reaches_the_program_and_those_below() {
    let cache = Cache::new();
    cache.keep(12_345);
    assert_eq!(said(&mut cache.shunt()), "12345");
    let mut outer = cache.shunt();
    outer.arg("run").arg(env!("CARGO_BIN_EXE_shunt"));
    assert_eq!(said(&mut outer), "12345");
}

#[test]
fn who_has_set_it_is_obeyed_and_nothing_is_measured() {
    let cache = Cache::new();
    for set in ["777", "0", "nonsense"] {
        assert_eq!(said(cache.shunt().env("SHUNT_SPIN_NS", set)), set);
    }
    assert_eq!(said(cache.shunt().env("SHUNT", "off")), "usual");
    assert_eq!(cache.names(), [""; 0]);
    cache.keep(12_345);
    assert_eq!(said(cache.shunt().env("SHUNT_SPIN_NS", "777")), "777");
}

#[test]
fn a_file_that_is_not_understood_is_measured_anew() {
    let cache = Cache::new();
    for bad in ["", "useful_spin_ns = \"long\"", "format = 0\nuseful_spin_ns = 11\n"] {
        cache.keep(11);
        let file = cache.file().unwrap();
        fs::write(&file, bad).unwrap();
        let said = said(&mut cache.shunt());
        let was_measured = fs::read_to_string(file).unwrap() != bad;
        assert_eq!(said, if was_measured { cache.kept() } else { "usual".into() });
        cache.calibrate("--delete");
    }
}

#[test]
fn where_nothing_can_be_kept_programs_run_as_usual() {
    let cache = Cache::new();
    for place in ["/dev/null", "/proc/no-such-folder", "relative", ""] {
        let mut command = cache.shunt();
        command.env("XDG_CACHE_HOME", place).env("HOME", "/proc/no-such-home");
        assert_eq!(said(&mut command), "usual");
    }
    assert_eq!(said(cache.shunt().env_remove("XDG_CACHE_HOME").env_remove("HOME")), "usual");
    let mut command = cache.shunt();
    command.env("XDG_CACHE_HOME", "/proc/no-such-folder").args(["calibrate", "--quick", "--force"]);
    let output = command.output().unwrap();
    assert_one_line(&output, &["could not be written"]);
}

#[test]
fn be_the_program_with_a_stream() {
    if std::env::var_os(ROLE).is_none() {
        return;
    }
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let mut server = listener.accept().unwrap().0;
    for _ in 0..8 {
        client.write_all(b"message").unwrap();
        server.read_exact(&mut [0; 7]).unwrap();
    }
}

#[test]
fn a_bad_setting_is_reported_by_the_library() {
    let Some(library) = std::env::var_os("SHUNT_LIBRARY") else {
        println!("not run: SHUNT_LIBRARY names no library");
        return;
    };
    let folder = Folder::new();
    let report = folder.path("report");
    for (set, bad) in [("nonsense", true), ("-1", true), ("1000001", true), ("0", false)] {
        let mut command = shunt();
        command.env("SHUNT_LIBRARY", &library).env("SHUNT_SPIN_NS", set).env(ROLE, "");
        command.arg("run").arg("--report").arg(&report).arg(std::env::current_exe().unwrap());
        let output = command.args(["be_the_program_with_a_stream", "--exact"]).output().unwrap();
        assert!(output.status.success(), "{}", stderr(&output));
        let reasons = &json(&report)["totals"]["pass_through"];
        assert_eq!(!reasons["bad_setting"].is_null(), bad, "{set}: {reasons}");
    }
}
