//! To come.
use super::{scenarios, Scenario, V4};
pub const ALL: &[Scenario] = scenarios![V4;];
pub const IN_EVERY_FAMILY: &[Scenario] = &[];
