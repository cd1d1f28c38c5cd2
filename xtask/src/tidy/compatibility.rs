//! `docs/compatibility.md` names a test for what it promises: `call | treatment | test`. A name
//! that no test bears is a promise that nobody keeps.

use super::sources::Sources;
use super::tables::{self, Row};
use super::Finding;

pub fn check(sources: &Sources) -> Vec<Finding> {
    let Some(table) = &sources.compatibility else {
        return vec![Finding::new("docs/compatibility.md", "is not there")];
    };
    let mut findings = Vec::new();
    for row in tables::rows(&table.text) {
        for name in tests_of(&row).into_iter().filter(|name| !sources.defines(name)) {
            let place = format!("{}:{}", table.path, row.line);
            findings.push(Finding::new(place, format!("there is no test {name}")));
        }
    }
    findings
}

/// The names in a row's last cell that read like test names.
fn tests_of<'a>(row: &Row<'a>) -> Vec<&'a str> {
    let [_, _, .., tests] = row.cells[..] else { return Vec::new() };
    let quoted = tests.split('`').skip(1).step_by(2);
    quoted
        .map(|name| name.rsplit("::").next().unwrap_or(name).trim())
        .filter(|name| tables::is_name(name) && name.contains('_'))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tests_of_line(line: &str) -> Vec<&str> {
        let cells = line.trim_matches('|').split('|').map(str::trim).collect();
        tests_of(&Row { line: 1, heading: "call", cells })
    }

    #[test]
    fn the_last_cell_names_the_tests() {
        assert_eq!(
            tests_of_line("| `send` | ring | `basic::one_test`, `other_test` |"),
            ["one_test", "other_test"]
        );
        assert!(tests_of_line("| `some_call` | passed through | none |").is_empty());
    }
}
