//! `shunt calibrate`: what a wake-up and a copy cost on this machine, measured once and kept.
//!
//! The library uses one figure of it, the longest spin that pays: `shunt run` hands it to programs in their
//! environment, and measures it first if none is kept (`automatic.rs`). Everything else is for people.

mod automatic;
mod calibration;
mod copies;
mod store;
mod table;
mod wake;

use std::time::Duration;

use anyhow::{anyhow, bail, Context, Result};

use crate::bench::{machine, progress};
use crate::{args, child, interrupt};
use calibration::{Calibration, Copies, Wake, FORMAT};
use store::Store;
use wake::Places;

pub use automatic::{kept_spin_ns, spin_ns_for_programs};

const WAKE_TIME: Duration = Duration::from_secs(1);
/// So that `shunt run` does not wait longer than [`automatic`] lets it.
const WAKE_TIME_QUICK: Duration = Duration::from_millis(90);

pub fn calibrate(args: &args::Calibrate) -> Result<()> {
    let store = Store::find().ok_or_else(|| {
        anyhow!("there is no place to keep a calibration: set HOME, or XDG_CACHE_HOME to a folder")
    })?;
    match args {
        args::Calibrate { show: true, .. } => show(&store),
        args::Calibrate { delete: true, .. } => delete(&store),
        _ => measure(&store, args.quick, args.force),
    }
}

fn show(store: &Store) -> Result<()> {
    let path = store.path().display();
    let kept = store.load().ok_or_else(|| {
        anyhow!(
            "nothing is kept in {path} that holds for this machine; `shunt calibrate` measures it"
        )
    })?;
    println!("{}kept in {path}", table::table(&kept));
    Ok(())
}

fn delete(store: &Store) -> Result<()> {
    let path = store.path().display();
    match store.delete().with_context(|| format!("{path} could not be deleted"))? {
        true => println!("deleted {path}"),
        false => println!("nothing is kept in {path}"),
    }
    Ok(())
}

fn measure(store: &Store, quick: bool, force: bool) -> Result<()> {
    interrupt::watch();
    let found = find_out(quick)?;
    print!("{}", table::table(&found));
    let doubt = found.wake.as_ref().and_then(Wake::doubt);
    if let Some(doubt) = doubt.filter(|_| !force) {
        bail!("not kept, because {doubt}: end other programs and try again, or use --force");
    }
    let path = store.path().display();
    store.save(&found).with_context(|| format!("{path} could not be written"))?;
    println!("kept in {path}");
    Ok(())
}

fn find_out(quick: bool) -> Result<Calibration> {
    let (places, time) =
        if quick { (Places::TwoCores, WAKE_TIME_QUICK) } else { (Places::Both, WAKE_TIME) };
    if !quick {
        progress("wake-ups");
    }
    let wake = Wake::new(&wake::measure(places, time)?);
    let copy = if quick { Vec::new() } else { copies::measure()? };
    Ok(new(quick, wake, copy))
}

fn new(quick: bool, wake: Wake, copy: Vec<Copies>) -> Calibration {
    Calibration {
        format: FORMAT,
        quick,
        date: machine::today(),
        shunt: env!("CARGO_PKG_VERSION").to_owned(),
        cpu: machine::cpu(),
        cores: child::cores().len(),
        useful_spin_ns: wake.useful_spin_ns(),
        wake: Some(wake),
        copy,
    }
}
