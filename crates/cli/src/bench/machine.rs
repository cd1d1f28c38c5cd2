//! What is measured on: as much of it as this process can see.
// UNSAFETY: asks libc for the limit of descriptors.
#![allow(unsafe_code)]

use std::fs;
use std::io;
use std::mem::MaybeUninit;

use crate::child;

/// Above this load for each core, other programs disturb what is measured.
const LOAD_PER_CORE_MAX: f64 = 0.5;
/// Beside its streams a process has a few descriptors of its own and of the library.
const OTHER_DESCRIPTORS: u64 = 100;

pub fn kernel() -> String {
    read("/proc/sys/kernel/osrelease")
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

fn read(path: &str) -> String {
    fs::read_to_string(path).unwrap_or_default().trim_end().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn too_many_streams_are_refused_with_the_limit() {
        assert!(obstacle_to(u32::MAX).is_some_and(|why| why.contains("hard limit")));
        assert_eq!(obstacle_to(1), None);
    }
}
