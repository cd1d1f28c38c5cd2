//! The README.md of a run: what was measured on, tables, plots, and what could not be measured.

use clap::ValueEnum;

use super::plan::Plan;
use super::plots::Plot;
use super::run::Run;
use super::{aims, name, tables};
use crate::args::bench::Part;
use crate::bench::machine::{self, Machine};
use crate::calibrate;
use crate::figures::count;
use crate::library::SPIN_VARIABLE;

pub struct Readme<'a> {
    pub run: &'a Run,
    pub plan: &'a Plan,
    pub plots: &'a [Plot],
    pub warnings: Vec<String>,
    pub not_measured: Vec<String>,
}

impl Readme<'_> {
    pub fn text(&self) -> String {
        let mut text = String::from("# A run of `shunt bench all`\n\n");
        text.push_str(&self.circumstances());
        text.push_str(&self.reading());
        text.push_str(&list("Warnings", &self.warnings));
        text.push_str(&list("What could not be measured", &self.not_measured));
        text.push_str(&format!("## What is asked, and reached\n\n{}\n", aims::table(self.run)));
        for part in Part::value_variants() {
            text.push_str(&self.part(*part));
        }
        text
    }

    fn circumstances(&self) -> String {
        let Machine { kernel, glibc, system, cpu, cores, governor, is_virtual } = Machine::look();
        let kind = if is_virtual { "virtual machine" } else { "no hypervisor seen" };
        let commit = machine::commit().unwrap_or_else(|| "unknown".into());
        let words: Vec<String> = std::env::args().skip(1).collect();
        let rows = [
            ("version", format!("{}, commit {commit}", env!("CARGO_PKG_VERSION"))),
            ("command", format!("`shunt {}`", words.join(" "))),
            ("day", machine::today()),
            ("system", format!("{system}, Linux {kernel}, glibc {glibc}")),
            ("processor", format!("{cpu}, {cores} cores, {kind}")),
            ("longest spin", longest_spin()),
            ("governor", governor.unwrap_or_else(|| "not visible".into())),
        ];
        let rows = rows.map(|(name, value)| format!("| {name} | {value} |\n"));
        format!("| | |\n|---|---|\n{}\n", rows.concat())
    }

    fn reading(&self) -> String {
        let Plan { rounds, is_quick, .. } = self.plan;
        let quick = if *is_quick {
            "**A quick run**: fewer cases and short rounds. It shows that everything works, and roughly how fast.\n\n"
        } else {
            ""
        };
        format!(
            "{quick}Medians of {}, in which all ways take turns; every round is in the CSV files. Both processes have a core each unless a row says otherwise. CPU is of both processes together. A ratio says how many times better Shunt is. Compare ratios: absolute figures drift by the hour.\n\n",
            count(*rounds, "round")
        )
    }

    fn part(&self, part: Part) -> String {
        let Some(table) = tables::table(part, self.run) else { return String::new() };
        let name = name(part);
        let mut text =
            format!("## {}\n\n{table}\nRaw data: [{name}.csv]({name}.csv).\n\n", heading(part));
        for plot in self.plots.iter().filter(|plot| plot.part == part) {
            text.push_str(&format!("![{}]({})\n\n", plot.title, plot.file));
        }
        text
    }
}

/// What the library has for waits, and from where.
fn longest_spin() -> String {
    let set = std::env::var(SPIN_VARIABLE).ok().map(|set| format!("{set} ns ({SPIN_VARIABLE})"));
    let kept = || calibrate::kept_spin_ns().map(|ns| format!("{ns} ns (`shunt calibrate`)"));
    set.or_else(kept).unwrap_or_else(|| "the usual one (nothing is calibrated)".into())
}

fn heading(part: Part) -> &'static str {
    match part {
        Part::Latency => "Half a round trip of one message",
        Part::Stream => "Bandwidth of one stream",
        Part::Rate => "Messages one way",
        Part::Connect => "Connect, one exchange, close",
        Part::Streams => "Request and reply through epoll over many streams",
        Part::Think => "Half a round trip with pauses",
        Part::Idle => "CPU time of idle streams",
        Part::Passthrough => "Calls on descriptors that are no streams, and fork",
        Part::Start => "Start of a program",
        Part::Apps => "Programs",
    }
}

fn list(title: &str, lines: &[String]) -> String {
    if lines.is_empty() {
        return String::new();
    }
    // What a program printed has several lines, which stay with their entry.
    let entry = |line: &String| format!("- {}\n", line.trim_end().replace('\n', "\n  "));
    let lines: Vec<String> = lines.iter().map(entry).collect();
    format!("## {title}\n\n{}\n", lines.concat())
}

#[cfg(test)]
mod tests {
    use super::super::run::tests::example;
    use super::*;
    use crate::args::bench::All;

    fn text(quick: bool) -> String {
        let all = All { out: None, rounds: None, seconds: None, only: Vec::new(), quick };
        let plot = Plot { part: Part::Rate, file: "rate.svg", title: "Messages" };
        let readme = Readme {
            run: &example(),
            plan: &Plan::new(&all),
            plots: &[plot],
            warnings: vec!["it was loud".into()],
            not_measured: vec!["SMC".into(), "wrk had errors:\nread 5\n".into()],
        };
        readme.text()
    }

    #[test]
    fn everything_that_was_measured_is_told() {
        let text = text(false);
        for part in Part::value_variants() {
            assert!(text.contains(heading(*part)), "{part:?}");
            assert!(text.contains(&format!("({}.csv)", name(*part))), "{part:?}");
        }
        assert!(text.contains("![Messages](rate.svg)"));
        assert!(text.contains("- it was loud\n") && text.contains("- SMC\n"));
        assert!(text.contains("- wrk had errors:\n  read 5\n\n## "));
        assert!(!text.contains("quick run"));
    }

    #[test]
    fn a_quick_run_says_so() {
        assert!(text(true).contains("**A quick run**"));
    }
}
