//! Explores every run of one direction within bounds, over the production code of `Writer` and
//! `Reader`, and shows that each of a list of faults would be found.
//!
//! The law: the reader gets the bytes written, once each, in order, then the end where TCP would
//! give it; and from every state that can be reached, what has been written is still delivered
//! without any program making another call than to read.

mod mutants;
mod port;
mod sides;
mod state;
mod world;

use mutants::Mutant;
use port::ROWS_MET;
use shunt_stream::{End, ReaderOn, TRANSITIONS};
use state::{Action, Bounds, State};
use stateright::{Checker, HasDiscoveries, Model, Property};
use std::sync::atomic::Ordering;
use std::time::Instant;

const LAW: &str = "bytes once each and in order, ends where TCP gives them";
const DELIVERY: &str = "what has been written is delivered from every state";

#[derive(Clone)]
struct Exploration {
    bounds: Bounds,
    mutant: Option<Mutant>,
}

impl Model for Exploration {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![State::new()]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        state.actions(&self.bounds, actions);
    }

    fn next_state(&self, state: &State, action: Action) -> Option<State> {
        let mut next = state.clone();
        next.act(action, 1, self.mutant);
        (next != *state).then_some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        let mut properties = vec![
            Property::always(LAW, |_, state: &State| state.world.broken.is_none()),
            Property::always(DELIVERY, |model: &Exploration, state: &State| {
                state.settle(model.mutant).is_none()
            }),
        ];
        if self.mutant.is_none() {
            properties.extend(SITUATIONS.map(|(name, holds)| Property::sometimes(name, holds)));
        }
        properties
    }
}

type Situation = (&'static str, fn(&Exploration, &State) -> bool);

/// What an exploration must have met to be worth its name.
const SITUATIONS: [Situation; 6] = [
    ("a second segment is read", |_, state| {
        state.writer.ups == 2 && state.reader.protocol.on() == ReaderOn::Ring
    }),
    ("down and FIN while the reader crosses", |_, state| {
        let crossing = matches!(state.reader.protocol.on(), ReaderOn::Crossing { .. });
        crossing && matches!(state.world.end(), End::Down(_)) && state.writer.fin_sent
    }),
    (
        "an unnoticed segment is recalled",
        |_, state| matches!(state.world.end(), End::Recalled(to) if to > state.world.up_at),
    ),
    ("a reader that would leave must drain", |_, state| state.reader.must_drain),
    ("what a dead writer did not re-send is salvaged", |_, state| {
        state.world.seen_end.is_some() && state.reader.salvaged
    }),
    ("bytes are lost with a dead reader, and the stream is reset", |_, state| {
        state.world.lost && state.world.was_reset
    }),
];

fn explore(name: &str, bounds: Bounds, situations: &[usize]) {
    let start = Instant::now();
    let checker = Exploration { bounds, mutant: None }.checker().threads(2).spawn_bfs().join();
    let states = checker.unique_state_count();
    println!("{name}: {states} states, depth {}, {:.1?}", checker.max_depth(), start.elapsed());
    for property in [LAW, DELIVERY] {
        if let Some(path) = checker.discovery(property) {
            let last = path.last_state();
            panic!("{property}: {:?}\n{path}\n{last:#?}", last.settle(None));
        }
    }
    for &situation in situations {
        let (name, _) = SITUATIONS[situation];
        assert!(checker.discovery(name).is_some(), "not met: {name}");
    }
}

const BASE: Bounds = Bounds {
    bytes: 3,
    ups: 2,
    agreements: 2,
    stops: 0,
    sleeps: true,
    leaves_at_once: false,
    leaves: false,
    closes: false,
    writer_dies: false,
    reader_dies: false,
};

const LONGER: Bounds = Bounds { bytes: 4, ups: 3, agreements: 3, ..BASE };

#[test]
fn handovers_up_and_down_keep_the_law() {
    explore("up and down", LONGER, &[0, 1, 2]);
}

const STOPS: Bounds = Bounds { stops: 2, leaves: true, leaves_at_once: true, ..BASE };

#[test]
fn a_reader_that_stops_or_leaves_keeps_the_law() {
    explore("stop and leave", STOPS, &[0, 1, 2, 3]);
}

const CLOSES: Bounds = Bounds { closes: true, sleeps: false, stops: 1, ..BASE };

#[test]
fn a_reader_that_closes_keeps_the_law() {
    explore("close", CLOSES, &[0, 1, 2, 3]);
}

const READER_DIES: Bounds = Bounds { reader_dies: true, sleeps: false, stops: 1, ..BASE };

#[test]
fn a_reader_killed_at_any_step_keeps_the_law_for_other_holders() {
    explore("reader dies", READER_DIES, &[0, 1, 2, 3, 5]);
}

const WRITER_DIES: Bounds =
    Bounds { writer_dies: true, sleeps: false, stops: 1, leaves: true, ..BASE };

#[test]
fn a_writer_killed_at_any_step_keeps_the_law() {
    explore("writer dies", WRITER_DIES, &[0, 1, 2, 3, 4]);
}

#[test]
fn every_row_of_the_table_is_met() {
    let all = Bounds {
        bytes: 2,
        ups: 1,
        agreements: 2,
        stops: 1,
        sleeps: false,
        leaves_at_once: false,
        leaves: true,
        closes: true,
        writer_dies: true,
        reader_dies: true,
    };
    explore("everything, shorter", all, &[]);
    let met = ROWS_MET.load(Ordering::Relaxed);
    for (number, row) in TRANSITIONS.iter().enumerate() {
        assert!(met & 1 << number != 0, "no run makes {row:?}");
    }
}

#[test]
fn every_mutant_is_found() {
    for mutant in Mutant::ALL {
        let bounds = where_found(mutant);
        let model = Exploration { bounds, mutant: Some(mutant) };
        let any = HasDiscoveries::Any;
        let checker = model.checker().threads(2).finish_when(any).spawn_bfs().join();
        let path = checker.discoveries().into_values().next();
        let path = path.unwrap_or_else(|| panic!("{mutant:?} was not found"));
        let broken = path.last_state().settle(Some(mutant));
        println!("{mutant:?}: {broken:?} after {} steps", path.into_actions().len());
    }
}

fn where_found(mutant: Mutant) -> Bounds {
    match mutant {
        Mutant::UpWithoutAgreement
        | Mutant::UpAtIsStoredLate
        | Mutant::ReaderIgnoresTheLimit
        | Mutant::DownDoesNotRecall => BASE,
        Mutant::UpWithoutCompare
        | Mutant::DownWithoutCompare
        | Mutant::StopWithoutCompare
        | Mutant::NewerByteBeforeResend
        | Mutant::FinBeforeResend
        | Mutant::ResendFromTheStart
        | Mutant::StopDoesNotDrain
        | Mutant::NoServiceThread => STOPS,
        Mutant::ReaderDeathIgnored => READER_DIES,
        Mutant::TakeOverStartsAgain | Mutant::NoSalvage | Mutant::WriterDeathIgnored => WRITER_DIES,
    }
}
