//! Lasting consents, by which nobody is asked though a rule asks.

use taskrun::controller::Client;
use taskrun_journal::consent::{ConsentSubject, session_of};
use taskrun_journal::event::Event;
use taskrun_journal::run::Run;
use taskrun_policy::Policy;

use super::Explanation;
use super::layers::{LayerVerdict, LayerView};
use crate::commands::agent::load;
use crate::context::{Context, OWNER_DEFAULT};
use crate::failure::Outcome;
use crate::output::escape::escaped_line;

/// Events that are read at once.
const EVENTS: usize = 1_000;

/// Says beside the rule that asks what decides about the calls of this function without a question:
/// in a run what somebody said for the run, and else the lasting consent, of a run or of one that
/// the caller would start. Of a run that has its agent as it was no such consent is told, as one is
/// for the code of its tool; nor is it where that code does not load.
pub(super) async fn tell(
    context: &Context,
    policy: &Policy,
    explanation: &mut Explanation,
    (run, name): (Option<&Run>, &str),
) -> Outcome<()> {
    let asks = |layer: &&mut LayerView| layer.verdict == LayerVerdict::Ask;
    let Some(layer) = explanation.layers.iter_mut().find(asks) else { return Ok(()) };
    let (_, controller) = context.looking().await?;
    let client = context.client(&controller);
    let does = |approved| if approved { "lets it begin" } else { "refuses it" };
    let standing = match run {
        Some(run) => said_for_run(&client, run, name).await?,
        None => None,
    };
    if let Some((approved, by)) = standing {
        let by = escaped_line(&by);
        layer.reason.push_str(&format!("; what {by} said for the run {}", does(approved)));
        return Ok(());
    }
    let Some(agent) = policy.agents.get(&explanation.agent_name) else { return Ok(()) };
    let Ok(loader) = context.looking_loader(policy.clone()) else { return Ok(()) };
    if run.is_some_and(|run| loader.pin(agent).as_deref() != Some(run.pin())) {
        return Ok(());
    }
    let Ok(agent) = load(&loader, &agent.name).await else { return Ok(()) };
    let code = agent.code.loaded();
    let Some(tool) = code.and_then(|code| code.tools.get(name)) else { return Ok(()) };
    let (scope, file) = (context.principal().scope, policy.path.display().to_string());
    let (subject, session) = match run {
        Some(run) => (ConsentSubject::of(&run.spec, &file, name), session_of(&run.spec)),
        None => {
            let subject = ConsentSubject {
                tenant: scope.tenant,
                owner_user_id: scope.owner_user_id.unwrap_or_else(|| OWNER_DEFAULT.to_owned()),
                parent_app_name: None,
                policy: file,
                agent_name: agent.name.clone(),
                function: name.to_owned(),
            };
            (subject, context.globals.session.as_deref())
        }
    };
    let Some(record) = client.consent_about(&subject, session, tool.tool.digest()).await? else {
        return Ok(());
    };
    let consent = &record.consent;
    let does = does(consent.approved);
    let until = consent.until.map_or_else(String::new, |until| format!(" until {until}"));
    let (number, by) = (record.number, escaped_line(&consent.by));
    layer.reason.push_str(&format!("; consent {number} of {by} {does}{until}"));
    Ok(())
}

/// The last word for all calls of a function in a run, and who said it.
async fn said_for_run(
    client: &Client,
    run: &Run,
    function: &str,
) -> Outcome<Option<(bool, String)>> {
    let (mut after, mut said) = (0, None);
    loop {
        let page = client.events(run.id().as_str(), after, EVENTS).await?;
        let Some(last) = page.last() else { return Ok(said) };
        after = last.seq;
        for recorded in page {
            if let Event::ToolAuthorization { name, approved, decided_by, for_run: true, .. } =
                recorded.event
                && name == function
            {
                said = Some((approved, decided_by));
            }
        }
    }
}
