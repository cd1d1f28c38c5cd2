//! `SYNC label -> Partner: what becomes visible.` The label must stand at both ends within its
//! crate, and the partner that a comment names must be a function of that crate.

use super::sources::{defines, Source, Sources};
use super::Finding;
use std::collections::{BTreeMap, BTreeSet};

struct Mark<'a> {
    place: String,
    label: &'a str,
    partners: Vec<&'a str>,
}

pub fn check(sources: &Sources) -> Vec<Finding> {
    let crates: BTreeSet<&str> = sources.rust.iter().filter_map(Source::crate_name).collect();
    crates.into_iter().flat_map(|name| check_crate(sources, name)).collect()
}

fn check_crate(sources: &Sources, name: &str) -> Vec<Finding> {
    let files: Vec<&Source> =
        sources.rust.iter().filter(|source| source.crate_name() == Some(name)).collect();
    let marks: Vec<Mark> = files.iter().flat_map(|source| marks(source)).collect();
    let mut ends: BTreeMap<&str, usize> = BTreeMap::new();
    for mark in &marks {
        *ends.entry(mark.label).or_default() += 1;
    }
    let mut findings = Vec::new();
    for mark in &marks {
        if ends[mark.label] < 2 {
            let message = format!("SYNC {} stands at one end only", mark.label);
            findings.push(Finding::new(&mark.place, message));
        }
        for partner in &mark.partners {
            let function = partner.rsplit("::").next().unwrap_or(partner);
            if !files.iter().any(|source| defines(&source.text, function)) {
                let message = format!("SYNC {}: no function {partner} here", mark.label);
                findings.push(Finding::new(&mark.place, message));
            }
        }
    }
    findings
}

fn marks(source: &Source) -> Vec<Mark<'_>> {
    let line = |(number, line): (usize, &'_ str)| -> Option<(usize, usize)> {
        let comment = line.find("//")?;
        let at = line[comment..].find("SYNC ")? + comment;
        line[at..].contains("->").then_some((number, at))
    };
    let found = source.text.lines().enumerate().filter_map(line);
    found
        .filter_map(|(number, at)| {
            let text = source.text.lines().nth(number)?;
            let (label, partners) = parse(&text[at..])?;
            let place = format!("{}:{}", source.path, number + 1);
            Some(Mark { place, label, partners })
        })
        .collect()
}

/// The label and the partners' names, without parentheses.
fn parse(text: &str) -> Option<(&str, Vec<&str>)> {
    let (label, rest) = text.strip_prefix("SYNC ")?.split_once(" -> ")?;
    // A single colon ends the names; a double one is part of a path.
    let bytes = rest.as_bytes();
    let ends = |&at: &usize| {
        bytes[at] == b':' && bytes.get(at + 1) != Some(&b':') && (at == 0 || bytes[at - 1] != b':')
    };
    let end = (0..bytes.len()).find(ends).unwrap_or(bytes.len());
    let partners = rest[..end].split(',').map(|name| name.trim().trim_end_matches("()"));
    Some((label.trim(), partners.filter(|name| !name.is_empty()).collect()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_has_a_label_and_its_partners() {
        let parsed = parse("SYNC tail -> Consumer::refresh, pool::take(): every byte is written.");
        assert_eq!(parsed, Some(("tail", vec!["Consumer::refresh", "pool::take"])));
    }

    #[test]
    fn a_label_at_one_end_is_found() {
        let source = |text: &str| Source { path: "crates/a/src/lib.rs".into(), text: text.into() };
        let one = "fn get() {}\n// SYNC x -> get: seen.\n";
        let both = format!("{one}fn set() {{}}\n// SYNC x -> set: stored.\n");
        let findings =
            |text: &str| check(&Sources { rust: vec![source(text)], ..Sources::default() }).len();
        assert_eq!((findings(one), findings(&both)), (1, 0));
    }
}
