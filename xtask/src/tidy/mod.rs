//! The rules of the repository that a machine can check. Each rule is a function from the sources
//! to its findings; all rules run, so that one look shows everything.

mod compatibility;
mod dependencies;
mod exports;
mod functions;
mod modules;
mod sources;
mod sync;
mod tables;

use sources::Sources;
use std::path::Path;

pub struct Finding {
    pub place: String,
    pub message: String,
}

impl Finding {
    pub fn new(place: impl Into<String>, message: impl Into<String>) -> Finding {
        Finding { place: place.into(), message: message.into() }
    }
}

type Rule = (&'static str, fn(&Sources) -> Vec<Finding>);

const RULES: &[Rule] = &[
    ("every SYNC label has both ends", sync::check),
    ("every module says what it is for", modules::comments),
    ("dependencies point down only", dependencies::check),
    ("every test named in docs/compatibility.md exists", compatibility::check),
    ("every function that is exported has its row there", functions::exported),
    ("every function of glibc that may hold a descriptor has its row there", functions::of_glibc),
];

/// Checks every rule and says what was found; true when nothing was.
pub fn run() -> bool {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask lies in the workspace");
    let sources = Sources::read(root);
    for Finding { place, message } in modules::lengths(&sources) {
        println!("note: {place}: {message}");
    }
    let mut failed = 0;
    for (rule, check) in RULES {
        let findings = check(&sources);
        failed += usize::from(!findings.is_empty());
        for Finding { place, message } in &findings {
            println!("{place}: {message}");
        }
        println!("{:6} {rule}", if findings.is_empty() { "ok" } else { "FAILED" });
    }
    println!("{} passed, {failed} failed", RULES.len() - failed);
    failed == 0
}
