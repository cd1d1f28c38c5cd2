//! The policy against patterns of arrivals, without a machine: what it costs in CPU time and in delay, beside
//! waits that never spin, waits that always do, and one who knows beforehand.
//!
//! A wait begins, and its event comes after a time that the pattern says. What a sleep costs is measured
//! (docs/design/waiting.md): the one who wakes is busy for 10 us, the sleeper for 5, and runs late: by 30 us on
//! some machines, by 4 on others.

use shunt_readiness::policy::{Policy, SPIN_NS_MAX};

const US: u64 = 1000;
const WAKER_NS: u64 = 10 * US;
const SLEEPER_NS: u64 = 5 * US;
const MACHINES: [Machine; 2] = [Machine { late_ns: 30 * US }, Machine { late_ns: 4 * US }];

/// What some waits cost together, both sides.
#[derive(Clone, Copy, Default, Debug)]
struct Cost {
    cpu_ns: u64,
    delay_ns: u64,
    sleeps: u64,
}

impl Cost {
    /// Who waits for an answer holds up others, so that a delay counts twice.
    fn total_ns(&self) -> u64 {
        self.cpu_ns + 2 * self.delay_ns
    }
}

#[derive(Clone, Copy, Debug)]
struct Machine {
    late_ns: u64,
}

impl Machine {
    /// Adds a wait to the cost; whether it slept.
    fn wait(self, cost: &mut Cost, event_ns: u64, spin_ns: u64) -> bool {
        let sleeps = event_ns > spin_ns;
        cost.cpu_ns += if sleeps { spin_ns + WAKER_NS + SLEEPER_NS } else { event_ns };
        cost.delay_ns += if sleeps { self.late_ns } else { 0 };
        cost.sleeps += u64::from(sleeps);
        sleeps
    }

    fn by_policy(self, policy: &Policy, pattern: &[u64]) -> Cost {
        let mut cost = Cost::default();
        for event_ns in pattern.iter().copied() {
            let spin_ns = policy.spin_ns();
            if self.wait(&mut cost, event_ns, spin_ns) {
                policy.slept(event_ns + self.late_ns, spin_ns > 0);
            } else {
                policy.caught(event_ns);
            }
        }
        cost
    }

    fn always(self, spin_ns: u64, pattern: &[u64]) -> Cost {
        let mut cost = Cost::default();
        for event_ns in pattern {
            self.wait(&mut cost, *event_ns, spin_ns);
        }
        cost
    }

    /// Spins exactly where that is cheaper.
    fn knowing(self, pattern: &[u64]) -> Cost {
        let mut cost = Cost::default();
        for event_ns in pattern.iter().copied() {
            let pays = event_ns <= WAKER_NS + SLEEPER_NS + 2 * self.late_ns;
            self.wait(&mut cost, event_ns, if pays { event_ns } else { 0 });
        }
        cost
    }
}

fn constant(event_ns: u64) -> Vec<u64> {
    vec![event_ns; 2000]
}

/// Times of a given mean between events that know nothing of each other, always the same ones.
fn independent(mean_ns: u64) -> Vec<u64> {
    let mut state = 1u64;
    let mut uniform = || {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        ((state >> 11) as f64 + 1.0) / (1u64 << 53) as f64
    };
    (0..2000).map(|_| (-uniform().ln() * mean_ns as f64) as u64).collect()
}

/// So many events one after the other, then a pause.
fn bursts(length: usize, pause_ns: u64) -> Vec<u64> {
    let burst = || std::iter::repeat_n(2 * US, length).chain([pause_ns]);
    (0..2000 / length).flat_map(|_| burst()).collect()
}

fn on_each_machine() -> impl Iterator<Item = (Machine, (&'static str, Vec<u64>))> {
    MACHINES.into_iter().flat_map(|machine| patterns().into_iter().map(move |it| (machine, it)))
}

fn patterns() -> Vec<(&'static str, Vec<u64>)> {
    vec![
        ("an answer at once", constant(US)),
        ("after 10 us", constant(10 * US)),
        ("after 40 us", constant(40 * US)),
        ("after 60 us", constant(60 * US)),
        ("after 75 us", constant(75 * US)),
        ("after 100 us", constant(100 * US)),
        ("a thousand a second", constant(1000 * US)),
        ("ten a second", constant(100_000 * US)),
        ("bursts of 10, 1 ms apart", bursts(10, 1000 * US)),
        ("bursts of 100, 10 ms apart", bursts(100, 10_000 * US)),
        ("independent, 5 us apart", independent(5 * US)),
        ("independent, 30 us apart", independent(30 * US)),
        ("independent, 100 us apart", independent(100 * US)),
        ("independent, 1 ms apart", independent(1000 * US)),
    ]
}

#[test]
fn it_costs_little_more_than_the_better_of_spinning_and_sleeping() {
    for (machine, (name, pattern)) in on_each_machine() {
        let total_ns = |cost: Cost| cost.total_ns() as f64;
        let policy = total_ns(machine.by_policy(&Policy::new(), &pattern));
        let (sleeping, spinning) =
            (machine.always(0, &pattern), machine.always(SPIN_NS_MAX, &pattern));
        let share = policy / total_ns(sleeping).min(total_ns(spinning));
        let of_knowing = policy / total_ns(machine.knowing(&pattern));
        let late_us = machine.late_ns / US;
        println!(
            "late {late_us:2} us, {name:28} {share:.2} of the better, {of_knowing:.2} of who knows"
        );
        assert!(share <= 1.1, "{machine:?}, {name}: {share:.2} times the better of both");
    }
}

#[test]
fn no_core_burns_for_waits_that_are_long() {
    for (machine, (name, pattern)) in on_each_machine() {
        if pattern.iter().any(|event_ns| *event_ns < 100 * US) {
            continue;
        }
        let policy = machine.by_policy(&Policy::new(), &pattern);
        let share = policy.cpu_ns as f64 / machine.always(0, &pattern).cpu_ns as f64;
        assert!(share <= 1.02, "{machine:?}, {name}: {share:.3} of the CPU time without spins");
    }
}

#[test]
fn what_answers_soon_is_not_slept_for() {
    for event_ns in [0, US, 10 * US, 40 * US] {
        let cost = MACHINES[0].by_policy(&Policy::new(), &constant(event_ns));
        // A few, to see what a sleep costs.
        assert!(cost.sleeps <= 8, "{} sleeps for answers after {event_ns} ns", cost.sleeps);
    }
}

#[test]
fn a_change_is_followed_within_some_waits() {
    for machine in MACHINES {
        let policy = Policy::new();
        for round in 0..10 {
            let slow = machine.by_policy(&policy, &[1000 * US; 200]);
            let spun_ns = slow.cpu_ns - slow.sleeps * (WAKER_NS + SLEEPER_NS);
            assert!(spun_ns <= 10 * SPIN_NS_MAX, "round {round}: {spun_ns} ns spun in vain");
            let quick = machine.by_policy(&policy, &[5 * US; 200]);
            assert!(quick.sleeps <= 10, "round {round}: {} sleeps", quick.sleeps);
        }
    }
}
