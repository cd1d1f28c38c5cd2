//! HAProxy: one thread that passes HTTP on to nginx.

use std::fs;

use anyhow::Result;

use super::nginx;
use super::recipe::{Better, Measure, Recipe};
use super::server::Server;
use super::stage::Stage;
use super::wrk::load;

pub const HAPROXY: Recipe = Recipe {
    name: "haproxy",
    packages: "haproxy nginx wrk",
    programs: &["haproxy", "nginx", "wrk"],
    serve,
    measures: &[],
    more: &[Measure {
        name: "HAProxy before nginx, 1 KB file, 64 connections",
        unit: "requests/s",
        better: Better::Higher,
        run: |stage| load(stage, 64, "1K"),
    }],
};

fn serve(stage: &Stage) -> Result<Vec<Server>> {
    let behind = nginx::serve_behind(stage)?;
    fs::write(stage.folder.join("haproxy.cfg"), configuration(stage))?;
    let front = stage.command("haproxy").args(["-db", "-f", "haproxy.cfg"]).serve()?;
    Ok(vec![front, behind])
}

fn configuration(stage: &Stage) -> String {
    let Stage { port, port_behind, .. } = stage;
    format!(
        "global
            nbthread 1
        defaults
            mode http
            http-reuse always
            timeout connect 10s
            timeout client 60s
            timeout server 60s
        frontend front
            bind 127.0.0.1:{port}
            default_backend behind
        backend behind
            server nginx 127.0.0.1:{port_behind}
"
    )
}
