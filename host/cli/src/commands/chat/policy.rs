//! The policy of a conversation. It is looked at before each line: an edit is in force for the
//! lines that are said after it.

use taskrun::controller::Controller;
use taskrun_policy::Policy;
use taskrun_runtime::{FilesSeen, Storage};

use super::Chat;
use crate::context::Context;
use crate::failure::Outcome;

/// The policy that was read last.
pub(super) struct PolicyRead {
    policy: Policy,
    /// Its files as they were at the last look.
    files: FilesSeen,
}

impl PolicyRead {
    /// Reads the policy of the command.
    ///
    /// # Errors
    /// If there is none, or anything is wrong with it.
    pub(super) fn new(context: &Context) -> Outcome<Self> {
        let (policy, files) = context.load_policy(&context.named_policy()?)?;
        Ok(Self { policy, files })
    }

    pub(super) fn policy(&self) -> &Policy {
        &self.policy
    }

    /// Reads the policy again, if one of its files is another one than at the last look.
    ///
    /// # Errors
    /// If anything is wrong with it. It is not read again before it is changed again.
    fn again(&mut self, context: &Context) -> Outcome<Option<&Policy>> {
        let found = FilesSeen::of(&self.policy);
        if found == self.files {
            return Ok(None);
        }
        self.files = found;
        let (policy, files) = context.load_policy(&self.policy.path)?;
        *self = Self { policy, files };
        Ok(Some(&self.policy))
    }
}

/// A controller that accepts runs of all agents of a policy: any of them may be handed the
/// conversation.
///
/// # Errors
/// If an agent cannot be used, or the store.
pub(super) async fn accepting_all(
    context: &Context,
    storage: &Storage,
    policy: &Policy,
) -> Outcome<Controller> {
    let names: Vec<String> = policy.agents.keys().cloned().collect();
    context.accepting(storage, policy, &names).await
}

impl Chat<'_> {
    /// Takes an edit of the policy up. One that cannot be used is told of, and changes nothing.
    pub(super) async fn take_up_policy(&mut self) {
        let taken_up = match self.policy_read.again(self.context) {
            Ok(None) => return,
            Ok(Some(policy)) => {
                let accepting = accepting_all(self.context, self.storage, policy).await;
                accepting.map(|controller| (controller, policy.clone()))
            }
            Err(failure) => Err(failure),
        };
        match taken_up {
            Ok((controller, policy)) => {
                self.client = self.context.client(&controller);
                self.policy = policy;
            }
            Err(failure) => self.tell("the policy stays as it was", &failure),
        }
    }
}
