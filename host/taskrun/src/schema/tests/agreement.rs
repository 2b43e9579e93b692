//! The host's own reading of schemas against that of the library that is the yardstick.

use proptest::prelude::*;
use serde_json::{Map, Value, json};

use super::schema;
use crate::schema::Fuel;

fn value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(json!(null)),
        any::<bool>().prop_map(Value::from),
        (-3_i64..4).prop_map(Value::from),
        (-6_i32..7).prop_map(|halves| json!(f64::from(halves) / 2.0)),
        "[ab1]{0,3}".prop_map(Value::from),
    ];
    leaf.prop_recursive(3, 16, 3, |inner| {
        let members = prop::collection::btree_map("[abc]", inner.clone(), 0..3);
        prop_oneof![
            prop::collection::vec(inner, 0..3).prop_map(Value::from),
            members.prop_map(|members| json!(members)),
        ]
    })
}

const TYPES: [&str; 7] = ["null", "boolean", "integer", "number", "string", "array", "object"];

fn keyword(schemas: BoxedStrategy<Value>) -> BoxedStrategy<(&'static str, Value)> {
    let count = 0_u64..3;
    let one = schemas.clone();
    let some = prop::collection::vec(schemas.clone(), 1..3).prop_map(Value::from);
    let named = prop::collection::btree_map("[abc]", schemas, 1..3).prop_map(|all| json!(all));
    let names = prop::collection::btree_set("[abc]", 0..2).prop_map(|names| json!(names));
    let keyed = |keywords: &'static [&'static str], of: BoxedStrategy<Value>| {
        (prop::sample::select(keywords), of).boxed()
    };
    prop_oneof![
        keyed(&["type"], prop::sample::select(&TYPES[..]).prop_map(Value::from).boxed()),
        keyed(&["const"], value().boxed()),
        keyed(&["enum"], prop::collection::vec(value(), 1..3).prop_map(Value::from).boxed()),
        keyed(
            &["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"],
            (-2_i32..3).prop_map(|halves| json!(f64::from(halves) / 2.0)).boxed()
        ),
        keyed(
            &["multipleOf"],
            prop::sample::select(&[1.0, 0.5, 2.0][..]).prop_map(Value::from).boxed()
        ),
        keyed(
            &[
                "minLength",
                "maxLength",
                "minItems",
                "maxItems",
                "minProperties",
                "maxProperties",
                "minContains",
                "maxContains"
            ],
            count.prop_map(Value::from).boxed()
        ),
        keyed(&["pattern"], pattern().prop_map(Value::from).boxed()),
        keyed(&["uniqueItems"], any::<bool>().prop_map(Value::from).boxed()),
        keyed(&["required"], names.boxed()),
        keyed(
            &[
                "items",
                "additionalProperties",
                "propertyNames",
                "contains",
                "not",
                "if",
                "then",
                "else"
            ],
            one.boxed()
        ),
        keyed(&["allOf", "anyOf", "oneOf", "prefixItems"], some.boxed()),
        keyed(&["properties", "patternProperties", "dependentSchemas"], named.boxed()),
    ]
    .boxed()
}

/// A pattern that is one: the yardstick does not look at those that it needs nowhere, such as in an
/// `if` without `then` and `else`.
fn pattern() -> BoxedStrategy<String> {
    "[ab1^$.*]{1,3}".prop_filter("a pattern", |text| regex::Regex::new(text).is_ok()).boxed()
}

fn schemas() -> BoxedStrategy<Value> {
    let leaf = prop_oneof![any::<bool>().prop_map(Value::from), Just(json!({}))].boxed();
    leaf.prop_recursive(3, 24, 4, |inner| {
        let with = prop::collection::vec(keyword(inner.boxed()), 1..4);
        with.prop_map(|all| {
            let all = all.into_iter().map(|(name, value)| (name.to_owned(), value));
            Value::Object(all.collect::<Map<_, _>>())
        })
    })
    .boxed()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2_000, failure_persistence: None, ..Default::default() })]

    #[test]
    fn a_value_fits_where_the_yardstick_says_so((text, value) in (schemas(), value())) {
        // What is no pattern for the yardstick is none here.
        let Ok(yardstick) = jsonschema::options().with_draft(jsonschema::Draft::Draft202012).build(&text) else {
            return Ok(());
        };
        let issues = schema(&text).issues(&value, &mut Fuel::new(100_000, 100));
        let issues = issues.expect("little to do");
        prop_assert_eq!(issues.is_empty(), yardstick.is_valid(&value), "{} {}: {:?}", text, value, issues);
    }
}
