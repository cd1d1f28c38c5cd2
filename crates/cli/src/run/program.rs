//! Which file a program name means, and whether the library can be loaded into it.

use std::env;
use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

use shunt_stats::Reason;

use crate::library::Programs;

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
    Accelerate(Programs),
    /// The library cannot be in that program; say so and run it as it is.
    RunPlain(Reason, &'static str),
}

/// What cannot be looked at, or is given to the shell, is no rarity.
const PROBABLY: Treatment = Treatment::Accelerate(Programs::Own);

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
        return Ok(set_id(path).unwrap_or(PROBABLY));
    };
    let mut start = Vec::new();
    let _ = (&file).take(FIRST_LINE_BYTES_MAX as u64).read_to_end(&mut start);
    if let Some(interpreter) = interpreter_of_script(&start) {
        if depth >= SCRIPT_DEPTH_MAX {
            return Ok(PROBABLY);
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
        return Ok(PROBABLY);
    }
    judge_elf(path, &file, &start)
}

/// Whether the program names AddressSanitizer's runtime as a library that it needs. The names of those
/// stand before a program's code.
pub fn has_address_sanitizer(path: &Path) -> bool {
    const NAME: &[u8] = b"libasan.so.";
    const NAMES_BYTES_MAX: u64 = 1 << 20;
    let Ok(file) = File::open(path) else { return false };
    let mut start = Vec::new();
    let _ = file.take(NAMES_BYTES_MAX).read_to_end(&mut start);
    start.starts_with(b"\x7fELF") && start.windows(NAME.len()).any(|window| window == NAME)
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
    const LITTLE_ENDIAN: u8 = 1;
    const MACHINE_386: u16 = 3;
    let u16_at = |at: usize| start.get(at..at + 2).map(|b| u16::from_le_bytes([b[0], b[1]]));
    let (Some(machine), Some(&class), Some(&order)) = (u16_at(18), start.get(4), start.get(5))
    else {
        return Err(not_executable(format!("{} is cut short", path.display())));
    };
    let x86 = cfg!(target_arch = "x86_64") && machine == MACHINE_386;
    if order != LITTLE_ENDIAN || machine != own_machine() && !x86 {
        return Err(not_executable(format!(
            "{} is a program for {}, this machine is {}; install the one for this machine",
            path.display(),
            machine_name(if order == LITTLE_ENDIAN { machine } else { machine.swap_bytes() }),
            env::consts::ARCH,
        )));
    }
    let (programs, headers) = match (class, x86) {
        (2, false) => (Programs::Own, &HEADERS_64),
        (1, true) => (Programs::X86, &HEADERS_32),
        _ => return Ok(Treatment::RunPlain(Reason::OtherArchitecture, "is a 32-bit program")),
    };
    Ok(match loader(file, start, headers) {
        None => Treatment::RunPlain(Reason::StaticProgram, "is linked statically"),
        Some(name) if name.windows(7).any(|part| part == b"ld-musl") => {
            Treatment::RunPlain(Reason::OtherLibc, "uses musl instead of glibc")
        }
        Some(_) => Treatment::Accelerate(programs),
    })
}

/// Where an ELF file of one class has what is asked for: in its header the table of program headers,
/// and the size and number of those; in one of them, an offset and a size.
struct Headers {
    table: usize,
    size: usize,
    count: usize,
    offset: usize,
    bytes: usize,
    /// Of offsets and sizes.
    word: usize,
}

const HEADERS_64: Headers =
    Headers { table: 32, size: 54, count: 56, offset: 8, bytes: 32, word: 8 };
const HEADERS_32: Headers =
    Headers { table: 28, size: 42, count: 44, offset: 4, bytes: 16, word: 4 };

/// The name of the program's loader; a static program has none.
fn loader(file: &File, start: &[u8], headers: &Headers) -> Option<Vec<u8>> {
    const PT_INTERP: u64 = 3;
    let table = number_at(start, headers.table, headers.word)?;
    let size = number_at(start, headers.size, 2)?;
    for number in 0..number_at(start, headers.count, 2)? {
        let mut header = [0; 56];
        let header = &mut header[..7 * headers.word];
        let at = table.checked_add(number.checked_mul(size)?)?;
        file.read_exact_at(header, at).ok()?;
        if number_at(header, 0, 4) == Some(PT_INTERP) {
            let bytes = number_at(header, headers.bytes, headers.word)?.min(4096);
            let mut name = vec![0; bytes as usize];
            file.read_exact_at(&mut name, number_at(header, headers.offset, headers.word)?).ok()?;
            return Some(name);
        }
    }
    None
}

/// The number of `length` bytes at `at`.
fn number_at(bytes: &[u8], at: usize, length: usize) -> Option<u64> {
    let bytes = bytes.get(at..at + length)?.iter().rev();
    Some(bytes.fold(0, |number, byte| number << 8 | u64::from(*byte)))
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
        assert_eq!(judge(Path::new("/bin/sh")).unwrap(), PROBABLY);
    }

    #[test]
    fn a_program_without_a_loader_is_static() {
        let treatment = judged(&elf(own_machine(), 2)).unwrap();
        assert!(matches!(treatment, Treatment::RunPlain(Reason::StaticProgram, _)));
    }

    #[test]
    #[cfg(target_arch = "x86_64")]
    fn a_program_of_32_bits_is_told_by_its_own_headers() {
        let treatment = judged(&elf(3, 1)).unwrap();
        assert!(matches!(treatment, Treatment::RunPlain(Reason::StaticProgram, _)));
        // One program header behind the file's: the loader's name behind that.
        let named = |name: &[u8]| {
            let mut bytes = elf(3, 1);
            bytes[28..32].copy_from_slice(&64u32.to_le_bytes());
            bytes[42..46].copy_from_slice(&[32, 0, 1, 0]);
            for word in [3, 96, 0, 0, name.len() as u32, 0, 0, 0] {
                bytes.extend(u32::to_le_bytes(word));
            }
            bytes.extend(name);
            judged(&bytes).unwrap()
        };
        assert_eq!(named(b"/lib/ld-linux.so.2\0"), Treatment::Accelerate(Programs::X86));
        let musl = named(b"/lib/ld-musl-i386.so.1\0");
        assert!(matches!(musl, Treatment::RunPlain(Reason::OtherLibc, _)));
        // 64-bit instructions with 32-bit addresses have a library of neither kind.
        let treatment = judged(&elf(62, 1)).unwrap();
        assert!(matches!(treatment, Treatment::RunPlain(Reason::OtherArchitecture, _)));
    }

    #[test]
    fn a_script_is_judged_by_its_interpreter() {
        assert_eq!(judged(b"#! /bin/sh -e\necho").unwrap(), PROBABLY);
        let refused = judged(b"#!/no/such/interpreter\n").unwrap_err();
        assert!(refused.message.contains("/no/such/interpreter: no such file"), "{refused:?}");
        assert_eq!(refused.status, NOT_FOUND);
    }

    #[test]
    fn text_without_an_interpreter_goes_to_the_shell() {
        assert_eq!(judged(b"echo hello\n").unwrap(), PROBABLY);
        assert_eq!(judged(b"").unwrap(), PROBABLY);
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
