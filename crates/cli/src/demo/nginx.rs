//! nginx: a master, one worker, and a small file for 64 connections.

use std::fs;

use anyhow::{bail, Result};

use super::recipe::{Better, Measure, Recipe};
use super::server::Server;
use super::stage::{number_after, Stage};

pub const NGINX: Recipe = Recipe {
    name: "nginx",
    packages: "nginx wrk",
    programs: &["nginx", "wrk"],
    serve,
    measures: &[Measure {
        name: "nginx 1 KB file, 64 connections",
        unit: "requests/s",
        better: Better::Higher,
        run: load,
    }],
};

fn serve(stage: &Stage) -> Result<Server> {
    let folder = stage.folder.display().to_string();
    fs::write(stage.folder.join("small"), [b'x'; 1024])?;
    fs::write(stage.folder.join("nginx.conf"), configuration(stage, &folder))?;
    stage.command("nginx").args(["-p", &folder, "-c", "nginx.conf", "-e", "error.log"]).serve()
}

fn load(stage: &Stage) -> Result<f64> {
    let seconds = format!("{}s", stage.seconds);
    let url = format!("http://127.0.0.1:{}/small", stage.port);
    let output =
        stage.command("wrk").args(["-t", "1", "-c", "64", "-d", &seconds, &url]).output()?;
    if output.contains("Socket errors") || output.contains("Non-2xx") {
        bail!("wrk had errors:\n{output}");
    }
    number_after(&output, "Requests/sec:")
}

fn configuration(stage: &Stage, folder: &str) -> String {
    let port = stage.port;
    let user = if stage.is_root { "user root;" } else { "" };
    format!(
        "{user}
        daemon off;
        worker_processes 1;
        pid nginx.pid;
        events {{ worker_connections 1024; }}
        http {{
            access_log off;
            keepalive_requests 100000000;
            client_body_temp_path body;
            proxy_temp_path proxy;
            fastcgi_temp_path fastcgi;
            uwsgi_temp_path uwsgi;
            scgi_temp_path scgi;
            server {{
                listen 127.0.0.1:{port};
                root {folder};
            }}
        }}"
    )
}
