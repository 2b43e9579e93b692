//! What every store promises, in sentences, for each store.

#[path = "../common/mod.rs"]
mod common;
mod hosts;
mod journal;
mod listing;
mod queue;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use common::*;
use taskrun::event::Event;
use taskrun::list::{Cursor, ListFilter, Scope};
use taskrun::machine;
use taskrun::ports::store::{Append, Appended, Claim, Created};
use taskrun::run::{Run, RunSpec};
use taskrun::status::{BlockedOn, Status};
use taskrun::time::Timestamp;

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
                super::$topic::$name(&super::Fixture::sqlite()).await;
            })+)+
        }
    };
}

promises!(
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
    an_append_at_another_end_is_told_where_the_journal_ends,
    an_append_under_another_epoch_is_fenced,
    an_append_to_an_unknown_run_is_missing,
    a_refused_append_changes_nothing,
    an_append_without_events_is_refused_like_any_other,
    all_kinds_of_states_read_back_as_they_were_written,
    a_journal_is_read_in_pages;
    queue:
    claims_take_the_highest_priority_and_then_the_oldest,
    a_claim_records_what_the_state_machine_decides,
    claims_take_only_runs_of_their_policy,
    a_run_is_given_to_one_of_many_claimers,
    a_run_that_was_cancelled_in_the_queue_is_not_claimed,
    a_waiter_wakes_when_its_run_moves,
    a_waiter_for_the_past_does_not_wait,
    work_wakes_when_a_run_is_queued;
    listing:
    lists_begin_with_the_run_that_changed_last,
    runs_of_one_millisecond_are_listed_by_id,
    filters_and_scopes_admit_what_they_say,
    pages_join_without_gaps_while_runs_change,
    a_page_that_is_just_full_has_no_next;
    hosts:
    a_host_retires_only_without_runs_and_queued_work,
    hosts_are_listed_from_registration_to_retirement,
    runs_of_dead_hosts_are_orphans,
    runs_that_need_no_host_are_no_orphans;
);

async fn journal_is(store: &dyn Both, run: &Run) {
    let events = store.read(run.id(), 0, 1_000).await.expect("reads");
    assert_eq!(machine::fold(&events).as_ref(), Ok(run));
    assert_eq!(store.get(run.id()).await.expect("gets").as_ref(), Some(run));
}

async fn append(store: &dyn Both, append: Append) -> Run {
    let run = append.run.clone();
    assert_eq!(store.append(append).await.expect("appends"), Appended::Done);
    run
}

async fn claim_one(store: &dyn Both, host: &str) -> Run {
    let mut runs = store.claim(wish(host, 1, 2_000)).await.expect("claims");
    runs.pop().expect("a queued run")
}
