//! Tables of a Markdown file: rows under their heading, and the names in a cell.

pub struct Row<'a> {
    /// Counted from 1.
    pub line: usize,
    /// The first cell of the table's first row.
    pub heading: &'a str,
    pub cells: Vec<&'a str>,
}

/// The rows of all tables, without headings and the lines below them.
pub fn rows(text: &str) -> Vec<Row<'_>> {
    let mut heading = None;
    let mut rows = Vec::new();
    for (number, line) in text.lines().enumerate() {
        let Some(cells) = cells(line) else {
            heading = None;
            continue;
        };
        match heading {
            None => heading = Some(cells[0]),
            Some(_) if is_rule(&cells) => {}
            Some(heading) => rows.push(Row { line: number + 1, heading, cells }),
        }
    }
    rows
}

fn cells(line: &str) -> Option<Vec<&str>> {
    let inside = line.trim().strip_prefix('|')?;
    let inside = inside.strip_suffix('|').unwrap_or(inside);
    Some(inside.split('|').map(str::trim).collect())
}

fn is_rule(cells: &[&str]) -> bool {
    cells.iter().all(|cell| cell.chars().all(|c| c == '-' || c == ':'))
}

/// The names in backticks. What stands in backticks and is no name is left out.
pub fn names(cell: &str) -> impl Iterator<Item = &str> {
    let quoted = cell.split('`').skip(1).step_by(2);
    quoted.map(str::trim).filter(|text| is_name(text))
}

pub fn is_name(text: &str) -> bool {
    let starts = text.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_');
    starts && text.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_stand_under_the_heading_of_their_table() {
        let text = "| call | test |\n|---|:--|\n| `a` | `b` |\n\nbetween\n| flag |\n|---|\n| C |\n";
        let found: Vec<_> = rows(text).iter().map(|r| (r.line, r.heading, r.cells[0])).collect();
        assert_eq!(found, [(3, "call", "`a`"), (8, "flag", "C")]);
    }

    #[test]
    fn an_empty_last_cell_is_a_cell() {
        let text = "| what | TCP | here |\n|---|---|---|\n| time | | |\n";
        assert_eq!(rows(text)[0].cells, ["time", "", ""]);
    }

    #[test]
    fn a_cell_may_hold_several_names() {
        let found = |cell| names(cell).collect::<Vec<_>>();
        assert_eq!(found("`fcntl`, `__fcntl`, `fcntl64` F_DUPFD"), ["fcntl", "__fcntl", "fcntl64"]);
        assert_eq!(found("`shutdown` of a listener, twice, wrong"), ["shutdown"]);
        assert!(found("any of them on a bad descriptor").is_empty());
        assert!(found("`syscall(SYS_read)` and `--flag` and `2nd`").is_empty());
    }
}
