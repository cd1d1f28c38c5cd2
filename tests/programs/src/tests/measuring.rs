//! Programs made to measure: their own checks are the content check.

use crate::peer::{content, never_says, same, says};
use crate::stage::Stage;
use crate::Outcome;

fn iperf3(stage: &Stage, port: u16, arguments: &[&str]) -> Outcome {
    let _server = stage
        .application("iperf3")
        .args(["-s", "-B", "127.0.0.1", "-p", &port.to_string()])
        .listening_on(port)?;
    let client = ["-c", "127.0.0.1", "-J", "-p", &port.to_string()].map(str::to_owned);
    let said = stage.peer("iperf3").args(client).args(arguments).output()?;
    let report: serde_json::Value =
        serde_json::from_slice(&said).map_err(|error| format!("iperf3's report: {error}"))?;
    let bytes = |key: &str| report["end"][key]["bytes"].as_u64().unwrap_or(0);
    let (sent, received) = (bytes("sum_sent"), bytes("sum_received"));
    let enough = received > 1 << 20 && received <= sent;
    if enough {
        Ok(())
    } else {
        Err(format!("{arguments:?}: sent {sent}, received {received}"))
    }
}

pub fn iperf3_carries_both_ways(stage: &Stage) -> Outcome {
    for arguments in [
        &["-t", "1", "-l", "128K"][..],
        &["-t", "1", "-R"],
        &["-t", "1", "-P", "4"],
        &["-n", "50M", "-l", "1K"],
        &["-t", "1", "--bidir"],
        &["-t", "1", "-Z"],
    ] {
        iperf3(stage, stage.port(), arguments)?;
    }
    Ok(())
}

pub fn sockperf_plays_ping_pong(stage: &Stage) -> Outcome {
    let port = stage.port();
    let at = ["--tcp", "-i", "127.0.0.1", "-p", &port.to_string()].map(str::to_owned);
    let mut server = stage.application("sockperf").args(["server"]).args(&at).listening_on(port)?;
    for size in ["14", "8000"] {
        // The rate bounds the sequence numbers that sockperf can count: above what a ring reaches.
        let arguments = ["-t", "1", "--mps", "10000000", "-m", size];
        let said = stage.peer("sockperf").args(["ping-pong"]).args(&at).args(arguments).text()?;
        says(&said, "Summary: Latency is")?;
        let fine = "# dropped messages = 0; # duplicated messages = 0; # out-of-order messages = 0";
        says(&said, fine)?;
    }
    server.still_runs()
}

pub fn netpipe_finds_every_byte_intact(stage: &Stage) -> Outcome {
    for check in [&["-i", "-u", "200000"][..], &["-u", "8192", "-p", "0"]] {
        let port = stage.port();
        let number = port.to_string();
        let mut server = stage
            .application("NPtcp")
            .args(["-P", &number, "-o", "server.txt"])
            .args(check)
            .listening_on(port)?;
        let arguments = ["-h", "127.0.0.1", "-P", &number, "-o", "client.txt"];
        let said = stage.peer("NPtcp").args(arguments).args(check).text()?;
        never_says(&said, "Integrity check failed")?;
        server.ends_well()?;
    }
    Ok(())
}

pub fn socat_forks_for_each_client(stage: &Stage) -> Outcome {
    let port = stage.port();
    let listen = format!("TCP-LISTEN:{port},bind=127.0.0.1,fork,reuseaddr");
    let mut server =
        stage.application("socat").args([listen.as_str(), "EXEC:cat"]).listening_on(port)?;
    for seed in 0..3 {
        // Long enough for the upgrade to find the stream still there.
        let wanted = content(seed, 32 << 20);
        let connect = format!("TCP:127.0.0.1:{port}");
        let got = stage
            .peer("socat")
            .args(["-t20", "-", &connect])
            .input(stage.file("input", &wanted))
            .output()?;
        same("the echo", &got, &wanted)?;
    }
    server.still_runs()
}
