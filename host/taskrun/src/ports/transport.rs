//! Transports: the ways in which news of runs reaches somebody outside.
//!
//! An event that is to be told is a row of the store ([`taskrun_journal::dispatch`]), and a transport hands it
//! over at least once: the host may die between the two, and what failed is tried again. A receiver
//! knows by [`News::key`] what it has already.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::future::Future;
use std::sync::Arc;

use async_trait::async_trait;
use futures::future::BoxFuture;
use serde::Serialize;
use taskrun_journal::dispatch::{DispatchKey, SUBSCRIPTIONS_MAX, Subscription, TaskEvent};
use taskrun_journal::ids::RunId;
use taskrun_journal::message::Labels;
use taskrun_journal::run::RunView;
use taskrun_journal::status::{Status, StopReason};
use taskrun_journal::time::Timestamp;
use taskrun_policy::{ANY_TRANSPORT, TERMINAL, TRANSPORT};

use crate::agents::Agent;
use crate::error::tell_known;

/// The reason that a transport hears as it is interrupted to be told of a run.
pub const INTERRUPT_REASON: &str = "task_delivery";

/// The way in which a transport reaches its receiver.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum TransportKind {
    /// It speaks with somebody, who is not to be cut off.
    Voice,
    /// It leaves a text for somebody, who reads it at leisure.
    Text,
    /// It calls a program.
    Program,
}

impl TransportKind {
    /// True if it reaches people.
    #[must_use]
    pub(crate) fn is_for_people(self) -> bool {
        match self {
            Self::Voice | Self::Text => true,
            Self::Program => false,
        }
    }
}

/// Hands news of runs over.
#[async_trait]
pub trait Transport: Send + Sync {
    /// The way in which it reaches its receiver. Of [`TransportKind::Voice`] the host waits for
    /// [`Self::idle`] or asks for [`Self::interrupt`] before it hands anything over.
    fn kind(&self) -> TransportKind;

    /// Returns when nothing is said there that news would cut off; at once where nothing ever is.
    ///
    /// # Cancel safety
    /// The future is dropped when the host has waited long enough.
    async fn idle(&self);

    /// Ends what is said there, for a reason such as [`INTERRUPT_REASON`].
    async fn interrupt(&self, reason: &str);

    /// Hands news over; when it returns well the receiver has it, and it is not handed over again.
    /// Several may be handed over at once, in any order.
    ///
    /// # Errors
    /// If it cannot be known that the receiver has it: it is handed over again later.
    ///
    /// # Cancel safety
    /// The future is dropped when its time is up; then it is handed over again.
    async fn deliver(&self, news: &News) -> Result<(), TransportError>;
}

/// The words of a failure, fit to be kept and shown: no secret is in them.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct TransportError(pub String);

/// One event of one run.
#[derive(Clone, Debug)]
pub struct News {
    /// The key, the same each time that it is handed over.
    pub key: DispatchKey,
    /// When it happened.
    pub at: Timestamp,
    /// The run: for [`TaskEvent::Delegated`] as it was accepted, for [`TaskEvent::Completed`] as it
    /// ended.
    pub run: RunView,
    /// The same in words for people.
    pub text: String,
    /// True if [`Self::to_json`] is to have neither task nor result nor error, as the policy under
    /// which the run was accepted withholds them.
    pub without_text: bool,
}

/// The form in which programs are told; documented in `docs/delegation.md`.
#[derive(Serialize)]
struct Payload<'a> {
    v: u8,
    id: String,
    #[serde(rename = "type")]
    event: TaskEvent,
    #[serde(serialize_with = "taskrun_journal::time::rfc3339::serialize")]
    timestamp: Timestamp,
    data: PayloadRun<'a>,
}

#[derive(Serialize)]
struct PayloadRun<'a> {
    id: &'a RunId,
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<&'a str>,
    agent_name: &'a str,
    owner_user_id: &'a str,
    parent_session_id: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    parent_app_name: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    parent_run_id: Option<&'a RunId>,
    root_run_id: &'a RunId,
    #[serde(skip_serializing_if = "Labels::is_empty")]
    labels: &'a Labels,
    status: Status,
    #[serde(skip_serializing_if = "Option::is_none")]
    stop_reason: Option<StopReason>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    partial: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    task: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    result: Option<&'a str>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    truncated: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<&'a str>,
}

impl News {
    /// The news as JSON, the same bytes each time; with task, result and error only if `whole`, and
    /// if nothing withholds them.
    #[must_use]
    pub fn to_json(&self, whole: bool) -> String {
        let (run, whole) = (&self.run, whole && !self.without_text);
        let payload = Payload {
            v: 1,
            id: self.key.to_string(),
            event: self.key.event,
            timestamp: self.at,
            data: PayloadRun {
                id: &run.id,
                name: run.name.as_deref(),
                agent_name: &run.agent_name,
                owner_user_id: &run.owner_user_id,
                parent_session_id: &run.parent_session_id,
                parent_app_name: run.parent_app_name.as_deref(),
                parent_run_id: run.parent_run_id.as_ref(),
                root_run_id: &run.root_run_id,
                labels: &run.labels,
                status: run.status,
                stop_reason: run.stop_reason,
                partial: run.partial,
                task: Some(run.task.as_str()).filter(|_| whole),
                result: run.result.as_deref().filter(|_| whole),
                truncated: run.truncated && whole,
                error: run.error.as_deref().filter(|_| whole),
            },
        };
        serde_json::to_string(&payload).expect("it is plain data")
    }
}

/// A callback of the program: a [`Transport`] of the kind [`TransportKind::Program`].
pub struct Callback(Box<CallbackFn>);

type CallbackFn = dyn Fn(News) -> BoxFuture<'static, Result<(), TransportError>> + Send + Sync;

impl Callback {
    /// This function.
    pub fn new<F, R>(function: F) -> Self
    where
        F: Fn(News) -> R + Send + Sync + 'static,
        R: Future<Output = Result<(), TransportError>> + Send + 'static,
    {
        Self(Box::new(move |news| Box::pin(function(news))))
    }
}

#[async_trait]
impl Transport for Callback {
    fn kind(&self) -> TransportKind {
        TransportKind::Program
    }

    async fn idle(&self) {}

    async fn interrupt(&self, _reason: &str) {}

    async fn deliver(&self, news: &News) -> Result<(), TransportError> {
        (self.0)(news.clone()).await
    }
}

/// A subscriber, and how it is told.
#[derive(Clone)]
pub struct Subscriber {
    /// The events that it is told of.
    pub events: Vec<TaskEvent>,
    /// If set, what a voice says is cut off for it; otherwise the host waits until it is silent, but
    /// no longer than [`IDLE_WAIT`](crate::controller::IDLE_WAIT).
    pub interrupts: bool,
    /// True if it may be told the task, and the result or the error.
    pub include_result: bool,
    /// The way to it.
    pub transport: Arc<dyn Transport>,
}

impl Subscriber {
    /// One that is told of everything, with all texts, and cuts nobody off.
    pub fn new(transport: impl Transport + 'static) -> Self {
        let (events, transport) = (TaskEvent::ALL.to_vec(), Arc::new(transport));
        Self { events, interrupts: false, include_result: true, transport }
    }
}

/// The subscribers of a host, by kind and name, as in `webhook/ci`. Clones are the same ones.
#[derive(Clone, Default)]
pub struct Subscribers(Arc<BTreeMap<String, Subscriber>>);

impl fmt::Debug for Subscribers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}

/// The reason that a run cannot have its subscribers.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum SubscriptionError {
    /// The policy has none of that name.
    #[error("the policy has no subscriber {name:?}; {known}")]
    Unknown {
        /// The name that was asked for.
        name: String,
        /// The ones that there are, in words.
        known: String,
    },
    /// There are too many.
    #[error("a run has at most {SUBSCRIPTIONS_MAX} subscribers")]
    TooMany,
}

impl Subscribers {
    /// These, by kind and name.
    #[must_use]
    pub fn new(all: BTreeMap<String, Subscriber>) -> Self {
        Self(Arc::new(all))
    }

    /// Those that a program registers, by their names alone: a policy and a request know each as
    /// `transport/NAME`, and the best of them, which is the first that speaks or else the first that
    /// leaves texts, as `transport/*`.
    #[must_use]
    pub fn of_program(by_name: BTreeMap<String, Subscriber>) -> Self {
        let best = by_name.values().filter(|one| one.transport.kind().is_for_people());
        let best = best.min_by_key(|one| one.transport.kind()).cloned();
        let named = by_name.into_iter().map(|(name, one)| (format!("{TRANSPORT}/{name}"), one));
        let best = best.map(|one| (ANY_TRANSPORT.to_owned(), one));
        Self::new(named.chain(best).collect())
    }

    /// These and others.
    #[must_use]
    pub fn with(&self, others: &Self) -> Self {
        let all = self.0.iter().chain(others.0.iter());
        Self::new(all.map(|(name, one)| (name.clone(), one.clone())).collect())
    }

    /// Their names.
    #[must_use]
    pub(crate) fn names(&self) -> BTreeSet<String> {
        self.0.keys().cloned().collect()
    }

    /// All of them with their names.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&String, &Subscriber)> {
        self.0.iter()
    }

    /// The subscriptions of a run of an agent, where a request names some beside the agent's own.
    ///
    /// # Errors
    /// [`SubscriptionError`].
    pub(crate) fn subscriptions(
        &self,
        agent: &Agent,
        asked: &[String],
    ) -> Result<Vec<Subscription>, SubscriptionError> {
        let names: BTreeSet<&str> =
            agent.subscribers.iter().chain(asked).map(|name| name.trim()).collect();
        if names.len() > SUBSCRIPTIONS_MAX {
            return Err(SubscriptionError::TooMany);
        }
        let subscription = |name: &str| {
            let events = match self.0.get(name) {
                Some(known) => known.events.clone(),
                // It is told of ends; that runs begin is shown there in any case.
                None if name == TERMINAL => vec![TaskEvent::Completed],
                // Another program may have it.
                None if taskrun_policy::is_transport(name) => TaskEvent::ALL.to_vec(),
                None => {
                    let (name, known) = (name.to_owned(), tell_known(self.0.keys()));
                    return Err(SubscriptionError::Unknown { name, known });
                }
            };
            Ok(Subscription { subscriber: name.to_owned(), events, without_text: false })
        };
        names.into_iter().map(subscription).collect()
    }

    /// Notes of those of a run to which of them no texts are told. What was noted stays.
    pub(crate) fn withhold_texts(&self, subscriptions: &mut [Subscription]) {
        for one in subscriptions {
            let known = self.0.get(&one.subscriber);
            one.without_text |= known.is_some_and(|known| !known.include_result);
        }
    }
}
