//! Is a program the same on kernel TCP and under the library? The plain run is the oracle; what
//! differs between several plain runs is not promised, and is not compared.

use crate::conductor::{run, Observations, Outcome};
use crate::operation::{Program, Step};
use crate::servers::Servers;
use std::collections::BTreeSet;

/// Plain runs that must agree before a difference counts.
const PLAIN_RUNS: usize = 5;

pub enum Verdict {
    Same,
    /// What the plain runs do not agree about themselves.
    NotPromised,
    /// The plain run hung: the world expects something that the kernel does not do.
    PlainHung(String),
    Different(Difference),
}

pub struct Difference {
    pub step: usize,
    pub plain: Vec<String>,
    pub accelerated: Vec<String>,
    pub hung: Option<String>,
}

/// The verdict, with the accelerated run for the figures.
pub fn check(program: &Program, servers: &Servers) -> (Verdict, Outcome) {
    let plain = run(program, servers, None);
    if let Some(hung) = plain.hung {
        return (Verdict::PlainHung(hung), Outcome::default());
    }
    let accelerated = run(program, servers, Some(&plain.observations));
    if accelerated.hung.is_none() && accelerated.observations == plain.observations {
        return (Verdict::Same, accelerated);
    }
    let unstable = match unstable_steps(program, servers, &plain.observations) {
        Ok(unstable) => unstable,
        Err(hung) => return (Verdict::PlainHung(hung), accelerated),
    };
    let verdict = first_difference(&plain.observations, &accelerated, &unstable);
    (verdict.map_or(Verdict::NotPromised, Verdict::Different), accelerated)
}

/// Steps about which plain runs disagree.
fn unstable_steps(
    program: &Program,
    servers: &Servers,
    first: &Observations,
) -> Result<BTreeSet<usize>, String> {
    let mut unstable = BTreeSet::new();
    for _ in 1..PLAIN_RUNS {
        let again = run(program, servers, None);
        if let Some(hung) = again.hung {
            return Err(hung);
        }
        let steps: BTreeSet<usize> =
            first.keys().chain(again.observations.keys()).copied().collect();
        unstable
            .extend(steps.iter().filter(|step| first.get(step) != again.observations.get(step)));
    }
    Ok(unstable)
}

fn first_difference(
    plain: &Observations,
    accelerated: &Outcome,
    unstable: &BTreeSet<usize>,
) -> Option<Difference> {
    let other = &accelerated.observations;
    let steps: BTreeSet<usize> = plain.keys().chain(other.keys()).copied().collect();
    let differs = |step: &&usize| plain.get(step) != other.get(step);
    let step = *steps.iter().find(differs).or(accelerated.hung.as_ref().and(steps.last()))?;
    // Once a run has gone another way that is allowed, what follows cannot be compared.
    if unstable.contains(&step) && accelerated.hung.is_none() {
        return None;
    }
    let seen = |of: &Observations| of.get(&step).cloned().unwrap_or_default();
    let hung = accelerated.hung.clone();
    Some(Difference { step, plain: seen(plain), accelerated: seen(other), hung })
}

impl Difference {
    pub fn describe(&self, program: &Program) -> String {
        let step = program.steps.get(self.step);
        let name = step.map_or("at the end".to_owned(), |step: &Step| format!("{step:?}"));
        let mut text = format!(
            "step {}: {name}\n  plain:       {}\n  accelerated: {}",
            self.step,
            self.plain.join("; "),
            self.accelerated.join("; ")
        );
        if let Some(hung) = &self.hung {
            text.push_str(&format!("\n  hung: {hung}"));
        }
        text
    }
}
