//! The policy of a conversation. It is looked at before each line: an edit is in force for the
//! lines that are said after it.

use taskrun::controller::Controller;
use taskrun_policy::Policy;
use taskrun_runtime::{FilesSeen, Storage};

use super::Chat;
use crate::context::Context;
use crate::exit::Exit;
use crate::failure::{Failure, Outcome};

/// The policy that was looked at last: the one in force, or one with a fault.
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
    /// Takes an edit of the policy up. One that cannot be used is told of, and changes nothing. One
    /// with a fault is not read again before it is changed again; after any other failure, such as
    /// that of a store that is busy, it is tried again with the next line.
    pub(super) async fn take_up_policy(&mut self) {
        let found = FilesSeen::of(&self.policy_read.policy);
        if found == self.policy_read.files {
            return;
        }
        let failure = match self.context.load_policy(&self.policy_read.policy.path) {
            Ok((policy, files)) => {
                let accepting = accepting_all(self.context, self.storage, &policy).await;
                let read = PolicyRead { policy, files };
                match accepting {
                    Ok(controller) => {
                        self.client = self.context.client(&controller);
                        self.policy = read.policy.clone();
                        self.policy_read = read;
                        return;
                    }
                    Err(failure) => {
                        if is_fault(&failure) {
                            self.policy_read = read;
                        }
                        failure
                    }
                }
            }
            Err(failure) => {
                if is_fault(&failure) {
                    self.policy_read.files = found;
                }
                failure
            }
        };
        self.tell("the policy stays as it was", &failure);
    }
}

/// True if the policy, or a component of it, has to be changed before it can be used.
fn is_fault(failure: &Failure) -> bool {
    matches!(failure.exit, Exit::Usage | Exit::Denied)
}
