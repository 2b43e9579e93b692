//! The threads on which the exchanges of calls are read.

use tokio::runtime::{Builder, Runtime};

use super::*;

/// Keeps on what thread names are looked up.
#[derive(Default)]
struct ThreadsOfLookups(Mutex<Vec<String>>);

#[async_trait]
impl Lookup for ThreadsOfLookups {
    async fn lookup(&self, _: &str) -> Result<Vec<IpAddr>, String> {
        let name = std::thread::current().name().unwrap_or_default().to_owned();
        self.0.lock().unwrap().push(name);
        Err("there is none".to_owned())
    }
}

/// An egress with threads of its own, called `first` and `share`.
fn with_threads(lookup: Arc<dyn Lookup>) -> (Egress, ByLane<Runtime>) {
    let start = |name| {
        let mut builder = Builder::new_multi_thread();
        builder.worker_threads(1).thread_name(name).enable_all().build().unwrap()
    };
    let runtimes = ByLane { first: start("first"), share: start("share") };
    let threads = ByLane {
        first: ExchangeThreads::of(runtimes.first.handle()),
        share: ExchangeThreads::cooperative(runtimes.share.handle()),
    };
    (Egress::with_tenants(Tenants::with_lookup(move || lookup.clone(), threads)), runtimes)
}

#[tokio::test]
async fn the_exchanges_of_a_call_that_used_up_its_slice_are_work_of_the_threads_with_a_share() {
    let lookups = Arc::new(ThreadsOfLookups::default());
    let (egress, runtimes) = with_threads(lookups.clone());
    let rules = alone(&grants("allow = [\"http: http://*.example/**\"]"));
    for (lane, expected) in [
        (Lane::Owner, "first"),
        (Lane::First, "first"),
        (Lane::Share, "share"),
        (Lane::Behind, "share"),
        (Lane::First, "first"),
    ] {
        let url = format!("http://n{}.example/", lookups.0.lock().unwrap().len());
        let result = egress.send("t", &rules, &on(lane), get(&url)).await;
        assert!(matches!(result, Err(Refusal::Unreachable(_))), "{result:?}");
        assert_eq!(lookups.0.lock().unwrap().last().unwrap(), expected, "{lane:?}");
    }
    runtimes.first.shutdown_background();
    runtimes.share.shutdown_background();
}

/// So are those of its connections, which end with their threads.
#[tokio::test]
async fn a_connection_is_read_on_the_threads_of_its_lane() {
    for (lane, ends) in [(Lane::First, false), (Lane::Share, true)] {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/", listener.local_addr().unwrap());
        let rules = alone(&grants(&format!("allow = [\"http: {url}**\"]")));
        let (egress, ByLane { first, share }) = with_threads(Arc::new(ThreadsOfLookups::default()));
        let served = tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut request = [0; 4096];
            for _ in 0..2 {
                if stream.read(&mut request).await.is_ok_and(|len| len == 0) {
                    return true;
                }
                let answer = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nhi";
                stream.write_all(answer).await.unwrap();
            }
            false
        });
        egress.send("t", &rules, &on(lane), get(&url)).await.unwrap();
        tokio::task::spawn_blocking(move || drop(share)).await.unwrap();
        if !ends {
            egress.send("t", &rules, &on(lane), get(&url)).await.unwrap();
        }
        assert_eq!(served.await.unwrap(), ends, "{lane:?}");
        first.shutdown_background();
    }
}

/// So a call that goes on asking soon has its exchanges done on the threads with a share.
#[tokio::test]
async fn an_exchange_is_time_that_its_call_has_used() {
    let server = server(HELLO).await;
    let url = format!("http://127.0.0.1:{}/", server.port);
    let rules = alone(&grants(&format!("allow = [\"http: {url}**\"]")));
    // There is nothing else that counts.
    let course = on(Lane::Owner);
    for exchanges in 1..=3 {
        egress().send("t", &rules, &course, get(&url)).await.unwrap();
        assert_eq!(Duration::from_nanos(course.used_ns()), exchanges * EXCHANGE_WORK);
    }
    let refused = egress().send("t", &rules, &course, get("http://127.0.0.1:1/")).await;
    assert!(is_denied(&refused), "{refused:?}");
    assert_eq!(Duration::from_nanos(course.used_ns()), 3 * EXCHANGE_WORK);
}
