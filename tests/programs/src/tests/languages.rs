//! Language runtimes, each with its own idea of an event loop; the programs are in `apps/`.

use crate::peer::{content, same, says};
use crate::stage::{Mode, Stage};
use crate::Outcome;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

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

/// The children of a server with thousands of streams end, or become another program, before they use any; it closes
/// some that a child has yet.
pub fn a_server_forks_under_two_thousand_streams(stage: &Stage) -> Outcome {
    const STREAMS: u64 = 2000;
    let (path, port) = (app("forks.py").to_string_lossy().into_owned(), stage.port());
    let (number, file) = (port.to_string(), stage.path("enough"));
    let mut server =
        stage.application("python3").args([path.as_str(), "serve", &number]).listening_on(port)?;
    let asks = [path.as_str(), "ask", &number, &STREAMS.to_string(), "20000"].map(str::to_owned);
    let client = stage.peer("python3").args(asks).args([&file]).start()?;
    let upgraded = await_upgraded(stage, 2 * STREAMS);
    stage.file("enough", "");
    says(&client.text()?, "all answers right")?;
    server.still_runs()?;
    upgraded?;
    match stage.reverted() {
        0 => Ok(()),
        some => Err(format!("{some} streams went back to TCP")),
    }
}

/// Until so many ends of streams have been on a ring; those that are missed are missed for ever.
fn await_upgraded(stage: &Stage, ends: u64) -> Outcome {
    const SECONDS_MAX: u64 = 60;
    let last = Instant::now() + Duration::from_secs(SECONDS_MAX);
    while stage.mode == Mode::Both && stage.upgraded() < ends {
        if Instant::now() > last {
            return Err(format!("{} of {ends} ends were upgraded", stage.upgraded()));
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}

/// More streams than a link holds, so that hundreds at a time are declined, and the answers do not fit into the
/// channel between the two processes at once.
pub fn streams_that_a_full_link_declines_come_to_another(stage: &Stage) -> Outcome {
    const STREAMS: u64 = 3000;
    let (path, port) = (app("burst.py").to_string_lossy().into_owned(), stage.port());
    let (number, file) = (port.to_string(), stage.path("enough"));
    let mut server =
        stage.application("python3").args([path.as_str(), "serve", &number]).listening_on(port)?;
    let asks = [path.as_str(), "ask", &number, &STREAMS.to_string()].map(str::to_owned);
    let client = stage.peer("python3").args(asks).args([&file]).start()?;
    let upgraded = await_upgraded(stage, 2 * STREAMS);
    stage.file("enough", "");
    says(&client.text()?, "all answers right")?;
    server.still_runs()?;
    upgraded
}

/// The first try by the link that there is finds nobody who has the other end: it must not lead to a link for each stream,
/// with three descriptors at either end.
pub fn streams_that_are_accepted_late_share_a_link(stage: &Stage) -> Outcome {
    const STREAMS: &str = "60";
    const DESCRIPTORS_MAX: u32 = 40;
    let (path, port) = (app("late.py").to_string_lossy().into_owned(), stage.port());
    let number = port.to_string();
    let server = stage.application("python3").args([path.as_str(), "serve", &number, STREAMS]);
    let mut server = server.listening_on(port)?;
    let said = stage.peer("python3").args([path.as_str(), "ask", &number, STREAMS]).text()?;
    let count = said.split(' ').next().and_then(|word| word.parse::<u32>().ok());
    if count.is_none_or(|count| count > DESCRIPTORS_MAX) {
        return Err(format!("the server has {said}"));
    }
    server.ends_well()
}

/// Memory that a burst has touched is given back once its stream rests, and the bytes of the next burst are right.
pub fn a_stream_that_rests_gives_its_memory_back(stage: &Stage) -> Outcome {
    const KIB_MAX: u64 = 64;
    // It takes two seconds; one that stays is missed for ever.
    const SECONDS_MAX: &str = "40";
    let (path, port) = (app("rest.py").to_string_lossy().into_owned(), stage.port());
    let number = port.to_string();
    let mut server =
        stage.application("python3").args([path.as_str(), "serve", &number]).listening_on(port)?;
    let ask = [path.as_str(), "ask", &number, &KIB_MAX.to_string(), SECONDS_MAX].map(str::to_owned);
    let said = stage.peer("python3").args(ask).text()?;
    server.still_runs()?;
    let mut turns = 0;
    for line in said.lines().filter(|line| line.starts_with("turn ")) {
        let kib: Vec<u64> = line.split(' ').filter_map(|word| word.parse().ok()).collect();
        let [grown, rested] = kib[..] else { return Err(format!("it said: {line}")) };
        turns += 1;
        if stage.mode == Mode::Both && (grown < 2 * KIB_MAX || rested > KIB_MAX) {
            return Err(line.to_owned());
        }
    }
    match turns {
        3 => Ok(()),
        _ => Err(format!("it said: {said}")),
    }
}

pub fn python_serves_files_to_curl(stage: &Stage) -> Outcome {
    let (root, port) = (stage.folder("www"), stage.port());
    // What TCP carries in 30 ms: a thread that a meeting needs may wait for a core as long as 16 MB take.
    let wanted = content(5, 64 << 20);
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
