//! Programs of 32 bits and of 64 at the two ends, with a sanitizer, with modules, and with other preloaded
//! libraries. They are compiled here, from `programs/`.

use crate::application::Running;
use crate::peer::says;
use crate::stage::Stage;
use crate::{Failure, Outcome};
use std::path::Path;
use std::process::Command;

const SOURCES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/programs");
const WAYS: [&str; 6] = ["poll", "ppoll", "select", "pselect", "epoll", "recvmmsg"];

/// How it is built, which is its name as well.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Build {
    Of64,
    Of32,
    /// For times after 2038: another name, and another form, of every call with a time.
    Of32Time64,
    /// With GCC's AddressSanitizer, whose runtime would be the first library.
    Sanitized,
}
use Build::{Of32, Of32Time64, Of64, Sanitized};

/// Compiles it; the path of the program.
fn program(stage: &Stage, build: Build) -> Result<String, Failure> {
    let (name, flags): (_, &[&str]) = match build {
        Of64 => ("echo-64", &["-m64"]),
        Of32 => ("echo-32", &["-m32"]),
        Sanitized => ("echo-sanitized", &["-m64", "-fsanitize=address"]),
        Of32Time64 => ("echo-32-time64", &["-m32", "-D_FILE_OFFSET_BITS=64", "-D_TIME_BITS=64"]),
    };
    compiled(stage, name, "echo.c", flags)
}

/// Compiles one source; the path of what came of it.
fn compiled(stage: &Stage, name: &str, source: &str, flags: &[&str]) -> Result<String, Failure> {
    let path = stage.path(name);
    if !path.exists() {
        let mut compiler = Command::new("cc");
        compiler.args(["-O1", "-o"]).arg(&path).arg(format!("{SOURCES}/{source}")).args(flags);
        let built = compiler.output().map_err(|error| format!("cc: {error}"))?;
        if !built.status.success() {
            let said = String::from_utf8_lossy(&built.stderr);
            return Err(format!("{name} is not built: apt-get install gcc-multilib\n{said}"));
        }
    }
    Ok(path.display().to_string())
}

/// Whose library comes first.
#[derive(Clone, Copy)]
enum Order {
    OthersFirst,
    OursFirst,
}

/// The words by which a shell starts a program with another preloaded library.
fn with_preloaded(other: &str, order: Order) -> [String; 3] {
    let list = match order {
        Order::OthersFirst => "$0:$LD_PRELOAD",
        Order::OursFirst => "$LD_PRELOAD:$0",
    };
    ["-c".to_owned(), format!(r#"LD_PRELOAD="{list}" exec "$@""#), other.to_owned()]
}

/// `echo` between two programs that each have another library, too.
fn echo_with(stage: &Stage, other: &str) -> Outcome {
    let program = program(stage, Of64)?;
    for order in [Order::OthersFirst, Order::OursFirst] {
        for way in WAYS {
            let port = stage.port();
            let number = port.to_string();
            let words = with_preloaded(other, order);
            let shell = stage.application("sh").args(words.clone());
            let mut server = shell.args([&program, "server", &number, way]).listening_on(port)?;
            let shell = stage.peer("sh").args(words);
            says(&shell.args([&program, "client", &number, "3", "300"]).text()?, "all right")?;
            server.ends_well()?;
        }
    }
    Ok(())
}

/// One that stands in front of the same calls.
pub fn programs_with_a_second_library_echo(stage: &Stage) -> Outcome {
    let library = compiled(stage, "beside.so", "beside.c", &["-shared", "-fPIC"])?;
    echo_with(stage, &library)
}

/// Of what a small stack has glibc takes nearly all for it, or more than all, as of BIRD's.
pub fn programs_with_much_storage_for_each_thread_echo(stage: &Stage) -> Outcome {
    for bytes in [120_000, 123_000, 200_000] {
        let size = format!("-DBYTES={bytes}");
        let name = format!("local{bytes}.so");
        echo_with(stage, &compiled(stage, &name, "local.c", &[&size, "-shared", "-fPIC"])?)?;
    }
    Ok(())
}

/// An allocator gets memory by calls of its own, also while ours is made ready.
fn echo_with_allocator(stage: &Stage, file: &str, package: &str) -> Outcome {
    let library = format!("/usr/lib/{}-linux-gnu/{file}", std::env::consts::ARCH);
    if !Path::new(&library).exists() {
        return Err(format!("{library} is not there: apt-get install {package}"));
    }
    echo_with(stage, &library)
}

pub fn programs_with_jemalloc_preloaded_echo(stage: &Stage) -> Outcome {
    echo_with_allocator(stage, "libjemalloc.so.2", "libjemalloc2")
}

pub fn programs_with_tcmalloc_preloaded_echo(stage: &Stage) -> Outcome {
    echo_with_allocator(stage, "libtcmalloc_minimal.so.4", "libtcmalloc-minimal4")
}

fn server(stage: &Stage, build: Build, way: &str) -> Result<(Running, u16), Failure> {
    let port = stage.port();
    let program = program(stage, build)?;
    let words = ["server", &port.to_string(), way];
    Ok((stage.application(&program).args(words).listening_on(port)?, port))
}

/// `streams` at once, each with so many messages, from one program to another.
fn echo(stage: &Stage, ends: (Build, Build), way: &str, streams: u32, messages: u32) -> Outcome {
    let (mut server, port) = server(stage, ends.0, way)?;
    let words = [port.to_string(), streams.to_string(), messages.to_string()];
    let client = program(stage, ends.1)?;
    says(&stage.peer(&client).args(["client"]).args(words).text()?, "all right")?;
    server.ends_well()
}

pub fn programs_with_address_sanitizer_echo(stage: &Stage) -> Outcome {
    WAYS.into_iter().try_for_each(|way| echo(stage, (Sanitized, Sanitized), way, 3, 300))
}

pub fn programs_of_32_and_64_bits_echo(stage: &Stage) -> Outcome {
    for ends in [(Of32, Of64), (Of64, Of32), (Of32, Of32), (Of32Time64, Of64)] {
        for way in WAYS {
            echo(stage, ends, way, 3, 300)?;
        }
    }
    Ok(())
}

pub fn programs_of_both_word_sizes_wait_in_time(stage: &Stage) -> Outcome {
    for build in [Of64, Of32, Of32Time64] {
        let (mut server, port) = server(stage, Of64, "epoll")?;
        let client = program(stage, build)?;
        let said = stage.peer(&client).args(["times", &port.to_string()]).text()?;
        says(&said, "all in time")?;
        server.ends_well()?;
    }
    Ok(())
}

/// Rings of 256 streams take what addresses a 32-bit program is to give for them; more are on TCP.
pub fn a_32_bit_program_has_more_streams_than_rings(stage: &Stage) -> Outcome {
    for ends in [(Of32, Of64), (Of64, Of32)] {
        echo(stage, ends, "epoll", 264, 30)?;
    }
    Ok(())
}

/// A shell of 64 bits in front, and one that is started by a program of 32: each loads its own library,
/// and no loader says a word.
pub fn shells_start_programs_of_both_word_sizes(stage: &Stage) -> Outcome {
    for build in [Of32, Of64] {
        let port = stage.port();
        let number = port.to_string();
        let words = ["-c", r#"echo shell >&2; "$0" "$@""#, &program(stage, build)?];
        let shell = stage.application("sh").args(words).args(["server", &number, "poll"]);
        let mut server = shell.listening_on(port)?;
        let client = program(stage, if build == Of32 { Of64 } else { Of32 })?;
        let words = ["-c", r#"exec "$0" "$@" 2>&1"#, &client, "client", &number, "2", "300"];
        let said = stage.peer("sh").args(words).text()?;
        server.ends_well()?;
        let log = std::fs::read_to_string(stage.path(&format!("sh-{port}.log")));
        let log = log.map_err(|error| error.to_string())?;
        if log.trim_end() != "shell" || said != "2 streams, 300 messages, all right\n" {
            return Err(format!("the server said {log:?}, the client {said:?}"));
        }
    }
    Ok(())
}

/// A module that is opened with RTLD_DEEPBIND is bound to libc in front of everything else; one who asks
/// libc itself for a function passes by everything else, too.
pub fn modules_bound_to_libc_carry(stage: &Stage) -> Outcome {
    for bits in ["-m64", "-m32"] {
        let program = with_modules(stage, bits, &[])?;
        for ways in [["now", "lazy"], ["late", "now"], ["lazy", "late"], ["libc", "libc"]] {
            for _ in 0..4 {
                carry(stage, &program, ways)?;
            }
        }
        // What they are bound to cannot be ours here, so the stream leaves its ring in time, or does not come
        // to it, for which the other side counts it as one that could have.
        let between = format!("between{bits}.so");
        let between = compiled(stage, &between, "between.c", &[bits, "-shared", "-fPIC"])?;
        let program = with_modules(stage, bits, &["-Wl,--no-as-needed", &between])?;
        carry(stage, &program, ["late", "late"])?;
    }
    Ok(())
}

/// The ring is made when the stream has carried by plain calls for long, by liburing's own instructions.
pub fn a_ring_that_liburing_makes_late_carries(stage: &Stage) -> Outcome {
    beside_a_ring(stage, "300")
}

/// As databases have one. The stream is on a ring of ours meanwhile.
pub fn a_ring_of_liburings_for_files_leaves_streams_on_rings(stage: &Stage) -> Outcome {
    beside_a_ring(stage, "files")
}

/// Kernel TCP takes 3.9 to 4.3 MB on one host before it says EAGAIN (tcp_wmem), and there are clients that take an
/// EAGAIN for an overloaded server (Cassandra's in Python).
pub fn sends_that_may_not_wait_have_as_much_room_as_tcps(stage: &Stage) -> Outcome {
    const BYTES: u32 = 2_500_000;
    let program = compiled(stage, "burst", "burst.c", &[])?;
    let (port, bytes) = (stage.port(), BYTES.to_string());
    let server = stage.application(&program).args(["server", &port.to_string()]);
    let mut server = server.listening_on(port)?;
    let client = stage.peer(&program).args(["client", &port.to_string(), &bytes]);
    says(&client.text()?, "all had room")?;
    server.ends_well()
}

/// What the kernel's `epoll_wait` has not told before the jump, it tells the next one; and another thread of its own set.
pub fn a_handler_that_leaves_a_wait_by_a_jump_takes_no_event_along(stage: &Stage) -> Outcome {
    let program = compiled(stage, "jump", "jump.c", &["-pthread"])?;
    let port = stage.port();
    let server = stage.application(&program).args(["server", &port.to_string()]);
    let mut server = server.listening_on(port)?;
    let client = stage.peer(&program).args(["client", &port.to_string(), "20000"]);
    says(&client.text()?, "20000 messages answered")?;
    server.ends_well()
}

fn beside_a_ring(stage: &Stage, how: &str) -> Outcome {
    let server = compiled(stage, "uring", "uring.c", &["-luring"])
        .map_err(|failure| format!("{failure}: apt-get install liburing-dev"))?;
    let (client, port) = (program(stage, Of64)?, stage.port().to_string());
    let server = stage.application(&server).args([port.as_str(), how]);
    let mut server = server.listening_on(port.parse().map_err(|_| "no port")?)?;
    says(&stage.peer(&client).args(["client", &port, "1", "600"]).text()?, "all right")?;
    server.ends_well()
}

fn carry(stage: &Stage, program: &str, ways: [&str; 2]) -> Outcome {
    let port = stage.port();
    let server = stage.application(program).args(["server", &port.to_string(), ways[0]]);
    let mut server = server.listening_on(port)?;
    let client = stage.peer(program).args(["client", &port.to_string(), ways[1], "400"]);
    says(&client.text()?, "400 messages, all right")?;
    server.ends_well()
}

/// The program, with `more` that it is linked to, and the modules in a folder that is known to nobody else.
fn with_modules(stage: &Stage, bits: &str, more: &[&str]) -> Result<String, Failure> {
    let folder = format!("modules{bits}");
    stage.folder(&folder);
    for (name, bound) in [("module-now.so", "-Wl,-z,now"), ("module-lazy.so", "-Wl,-z,lazy")] {
        let flags = [bits, "-shared", "-fPIC", bound];
        compiled(stage, &format!("{folder}/{name}"), "module.c", &flags)?;
    }
    let place = format!("-Wl,--enable-new-dtags,-rpath,$ORIGIN/{folder}");
    // Its `whose` would stand in front of the modules'.
    let flags = [&[bits, "-rdynamic", "-ldl", &place], more].concat();
    let name = format!("modules{bits}-{}.program", more.len());
    compiled(stage, &name, "modules.c", &flags)
}
