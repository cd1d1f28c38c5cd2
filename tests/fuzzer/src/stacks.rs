//! Where the threads of a process are, for the report of a hang.

use std::process::Command;

/// What /proc tells of each thread, and the library's frames, if there is a debugger: a call that the library left to
/// the kernel has none.
pub fn of(pid: i32) -> String {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let describe = |task: std::fs::DirEntry| {
        let read = |name| std::fs::read_to_string(task.path().join(name)).unwrap_or_default();
        let name = task.file_name();
        format!("thread {}: {} {}", name.to_string_lossy(), read("wchan"), read("syscall").trim())
    };
    let told: Vec<String> = tasks.map(describe).collect();
    let gdb = Command::new("gdb")
        .args(["-p", &pid.to_string(), "-batch", "-ex", "thread apply all bt 14"])
        .output();
    let text = gdb.map(|gdb| String::from_utf8_lossy(&gdb.stdout).into_owned()).unwrap_or_default();
    let frames = text.lines().filter_map(frame).map(str::to_owned);
    told.into_iter().chain(frames).collect::<Vec<_>>().join("\n")
}

/// Threads and the library's frames, without addresses.
fn frame(line: &str) -> Option<&str> {
    let library = line.starts_with('#') && line.contains("crates/");
    let text = line.split_once(" in ").map_or(line, |(_, rest)| rest);
    (line.starts_with("Thread") || library).then_some(text)
}
