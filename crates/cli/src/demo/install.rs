//! Which programs are there, and what to do about those that are not.

use std::env;
use std::ffi::OsString;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use super::recipe::Recipe;

/// What to install for this recipe, if anything.
pub fn missing(recipe: &Recipe) -> Option<String> {
    let missing: Vec<&str> =
        recipe.programs.iter().copied().filter(|name| find(name).is_none()).collect();
    (!missing.is_empty()).then(|| {
        let (programs, packages) = (missing.join(", "), recipe.packages);
        format!("{programs} not found; as root: `apt-get install {packages}`")
    })
}

/// Looks in PATH, then where Debian keeps what only root or wrappers start. A script comes last: it
/// is a wrapper that chooses among versions, such as those of pyenv.
pub fn find(program: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_else(|| OsString::from("/bin:/usr/bin"));
    let mut folders: Vec<PathBuf> = env::split_paths(&path).collect();
    folders.extend(["/usr/sbin".into(), "/sbin".into()]);
    folders.extend(postgresql_folders());
    let paths = folders.into_iter().map(|folder| folder.join(program));
    let mut found: Vec<PathBuf> = paths.filter(|path| path.is_file()).collect();
    found.sort_by_key(|path| is_script(path));
    found.into_iter().next()
}

fn is_script(path: &Path) -> bool {
    let mut start = [0; 2];
    File::open(path).and_then(|mut file| file.read_exact(&mut start)).is_ok() && start == *b"#!"
}

/// One for each installed version, the newest first. The wrappers in PATH choose a cluster of the
/// system; the demo has its own.
fn postgresql_folders() -> Vec<PathBuf> {
    let versions = std::fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let mut versions: Vec<PathBuf> = versions.map(|version| version.path()).collect();
    let number = |path: &PathBuf| path.file_name()?.to_str()?.parse::<u32>().ok();
    versions.sort_by_key(|path| std::cmp::Reverse(number(path)));
    versions.into_iter().map(|version| version.join("bin")).collect()
}
