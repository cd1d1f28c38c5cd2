//! Repository chores: `cargo xtask tidy`, `cargo xtask figures RUN`.

mod figures;
mod tidy;

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let good = match words[..] {
        ["tidy"] => tidy::run(),
        ["figures", run] => figures::run(run),
        _ => {
            eprintln!("usage: cargo xtask tidy | figures bench/runs/RUN");
            false
        }
    };
    std::process::exit(i32::from(!good));
}
