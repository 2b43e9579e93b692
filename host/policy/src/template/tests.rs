//! Which template is chosen, and what becomes of it.

use super::*;

fn over(session: Option<&str>, labels: &[(&str, &str)], template: &str) -> PromptOverride {
    PromptOverride {
        session: session.map(str::to_owned),
        labels: labels.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect(),
        template: template.to_owned(),
    }
}

fn prompts(template: &str, overrides: Vec<PromptOverride>) -> Prompts {
    let prompt = Prompt { template: template.to_owned(), overrides };
    Prompts::new(BTreeMap::from([("p".to_owned(), prompt)]))
}

fn render(template: &str, data: &str) -> Result<String, PromptError> {
    let rendered = prompts(template, Vec::new()).render("p", data, "s", &Labels::new());
    rendered.map(|rendered| rendered.text)
}

#[test]
fn the_session_comes_before_labels_and_both_before_the_prompts_own_template() {
    let overrides = vec![
        over(None, &[("tier", "gold")], "labels"),
        over(Some("s1"), &[], "session"),
        over(Some("s2"), &[("tier", "gold")], "both"),
    ];
    let prompts = prompts("own", overrides);
    let gold = Labels::from([("tier".to_owned(), "gold".to_owned())]);
    let cases = [
        ("s1", &gold, "session", Some(OverrideReason::Session)),
        ("s2", &gold, "both", Some(OverrideReason::Session)),
        ("s3", &gold, "labels", Some(OverrideReason::Labels)),
        ("s1", &Labels::new(), "session", Some(OverrideReason::Session)),
        ("s2", &Labels::new(), "own", None),
        ("s3", &Labels::new(), "own", None),
    ];
    for (session, labels, text, chosen_by) in cases {
        let rendered = prompts.render("p", "{}", session, labels).expect("it renders");
        assert_eq!((rendered.text.as_str(), rendered.chosen_by), (text, chosen_by), "{session}");
        assert_eq!(rendered.digest, blake3::hash(text.as_bytes()).to_hex().to_string());
    }
}

#[test]
fn data_stands_where_the_template_names_it() {
    let template = "Hi {{ who.name }}.{% for item in list %}\n- {{ item|upper }}{% endfor %}";
    let data = r#"{"who": {"name": "<Ada>"}, "list": ["a", "b"]}"#;
    assert_eq!(render(template, data).expect("it renders"), "Hi <Ada>.\n- A\n- B");
    assert_eq!(render("{{ a|default('none') }}", "{}").expect("it renders"), "none");
}

#[test]
fn data_that_does_not_fit_is_told() {
    for (template, data, said) in [
        ("{{ absent }}", "{}", "undefined value"),
        ("{{ a.b.c }}", r#"{"a": {}}"#, "undefined value"),
        ("{% for x in a %}{% endfor %}", r#"{"a": 1}"#, "not iterable"),
        ("x", "[]", "not a JSON object"),
        ("x", "{", "not a JSON object"),
        ("x", &format!("{{\"a\": \"{}\"}}", "x".repeat(PROMPT_DATA_BYTES_MAX)), "more than"),
    ] {
        match render(template, data) {
            Err(PromptError::InvalidData(detail)) => assert!(detail.contains(said), "{detail}"),
            other => panic!("{template}: {other:?}"),
        }
    }
    let none = prompts("x", Vec::new()).render("q", "{}", "s", &Labels::new());
    assert_eq!(none, Err(PromptError::Unknown("q".to_owned())));
}

#[test]
fn a_rendering_is_bounded_in_steps_and_bytes() {
    let items: Vec<u32> = (0..10_000).collect();
    let data = serde_json::json!({ "list": items, "text": "x".repeat(5_000), "n": 1_u64 << 40 });
    let data = data.to_string();
    let nested = "{% for a in list %}{% for b in list %}{% endfor %}{% endfor %}";
    let long = "{% for a in list %}{{ text }}{% endfor %}";
    for (template, said) in [(nested, "fuel"), (long, "more than 262144 bytes")] {
        match render(template, &data) {
            Err(PromptError::Unusable(detail)) => assert!(detail.contains(said), "{detail}"),
            other => panic!("{template}: {other:?}"),
        }
    }
    assert!(render("{{ text * n }}", &data).is_err(), "a text cannot be repeated without end");
}

#[test]
fn nothing_but_the_data_is_in_reach_of_a_template() {
    for template in ["{% include 'x' %}", "{% extends 'x' %}", "{% macro m() %}{% endmacro %}"] {
        assert!(check_template(template).is_err(), "{template}");
    }
    for template in ["{{ range(3) }}", "{{ debug() }}", "{{ a|safe }}", "{{ a|replace('', a) }}"] {
        assert!(render(template, r#"{"a": "b"}"#).is_err(), "{template}");
    }
}

#[test]
fn what_is_no_template_is_told_with_its_line() {
    let told = check_template("one\ntwo {{ \n").expect_err("it does not end");
    assert!(told.contains("syntax error") && told.contains("line"), "{told}");
    assert!(check_template(&"x".repeat(PROMPT_BYTES_MAX + 1)).is_err());
    check_template(&"x".repeat(PROMPT_BYTES_MAX)).expect("just fits");
}
