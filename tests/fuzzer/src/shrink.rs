//! Makes a failing program small: fewer steps, then smaller ones, as long as it still fails.

use crate::check::{check, Difference, Verdict};
use crate::operation::{Mode, Operation, Program, Start};
use crate::servers::Servers;
use std::time::{Duration, Instant};

const TIME_MAX: Duration = Duration::from_secs(60);
/// A hang need not be watched for as long when it has been seen before.
const WATCHDOG: Duration = Duration::from_secs(2);
/// Not every failure comes every time.
const TRIES: usize = 4;

struct Shrinker<'a> {
    servers: &'a Servers,
    give_up: Instant,
    best: Program,
    difference: Option<Difference>,
}

/// The smallest failing program found, and how it fails; no difference if it never failed again.
pub fn shrink(program: &Program, servers: &Servers) -> (Program, Option<Difference>) {
    let before = servers.watchdog.replace(WATCHDOG);
    let give_up = Instant::now() + TIME_MAX;
    let mut shrinker = Shrinker { servers, give_up, best: program.clone(), difference: None };
    let whole = program.clone();
    if shrinker.keep_if_failing(whole) {
        shrinker.cut_end();
        shrinker.drop_steps();
        shrinker.simplify();
        shrinker.drop_steps();
    }
    servers.watchdog.set(before);
    (shrinker.best, shrinker.difference)
}

impl Shrinker<'_> {
    fn keep_if_failing(&mut self, candidate: Program) -> bool {
        for _ in 0..TRIES {
            if Instant::now() > self.give_up {
                return false;
            }
            if let (Verdict::Different(difference), _) = check(&candidate, self.servers) {
                self.best = candidate;
                self.difference = Some(difference);
                return true;
            }
        }
        false
    }

    /// Nothing behind the step that differs is needed.
    fn cut_end(&mut self) {
        let step = self.difference.as_ref().map_or(usize::MAX, |difference| difference.step);
        let mut candidate = self.best.clone();
        candidate.steps.truncate(step.saturating_add(1));
        self.keep_if_failing(candidate);
    }

    fn drop_steps(&mut self) {
        let mut chunk = self.best.steps.len().div_ceil(2);
        while chunk > 0 {
            let mut at = 0;
            while at < self.best.steps.len() {
                let mut candidate = self.best.clone();
                let end = (at + chunk).min(candidate.steps.len());
                candidate.steps.drain(at..end);
                if !self.keep_if_failing(candidate) {
                    at += chunk;
                }
            }
            chunk = if chunk == 1 { 0 } else { chunk.div_ceil(2) };
        }
    }

    fn simplify(&mut self) {
        for at in 0..self.best.steps.len() {
            while let Some(smaller) = smaller(&self.best.steps[at].op) {
                let mut candidate = self.best.clone();
                candidate.steps[at].op = smaller;
                if !self.keep_if_failing(candidate) {
                    break;
                }
            }
        }
        let simpler: [fn(&mut Program); 4] = [
            |program| program.settings.start = Start::Tcp,
            |program| program.settings.start = Start::Ring,
            |program| program.settings.ring_bytes = 1 << 20,
            |program| program.settings.mode = Mode::Both,
        ];
        for change in simpler {
            let mut candidate = self.best.clone();
            change(&mut candidate);
            if candidate != self.best {
                self.keep_if_failing(candidate);
            }
        }
    }
}

fn smaller(op: &Operation) -> Option<Operation> {
    let mut op = op.clone();
    match &mut op {
        Operation::Send { size, flags, .. } | Operation::Receive { size, flags, .. } => {
            if flags.pop().is_none() {
                if *size < 2 {
                    return None;
                }
                *size /= 2;
            }
        }
        Operation::Transfer { size, .. } if *size > 1 => *size /= 2,
        Operation::Poll { slots, .. } if slots.len() > 1 => drop(slots.pop()),
        _ => return None,
    }
    Some(op)
}
