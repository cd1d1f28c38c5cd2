//! The scenarios by theme. A scenario is a short function that both sides run; its name says
//! what must hold. It notes what POSIX promises, never where a read happened to split.

mod basic;
mod descriptors;
mod ends;
mod epoll;
mod left_bytes;
mod options;
mod order;
mod other_ways;
mod poll;
mod processes;
mod sandboxes;
mod sets;
mod settings;
mod strange;
mod threads;
mod unusual;

use crate::actor::Actor;
use crate::calls::socket::Family;

pub struct Scenario {
    pub name: &'static str,
    pub run: fn(&Actor),
    /// Where it runs with the library at one end, too; with it at both ends it runs over every family.
    pub families: &'static [Family],
}

const V4: &[Family] = &[Family::V4];
/// IPv6 and v4-mapped too.
const ALL_FAMILIES: &[Family] = &[Family::V4, Family::V6, Family::Mapped];

/// A theme's table of contents.
macro_rules! scenarios {
    ($families:expr; $($name:ident),* $(,)?) => {
        &[$(crate::scenarios::Scenario {
            name: stringify!($name),
            run: $name,
            families: $families,
        }),*]
    };
}
use scenarios;

pub fn all() -> impl Iterator<Item = &'static Scenario> {
    [
        basic::ALL,
        basic::IN_EVERY_FAMILY,
        ends::ALL,
        order::ALL,
        poll::ALL,
        epoll::ALL,
        sandboxes::ALL,
        sets::ALL,
        settings::ALL,
        left_bytes::ALL,
        other_ways::ALL,
        strange::ALL,
        processes::ALL,
        descriptors::ALL,
        options::ALL,
        options::IN_EVERY_FAMILY,
        threads::ALL,
        unusual::ALL,
    ]
    .into_iter()
    .flatten()
}

/// Scenarios with both ends of a stream on one side: they upgrade with one side accelerated.
pub fn pairs_with_itself(name: &str) -> bool {
    ["one_process", "itself"].iter().any(|text| name.contains(text))
}
