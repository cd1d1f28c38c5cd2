//! Redis: one thread, many small requests.

use anyhow::Result;

use super::recipe::{Better, Measure, Recipe};
use super::server::Server;
use super::stage::{number_after, Stage};

pub const REDIS: Recipe = Recipe {
    name: "redis",
    packages: "redis-server redis-tools",
    programs: &["redis-server", "redis-benchmark"],
    serve,
    measures: &[
        Measure {
            name: "redis GET 1 KB, 1 client",
            unit: "requests/s",
            better: Better::Higher,
            run: |stage| get(stage, 1, 20_000),
        },
        Measure {
            name: "redis GET 1 KB, 50 clients",
            unit: "requests/s",
            better: Better::Higher,
            run: |stage| get(stage, 50, 60_000),
        },
    ],
};

fn serve(stage: &Stage) -> Result<Server> {
    let port = stage.port.to_string();
    let server = stage
        .command("redis-server")
        .args(["--bind", "127.0.0.1", "--port", &port])
        .args(["--save", "", "--appendonly", "no"])
        .serve()?;
    benchmark(stage, "set", 1, 1)?;
    Ok(server)
}

fn get(stage: &Stage, clients: u32, requests_per_second_or_so: u32) -> Result<f64> {
    let output = benchmark(stage, "get", clients, requests_per_second_or_so * stage.seconds)?;
    number_after(&output, "\"GET\",\"")
}

fn benchmark(stage: &Stage, test: &str, clients: u32, requests: u32) -> Result<String> {
    stage
        .command("redis-benchmark")
        .args(["-h", "127.0.0.1", "-p", &stage.port.to_string(), "--csv"])
        .args(["-t", test, "-d", "1024"])
        .args(["-c", &clients.to_string(), "-n", &requests.to_string()])
        .output()
}
