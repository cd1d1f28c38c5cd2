//! `shunt stat`: which processes run under Shunt, and what carries their streams.

mod scan;
mod table;

use anyhow::{bail, Result};

use crate::args;
use crate::report::{self, Stat, StatProcess, SCHEMA};
use scan::Found;

pub fn stat(args: &args::Stat) -> Result<()> {
    let found = scan::scan(&args.pids);
    if let Some(pid) = found.missing.first() {
        bail!("there is no process {pid}; `shunt stat` without a number lists all");
    }
    if args.json {
        println!("{}", serde_json::to_string_pretty(&json(&found))?);
    } else {
        print!("{}", table::table(&found));
    }
    Ok(())
}

fn json(found: &Found) -> Stat {
    Stat {
        schema: SCHEMA,
        shunt: env!("CARGO_PKG_VERSION"),
        not_looked_at: found.forbidden.len(),
        unreadable: found.unreadable.clone(),
        totals: (&report::sum(&found.processes, None)).into(),
        processes: found.processes.iter().map(StatProcess::from).collect(),
    }
}
