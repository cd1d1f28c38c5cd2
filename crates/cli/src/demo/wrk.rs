//! wrk: the client of all that speaks HTTP.

use anyhow::{bail, Result};

use super::stage::{number_after, Stage};

/// Requests a second.
pub fn load(stage: &Stage, connections: u32, path: &str) -> Result<f64> {
    let connections = connections.to_string();
    let seconds = format!("{}s", stage.seconds);
    let url = format!("http://127.0.0.1:{}/{path}", stage.port);
    let output = stage
        .command("wrk")
        .args(["-t", "1", "-c", &connections, "-d", &seconds, &url])
        .output()?;
    if output.contains("Socket errors") || output.contains("Non-2xx") {
        bail!("wrk had errors:\n{output}");
    }
    number_after(&output, "Requests/sec:")
}
