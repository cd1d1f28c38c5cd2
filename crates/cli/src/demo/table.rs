//! What was measured, and the table of it.

use serde_json::json;

use super::recipe::{Better, Measure};
use super::stage::{Mode, Streams};
use crate::figures::{figure, median};

/// One line of the table.
pub struct Row {
    program: String,
    unit: &'static str,
    better: Better,
    plain: Side,
    accelerated: Side,
    server_alone: Side,
    client_alone: Side,
    failure: Option<String>,
}

/// The rounds in one mode.
#[derive(Default)]
struct Side {
    median: Option<f64>,
    /// How many times better than plain.
    ratio: Option<f64>,
    rounds: Vec<f64>,
    /// Of the clients, in each of the rounds.
    streams: Vec<Streams>,
    /// How far apart the cores were after each of the rounds, in ns.
    apart_ns: Vec<Option<f64>>,
}

/// One round of a program.
pub struct Round {
    pub mode: Mode,
    /// From 1.
    pub number: u32,
    pub value: f64,
    pub streams: Streams,
    /// How far apart the cores were then.
    pub apart_ns: Option<f64>,
}

impl Row {
    pub fn new(measure: &Measure) -> Row {
        Row {
            program: measure.name.to_owned(),
            unit: measure.unit,
            better: measure.better,
            plain: Side::default(),
            accelerated: Side::default(),
            server_alone: Side::default(),
            client_alone: Side::default(),
            failure: None,
        }
    }

    pub fn failed(name: &str, failure: String) -> Row {
        let nothing = |_: &_| Ok(0.0);
        let measure = Measure { name: "", unit: "", better: Better::Higher, run: nothing };
        Row { program: name.to_owned(), failure: Some(failure), ..Row::new(&measure) }
    }

    pub fn add(&mut self, mode: Mode, value: f64, streams: Streams, apart_ns: Option<f64>) {
        let side = self.side_mut(mode);
        side.rounds.push(value);
        side.median = median(&side.rounds);
        side.streams.push(streams);
        side.apart_ns.push(apart_ns);
        let (plain, better) = (self.plain.median, self.better);
        for mode in [Mode::Accelerated, Mode::ServerAlone, Mode::ClientAlone] {
            let side = self.side_mut(mode);
            side.ratio = plain.zip(side.median).map(|(plain, median)| match better {
                Better::Higher => median / plain,
                Better::Lower => plain / median,
            });
        }
    }

    pub fn name(&self) -> &str {
        &self.program
    }

    pub fn unit(&self) -> &'static str {
        self.unit
    }

    pub fn smaller_is_better(&self) -> bool {
        self.better == Better::Lower
    }

    pub fn failure(&self) -> Option<&str> {
        self.failure.as_deref()
    }

    /// All rounds in all modes.
    pub fn rounds(&self) -> Vec<Round> {
        let modes = [Mode::Plain, Mode::Accelerated, Mode::ServerAlone, Mode::ClientAlone];
        let of_mode = |mode| {
            let side = self.side(mode);
            let round = |index: usize| Round {
                mode,
                number: index as u32 + 1,
                value: side.rounds[index],
                streams: side.streams[index],
                apart_ns: side.apart_ns[index],
            };
            (0..side.rounds.len()).map(round).collect::<Vec<_>>()
        };
        modes.into_iter().flat_map(of_mode).collect()
    }

    pub fn streams_upgraded(&self) -> u64 {
        self.rounds().iter().map(|round| round.streams.upgraded).sum()
    }

    fn streams_eligible(&self) -> u64 {
        self.rounds().iter().map(|round| round.streams.eligible).sum()
    }

    /// The medians, ratios to plain and rounds of every mode that was played.
    pub fn json(&self) -> serde_json::Value {
        let mut object = json!({
            "program": self.program,
            "unit": self.unit,
            "plain": self.plain.median,
            "accelerated": self.accelerated.median,
            "ratio": self.accelerated.ratio,
            "streams_upgraded": self.streams_upgraded(),
            "streams_eligible": self.streams_eligible(),
            "failure": self.failure,
            "plain_rounds": self.plain.rounds,
            "accelerated_rounds": self.accelerated.rounds,
        });
        for (name, side) in
            [("server_alone", &self.server_alone), ("client_alone", &self.client_alone)]
        {
            if !side.rounds.is_empty() {
                object[name] = json!(side.median);
                object[format!("{name}_ratio")] = json!(side.ratio);
                object[format!("{name}_rounds")] = json!(side.rounds);
            }
        }
        object
    }

    fn side(&self, mode: Mode) -> &Side {
        match mode {
            Mode::Plain => &self.plain,
            Mode::Accelerated => &self.accelerated,
            Mode::ServerAlone => &self.server_alone,
            Mode::ClientAlone => &self.client_alone,
        }
    }

    fn side_mut(&mut self, mode: Mode) -> &mut Side {
        match mode {
            Mode::Plain => &mut self.plain,
            Mode::Accelerated => &mut self.accelerated,
            Mode::ServerAlone => &mut self.server_alone,
            Mode::ClientAlone => &mut self.client_alone,
        }
    }

    fn cells(&self, modes: &[Mode]) -> Vec<String> {
        let mut cells = vec![self.program.clone()];
        if self.failure.is_some() {
            cells.push("failed".into());
            cells.resize(head(modes).len(), String::new());
            return cells;
        }
        for mode in modes {
            let side = self.side(*mode);
            cells.push(side.median.map_or("-".into(), |value| figure(value, self.unit)));
            if *mode != Mode::Plain {
                cells.push(side.ratio.map_or("-".into(), |ratio| format!("{ratio:.2} x")));
            }
        }
        if modes.contains(&Mode::Accelerated) {
            cells.push(format!("{} of {}", self.streams_upgraded(), self.streams_eligible()));
        }
        cells
    }
}

fn head(modes: &[Mode]) -> Vec<String> {
    let mut cells = vec!["program"];
    for mode in modes {
        cells.push(mode.name());
        if *mode != Mode::Plain {
            cells.push("ratio");
        }
    }
    if modes.contains(&Mode::Accelerated) {
        cells.push("streams upgraded");
    }
    cells.into_iter().map(String::from).collect()
}

/// Columns as wide as their widest cell; figures to the right.
pub fn table(rows: &[Row], modes: &[Mode]) -> String {
    let lines: Vec<_> =
        std::iter::once(head(modes)).chain(rows.iter().map(|row| row.cells(modes))).collect();
    let width = |column: usize| lines.iter().map(|line| line[column].len()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..lines[0].len()).map(width).collect();
    let mut text = String::from("\n");
    for line in &lines {
        text.push_str(&format!("{:<1$}", line[0], widths[0]));
        for (cell, width) in line.iter().zip(&widths).skip(1) {
            text.push_str(&format!("   {cell:>width$}"));
        }
        text.push('\n');
    }
    if modes.len() > 1 {
        text.push_str("\nMedians over rounds in turn.\n");
    }
    if modes.contains(&Mode::Accelerated) {
        text.push_str("Streams as the clients counted them, of those eligible.\n");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ratio_says_how_many_times_better() {
        let run = |_: &_| Ok(0.0);
        let mut row = Row::new(&Measure { name: "x", unit: "us", better: Better::Lower, run });
        row.add(Mode::Plain, 30.0, Streams::default(), None);
        row.add(Mode::Accelerated, 1.0, Streams { eligible: 1, upgraded: 1 }, None);
        row.add(Mode::ClientAlone, 60.0, Streams::default(), None);
        assert_eq!(row.accelerated.ratio, Some(30.0));
        let rounds: Vec<_> = row.rounds().iter().map(|it| (it.number, it.value)).collect();
        assert_eq!(rounds, [(1, 30.0), (1, 1.0), (1, 60.0)]);
        assert_eq!(row.cells(&[Mode::Plain, Mode::Accelerated])[4], "1 of 1");
        let cells = row.cells(&[Mode::Plain, Mode::ServerAlone, Mode::ClientAlone]);
        assert_eq!(cells[2..], ["-", "-", "60.0 us", "0.50 x"]);
    }
}
