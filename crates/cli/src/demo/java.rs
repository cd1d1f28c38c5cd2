//! Java: a server with an NIO Selector, and a client that waits for each answer.

use std::fs;

use anyhow::Result;

use super::recipe::{Better, Measure, Recipe};
use super::server::Server;
use super::stage::{number_after, Stage};

pub const JAVA: Recipe = Recipe {
    name: "java",
    packages: "default-jdk-headless",
    programs: &["javac", "java"],
    serve,
    measures: &[],
    more: &[Measure {
        name: "Java NIO echo 64 B, 1 client",
        unit: "exchanges/s",
        better: Better::Higher,
        run: exchange,
    }],
};

fn serve(stage: &Stage) -> Result<Vec<Server>> {
    fs::write(stage.folder.join("Echo.java"), include_str!("sources/Echo.java"))?;
    stage.command("javac").arg("Echo.java").plain().output()?;
    let port = stage.port.to_string();
    Ok(vec![stage.command("java").args(["Echo", &port]).serve()?])
}

fn exchange(stage: &Stage) -> Result<f64> {
    let (port, seconds) = (stage.port.to_string(), stage.seconds.to_string());
    let output = stage.command("java").args(["Echo", &port, &seconds]).output()?;
    number_after(&output, "exchanges/s:")
}
