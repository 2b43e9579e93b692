//! From names to addresses that may be connected to.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use futures::FutureExt;
use futures::future::{BoxFuture, Shared, WeakShared};
use tokio::sync::Semaphore;

use super::address::not_public;

/// Time for looking a name up, its turn not included.
const LOOKUP_TIMEOUT: Duration = Duration::from_secs(5);
/// Names of one tenant that are looked up at once; the others wait their turn.
const LOOKUPS_MAX: usize = 8;

/// Name servers, or a table in their place.
#[async_trait]
pub(super) trait Lookup: Send + Sync {
    /// All addresses of a name.
    ///
    /// # Errors
    /// A text for the host's log.
    ///
    /// # Cancel safety
    /// Dropping the future ends the look-up.
    async fn lookup(&self, name: &str) -> Result<Vec<IpAddr>, String>;
}

/// The reason that a name leads nowhere.
#[derive(Clone, Debug, thiserror::Error)]
pub(super) enum ResolveError {
    /// An address of the name is not public.
    #[error("{name} leads to {address}, which is {reason}")]
    NotPublic {
        /// The name that was asked for.
        name: String,
        /// The first such address.
        address: IpAddr,
        /// The kind of address that it leads to.
        reason: &'static str,
    },
    /// The name servers know no address of the name, or do not answer.
    #[error("{0}")]
    Failed(Arc<str>),
}

/// The checked addresses of a name.
type Answer = Result<Arc<[IpAddr]>, ResolveError>;

/// Look-ups of one tenant. A name is asked for once however many wait for it, and no longer than
/// anybody does.
pub(super) struct Names {
    lookup: Arc<dyn Lookup>,
    turns: Arc<Semaphore>,
    under_way: Mutex<HashMap<String, WeakShared<BoxFuture<'static, Answer>>>>,
}

impl Names {
    pub(super) fn new(lookup: Arc<dyn Lookup>) -> Self {
        let turns = Arc::new(Semaphore::new(LOOKUPS_MAX));
        Self { lookup, turns, under_way: Mutex::default() }
    }

    /// The addresses of a name, if all of them are public.
    pub(super) async fn resolve(&self, name: &str) -> Answer {
        // Not asked of anybody: it means this machine, and a rule named it.
        if name.eq_ignore_ascii_case("localhost") {
            return Ok(Arc::new([Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()]));
        }
        self.asked(name).await
    }

    fn asked(&self, name: &str) -> Shared<BoxFuture<'static, Answer>> {
        let mut under_way = self.under_way.lock().unwrap_or_else(PoisonError::into_inner);
        // A look-up that everybody gave up is gone.
        under_way.retain(|_, asked| asked.upgrade().is_some_and(|asked| asked.peek().is_none()));
        if let Some(asked) = under_way.get(name).and_then(WeakShared::upgrade) {
            return asked;
        }
        let (lookup, turns) = (Arc::clone(&self.lookup), Arc::clone(&self.turns));
        let owned = name.to_owned();
        let asked = async move {
            let _turn = turns.acquire_owned().await;
            let answer = tokio::time::timeout(LOOKUP_TIMEOUT, lookup.lookup(&owned)).await;
            let failed = |text: String| ResolveError::Failed(text.into());
            let addresses = answer.map_err(|_| failed("no name server answers in time".into()))?;
            checked(owned, addresses.map_err(failed)?)
        };
        let asked = asked.boxed().shared();
        under_way.extend(asked.downgrade().map(|weak| (name.to_owned(), weak)));
        asked
    }
}

fn checked(name: String, addresses: Vec<IpAddr>) -> Answer {
    if addresses.is_empty() {
        return Err(ResolveError::Failed("the name has no address".into()));
    }
    for address in &addresses {
        if let Some(reason) = not_public(*address) {
            return Err(ResolveError::NotPublic { name, address: *address, reason });
        }
    }
    Ok(addresses.into())
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    struct FixedLookup(Vec<IpAddr>);

    #[async_trait]
    impl Lookup for FixedLookup {
        async fn lookup(&self, _: &str) -> Result<Vec<IpAddr>, String> {
            Ok(self.0.clone())
        }
    }

    async fn resolved(name: &str, addresses: &[&str]) -> Answer {
        let addresses = addresses.iter().map(|text| text.parse().unwrap()).collect();
        Names::new(Arc::new(FixedLookup(addresses))).resolve(name).await
    }

    #[tokio::test]
    async fn case_37_one_address_that_is_not_public_spoils_all() {
        assert_eq!(resolved("a.example", &["1.1.1.1", "8.8.8.8"]).await.unwrap().len(), 2);
        for bad in ["127.0.0.1", "169.254.169.254", "::ffff:10.0.0.1"] {
            let answer = resolved("a.example", &["1.1.1.1", bad]).await;
            assert!(matches!(answer, Err(ResolveError::NotPublic { .. })), "{bad}");
        }
        assert!(resolved("a.example", &[]).await.is_err());
    }

    #[tokio::test]
    async fn localhost_is_this_machine_whatever_others_say() {
        let addresses = resolved("localhost", &["1.1.1.1"]).await.unwrap();
        assert!(addresses.iter().all(IpAddr::is_loopback));
        assert!(resolved("a.localhost", &["127.0.0.1"]).await.is_err());
    }

    /// Never answers; counts who asks and who still does.
    #[derive(Default)]
    struct SilentLookup {
        asked: AtomicUsize,
        asking: Arc<AtomicUsize>,
    }

    struct LookupGuard(Arc<AtomicUsize>);

    impl Drop for LookupGuard {
        fn drop(&mut self) {
            self.0.fetch_sub(1, Ordering::SeqCst);
        }
    }

    #[async_trait]
    impl Lookup for SilentLookup {
        async fn lookup(&self, _: &str) -> Result<Vec<IpAddr>, String> {
            self.asked.fetch_add(1, Ordering::SeqCst);
            self.asking.fetch_add(1, Ordering::SeqCst);
            let _asking = LookupGuard(Arc::clone(&self.asking));
            std::future::pending().await
        }
    }

    #[tokio::test(start_paused = true)]
    async fn names_of_a_dead_server_hold_nothing_longer_than_somebody_waits() {
        let silent = Arc::new(SilentLookup::default());
        let names = Arc::new(Names::new(Arc::clone(&silent) as Arc<dyn Lookup>));
        let mut waiting = tokio::task::JoinSet::new();
        for n in 0..100 {
            let names = Arc::clone(&names);
            // Ten wait for each name.
            waiting.spawn(async move { names.resolve(&format!("n{}.example", n % 10)).await });
        }
        tokio::task::yield_now().await;
        assert_eq!(silent.asking.load(Ordering::SeqCst), LOOKUPS_MAX);
        while let Some(answer) = waiting.join_next().await {
            assert!(matches!(answer.unwrap(), Err(ResolveError::Failed(_))));
        }
        assert_eq!(silent.asked.load(Ordering::SeqCst), 10, "one for each name");
        // Whoever gives up takes the look-up along, and its turn.
        for n in 0..LOOKUPS_MAX + 1 {
            let name = format!("given-up-{n}.example");
            let asked = names.resolve(&name);
            assert!(tokio::time::timeout(Duration::from_millis(1), asked).await.is_err());
            assert_eq!(silent.asking.load(Ordering::SeqCst), 0);
        }
    }
}
