//! The bounds of new runs.

/// Whether one of the living hosts of a policy, each given as its slots and the runs it holds,
/// has a slot left. Where there is no host, the one that comes has.
#[must_use]
pub fn slot_left(hosts: impl IntoIterator<Item = (u32, u64)>) -> bool {
    let mut hosts = hosts.into_iter().peekable();
    hosts.peek().is_none() || hosts.any(|(slots, held)| held < u64::from(slots))
}
