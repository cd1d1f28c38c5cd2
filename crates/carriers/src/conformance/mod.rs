//! One suite that every carrier passes, bare and with faults: what a stream may rely on, whatever
//! moves its bytes.
//!
//! A carrier comes in as a [`Subject`], which knows how to make a connected pair and how to break
//! it. The tests never name a carrier; where carriers differ, they ask its declared capabilities.
//! No test sleeps to synchronise, and each ends by a watchdog rather than hang.

mod driver;
mod ends;
mod order;
mod pressure;
pub(crate) mod subject;
mod waiting;

pub(crate) use driver::{await_ready, byte, fill, receive, send, watched};
use subject::{FaultySubject, ShmSubject, Subject, TcpSubject};

/// Instantiates every test of the suite for one subject.
macro_rules! conformance {
    ($name:ident: $subject:ty) => {
        conformance! { $name: $subject;
            order::bytes_arrive_in_order_and_once,
            order::every_size_arrives_whole,
            order::both_directions_run_at_once,
            order::many_small_are_followed_by_few_large,
            order::parts_are_gathered_and_scattered,
            order::peeked_bytes_stay_and_discarded_ones_go,
            order::nothing_asked_moves_nothing,
            pressure::full_until_drained,
            pressure::accepted_bytes_are_the_carriers_own,
            pressure::unread_bytes_are_known_where_declared,
            pressure::small_sends_coalesce_where_declared,
            waiting::ready_means_progress,
            waiting::no_wake_up_is_lost,
            waiting::news_after_the_announcement_end_the_wait,
            waiting::room_after_the_announcement_ends_the_wait,
            ends::half_close_leaves_data_in_flight_and_the_other_direction,
            ends::the_end_comes_after_the_last_byte,
            ends::breakage_is_an_error_and_never_data,
            ends::death_is_told_where_declared_and_invents_nothing,
        }
    };
    ($name:ident: $subject:ty; $($file:ident::$test:ident,)*) => {
        mod $name {
            use super::*;
            $(
                #[test]
                fn $test() {
                    watched($file::$test::<$subject>);
                }
            )*
        }
    };
}

conformance! { tcp: TcpSubject }
conformance! { shm: ShmSubject }
// So large that copies are shown in pieces.
conformance! { large_shm: ShmSubject<{ 128 * 1024 }> }
conformance! { faulty_tcp: FaultySubject<TcpSubject> }
conformance! { faulty_shm: FaultySubject<ShmSubject> }

/// Breakage at any byte, at either end.
macro_rules! breaking {
    ($($name:ident: $subject:ty,)*) => { $(
        mod $name {
            use super::*;

            #[test]
            fn a_sender_that_breaks_at_a_byte_has_sent_those_before_it() {
                watched(ends::a_sender_that_breaks_at_a_byte_has_sent_those_before_it::<$subject>);
            }

            #[test]
            fn a_receiver_that_breaks_at_a_byte_has_given_those_before_it() {
                watched(ends::a_receiver_that_breaks_at_a_byte_has_given_those_before_it::<$subject>);
            }
        }
    )* };
}

breaking! { breaking_tcp: TcpSubject, breaking_shm: ShmSubject, }

/// The carrier of a subject.
type Of<S> = <S as Subject>::Carrier;
