//! A host serves nobody over the network: there is no port of its own that a guest, or a page in a
//! browser, could reach (cases 44 and 45).

use std::collections::BTreeSet;
use std::net::{TcpListener, UdpSocket};

use crate::project::Project;

/// State of a TCP socket that listens, in the kernel's tables.
const LISTENS: &str = "0A";

/// The sockets of a process, by inode.
fn sockets(pid: u32) -> BTreeSet<String> {
    let files = std::fs::read_dir(format!("/proc/{pid}/fd")).expect("it lives");
    let links = files.filter_map(|file| std::fs::read_link(file.ok()?.path()).ok());
    let sockets = links.filter_map(|link| {
        let inode = link.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?;
        Some(inode.to_owned())
    });
    sockets.collect()
}

/// The ports that a process can be reached at, as the kernel has them.
fn ports(pid: u32) -> Vec<String> {
    let own = sockets(pid);
    let mut ports = Vec::new();
    for table in ["tcp", "tcp6", "udp", "udp6"] {
        let path = format!("/proc/{pid}/net/{table}");
        // Where there is no IPv6, there is no table of it.
        let text = std::fs::read_to_string(path).unwrap_or_default();
        for line in text.lines().skip(1) {
            let fields: Vec<&str> = line.split_whitespace().collect();
            let is_open = table.starts_with("udp") || fields[3] == LISTENS;
            if is_open && own.contains(fields[9]) {
                ports.push(format!("{table} {}", fields[1]));
            }
        }
    }
    ports
}

#[test]
fn cases_44_and_45_a_host_listens_on_no_port() {
    let project = Project::new();
    let id = project.run(&["run", "spinner", "spin", "-d"]).id();
    project.reach(&id, "running");
    let hosts = project.hosts();
    assert!(!hosts.is_empty());
    for host in hosts {
        let host = u32::try_from(host).expect("a process");
        assert_eq!(ports(host), Vec::<String>::new());
    }
    // What would be found.
    let (tcp, udp) = (TcpListener::bind("127.0.0.1:0"), UdpSocket::bind("127.0.0.1:0"));
    let (tcp, udp) = (tcp.expect("a port"), udp.expect("a port"));
    let found = ports(std::process::id());
    for own in [tcp.local_addr(), udp.local_addr()] {
        let port = format!(":{:04X}", own.expect("an address").port());
        assert!(found.iter().any(|one| one.ends_with(&port)), "{port} in {found:?}");
    }
}
