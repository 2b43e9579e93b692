//! The clients of tenants. None shares a connection, a looked-up name or a turn with another.

use std::collections::HashMap;
use std::error::Error;
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use http_body_util::Full;
use hyper_util::rt::TokioTimer;
use taskrun::byte_pool::{BytePool, PooledBytes};
use tokio::sync::OnceCell;

use super::connection::tls;
use super::connections::{Connections, ConnectionsPart};
use super::connector::{Connector, connector};
use super::exchange_threads::{ByLane, ExchangeThreads};
use super::name_servers::NameServers;
use super::resolve::{Lookup, Names};
use super::{ANSWER_HEADER_BYTES_MAX, ANSWER_HEADERS_MAX, Refusal};
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

/// The clients of a tenant, and the things that both of a lane are made with.
struct TenantClients {
    /// Lanes share neither connections nor turns at looking names up, as a short call would wait for
    /// long ones.
    shares: ByLane<LaneShare>,
    /// For all addresses.
    all: OnceCell<ByLane<Client>>,
    /// For those of plain `http`, once it was found that the machine has no certificates.
    plain: OnceCell<ByLane<Client>>,
}

/// The share of a tenant in names and connections, for one lane.
struct LaneShare {
    names: Arc<Names>,
    connections: ConnectionsPart,
}

/// The reason that a client cannot be made, for the log.
type ClientError = Box<dyn Error + Send + Sync>;

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
            None => match clients.all.get_or_try_init(|| self.make(&clients, false)).await {
                Ok(made) => made,
                Err(error) if is_plain => {
                    tracing::debug!(?error, "an HTTP client for plain http alone is made");
                    let plain = clients.plain.get_or_try_init(|| self.make(&clients, true));
                    plain.await.map_err(|error| no_client(&error))?
                }
                Err(error) => return Err(no_client(&error)),
            },
        };
        Ok(made.of(lane).clone())
    }

    async fn make(
        &self,
        clients: &TenantClients,
        is_plain: bool,
    ) -> Result<ByLane<Client>, ClientError> {
        // Reads files, and takes more stack than a guest has.
        let tls = tokio::task::spawn_blocking(move || tls(is_plain)).await??;
        let client_on = |threads: &ExchangeThreads, share: &LaneShare| {
            let (names, connections) = (Arc::clone(&share.names), share.connections.clone());
            client_of(connector(names, tls.clone(), connections), threads, &self.connections)
        };
        let (threads, shares) = (&self.threads, &clients.shares);
        Ok(ByLane {
            first: client_on(&threads.first, &shares.first),
            share: client_on(&threads.share, &shares.share),
        })
    }

    fn new_clients(&self) -> TenantClients {
        let lookup = (self.lookup)();
        let share = || LaneShare {
            names: Arc::new(Names::new(Arc::clone(&lookup))),
            connections: self.connections.part(),
        };
        let shares = ByLane { first: share(), share: share() };
        TenantClients { shares, all: OnceCell::new(), plain: OnceCell::new() }
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
        let clients = Arc::new(self.new_clients());
        let bodies = self.bodies.part(BODIES_BYTES_OF_TENANT);
        let entry = Entry { clients: Arc::clone(&clients), bodies: bodies.clone(), used };
        kept.by_name.insert(tenant.to_owned(), entry);
        (clients, bodies)
    }
}

fn no_client(error: &ClientError) -> Refusal {
    let hint = "https needs CA certificates, such as those of the package ca-certificates";
    tracing::error!(?error, hint, "cannot set up the HTTP client");
    Refusal::Other("the host has no HTTP client, as its log says".to_owned())
}

pub(super) fn client_of(
    connector: Connector,
    threads: &ExchangeThreads,
    connections: &Connections,
) -> Client {
    hyper_util::client::legacy::Client::builder(threads.clone())
        .pool_timer(TokioTimer::new())
        .pool_idle_timeout(connections.idle())
        .pool_max_idle_per_host(connections.idle_max())
        .http1_max_buf_size(ANSWER_HEADER_BYTES_MAX)
        .http1_max_headers(ANSWER_HEADERS_MAX)
        .build(connector)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::net::TcpListener;

    use super::super::connections::NoConnection;
    use super::super::find;
    use super::*;

    /// A request without a body.
    fn get(port: u16) -> http::Request<Full<Bytes>> {
        let request = http::Request::get(format!("http://127.0.0.1:{port}/"));
        request.body(Full::default()).expect("a request")
    }

    #[tokio::test]
    async fn both_clients_of_a_tenant_have_its_connections_together() {
        // Of eight a lane of a tenant has one.
        let pool = Connections::with_times(8, Duration::from_secs(30), Duration::from_millis(50));
        let tenants = Tenants::default().with_connections(pool);
        let (clients, _) = tenants.entry("t");
        // Neither reads the certificates of this machine.
        let first = tenants.make(&clients, true).await.expect("a client").first;
        let second = tenants.make(&clients, true).await.expect("another one").first;
        let silent = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let port = silent.local_addr().expect("an address").port();
        let held = tokio::spawn(first.request(get(port)));
        let connected = silent.accept().await.expect("it is connected");
        let refused = second.request(get(port)).await.expect_err("it has the place of the tenant");
        assert!(find::<NoConnection>(&refused).is_some(), "{refused:?}");
        held.abort();
        drop(connected);
    }

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
