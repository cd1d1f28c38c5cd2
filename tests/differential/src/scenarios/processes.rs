//! To come.
use super::{scenarios, Scenario, V4};
pub const ALL: &[Scenario] = scenarios![V4;];
