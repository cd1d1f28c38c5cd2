//! nginx, HAProxy, curl and wrk.

use crate::application::{Application, Running};
use crate::peer::{content, never_says, same, says, Peer};
use crate::stage::{is_root, Stage};
use crate::{Failure, Outcome};
use std::path::PathBuf;

const SIZES: &[(&str, usize)] =
    &[("tiny", 40), ("small", 1000), ("middle", 150_000), ("large", 6_000_000)];

fn files(stage: &Stage) -> PathBuf {
    let root = stage.folder("www");
    for (seed, &(name, size)) in SIZES.iter().enumerate() {
        stage.file(&format!("www/{name}"), content(seed as u64, size));
    }
    root
}

/// A master with two workers and the given server block, in the foreground.
fn nginx(
    stage: &Stage,
    application: Application<'_>,
    port: u16,
    server: &str,
) -> Result<Running, Failure> {
    let home = stage.folder(&format!("nginx-{port}"));
    let configuration = format!(
        "daemon off; worker_processes 2; pid {home}/pid; error_log {home}/error.log;
         {user}
         events {{ worker_connections 512; }}
         http {{
           access_log off; keepalive_requests 100000;
           client_body_temp_path {home}/a; proxy_temp_path {home}/b; fastcgi_temp_path {home}/c;
           uwsgi_temp_path {home}/d; scgi_temp_path {home}/e;
           {server}
         }}",
        home = home.display(),
        user = if is_root() { "user root;" } else { "" },
    );
    let path = stage.file(&format!("nginx-{port}.conf"), configuration);
    application.args(["-p".into(), home, "-c".into(), path]).listening_on(port)
}

fn static_server(stage: &Stage, application: Application<'_>) -> Result<(Running, u16), Failure> {
    let (root, port) = (files(stage), stage.port());
    let server =
        format!("sendfile on; server {{ listen 127.0.0.1:{port}; root {}; }}", root.display());
    Ok((nginx(stage, application, port, &server)?, port))
}

fn download(stage: &Stage, port: u16, name: &str) -> Result<Vec<u8>, Failure> {
    let url = format!("http://127.0.0.1:{port}/{name}");
    stage.peer("curl").args(["-sS", "--fail", "--max-time", "40", &url]).output()
}

/// Every file, one by one and then all over one connection.
fn downloads_are_right(stage: &Stage, port: u16) -> Outcome {
    let mut all = Vec::new();
    let mut urls = Vec::new();
    for (seed, &(name, size)) in SIZES.iter().enumerate() {
        let wanted = content(seed as u64, size);
        same(name, &download(stage, port, name)?, &wanted)?;
        for _ in 0..5 {
            all.extend_from_slice(&wanted);
            urls.push(format!("http://127.0.0.1:{port}/{name}"));
        }
    }
    let got = stage.peer("curl").args(["-sS", "--fail", "--max-time", "40"]).args(urls).output()?;
    same("all over one connection", &got, &all)
}

fn wrk<'a>(stage: &'a Stage, port: u16, name: &str, seconds: u32) -> Peer<'a> {
    let duration = format!("-d{seconds}s");
    let url = format!("http://127.0.0.1:{port}/{name}");
    stage.peer("wrk").args(["-t2", "-c32", &duration, &url])
}

fn no_errors(said: &str) -> Outcome {
    says(said, "requests in")?;
    never_says(said, "Non-2xx")?;
    never_says(said, "Socket errors")
}

pub fn nginx_serves_files_from_two_workers(stage: &Stage) -> Outcome {
    let (mut server, port) = static_server(stage, stage.application("nginx"))?;
    downloads_are_right(stage, port)?;
    no_errors(&wrk(stage, port, "small", 2).text()?)?;
    no_errors(&wrk(stage, port, "middle", 1).text()?)?;
    server.still_runs()
}

pub fn curl_downloads_64_megabytes(stage: &Stage) -> Outcome {
    let (_server, port) = static_server(stage, stage.application("nginx"))?;
    let wanted = content(64, 64 << 20);
    stage.file("www/huge", &wanted);
    same("64 MB", &download(stage, port, "huge")?, &wanted)?;
    let url = format!("http://127.0.0.1:{port}/huge");
    let slow = ["-sS", "--fail", "--limit-rate", "50M", "--range", "1000000-30000000", &url];
    same(
        "a range, slowly",
        &stage.peer("curl").args(slow).output()?,
        &wanted[1_000_000..=30_000_000],
    )
}

/// One of the workers may have all of wrk's 32 connections. It keeps as many to the backend, so that none is closed
/// while its ends are meeting.
pub fn nginx_proxies_to_another(stage: &Stage) -> Outcome {
    let (_backend, behind) = static_server(stage, stage.backend("nginx"))?;
    let port = stage.port();
    let server = format!(
        "upstream behind {{ server 127.0.0.1:{behind}; keepalive 64; }}
         server {{ listen 127.0.0.1:{port}; location / {{ proxy_pass http://behind;
           proxy_http_version 1.1; proxy_set_header Connection \"\"; }} }}"
    );
    let mut proxy = nginx(stage, stage.application("nginx"), port, &server)?;
    downloads_are_right(stage, port)?;
    no_errors(&wrk(stage, port, "small", 2).text()?)?;
    proxy.still_runs()
}

pub fn nginx_reloads_under_load(stage: &Stage) -> Outcome {
    let (mut server, port) = static_server(stage, stage.application("nginx"))?;
    let load = wrk(stage, port, "small", 4).start()?;
    for _ in 0..3 {
        server.signal(libc::SIGHUP);
        downloads_are_right(stage, port)?;
    }
    let said = load.text()?;
    says(&said, "requests in")?;
    never_says(&said, "Non-2xx")?;
    downloads_are_right(stage, port)?;
    server.still_runs()
}

pub fn haproxy_balances_before_nginx(stage: &Stage) -> Outcome {
    let (_one, first) = static_server(stage, stage.backend("nginx"))?;
    let (_two, second) = static_server(stage, stage.backend("nginx"))?;
    let port = stage.port();
    let configuration = format!(
        "global\n  maxconn 500\n\
         defaults\n  mode http\n  timeout connect 5s\n  timeout client 20s\n  timeout server 20s\n\
         frontend front\n  bind 127.0.0.1:{port}\n  default_backend behind\n\
         backend behind\n  balance roundrobin\n  server one 127.0.0.1:{first}\n  \
         server two 127.0.0.1:{second}\n"
    );
    let path = stage.file("haproxy.cfg", configuration);
    let mut proxy =
        stage.application("haproxy").args(["-db".into(), "-f".into(), path]).listening_on(port)?;
    downloads_are_right(stage, port)?;
    no_errors(&wrk(stage, port, "small", 2).text()?)?;
    proxy.still_runs()
}
