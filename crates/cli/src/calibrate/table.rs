//! What was found, for a person.

use std::fmt::Write;

use super::calibration::{Calibration, Copies, Crossover, Wake};
use crate::figures::{count, figure};

pub fn table(found: &Calibration) -> String {
    let mut text = head(found);
    if let Some(wake) = &found.wake {
        text.push_str(&wakes(wake));
    }
    text.push_str(&spin(found.useful_spin_ns));
    if !found.copy.is_empty() {
        text.push_str(&copies(&found.copy));
        text.push_str(&crossover(found.crossover()));
    }
    text
}

fn head(found: &Calibration) -> String {
    let Calibration { date, shunt, cpu, cores, quick, .. } = found;
    let cores = count(*cores as u32, "core");
    let quick = if *quick { "; wake-ups only, quickly" } else { "" };
    format!("measured on {date} by shunt {shunt} on {cpu}, {cores}{quick}\n\n")
}

fn wakes(wake: &Wake) -> String {
    let Wake { batches, spread_percent, busy_percent, .. } = wake;
    let mut text = format!(
        "two that sleep for each other (medians of {batches} batches; their middle half differs by {spread_percent} %)\n"
    );
    for (what, ns) in [
        ("half a round trip, two cores", wake.half_trip_two_cores_ns),
        ("half a round trip, one core", wake.half_trip_one_core_ns),
        ("the call that wakes one on another core", wake.waker_ns),
    ] {
        if let Some(ns) = ns {
            let _ = writeln!(text, "  {what:<44} {:>10}", us(ns));
        }
    }
    if let Some(doubt) = wake.doubt() {
        let _ = writeln!(text, "warning: {doubt}: end other programs and measure again");
    } else if *busy_percent > 0 {
        let _ = writeln!(text, "  other programs were running in {busy_percent} of 100 batches");
    }
    text
}

fn spin(useful_ns: Option<u32>) -> String {
    match useful_ns {
        Some(ns) => {
            format!("  {:<44} {:>10}  (SHUNT_SPIN_NS={ns})\n", "the longest spin that pays", us(ns))
        }
        None => "there is one core only, so the longest spin stays the usual one\n".into(),
    }
}

fn copies(rows: &[Copies]) -> String {
    let mut text = "\none stream between two processes\n".to_owned();
    let _ = writeln!(text, "  {:>9} {:>14} {:>14}", "bytes", "two copies", "one copy");
    for Copies { bytes, two_copies, one_copy } in rows {
        let one_copy = one_copy.map_or("-".into(), rate);
        let _ = writeln!(text, "  {bytes:>9} {:>14} {one_copy:>14}", rate(*two_copies));
    }
    text
}

fn crossover(crossover: Crossover) -> String {
    let found = match crossover {
        Crossover::From(bytes) => {
            format!(
                "one copy (process_vm_readv, with its system call) is faster from {bytes} bytes on"
            )
        }
        Crossover::Never => {
            "one copy (process_vm_readv, with its system call) is never faster here".to_owned()
        }
        Crossover::Unknown => "one copy (process_vm_readv) is not allowed here".to_owned(),
    };
    format!(
        "{found}\nShunt copies twice at every size: it has no other method, whatever this says\n"
    )
}

fn us(ns: u32) -> String {
    figure(f64::from(ns) / 1e3, "us")
}

fn rate(bytes_per_second: f64) -> String {
    figure(bytes_per_second / 1e6, "MB/s")
}

#[cfg(test)]
mod tests {
    use super::super::calibration::tests::example;
    use super::*;

    #[test]
    fn it_says_what_the_library_uses_and_what_it_does_not() {
        let text = table(&example());
        assert!(text.contains("SHUNT_SPIN_NS=36000"), "{text}");
        assert!(text.contains("never faster"), "{text}");
        assert!(text.contains("Shunt copies twice at every size"), "{text}");
        assert!(!text.contains("warning"), "{text}");
    }

    #[test]
    fn what_was_not_measured_is_not_shown() {
        let one_core = Calibration { useful_spin_ns: None, wake: None, copy: vec![], ..example() };
        let text = table(&one_core);
        assert!(text.contains("one core only"), "{text}");
        assert!(!text.contains("bytes"), "{text}");
    }

    #[test]
    fn a_busy_machine_is_told() {
        let wake = example().wake.map(|wake| Wake { busy_percent: 90, ..wake });
        let text = table(&Calibration { wake, ..example() });
        assert!(
            text.contains("warning: other programs were running in 90 of 100 batches"),
            "{text}"
        );
    }
}
