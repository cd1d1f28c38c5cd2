//! What a recipe says: how to start its servers, and what clients measure at it.

use anyhow::Result;

use super::server::Server;
use super::stage::Stage;

pub struct Recipe {
    pub name: &'static str,
    /// Debian packages that bring the programs.
    pub packages: &'static str,
    pub programs: &'static [&'static str],
    /// They are ended in this order.
    pub serve: fn(&Stage) -> Result<Vec<Server>>,
    /// Those that are always taken.
    pub measures: &'static [Measure],
    /// Those that are taken with `--all`, or if the recipe is named.
    pub more: &'static [Measure],
}

impl Recipe {
    pub fn measures(&self, is_whole: bool) -> impl Iterator<Item = &'static Measure> {
        self.measures.iter().chain(if is_whole { self.more } else { &[] })
    }
}

pub struct Measure {
    pub name: &'static str,
    pub unit: &'static str,
    pub better: Better,
    pub run: fn(&Stage) -> Result<f64>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Better {
    Higher,
    Lower,
}
