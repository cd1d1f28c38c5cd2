//! Where the threads of a process are, for the report of a hang.

use std::process::Command;

/// By the debugger if there is one, otherwise what /proc tells.
pub fn of(pid: i32) -> String {
    let gdb = Command::new("gdb")
        .args(["-p", &pid.to_string(), "-batch", "-ex", "thread apply all bt 14"])
        .output();
    if let Ok(output) = gdb {
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let frames: Vec<&str> = text.lines().filter_map(frame).collect();
        if !frames.is_empty() {
            return frames.join("\n");
        }
    }
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let describe = |task: std::fs::DirEntry| {
        let read = |name| std::fs::read_to_string(task.path().join(name)).unwrap_or_default();
        let name = task.file_name();
        format!("thread {}: {} {}", name.to_string_lossy(), read("wchan"), read("syscall").trim())
    };
    tasks.map(describe).collect::<Vec<_>>().join("\n")
}

/// Threads and the library's frames, without addresses.
fn frame(line: &str) -> Option<&str> {
    let library = line.starts_with('#') && line.contains("crates/");
    let text = line.split_once(" in ").map_or(line, |(_, rest)| rest);
    (line.starts_with("Thread") || library).then_some(text)
}
