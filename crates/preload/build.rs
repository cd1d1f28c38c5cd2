//! Links libgcc statically: looking a second library up costs every start 150 us.
//!
//! A program may define and export functions of our names (Erlang's `sigaction`, which calls ours): what
//! the library calls of its own stays its own.
fn main() {
    println!("cargo:rustc-cdylib-link-arg=-static-libgcc");
    println!(
        "cargo:rustc-cdylib-link-arg=-Wl,-z,now,-z,relro,-O1,--as-needed,-Bsymbolic-functions"
    );
}
