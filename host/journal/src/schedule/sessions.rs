//! Sessions as runs and callers name them: which keys cover which.

use crate::spec::RunSpec;
use crate::store::{Session, SessionKey};

/// The session from which a run was asked for.
#[must_use]
pub(crate) fn session_of(spec: &RunSpec) -> SessionKey {
    SessionKey {
        tenant: spec.tenant.clone(),
        owner_user_id: Some(spec.owner_user_id.clone()),
        parent_app_name: spec.parent_app_name.clone(),
        id: spec.parent_session_id.clone(),
    }
}

/// The key that covers all sessions of a name.
#[must_use]
pub fn widest(key: &SessionKey) -> SessionKey {
    SessionKey { owner_user_id: None, parent_app_name: None, ..key.clone() }
}

/// Keys that cover all sessions of the names under which a run is found: those of the session
/// from which it was asked for, and of that of its tree.
pub fn widest_of(spec: &RunSpec) -> impl Iterator<Item = SessionKey> {
    let ids = std::iter::once(&spec.parent_session_id).chain(&spec.root_session_id);
    ids.map(|id| widest(&SessionKey { id: id.clone(), ..session_of(spec) }))
}

/// True if one key covers another: a statement about the first holds for the second.
#[must_use]
pub fn covers(one: &SessionKey, other: &SessionKey) -> bool {
    let fits = |one: &Option<String>, other| one.is_none() || one == other;
    (&one.tenant, &one.id) == (&other.tenant, &other.id)
        && fits(&one.owner_user_id, &other.owner_user_id)
        && fits(&one.parent_app_name, &other.parent_app_name)
}

/// The record of a session, given all that was said of keys that cover its own: of those that
/// say most of it the one with the key that is nearest, ended with the first that has ended.
#[must_use]
pub fn known_session(key: &SessionKey, said: Vec<Session>) -> Option<Session> {
    let ended_at = said.iter().filter_map(|session| session.ended_at).min();
    let distance = |session: &Session| {
        let SessionKey { owner_user_id, parent_app_name, .. } = &session.key;
        (*owner_user_id != key.owner_user_id, *parent_app_name != key.parent_app_name)
    };
    let nearest = said.into_iter().min_by_key(distance)?;
    Some(Session { ended_at, ..nearest })
}
