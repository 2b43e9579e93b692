//! The claims of a host, and its looks for work.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use async_trait::async_trait;
use taskrun_journal::layer::Layer;
use taskrun_journal::run::Run;
use taskrun_journal::status::Status;
use taskrun_journal::store::{Claim, Prospect, Store, StoreError};
use taskrun_store::MemoryStore;

use crate::native::{ClosurePlanner, World, answer, request};

/// A store that counts claims, and in which nobody who looks finds any work.
struct Blind {
    inner: Arc<MemoryStore>,
    claims: AtomicU64,
}

#[async_trait]
impl Layer for Blind {
    fn behind(&self) -> &dyn Store {
        &*self.inner
    }

    async fn claim(&self, claim: Claim) -> Result<Vec<Run>, StoreError> {
        self.claims.fetch_add(1, Ordering::SeqCst);
        self.inner.claim(claim).await
    }

    async fn prospect(&self, _: &Claim) -> Result<Prospect, StoreError> {
        Ok(Prospect::Nothing)
    }
}

/// A host claims what is accepted by itself without a look, and does not claim once more where that
/// left slots free: in a store on disk each is a question, or a transaction, for each run.
#[tokio::test]
async fn a_host_claims_a_run_that_it_accepts_once_and_without_a_look() {
    let inner = Arc::new(MemoryStore::new());
    let blind = Arc::new(Blind { inner: inner.clone(), claims: AtomicU64::new(0) });
    let mut world = World::over(blind.clone(), inner.clone(), inner);
    world.agent("a", ClosurePlanner::new(|_, _| async { answer("done") }));
    let host = world.start().await;
    for runs in 1..=3 {
        let id = host.spawn(&request("a", "x")).await;
        assert_eq!(host.end(&id).await.status(), Status::Completed);
        // One when it began.
        let claims = blind.claims.load(Ordering::SeqCst);
        assert!(claims <= 1 + runs, "{claims} claims of {runs} runs");
    }
}
