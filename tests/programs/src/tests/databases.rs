//! Redis, memcached and PostgreSQL.

use crate::application::Running;
use crate::peer::{content, digest, never_says, same, says, Peer};
use crate::stage::{find, is_root, Stage};
use crate::watchdog::until;
use crate::{Failure, Outcome};
use std::fmt::Write;

fn redis(stage: &Stage, port: u16) -> Result<Running, Failure> {
    let directory = stage.folder("redis");
    stage
        .application("redis-server")
        .args(["--bind", "127.0.0.1", "--save", "", "--port", &port.to_string()])
        .args(["--dir".into(), directory])
        .listening_on(port)
}

fn redis_cli(stage: &Stage, port: u16) -> Peer<'_> {
    stage.peer("redis-cli").args(["-h", "127.0.0.1", "-p", &port.to_string()])
}

/// Values of many sizes, and the commands that set and get them.
fn redis_commands() -> (String, String, String) {
    let (mut set, mut get, mut values) = (String::new(), String::new(), String::new());
    for key in 0..2000u64 {
        let length = (key * 37 % 900 + 1) as usize;
        let value: String =
            content(key, length).iter().map(|byte| (b'a' + byte % 26) as char).collect();
        writeln!(set, "SET key:{key} {value}").expect("strings grow");
        writeln!(get, "GET key:{key}").expect("strings grow");
        writeln!(values, "{value}").expect("strings grow");
    }
    (set, get, values)
}

pub fn redis_keeps_its_content(stage: &Stage) -> Outcome {
    let port = stage.port();
    let mut server = redis(stage, port)?;
    let (set, get, values) = redis_commands();
    let said = redis_cli(stage, port).input(stage.file("set", set)).text()?;
    same("answers to SET", said.as_bytes(), "OK\n".repeat(2000).as_bytes())?;
    let got = redis_cli(stage, port).input(stage.file("get", get)).output()?;
    same("values", &got, values.as_bytes())?;
    let large = content(9, 32 << 20);
    let path = stage.file("large", &large);
    redis_cli(stage, port).args(["-x", "SET", "large"]).input(path).succeeds()?;
    let mut got = redis_cli(stage, port).args(["GET", "large"]).output()?;
    got.pop();
    same("a value of 32 MB", &got, &large)?;
    server.still_runs()
}

fn redis_benchmark<'a>(stage: &'a Stage, port: u16, arguments: &[&str]) -> Peer<'a> {
    let base = ["-h", "127.0.0.1", "-q", "-r", "1000", "-p"];
    stage.peer("redis-benchmark").args(base).args([port.to_string()]).args(arguments)
}

pub fn redis_serves_its_benchmark(stage: &Stage) -> Outcome {
    let port = stage.port();
    let mut server = redis(stage, port)?;
    for clients in ["1", "50"] {
        let arguments = ["-n", "20000", "-c", clients, "-d", "1000", "-t", "set,get,lpush,mset"];
        let said = redis_benchmark(stage, port, &arguments).text()?;
        says(&said, "GET: ")?;
        never_says(&said, "rror")?;
    }
    let arguments = ["-n", "40000", "-c", "20", "-P", "16", "-t", "set,get"];
    says(&redis_benchmark(stage, port, &arguments).text()?, "requests per second")?;
    server.still_runs()
}

pub fn redis_saves_in_the_background_under_load(stage: &Stage) -> Outcome {
    let port = stage.port();
    let mut server = redis(stage, port)?;
    let (set, get, values) = redis_commands();
    redis_cli(stage, port).input(stage.file("set", set)).succeeds()?;
    let arguments = ["-n", "60000", "-c", "30", "-d", "500", "-t", "set,get"];
    let load = redis_benchmark(stage, port, &arguments).start()?;
    for _ in 0..3 {
        says(&redis_cli(stage, port).args(["BGSAVE"]).text()?, "Background saving started")?;
        until("the save ended", 30, || {
            let info = redis_cli(stage, port).args(["INFO", "persistence"]).text();
            info.is_ok_and(|info| info.contains("rdb_bgsave_in_progress:0"))
        })?;
    }
    never_says(&load.text()?, "rror")?;
    let info = redis_cli(stage, port).args(["INFO", "persistence"]).text()?;
    says(&info, "rdb_last_bgsave_status:ok")?;
    let saved = stage.path("redis/dump.rdb");
    Peer::new(stage, "redis-check-rdb", crate::stage::Role::Client).args([saved]).succeeds()?;
    let got = redis_cli(stage, port).input(stage.file("get", get)).output()?;
    same("values after the saves", &got, values.as_bytes())?;
    server.still_runs()
}

pub fn memcached_keeps_its_content(stage: &Stage) -> Outcome {
    let port = stage.port();
    let mut server = stage
        .application("memcached")
        .args(["-l", "127.0.0.1", "-u", "nobody", "-m", "64", "-p", &port.to_string()])
        .listening_on(port)?;
    let said = stage
        .peer("python3")
        .args([crate::tests::languages::app("memcached_client.py")])
        .args([port.to_string()])
        .text()?;
    says(&said, "all values right")?;
    server.still_runs()
}

struct Postgresql {
    server: Running,
    port: u16,
}

/// PostgreSQL refuses to be root, so root runs it as the user that its package made.
fn as_postgres(program: &str) -> Result<(String, Vec<String>), Failure> {
    let path = find(program)?.to_string_lossy().into_owned();
    let arguments = ["--reuid=postgres", "--regid=postgres", "--clear-groups", &path];
    Ok(if is_root() {
        ("setpriv".to_owned(), arguments.map(str::to_owned).to_vec())
    } else {
        (path, Vec::new())
    })
}

fn postgresql(stage: &Stage) -> Result<Postgresql, Failure> {
    let (data, sockets) = (stage.folder("pg").join("data"), stage.folder("pg"));
    let (data, sockets) = (data.to_string_lossy(), sockets.to_string_lossy());
    let port = stage.port();
    let (program, before) = as_postgres("initdb")?;
    stage
        .peer(&program)
        .args(before)
        .args(["-U", "shunt", "-A", "trust", "--no-sync", "-E", "UTF8", "--locale=C", "-D", &data])
        .succeeds()?;
    let (program, before) = as_postgres("postgres")?;
    let server = stage
        .application(&program)
        .args(before)
        .args(["-D", &data, "-k", &sockets, "-p", &port.to_string()])
        .args(["-c", "listen_addresses=127.0.0.1", "-c", "fsync=off"])
        .listening_on(port)?;
    // It listens before it has started up, and says so where pg_ctl looks.
    let lock = stage.path("pg").join("data/postmaster.pid");
    let says_ready = || {
        std::fs::read_to_string(&lock)
            .is_ok_and(|told| told.lines().any(|line| line.trim() == "ready"))
    };
    until("PostgreSQL's start", 20, says_ready)?;
    Ok(Postgresql { server, port })
}

impl Postgresql {
    fn at(&self, host: &str) -> Vec<String> {
        ["-h", host, "-U", "shunt", "-p", &self.port.to_string()].map(str::to_owned).to_vec()
    }

    fn ask(&self, stage: &Stage, host: &str, question: &str) -> Result<Vec<u8>, Failure> {
        let psql = stage.peer("psql").args(self.at(host)).args(["-d", "postgres"]);
        psql.args(["-v", "ON_ERROR_STOP=1", "-At", "-c", question]).output()
    }
}

pub fn postgresql_answers_as_over_its_unix_socket(stage: &Stage) -> Outcome {
    let mut postgresql = postgresql(stage)?;
    let unix = stage.path("pg").to_string_lossy().into_owned();
    let fill = "create table t as select g, md5(g::text) as m, repeat('x', g % 300) as filling \
                from generate_series(1, 100000) g";
    postgresql.ask(stage, "127.0.0.1", fill)?;
    for question in [
        "select * from t order by g",
        "select md5(string_agg(m || filling, ',' order by g)) from t",
        "select count(*), sum(g) from t where m like 'a%'",
        "copy (select m, g from t order by m) to stdout",
    ] {
        let tcp = postgresql.ask(stage, "127.0.0.1", question)?;
        same(question, &tcp, &postgresql.ask(stage, &unix, question)?)?;
        if tcp.is_empty() {
            return Err(format!("{question}: no answer ({})", digest(&tcp)));
        }
    }
    postgresql.server.still_runs()
}

pub fn postgresql_serves_its_benchmark(stage: &Stage) -> Outcome {
    let mut postgresql = postgresql(stage)?;
    let pgbench = |arguments: &[&str]| {
        let at = postgresql.at("127.0.0.1");
        stage.peer("pgbench").args(at).args(arguments).args(["postgres"]).text()
    };
    pgbench(&["-i", "-s", "1", "-q"])?;
    for arguments in [
        ["-S", "-M", "prepared", "-c", "1", "-j", "1", "-t", "3000"],
        ["-S", "-M", "extended", "-c", "8", "-j", "2", "-t", "500"],
        ["-N", "-M", "simple", "-c", "4", "-j", "2", "-t", "200"],
    ] {
        says(&pgbench(&arguments)?, "number of failed transactions: 0")?;
    }
    let question = "select sum(abalance) = (select sum(delta) from pgbench_history) \
                    from pgbench_accounts";
    same("the accounts", &postgresql.ask(stage, "127.0.0.1", question)?, b"t\n")?;
    postgresql.server.still_runs()
}
