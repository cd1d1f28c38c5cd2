//! Other ways around kernel TCP, which this command does not measure: what this machine lacks of
//! them, or what measuring them would take.
// UNSAFETY: asks libc for a socket of another family, and closes it.
#![allow(unsafe_code)]

use std::fs;
use std::io;
use std::path::Path;

/// Address family of SMC; libc has no name for it.
const AF_SMC: libc::c_int = 43;

/// A line for each, to stand under "could not be compared".
pub fn obstacles() -> Vec<String> {
    [("SMC", smc()), ("rsocket", rsocket()), ("sockmap", sockmap())]
        .map(|(name, reason)| format!("{name} could not be compared: {reason}"))
        .into()
}

fn smc() -> String {
    // SAFETY: no memory is involved.
    let fd = unsafe { libc::socket(AF_SMC, libc::SOCK_STREAM, 0) };
    if fd < 0 {
        return format!("this kernel has no AF_SMC ({})", io::Error::last_os_error());
    }
    // SAFETY: the descriptor is new, and nothing else uses it.
    unsafe { libc::close(fd) };
    "the kernel has AF_SMC, but this command has no way for it".into()
}

fn rsocket() -> String {
    let devices = fs::read_dir("/sys/class/infiniband").map_or(0, |devices| devices.count());
    match devices {
        0 => "there is no RDMA device".into(),
        devices => format!("there are {devices} RDMA devices, but this command has no way for it"),
    }
}

fn sockmap() -> String {
    if !Path::new("/sys/fs/bpf").is_dir() {
        return "this kernel shows no BPF".into();
    }
    "it needs a BPF program that joins the sockets, and this command has none".into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_peer_has_its_reason() {
        let lines = obstacles();
        assert_eq!(lines.len(), 3);
        assert!(lines.iter().all(|line| !line.ends_with(": ")), "{lines:?}");
    }
}
