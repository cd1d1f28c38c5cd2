//! `shunt bench` and `shunt demo`, shortly, without the library.

mod support;

use std::process::Command;

use serde_json::Value;
use support::{assert_one_line, shunt, stderr};

fn bench(measure: &str) -> Value {
    let mut command = shunt();
    command.args(["bench", measure, "--json", "--only", "tcp,unix,ring"]);
    command.args(["--rounds", "2", "--seconds", "0.02"]);
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    serde_json::from_slice(&output.stdout).unwrap()
}

fn ways(result: &Value) -> Vec<&str> {
    result["ways"].as_array().unwrap().iter().map(|way| way["way"].as_str().unwrap()).collect()
}

#[test]
fn every_measure_is_taken_of_every_way() {
    for measure in ["latency", "stream", "rate"] {
        let result = bench(measure);
        assert_eq!(ways(&result), ["tcp", "unix", "ring"]);
        for way in result["ways"].as_array().unwrap() {
            assert!(way["value"].as_f64().unwrap() > 0.0, "{way}");
            assert!(way["ratio_to_tcp"].as_f64().unwrap() > 0.0, "{way}");
            assert_eq!(way["values"].as_array().unwrap().len(), 2);
        }
    }
    assert!(bench("latency")["ways"][0]["percentiles_us"]["p99"].as_f64().unwrap() > 0.0);
}

#[test]
fn a_bare_ring_has_no_connections_to_measure() {
    assert_eq!(ways(&bench("connect")), ["tcp", "unix"]);
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
