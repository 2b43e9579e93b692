//! Tokens, counted for the run that used them and rolled up along parents (M-61).

use taskrun_journal::message::Usage;
use taskrun_journal::run::Run;

use crate::native::{ClosurePlanner, Gate, World, answer, request};

fn usage(prompt: u64, completion: u64) -> Usage {
    Usage {
        prompt_tokens: prompt,
        completion_tokens: completion,
        total_tokens: prompt + completion,
        reported_tokens: prompt + completion,
        ..Usage::default()
    }
}

#[tokio::test]
async fn m_61_the_usage_of_a_tree_is_the_sum_of_its_runs() {
    let (mut world, gate) = (World::new(), Gate::new());
    let own = gate.clone();
    world.agent(
        "a",
        ClosurePlanner::new(move |input, scope| {
            let gate = own.clone();
            async move {
                let tokens: u64 = input.messages[0].joined_text().parse().expect("a number");
                gate.pass().await;
                scope.add_usage(usage(tokens, 1));
                answer("done")
            }
        }),
    );
    let host = world.start().await;
    let mut asked = request("a", "100");
    asked.id = Some("root".into());
    host.spawn(&asked).await;
    for (id, parent, tokens) in
        [("left", "root", "10"), ("right", "root", "20"), ("leaf", "left", "5")]
    {
        let mut asked = request("a", tokens);
        asked.id = Some(id.into());
        asked.parent_run_id = Some(parent.into());
        host.spawn(&asked).await;
    }
    host.spawn(&request("a", "1000")).await;
    gate.open();
    for id in ["root", "left", "right", "leaf"] {
        host.end(id).await;
    }
    let ids = |runs: &[Run]| {
        let mut ids: Vec<_> = runs.iter().map(|run| run.id().to_string()).collect();
        ids.sort();
        ids
    };
    let table: &[(&str, &[&str], Usage)] = &[
        ("root", &["leaf", "left", "right"], usage(135, 4)),
        ("left", &["leaf"], usage(15, 2)),
        ("right", &[], usage(20, 1)),
        ("leaf", &[], usage(5, 1)),
    ];
    for (id, beneath, expected) in table {
        let tree = host.controller.tree(&host.scope, id).await.expect("there");
        assert_eq!(tree.run.id().as_str(), *id);
        assert_eq!(ids(&tree.beneath), *beneath, "beneath {id}");
        assert_eq!(tree.usage, *expected, "of {id} and what is beneath it");
        let own = &tree.run.state.progress;
        assert_eq!(own.completion_tokens, 1, "the run's own count is its own");
    }
    let tree = host.controller.tree(&host.scope, "root").await.expect("there");
    let depths: Vec<_> = tree.beneath.iter().map(|run| run.spec.depth).collect();
    assert_eq!(depths, [1, 1, 2], "parents before their children");
}
