//! `docs/compatibility.md` has a row for every function that the library exports, and for every
//! function of glibc that could touch a stream: those of `glibc-descriptors.txt`. A function that
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

    fn names(&self, name: &str) -> bool {
        self.exported.contains_key(name) || self.not_exported.contains_key(name)
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

/// The rows name what glibc has, and nothing else.
pub fn of_glibc(sources: &Sources) -> Vec<Finding> {
    let Some(list) = &sources.glibc else {
        return vec![Finding::new("xtask/glibc-descriptors.txt", "is not there")];
    };
    let Some(table) = &sources.compatibility else { return Vec::new() };
    let told = Told::read(table);
    let mut findings = Vec::new();
    let mut listed = BTreeSet::new();
    let mut before = "";
    for (number, name) in symbols(&list.text) {
        let wrong = |message| Finding::new(format!("{}:{number}", list.path), message);
        if !tables::is_name(name) {
            findings.push(wrong(format!("{name} is no symbol")));
        } else if name <= before {
            findings.push(wrong(format!("{name} stands behind {before}")));
        }
        if !told.names(name) {
            findings.push(wrong(format!("{name} has no row in {}", told.path)));
        }
        before = name;
        listed.insert(name);
    }
    let rows = told.exported.iter().chain(&told.not_exported);
    let strange = rows.filter(|(name, _)| !listed.contains(*name));
    findings.extend(
        strange.map(|(name, line)| told.wrong(*line, format!("{name} is not in {}", list.path))),
    );
    findings
}

/// The lines that are neither empty nor comments, counted from 1.
fn symbols(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let lines = text.lines().enumerate().map(|(number, line)| (number + 1, line.trim()));
    lines.filter(|(_, line)| !line.is_empty() && !line.starts_with('#'))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sources(rows: &str, glibc: &str) -> Sources {
        let source = |path: &str, text: String| Source { path: path.into(), text };
        let table = format!("| call | treatment | test |\n|---|---|---|\n{rows}");
        let exports = "#[no_mangle]\npub fn read() {}\n#[no_mangle]\npub fn __read() {}\n";
        Sources {
            rust: vec![source("crates/preload/src/exports/io.rs", exports.into())],
            compatibility: Some(source("docs/compatibility.md", table)),
            glibc: Some(source("xtask/glibc-descriptors.txt", glibc.into())),
            ..Sources::default()
        }
    }

    fn messages(findings: &[Finding]) -> Vec<&str> {
        findings.iter().map(|finding| finding.message.as_str()).collect()
    }

    const RIGHT: &str = "| `read`, `__read` | served | none |\n\
                         | `fstat` and `isatty` | kernel, not exported: right | none |\n";
    const LIST: &str = "# how it was made\n__read\nfstat\nisatty\nread\n";

    #[test]
    fn rows_that_say_what_is_exported_are_right() {
        let sources = sources(RIGHT, LIST);
        assert!(exported(&sources).is_empty());
        assert!(of_glibc(&sources).is_empty());
    }

    #[test]
    fn an_export_needs_a_row() {
        let found = exported(&sources("| `read` | served | none |\n", LIST));
        assert_eq!(messages(&found), ["__read has no row in docs/compatibility.md"]);
        assert_eq!(found[0].place, "crates/preload/src/exports/io.rs:3");
    }

    #[test]
    fn a_row_does_not_promise_what_is_not_exported() {
        let found = exported(&sources("| `read`, `__read`, `recv` | served | none |\n", LIST));
        assert_eq!(messages(&found), ["recv is not exported"]);
        assert_eq!(found[0].place, "docs/compatibility.md:3");
    }

    #[test]
    fn a_row_does_not_deny_what_is_exported() {
        let rows = "| `read` | served | none |\n| `__read` | kernel, not exported | none |\n";
        assert_eq!(messages(&exported(&sources(rows, LIST))), ["__read is exported"]);
    }

    #[test]
    fn names_in_other_tables_and_other_cells_say_nothing() {
        let rows =
            format!("{RIGHT}| other | through `write` | none |\n\n| what |\n|---|\n| `dup` |\n");
        let sources = sources(&rows, LIST);
        assert!(exported(&sources).is_empty());
        assert!(of_glibc(&sources).is_empty());
    }

    #[test]
    fn a_function_of_glibc_without_a_row_was_forgotten() {
        let found = of_glibc(&sources(RIGHT, &format!("{LIST}recv\n")));
        assert_eq!(messages(&found), ["recv has no row in docs/compatibility.md"]);
        assert_eq!(found[0].place, "xtask/glibc-descriptors.txt:6");
    }

    #[test]
    fn a_row_names_no_function_that_is_not_in_the_list() {
        let rows = format!("{RIGHT}| `fsatt` | kernel, not exported | none |\n");
        let found = of_glibc(&sources(&rows, LIST));
        assert_eq!(messages(&found), ["fsatt is not in xtask/glibc-descriptors.txt"]);
    }

    #[test]
    fn the_list_is_sorted_and_names_each_once() {
        let found = of_glibc(&sources(RIGHT, "__read\nisatty\nfstat\nread\nread\n"));
        assert_eq!(messages(&found), ["fstat stands behind isatty", "read stands behind read"]);
    }
}
