//! Redis: one thread, many small requests.

use anyhow::Result;

use super::recipe::{Better, Measure, Recipe};
use super::saves::while_saving;
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
            run: |stage| rate(stage, "GET", &["-c", "1"], 20_000),
        },
        Measure {
            name: "redis GET 1 KB, 50 clients",
            unit: "requests/s",
            better: Better::Higher,
            run: |stage| rate(stage, "GET", &["-c", "50"], 60_000),
        },
    ],
    more: &[
        Measure {
            name: "redis GET 1 KB, 500 clients",
            unit: "requests/s",
            better: Better::Higher,
            run: |stage| rate(stage, "GET", &["-c", "500"], 120_000),
        },
        Measure {
            name: "redis GET 1 KB, 50 clients, pipeline 16",
            unit: "requests/s",
            better: Better::Higher,
            run: |stage| rate(stage, "GET", &["-c", "50", "-P", "16"], 600_000),
        },
        Measure {
            name: "redis SET 1 KB, 50 clients",
            unit: "requests/s",
            better: Better::Higher,
            run: set,
        },
        // The last one: the keys that it saves stay.
        Measure {
            name: "redis SET 1 KB, 50 clients, BGSAVE under way",
            unit: "requests/s",
            better: Better::Higher,
            run: |stage| while_saving(stage.port, || set(stage)),
        },
    ],
};

fn serve(stage: &Stage) -> Result<Vec<Server>> {
    let port = stage.port.to_string();
    let server = stage
        .command("redis-server")
        .args(["--bind", "127.0.0.1", "--port", &port])
        .args(["--save", "", "--appendonly", "no", "--rdbcompression", "no"])
        .serve()?;
    // The key that is read.
    benchmark(stage, "SET", &["-c", "1"], 1)?;
    Ok(vec![server])
}

fn set(stage: &Stage) -> Result<f64> {
    rate(stage, "SET", &["-c", "50"], 120_000)
}

fn rate(stage: &Stage, test: &str, load: &[&str], per_second_or_so: u32) -> Result<f64> {
    let output = benchmark(stage, test, load, per_second_or_so * stage.seconds)?;
    number_after(&output, &format!("\"{test}\",\""))
}

fn benchmark(stage: &Stage, test: &str, load: &[&str], requests: u32) -> Result<String> {
    stage
        .command("redis-benchmark")
        .args(["-h", "127.0.0.1", "-p", &stage.port.to_string(), "--csv"])
        .args(["-t", test, "-d", "1024", "-n", &requests.to_string()])
        .args(load.iter().copied())
        .output()
}
