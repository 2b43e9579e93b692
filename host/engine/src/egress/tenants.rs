//! The clients of tenants. None shares a connection, a looked-up name or a turn with another.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use http_body_util::Full;
use hyper_util::rt::TokioTimer;
use taskrun::byte_pool::{BytePool, PooledBytes};
use tokio::sync::OnceCell;

use super::connection::{Connector, connector, tls};
use super::connections::Connections;
use super::exchange_threads::{ByLane, ExchangeThreads};
use super::name_servers::NameServers;
use super::resolve::{Lookup, Names};
use super::{ANSWER_HEADER_BYTES_MAX, Refusal};
use crate::threads::Lane;

/// Tenants whose clients are kept; of the others the idle connections are closed.
const TENANTS_MAX: usize = 64;
/// Bytes of bodies, sent and answered, that all guests together may have at once, and those of one
/// tenant; each body has the first ones for nothing.
const BODIES_BYTES: u64 = 128 << 20;
const BODIES_BYTES_OF_TENANT: u64 = 32 << 20;
const BODY_SHARE_BYTES: u64 = 64 << 10;

/// An HTTP client of one tenant.
pub(super) type Client = hyper_util::client::legacy::Client<Connector, Full<Bytes>>;

/// Makes what looks names up for a tenant.
type MakeLookup = Box<dyn Fn() -> Arc<dyn Lookup> + Send + Sync>;

/// The clients of each tenant, made at its first request.
pub(super) struct Tenants {
    lookup: MakeLookup,
    threads: ByLane<ExchangeThreads>,
    bodies: BytePool,
    connections: Connections,
    kept: Mutex<ClientCache>,
}

#[derive(Default)]
struct ClientCache {
    by_name: HashMap<String, Entry>,
    /// Uses so far.
    clock: u64,
}

struct Entry {
    clients: Arc<TenantClients>,
    bodies: BytePool,
    /// The clock's value at the last use.
    used: u64,
}

/// The clients of a tenant. Those of the lanes share neither connections nor turns at looking names
/// up, as a short call would wait for long ones.
#[derive(Default)]
struct TenantClients {
    /// For all addresses.
    all: OnceCell<ByLane<Client>>,
    /// For those of plain `http`, once it was found that the machine has no certificates.
    plain: OnceCell<ByLane<Client>>,
}

impl Default for Tenants {
    fn default() -> Self {
        Self::new(ByLane::default())
    }
}

impl Tenants {
    /// By the system's name servers.
    pub(super) fn new(threads: ByLane<ExchangeThreads>) -> Self {
        Self::with_lookup(|| Arc::new(NameServers::default()), threads)
    }

    pub(super) fn with_lookup(
        lookup: impl Fn() -> Arc<dyn Lookup> + Send + Sync + 'static,
        threads: ByLane<ExchangeThreads>,
    ) -> Self {
        let bodies = BytePool::new(BODIES_BYTES, BODY_SHARE_BYTES);
        let connections = Connections::unbounded();
        Self { lookup: Box::new(lookup), threads, bodies, connections, kept: Mutex::default() }
    }

    /// The same with connections from this pool.
    pub(super) fn with_connections(self, connections: Connections) -> Self {
        Self { connections, ..self }
    }

    /// The threads for exchanges of a call that is polled on this lane.
    pub(super) fn threads(&self, lane: Lane) -> &ExchangeThreads {
        self.threads.of(lane)
    }

    /// The client of a tenant for a call that is polled on this lane. `is_plain` says that it is
    /// for an address of plain `http`, for which the machine needs no certificates.
    pub(super) async fn client(
        &self,
        tenant: &str,
        lane: Lane,
        is_plain: bool,
    ) -> Result<Client, Refusal> {
        let (clients, _) = self.entry(tenant);
        let made = match clients.plain.get().filter(|_| is_plain) {
            Some(made) => made,
            None => match clients.all.get_or_try_init(|| self.make(false)).await {
                Err(_) if is_plain => clients.plain.get_or_try_init(|| self.make(true)).await?,
                made => made?,
            },
        };
        Ok(made.of(lane).clone())
    }

    async fn make(&self, is_plain: bool) -> Result<ByLane<Client>, Refusal> {
        let none = || Refusal::Other("the host has no HTTP client, as its log says".to_owned());
        // Reads files, and takes more stack than a guest has.
        let tls = tokio::task::spawn_blocking(move || tls(is_plain)).await;
        let tls = tls.map_err(|_| none())?.map_err(|error| {
            let hint = "https needs CA certificates, such as those of the package ca-certificates";
            tracing::error!(?error, hint, "cannot set up the HTTP client");
            none()
        })?;
        let lookup = (self.lookup)();
        let client_on = |threads: &ExchangeThreads| {
            let names = Arc::new(Names::new(Arc::clone(&lookup)));
            let connector = connector(names, tls.clone(), self.connections.part());
            client_of(connector, threads, &self.connections)
        };
        let ByLane { first, share } = &self.threads;
        Ok(ByLane { first: client_on(first), share: client_on(share) })
    }

    /// The bytes of a body of the tenant's.
    pub(super) fn body(&self, tenant: &str) -> PooledBytes {
        self.entry(tenant).1.begin()
    }

    fn entry(&self, tenant: &str) -> (Arc<TenantClients>, BytePool) {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.clock += 1;
        let used = kept.clock;
        if let Some(entry) = kept.by_name.get_mut(tenant) {
            entry.used = used;
            return (Arc::clone(&entry.clients), entry.bodies.clone());
        }
        if kept.by_name.len() >= TENANTS_MAX {
            let oldest = kept.by_name.iter().min_by_key(|(_, entry)| entry.used);
            let oldest = oldest.map(|(name, _)| name.clone());
            oldest.map(|name| kept.by_name.remove(&name));
        }
        let clients = Arc::<TenantClients>::default();
        let bodies = self.bodies.part(BODIES_BYTES_OF_TENANT);
        let entry = Entry { clients: Arc::clone(&clients), bodies: bodies.clone(), used };
        kept.by_name.insert(tenant.to_owned(), entry);
        (clients, bodies)
    }
}

fn client_of(connector: Connector, threads: &ExchangeThreads, connections: &Connections) -> Client {
    hyper_util::client::legacy::Client::builder(threads.clone())
        .pool_timer(TokioTimer::new())
        .pool_idle_timeout(connections.idle())
        .pool_max_idle_per_host(connections.idle_max())
        .http1_max_buf_size(ANSWER_HEADER_BYTES_MAX)
        .build(connector)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tenants_have_clients_of_their_own_and_the_oldest_goes() {
        let tenants = Tenants::default();
        let (first, _) = tenants.entry("t0");
        assert!(Arc::ptr_eq(&first, &tenants.entry("t0").0));
        for n in 1..TENANTS_MAX {
            assert!(!Arc::ptr_eq(&first, &tenants.entry(&format!("t{n}")).0));
        }
        tenants.entry("t0");
        tenants.entry("one more");
        assert!(Arc::ptr_eq(&first, &tenants.entry("t0").0), "it was used lately");
        assert_eq!(tenants.kept.lock().unwrap().by_name.len(), TENANTS_MAX);
        assert!(!tenants.kept.lock().unwrap().by_name.contains_key("t1"));
    }
}
