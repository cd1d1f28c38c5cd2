//! sockperf: one small message back and forth, server and client on a core each.

use anyhow::Result;

use super::recipe::{Better, Measure, Recipe};
use super::server::Server;
use super::stage::{number_after, Stage};

pub const SOCKPERF: Recipe = Recipe {
    name: "sockperf",
    packages: "sockperf",
    programs: &["sockperf"],
    serve,
    measures: &[Measure {
        name: "sockperf ping-pong 14 B, two cores",
        unit: "us one way",
        better: Better::Lower,
        run: ping_pong,
    }],
    more: &[],
};

fn serve(stage: &Stage) -> Result<Vec<Server>> {
    let port = stage.port.to_string();
    let server = stage
        .command("sockperf")
        .args(["server", "--tcp", "-i", "127.0.0.1", "-p", &port])
        .on_core(0)
        .serve()?;
    Ok(vec![server])
}

fn ping_pong(stage: &Stage) -> Result<f64> {
    // A limit that is never reached: without one its check of sequence numbers fails.
    let output = stage
        .command("sockperf")
        .args(["ping-pong", "--tcp", "-i", "127.0.0.1", "-p", &stage.port.to_string()])
        .args(["-m", "14", "-t", &stage.seconds.to_string(), "--mps", "10000000"])
        .on_core(1)
        .output()?;
    number_after(&output, "Latency is")
}
