//! iperf3: one stream, large writes.

use anyhow::{Context, Result};

use super::recipe::{Better, Measure, Recipe};
use super::server::Server;
use super::stage::Stage;

pub const IPERF3: Recipe = Recipe {
    name: "iperf3",
    packages: "iperf3",
    programs: &["iperf3"],
    serve,
    measures: &[Measure {
        name: "iperf3 -l 128K",
        unit: "Gbit/s",
        better: Better::Higher,
        run: transfer,
    }],
    more: &[],
};

fn serve(stage: &Stage) -> Result<Vec<Server>> {
    let port = stage.port.to_string();
    let server = stage.command("iperf3").args(["-s", "-B", "127.0.0.1", "-p", &port]).serve()?;
    Ok(vec![server])
}

fn transfer(stage: &Stage) -> Result<f64> {
    let output = stage
        .command("iperf3")
        .args(["-c", "127.0.0.1", "-p", &stage.port.to_string()])
        .args(["-l", "128K", "-t", &stage.seconds.to_string(), "-J"])
        .output()?;
    let result: serde_json::Value = serde_json::from_str(&output)?;
    let bits = result["end"]["sum_received"]["bits_per_second"].as_f64();
    Ok(bits.with_context(|| format!("iperf3 gave no result:\n{output}"))? / 1e9)
}
