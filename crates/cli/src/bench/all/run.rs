//! The raw data of a run: a CSV file for each part, with a row for every round.

use std::fs;
use std::path::Path;

use anyhow::{bail, Context, Result};
use clap::ValueEnum;
use serde::de::DeserializeOwned;
use serde::Serialize;

use super::file;
use crate::args::bench::Part;
use crate::bench::against::Trial;
use crate::bench::case::Case;
use crate::bench::record::Record;

#[derive(Debug, Default, PartialEq)]
pub struct Run {
    /// Of all parts with cases.
    pub records: Vec<Record>,
    pub passthrough: Vec<Trial>,
    pub start: Vec<Trial>,
    pub apps: Vec<Trial>,
}

/// A new folder.
pub fn create(folder: &Path) -> Result<()> {
    if folder.exists() {
        bail!("{} is there already; name another with --out", folder.display());
    }
    fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))
}

pub fn write<T: Serialize>(path: &Path, rows: &[T]) -> Result<()> {
    let mut file = csv::Writer::from_path(path)?;
    rows.iter().try_for_each(|row| file.serialize(row))?;
    Ok(file.flush()?)
}

/// None if there is no such file.
fn read<T: DeserializeOwned>(path: &Path) -> Result<Vec<T>> {
    if !path.exists() {
        return Ok(Vec::new());
    }
    let rows: Result<_, _> = csv::Reader::from_path(path)?.deserialize().collect();
    rows.with_context(|| format!("cannot read {}", path.display()))
}

impl Run {
    pub fn read(folder: &Path) -> Result<Run> {
        let mut run = Run::default();
        for part in Part::value_variants() {
            let path = file(folder, *part);
            match part {
                Part::Passthrough => run.passthrough = read(&path)?,
                Part::Start => run.start = read(&path)?,
                Part::Apps => run.apps = read(&path)?,
                _ => run.records.extend(read::<Record>(&path)?),
            }
        }
        Ok(run)
    }

    pub fn is_empty(&self) -> bool {
        *self == Run::default()
    }

    /// Every case once, in the order in which they were first measured.
    pub fn cases(&self) -> Vec<Case> {
        let mut cases = Vec::new();
        for case in self.records.iter().map(Record::case) {
            if !cases.contains(&case) {
                cases.push(case);
            }
        }
        cases
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use crate::args::bench::{Measure, Pin, Way};
    use crate::bench::against::tests::trial;
    use crate::bench::against::Mode;
    use crate::bench::record::tests::record;

    /// A run with a little of everything.
    pub fn example() -> Run {
        let mut run = Run::default();
        let mut add = |case: Case, tcp: f64, shunt: f64| {
            run.records.push(record(case, Way::Tcp, tcp, 1000));
            run.records.push(record(case, Way::Shunt, shunt, 10_000));
        };
        for size in [8, 131_072] {
            add(Case::new(Measure::Latency, Pin::Two, size), 30.0, 0.25);
            add(Case::new(Measure::Stream, Pin::Two, size), 0.0, 0.0);
        }
        add(Case::new(Measure::Latency, Pin::One, 8), 2.5, 1.0);
        add(Case::new(Measure::Rate, Pin::Two, 8), 0.0, 0.0);
        add(Case::new(Measure::Connect, Pin::Two, 8), 50.0, 50.0);
        let streams = Case::new(Measure::Streams, Pin::Two, 8);
        add(streams.over(8, 8, Some(1)), 28.0, 0.7);
        for count in [8, 10_000] {
            add(streams.over(count, 1, None), 28.0, 0.7);
            add(streams.over(count, 100, None), 100.0, 40.0);
        }
        add(Case::new(Measure::Think, Pin::Two, 8).thinking(10), 28.0, 0.7);
        add(Case::new(Measure::Think, Pin::Two, 8).paced(1000), 60.0, 14.0);
        add(Case::new(Measure::Idle, Pin::Two, 8).over(1000, 1, None), 0.0, 0.0);
        let pair = |what, plain, shunt, smaller_is_better| {
            let mode = |mode, value| trial(what, mode, value, smaller_is_better);
            [mode(Mode::Plain, plain), mode(Mode::Shunt, shunt)]
        };
        run.passthrough.extend(pair("dup and close, pipe", 235.0, 520.0, true));
        run.start.extend(pair("start and end of /bin/true", 760.0, 950.0, true));
        run.apps.extend(pair("redis, \"GET\"", 20_000.0, 268_000.0, false));
        run
    }

    fn folder(name: &str) -> std::path::PathBuf {
        std::env::temp_dir().join(format!("shunt-all-{}-{name}", std::process::id()))
    }

    #[test]
    fn what_is_written_is_read_back() {
        let (folder, run) = (folder("back"), example());
        create(&folder).unwrap();
        let of = |measure| run.records.iter().filter(move |it| it.measure == measure).cloned();
        for (part, measure) in [
            (Part::Latency, Measure::Latency),
            (Part::Stream, Measure::Stream),
            (Part::Rate, Measure::Rate),
            (Part::Connect, Measure::Connect),
            (Part::Streams, Measure::Streams),
            (Part::Think, Measure::Think),
            (Part::Idle, Measure::Idle),
        ] {
            write(&file(&folder, part), &of(measure).collect::<Vec<_>>()).unwrap();
        }
        write(&file(&folder, Part::Passthrough), &run.passthrough).unwrap();
        write(&file(&folder, Part::Start), &run.start).unwrap();
        write(&file(&folder, Part::Apps), &run.apps).unwrap();
        let read = Run::read(&folder).unwrap();
        fs::remove_dir_all(&folder).unwrap();
        assert_eq!(read.records.len(), run.records.len());
        assert!(run.records.iter().all(|record| read.records.contains(record)));
        assert_eq!((read.passthrough, read.start), (run.passthrough, run.start));
        assert_eq!(read.apps, run.apps);
    }

    #[test]
    fn a_folder_that_is_there_is_not_touched() {
        let folder = folder("there");
        create(&folder).unwrap();
        assert!(create(&folder).is_err());
        assert!(Run::read(&folder).unwrap().is_empty());
        fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn a_file_that_is_no_record_is_an_error_with_its_name() {
        let folder = folder("wrong");
        create(&folder).unwrap();
        fs::write(folder.join("rate.csv"), "round,way\n1,tcp\n").unwrap();
        let error = Run::read(&folder).unwrap_err();
        fs::remove_dir_all(&folder).unwrap();
        assert!(format!("{error:#}").contains("rate.csv"), "{error:#}");
    }
}
