//! memcached: four threads, and a client of one thread that gets nine times of ten.

use anyhow::Result;

use super::recipe::{Better, Measure, Recipe};
use super::server::Server;
use super::stage::{number_after, Stage};

pub const MEMCACHED: Recipe = Recipe {
    name: "memcached",
    packages: "memcached libmemcached-tools",
    programs: &["memcached", "memcaslap"],
    serve,
    measures: &[],
    more: &[
        Measure {
            name: "memcached 1 KB, 1 client",
            unit: "operations/s",
            better: Better::Higher,
            run: |stage| load(stage, "1"),
        },
        Measure {
            name: "memcached 1 KB, 50 clients",
            unit: "operations/s",
            better: Better::Higher,
            run: |stage| load(stage, "50"),
        },
    ],
};

fn serve(stage: &Stage) -> Result<Vec<Server>> {
    let server = stage
        .command("memcached")
        .args(["-l", "127.0.0.1", "-p", &stage.port.to_string(), "-U", "0", "-m", "1024"])
        .unprivileged()
        .serve()?;
    Ok(vec![server])
}

fn load(stage: &Stage, clients: &str) -> Result<f64> {
    let server = format!("127.0.0.1:{}", stage.port);
    let seconds = format!("{}s", stage.seconds);
    let output = stage
        .command("memcaslap")
        .args(["-s", &server, "-T", "1", "-c", clients, "-X", "1024", "-t", &seconds])
        .output()?;
    number_after(&output, "TPS:")
}
