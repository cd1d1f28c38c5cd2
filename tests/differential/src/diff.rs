//! Two transcripts beside each other.

use crate::run::{Note, Record};
use std::collections::BTreeMap;

/// Nothing when both runs did the same; otherwise the differing transcripts, readable.
pub fn differences(oracle: &Record, other: &Record) -> Option<String> {
    let (left, right) = (by_actor(oracle), by_actor(other));
    let mut text = String::new();
    let actors: std::collections::BTreeSet<_> = left.keys().chain(right.keys()).collect();
    for who in actors {
        let none = Vec::new();
        let (a, b) = (left.get(who).unwrap_or(&none), right.get(who).unwrap_or(&none));
        if a != b {
            text.push_str(&format!("  {who}:\n{}", side_by_side(a, b)));
        }
    }
    (!text.is_empty()).then_some(text)
}

/// Each actor's own order counts; between actors only the scenario's steps order things.
fn by_actor(record: &Record) -> BTreeMap<String, Vec<String>> {
    let mut actors: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for Note { who, what, got } in &record.notes {
        actors.entry(who.clone()).or_default().push(format!("{what} = {got}"));
    }
    actors
}

/// Of longer transcripts only what differs is shown.
const LINES_SHOWN_MAX: usize = 200;

/// The longest common subsequence stands unmarked between what only one of the two has.
fn side_by_side(a: &[String], b: &[String]) -> String {
    let mut longest = vec![vec![0usize; b.len() + 1]; a.len() + 1];
    for i in (0..a.len()).rev() {
        for j in (0..b.len()).rev() {
            longest[i][j] = if a[i] == b[j] {
                longest[i + 1][j + 1] + 1
            } else {
                longest[i + 1][j].max(longest[i][j + 1])
            };
        }
    }
    let (mut i, mut j, mut text) = (0, 0, String::new());
    while i < a.len() || j < b.len() {
        if i < a.len() && j < b.len() && a[i] == b[j] {
            if a.len() <= LINES_SHOWN_MAX {
                text.push_str(&format!("      {}\n", a[i]));
            }
            (i, j) = (i + 1, j + 1);
        } else if i < a.len() && (j == b.len() || longest[i + 1][j] >= longest[i][j + 1]) {
            text.push_str(&format!("    - {}    (kernel TCP)\n", a[i]));
            i += 1;
        } else {
            text.push_str(&format!("    + {}    (this run)\n", b[j]));
            j += 1;
        }
    }
    text
}
