//! The name servers that the system is set up for.

use std::net::IpAddr;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use hickory_resolver::TokioResolver;
use hickory_resolver::config::{LookupIpStrategy, ResolverConfig, ResolverOpts};
use hickory_resolver::net::NetError;
use hickory_resolver::net::runtime::TokioRuntimeProvider;
use hickory_resolver::system_conf::read_system_conf;
use tokio::time::Instant;

use super::resolve::Lookup;

/// Time after which the system's settings are read again, as networks change.
const SETTINGS_AGE_MAX: Duration = Duration::from_secs(60);
/// Time for one question to one name server.
const QUESTION_TIMEOUT: Duration = Duration::from_secs(2);
/// Answers that are kept, for one tenant.
const ANSWERS_MAX: u64 = 256;
/// Longest time that an answer is kept, whatever it says itself.
const ANSWER_AGE_MAX: Duration = Duration::from_secs(300);

/// Asks the servers of the system's settings itself: the system's own resolver takes a thread for
/// each name, and cannot be interrupted. Answers are kept for one tenant, so that how long a name
/// takes tells nothing of others.
pub(super) struct NameServers {
    settings: ReadSettings,
    reader: Mutex<Option<Reader>>,
}

/// Reads the name servers and the options to ask them with.
type ReadSettings = fn() -> Result<(ResolverConfig, ResolverOpts), NetError>;

/// A resolver, and when its settings were read.
struct Reader {
    resolver: TokioResolver,
    since: Instant,
}

impl Default for NameServers {
    fn default() -> Self {
        let settings = read_system_conf;
        Self { settings, reader: Mutex::default() }
    }
}

impl NameServers {
    fn resolver(&self) -> Result<TokioResolver, NetError> {
        let mut reader = self.reader.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(reader) = reader.as_ref().filter(|one| one.since.elapsed() < SETTINGS_AGE_MAX) {
            return Ok(reader.resolver.clone());
        }
        let (servers, mut options) = (self.settings)()?;
        options.timeout = QUESTION_TIMEOUT;
        options.ip_strategy = LookupIpStrategy::Ipv4AndIpv6;
        options.cache_size = ANSWERS_MAX;
        options.positive_max_ttl = Some(ANSWER_AGE_MAX);
        options.negative_max_ttl = Some(ANSWER_AGE_MAX);
        let builder = TokioResolver::builder_with_config(servers, TokioRuntimeProvider::default());
        let resolver = builder.with_options(options).build()?;
        *reader = Some(Reader { resolver: resolver.clone(), since: Instant::now() });
        Ok(resolver)
    }
}

#[async_trait]
impl Lookup for NameServers {
    async fn lookup(&self, name: &str) -> Result<Vec<IpAddr>, String> {
        let resolver = self.resolver().map_err(|error| error.to_string())?;
        // The whole name: a rule named it, and nothing of the machine's own domain is meant.
        let found = resolver.lookup_ip(format!("{name}.")).await;
        let found = found.map_err(|error| error.to_string())?;
        Ok(found.iter().collect())
    }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, SocketAddr};
    use std::sync::{Arc, OnceLock};

    use hickory_resolver::config::{ConnectionConfig, NameServerConfig};
    use hickory_resolver::proto::op::Message;
    use hickory_resolver::proto::rr::rdata::A;
    use hickory_resolver::proto::rr::{RData, Record, RecordType};
    use tokio::net::UdpSocket;

    use super::super::resolve::{Names, ResolveError};
    use super::*;

    static SERVER: OnceLock<SocketAddr> = OnceLock::new();

    fn settings() -> Result<(ResolverConfig, ResolverOpts), NetError> {
        let server = SERVER.get().unwrap();
        let mut connection = ConnectionConfig::udp();
        connection.port = server.port();
        let server = NameServerConfig::new(server.ip(), true, vec![connection]);
        Ok((ResolverConfig::from_name_servers(vec![server]), ResolverOpts::default()))
    }

    /// Knows `one.example` and `private.example`, and says nothing of `dead.example`.
    async fn serve(socket: UdpSocket) {
        let mut packet = [0; 1500];
        while let Ok((len, from)) = socket.recv_from(&mut packet).await {
            let question = Message::from_vec(&packet[..len]).unwrap();
            let query = question.queries[0].clone();
            let address = match query.name().to_string().to_ascii_lowercase().as_str() {
                "one.example." => Ipv4Addr::new(1, 1, 1, 1),
                "private.example." => Ipv4Addr::new(10, 0, 0, 1),
                _ => continue,
            };
            let mut answer = Message::response(question.metadata.id, question.metadata.op_code);
            answer.add_query(query.clone());
            if query.query_type() == RecordType::A {
                let data = RData::A(A(address));
                answer.add_answer(Record::from_rdata(query.name().clone(), 60, data));
            }
            socket.send_to(&answer.to_vec().unwrap(), from).await.unwrap();
        }
    }

    #[tokio::test]
    async fn names_are_asked_of_the_servers_of_the_settings() {
        let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        SERVER.set(socket.local_addr().unwrap()).unwrap();
        let server = tokio::spawn(serve(socket));
        let servers = NameServers { settings, reader: Mutex::default() };
        let names = Names::new(Arc::new(servers));
        assert_eq!(*names.resolve("one.example").await.unwrap(), [IpAddr::from([1, 1, 1, 1])]);
        let private = names.resolve("private.example").await;
        assert!(matches!(private, Err(ResolveError::NotPublic { .. })), "{private:?}");
        let dead = names.resolve("dead.example").await;
        assert!(matches!(dead, Err(ResolveError::Failed(_))), "{dead:?}");
        server.abort();
    }
}
