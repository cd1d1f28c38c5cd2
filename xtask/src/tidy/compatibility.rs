//! `docs/compatibility.md` names a test for what it promises: `call | treatment | test`. A name
//! that no test bears is a promise that nobody keeps.

use super::sources::Sources;
use super::Finding;

pub fn check(sources: &Sources) -> Vec<Finding> {
    let Some(table) = &sources.compatibility else {
        return vec![Finding::new("docs/compatibility.md", "is not there")];
    };
    let rows = table.text.lines().enumerate().filter(|(_, line)| line.trim().starts_with('|'));
    rows.flat_map(|(number, row)| {
        let missing = tests_of(row).into_iter().filter(|name| !sources.defines(name));
        let place = format!("{}:{}", table.path, number + 1);
        missing.map(move |name| Finding::new(&place, format!("there is no test {name}")))
    })
    .collect()
}

/// The names in backticks in a row's last cell that read like test names.
fn tests_of(row: &str) -> Vec<&str> {
    let cells: Vec<&str> = row.trim().trim_matches('|').split('|').collect();
    let [_, _, .., tests] = cells[..] else { return Vec::new() };
    let quoted = tests.split('`').skip(1).step_by(2);
    quoted
        .map(|name| name.rsplit("::").next().unwrap_or(name).trim())
        .filter(|n| is_name(n))
        .collect()
}

fn is_name(text: &str) -> bool {
    text.contains('_') && text.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_cell_names_the_tests() {
        assert_eq!(
            tests_of("| `send` | ring | `basic::one_test`, `other_test` |"),
            ["one_test", "other_test"]
        );
        assert!(tests_of("| `some_call` | passed through | none |").is_empty());
        assert!(tests_of("|---|---|---|").is_empty());
    }
}
