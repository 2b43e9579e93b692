//! The number of connections that exchanges have open.

use tokio::sync::mpsc;

use super::*;

/// Eight connections, of which a client has one.
const COUNT: usize = 8;
/// Longer than anything here takes.
const LONG: Duration = Duration::from_secs(30);

fn egress_of(idle: Duration, wait: Duration) -> Arc<Egress> {
    let connections = Connections::with_times(COUNT, idle, wait);
    Arc::new(Egress::new(ByLane::default(), connections))
}

/// A server that says nothing, and tells of every connection that it has.
async fn silent() -> (String, mpsc::UnboundedReceiver<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let url = format!("http://{}/", listener.local_addr().expect("an address"));
    let (tell, told) = mpsc::unbounded_channel();
    tokio::spawn(async move {
        let mut open = Vec::new();
        while let Ok((stream, _)) = listener.accept().await {
            open.push(stream);
            tell.send(()).ok();
        }
    });
    (url, told)
}

/// Answers every request, and leaves the connection open.
async fn lasting() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let url = format!("http://{}/", listener.local_addr().expect("an address"));
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                let mut request = [0; 4096];
                while stream.read(&mut request).await.is_ok_and(|len| len > 0) {
                    let answer = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nhi";
                    stream.write_all(answer).await.ok();
                }
            });
        }
    });
    url
}

fn is_refused(result: &Result<Answer, Refusal>) -> bool {
    matches!(result, Err(Refusal::Limit(ExchangeLimit::Connections(_))))
}

#[tokio::test]
async fn case_33_connections_of_a_client_leave_others_theirs_and_all_have_an_end() {
    let egress = egress_of(LONG, Duration::from_millis(100));
    let (url, mut told) = silent().await;
    let hello = format!("http://127.0.0.1:{}/", server(HELLO).await.port);
    let rules = alone(&grants(&format!("allow = [\"http: {url}**\", \"http: {hello}**\"]")));
    let holds = |tenant: &'static str| {
        let (egress, rules, url) = (Arc::clone(&egress), rules.clone(), url.clone());
        let held = async move { egress.send(tenant, &rules, &first(), get(&url)).await };
        AbortOnDropHandle::new(tokio::spawn(held))
    };
    let held = holds("greedy");
    told.recv().await.expect("it is connected");
    let refused = egress.send("greedy", &rules, &first(), get(&hello)).await;
    assert!(is_refused(&refused), "{refused:?}");
    for (tenant, lane) in [("modest", Lane::First), ("greedy", Lane::Share)] {
        egress.send(tenant, &rules, &on(lane), get(&hello)).await.expect("a part of its own");
    }
    let mut others = Vec::new();
    for tenant in ["b", "c", "d", "e", "f", "g", "h"] {
        others.push(holds(tenant));
        told.recv().await.expect("it is connected");
    }
    let refused = egress.send("modest", &rules, &first(), get(&hello)).await;
    assert!(is_refused(&refused), "{refused:?}");
    drop((held, others));
    // The connections are closed by tasks of their own.
    let mut tries = 0;
    while is_refused(&egress.send("greedy", &rules, &first(), get(&hello)).await) {
        tries += 1;
        assert!(tries < 100, "the places are not free again");
    }
}

#[tokio::test]
async fn an_exchange_has_its_own_times_until_there_is_a_connection_and_until_the_head() {
    let egress = egress_of(LONG, LONG);
    let (url, mut told) = silent().await;
    let rules = alone(&grants(&format!("allow = [\"http: {url}**\"]")));
    let short = Some(Duration::from_millis(50));
    let times = ExchangeTimes { head: short, ..ExchangeTimes::default() };
    let late = egress.send("t", &rules, &first(), get(&url).with_times(times)).await;
    assert_eq!(late.expect_err("silent"), Refusal::PartTimeout(ExchangePart::Head));
    let (theirs, allowed, held) = (Arc::clone(&egress), rules.clone(), get(&url));
    let held = async move { theirs.send("t", &allowed, &first(), held).await };
    let held = AbortOnDropHandle::new(tokio::spawn(held));
    for _ in 0..2 {
        told.recv().await.expect("it is connected");
    }
    let times = ExchangeTimes { connection: short, ..ExchangeTimes::default() };
    let late = egress.send("t", &rules, &first(), get(&url).with_times(times)).await;
    assert_eq!(late.expect_err("no place"), Refusal::PartTimeout(ExchangePart::Connection));
    drop(held);
}

/// Asks so many servers, one after the other, that leave their connections open.
async fn ask_in_turn(egress: &Arc<Egress>, servers: usize) {
    for _ in 0..servers {
        let url = lasting().await;
        let rules = alone(&grants(&format!("allow = [\"http: {url}**\"]")));
        egress.send("t", &rules, &first(), get(&url)).await.expect("there is a place");
    }
}

#[tokio::test]
async fn connections_that_are_idle_make_way_for_others_of_their_tenant() {
    let part = 64;
    let connections = Connections::with_times(8 * part, Duration::from_millis(100), LONG);
    ask_in_turn(&Arc::new(Egress::new(ByLane::default(), connections)), part + 2).await;
}

#[tokio::test]
async fn where_there_are_few_connections_none_is_kept_idle() {
    ask_in_turn(&egress_of(LONG, Duration::from_millis(100)), 3).await;
}

/// Name servers that say nothing, and tell of every name that they are asked for.
struct SilentLookup(mpsc::UnboundedSender<()>);

#[async_trait]
impl Lookup for SilentLookup {
    async fn lookup(&self, _: &str) -> Result<Vec<IpAddr>, String> {
        self.0.send(()).ok();
        std::future::pending().await
    }
}

#[tokio::test]
async fn names_that_are_being_looked_up_take_no_place_from_others() {
    let (tell, mut told) = mpsc::unbounded_channel();
    let lookup: Arc<dyn Lookup> = Arc::new(SilentLookup(tell));
    let tenants = Tenants::with_lookup(move || Arc::clone(&lookup), ByLane::default());
    let connections = Connections::with_times(COUNT, LONG, Duration::from_millis(100));
    let egress = Arc::new(Egress::with_tenants(tenants.with_connections(connections)));
    let (dead, hello) = ("http://dead.example/", server(HELLO).await.port);
    let hello = format!("http://127.0.0.1:{hello}/");
    let rules = alone(&grants(&format!("allow = [\"http: {dead}**\", \"http: {hello}**\"]")));
    let (theirs, allowed) = (Arc::clone(&egress), rules.clone());
    let asks = async move { theirs.send("t", &allowed, &first(), get(dead)).await };
    let asks = AbortOnDropHandle::new(tokio::spawn(asks));
    told.recv().await.expect("it is looked up");
    egress.send("t", &rules, &first(), get(&hello)).await.expect("the place of the tenant is free");
    drop(asks);
}
