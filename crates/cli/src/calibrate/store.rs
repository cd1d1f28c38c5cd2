//! Where a calibration is kept: one file for each machine, since home folders are shared among them.
//!
//! Whoever writes it writes another file and renames it, so a reader sees a whole one. What cannot be
//! read or understood counts as missing.

use std::env;
use std::ffi::OsString;
use std::fs::{self, DirBuilder, File};
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::calibration::Calibration;
use crate::bench::machine;

const FILE_BYTES_MAX: u64 = 64 * 1024;
/// After an attempt that came to nothing, nobody tries again for so long.
const TRY_AGAIN_AFTER: Duration = Duration::from_secs(60);

/// One machine's file.
pub struct Store {
    path: PathBuf,
}

impl Store {
    /// `$XDG_CACHE_HOME/shunt/`, else `~/.cache/shunt/`. `None`: this process has neither, or the machine
    /// has no name.
    pub fn find() -> Option<Store> {
        let absolute = |name| env::var_os(name).map(PathBuf::from).filter(|it| it.is_absolute());
        let cache = absolute("XDG_CACHE_HOME");
        let cache = cache.or_else(|| Some(absolute("HOME")?.join(".cache")))?;
        Some(Store { path: cache.join("shunt").join(file_name(&machine_id()?)) })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// What is stored, if it is understood and about this machine.
    pub fn load(&self) -> Option<Calibration> {
        let mut text = String::new();
        File::open(&self.path).ok()?.take(FILE_BYTES_MAX).read_to_string(&mut text).ok()?;
        let stored: Calibration = toml::from_str(&text).ok()?;
        stored.holds_for(&machine::cpu()).then_some(stored)
    }

    pub fn save(&self, calibration: &Calibration) -> io::Result<()> {
        let text = toml::to_string(calibration).map_err(io::Error::other)?;
        self.make_folder()?;
        let beside = self.beside(&format!("{}.new", std::process::id()));
        let written = File::create(&beside)
            .and_then(|mut file| {
                file.write_all(HEAD.as_bytes()).and(file.write_all(text.as_bytes()))
            })
            .and_then(|()| fs::rename(&beside, &self.path));
        if written.is_err() {
            let _ = fs::remove_file(&beside);
        }
        written
    }

    /// Whether there was something.
    pub fn delete(&self) -> io::Result<bool> {
        self.end_attempt();
        match fs::remove_file(&self.path) {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Says that this process measures now. False: another one does, or did without success a short
    /// while ago, or nothing can be stored here.
    pub fn begin_attempt(&self) -> bool {
        let attempt = self.attempt();
        if self.make_folder().is_err() {
            return false;
        }
        let begin = || File::create_new(&attempt).is_ok();
        begin() || is_old(&attempt) && fs::remove_file(&attempt).is_ok() && begin()
    }

    pub fn end_attempt(&self) {
        let _ = fs::remove_file(self.attempt());
    }

    fn attempt(&self) -> PathBuf {
        self.beside("attempt")
    }

    fn beside(&self, suffix: &str) -> PathBuf {
        let mut name = OsString::from(".");
        name.push(self.path.file_name().unwrap_or_default());
        name.push(format!(".{suffix}"));
        self.path.with_file_name(name)
    }

    fn make_folder(&self) -> io::Result<()> {
        let folder = self.path.parent().unwrap_or(Path::new("/"));
        DirBuilder::new().recursive(true).mode(0o700).create(folder)
    }
}

const HEAD: &str = "\
# What `shunt calibrate` found on this machine. `shunt run` gives useful_spin_ns to programs; `shunt calibrate`
# measures anew, `shunt calibrate --delete` removes this file.
";

/// A time in the future is nobody's attempt of today.
fn is_old(attempt: &Path) -> bool {
    let began = fs::metadata(attempt).and_then(|it| it.modified());
    began.is_ok_and(|began| began.elapsed().map_or(true, |age| age > TRY_AGAIN_AFTER))
}

fn file_name(machine_id: &str) -> String {
    format!("calibration-{machine_id}.toml")
}

/// /etc/machine-id (machine-id(5)), else the name of the host.
fn machine_id() -> Option<String> {
    let of_file = |path| as_name(&fs::read_to_string(path).ok()?);
    of_file("/etc/machine-id").or_else(|| of_file("/proc/sys/kernel/hostname"))
}

/// As a part of a file's name; `None` if nothing of it can be one.
fn as_name(text: &str) -> Option<String> {
    let may_stand = |c: &char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    let name: String = text.trim().chars().filter(may_stand).take(64).collect();
    (!name.is_empty()).then_some(name)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

    use super::super::calibration::tests::example;
    use super::*;

    /// In a folder that goes away with the value.
    struct Kept(Store);

    impl Kept {
        fn new() -> Kept {
            static NEXT: AtomicU32 = AtomicU32::new(0);
            let folder =
                format!("shunt-store-{}-{}", std::process::id(), NEXT.fetch_add(1, Relaxed));
            let path = env::temp_dir().join(folder).join("deeper").join("calibration-x.toml");
            Kept(Store { path })
        }
    }

    impl Drop for Kept {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(self.0.path.parent().unwrap().parent().unwrap());
        }
    }

    fn here() -> Calibration {
        Calibration { cpu: machine::cpu(), ..example() }
    }

    #[test]
    fn what_is_saved_is_loaded_and_what_is_deleted_is_gone() {
        let store = &Kept::new().0;
        assert_eq!(store.load(), None);
        assert!(!store.delete().unwrap());
        store.save(&here()).unwrap();
        assert_eq!(store.load(), Some(here()));
        let folder = store.path.parent().unwrap();
        assert_eq!(fs::read_dir(folder).unwrap().count(), 1, "nothing is left beside it");
        let least = Calibration { useful_spin_ns: None, wake: None, copy: vec![], ..here() };
        store.save(&least).unwrap();
        assert_eq!(store.load(), Some(least));
        assert!(store.delete().unwrap());
        assert_eq!(store.load(), None);
    }

    #[test]
    fn what_is_not_understood_counts_as_missing() {
        let store = &Kept::new().0;
        store.save(&here()).unwrap();
        let text = fs::read_to_string(&store.path).unwrap();
        let (half, _) = text.split_once("ores = ").unwrap();
        let older = text.replace("format = 1", "format = 0");
        let negative = text.replace("useful_spin_ns = 36000", "useful_spin_ns = -1");
        let elsewhere = text.replace(&format!("cpu = \"{}\"", machine::cpu()), "cpu = \"other\"");
        for bad in ["", "not TOML at all", half, &older, &negative, &elsewhere] {
            assert_ne!(bad, text);
            fs::write(&store.path, bad).unwrap();
            assert_eq!(store.load(), None, "{bad}");
        }
        fs::write(&store.path, [0xff, 0xfe, 0]).unwrap();
        assert_eq!(store.load(), None);
    }

    #[test]
    fn one_process_tries_at_a_time() {
        let store = &Kept::new().0;
        assert!(store.begin_attempt());
        assert!(!store.begin_attempt());
        store.end_attempt();
        assert!(store.begin_attempt());
        let long_ago = std::time::SystemTime::now() - 2 * TRY_AGAIN_AFTER;
        File::open(store.attempt()).unwrap().set_modified(long_ago).unwrap();
        assert!(store.begin_attempt(), "who tried long ago is not waited for");
        store.delete().unwrap();
        assert!(store.begin_attempt());
    }

    #[test]
    fn names_of_machines_are_names_of_files() {
        assert_eq!(as_name("0af5bc\n").as_deref(), Some("0af5bc"));
        assert_eq!(as_name("../my host/x").as_deref(), Some("..myhostx"));
        assert_eq!(as_name(" \n"), None);
    }
}
