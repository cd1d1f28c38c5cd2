//! `shunt bench` and `shunt demo`, shortly, without the library.

mod support;

use std::process::Command;

use serde_json::Value;
use support::{assert_one_line, shunt, stderr, stdout, Folder};

fn bench(words: &[&str], ways: &str) -> Value {
    let mut command = shunt();
    command.arg("bench").args(words).args(["--json", "--only", ways]);
    command.args(["--rounds", "2", "--seconds", "0.02"]);
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    serde_json::from_slice(&output.stdout).unwrap()
}

fn ways(result: &Value) -> Vec<&str> {
    result["ways"].as_array().unwrap().iter().map(|way| way["way"].as_str().unwrap()).collect()
}

/// Each way has a value for each of the two rounds, and one to compare.
fn assert_values(result: &Value) {
    for way in result["ways"].as_array().unwrap() {
        assert!(way["value"].as_f64().unwrap() > 0.0, "{way}");
        assert!(way["ratio_to_tcp"].as_f64().unwrap() > 0.0, "{way}");
        assert_eq!(way["values"].as_array().unwrap().len(), 2);
    }
}

#[test]
fn every_measure_is_taken_of_every_way() {
    for measure in ["latency", "rate"] {
        let result = bench(&[measure], "tcp,unix,ring,copy");
        assert_eq!(ways(&result), ["tcp", "unix", "ring"]);
        assert_values(&result);
    }
    let result = bench(&["stream"], "tcp,unix,ring,copy");
    assert_eq!(ways(&result), ["tcp", "unix", "ring", "copy"]);
    assert_values(&result);
    let result = bench(&["latency"], "tcp");
    assert!(result["ways"][0]["percentiles_us"]["p99"].as_f64().unwrap() > 0.0);
}

#[test]
fn several_cases_are_taken_in_one_run() {
    let result = bench(&["latency", "-l", "8,100000"], "tcp,ring");
    let sizes: Vec<_> = result.as_array().unwrap().iter().map(|it| &it["size"]).collect();
    assert_eq!(sizes, [8, 100_000]);
    result.as_array().unwrap().iter().for_each(assert_values);
    let result = bench(&["think", "--think-us", "10,100"], "tcp,ring");
    assert_eq!((&result[0]["think_us"], &result[2]["per_second"]), (&10.into(), &1000.into()));
    result.as_array().unwrap().iter().for_each(assert_values);
}

#[test]
fn many_streams_answer_through_epoll() {
    let result = bench(&["streams", "--streams", "3,70", "--active", "5"], "tcp,unix,ring");
    let active: Vec<_> = result.as_array().unwrap().iter().map(|it| &it["active"]).collect();
    assert_eq!(active, [3, 5]);
    for case in result.as_array().unwrap() {
        assert_eq!(ways(case), ["tcp", "unix"]);
        assert_values(case);
    }
    assert_eq!(ways(&bench(&["idle", "--streams", "20"], "tcp,unix")), ["tcp", "unix"]);
}

#[test]
fn more_streams_than_descriptors_are_left_out_in_words() {
    let mut command = shunt();
    command.args(["bench", "streams", "--streams", "1000000", "--only", "tcp"]);
    let output = command.output().unwrap();
    if output.status.success() {
        println!("not run: this system allows a million descriptors");
        return;
    }
    assert_one_line(&output, &["1000000 streams", "hard limit"]);
}

#[test]
fn one_process_is_timed_plain_and_with_the_library() {
    for measure in ["passthrough", "start"] {
        let mut command = shunt();
        command.args(["bench", measure, "--json", "--rounds", "2", "--seconds", "0.02"]);
        let output = command.output().unwrap();
        assert!(output.status.success(), "{}", stderr(&output));
        let rows: Value = serde_json::from_slice(&output.stdout).unwrap();
        for row in rows.as_array().unwrap() {
            assert!(row["plain"].as_f64().unwrap() > 0.0, "{row}");
            assert_eq!(row["shunt_rounds"].as_array().unwrap().len(), 2);
        }
        assert!(!rows.as_array().unwrap().is_empty());
    }
}

#[test]
fn a_way_that_a_measure_does_not_have_is_refused_in_words() {
    let output = shunt().args(["bench", "connect", "--only", "ring,copy"]).output().unwrap();
    assert_one_line(&output, &["nothing to measure", "no way"]);
}

#[test]
fn a_run_is_a_folder_of_raw_data_tables_and_plots() {
    let folder = Folder::new();
    let run = folder.path("run");
    let all = || {
        let mut command = shunt();
        command.args(["bench", "all", "--quick", "--rounds", "1", "--seconds", "0.02"]);
        command.args(["--only", "rate,connect,start", "--out"]).arg(&run);
        command.output().unwrap()
    };
    let output = all();
    assert!(output.status.success(), "{}", stderr(&output));
    let read = |name: &str| std::fs::read_to_string(run.join(name)).unwrap();
    let rates = read("rate.csv");
    let ways: Vec<_> = rates.lines().skip(1).map(|row| row.split(',').nth(1).unwrap()).collect();
    assert_eq!(ways, ["tcp", "unix", "ring", "shunt"].repeat(2));
    assert!(read("README.md").contains("**A quick run**"));
    for plot in ["messages.svg", "connections.svg"] {
        assert!(read("README.md").contains(&format!("({plot})")));
        assert!(read(plot).trim_end().ends_with("</svg>"));
    }
    let table = shunt().args(["bench", "table"]).arg(&run).output().unwrap();
    let table = stdout(&table);
    for row in ["| messages one way, 8 bytes", "| connect, one exchange", "| start and end of"] {
        assert!(table.contains(row), "{table}");
    }
    assert_one_line(&all(), &["is there already", "--out"]);
}

#[test]
fn a_folder_without_a_run_has_no_table() {
    let output = shunt().args(["bench", "table", "/nowhere"]).output().unwrap();
    assert_one_line(&output, &["/nowhere", "no CSV files"]);
}

#[test]
fn a_bare_ring_has_no_connections_to_measure() {
    assert_eq!(ways(&bench(&["connect"], "tcp,unix,ring")), ["tcp", "unix"]);
}

#[test]
fn a_demo_that_does_not_exist_is_one_line() {
    let output = shunt().args(["demo", "--only", "nosuch"]).output().unwrap();
    assert_one_line(&output, &["nosuch", "redis"]);
}

#[test]
fn a_program_of_the_demo_runs_plain() {
    if Command::new("iperf3").arg("--version").output().is_err() {
        println!("not run: iperf3 is not installed");
        return;
    }
    let mut command = shunt();
    command.args(["demo", "--plain-only", "--only", "iperf3", "--rounds", "1"]);
    let output = command.args(["--seconds", "1", "--json"]).output().unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    let rows: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(rows[0]["plain"].as_f64().unwrap() > 0.0);
}
