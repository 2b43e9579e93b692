//! From names to addresses that may be connected to.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs};
use std::sync::Arc;

use async_trait::async_trait;
use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use tokio::sync::Semaphore;

use super::address::not_public;

/// The system's resolver, or a table in its place.
#[async_trait]
pub(super) trait Lookup: Send + Sync {
    /// All addresses of a name.
    async fn lookup(&self, name: &str) -> io::Result<Vec<IpAddr>>;
}

/// Names looked up at once. The system's resolver cannot be interrupted: each takes a thread as
/// long as it likes, also when nobody waits for the answer any more.
const LOOKUPS_MAX: usize = 16;

/// What the operating system says.
pub(super) struct SystemLookup(Arc<Semaphore>);

impl SystemLookup {
    pub(super) fn new() -> Self {
        Self(Arc::new(Semaphore::new(LOOKUPS_MAX)))
    }
}

#[async_trait]
impl Lookup for SystemLookup {
    async fn lookup(&self, name: &str) -> io::Result<Vec<IpAddr>> {
        let name = name.to_owned();
        let ask = move || {
            let found = (name.as_str(), 0).to_socket_addrs()?;
            Ok(found.map(|address| address.ip()).collect())
        };
        in_turn(&self.0, ask).await
    }
}

/// Runs what blocks on a thread for such, when it is its turn; the turn ends with the work.
async fn in_turn<T: Send + 'static>(
    turns: &Arc<Semaphore>,
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    let turn = Arc::clone(turns).acquire_owned().await.map_err(io::Error::other)?;
    let task = tokio::task::spawn_blocking(move || {
        let _turn = turn;
        work()
    });
    task.await.map_err(io::Error::other)?
}

/// A name that leads to an address which is not public.
#[derive(Debug, thiserror::Error)]
#[error("{name} leads to {address}, which is {reason}")]
pub(super) struct AddressRefused {
    name: String,
    address: IpAddr,
    reason: &'static str,
}

/// Gives reqwest the addresses of a name, all of them checked. It connects to these and no
/// others. Literal addresses do not come here: they are the policy's to decide.
pub(super) struct Guarded(pub(super) Arc<dyn Lookup>);

impl Resolve for Guarded {
    fn resolve(&self, name: Name) -> Resolving {
        let lookup = Arc::clone(&self.0);
        Box::pin(async move {
            let addresses = resolve(&*lookup, name.as_str()).await?;
            let addresses = addresses.into_iter().map(|address| SocketAddr::new(address, 0));
            Ok(Box::new(addresses) as Addrs)
        })
    }
}

type Failure = Box<dyn std::error::Error + Send + Sync>;

async fn resolve(lookup: &dyn Lookup, name: &str) -> Result<Vec<IpAddr>, Failure> {
    // Not asked of anybody: it means this machine, and a rule named it.
    if name.eq_ignore_ascii_case("localhost") {
        return Ok(vec![Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()]);
    }
    let addresses = lookup.lookup(name).await?;
    if addresses.is_empty() {
        return Err("the name has no address".into());
    }
    for address in &addresses {
        if let Some(reason) = not_public(*address) {
            let (name, address) = (name.to_owned(), *address);
            return Err(Box::new(AddressRefused { name, address, reason }));
        }
    }
    Ok(addresses)
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Fixed(Vec<IpAddr>);

    #[async_trait]
    impl Lookup for Fixed {
        async fn lookup(&self, _: &str) -> io::Result<Vec<IpAddr>> {
            Ok(self.0.clone())
        }
    }

    async fn resolved(name: &str, addresses: &[&str]) -> Result<Vec<IpAddr>, Failure> {
        let addresses = addresses.iter().map(|text| text.parse().unwrap()).collect();
        resolve(&Fixed(addresses), name).await
    }

    #[tokio::test]
    async fn one_address_that_is_not_public_spoils_all() {
        assert_eq!(resolved("a.example", &["1.1.1.1", "8.8.8.8"]).await.unwrap().len(), 2);
        for bad in ["127.0.0.1", "169.254.169.254", "::ffff:10.0.0.1"] {
            let error = resolved("a.example", &["1.1.1.1", bad]).await.unwrap_err();
            assert!(error.downcast_ref::<AddressRefused>().is_some(), "{bad}");
        }
        assert!(resolved("a.example", &[]).await.is_err());
    }

    #[tokio::test]
    async fn localhost_is_this_machine_whatever_others_say() {
        let addresses = resolved("localhost", &["1.1.1.1"]).await.unwrap();
        assert!(addresses.iter().all(IpAddr::is_loopback));
        assert!(resolved("a.localhost", &["127.0.0.1"]).await.is_err());
    }

    #[tokio::test]
    async fn a_lookup_nobody_waits_for_keeps_its_turn() {
        let turns = Arc::new(Semaphore::new(1));
        let (go, wait) = std::sync::mpsc::channel::<()>();
        let (began, begins) = tokio::sync::oneshot::channel();
        let slow = in_turn(&turns, move || {
            began.send(()).ok();
            wait.recv().map_err(io::Error::other)
        });
        tokio::select! {
            _ = slow => panic!("it waits"),
            begun = begins => begun.unwrap(),
        }
        // The future is gone, the thread is not.
        assert_eq!(turns.available_permits(), 0);
        go.send(()).unwrap();
        in_turn(&turns, || Ok(())).await.unwrap();
    }
}
