//! The traces of a run, held against those of an undisturbed one.

use std::collections::BTreeMap;
use std::fs;

use serde_json::Value;

use super::model::ANSWERS;
use super::{Ground, ROUNDS};
use crate::round::Broken;

/// The parts of a run in which a disturbed one is no other than an undisturbed one.
const SAME: [&str; 7] =
    ["status", "stop_reason", "result", "detail", "rounds", "turns", "continues"];
/// The same of its progress.
const SAME_PROGRESS: [&str; 5] =
    ["tool_call_count", "prompt_tokens", "completion_tokens", "total_tokens", "cost_microusd"];

/// The hosts that a run lost.
#[derive(Default)]
pub(super) struct Kills {
    /// For each the number of requests that the model had heard of the run, and of its answers that were
    /// on record, once the host was dead.
    pub(super) seen: Vec<(usize, usize)>,
}

/// The events of a run, as far as they are held against its effects.
#[derive(Default)]
struct Account {
    rounds: Vec<u64>,
    /// For each call the times that it began.
    began: BTreeMap<String, usize>,
    /// For each call its results: true for a value.
    results: BTreeMap<String, Vec<bool>>,
    /// For each call the times that it was made again.
    repeated: BTreeMap<String, usize>,
    lost: usize,
    answered: usize,
    /// For each turn the times that its step was begun again.
    restarted: BTreeMap<u64, usize>,
    /// Steps that were begun again though no host was lost since the last that was.
    unlost: usize,
}

impl Account {
    fn of(events: &[Value]) -> Self {
        let (mut account, mut is_lost) = (Self::default(), false);
        for event in events {
            let call = |at: &Value| at["tool_call_id"].as_str().unwrap_or_default().to_owned();
            match event["kind"].as_str().unwrap_or_default() {
                "round_ended" => account.rounds.push(event["round"].as_u64().unwrap_or_default()),
                "lost" if event["crashed"] == true => {
                    account.lost += 1;
                    is_lost = true;
                }
                "host_answered" => account.answered += 1,
                "step_restarted" => {
                    let turn = event["turn"].as_u64().unwrap_or_default();
                    *account.restarted.entry(turn).or_default() += 1;
                    account.unlost += usize::from(!std::mem::take(&mut is_lost));
                }
                "tool_call_repeated" => *account.repeated.entry(call(event)).or_default() += 1,
                "tool_call_scheduled" => *account.began.entry(call(event)).or_default() += 1,
                "tool_result" => {
                    let is_value = event["output"]["outcome"]["value"].is_string();
                    account.results.entry(call(&event["output"])).or_default().push(is_value);
                }
                _ => {}
            }
        }
        account
    }

    /// The result of a call that began once and has one: true for a value.
    fn result(&self, call: &str) -> Option<bool> {
        match (self.began.get(call), self.results.get(call)) {
            (Some(1), Some(results)) if results.len() == 1 => Some(results[0]),
            _ => None,
        }
    }
}

/// The number of answers of models that the journal of a run has.
pub(super) fn answers(events: &[Value]) -> usize {
    Account::of(events).answered
}

impl Ground {
    /// The differences of a run from an undisturbed one, and of its effects from what its journal
    /// says.
    pub(super) fn check(
        &mut self,
        id: &str,
        undisturbed: &Value,
        kills: &Kills,
    ) -> Result<Vec<String>, Broken> {
        let mut wrong = Vec::new();
        let run = self.read(&["get", id])?;
        let both = [&run, undisturbed];
        let of_run = SAME.map(|key| (key, both.map(|run| run[key].clone())));
        let of_progress =
            SAME_PROGRESS.map(|key| (key, both.map(|run| run["progress"][key].clone())));
        for (key, [is, was]) in of_run.into_iter().chain(of_progress) {
            if is != was || (is.is_null() && key != "continues") {
                wrong.push(format!("{id}: {key} is {is}, and undisturbed {was}"));
            }
        }
        let account = Account::of(&self.events(id)?);
        if account.rounds != (1..=ROUNDS as u64).collect::<Vec<_>>() {
            wrong.push(format!("{id}: the rounds that ended are {:?}", account.rounds));
        }
        wrong.extend(
            self.check_answers(&account, kills).into_iter().map(|what| format!("{id}: {what}")),
        );
        wrong.extend(self.check_effects(id, &account)?);
        self.deaths += account.lost;
        self.repeated += account.repeated.values().sum::<usize>();
        self.asked_again += self.model.asked().len().saturating_sub(ANSWERS);
        self.restarted += account.restarted.values().sum::<usize>();
        Ok(wrong)
    }

    /// An answer is asked for once, and once more where a host died before it was on record; then its
    /// step is shown as begun again.
    fn check_answers(&self, account: &Account, kills: &Kills) -> Vec<String> {
        let (mut wrong, asked) = (Vec::new(), self.model.asked());
        let more = asked.len().checked_sub(ANSWERS);
        if more.is_none_or(|more| more > account.lost) {
            let count = asked.len();
            wrong.push(format!("{count} answers were asked for, with {} kills", account.lost));
        }
        if account.answered != ANSWERS || account.unlost > 0 {
            let Account { answered, unlost, .. } = account;
            wrong.push(format!("{answered} answers on record, {unlost} begun again for no loss"));
        }
        for place in 0..ANSWERS {
            // Each answer is the one of a turn.
            let turn = place as u64 + 1;
            let again = asked.iter().filter(|one| **one == place).count().saturating_sub(1);
            let shown = account.restarted.get(&turn).copied().unwrap_or_default();
            if again > shown {
                wrong.push(format!("turn {turn}: {again} asked for again, {shown} shown as that"));
            }
        }
        for (heard, known) in &kills.seen {
            // Answers come one after the other, so those on record are the first.
            let again: Vec<_> = asked.iter().skip(*heard).filter(|place| *place < known).collect();
            if !again.is_empty() {
                wrong.push(format!("asked for again, though on record: {again:?} of {known}"));
            }
        }
        wrong
    }

    /// The differences between the effects of the tools and the journal of a run.
    fn check_effects(&mut self, id: &str, account: &Account) -> Result<Vec<String>, Broken> {
        let mut wrong = Vec::new();
        let notes = fs::read_to_string(self.project.path().join("ledger.txt")).unwrap_or_default();
        let noted =
            |text: &str| notes.lines().filter(|line| line.ends_with(&format!(" {text}"))).count();
        let kept = self.kept()?;
        for round in 1..=ROUNDS {
            let text = |kind: &str| format!("{id}.{round}.{kind}");
            match (account.result(&format!("n{round}")), noted(&text("note"))) {
                (Some(true), 1) => {}
                // It may have been made; nobody knows.
                (Some(false), 0 | 1) => self.interrupted += 1,
                (result, times) => {
                    wrong.push(format!("{id}: round {round} noted {times} times, {result:?}"));
                }
            }
            // A person said whether it is made again.
            let call = format!("a{round}");
            let most = 1 + account.repeated.get(&call).copied().unwrap_or_default();
            match (account.result(&call), noted(&text("ask"))) {
                (Some(true), 1) => {}
                (Some(true), times) if (1..=most).contains(&times) => {}
                (Some(false), times) if times <= most => self.declined += 1,
                (result, times) => {
                    let what = format!("noted with consent {times} times of {most}, {result:?}");
                    wrong.push(format!("{id}: round {round} {what}"));
                }
            }
            let files = kept.iter().filter(|one| **one == text("put")).count();
            if (account.result(&format!("p{round}")), files) != (Some(true), 1) {
                wrong.push(format!("{id}: round {round} is kept in {files} files"));
            }
        }
        Ok(wrong)
    }

    /// The texts that were kept, one of each call.
    fn kept(&self) -> Result<Vec<String>, Broken> {
        let mut texts = Vec::new();
        for entry in fs::read_dir(self.project.path().join("put"))? {
            texts.push(fs::read_to_string(entry?.path())?);
        }
        Ok(texts)
    }
}
