//! A place at which agents and tools wait for the test.

use std::sync::Arc;

use tokio::sync::watch;

use super::{ClosurePlanner, answer};

/// Closed until the test opens it. Clones are the same gate.
#[derive(Clone)]
pub struct Gate {
    open: Arc<watch::Sender<bool>>,
    came: Arc<watch::Sender<usize>>,
}

impl Default for Gate {
    fn default() -> Self {
        Self::new()
    }
}

impl Gate {
    /// A gate that is closed.
    #[must_use]
    pub fn new() -> Self {
        Self { open: Arc::new(watch::Sender::new(false)), came: Arc::new(watch::Sender::new(0)) }
    }

    /// Waits until it is open.
    pub async fn pass(&self) {
        self.came.send_modify(|came| *came += 1);
        let mut open = self.open.subscribe();
        open.wait_for(|open| *open).await.expect("the sender is here");
    }

    /// An agent that comes to the gate and answers when it was let through.
    #[must_use]
    pub fn answering(&self, text: &'static str) -> ClosurePlanner {
        let gate = self.clone();
        ClosurePlanner::new(move |_, _| {
            let gate = gate.clone();
            async move {
                gate.pass().await;
                answer(text)
            }
        })
    }

    /// Lets everybody through.
    pub fn open(&self) {
        self.open.send_replace(true);
    }

    /// The number of visitors, let through or not.
    #[must_use]
    pub fn visitors(&self) -> usize {
        *self.came.borrow()
    }

    /// Returns when so many have come.
    pub async fn reached_by(&self, count: usize) {
        let mut came = self.came.subscribe();
        super::in_time(came.wait_for(|came| *came >= count)).await.expect("the sender is here");
    }
}
