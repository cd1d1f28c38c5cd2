//! Language runtimes, each with its own idea of an event loop; the programs are in `apps/`.

use crate::peer::{content, same, says};
use crate::stage::Stage;
use crate::Outcome;
use std::path::{Path, PathBuf};

pub fn app(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("apps").join(name)
}

/// One program as server and as client of an echo; the client checks every byte.
fn echo(stage: &Stage, runtime: &str, name: &str, kind: &str) -> Outcome {
    let port = stage.port();
    let (path, number) = (app(name).to_string_lossy().into_owned(), port.to_string());
    let server = [path.as_str(), "serve", &number, kind];
    let mut server = stage.application(runtime).args(server).listening_on(port)?;
    let said = stage.peer(runtime).args([path.as_str(), "ask", &number, kind]).text()?;
    says(&said, "all echoes right")?;
    server.still_runs()
}

pub fn python_asyncio_echoes(stage: &Stage) -> Outcome {
    echo(stage, "python3", "echo.py", "asyncio")
}

pub fn python_threads_echo(stage: &Stage) -> Outcome {
    echo(stage, "python3", "echo.py", "threads")
}

pub fn python_forks_echo(stage: &Stage) -> Outcome {
    echo(stage, "python3", "echo.py", "forks")
}

/// The children of a server with thousands of streams end, or become another program, before they use any.
pub fn a_server_forks_under_two_thousand_streams(stage: &Stage) -> Outcome {
    let (path, port) = (app("forks.py").to_string_lossy().into_owned(), stage.port());
    let number = port.to_string();
    let server = [path.as_str(), "serve", &number, "2000"];
    let mut server = stage.application("python3").args(server).listening_on(port)?;
    let said =
        stage.peer("python3").args([path.as_str(), "ask", &number, "2000", "20000"]).text()?;
    says(&said, "all answers right")?;
    server.still_runs()?;
    match stage.reverted() {
        0 => Ok(()),
        some => Err(format!("{some} streams went back to TCP")),
    }
}

pub fn python_serves_files_to_curl(stage: &Stage) -> Outcome {
    let (root, port) = (stage.folder("www"), stage.port());
    let wanted = content(5, 16 << 20);
    stage.file("www/file", &wanted);
    let mut server = stage
        .application("python3")
        .args(["-m", "http.server", "--bind", "127.0.0.1", "--directory"])
        .args([root.into_os_string(), port.to_string().into()])
        .listening_on(port)?;
    let url = format!("http://127.0.0.1:{port}/file");
    for _ in 0..3 {
        let got = stage.peer("curl").args(["-sS", "--fail", &url]).output()?;
        same("the file", &got, &wanted)?;
    }
    server.still_runs()
}

pub fn node_serves_http(stage: &Stage) -> Outcome {
    let port = stage.port();
    let (path, number) = (app("http.js").to_string_lossy().into_owned(), port.to_string());
    let server = [path.as_str(), "serve", &number];
    let mut server = stage.application("node").args(server).listening_on(port)?;
    says(&stage.peer("node").args([path.as_str(), "ask", &number]).text()?, "all answers right")?;
    let wanted = content(6, 48 << 20);
    let url = format!("http://127.0.0.1:{port}/echo");
    let body = format!("@{}", stage.file("body", &wanted).display());
    let got = stage.peer("curl").args(["-sS", "--fail", "--data-binary", &body, &url]).output()?;
    same("what curl posted", &got, &wanted)?;
    server.still_runs()
}

pub fn java_selects_over_many_channels(stage: &Stage) -> Outcome {
    echo(stage, "java", "Echo.java", "nio")
}
