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
/// Tells the library how long a wait may spin, in nanoseconds.
pub const SPIN_VARIABLE: &str = "SHUNT_SPIN_NS";
/// `off`: the library does nothing.
pub const SWITCH_VARIABLE: &str = "SHUNT";
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

/// The programs that one library can be loaded into.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Programs {
    /// Those of this command's own kind.
    Own,
    /// 32-bit x86, on x86-64.
    X86,
}

/// The value of `LD_PRELOAD` that loads `library` first and then whatever was there; into `programs`
/// and, if there is a library for each, into those of the other kind that they start. `None`: there is
/// none for `programs`.
pub fn preload_value(
    library: &Path,
    programs: Programs,
    before: Option<OsString>,
) -> Result<Option<OsString>> {
    let separator = |byte: &u8| matches!(byte, b':' | b' ');
    let [own, x86, either] =
        [library.to_owned(), beside(library, "i686"), beside(library, "$PLATFORM")];
    let name = match programs {
        _ if has_every_platform(library) => &either,
        Programs::Own => &own,
        Programs::X86 if is_readable_file(&x86) => &x86,
        Programs::X86 => return Ok(None),
    };
    if name.as_os_str().as_bytes().iter().any(separator) {
        bail!("the loader cannot load {}: no blank or colon may be in the path", library.display());
    }
    let mut value = name.clone().into_os_string();
    for other in before.unwrap_or_default().as_bytes().split(separator) {
        let ours = [&own, &x86, &either].iter().any(|path| path.as_os_str().as_bytes() == other);
        if !other.is_empty() && !ours {
            value.push(":");
            value.push(OsStr::from_bytes(other));
        }
    }
    Ok(Some(value))
}

/// `libshunt-i686.so` for `libshunt.so`.
fn beside(library: &Path, platform: &str) -> PathBuf {
    let mut name = library.file_stem().unwrap_or_default().to_owned();
    name.push(format!("-{platform}.so"));
    library.with_file_name(name)
}

/// Whether the library lies there under every name that loaders make of `$PLATFORM` (ld.so(8)): each
/// then finds the one for its programs. glibc's for x86-64 had names of its own for some processors.
fn has_every_platform(library: &Path) -> bool {
    const PLATFORMS: [&str; 4] = ["x86_64", "haswell", "xeon_phi", "i686"];
    cfg!(target_arch = "x86_64")
        && PLATFORMS.iter().all(|platform| is_readable_file(&beside(library, platform)))
        && kernel_names_platform()
}

/// Without the kernel's word the loader makes nothing of `$PLATFORM`.
#[allow(unsafe_code)] // UNSAFETY: asks libc for a number.
fn kernel_names_platform() -> bool {
    // SAFETY: no memory is involved.
    unsafe { libc::getauxval(libc::AT_PLATFORM) != 0 }
}

fn is_readable_file(path: &Path) -> bool {
    path.is_file() && std::fs::File::open(path).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(before: &str) -> String {
        value_in(Path::new("/x/libshunt.so"), Programs::Own, before).unwrap()
    }

    fn value_in(library: &Path, programs: Programs, before: &str) -> Option<String> {
        let value = preload_value(library, programs, Some(before.into())).unwrap();
        value.map(|value| value.into_string().unwrap())
    }

    /// A folder with these files.
    fn folder(name: &str, files: &[&str]) -> PathBuf {
        let folder = env::temp_dir().join(format!("shunt-library-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        files.iter().for_each(|file| std::fs::write(folder.join(file), "").unwrap());
        folder
    }

    #[test]
    fn the_library_comes_first_and_others_stay() {
        assert_eq!(value(""), "/x/libshunt.so");
        assert_eq!(value("a.so b.so:c.so"), "/x/libshunt.so:a.so:b.so:c.so");
    }

    #[test]
    fn shunt_within_shunt_loads_the_library_once() {
        assert_eq!(value("/x/libshunt.so:a.so"), "/x/libshunt.so:a.so");
        assert_eq!(value("a.so:/x/libshunt-$PLATFORM.so"), "/x/libshunt.so:a.so");
    }

    #[test]
    #[cfg(target_arch = "x86_64")]
    fn with_both_libraries_each_program_finds_its_own() {
        let names = ["libshunt-x86_64.so", "libshunt-haswell.so", "libshunt-xeon_phi.so"];
        let folder = folder("both", &[&names[..], &["libshunt.so", "libshunt-i686.so"]].concat());
        let library = folder.join("libshunt.so");
        let either = folder.join("libshunt-$PLATFORM.so").display().to_string();
        for programs in [Programs::Own, Programs::X86] {
            assert_eq!(value_in(&library, programs, "a.so"), Some(format!("{either}:a.so")));
            assert_eq!(value_in(&library, programs, &either), Some(either.clone()));
        }
        std::fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn without_every_name_a_program_gets_the_file_that_is_for_it() {
        let folder = folder("two", &["libshunt.so", "libshunt-i686.so"]);
        let library = folder.join("libshunt.so");
        let shown = |path: &Path| Some(path.display().to_string());
        assert_eq!(value_in(&library, Programs::Own, ""), shown(&library));
        let x86 = folder.join("libshunt-i686.so");
        assert_eq!(value_in(&library, Programs::X86, ""), shown(&x86));
        std::fs::remove_file(x86).unwrap();
        assert_eq!(value_in(&library, Programs::X86, ""), None);
        std::fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn a_path_that_the_loader_would_split_is_refused() {
        let library = Path::new("/my files/libshunt.so");
        assert!(preload_value(library, Programs::Own, None).is_err());
    }
}
