//! Budgets in dollars, what is kept of a budget, and prices.

use taskrun_journal::money::Price;

use super::super::Reserve;
use super::{agent, parse, with_agent};

#[test]
fn a_budget_in_dollars_is_read_to_the_millionth() {
    for (written, amount) in [("1.50", 1_500_000), ("2", 2_000_000), ("0.000001", 1)] {
        let budget = agent(&format!("budget = {{ usd = {written} }}")).budget;
        assert_eq!(budget.cost_microusd, Some(amount), "{written}");
    }
    assert_eq!(agent("").budget.cost_microusd, None);
}

#[test]
fn a_reserve_is_a_part_of_what_it_is_kept_of() {
    let text = "budget = { tokens = 100, usd = 1.0, \
                reserve = { turns = 1, tokens = 10, usd = 0.25 } }";
    let kept = Reserve { turns: 1, tokens: 10, cost_microusd: 250_000 };
    assert_eq!(agent(text).budget.reserve, kept);
    for wrong in [
        "{ tokens = 100, reserve = { tokens = 100 } }",
        "{ reserve = { tokens = 1 } }",
        "{ tokens = 100, reserve = { usd = 0.1 } }",
        "{ usd = 0.1, reserve = { usd = 0.2 } }",
        "{ turns = 1, reserve = { turns = 1 } }",
        "{ turns = 9, reserve = { turns = 2 } }",
        "{ usd = 0.1, reserve = { calls = 1 } }",
    ] {
        assert!(parse(&with_agent(&format!("budget = {wrong}"))).is_err(), "{wrong}");
    }
}

#[test]
fn a_model_has_both_prices_or_none() {
    let model = |body: &str| {
        let policy = parse(&format!("[model.m]\nprovider = \"echo\"\n{body}\n"));
        policy.map(|policy| policy.models["m"].price)
    };
    let price = Price::new(150_000, 600_000);
    let read = model("prices = { prompt = 0.15, completion = 0.60 }").expect("right");
    assert_eq!(read, Some(price));
    assert_eq!(model("prices = { prompt = 0, completion = 0 }").ok(), Some(Some(Price::default())));
    assert_eq!(model("").ok(), Some(None));
    let cache = model("prices = { prompt = 0.15, completion = 0.60, cached = 0.015 }");
    assert_eq!(cache.ok(), Some(Some(Price { cached: 15_000, ..price })));
    let cache = model("prices = { prompt = 0.15, completion = 0.60, cache_write = 0.1875 }");
    assert_eq!(cache.ok(), Some(Some(Price { cache_write: 187_500, ..price })));
    for wrong in [
        "{ prompt = 0.15 }",
        "{ completion = 1 }",
        "{ prompt = -1, completion = 1 }",
        "{ prompt = 1e3, completion = 1 }",
        "{ prompt = \"1\", completion = 1 }",
        "{ prompt = 1, completion = 1, cached = -1 }",
        "{ cached = 1, cache_write = 1 }",
        "{ prompt = 1, completion = 1, cache_read = 1 }",
    ] {
        assert!(model(&format!("prices = {wrong}")).is_err(), "{wrong}");
    }
}

#[test]
fn an_amount_that_is_none_is_refused_with_what_to_write() {
    for wrong in ["0", "0.0000001", "-1.0", "nan", "1000001", "\"1.50\"", "true"] {
        let refused = parse(&with_agent(&format!("budget = {{ usd = {wrong} }}")));
        let errors = refused.expect_err(wrong).to_string();
        assert!(errors.contains("1.50"), "{wrong}: {errors}");
    }
}
