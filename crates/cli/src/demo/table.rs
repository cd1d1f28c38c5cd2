//! What was measured, and the table of it.

use serde::Serialize;

use super::recipe::{Better, Measure};
use super::stage::{Mode, Streams};
use crate::figures::{figure, median};

/// One line of the table.
#[derive(Serialize)]
pub struct Row {
    program: String,
    unit: &'static str,
    #[serde(skip)]
    better: Better,
    plain: Option<f64>,
    accelerated: Option<f64>,
    /// How many times better the accelerated program is.
    ratio: Option<f64>,
    streams_upgraded: u64,
    streams_eligible: u64,
    failure: Option<String>,
    plain_rounds: Vec<f64>,
    accelerated_rounds: Vec<f64>,
}

impl Row {
    pub fn new(measure: &Measure) -> Row {
        Row {
            program: measure.name.to_owned(),
            unit: measure.unit,
            better: measure.better,
            plain: None,
            accelerated: None,
            ratio: None,
            streams_upgraded: 0,
            streams_eligible: 0,
            failure: None,
            plain_rounds: Vec::new(),
            accelerated_rounds: Vec::new(),
        }
    }

    pub fn failed(name: &str, failure: String) -> Row {
        let nothing = |_: &_| Ok(0.0);
        let measure = Measure { name: "", unit: "", better: Better::Higher, run: nothing };
        Row { program: name.to_owned(), failure: Some(failure), ..Row::new(&measure) }
    }

    pub fn add(&mut self, mode: Mode, value: f64, streams: Streams) {
        let rounds = match mode {
            Mode::Plain => &mut self.plain_rounds,
            Mode::Accelerated => &mut self.accelerated_rounds,
        };
        rounds.push(value);
        self.streams_upgraded += streams.upgraded;
        self.streams_eligible += streams.eligible;
        self.plain = median(&self.plain_rounds);
        self.accelerated = median(&self.accelerated_rounds);
        self.ratio =
            self.plain.zip(self.accelerated).map(|(plain, accelerated)| match self.better {
                Better::Higher => accelerated / plain,
                Better::Lower => plain / accelerated,
            });
    }

    pub fn name(&self) -> &str {
        &self.program
    }

    pub fn has_failed(&self) -> bool {
        self.failure.is_some()
    }

    pub fn streams_upgraded(&self) -> u64 {
        self.streams_upgraded
    }

    fn cells(&self) -> [String; 5] {
        if self.failure.is_some() {
            return [&self.program, "failed", "", "", ""].map(String::from);
        }
        let figure =
            |value: Option<f64>| value.map_or("-".into(), |value| figure(value, self.unit));
        [
            self.program.clone(),
            figure(self.plain),
            figure(self.accelerated),
            self.ratio.map_or("-".into(), |ratio| format!("{ratio:.2} x")),
            format!("{} of {}", self.streams_upgraded, self.streams_eligible),
        ]
    }
}

/// Columns as wide as their widest cell; figures to the right.
pub fn table(rows: &[Row], plain_only: bool) -> String {
    let head = ["program", "plain", "accelerated", "ratio", "streams upgraded"].map(String::from);
    let lines: Vec<_> = std::iter::once(head).chain(rows.iter().map(Row::cells)).collect();
    let width = |column: usize| lines.iter().map(|line| line[column].len()).max().unwrap_or(0);
    let widths: [usize; 5] = std::array::from_fn(width);
    let mut text = String::from("\n");
    for line in &lines {
        let [program, figures @ ..] = line;
        text.push_str(&format!("{program:<0$}", widths[0]));
        for (cell, width) in figures.iter().zip(&widths[1..]) {
            text.push_str(&format!("   {cell:>width$}"));
        }
        text.push('\n');
    }
    if !plain_only {
        text.push_str("\nMedians over rounds in turn; streams as the clients counted them, of those eligible.\n");
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
        row.add(Mode::Plain, 30.0, Streams::default());
        row.add(Mode::Accelerated, 1.0, Streams { eligible: 1, upgraded: 1 });
        assert_eq!(row.ratio, Some(30.0));
        assert_eq!(row.cells()[4], "1 of 1");
    }
}
