//! The tests by kind of program.

mod builds;
mod databases;
mod languages;
mod measuring;
mod web;

use crate::stage::Stage;
use crate::Outcome;

pub type Test = (&'static str, fn(&Stage) -> Outcome);

macro_rules! tests {
    ($($module:ident::$name:ident),* $(,)?) => {
        &[$((stringify!($name), $module::$name as fn(&Stage) -> Outcome)),*]
    };
}

pub const ALL: &[Test] = tests![
    databases::redis_keeps_its_content,
    databases::redis_serves_its_benchmark,
    databases::redis_saves_in_the_background_under_load,
    databases::memcached_keeps_its_content,
    databases::postgresql_answers_as_over_its_unix_socket,
    databases::postgresql_serves_its_benchmark,
    web::nginx_serves_files_from_two_workers,
    web::curl_downloads_64_megabytes,
    web::nginx_proxies_to_another,
    web::nginx_reloads_under_load,
    web::haproxy_balances_before_nginx,
    measuring::iperf3_carries_both_ways,
    measuring::sockperf_plays_ping_pong,
    measuring::netpipe_finds_every_byte_intact,
    measuring::socat_forks_for_each_client,
    languages::python_asyncio_echoes,
    languages::python_threads_echo,
    languages::python_forks_echo,
    languages::a_server_forks_under_two_thousand_streams,
    languages::streams_that_a_full_link_declines_come_to_another,
    languages::streams_that_are_accepted_late_share_a_link,
    languages::a_stream_that_rests_gives_its_memory_back,
    languages::python_serves_files_to_curl,
    languages::node_serves_http,
    languages::java_selects_over_many_channels,
    builds::programs_with_address_sanitizer_echo,
    builds::programs_with_a_second_library_echo,
    builds::programs_with_much_storage_for_each_thread_echo,
    builds::programs_with_jemalloc_preloaded_echo,
    builds::programs_with_tcmalloc_preloaded_echo,
    builds::programs_of_32_and_64_bits_echo,
    builds::programs_of_both_word_sizes_wait_in_time,
    builds::a_32_bit_program_has_more_streams_than_rings,
    builds::shells_start_programs_of_both_word_sizes,
    builds::modules_bound_to_libc_carry,
    builds::a_ring_that_liburing_makes_late_carries,
    builds::a_ring_of_liburings_for_files_leaves_streams_on_rings,
    builds::sends_that_may_not_wait_have_as_much_room_as_tcps,
    builds::a_handler_that_leaves_a_wait_by_a_jump_takes_no_event_along,
];
