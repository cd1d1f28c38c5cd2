//! What a victim does with its streams, and how the survivor answers.

use crate::victim::{self, Victim};

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Survivor {
    /// Reads alone.
    Reads,
    /// One frame for each that it gets.
    Answers,
    /// Writes all the time.
    Streams,
}

pub struct Script {
    pub name: &'static str,
    pub run: fn(&mut Victim),
    pub survivor: Survivor,
    pub victim_accepts: bool,
    pub streams: usize,
}

const SCRIPT: Script = Script {
    name: "",
    run: victim::sends,
    survivor: Survivor::Answers,
    victim_accepts: false,
    streams: 1,
};

pub const SCRIPTS: &[Script] = &[
    Script { name: "sends", survivor: Survivor::Reads, ..SCRIPT },
    Script { name: "asks", run: victim::asks, ..SCRIPT },
    Script { name: "accepts", run: victim::asks, victim_accepts: true, ..SCRIPT },
    Script { name: "receives", run: victim::receives, survivor: Survivor::Streams, ..SCRIPT },
    Script { name: "leaves the ring", run: victim::leaves, ..SCRIPT },
    Script { name: "becomes another program", run: victim::execs, ..SCRIPT },
    Script { name: "forks", run: victim::forks, ..SCRIPT },
    Script { name: "forks at once", run: victim::forks_at_once, ..SCRIPT },
    Script { name: "fills beside a child", run: victim::fills_beside_child, ..SCRIPT },
    Script { name: "opens a second stream", run: victim::opens_two, streams: 2, ..SCRIPT },
];

pub fn named(name: &str) -> &'static Script {
    let found = SCRIPTS.iter().find(|script| script.name == name);
    found.unwrap_or_else(|| panic!("{name} is no script"))
}
