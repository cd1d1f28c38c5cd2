//! nginx: a master, one worker, files of several sizes; one nginx as the proxy of another; and several workers
//! that each listen at the same port.

use std::fs;

use anyhow::Result;

use super::recipe::{Better, Measure, Recipe};
use super::server::Server;
use super::stage::Stage;
use super::wrk::load;

pub const NGINX: Recipe = Recipe {
    name: "nginx",
    packages: "nginx wrk",
    programs: &["nginx", "wrk"],
    serve,
    measures: &[Measure {
        name: "nginx 1 KB file, 64 connections",
        unit: "requests/s",
        better: Better::Higher,
        run: |stage| load(stage, 64, "1K"),
    }],
    more: &[
        Measure {
            name: "nginx 1 KB file, 1 connection",
            unit: "requests/s",
            better: Better::Higher,
            run: |stage| load(stage, 1, "1K"),
        },
        Measure {
            name: "nginx 64 KB file, 8 connections",
            unit: "requests/s",
            better: Better::Higher,
            run: |stage| load(stage, 8, "sendfile/64K"),
        },
        Measure {
            name: "nginx 1 MB file, 8 connections",
            unit: "requests/s",
            better: Better::Higher,
            run: |stage| load(stage, 8, "sendfile/1M"),
        },
        Measure {
            name: "nginx before nginx, 4 KB file, 64 connections",
            unit: "requests/s",
            better: Better::Higher,
            run: |stage| load(stage, 64, "behind/4K"),
        },
    ],
};

/// The kernel deals connections to the workers by SO_REUSEPORT (socket(7)).
pub const WORKERS: Recipe = Recipe {
    name: "workers",
    packages: "nginx wrk",
    programs: &["nginx", "wrk"],
    serve: |stage| Ok(vec![start(stage, "front", stage.port, 4)?]),
    measures: &[],
    more: &[Measure {
        name: "nginx, 4 workers, 1 KB file, 64 connections",
        unit: "requests/s",
        better: Better::Higher,
        run: |stage| load(stage, 64, "1K"),
    }],
};

fn serve(stage: &Stage) -> Result<Vec<Server>> {
    let front = start(stage, "front", stage.port, 1)?;
    Ok(vec![front, serve_behind(stage)?])
}

/// The same server at the port behind.
pub fn serve_behind(stage: &Stage) -> Result<Server> {
    start(stage, "behind", stage.port_behind, 1)
}

fn start(stage: &Stage, name: &str, port: u16, workers: u32) -> Result<Server> {
    let folder = stage.folder.join(name);
    let files = folder.join("sendfile");
    fs::create_dir_all(&files)?;
    for (file, size) in [("1K", 1024), ("4K", 4096)] {
        fs::write(folder.join(file), vec![b'x'; size])?;
    }
    for (file, size) in [("64K", 65_536), ("1M", 1_048_576)] {
        fs::write(files.join(file), vec![b'x'; size])?;
    }
    let folder = folder.display().to_string();
    fs::write(format!("{folder}/nginx.conf"), configuration(stage, &folder, port, workers))?;
    let arguments = ["-p", &folder, "-c", "nginx.conf", "-e", "error.log"];
    stage.command("nginx").args(arguments).serve_at(port)
}

fn configuration(stage: &Stage, folder: &str, port: u16, workers: u32) -> String {
    let port_behind = stage.port_behind;
    let shared = if workers > 1 { " reuseport" } else { "" };
    let user = if stage.is_root { "user root;" } else { "" };
    format!(
        "{user}
        daemon off;
        worker_processes {workers};
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
            upstream behind {{
                server 127.0.0.1:{port_behind};
                keepalive 64;
                keepalive_requests 100000000;
            }}
            server {{
                listen 127.0.0.1:{port}{shared};
                root {folder};
                location /sendfile/ {{ sendfile on; }}
                location /behind/ {{
                    proxy_pass http://behind/;
                    proxy_http_version 1.1;
                    proxy_set_header Connection \"\";
                }}
            }}
        }}"
    )
}
