//! Thirty turns of fifty thousand tokens, with the usage that a provider reports where it finds the
//! conversation in its cache: the real guest `chat`, the real protocols, and prices of lists.

use std::sync::Arc;

use serde_json::{Value, json};
use taskrun::spawn::SpawnRequest;
use taskrun_journal::message::Usage;
use taskrun_journal::run::RunView;
use taskrun_journal::status::{Status, StopReason};
use taskrun_tests::provider::prefix::is_kept_by;
use taskrun_tests::provider::responses::Answer;
use taskrun_tests::provider::rules::Strictness;
use taskrun_tests::provider::{Provider, Reply};
use taskrun_tests::{Builder, House, Storage};
use tokio::sync::Notify;

const TURNS: u64 = 30;
/// The turn whose answer comes when a message has been left in the inbox.
const HELD: usize = 10;
const INBOX: &str = "Mind the pears.";
const REMINDER: &str = "Say where you looked.";
/// The turn for which there is no room in the window, by what the provider counted in the one before:
/// half a window is left of the conversation.
const SHORTENED: u64 = 20;
/// Tokens of the window, and of half of it.
const WINDOW: u64 = 88_000;
/// Bytes of what a turn reads.
const FILE_BYTES: usize = 8_000;

/// The tokens that a provider reports of a turn.
#[derive(Clone, Copy)]
struct Report {
    /// Read, and neither found in the cache nor put there.
    fresh: u64,
    cached: u64,
    written: u64,
    completion: u64,
}

/// The report of a turn: of about fifty thousand tokens nearly all were read in the turn before, but
/// where the conversation is another one.
fn report(turn: u64) -> Report {
    let first = if turn < SHORTENED { 1 } else { SHORTENED };
    let written = |turn: u64| if turn == first { WINDOW / 2 } else { 1_013 + 7 * turn };
    let cached = (first..turn).map(written).sum();
    Report { fresh: 23 + turn % 3, cached, written: written(turn), completion: 211 + turn }
}

/// A provider with the prices of its list, in hundredths of a millionth of a dollar for a token.
struct List {
    wire: &'static str,
    settings: &'static str,
    strictness: Strictness,
    prompt: u64,
    completion: u64,
    cached: u64,
    written: u64,
    reply: fn(u64, Report) -> Reply,
}

/// Claude Sonnet 4.5, <https://platform.claude.com/docs/en/about-claude/pricing>.
const ANTHROPIC: List = List {
    wire: "anthropic",
    settings: "prices = { prompt = 3, completion = 15, cached = 0.3, cache_write = 3.75 }",
    strictness: Strictness::ClaudeBudget,
    prompt: 300,
    completion: 1_500,
    cached: 30,
    written: 375,
    reply: anthropic,
};

/// GPT-5.4 reads what it puts into its cache at the price of all it reads,
/// <https://platform.openai.com/docs/pricing>.
const OPENAI: List = List {
    wire: "openai",
    settings: "prices = { prompt = 2.5, completion = 15, cached = 0.25 }",
    strictness: Strictness::OpenAi,
    prompt: 250,
    completion: 1_500,
    cached: 25,
    written: 250,
    reply: openai,
};

impl List {
    /// The price of some turns, in hundredths of a millionth of a dollar.
    fn of(&self, turns: std::ops::RangeInclusive<u64>) -> u64 {
        turns
            .map(report)
            .map(|report| {
                report.fresh * self.prompt
                    + report.cached * self.cached
                    + report.written * self.written
                    + report.completion * self.completion
            })
            .sum()
    }
}

fn file(turn: u64) -> String {
    format!("docs/{turn}.md")
}

fn anthropic(turn: u64, report: Report) -> Reply {
    let usage = json!({ "input_tokens": report.fresh, "cache_read_input_tokens": report.cached,
        "cache_creation_input_tokens": report.written, "output_tokens": 1 });
    let block = match turn {
        TURNS => json!({ "type": "text", "text": "In the cellar." }),
        _ => json!({ "type": "tool_use", "id": format!("t{turn}"), "name": "workspace__read",
            "input": { "path": file(turn) } }),
    };
    let reason = if turn == TURNS { "end_turn" } else { "tool_use" };
    Reply::events(&[
        json!({ "type": "message_start", "message": { "model": "m-1", "usage": usage } }),
        json!({ "type": "content_block_start", "index": 0, "content_block": block }),
        json!({ "type": "content_block_stop", "index": 0 }),
        json!({ "type": "message_delta", "delta": { "stop_reason": reason },
            "usage": { "output_tokens": report.completion } }),
        json!({ "type": "message_stop" }),
    ])
}

fn openai(turn: u64, report: Report) -> Reply {
    let input = report.fresh + report.cached + report.written;
    let usage = json!({
        "input_tokens": input,
        "input_tokens_details": { "cached_tokens": report.cached },
        "output_tokens": report.completion,
        "output_tokens_details": { "reasoning_tokens": 100 },
        "total_tokens": input + report.completion,
    });
    let answer = Answer::new().usage(usage).reasoning(&format!("rs_{turn}"), &[]);
    match turn {
        TURNS => answer.message("msg", Some("final_answer"), "In the cellar.").completed(),
        _ => {
            let arguments = json!({ "path": file(turn) }).to_string();
            let (item, call) = (format!("fc_{turn}"), format!("call_{turn}"));
            answer.call(&item, &call, "workspace__read", &arguments).completed()
        }
    }
}

async fn house(provider: &Provider, list: &List, budget: &str) -> House {
    let (url, wire, settings) = (provider.base_url(), list.wire, list.settings);
    let policy = format!(
        r#"
[tool.workspace]
component = "components/workspace.wasm"

[model.default]
provider = "{wire}"
model = "m-1"
base_url = "{url}"
context_tokens = {WINDOW}
{settings}

[agent.talker]
component = "components/chat.wasm"
model = "default"
tools = ["workspace/read"]
allow = ["workspace-read: **"]
deny = ["workspace-write: **"]
retry = {{ attempts = 1 }}
budget = {{ turns = 40, {budget} }}
"#
    );
    let builder = Builder::new(&policy).storage(Storage::Sqlite);
    let words = "Apples are kept in the cellar. ".repeat(FILE_BYTES / 31);
    let with = |builder: Builder, turn| builder.file(&file(turn), &format!("{turn}: {words}"));
    (1..=TURNS).fold(builder, with).open().await
}

async fn run(house: &House) -> String {
    let labels = [("reminder".to_owned(), REMINDER.to_owned())].into();
    let request = SpawnRequest { labels, ..house.request("talker", "Where are the apples?") };
    house.spawn(&request).await
}

#[tokio::test]
async fn thirty_turns_cost_what_the_list_says_and_each_request_begins_with_the_one_before() {
    for list in [ANTHROPIC, OPENAI] {
        let gate = Arc::new(Notify::new());
        let reply = |turn| {
            let reply = (list.reply)(turn, report(turn));
            if turn == HELD as u64 { reply.held(&gate) } else { reply }
        };
        let provider = Provider::start_as(list.strictness, (1..=TURNS).map(reply)).await;
        let house = house(&provider, &list, "usd = 5").await;
        let id = run(&house).await;
        provider.has_heard(HELD).await;
        house.client().inject(&id, INBOX).await.expect("can be told");
        gate.notify_one();
        let run = house.end(&id).await;
        let view = RunView::from(&run);
        let found = (view.status, view.result.as_deref());
        assert_eq!(found, (Status::Completed, Some("In the cellar.")), "{:?}", view.error);

        let reports = || (1..=TURNS).map(report);
        let sum = |of: fn(Report) -> u64| reports().map(of).sum::<u64>();
        let Usage { prompt_tokens, cached_tokens, cost_microusd, .. } = run.state.progress.usage();
        assert_eq!(prompt_tokens, sum(|report| report.fresh + report.cached + report.written));
        assert_eq!(cached_tokens, sum(|report| report.cached));
        assert_eq!(cost_microusd, list.of(1..=TURNS).div_ceil(100), "{}", list.wire);

        let asked = provider.asked();
        assert_eq!(asked.len(), TURNS as usize, "nothing was asked twice");
        let breaks: Vec<usize> =
            (1..asked.len()).filter(|turn| !is_kept_by(&asked[turn - 1], &asked[*turn])).collect();
        let omits = |body: &Value| body.to_string().contains("workflow_budget");
        let shortened = asked.iter().position(|asked| omits(&asked.body)).expect("no room");
        assert_eq!(shortened as u64 + 1, SHORTENED, "{}", list.wire);
        assert_eq!(breaks, [shortened], "{}: only there", list.wire);
        for (turn, asked) in asked.iter().enumerate() {
            let text = asked.body.to_string();
            assert_eq!(text.matches(REMINDER).count(), usize::from(turn > 0), "{turn}");
            assert_eq!(text.matches(INBOX).count(), usize::from(turn >= HELD), "{turn}");
        }
    }
}

#[tokio::test]
async fn a_budget_ends_such_a_run_at_the_turn_that_spends_it() {
    for list in [ANTHROPIC, OPENAI] {
        // A millionth beside the cost of twelve turns pays for no answer to another question.
        let cost_of = |turns| list.of(1..=turns).div_ceil(100);
        let spent = cost_of(12);
        for (cap, turns) in [(spent, 12), (spent + 1, 12), (cost_of(13), 13)] {
            let reply = |turn| (list.reply)(turn, report(turn));
            let provider = Provider::start_as(list.strictness, (1..=TURNS).map(reply)).await;
            let usd = format!("usd = {}.{:06}", cap / 1_000_000, cap % 1_000_000);
            let house = house(&provider, &list, &usd).await;
            let run = house.end(&run(&house).await).await;
            let view = RunView::from(&run);
            assert_eq!(view.stop_reason, Some(StopReason::MaxCost), "{:?}", view.error);
            assert_eq!(provider.asked().len() as u64, turns, "{} {usd}", list.wire);
            assert_eq!(view.cost_microusd, Some(cost_of(turns)), "{} {usd}", list.wire);
        }
    }
}
