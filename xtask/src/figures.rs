//! `cargo xtask figures RUN`: writes the tables of README.md and docs/speed.md anew from a committed run of
//! `shunt bench all`, between the marks that stand there. What the figures mean is said around them, by hand.

use std::fs;
use std::path::Path;

/// The programs that README shows.
const PROGRAMS: [&str; 6] = [
    "sockperf ping-pong 14 B, two cores",
    "iperf3 -l 128K",
    "redis GET 1 KB, 1 client",
    "redis GET 1 KB, 50 clients",
    "nginx 1 KB file, 64 connections",
    "pgbench -S -M prepared, 1 client",
];

/// What else README shows: a section of the run, a row there, and README's words for it.
const MEASURES: [(&str, &str, &str); 7] = [
    ("Half a round trip of one message", "8 B", "half a round trip of 8 bytes, two cores"),
    ("Half a round trip of one message", "8 B, both on one core", "the same, one core"),
    ("Messages one way", "8 B", "one way, 8 bytes"),
    ("Bandwidth of one stream", "128 KiB", "one way, writes of 128 KiB"),
    (
        "Request and reply through epoll over many streams",
        "8 streams, 8 active, 1 at a time",
        "through epoll over 8 streams",
    ),
    ("Half a round trip with pauses", "1000 a second", "half a round trip, 1000 a second"),
    ("Connect, one exchange, close", "8 B", "connect, one exchange, close"),
];
const COLUMNS: [&str; 5] = ["kernel TCP", "Unix socket", "bare ring", "Shunt", "Shunt to TCP"];

pub fn run(folder: &str) -> bool {
    let folder = folder.trim_end_matches('/');
    let written = Run::read(folder).and_then(|run| {
        rewrite("README.md", "figures", &run.of_readme(folder)?)?;
        rewrite("docs/speed.md", "aims", &run.of_speed(folder)?)
    });
    if let Err(error) = &written {
        eprintln!("figures: {error}");
    }
    written.is_ok()
}

/// The tables of a run, by the headings above them.
struct Run(String);

type Cells = Vec<String>;

impl Run {
    fn read(folder: &str) -> Result<Run, String> {
        let path = Path::new(folder).join("README.md");
        fs::read_to_string(&path).map(Run).map_err(|error| format!("{}: {error}", path.display()))
    }

    /// The first table under a heading: its head, then its rows.
    fn table(&self, heading: &str) -> Result<Vec<Cells>, String> {
        let mut lines = self.0.lines().skip_while(|line| *line != format!("## {heading}")).skip(1);
        let lines = lines.by_ref().take_while(|line| !line.starts_with("## "));
        let rows = lines.skip_while(|line| !line.starts_with('|'));
        let rows: Vec<Cells> = rows
            .take_while(|line| line.starts_with('|'))
            .filter(|line| !line.starts_with("|---"))
            .map(|line| line.trim_matches('|').split('|').map(|it| it.trim().into()).collect())
            .collect();
        match rows.len() {
            0 => Err(format!("the run has no table under \"{heading}\"")),
            _ => Ok(rows),
        }
    }

    fn row(&self, heading: &str, name: &str) -> Result<(Cells, Cells), String> {
        let mut rows = self.table(heading)?.into_iter();
        let head = rows.next().unwrap_or_default();
        let row = rows.find(|row| row[0] == name);
        Ok((head, row.ok_or_else(|| format!("\"{heading}\" has no row \"{name}\""))?))
    }

    fn of_readme(&self, folder: &str) -> Result<String, String> {
        let mut text = String::from(
            "| program | plain | accelerated | ratio | streams upgraded of eligible |\n|---|---|---|---|---|\n",
        );
        for name in PROGRAMS {
            let (_, row) = self.row("Programs", name)?;
            text += &format!("| {} |\n", row.join(" | "));
        }
        text += &format!("\n|  | {} |\n|---|---|---|---|---|---|\n", COLUMNS.join(" | "));
        for (heading, name, words) in MEASURES {
            let (head, row) = self.row(heading, name)?;
            let cell = |column: &&str| {
                let at = head.iter().position(|it| it == column);
                at.map_or("", |at| without_percentile(&row[at]))
            };
            let cells: Vec<&str> = COLUMNS.iter().map(cell).collect();
            text += &format!("| {words} | {} |\n", cells.join(" | "));
        }
        text +=
            &format!("\nBoth from [this run]({folder}) of `shunt bench all`, which has more.\n");
        Ok(text)
    }

    fn of_speed(&self, folder: &str) -> Result<String, String> {
        let mut text = format!("Of [this run](../{folder}):\n\n");
        for (at, row) in self.table("What is asked, and reached")?.iter().enumerate() {
            text += &format!("| {} |\n", row.join(" | "));
            if at == 0 {
                text += "|---|---:|---:|---:|\n";
            }
        }
        Ok(text)
    }
}

/// `40 us (p99 60 us)` is 40 us here.
fn without_percentile(cell: &str) -> &str {
    cell.split(" (p99").next().unwrap_or(cell)
}

/// Puts `text` between `<!-- mark -->` and `<!-- /mark -->`.
fn between(before: &str, mark: &str, text: &str) -> Option<String> {
    let (open, close) = (format!("<!-- {mark} -->\n"), format!("<!-- /{mark} -->"));
    let start = before.find(&open)? + open.len();
    let end = start + before[start..].find(&close)?;
    Some(format!("{}{text}{}", &before[..start], &before[end..]))
}

fn rewrite(path: &str, mark: &str, text: &str) -> Result<(), String> {
    let before = fs::read_to_string(path).map_err(|error| format!("{path}: {error}"))?;
    let after = between(&before, mark, text).ok_or_else(|| format!("{path} has no {mark}"))?;
    fs::write(path, after).map_err(|error| format!("{path}: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const RUN: &str = "# A run\n\n## One\n\nwords\n\n|  | kernel TCP | Shunt |\n|---|---:|---:|\n| a | 1 us (p99 2 us) | 3 |\n\n## Two\n\nnone\n";

    #[test]
    fn a_row_is_found_under_its_heading() {
        let run = Run(RUN.to_owned());
        let (head, row) = run.row("One", "a").unwrap();
        assert_eq!(head, ["", "kernel TCP", "Shunt"]);
        assert_eq!(row, ["a", "1 us (p99 2 us)", "3"]);
        assert_eq!(without_percentile(&row[1]), "1 us");
        assert!(run.row("One", "b").is_err() && run.table("Two").is_err());
    }

    #[test]
    fn only_what_stands_between_the_marks_changes() {
        let before = "top\n<!-- it -->\nold\n<!-- /it -->\nend\n";
        let after = between(before, "it", "new\n").unwrap();
        assert_eq!(after, "top\n<!-- it -->\nnew\n<!-- /it -->\nend\n");
        assert!(between(before, "other", "").is_none());
    }
}
