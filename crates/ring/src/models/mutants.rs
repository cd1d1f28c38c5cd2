//! Each ordering weakened by itself breaks a model. The match is without a wildcard: an ordering
//! that is added must get its mutant.

use std::panic::{catch_unwind, AssertUnwindSafe};

use super::{bytes_in_order, explore, handover_words, latest, no_lost_wakeup, ready_map};
use crate::sync::{weaken, Point};

macro_rules! mutants {
    ($($name:ident: $point:ident breaks $model:path;)*) => {
        fn model_of(point: Point) -> fn() {
            match point {
                $(Point::$point => $model,)*
            }
        }

        $(
            #[test]
            fn $name() {
                is_caught(Point::$point);
            }
        )*
    };
}

mutants! {
    tail_stored_relaxed_is_caught: TailPublish breaks bytes_in_order::through_a_full_ring;
    tail_loaded_relaxed_is_caught: TailObserve breaks latest::few_bytes;
    held_stored_relaxed_is_caught: HeldPublish breaks handover_words::held_bytes_are_shown_whole;
    held_loaded_relaxed_is_caught: HeldObserve breaks handover_words::held_bytes_are_shown_whole;
    head_stored_relaxed_is_caught: HeadPublish breaks bytes_in_order::through_a_full_ring;
    head_loaded_relaxed_is_caught: HeadObserve breaks bytes_in_order::through_a_full_ring;
    latest_stored_relaxed_is_caught: LatestPublish breaks latest::overwritten_words;
    latest_loaded_without_acquire_fence_is_caught: LatestObserve breaks latest::overwritten_words;
    end_set_relaxed_is_caught: EndSet breaks handover_words::end_shows_the_tail;
    end_loaded_relaxed_is_caught: EndObserve breaks handover_words::end_shows_the_tail;
    end_lost_relaxed_is_caught: EndLost breaks handover_words::lost_race_shows_the_tail;
    data_waiter_without_full_fence_is_caught: DataWaiter breaks no_lost_wakeup::for_data;
    data_waker_without_full_fence_is_caught: DataWaker breaks no_lost_wakeup::for_data;
    space_waiter_without_full_fence_is_caught: SpaceWaiter breaks no_lost_wakeup::for_space;
    space_waker_without_full_fence_is_caught: SpaceWaker breaks no_lost_wakeup::for_space;
    low_water_waker_without_full_fence_is_caught: LowWaterWaker breaks no_lost_wakeup::for_space_at_low_water;
    mark_set_relaxed_is_caught: MarkPublish breaks ready_map::marks_carry_what_was_done;
    mark_taken_relaxed_is_caught: MarkObserve breaks ready_map::marks_carry_what_was_done;
    summary_set_relaxed_is_caught: SummaryPublish breaks ready_map::summary_leads_to_the_mark;
    summary_taken_relaxed_is_caught: SummaryObserve breaks ready_map::summary_leads_to_the_mark;
    sleeper_announced_without_full_fence_is_caught: SleeperAnnounce breaks ready_map::mark_against_sleep;
    sleeper_taken_without_full_fence_is_caught: SleeperTake breaks ready_map::mark_against_sleep;
    sleeper_retracted_without_full_fence_is_caught: SleeperRetract breaks ready_map::mark_against_answer;
}

fn is_caught(point: Point) {
    weaken(Some(point));
    let outcome = catch_unwind(AssertUnwindSafe(|| explore(model_of(point))));
    weaken(None);
    assert!(outcome.is_err(), "no order of events shows that {point:?} is needed");
}
