//! What reports and `shunt stat` say of processes that count as the library does.

mod support;

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use support::{counting_program, json, role, shunt, stdout, End, Folder};

#[test]
fn be_the_counting_program() {
    support::count_if_told();
}

/// `shunt run --report` over a shell that runs the counting program as the script says; `"$@"` is it.
fn run_script(folder: &Folder, script: &str, end: End) -> Command {
    let (name, value) = role(end);
    let mut command = shunt();
    command.arg("run").arg("--report").arg(folder.path("report"));
    command.args(["sh", "-c", script, "sh"]).args(counting_program()).env(name, value);
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    command
}

fn assert_totals(totals: &Value, processes: u64) {
    assert_eq!(totals["streams"], 2 * processes);
    assert_eq!(totals["streams_eligible"], processes);
    assert_eq!(totals["streams_upgraded"], processes);
    assert_eq!(totals["streams_eligible_upgraded"], processes);
    assert_eq!(totals["streams_reverted"], 0);
    assert_eq!(totals["pass_through"]["too_few_messages"], processes);
    assert_eq!(totals["bytes_sent"]["tcp"], 100 * processes);
    assert_eq!(totals["bytes_sent"]["shm"], 90 * processes);
    assert_eq!(totals["bytes_received"]["shm"], 7 * processes);
    assert_eq!(totals["bytes_received"]["tcp"], 0);
}

#[test]
fn a_report_sums_over_all_descendants() {
    let folder = Folder::new();
    let status =
        run_script(&folder, r#""$@"; sh -c '"$@"' sh "$@""#, End::Return).status().unwrap();
    assert!(status.success());
    let report = json(&folder.path("report"));
    assert_eq!((&report["schema"], &report["still_running"]), (&1.into(), &0.into()));
    assert_eq!(report["processes"].as_array().unwrap().len(), 2);
    assert_eq!(report["processes"][0]["program"], "counting");
    assert_totals(&report["totals"], 2);
}

#[test]
fn processes_that_were_killed_are_counted() {
    let folder = Folder::new();
    run_script(&folder, r#""$@"; "$@"; exit 0"#, End::Killed).status().unwrap();
    assert_totals(&json(&folder.path("report"))["totals"], 2);
}

#[test]
fn garbage_among_the_counters_is_told_and_does_not_count() {
    let folder = Folder::new();
    let script = r#"cd "$SHUNT_REPORT_DIR"; echo x >9-1; mkfifo 9-2; ln -s /dev/zero 9-3; mkdir 9-4
        head -c 3149824 /dev/zero >9-5; "$@""#;
    run_script(&folder, script, End::Return).status().unwrap();
    let report = json(&folder.path("report"));
    assert_eq!(report["unreadable"].as_array().unwrap().len(), 5);
    assert_totals(&report["totals"], 1);
}

#[test]
fn counters_go_away_with_the_program() {
    let folder = Folder::new();
    let output = run_script(&folder, "echo $SHUNT_REPORT_DIR", End::Return).output().unwrap();
    let counters = std::path::PathBuf::from(stdout(&output).trim_end());
    assert!(counters.is_absolute() && !counters.exists());
}

#[test]
fn a_daemon_that_outlives_the_program_is_added_when_it_ends() {
    let folder = Folder::new();
    // The daemon counts only when its input ends, after the program.
    let script = r#"exec 3<&0; (cat <&3 >/dev/null; "$@") >/dev/null & exit 3"#;
    let mut child = run_script(&folder, script, End::Killed).spawn().unwrap();
    let input = child.stdin.take().unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(3));
    let report = json(&folder.path("report"));
    assert!(report["still_running"].as_u64().unwrap() >= 1);
    assert_eq!(report["totals"]["streams"], 0);
    drop(input);
    // The process that waits for the daemon is not ours to wait for.
    let deadline = Instant::now() + Duration::from_secs(20);
    while json(&folder.path("report"))["still_running"] != 0 {
        assert!(Instant::now() < deadline, "the report was not brought up to date");
        std::thread::yield_now();
    }
    let report = json(&folder.path("report"));
    assert_totals(&report["totals"], 1);
    assert_eq!(report["ended"]["status"], 3);
}

#[test]
fn stat_shows_the_streams_of_a_running_process() {
    let folder = Folder::new();
    for report in [false, true] {
        let [program, args @ ..] = counting_program();
        let (name, value) = role(End::WithInput);
        let mut command = if report { shunt() } else { Command::new(&program) };
        if report {
            command.args(["run", "--report"]).arg(folder.path("report")).arg(&program);
        }
        command.args(args).env(name, value).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
        let line = lines.find(|line| line.contains("counted by ")).unwrap();
        let pid: u32 = line.rsplit(' ').next().unwrap().parse().unwrap();

        let output = shunt().args(["stat", "--json"]).output().unwrap();
        let stat: Value = serde_json::from_slice(&output.stdout).unwrap();
        let ours = |process: &&Value| process["pid"] == pid;
        let mut found = stat["processes"].as_array().unwrap().iter().filter(ours);
        let process = found.next().expect("the counting program is listed");
        assert_totals(&process["totals"], 1);
        let [stream] = &process["streams"].as_array().unwrap()[..] else { panic!("{process}") };
        assert_eq!(stream["local"], "127.0.0.1:6379");
        assert_eq!(stream["peer"], "127.0.0.1:40000");
        assert_eq!((&stream["carrier"], &stream["reason"]), (&"shm".into(), &Value::Null));
        assert_eq!((&stream["bytes_sent"], &stream["bytes_received"]), (&90.into(), &7.into()));

        let table = stdout(&shunt().args(["stat", &pid.to_string()]).output().unwrap());
        assert!(table.contains("127.0.0.1:6379") && table.contains("shm"), "{table}");
        drop(child.stdin.take());
        child.wait().unwrap();
    }
}

#[test]
fn stat_of_no_process_is_one_line() {
    let output = shunt().args(["stat", "999999999"]).output().unwrap();
    support::assert_one_line(&output, &["999999999"]);
    assert!(!output.status.success());
}

#[test]
fn stat_of_a_process_without_counters_is_empty() {
    let own = std::process::id().to_string();
    let output = shunt().args(["stat", "--json", &own]).output().unwrap();
    let stat: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(stat["processes"].as_array().unwrap().len(), 0);
}
