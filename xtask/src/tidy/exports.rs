//! The functions that the library exports: what stands under `#[no_mangle]` in its sources, by
//! itself or by a macro that is given the names.

use super::sources::{Source, Sources};
use super::tables::is_name;

/// A `#[no_mangle]` whose name could be read, or could not.
pub struct Export<'a> {
    pub place: String,
    pub name: Option<&'a str>,
}

const MARK: &str = "#[no_mangle]";

pub fn all(sources: &Sources) -> Vec<Export<'_>> {
    sources.rust.iter().filter(|source| source.is_in_src()).flat_map(of).collect()
}

fn of(source: &Source) -> Vec<Export<'_>> {
    let text = source.text.as_str();
    let marks = text.match_indices(MARK).map(|(at, _)| at);
    marks
        .filter(|at| text[..*at].rsplit('\n').next().is_some_and(|line| !line.contains("//")))
        .flat_map(|at| {
            let place = format!("{}:{}", source.path, text[..at].matches('\n').count() + 1);
            let names = names_at(text, at + MARK.len());
            let export = |name| Export { place: place.clone(), name };
            match names.is_empty() {
                true => vec![export(None)],
                false => names.into_iter().map(|name| export(Some(name))).collect(),
            }
        })
        .collect()
}

/// The function's name behind `at`; if a macro writes it, those that the macro is given.
fn names_at(text: &str, at: usize) -> Vec<&str> {
    let Some((_, rest)) = text[at..].split_once("fn ") else { return Vec::new() };
    if !rest.starts_with('$') {
        return first_word(rest).into_iter().collect();
    }
    let Some((_, made)) = text[..at].rsplit_once("macro_rules! ") else { return Vec::new() };
    let Some(by) = first_word(made) else { return Vec::new() };
    let calls = text.match_indices(by).filter_map(|(at, _)| arguments(&text[at + by.len()..]));
    calls.flat_map(given).collect()
}

/// What stands between the brackets behind a macro's `!`.
fn arguments(rest: &str) -> Option<&str> {
    let inside = rest.strip_prefix('!')?.trim_start();
    let mut depth = 0usize;
    for (at, c) in inside.char_indices() {
        match c {
            '(' | '{' | '[' => depth += 1,
            ')' | '}' | ']' => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return inside.get(1..at);
        }
    }
    None
}

/// The first word of each entry. Entries end in `;`, or are words with commas between them.
fn given(arguments: &str) -> Vec<&str> {
    let end = if arguments.contains(';') { ';' } else { ',' };
    arguments.split(end).filter_map(|entry| first_word(entry.trim_start())).collect()
}

fn first_word(text: &str) -> Option<&str> {
    let end = text.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(text.len());
    Some(&text[..end]).filter(|word| is_name(word))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn exports(text: &str) -> Vec<Option<String>> {
        let source = Source { path: "crates/preload/src/a.rs".into(), text: text.into() };
        of(&source).iter().map(|export| export.name.map(str::to_owned)).collect()
    }

    fn named(names: &[&str]) -> Vec<Option<String>> {
        names.iter().map(|name| Some((*name).to_owned())).collect()
    }

    #[test]
    fn a_function_is_exported_under_its_name() {
        let text = "//! Two.\n#[no_mangle]\npub unsafe extern \"C\" fn read(fd: c_int) {}\nfn other() {}\n\
                    #[no_mangle]\npub unsafe extern \"C\" fn __read_chk(\n    fd: c_int,\n) {}\n";
        assert_eq!(exports(text), named(&["read", "__read_chk"]));
    }

    #[test]
    fn a_macro_exports_what_it_is_given() {
        let entries = "macro_rules! take {\n($($name:ident ($($arg:ident: $ty:ty),*);)*) => { $(\n\
                       #[no_mangle]\npub extern \"C\" fn $name($($arg: $ty),*) {}\n)* };\n}\n\
                       take! {\n    open(path: P, flags: F);\n    pipe(ends: P);\n}\n";
        assert_eq!(exports(entries), named(&["open", "pipe"]));
        let words = "macro_rules! by_function {\n($($name:ident),*) => { $(\n#[no_mangle]\n\
                     pub extern \"C\" fn $name() {}\n)* };\n}\nby_function!(signal, __sysv_signal);\n";
        assert_eq!(exports(words), named(&["signal", "__sysv_signal"]));
        let two = "macro_rules! with { ($($name:ident, $by:ident;)*) => { $(\n#[no_mangle]\n\
                   pub fn $name() {}\n)* }; }\nwith! {\n    execl, shunt_execl;\n}\n";
        assert_eq!(exports(two), named(&["execl"]));
    }

    #[test]
    fn a_name_that_cannot_be_read_is_told() {
        assert_eq!(exports("#[no_mangle]\nstatic X: u8 = 0;\n"), [None]);
        assert!(exports("// Not with #[no_mangle]: fn of() is ours.\n").is_empty());
    }
}
