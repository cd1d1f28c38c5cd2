//! Python: asyncio streams on both sides.

use std::fs;

use anyhow::Result;

use super::recipe::{Better, Measure, Recipe};
use super::server::Server;
use super::stage::{number_after, Stage};

pub const ASYNCIO: Recipe = Recipe {
    name: "asyncio",
    packages: "python3",
    programs: &["python3"],
    serve,
    measures: &[],
    more: &[Measure {
        name: "Python asyncio echo 64 B, 1 client",
        unit: "exchanges/s",
        better: Better::Higher,
        run: exchange,
    }],
};

fn serve(stage: &Stage) -> Result<Vec<Server>> {
    fs::write(stage.folder.join("echo.py"), include_str!("sources/echo.py"))?;
    let port = stage.port.to_string();
    Ok(vec![stage.command("python3").args(["echo.py", &port]).serve()?])
}

fn exchange(stage: &Stage) -> Result<f64> {
    let (port, seconds) = (stage.port.to_string(), stage.seconds.to_string());
    let output = stage.command("python3").args(["echo.py", &port, &seconds]).output()?;
    number_after(&output, "exchanges/s:")
}
