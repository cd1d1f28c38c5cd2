//! Node: an HTTP server of a few lines.

use std::fs;

use anyhow::Result;

use super::recipe::{Better, Measure, Recipe};
use super::server::Server;
use super::stage::Stage;
use super::wrk::load;

pub const NODE: Recipe = Recipe {
    name: "node",
    packages: "nodejs wrk",
    programs: &["node", "wrk"],
    serve,
    measures: &[],
    more: &[
        Measure {
            name: "Node HTTP 1 KB, 1 connection",
            unit: "requests/s",
            better: Better::Higher,
            run: |stage| load(stage, 1, ""),
        },
        Measure {
            name: "Node HTTP 1 KB, 64 connections",
            unit: "requests/s",
            better: Better::Higher,
            run: |stage| load(stage, 64, ""),
        },
    ],
};

fn serve(stage: &Stage) -> Result<Vec<Server>> {
    fs::write(stage.folder.join("server.js"), include_str!("sources/server.js"))?;
    let port = stage.port.to_string();
    Ok(vec![stage.command("node").args(["server.js", &port]).serve()?])
}
