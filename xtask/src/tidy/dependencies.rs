//! Crates depend downward only. The layers stand in one table; a crate that is not in it has to
//! be put there, which is the moment to think about its place.

use super::sources::{Source, Sources};
use super::Finding;

/// Lower layers first; crates of one layer do not know each other.
const LAYERS: &[&[&str]] = &[
    &["ring", "stream", "stats", "os"],
    &["link", "pairing", "readiness"],
    &["carriers"],
    &["sockets"],
    &["preload"],
];

/// An ordinary program beside the layers: it may read everything but what is loaded into others.
const COMMAND: &str = "cli";
const NOT_FOR_THE_COMMAND: &[&str] = &["sockets", "preload"];

pub fn check(sources: &Sources) -> Vec<Finding> {
    let manifests = sources.manifests.iter().filter(|manifest| manifest.crate_name().is_some());
    manifests.flat_map(check_manifest).collect()
}

fn check_manifest(manifest: &Source) -> Vec<Finding> {
    let name = manifest.crate_name().unwrap_or_default();
    let wrong = |message: String| Finding::new(&manifest.path, message);
    let dependencies = dependencies(&manifest.text);
    if name == COMMAND {
        let forbidden = dependencies.iter().filter(|name| NOT_FOR_THE_COMMAND.contains(name));
        return forbidden.map(|to| wrong(format!("{name} must not use {to}"))).collect();
    }
    let Some(own) = layer(name) else {
        return vec![wrong(format!("{name} has no layer; give it one in xtask's table"))];
    };
    dependencies
        .into_iter()
        .filter(|to| layer(to).is_none_or(|layer| layer >= own))
        .map(|to| wrong(format!("{name} must not depend on {to}: dependencies point down")))
        .collect()
}

fn layer(name: &str) -> Option<usize> {
    LAYERS.iter().position(|layer| layer.contains(&name))
}

/// The crates of this workspace that the manifest names outside its dev-dependencies.
fn dependencies(manifest: &str) -> Vec<&str> {
    let mut counts = false;
    let mut names = Vec::new();
    for line in manifest.lines().map(str::trim) {
        if line.starts_with('[') {
            counts = line.contains("dependencies") && !line.contains("dev-dependencies");
        } else if let (true, Some(rest)) = (counts, line.strip_prefix("shunt-")) {
            let end = rest.find(|c: char| !c.is_alphanumeric() && c != '-').unwrap_or(rest.len());
            names.push(&rest[..end]);
        }
    }
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    fn findings(name: &str, text: &str) -> usize {
        let path = format!("crates/{name}/Cargo.toml");
        check_manifest(&Source { path, text: text.to_owned() }).len()
    }

    #[test]
    fn downward_is_right_and_upward_is_not() {
        assert_eq!(findings("link", "[dependencies]\nshunt-os.workspace = true\n"), 0);
        assert_eq!(findings("os", "[dependencies]\nshunt-link = { path = \"x\" }\n"), 1);
        assert_eq!(findings("ring", "[dev-dependencies]\nshunt-os.workspace = true\n"), 0);
    }

    #[test]
    fn the_command_uses_nothing_that_is_loaded_into_programs() {
        assert_eq!(findings("cli", "[dependencies]\nshunt-stats.workspace = true\n"), 0);
        assert_eq!(findings("cli", "[dependencies]\nshunt-sockets.workspace = true\n"), 1);
    }

    #[test]
    fn an_unknown_crate_needs_a_place() {
        assert_eq!(findings("novelty", ""), 1);
    }
}
