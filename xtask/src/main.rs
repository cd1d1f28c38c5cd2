//! Repository chores: `cargo xtask tidy`.

mod tidy;

fn main() {
    let chore = std::env::args().nth(1);
    let good = match chore.as_deref() {
        Some("tidy") => tidy::run(),
        _ => {
            eprintln!("usage: cargo xtask tidy");
            false
        }
    };
    std::process::exit(i32::from(!good));
}
