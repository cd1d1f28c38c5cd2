//! Files: each opens by saying what it is for, and none grows too long to read.

use super::sources::Sources;
use super::Finding;

/// Above this a file tells more than one story.
const LINES_MAX: usize = 600;

pub fn comments(sources: &Sources) -> Vec<Finding> {
    let opens = |text: &str| text.trim_start().starts_with("//!");
    let silent = sources.rust.iter().filter(|source| !opens(&source.text));
    silent.map(|source| Finding::new(&source.path, "opens without a `//!` comment")).collect()
}

/// Said, not failed: a long table is fine.
pub fn lengths(sources: &Sources) -> Vec<Finding> {
    let long = sources.rust.iter().filter(|source| source.is_in_src());
    long.filter_map(|source| {
        let lines = source.text.lines().count();
        let message = format!("{lines} lines; more than {LINES_MAX} are hard to read");
        (lines > LINES_MAX).then(|| Finding::new(&source.path, message))
    })
    .collect()
}
