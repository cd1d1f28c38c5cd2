//! All Rust sources and manifests of the workspace, and what they are compared with, read once.

use std::path::{Path, PathBuf};

pub struct Source {
    /// Relative to the workspace, with forward slashes.
    pub path: String,
    pub text: String,
}

impl Source {
    /// `ring` for a file of `crates/ring`; nothing for files elsewhere.
    pub fn crate_name(&self) -> Option<&str> {
        self.path.strip_prefix("crates/")?.split('/').next()
    }

    pub fn is_in_src(&self) -> bool {
        self.crate_name().is_some() && self.path.split('/').nth(2) == Some("src")
    }
}

#[derive(Default)]
pub struct Sources {
    pub rust: Vec<Source>,
    pub manifests: Vec<Source>,
    pub compatibility: Option<Source>,
    /// The functions of glibc that may hold a descriptor, one a line.
    pub glibc: Option<Source>,
}

impl Sources {
    pub fn read(root: &Path) -> Sources {
        let mut sources = Sources::default();
        for folder in ["crates", "tests", "xtask"] {
            sources.walk(root, &root.join(folder));
        }
        sources.compatibility = read(root, &root.join("docs/compatibility.md"));
        sources.glibc = read(root, &root.join("xtask/glibc-descriptors.txt"));
        sources
    }

    fn walk(&mut self, root: &Path, folder: &Path) {
        let mut entries: Vec<PathBuf> =
            std::fs::read_dir(folder).into_iter().flatten().flatten().map(|e| e.path()).collect();
        entries.sort();
        for path in entries {
            if path.is_dir() {
                self.walk(root, &path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                self.rust.extend(read(root, &path));
            } else if path.file_name().is_some_and(|name| name == "Cargo.toml") {
                self.manifests.extend(read(root, &path));
            }
        }
    }

    /// Whether some source defines a function of this name.
    pub fn defines(&self, name: &str) -> bool {
        self.rust.iter().any(|source| defines(&source.text, name))
    }
}

fn read(root: &Path, path: &Path) -> Option<Source> {
    let text = std::fs::read_to_string(path).ok()?;
    let path = path.strip_prefix(root).ok()?.to_string_lossy().replace('\\', "/");
    Some(Source { path, text })
}

pub fn defines(text: &str, name: &str) -> bool {
    let start = format!("fn {name}");
    text.match_indices(&start).any(|(at, _)| {
        let after = text[at + start.len()..].chars().next();
        after.is_none_or(|c| !c.is_alphanumeric() && c != '_')
    })
}
