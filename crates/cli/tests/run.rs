//! `shunt run`: what it starts, what it refuses, and how it ends.
// UNSAFETY: sends signals and waits for stopped children.
#![allow(unsafe_code)]

mod support;

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, Stdio};

use support::{assert_one_line, json, shunt, stderr, stdout, Folder};

/// A program that only says `exit(5)`, without a loader.
#[cfg(target_arch = "x86_64")]
fn static_program() -> Vec<u8> {
    let mut bytes = b"\x7fELF\x02\x01\x01".to_vec();
    bytes.resize(16, 0);
    bytes.extend([2, 0, 62, 0, 1, 0, 0, 0]);
    let (entry, headers_at, sections_at) = (0x40_0078_u64, 64_u64, 0_u64);
    for word in [entry, headers_at, sections_at] {
        bytes.extend(word.to_le_bytes());
    }
    bytes.extend([0, 0, 0, 0, 64, 0, 56, 0, 1, 0, 0, 0, 0, 0, 0, 0]);
    bytes.extend([1, 0, 0, 0, 5, 0, 0, 0]);
    for word in [0, 0x40_0000, 0x40_0000, 0x84, 0x84, 0x1000_u64] {
        bytes.extend(word.to_le_bytes());
    }
    bytes.extend(b"\xbf\x05\0\0\0\xb8\x3c\0\0\0\x0f\x05");
    bytes
}

fn start(command: &mut Command) -> (Child, BufReader<std::process::ChildStdout>) {
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap());
    (child, lines)
}

fn line(lines: &mut impl BufRead) -> String {
    let mut line = String::new();
    lines.read_line(&mut line).unwrap();
    line.trim_end().to_owned()
}

fn send(child: &Child, signal: i32) {
    // SAFETY: no memory is involved.
    assert_eq!(unsafe { libc::kill(child.id() as i32, signal) }, 0);
}

#[test]
fn no_program_is_one_line() {
    let output = shunt().arg("run").output().unwrap();
    assert_one_line(&output, &["no program"]);
    assert_eq!(output.status.code(), Some(125));
}

#[test]
fn a_program_that_does_not_exist_is_one_line() {
    for name in ["no-such-program-here", "./no-such-program-here", ""] {
        let output = shunt().args(["run", name]).output().unwrap();
        assert_one_line(&output, &[name]);
        assert_eq!(output.status.code(), Some(127));
    }
}

#[test]
fn a_file_that_is_not_executable_is_one_line() {
    let folder = Folder::new();
    let path = folder.file("plain", b"text", 0o644);
    let output = shunt().arg("run").arg(&path).output().unwrap();
    assert_one_line(&output, &["not executable", "chmod +x"]);
    assert_eq!(output.status.code(), Some(126));
}

#[test]
fn a_directory_is_one_line() {
    let output = shunt().args(["run", "/usr"]).output().unwrap();
    assert_one_line(&output, &["/usr is a directory"]);
    assert_eq!(output.status.code(), Some(126));
}

#[test]
#[cfg(target_arch = "x86_64")]
fn a_program_for_another_architecture_is_one_line() {
    let folder = Folder::new();
    let mut bytes = static_program();
    bytes[18] = 183;
    let path = folder.file("foreign", &bytes, 0o755);
    let output = shunt().arg("run").arg(&path).output().unwrap();
    assert_one_line(&output, &["aarch64", "x86_64"]);
    assert_eq!(output.status.code(), Some(126));
}

#[test]
#[cfg(target_arch = "x86_64")]
fn a_static_program_runs_plain_and_the_report_says_why() {
    let folder = Folder::new();
    let path = folder.file("static", &static_program(), 0o755);
    let report = folder.path("report");
    let output = shunt().arg("run").arg("--report").arg(&report).arg(&path).output().unwrap();
    assert_one_line(&output, &["linked statically"]);
    assert_eq!(output.status.code(), Some(5));
    assert_eq!(json(&report)["reason"], "static_program");
    assert_eq!(json(&report)["totals"]["pass_through"]["static_program"], 1);
}

#[test]
fn a_set_uid_program_runs_plain_and_the_report_says_why() {
    let folder = Folder::new();
    let path = folder.file("set-uid", &fs::read("/bin/true").unwrap(), 0o755);
    fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o4755)).unwrap();
    let report = folder.path("report");
    let output = shunt().arg("run").arg("--report").arg(&report).arg(&path).output().unwrap();
    assert_one_line(&output, &["set-uid"]);
    assert!(output.status.success());
    assert_eq!(json(&report)["totals"]["pass_through"]["set_uid_program"], 1);
}

#[test]
fn a_library_that_is_not_there_leaves_the_program_plain() {
    let folder = Folder::new();
    let report = folder.path("report");
    let mut command = shunt();
    command.env("SHUNT_LIBRARY", "/no/such/library").arg("run").arg("--report").arg(&report);
    let output = command.args(["sh", "-c", "echo [$LD_PRELOAD]"]).output().unwrap();
    assert_one_line(&output, &["SHUNT_LIBRARY", "/no/such/library"]);
    assert_eq!(stdout(&output), "[]\n");
    assert_eq!(json(&report)["reason"], "bad_setting");
}

#[test]
fn without_a_report_the_process_becomes_the_program() {
    let (child, mut lines) = start(shunt().args(["run", "sh", "-c", "echo $$; exec cat"]));
    assert_eq!(line(&mut lines), child.id().to_string());
    assert!(child.wait_with_output().unwrap().status.success());
}

#[test]
fn the_program_loads_the_library_and_keeps_its_name() {
    let folder = Folder::new();
    let script = folder.file("script", b"#!/bin/sh\necho $LD_PRELOAD\n", 0o755);
    let output = shunt().arg("run").arg(script).output().unwrap();
    let library = support::harmless_library().canonicalize().unwrap();
    assert_eq!(stdout(&output).trim_end(), library.to_str().unwrap());
    let output = shunt().args(["run", "--", "sh", "-c", "echo $0"]).output().unwrap();
    assert_eq!((stdout(&output).as_str(), stderr(&output).as_str()), ("sh\n", ""));
}

#[test]
fn a_program_with_address_sanitizer_starts() {
    let folder = Folder::new();
    let program = folder.path("program");
    let text = b"#include <stdio.h>\nint main(void) { return puts(\"here\") < 0; }\n";
    let source = folder.file("main.c", text, 0o644);
    let mut compiler = Command::new("cc");
    compiler.arg("-fsanitize=address").arg("-o").arg(&program).arg(&source);
    assert!(compiler.status().unwrap().success());
    let output = shunt().arg("run").arg(&program).output().unwrap();
    assert_eq!((stdout(&output).as_str(), stderr(&output).as_str()), ("here\n", ""));
}

#[test]
fn with_a_report_the_exit_status_is_the_programs() {
    let folder = Folder::new();
    let report = folder.path("report");
    for status in [0, 7, 255] {
        let script = format!("exit {status}");
        let mut command = shunt();
        command.arg("run").arg("--report").arg(&report).args(["sh", "-c", &script]);
        assert_eq!(command.status().unwrap().code(), Some(status));
        assert_eq!(json(&report)["ended"]["status"], status);
    }
    assert_eq!(folder.names(), ["report"]);
}

#[test]
fn with_a_report_the_death_is_the_programs() {
    let folder = Folder::new();
    let report = folder.path("report");
    for signal in [libc::SIGKILL, libc::SIGTERM, libc::SIGSEGV, libc::SIGINT] {
        let script = format!("kill -{signal} $$");
        let mut command = shunt();
        command.arg("run").arg("--report").arg(&report).args(["sh", "-c", &script]);
        assert_eq!(command.status().unwrap().signal(), Some(signal));
        assert_eq!(json(&report)["ended"]["signal"], signal);
    }
}

#[test]
fn signals_reach_the_program() {
    let folder = Folder::new();
    let report = folder.path("report");
    for (name, signal) in [("TERM", libc::SIGTERM), ("INT", libc::SIGINT), ("USR1", libc::SIGUSR1)]
    {
        let script =
            format!("trap 'echo got; exit 9' {name}; echo ready; while :; do read x; done");
        let mut command = shunt();
        command.arg("run").arg("--report").arg(&report).args(["sh", "-c", &script]);
        let (mut child, mut lines) = start(&mut command);
        assert_eq!(line(&mut lines), "ready");
        send(&child, signal);
        assert_eq!(line(&mut lines), "got");
        assert_eq!(child.wait().unwrap().code(), Some(9));
    }
}

#[test]
fn a_stop_from_the_terminal_stops_both_until_they_are_continued() {
    let folder = Folder::new();
    let mut command = shunt();
    command.arg("run").arg("--report").arg(folder.path("report"));
    command.args(["sh", "-c", "echo ready; read x; echo $x"]);
    let (mut child, mut lines) = start(&mut command);
    assert_eq!(line(&mut lines), "ready");
    send(&child, libc::SIGTSTP);
    let mut status = 0;
    // SAFETY: the status goes to valid memory.
    unsafe { libc::waitpid(child.id() as i32, &mut status, libc::WUNTRACED) };
    assert!(libc::WIFSTOPPED(status));
    send(&child, libc::SIGCONT);
    std::io::Write::write_all(child.stdin.as_mut().unwrap(), b"on\n").unwrap();
    assert_eq!(line(&mut lines), "on");
    assert!(child.wait().unwrap().success());
}

#[test]
fn who_kills_shunt_kills_the_program() {
    let folder = Folder::new();
    let mut command = shunt();
    command.arg("run").arg("--report").arg(folder.path("report"));
    command.args(["sh", "-c", "echo $SHUNT_REPORT_DIR; exec cat"]);
    let (mut child, mut lines) = start(&mut command);
    let counters = line(&mut lines);
    send(&child, libc::SIGKILL);
    // The input stays open, so only the death of the program ends its output.
    let _input = child.stdin.take();
    lines.read_to_end(&mut Vec::new()).unwrap();
    child.wait().unwrap();
    let _ = fs::remove_dir_all(counters);
}

#[test]
fn a_report_that_cannot_be_written_is_told_before_the_start() {
    let folder = Folder::new();
    let ran = folder.path("ran");
    for report in ["/no/such/folder/report", "/", "/usr"] {
        let mut command = shunt();
        let output = command.args(["run", "--report", report, "touch"]).arg(&ran).output().unwrap();
        assert_one_line(&output, &["report cannot be written"]);
        assert_eq!(output.status.code(), Some(125));
    }
    assert!(!ran.exists());
}
