//! Runs every scenario on kernel TCP and with the library on both sides or on one, and compares
//! what the two processes saw: return values, errno, bytes and events.
//!
//! `cargo run -p shunt-differential -- [--only TEXT] [--mode plain|both|server|client]
//! [--carrier tcp|changing|ring] [--blocks yes|no] [--jobs N] [--show] [--list] [--other FILE]`. The library is taken
//! from `SHUNT_LIBRARY`. The same binary plays both sides of a scenario (`--act`); with `--other`, which
//! is this program built for 32 bits or for 64, each side is the other's stranger (`run::Files`).

mod actor;
mod diff;
mod harness;
mod helpers;
mod run;
mod scenarios;

use actor::{Actor, Carrier, Side};
use calls::socket::Family;
use shunt_differential::{calls, fast_path, pattern};

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let status = match arguments.first().map(String::as_str) {
        Some("--act") => act(&arguments[1..]),
        Some("--helper") => helpers::run(&arguments[1..]),
        _ => harness::main(&arguments),
    };
    std::process::exit(status);
}

/// Plays one side of one scenario.
fn act(arguments: &[String]) -> i32 {
    let [side, name, carrier, family, blocks] = arguments else { return 2 };
    let side = if side == "client" { Side::Client } else { Side::Server };
    let carrier = match carrier.as_str() {
        "Tcp" => Carrier::Tcp,
        "Changing" => Carrier::Changing,
        _ => Carrier::Ring,
    };
    let family = match family.as_str() {
        "V4" => Family::V4,
        "V6" => Family::V6,
        _ => Family::Mapped,
    };
    let Some(scenario) = scenarios::all().find(|scenario| scenario.name == name) else { return 2 };
    let actor = Actor::start(side, carrier, family, blocks == "true");
    (scenario.run)(&actor);
    0
}
