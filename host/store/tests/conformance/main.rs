//! The promises of every store, in sentences, for each store.

mod admission;
mod artifacts;
mod attached;
mod batches;
#[path = "../common/mod.rs"]
mod common;
mod consents;
mod continuations;
mod dispatches;
mod facts;
mod hosts;
mod journal;
mod listing;
mod names;
mod nudges;
mod outbox;
mod policies;
mod queue;
mod removal;
mod reuse;
mod sessions;
mod trees;
mod waits;
mod watches;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use common::*;
use taskrun_journal::ending::Ending;
use taskrun_journal::event::{Event, EventRecord};
use taskrun_journal::hold::{Wait, WaitMode};
use taskrun_journal::list::{Cursor, Head, ListFilter, Scope, TreeQuery};
use taskrun_journal::machine;
use taskrun_journal::narrowing::{Ancestor, Narrowing};
use taskrun_journal::pin::{Pins, Ready};
use taskrun_journal::run::Run;
use taskrun_journal::spec::{RunSpec, TreeBounds};
use taskrun_journal::status::{Status, StopReason};
use taskrun_journal::store::{
    Admission, AdmissionBound, Append, AppendOutcome, BatchOutcome, Claim, CreateOutcome, Host,
    LEASE, NewRun, PAGE_BYTES_MAX, PolicyRevision, PolicyText, Prospect, Removal, RemovalOutcome,
    RunWatch, Session, SessionEvent, SessionKey, SessionPage, Stay, TaskKey,
};
use taskrun_journal::time::Timestamp;
use taskrun_store::StoreThreads;

/// One test per store for each sentence.
macro_rules! promises {
    ($($topic:ident: $($name:ident),+;)+) => {
        mod memory {
            $($(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $name() {
                super::$topic::$name(&super::Fixture::memory()).await;
            })+)+
        }
        mod sqlite {
            $($(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $name() {
                super::$topic::$name(&super::Fixture::sqlite(super::StoreThreads::Own)).await;
            })+)+
        }
        mod sqlite_of_callers {
            $($(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $name() {
                let fixture = super::Fixture::sqlite(super::StoreThreads::Callers);
                super::$topic::$name(&fixture).await;
            })+)+
        }
    };
}

promises!(
    policies:
    of_each_file_the_text_that_was_applied_last_is_in_force,
    a_text_that_is_in_force_is_not_applied_again,
    a_text_that_was_read_earlier_replaces_none_that_was_read_later,
    texts_that_are_applied_at_once_have_numbers_of_their_own;
    consents:
    a_consent_is_found_by_what_it_is_about_and_by_nothing_else,
    one_in_place_of_another_revokes_that_and_names_it,
    a_revoked_consent_is_found_no_more_and_stays_on_record,
    consents_are_seen_and_revoked_by_those_who_see_them,
    what_was_over_is_removed_by_its_age_and_the_rest_of_a_session_with_it,
    an_owner_has_no_more_consents_than_are_allowed,
    an_empty_name_of_a_session_or_an_application_is_that_of_none,
    what_is_bound_to_a_session_is_over_with_it;
    nudges:
    a_report_is_due_when_no_run_above_is_open,
    a_report_waits_for_who_is_above_a_run_that_was_removed,
    reports_are_due_to_an_agent,
    nobody_is_made_to_look_by_a_cancellation,
    nudges_that_come_of_nudges_come_to_an_end,
    a_nudge_is_kept_once_for_its_reports,
    a_nudge_that_is_told_and_fails_is_tried_again_after_a_pause,
    what_becomes_of_a_nudge_decides_who_looks_next,
    what_a_nudge_had_no_room_for_is_due_again,
    a_report_is_not_due_any_more_once_somebody_has_it,
    a_host_stays_while_one_of_its_agents_is_to_be_nudged,
    a_report_that_is_due_keeps_its_run;
    outbox:
    the_end_of_a_run_makes_its_report_in_the_order_of_the_ends,
    a_report_is_found_by_its_own_conversation_only,
    there_is_no_report_where_nobody_is_to_be_told,
    a_report_is_taken_once_all_or_nothing,
    what_was_waited_for_is_taken_where_it_is_pending,
    a_run_that_another_leaves_behind_counts_no_longer_and_is_delivered,
    reports_are_settled_as_their_taker_ends,
    one_who_ends_without_a_look_at_the_reports_gives_them_back,
    a_report_is_a_dead_letter_after_three_failures,
    a_report_that_is_blocked_is_a_dead_letter_of_that_reason,
    what_was_taken_or_delivered_is_not_changed_by_people,
    the_end_of_a_session_makes_dead_letters_of_its_own_reports,
    an_ended_session_is_no_conversation,
    a_report_keeps_its_run_while_it_is_taken_and_goes_with_it,
    a_pending_report_keeps_its_run_while_somebody_can_be_told;
    continuations:
    of_a_run_and_the_one_that_continues_it_the_last_end_is_told,
    what_was_told_stays_told_when_its_run_is_continued,
    what_a_run_was_told_by_the_end_of_a_round_is_told_to_nobody_else,
    what_ended_beneath_a_run_stays_for_the_one_that_continues_it,
    of_what_had_ended_when_a_run_was_continued_only_what_is_to_be_told_stays;
    dispatches:
    acceptance_and_end_of_a_run_make_its_dispatches,
    every_end_is_dispatched_once,
    a_dispatch_is_given_to_one_host,
    what_a_dead_host_took_is_due_at_once,
    a_failed_attempt_is_made_again_until_it_is_a_dead_letter,
    a_clock_that_was_set_back_makes_no_pause_longer,
    a_host_stays_for_dispatches_that_are_due_soon,
    a_run_stays_until_its_subscribers_were_told,
    what_is_to_be_handed_over_is_forgotten_for_one_session,
    whoever_waits_for_dispatches_wakes_when_one_is_made;
    journal:
    a_new_run_is_there_with_its_journal,
    an_unknown_run_has_no_record_and_no_journal,
    an_id_is_given_once,
    a_repeated_request_gets_the_run_of_the_first,
    a_key_with_another_request_is_taken,
    a_key_counts_in_its_tenant_only,
    an_append_replaces_the_record_and_extends_the_journal,
    the_same_append_again_is_done,
    the_same_append_is_done_even_after_others_wrote,
    other_events_under_known_ids_are_a_conflict,
    an_append_at_another_end_is_told_where_the_journal_ends,
    an_append_under_another_epoch_is_fenced,
    an_append_to_an_unknown_run_is_missing,
    a_refused_append_changes_nothing,
    an_append_without_events_is_refused_like_any_other,
    all_kinds_of_states_read_back_as_they_were_written,
    a_journal_is_read_in_pages,
    a_page_of_events_is_bounded_in_bytes;
    queue:
    claims_take_the_highest_priority_and_then_the_oldest,
    a_run_that_never_began_is_taken_first_where_it_is_the_turn_of_those,
    a_claim_records_what_the_state_machine_decides,
    a_claim_is_no_earlier_than_what_came_before_it,
    a_claim_takes_only_what_is_ready_in_the_order_of_the_queue,
    a_run_that_is_kept_with_a_claim_is_taken_at_once,
    a_claim_that_comes_with_a_run_takes_what_comes_first,
    with_a_run_that_is_refused_nothing_is_taken,
    a_run_is_taken_where_all_above_it_have_their_pins,
    a_run_that_was_given_another_pin_is_taken_by_whoever_has_that,
    a_run_with_another_pin_makes_room_for_the_next_of_its_tree,
    of_some_agents_only_runs_are_taken_that_were_never_executed,
    wanted_names_each_pin_once_best_first,
    a_run_is_given_to_one_of_many_claimers,
    a_run_that_was_canceled_in_the_queue_is_not_claimed,
    work_wakes_when_a_run_is_queued,
    what_resumes_is_taken_before_what_never_began,
    a_run_is_not_taken_before_its_time,
    a_run_that_waits_for_a_time_is_taken_from_then_on,
    a_time_has_not_come_for_a_host_whose_clock_is_behind,
    a_paused_run_is_passed_over_and_keeps_its_place,
    whatever_is_wanted_can_be_claimed,
    runs_that_resume_are_taken_with_their_pins_only,
    work_is_not_waited_for_beyond_the_time_of_a_run;
    listing:
    lists_begin_with_the_run_that_changed_last,
    runs_of_one_millisecond_are_listed_by_id,
    filters_and_scopes_admit_what_they_say,
    runs_are_listed_by_the_reason_for_which_they_ended,
    pages_join_without_gaps_while_runs_change,
    a_tree_is_read_whole_while_all_of_its_runs_change,
    a_tree_is_that_of_its_first_run_and_tenant,
    a_page_that_is_just_full_has_no_next,
    ends_come_in_the_order_of_their_durability_whatever_the_clock_said;
    hosts:
    a_host_retires_beside_what_it_cannot_execute,
    hosts_are_listed_from_registration_to_retirement,
    a_host_that_leaves_keeps_its_runs_and_is_not_listed,
    a_host_that_is_abandoned_is_dead_at_once,
    runs_of_dead_hosts_are_orphans,
    runs_that_need_no_host_are_no_orphans,
    a_host_stays_for_work_that_cannot_be_had_yet,
    a_host_stays_for_a_time_only_if_it_comes_soon,
    who_looks_is_told_whether_a_claim_finds_something,
    a_host_need_not_stay_for_runs_that_wait_for_somebody,
    the_runs_of_a_host_are_listed_by_id,
    a_host_that_lost_a_run_writes_no_more,
    the_silence_of_a_host_is_known_while_it_is_registered;
    admission:
    a_key_for_a_result_counts_from_completion_until_it_is_too_old,
    runs_that_are_kept_together_are_kept_all_or_none,
    a_completed_task_is_used_again_however_it_was_asked_for,
    a_refused_run_gets_no_key,
    an_ended_session_takes_no_run,
    a_run_is_started_only_by_one_that_goes_on,
    the_queue_of_a_tenant_is_bounded,
    a_tree_is_bounded_with_those_that_ended,
    a_run_that_may_not_wait_is_kept_only_if_nothing_is_before_it,
    a_run_that_may_not_wait_needs_a_slot_of_its_tree,
    a_run_that_may_not_wait_needs_a_slot_of_a_living_host,
    the_first_obstacle_is_told;
    trees:
    a_finalizer_needs_no_slot_of_its_tree_nor_an_ordinary_one,
    finalizers_of_one_owner_leave_room_for_those_of_another,
    no_tree_gets_more_slots_than_allowed,
    a_full_tree_is_passed_over,
    a_tree_with_a_number_of_slots_of_its_own_has_these_on_every_host,
    a_free_slot_goes_to_the_best_of_the_tree,
    whoever_waits_in_a_full_tree_may_be_canceled,
    a_long_tree_is_taken_in_order_whatever_comes_between,
    work_wakes_when_a_tree_has_a_slot_again,
    serial_runs_begin_one_after_another,
    serial_runs_wait_for_nobody_else,
    a_serial_run_waits_for_one_with_another_pin_too;
    watches:
    a_waiter_wakes_when_its_run_moves,
    whoever_follows_a_run_is_told_of_what_its_journal_says,
    a_wait_misses_nothing_that_came_after_its_registration,
    a_run_may_be_watched_before_it_is_there,
    the_end_of_a_run_that_is_known_to_be_open_is_told,
    whoever_waits_for_an_end_gets_the_run_as_it_ended,
    an_end_between_the_look_and_the_wait_is_not_missed,
    the_end_of_a_run_that_ends_with_another_one_is_waited_for,
    whoever_waits_for_a_run_is_given_no_other_one_with_its_id;
    waits:
    a_run_that_waits_for_all_resumes_when_the_last_has_ended,
    a_run_that_waits_for_any_resumes_when_the_first_has_ended,
    a_wait_that_is_over_already_is_none,
    a_wait_ends_with_its_time_in_any_case,
    every_way_to_end_counts,
    whoever_left_waits_for_nothing,
    a_circle_of_waits_is_refused,
    a_wait_that_is_over_closes_no_circle,
    a_refused_append_begins_no_wait,
    the_same_wait_again_is_done,
    work_wakes_when_a_wait_is_over;
    facts:
    a_fact_is_there_as_it_was_put,
    a_fact_takes_the_place_of_the_one_with_its_key,
    a_fact_is_forgotten,
    facts_are_listed_by_key_in_pages,
    a_search_finds_facts_by_words_of_key_text_and_labels,
    the_more_words_are_in_a_fact_the_earlier_it_comes,
    no_query_is_more_than_words,
    nobody_finds_the_facts_of_others,
    a_place_takes_so_many_facts,
    a_change_of_a_run_is_made_once_as_long_as_that_is_known,
    a_session_is_forgotten_for_one_owner_or_for_all;
    names:
    a_name_belongs_to_one_open_run_of_its_owner_and_session,
    children_have_their_names_among_the_children_of_their_parent,
    a_name_is_free_again_with_the_end_of_its_run,
    a_repeated_request_gets_its_run_though_that_has_the_name,
    runs_are_listed_by_name_in_any_status,
    of_an_agent_one_autonomous_run_of_a_conversation_is_open;
    attached:
    what_is_attached_is_canceled_when_its_parent_ends,
    every_end_of_a_parent_ends_what_is_attached,
    a_parent_that_is_on_its_way_out_has_not_ended,
    what_ends_with_its_parent_ends_what_is_attached_to_it,
    what_has_its_own_end_keeps_it,
    whoever_waits_hears_of_runs_that_ended_with_their_parents;
    artifacts:
    an_artifact_is_kept_with_the_events_that_name_it,
    the_artifacts_of_a_request_are_kept_with_its_run,
    an_artifact_of_any_size_reads_back,
    an_artifact_is_read_only_through_a_run_that_has_it,
    a_refused_append_keeps_no_artifact,
    equal_artifacts_stay_until_the_last_of_their_runs_goes,
    the_same_append_again_refers_to_its_artifact_once;
    sessions:
    a_session_is_opened_once,
    a_session_ends_once_and_for_good,
    a_session_that_was_never_mentioned_can_end,
    a_session_is_one_of_its_owner_and_application,
    serial_runs_of_one_owner_wait_for_none_of_another,
    a_session_tells_of_its_owners_runs_and_of_what_is_beneath_them,
    runs_go_on_in_a_session_that_ended,
    the_events_of_a_session_are_read_in_the_order_of_their_durability,
    the_events_of_a_session_are_read_in_pages,
    a_page_leads_beyond_what_its_reader_does_not_see,
    a_waiter_wakes_when_its_session_moves,
    a_waiter_for_the_past_of_a_session_does_not_wait;
    reuse:
    nothing_continues_a_run_because_it_continued_another_of_its_id,
    a_tree_has_the_slots_of_its_own_root;
    removal:
    pins_are_those_of_open_runs_and_of_those_that_ended_since,
    a_removed_run_leaves_nothing_behind,
    only_what_ended_before_the_time_is_removed,
    the_oldest_are_removed_first,
    removal_is_narrowed_to_what_somebody_sees,
    what_is_beneath_a_run_of_a_session_goes_with_it,
    a_dry_run_removes_nothing_and_says_what_would_be,
    a_run_above_an_open_one_stays,
    what_is_beneath_an_open_run_stays_until_that_leaves_it_behind,
    removed_runs_count_no_more_in_their_tree,
    a_key_that_was_given_on_stays_when_its_first_run_goes,
    the_end_of_a_removed_run_still_counts,
    what_an_open_run_continues_stays;
    batches:
    an_entry_is_claimed_by_nobody,
    entries_are_found_in_groups_the_best_first,
    entries_are_found_by_the_name_of_their_agent,
    a_batch_takes_its_entries_in_one_step,
    a_beat_has_one_open_batch,
    a_tick_makes_one_batch,
    a_batch_of_an_entry_that_changed_is_refused_as_a_whole,
    a_batch_with_the_id_of_another_run_is_refused,
    an_entry_is_wanted_when_its_batch_has_ended,
    an_entry_that_ended_first_is_wanted_no_more,
    a_batch_that_waits_for_its_entry_would_wait_for_itself,
    a_host_stays_while_entries_wait,
    a_batch_stays_while_one_of_its_entries_is_open,
    a_batch_is_kept_in_a_session_that_ended,
    a_batch_wakes_whoever_waits_for_its_entries_or_for_work;
);

async fn journal_is(store: &dyn Both, run: &Run) {
    let events = store.read(run.id(), 0, 1_000).await.expect("reads");
    assert_eq!(machine::fold(&events).as_ref(), Ok(run));
    assert_eq!(store.get(run.id()).await.expect("gets").as_ref(), Some(run));
}

async fn claim_one(store: &dyn Both, host: &str) -> Run {
    let mut runs = store.claim(wish(host, 1, 2_000)).await.expect("claims");
    runs.pop().expect("a queued run")
}

fn resumed(host: &str, epoch: u64) -> Event {
    Event::Resumed { host: host_id(host), epoch }
}

/// A host gives a run back that is wanted from a time on.
fn lost(host: &str, epoch: u64, not_before: Timestamp) -> Event {
    Event::Lost { host: host_id(host), epoch, not_before, crashed: false, ran_ms: 0 }
}
