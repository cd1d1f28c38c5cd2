//! Where the library is, and how a program is told to load it.

use std::env;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use anyhow::{anyhow, bail, Result};

/// Names the library file, for one that is not at its usual place.
const LIBRARY_VARIABLE: &str = "SHUNT_LIBRARY";
/// Tells the library to keep its counters as files in this directory.
pub const REPORT_DIR_VARIABLE: &str = "SHUNT_REPORT_DIR";
pub const PRELOAD_VARIABLE: &str = "LD_PRELOAD";
const FILE_NAME: &str = "libshunt.so";

/// What the search found.
pub enum Library {
    At(PathBuf),
    /// `SHUNT_LIBRARY` names something that is not a readable file.
    BadSetting(PathBuf),
}

/// `$SHUNT_LIBRARY`, else beside this executable, else where packages put it.
pub fn find() -> Result<Library> {
    if let Some(path) = env::var_os(LIBRARY_VARIABLE).filter(|path| !path.is_empty()) {
        let path = PathBuf::from(path);
        return Ok(match path.canonicalize() {
            Ok(found) if is_readable_file(&found) => Library::At(found),
            _ => Library::BadSetting(path),
        });
    }
    let here = env::current_exe()?;
    let folder = here.parent().unwrap_or(Path::new("/"));
    let candidates = [folder.join(FILE_NAME), folder.join("../lib/shunt").join(FILE_NAME)];
    (candidates.iter().filter_map(|path| path.canonicalize().ok()))
        .find(|path| is_readable_file(path))
        .map(Library::At)
        .ok_or_else(|| {
            let folder = folder.display();
            anyhow!("no {FILE_NAME} in {folder}; build it with `make build`, or name it in {LIBRARY_VARIABLE}")
        })
}

/// The value of `LD_PRELOAD` that loads `library` first and then whatever was there.
pub fn preload_value(library: &Path, before: Option<OsString>) -> Result<OsString> {
    let separator = |byte: &u8| matches!(byte, b':' | b' ');
    let name = library.as_os_str();
    if name.as_bytes().iter().any(separator) {
        bail!("the loader cannot load {}: no blank or colon may be in the path", library.display());
    }
    let mut value = name.to_owned();
    for other in before.unwrap_or_default().as_bytes().split(separator) {
        if !other.is_empty() && other != name.as_bytes() {
            value.push(":");
            value.push(OsStr::from_bytes(other));
        }
    }
    Ok(value)
}

fn is_readable_file(path: &Path) -> bool {
    path.is_file() && std::fs::File::open(path).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(before: &str) -> String {
        preload_value(Path::new("/x/libshunt.so"), Some(before.into()))
            .unwrap()
            .into_string()
            .unwrap()
    }

    #[test]
    fn the_library_comes_first_and_others_stay() {
        assert_eq!(value(""), "/x/libshunt.so");
        assert_eq!(value("a.so b.so:c.so"), "/x/libshunt.so:a.so:b.so:c.so");
    }

    #[test]
    fn shunt_within_shunt_loads_the_library_once() {
        assert_eq!(value("/x/libshunt.so:a.so"), "/x/libshunt.so:a.so");
    }

    #[test]
    fn a_path_that_the_loader_would_split_is_refused() {
        assert!(preload_value(Path::new("/my files/libshunt.so"), None).is_err());
    }
}
