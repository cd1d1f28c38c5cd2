//! Links libgcc statically: looking a second library up costs every start 150 us, and a 32-bit program
//! may run where there is no 32-bit one. Rust's standard library asks for libgcc_s by name, so a linker
//! script of that name stands before it.
//!
//! A program may define and export functions of our names (Erlang's `sigaction`, which calls ours): what
//! the library calls of its own stays its own.

use std::path::Path;

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    let folder = std::env::var("OUT_DIR").expect("cargo tells where");
    let script = "GROUP ( -lgcc_eh -lgcc )
";
    std::fs::write(Path::new(&folder).join("libgcc_s.so"), script).expect("the folder is ours");
    println!("cargo:rustc-cdylib-link-arg=-L{folder}");
    println!(
        "cargo:rustc-cdylib-link-arg=-Wl,-z,now,-z,relro,-O1,--as-needed,-Bsymbolic-functions"
    );
}
