//! What is measured on: as much of it as this process can see.
// UNSAFETY: asks libc for its version and for the limit of descriptors.
#![allow(unsafe_code)]

use std::ffi::CStr;
use std::fs;
use std::io::{self, Read};
use std::mem::MaybeUninit;
use std::path::Path;
use std::process::Command;
use std::time::{SystemTime, UNIX_EPOCH};

use crate::child;

/// Above this load for each core, other programs disturb what is measured.
const LOAD_PER_CORE_MAX: f64 = 0.5;
/// Beside its streams a process has a few descriptors of its own and of the library.
const OTHER_DESCRIPTORS: u64 = 100;

pub struct Machine {
    pub kernel: String,
    pub glibc: String,
    /// Name and version of the distribution, as it calls itself.
    pub system: String,
    pub cpu: String,
    /// Cores that this process may use.
    pub cores: usize,
    /// Of the first core; `None`: the kernel shows none.
    pub governor: Option<String>,
    pub is_virtual: bool,
}

impl Machine {
    pub fn look() -> Machine {
        let cpuinfo = read("/proc/cpuinfo");
        Machine {
            kernel: kernel(),
            glibc: glibc(),
            system: value(&read("/etc/os-release"), "PRETTY_NAME", '=').unwrap_or_default(),
            cpu: cpu(),
            cores: child::cores().len(),
            governor: Some(read("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"))
                .filter(|governor| !governor.is_empty()),
            is_virtual: cpuinfo.contains(" hypervisor"),
        }
    }
}

/// The model of the first processor; empty if the kernel names none.
pub fn cpu() -> String {
    // All of it takes milliseconds where there are many.
    const BYTES: u64 = 4096;
    let mut text = Vec::new();
    let first =
        fs::File::open("/proc/cpuinfo").and_then(|it| it.take(BYTES).read_to_end(&mut text));
    let text = String::from_utf8_lossy(&text);
    first.ok().and_then(|_| value(&text, "model name", ':')).unwrap_or_default()
}

pub fn kernel() -> String {
    read("/proc/sys/kernel/osrelease")
}

fn glibc() -> String {
    // SAFETY: the result is a terminated string that stays.
    let version = unsafe { CStr::from_ptr(libc::gnu_get_libc_version()) };
    version.to_string_lossy().into_owned()
}

/// The commit of the sources in the current folder, if they are Shunt's.
pub fn commit() -> Option<String> {
    if !Path::new("crates/preload").is_dir() {
        return None;
    }
    let output =
        Command::new("git").args(["describe", "--always", "--dirty", "--abbrev=12"]).output();
    let output = output.ok().filter(|output| output.status.success())?;
    Some(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

/// What a run on this machine is called: day, system, processor and cores.
pub fn run_name() -> String {
    let os = read("/etc/os-release");
    let part = |key| value(&os, key, '=').unwrap_or_default();
    let cpu = cpu();
    let system = format!("{}{}", part("ID"), part("VERSION_ID"));
    format!("{}-{system}-{}-{}vcpu", today(), family(&cpu), child::cores().len())
}

/// In UTC.
pub fn today() -> String {
    const SECONDS_PER_DAY: u64 = 86_400;
    let seconds = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    date(seconds / SECONDS_PER_DAY)
}

/// One word for a model of processors.
fn family(model: &str) -> String {
    const FAMILIES: [&str; 10] = [
        "epyc",
        "xeon",
        "threadripper",
        "ryzen",
        "core",
        "atom",
        "celeron",
        "pentium",
        "neoverse",
        "cortex",
    ];
    let model = model.to_lowercase();
    let family = FAMILIES.into_iter().find(|family| model.contains(family));
    family.unwrap_or(std::env::consts::ARCH).to_owned()
}

/// The day that begins so many days after that of the epoch, in the Gregorian calendar.
fn date(days: u64) -> String {
    let is_leap =
        |year: u64| year.is_multiple_of(4) && !year.is_multiple_of(100) || year.is_multiple_of(400);
    let (mut year, mut left) = (1970, days);
    while left >= 365 + u64::from(is_leap(year)) {
        left -= 365 + u64::from(is_leap(year));
        year += 1;
    }
    let february = 28 + u64::from(is_leap(year));
    let mut month = 1;
    for length in [31, february, 31, 30, 31, 30, 31, 31, 30, 31, 30] {
        if left < length {
            break;
        }
        left -= length;
        month += 1;
    }
    format!("{year}-{month:02}-{:02}", left + 1)
}

/// Why figures from this machine are to be doubted, before any is taken.
pub fn warnings() -> Vec<String> {
    let cores = child::cores().len();
    let mut warnings = Vec::new();
    let load = read("/proc/loadavg");
    let load: f64 = load.split(' ').next().and_then(|load| load.parse().ok()).unwrap_or(0.0);
    if load > LOAD_PER_CORE_MAX * cores as f64 {
        let advice = "end other programs first";
        warnings.push(format!("the load was {load} before the start; {advice}"));
    }
    warnings
}

/// Lets this process and its children have as many descriptors as they may. Why `streams` streams
/// are too many all the same.
pub fn obstacle_to(streams: u32) -> Option<String> {
    let limit = match raise_descriptor_limit() {
        Ok(limit) => limit,
        Err(error) => return Some(format!("the limit of descriptors is not known: {error}")),
    };
    let needed = u64::from(streams) + OTHER_DESCRIPTORS;
    (limit < needed).then(|| {
        format!(
            "{streams} streams need {needed} descriptors in each process, and the hard limit is {limit} (`ulimit -Hn`)"
        )
    })
}

/// The soft limit becomes the hard one, which is returned.
fn raise_descriptor_limit() -> io::Result<u64> {
    let mut limit = MaybeUninit::<libc::rlimit>::zeroed();
    // SAFETY: the result goes to valid memory.
    if unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, limit.as_mut_ptr()) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: zeroed above, so initialised whatever the call did.
    let mut limit = unsafe { limit.assume_init() };
    limit.rlim_cur = limit.rlim_max;
    // SAFETY: the limit is initialised and lives through the call.
    if unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &limit) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(limit.rlim_max)
}

/// What stands behind `key` in lines of keys and values, without quotes.
fn value(text: &str, key: &str, between: char) -> Option<String> {
    let of_line = |line: &str| {
        let (name, value) = line.split_once(between)?;
        (name.trim() == key).then(|| value.trim().trim_matches('"').to_owned())
    };
    text.lines().find_map(of_line)
}

fn read(path: &str) -> String {
    fs::read_to_string(path).unwrap_or_default().trim_end().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn days_become_dates() {
        assert_eq!(date(0), "1970-01-01");
        assert_eq!(date(58), "1970-02-28");
        assert_eq!(date(19_782), "2024-02-29");
        assert_eq!(date(19_783), "2024-03-01");
        assert_eq!(date(20_453), "2025-12-31");
        assert_eq!(date(20_454), "2026-01-01");
    }

    #[test]
    fn values_are_found_by_their_key() {
        let text = "ID=debian\nPRETTY_NAME=\"Debian GNU/Linux 12\"\nmodel name\t: Some CPU\n";
        assert_eq!(value(text, "PRETTY_NAME", '='), Some("Debian GNU/Linux 12".into()));
        assert_eq!(value(text, "model name", ':'), Some("Some CPU".into()));
        assert_eq!(value(text, "NAME", '='), None);
    }

    #[test]
    fn models_have_one_word() {
        assert_eq!(family("AMD EPYC 7B13"), "epyc");
        assert_eq!(family("Intel(R) Xeon(R) CPU @ 2.20GHz"), "xeon");
        assert_eq!(family(""), std::env::consts::ARCH);
    }

    #[test]
    fn too_many_streams_are_refused_with_the_limit() {
        assert!(obstacle_to(u32::MAX).is_some_and(|why| why.contains("hard limit")));
        assert_eq!(obstacle_to(1), None);
    }
}
