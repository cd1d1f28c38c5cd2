//! What a recipe says: how to start a server, and what clients measure at it.

use anyhow::Result;

use super::server::Server;
use super::stage::Stage;

pub struct Recipe {
    pub name: &'static str,
    /// Debian packages that bring the programs.
    pub packages: &'static str,
    pub programs: &'static [&'static str],
    pub serve: fn(&Stage) -> Result<Server>,
    pub measures: &'static [Measure],
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
