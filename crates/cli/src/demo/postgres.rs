//! PostgreSQL: a process for each connection, prepared reads. It refuses to run as root.

use anyhow::Result;

use super::recipe::{Better, Measure, Recipe};
use super::server::Server;
use super::stage::{number_after, Stage};

pub const POSTGRES: Recipe = Recipe {
    name: "postgres",
    packages: "postgresql",
    programs: &["initdb", "postgres", "pgbench"],
    serve,
    measures: &[Measure {
        name: "pgbench -S -M prepared, 1 client",
        unit: "transactions/s",
        better: Better::Higher,
        run: |stage| read(stage, &["-c", "1"]),
    }],
    more: &[Measure {
        name: "pgbench -S -M prepared, 16 clients",
        unit: "transactions/s",
        better: Better::Higher,
        run: |stage| read(stage, &["-c", "16", "-j", "2"]),
    }],
};

fn serve(stage: &Stage) -> Result<Vec<Server>> {
    let data = stage.folder.join("data").display().to_string();
    let folder = stage.folder.display().to_string();
    stage
        .command("initdb")
        .args(["-D", &data, "-U", "demo", "-A", "trust", "--locale=C", "-E", "UTF8", "--no-sync"])
        .unprivileged()
        .plain()
        .output()?;
    let server = stage
        .command("postgres")
        .args(["-D", &data, "-p", &stage.port.to_string(), "-k", &folder])
        .args(["-c", "listen_addresses=127.0.0.1", "-c", "fsync=off"])
        .args(["-c", "dynamic_shared_memory_type=mmap"])
        .unprivileged()
        .serve()?;
    server.wait_until_it_says("ready to accept connections")?;
    pgbench(stage, &["-i", "-q", "-s", "1"], "demo")?;
    Ok(vec![server])
}

fn read(stage: &Stage, clients: &[&str]) -> Result<f64> {
    let seconds = stage.seconds.to_string();
    let args = [clients, &["-S", "-M", "prepared", "-n", "-T", &seconds]].concat();
    let output = pgbench(stage, &args, "demo")?;
    number_after(&output, "tps =")
}

fn pgbench(stage: &Stage, args: &[&str], user: &str) -> Result<String> {
    stage
        .command("pgbench")
        .args(["-h", "127.0.0.1", "-p", &stage.port.to_string(), "-U", user])
        .args(args.iter().copied())
        .arg("postgres")
        .unprivileged()
        .output()
}
