//! Which file a program name means, and whether the library can be loaded into it.

use std::env;
use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

use shunt_stats::Reason;

/// Exit statuses of shells and of `env`, for a program that was not started.
pub const NOT_EXECUTABLE: u8 = 126;
pub const NOT_FOUND: u8 = 127;

/// Scripts whose interpreter is a script, and so on; the kernel gives up after as many.
const SCRIPT_DEPTH_MAX: u32 = 4;
/// More of the first line than the kernel reads.
const FIRST_LINE_BYTES_MAX: usize = 512;

/// A program that is not started, and why, in one line.
#[derive(Debug)]
pub struct Refused {
    pub status: u8,
    pub message: String,
}

/// What the program's file says about how to run it.
#[derive(Debug, PartialEq, Eq)]
pub enum Treatment {
    Accelerate,
    /// The library cannot be in that program; say so and run it as it is.
    RunPlain(Reason, &'static str),
}

/// Finds the file as `execvp` would.
pub fn find(name: &OsStr) -> Result<PathBuf, Refused> {
    let shown = Path::new(name).display();
    if name.is_empty() {
        return Err(not_found("the name of the program is empty".into()));
    }
    if name.as_bytes().contains(&b'/') {
        let path = PathBuf::from(name);
        return check(&path).map(|()| path);
    }
    let path = env::var_os("PATH").unwrap_or_else(|| OsString::from("/bin:/usr/bin"));
    let mut refused = None;
    for folder in env::split_paths(&path) {
        let candidate = if folder.as_os_str().is_empty() { ".".into() } else { folder }.join(name);
        match check(&candidate) {
            Ok(()) => return Ok(candidate),
            Err(found) if found.status == NOT_EXECUTABLE => refused = refused.or(Some(found)),
            Err(_) => {}
        }
    }
    Err(refused.unwrap_or_else(|| {
        not_found(format!("{shown}: no such program in PATH; install it, or give its path"))
    }))
}

fn check(path: &Path) -> Result<(), Refused> {
    let shown = path.display();
    let metadata = fs::metadata(path).map_err(|error| match error.raw_os_error() {
        Some(libc::ENOENT | libc::ENOTDIR) => not_found(format!("{shown}: no such file")),
        Some(libc::EACCES) => {
            not_executable(format!("{shown}: you may not look into a folder on the way"))
        }
        _ => not_found(format!("{shown}: {error}")),
    })?;
    if metadata.is_dir() {
        return Err(not_executable(format!("{shown} is a directory; name a program in it")));
    }
    if !metadata.is_file() || !super::process::may_execute(path) {
        return Err(not_executable(format!("{shown} is not executable; try `chmod +x {shown}`")));
    }
    Ok(())
}

fn not_found(message: String) -> Refused {
    Refused { status: NOT_FOUND, message }
}

fn not_executable(message: String) -> Refused {
    Refused { status: NOT_EXECUTABLE, message }
}

/// Looks at the program, or at the interpreter if it is a script.
pub fn judge(path: &Path) -> Result<Treatment, Refused> {
    judge_at_depth(path, 0)
}

fn judge_at_depth(path: &Path, depth: u32) -> Result<Treatment, Refused> {
    // A program may be executable and yet unreadable; then the library is left to find out.
    let Ok(file) = File::open(path) else {
        return Ok(set_id(path).unwrap_or(Treatment::Accelerate));
    };
    let mut start = Vec::new();
    let _ = (&file).take(FIRST_LINE_BYTES_MAX as u64).read_to_end(&mut start);
    if let Some(interpreter) = interpreter_of_script(&start) {
        if depth >= SCRIPT_DEPTH_MAX {
            return Ok(Treatment::Accelerate);
        }
        check(&interpreter).map_err(|refused| Refused {
            message: format!("{} cannot be interpreted: {}", path.display(), refused.message),
            ..refused
        })?;
        return judge_at_depth(&interpreter, depth + 1);
    }
    if let Some(plain) = set_id(path) {
        return Ok(plain);
    }
    if !start.starts_with(b"\x7fELF") {
        // `execvp` gives it to the shell.
        return Ok(Treatment::Accelerate);
    }
    judge_elf(path, &file, &start)
}

fn interpreter_of_script(start: &[u8]) -> Option<PathBuf> {
    let line = start.strip_prefix(b"#!")?.split(|byte| *byte == b'\n').next()?;
    let name = line.split(|byte| matches!(byte, b' ' | b'\t')).find(|word| !word.is_empty())?;
    Some(PathBuf::from(OsStr::from_bytes(name)))
}

fn set_id(path: &Path) -> Option<Treatment> {
    let mode = fs::metadata(path).ok()?.mode();
    let set_gid = mode & 0o2010 == 0o2010;
    (mode & 0o4000 != 0 || set_gid)
        .then_some(Treatment::RunPlain(Reason::SetUidProgram, "is set-uid or set-gid"))
}

/// The part of the ELF format that is asked for here; the rest is the kernel's business.
fn judge_elf(path: &Path, file: &File, start: &[u8]) -> Result<Treatment, Refused> {
    const CLASS_64: u8 = 2;
    const LITTLE_ENDIAN: u8 = 1;
    const MACHINE_386: u16 = 3;
    let u16_at = |at: usize| start.get(at..at + 2).map(|b| u16::from_le_bytes([b[0], b[1]]));
    let (Some(machine), Some(&class), Some(&order)) = (u16_at(18), start.get(4), start.get(5))
    else {
        return Err(not_executable(format!("{} is cut short", path.display())));
    };
    if order != LITTLE_ENDIAN || machine != own_machine() {
        if cfg!(target_arch = "x86_64") && machine == MACHINE_386 {
            return Ok(Treatment::RunPlain(Reason::OtherArchitecture, "is a 32-bit program"));
        }
        return Err(not_executable(format!(
            "{} is a program for {}, this machine is {}; install the one for this machine",
            path.display(),
            machine_name(if order == LITTLE_ENDIAN { machine } else { machine.swap_bytes() }),
            env::consts::ARCH,
        )));
    }
    if class != CLASS_64 {
        return Ok(Treatment::RunPlain(Reason::OtherArchitecture, "is a 32-bit program"));
    }
    Ok(match loader(file, start) {
        None => Treatment::RunPlain(Reason::StaticProgram, "is linked statically"),
        Some(name) if name.windows(7).any(|part| part == b"ld-musl") => {
            Treatment::RunPlain(Reason::OtherLibc, "uses musl instead of glibc")
        }
        Some(_) => Treatment::Accelerate,
    })
}

/// The name of the program's loader; a static program has none.
fn loader(file: &File, start: &[u8]) -> Option<Vec<u8>> {
    const PT_INTERP: u32 = 3;
    let u16_at = |at: usize| Some(u16::from_le_bytes(start.get(at..at + 2)?.try_into().ok()?));
    let table = u64::from_le_bytes(start.get(32..40)?.try_into().ok()?);
    let (size, count) = (u64::from(u16_at(54)?), u16_at(56)?);
    for number in 0..u64::from(count) {
        let mut header = [0; 56];
        let at = table.checked_add(number.checked_mul(size)?)?;
        file.read_exact_at(&mut header, at).ok()?;
        let field =
            |at: usize| u64::from_le_bytes(header[at..at + 8].try_into().unwrap_or_default());
        if field(0) as u32 == PT_INTERP {
            let mut name = vec![0; field(32).min(4096) as usize];
            file.read_exact_at(&mut name, field(8)).ok()?;
            return Some(name);
        }
    }
    None
}

fn own_machine() -> u16 {
    match env::consts::ARCH {
        "x86_64" => 62,
        "aarch64" => 183,
        "riscv64" => 243,
        _ => 0,
    }
}

fn machine_name(machine: u16) -> String {
    match machine {
        3 => "x86".into(),
        8 => "MIPS".into(),
        20 => "PowerPC".into(),
        21 => "PowerPC64".into(),
        22 => "s390x".into(),
        40 => "arm".into(),
        62 => "x86_64".into(),
        183 => "aarch64".into(),
        243 => "riscv".into(),
        other => format!("machine number {other}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judged(content: &[u8]) -> Result<Treatment, Refused> {
        use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("shunt-judge-{}-{}", std::process::id(), NEXT.fetch_add(1, Relaxed));
        let path = env::temp_dir().join(name);
        fs::write(&path, content).unwrap();
        let judged = judge(&path);
        fs::remove_file(path).unwrap();
        judged
    }

    fn elf(machine: u16, class: u8) -> Vec<u8> {
        let mut bytes = vec![0; 64];
        bytes[..6].copy_from_slice(&[0x7f, b'E', b'L', b'F', class, 1]);
        bytes[18..20].copy_from_slice(&machine.to_le_bytes());
        bytes
    }

    #[test]
    fn a_dynamic_program_is_accelerated() {
        assert_eq!(judge(Path::new("/bin/sh")).unwrap(), Treatment::Accelerate);
    }

    #[test]
    fn a_program_without_a_loader_is_static() {
        let treatment = judged(&elf(own_machine(), 2)).unwrap();
        assert!(matches!(treatment, Treatment::RunPlain(Reason::StaticProgram, _)));
    }

    #[test]
    fn a_script_is_judged_by_its_interpreter() {
        assert_eq!(judged(b"#! /bin/sh -e\necho").unwrap(), Treatment::Accelerate);
        let refused = judged(b"#!/no/such/interpreter\n").unwrap_err();
        assert!(refused.message.contains("/no/such/interpreter: no such file"), "{refused:?}");
        assert_eq!(refused.status, NOT_FOUND);
    }

    #[test]
    fn text_without_an_interpreter_goes_to_the_shell() {
        assert_eq!(judged(b"echo hello\n").unwrap(), Treatment::Accelerate);
        assert_eq!(judged(b"").unwrap(), Treatment::Accelerate);
    }

    #[test]
    fn a_program_of_another_architecture_is_refused_by_name() {
        let refused = judged(&elf(22, 2)).unwrap_err();
        assert!(refused.message.contains("s390x"), "{refused:?}");
        assert_eq!(refused.status, NOT_EXECUTABLE);
    }

    #[test]
    fn any_prefix_of_a_program_is_judged_without_panic() {
        let whole = fs::read("/bin/sh").unwrap();
        for length in (0..200).chain([511, 512, 513, 4000]) {
            let _ = judged(&whole[..length]);
        }
    }
}
