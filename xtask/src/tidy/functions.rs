//! `docs/compatibility.md` has a row for every function that the library exports. A function that
//! stands in no row was forgotten.

use super::exports;
use super::sources::{Source, Sources};
use super::tables;
use super::Finding;
use std::collections::{BTreeMap, BTreeSet};

/// The first cell above the names of functions.
const HEADING: &str = "call";
const NOT_EXPORTED: &str = "not exported";

/// What the tables say of functions.
struct Told<'a> {
    path: &'a str,
    /// With the line of one row.
    exported: BTreeMap<&'a str, usize>,
    not_exported: BTreeMap<&'a str, usize>,
}

impl<'a> Told<'a> {
    fn read(table: &'a Source) -> Told<'a> {
        let (mut exported, mut not_exported) = (BTreeMap::new(), BTreeMap::new());
        for row in tables::rows(&table.text).iter().filter(|row| row.heading == HEADING) {
            let not = row.cells.get(1).is_some_and(|treatment| treatment.contains(NOT_EXPORTED));
            let told = if not { &mut not_exported } else { &mut exported };
            told.extend(tables::names(row.cells[0]).map(|name| (name, row.line)));
        }
        Told { path: &table.path, exported, not_exported }
    }

    fn wrong(&self, line: usize, message: String) -> Finding {
        Finding::new(format!("{}:{line}", self.path), message)
    }
}

/// The rows and the exports say the same.
pub fn exported(sources: &Sources) -> Vec<Finding> {
    let Some(table) = &sources.compatibility else { return Vec::new() };
    let told = Told::read(table);
    let mut findings = Vec::new();
    let mut exported = BTreeSet::new();
    for export in exports::all(sources) {
        let Some(name) = export.name else {
            findings.push(Finding::new(export.place, "exports a name that cannot be read"));
            continue;
        };
        exported.insert(name);
        if let Some(line) = told.not_exported.get(name) {
            findings.push(told.wrong(*line, format!("{name} is exported")));
        } else if !told.exported.contains_key(name) {
            findings
                .push(Finding::new(export.place, format!("{name} has no row in {}", told.path)));
        }
    }
    let absent = told.exported.iter().filter(|(name, _)| !exported.contains(*name));
    findings
        .extend(absent.map(|(name, line)| told.wrong(*line, format!("{name} is not exported"))));
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sources(rows: &str) -> Sources {
        let source = |path: &str, text: String| Source { path: path.into(), text };
        let table = format!("| call | treatment | test |\n|---|---|---|\n{rows}");
        let exports = "#[no_mangle]\npub fn read() {}\n#[no_mangle]\npub fn __read() {}\n";
        Sources {
            rust: vec![source("crates/preload/src/exports/io.rs", exports.into())],
            compatibility: Some(source("docs/compatibility.md", table)),
            ..Sources::default()
        }
    }

    fn messages(findings: &[Finding]) -> Vec<&str> {
        findings.iter().map(|finding| finding.message.as_str()).collect()
    }

    const RIGHT: &str = "| `read`, `__read` | served | none |\n\
                         | `fstat` and `isatty` | kernel, not exported: right | none |\n";

    #[test]
    fn rows_that_say_what_is_exported_are_right() {
        let sources = sources(RIGHT);
        assert!(exported(&sources).is_empty());
    }

    #[test]
    fn an_export_needs_a_row() {
        let found = exported(&sources("| `read` | served | none |\n"));
        assert_eq!(messages(&found), ["__read has no row in docs/compatibility.md"]);
        assert_eq!(found[0].place, "crates/preload/src/exports/io.rs:3");
    }

    #[test]
    fn a_row_does_not_promise_what_is_not_exported() {
        let found = exported(&sources("| `read`, `__read`, `recv` | served | none |\n"));
        assert_eq!(messages(&found), ["recv is not exported"]);
        assert_eq!(found[0].place, "docs/compatibility.md:3");
    }

    #[test]
    fn a_row_does_not_deny_what_is_exported() {
        let rows = "| `read` | served | none |\n| `__read` | kernel, not exported | none |\n";
        assert_eq!(messages(&exported(&sources(rows))), ["__read is exported"]);
    }

    #[test]
    fn names_in_other_tables_and_other_cells_say_nothing() {
        let rows =
            format!("{RIGHT}| other | through `write` | none |\n\n| what |\n|---|\n| `dup` |\n");
        let sources = sources(&rows);
        assert!(exported(&sources).is_empty());
    }
}
