//! The clients of tenants. None shares a connection, a looked-up name or a turn with another.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use http_body_util::Full;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use tokio::sync::OnceCell;

use super::connection::{Connector, connector};
use super::name_servers::NameServers;
use super::resolve::{Lookup, Names};
use super::{ANSWER_HEADER_BYTES_MAX, Refusal};

/// Connections kept for the next request, per tenant and host.
const IDLE_MAX: usize = 4;
/// Tenants whose clients are kept; of the others the idle connections are closed.
const TENANTS_MAX: usize = 64;

/// The HTTP client of one tenant.
pub(super) type Client = hyper_util::client::legacy::Client<Connector, Full<Bytes>>;

/// Makes what looks names up for a tenant.
type MakeLookup = Box<dyn Fn() -> Arc<dyn Lookup> + Send + Sync>;

/// One client for each tenant, made at its first request.
pub(super) struct Tenants {
    lookup: MakeLookup,
    kept: Mutex<ClientCache>,
}

#[derive(Default)]
struct ClientCache {
    by_name: HashMap<String, Entry>,
    /// Uses so far.
    clock: u64,
}

struct Entry {
    client: Arc<OnceCell<Client>>,
    /// The clock's value at the last use.
    used: u64,
}

impl Default for Tenants {
    fn default() -> Self {
        Self::with_lookup(|| Arc::new(NameServers::default()))
    }
}

impl Tenants {
    pub(super) fn with_lookup(
        lookup: impl Fn() -> Arc<dyn Lookup> + Send + Sync + 'static,
    ) -> Self {
        Self { lookup: Box::new(lookup), kept: Mutex::default() }
    }

    /// The client of a tenant.
    pub(super) async fn client(&self, tenant: &str) -> Result<Client, Refusal> {
        let none = || Refusal::Other("the host has no HTTP client".to_owned());
        let client = self.entry(tenant);
        let names = Arc::new(Names::new((self.lookup)()));
        let made = client.get_or_try_init(|| async move {
            // Reads files, and takes more stack than a guest has.
            let connector = tokio::task::spawn_blocking(|| connector(names)).await;
            let connector = connector.map_err(|_| none())?;
            connector.map(client_of).map_err(|error| {
                tracing::error!(?error, "cannot set up the HTTP client");
                none()
            })
        });
        made.await.cloned()
    }

    fn entry(&self, tenant: &str) -> Arc<OnceCell<Client>> {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.clock += 1;
        let used = kept.clock;
        if let Some(entry) = kept.by_name.get_mut(tenant) {
            entry.used = used;
            return Arc::clone(&entry.client);
        }
        if kept.by_name.len() >= TENANTS_MAX {
            let oldest = kept.by_name.iter().min_by_key(|(_, entry)| entry.used);
            let oldest = oldest.map(|(name, _)| name.clone());
            oldest.map(|name| kept.by_name.remove(&name));
        }
        let client = Arc::<OnceCell<Client>>::default();
        let entry = Entry { client: Arc::clone(&client), used };
        kept.by_name.insert(tenant.to_owned(), entry);
        client
    }
}

fn client_of(connector: Connector) -> Client {
    hyper_util::client::legacy::Client::builder(TokioExecutor::new())
        .pool_timer(TokioTimer::new())
        .pool_max_idle_per_host(IDLE_MAX)
        .http1_max_buf_size(ANSWER_HEADER_BYTES_MAX)
        .build(connector)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tenants_have_clients_of_their_own_and_the_oldest_goes() {
        let tenants = Tenants::default();
        let first = tenants.entry("t0");
        assert!(Arc::ptr_eq(&first, &tenants.entry("t0")));
        for n in 1..TENANTS_MAX {
            assert!(!Arc::ptr_eq(&first, &tenants.entry(&format!("t{n}"))));
        }
        tenants.entry("t0");
        tenants.entry("one more");
        assert!(Arc::ptr_eq(&first, &tenants.entry("t0")), "it was used lately");
        assert_eq!(tenants.kept.lock().unwrap().by_name.len(), TENANTS_MAX);
        assert!(!tenants.kept.lock().unwrap().by_name.contains_key("t1"));
    }
}
