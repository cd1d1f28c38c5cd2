//! What `shunt stat` shows a person.

use std::collections::BTreeMap;
use std::fmt::Write;

use shunt_stats::{Carrier, Reason, Snapshot, Stream, Totals};

use super::scan::Found;
use crate::report;

pub fn table(found: &Found) -> String {
    let mut text = String::new();
    for process in &found.processes {
        text.push_str(&of_process(process));
    }
    text.push_str(&summary(found));
    text
}

fn of_process(process: &Snapshot) -> String {
    let Snapshot { pid, program, totals, streams, .. } = process;
    let mut text = format!(
        "{pid} {program}: {} of {} streams open, {} upgraded, {} reverted\n",
        streams.len(),
        totals.streams,
        totals.streams_upgraded,
        totals.streams_reverted,
    );
    for stream in streams {
        text.push_str(&of_stream(stream));
    }
    text
}

fn of_stream(stream: &Stream) -> String {
    let end = |address: Option<std::net::SocketAddr>| {
        address.map_or_else(|| "?".to_owned(), |address| address.to_string())
    };
    let carrier = match (stream.carrier_tx, stream.carrier_rx) {
        (tx, rx) if tx == rx => tx.name().to_owned(),
        (tx, rx) => format!("{}/{}", tx.name(), rx.name()),
    };
    let bytes =
        |counts: &BTreeMap<Carrier, u64>| counts.values().copied().fold(0, u64::saturating_add);
    let mut line = format!(
        "  {:<24} {:<24} {:<8} sent {:>10}  received {:>10}",
        end(stream.local),
        end(stream.peer),
        carrier,
        short(bytes(&stream.bytes_sent)),
        short(bytes(&stream.bytes_received)),
    );
    if let Some(reason) = stream.reason {
        let _ = write!(line, "  {} ({})", reason.name(), reason.help());
    }
    line.push('\n');
    line
}

fn summary(found: &Found) -> String {
    let mut text = match found.processes.len() {
        0 => "no process here runs under Shunt and has used TCP; try `shunt run PROG`\n".to_owned(),
        _ => of_totals(&report::sum(&found.processes, None)),
    };
    match found.forbidden.len() {
        0 => {}
        1 => text.push_str("1 process of another user was not looked at; root may\n"),
        n => _ = writeln!(text, "{n} processes of other users were not looked at; root may"),
    }
    for line in &found.unreadable {
        let _ = writeln!(text, "counters that cannot be read: {line}");
    }
    text
}

fn of_totals(totals: &Totals) -> String {
    let mut text = format!(
        "total: {} streams, {} upgraded of {} eligible, {} reverted\n",
        totals.streams,
        totals.streams_eligible_upgraded,
        totals.streams_eligible,
        totals.streams_reverted,
    );
    for (way, counts) in [("sent", &totals.bytes_sent), ("received", &totals.bytes_received)] {
        let parts =
            counts.iter().map(|(carrier, n)| format!("{} by {}", short(*n), carrier.name()));
        let parts: Vec<String> = parts.collect();
        if !parts.is_empty() {
            let _ = writeln!(text, "{way}: {}", parts.join(", "));
        }
    }
    text.push_str(&of_reasons(&totals.pass_through));
    text
}

fn of_reasons(reasons: &BTreeMap<Reason, u64>) -> String {
    let mut sorted: Vec<_> = reasons.iter().collect();
    sorted.sort_by_key(|(_, count)| std::cmp::Reverse(**count));
    let line = |(reason, count): (&Reason, &u64)| {
        format!("left to the kernel: {count} x {} ({})\n", reason.name(), reason.help())
    };
    sorted.into_iter().map(line).collect()
}

/// Bytes with a unit, three digits.
fn short(bytes: u64) -> String {
    let units = ["B", "kB", "MB", "GB", "TB", "PB", "EB"];
    let mut value = bytes as f64;
    let mut unit = 0;
    while value >= 999.5 && unit + 1 < units.len() {
        value /= 1000.0;
        unit += 1;
    }
    let digits = if unit == 0 || value >= 99.95 { 0 } else { 1 };
    format!("{value:.digits$} {}", units[unit])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_shown_with_a_unit() {
        let shown = [0, 999, 1000, 12_345, 999_499, 999_500, u64::MAX].map(short);
        assert_eq!(shown, ["0 B", "999 B", "1.0 kB", "12.3 kB", "999 kB", "1.0 MB", "18.4 EB"]);
    }
}
