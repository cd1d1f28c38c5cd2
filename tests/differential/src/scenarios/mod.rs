//! The scenarios by theme. A scenario is a short function that both sides run; its name says
//! what must hold. It notes what POSIX promises, never where a read happened to split.

mod basic;
mod carriers;
mod descriptors;
mod ends;
mod epoll;
mod heirs;
mod held;
mod histories;
mod io_uring;
mod left_bytes;
mod options;
mod order;
mod other_ways;
mod poll;
mod processes;
mod sandboxes;
mod sets;
mod settings;
mod strange;
mod successors;
mod threads;
mod unusual;
mod wakes;

use crate::actor::Actor;

pub struct Scenario {
    pub name: &'static str,
    pub run: fn(&Actor),
    pub settings: Settings,
}

/// In which settings a scenario runs.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Settings {
    /// On every carrier, over every family, with the library at both ends and at one; and with calls that do
    /// not block on a ring.
    All,
    /// On a ring over IPv4 only, with the library at both ends: it plays the rest of the stream's life by itself.
    Ring,
    /// As `Ring`, and over IPv6, and with the library at one end: it is long.
    Rings,
}

/// A theme's table of contents.
macro_rules! scenarios {
    ($settings:expr; $($name:ident),* $(,)?) => {
        &[$(crate::scenarios::Scenario {
            name: stringify!($name),
            run: $name,
            settings: $settings,
        }),*]
    };
}
use scenarios;

pub fn all() -> impl Iterator<Item = &'static Scenario> {
    [
        basic::ALL,
        carriers::ALL,
        ends::ALL,
        order::ALL,
        poll::ALL,
        epoll::ALL,
        heirs::ALL,
        held::ALL,
        histories::ALL,
        io_uring::ALL,
        sandboxes::ALL,
        sets::ALL,
        settings::ALL,
        left_bytes::ALL,
        other_ways::ALL,
        strange::ALL,
        successors::ALL,
        processes::ALL,
        descriptors::ALL,
        options::ALL,
        options::LONG,
        threads::ALL,
        threads::LONG,
        unusual::ALL,
        wakes::ALL,
    ]
    .into_iter()
    .flatten()
}

/// Scenarios with both ends of a stream on one side: they upgrade with one side accelerated.
pub fn pairs_with_itself(name: &str) -> bool {
    ["one_process", "itself"].iter().any(|text| name.contains(text))
}

/// Scenarios that wait in calls on a stream, which say EAGAIN by chance where nothing blocks.
pub fn waits_in_calls(name: &str) -> bool {
    WAIT_IN_CALLS.contains(&name)
}

const WAIT_IN_CALLS: &[&str] = &[
    "a_blocking_reader_hears_of_each_close_behind_much",
    "a_child_goes_on_when_its_parent_is_killed_with_bytes_both_ways",
    "a_child_of_vfork_makes_the_stream_its_standard_input",
    "a_child_with_the_same_table_uses_the_stream",
    "a_childs_bytes_come_behind_those_of_a_parent_that_ends",
    "a_childs_bytes_come_behind_those_of_a_parent_that_has_closed",
    "a_childs_bytes_come_behind_those_that_fill_its_parents_buffer",
    "a_handler_may_send_on_the_stream_that_it_interrupts",
    "a_killed_writer_in_full_flight_delivers_a_prefix",
    "a_large_file_transfer_through_stdio_is_whole",
    "a_peer_that_answers_late_wakes_the_right_thread",
    "a_read_goes_on_when_its_number_is_closed_as_its_peer_dies",
    "a_read_goes_on_when_its_number_is_closed_as_the_stream_leaves",
    "a_registration_outlives_its_number_while_a_thread_reads_by_it",
    "a_send_goes_on_when_its_number_is_closed_as_the_stream_leaves",
    "a_sendfile_is_told_of_a_reset",
    "a_sendfile_that_may_wait_sends_all",
    "a_sendfile_that_sleeps_does_not_notice_o_nonblock",
    "a_set_user_id_program_echoes",
    "a_shell_in_words_reads_the_stream",
    "a_shell_of_popen_writes_to_the_stream",
    "a_shell_reads_lines_from_the_stream",
    "a_shell_spawned_with_a_descriptor_of_it_inherits_the_stream",
    "a_spawned_program_gets_a_copy_and_the_rest_is_closed",
    "a_spawned_program_opens_over_a_stream",
    "a_stream_passed_to_a_program_goes_on",
    "a_stream_passed_to_a_program_without_the_library_goes_on",
    "a_thread_that_may_be_cancelled_anywhere_is_cancelled_asleep",
    "a_time_out_set_while_a_write_sleeps_is_of_later_calls",
    "cat_echoes_as_standard_input_and_output",
    "cat_spawned_with_a_descriptor_of_it_echoes",
    "cat_spawned_with_file_actions_echoes",
    "cat_started_by_vfork_reads_what_was_not_read",
    "every_call_has_room_on_the_smallest_stack",
    "every_thread_that_reads_or_polls_is_told_of_the_end",
    "exec_of_a_program_without_the_library_goes_on",
    "exec_of_a_static_program_goes_on",
    "exec_of_an_accelerated_program_goes_on",
    "one_write_larger_than_any_buffer_completes",
    "options_set_by_a_child_hold_for_its_parent",
    "parent_and_child_take_turns_reading",
    "ping_pong_goes_on_for_long",
    "receive_time_out_ends_a_read",
    "receive_time_out_leaves_what_waitall_has",
    "shells_started_by_lists_answer_on_the_stream",
    "shells_started_by_rarer_functions_answer_on_the_stream",
    "shutdown_by_another_thread_ends_a_blocked_write",
    "shutdown_by_another_thread_ends_a_read_that_is_about_to_sleep",
    "streams_handed_from_thread_to_thread_stay_in_order",
    "threads_that_read_from_one_stream_get_every_byte_once",
    "threads_that_share_an_epoll_set_serve_every_stream",
    "threads_that_write_to_one_stream_keep_their_messages_whole",
    "two_files_on_one_stream_read_and_write",
    "two_reads_go_on_when_their_number_is_closed_as_the_stream_leaves",
    "unread_bytes_survive_exec",
    "waitall_waits_for_all",
];
