//! M-63: sessions carry the conversation, through real components.

use taskrun::spawn::SpawnRequest;
use taskrun_journal::run::RunView;
use taskrun_tests::{Builder, House, Storage};

const POLICY: &str = r#"
[model.echo]
provider = "echo"

[agent.talker]
component = "components/chat.wasm"
model = "echo"
"#;

async fn say(house: &House, task: &str, converses: bool) -> RunView {
    let request = SpawnRequest { converses, ..house.request("talker", task) };
    let id = house.spawn(&request).await;
    RunView::from(&house.end(&id).await)
}

/// Words that the model was shown: it counts each as a token, and echoes the last message.
fn shown(view: &RunView) -> u64 {
    view.progress.as_ref().map_or(0, |progress| progress.prompt_tokens)
}

#[tokio::test]
async fn m_63_a_model_is_shown_what_was_said_before_in_the_session() {
    for storage in [Storage::Memory, Storage::Sqlite] {
        let house = Builder::new(POLICY).storage(storage).open().await;
        let first = say(&house, "one two", true).await;
        assert_eq!((first.result.as_deref(), shown(&first)), (Some("one two"), 2), "{first:?}");
        let second = say(&house, "three", true).await;
        assert_eq!((second.result.as_deref(), shown(&second)), (Some("three"), 5), "{second:?}");
        let apart = say(&house, "four", false).await;
        assert_eq!(shown(&apart), 1, "{apart:?}");
        let third = say(&house, "five", true).await;
        assert_eq!(shown(&third), 7, "{third:?}");
        // Also of an answer that is longer than what is shown with its run.
        say(&house, &"word ".repeat(2_000), true).await;
        let last = say(&house, "six", true).await;
        assert_eq!(shown(&last), 2 * (4 + 2_000) + 1, "{last:?}");
    }
}
