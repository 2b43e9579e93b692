//! The addresses that everybody may reach. One that is not known to be public is not.
//!
//! After the IANA registries of special-purpose addresses (RFC 6890 and its successors) and the
//! metadata services of the large clouds.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// The reason that an address is not a public one; `None` if it is.
pub(super) fn not_public(address: IpAddr) -> Option<&'static str> {
    match address {
        IpAddr::V4(address) => not_public_v4(address),
        IpAddr::V6(address) => not_public_v6(address),
    }
}

fn not_public_v4(address: Ipv4Addr) -> Option<&'static str> {
    let [a, b, c, _] = address.octets();
    let reason = match (a, b, c) {
        (0, _, _) => "unspecified",
        (10, _, _) | (172, 16..=31, _) | (192, 168, _) => "private",
        (100, 64..=127, _) => "shared by a carrier's customers",
        (127, _, _) => "loopback",
        (169, 254, _) => "link-local, with the metadata of clouds",
        (192, 0, 0) => "for protocols",
        (192, 0, 2) | (198, 51, 100) | (203, 0, 113) => "for documentation",
        (192, 88, 99) => "a 6to4 relay",
        (198, 18..=19, _) => "for benchmarks",
        (224..=239, _, _) => "multicast",
        (240..=255, _, _) => "reserved",
        _ if address == AZURE_HOST => "the metadata of a cloud",
        _ => return None,
    };
    Some(reason)
}

/// Answers for the machine below in Azure, at an address that looks public.
const AZURE_HOST: Ipv4Addr = Ipv4Addr::new(168, 63, 129, 16);

fn not_public_v6(address: Ipv6Addr) -> Option<&'static str> {
    let segments = address.segments();
    if address.is_unspecified() {
        return Some("unspecified");
    }
    if address.is_loopback() {
        return Some("loopback");
    }
    if let Some(inner) = address.to_ipv4_mapped() {
        // Nobody publishes these; that the inner address is public is no excuse.
        return Some(not_public_v4(inner).unwrap_or("IPv4-mapped"));
    }
    match segments {
        // NAT64 (RFC 6052): networks with IPv6 only reach the old Internet so.
        [0x64, 0xff9b, 0, 0, 0, 0, high, low] => not_public_v4(embedded(high, low)),
        [0x2002, high, low, ..] => Some(not_public_v4(embedded(high, low)).unwrap_or("6to4")),
        [0xfc00..=0xfdff, ..] => Some("private"),
        [0xfe80..=0xfebf, ..] => Some("link-local"),
        [0xff00..=0xffff, ..] => Some("multicast"),
        // 2001::/23 with Teredo, ORCHID and others.
        [0x2001, 0..=0x01ff, ..] => Some("for protocols"),
        [0x2001, 0x0db8, ..] | [0x3fff, 0..=0x0fff, ..] => Some("for documentation"),
        // 2000::/3 is all that is handed out.
        [0x2000..=0x3fff, ..] => None,
        _ => Some("reserved"),
    }
}

fn embedded(high: u16, low: u16) -> Ipv4Addr {
    Ipv4Addr::from(u32::from(high) << 16 | u32::from(low))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn public_addresses_are_public() {
        let addresses = [
            "1.1.1.1",
            "8.8.8.8",
            "93.184.216.34",
            "172.15.0.1",
            "172.32.0.1",
            "100.63.0.1",
            "100.128.0.1",
            "192.167.1.1",
            "223.255.255.255",
            "2606:4700::1111",
            "2a00:1450::1",
            "2001:4860:4860::8888",
            "64:ff9b::8.8.8.8",
        ];
        for text in addresses {
            assert_eq!(not_public(text.parse().unwrap()), None, "{text}");
        }
    }

    #[test]
    fn every_other_kind_is_not() {
        let addresses = [
            "0.0.0.0",
            "0.1.2.3",
            "10.0.0.1",
            "172.16.0.1",
            "172.31.255.255",
            "192.168.1.1",
            "100.64.0.1",
            "100.100.100.200",
            "127.0.0.1",
            "127.255.255.255",
            "169.254.169.254",
            "169.254.170.2",
            "192.0.0.192",
            "192.0.2.1",
            "198.51.100.1",
            "203.0.113.1",
            "192.88.99.1",
            "198.18.0.1",
            "198.19.255.255",
            "224.0.0.1",
            "239.255.255.255",
            "240.0.0.1",
            "255.255.255.255",
            "168.63.129.16",
            "::",
            "::1",
            "::ffff:127.0.0.1",
            "::ffff:169.254.169.254",
            "::ffff:8.8.8.8",
            "::127.0.0.1",
            "::8.8.8.8",
            "64:ff9b::127.0.0.1",
            "64:ff9b::10.0.0.1",
            "64:ff9b::169.254.169.254",
            "64:ff9b:1::1",
            "2002:7f00:1::",
            "2002:a9fe:a9fe::",
            "2002:808:808::",
            "2001::1",
            "2001:10::1",
            "2001:db8::1",
            "3fff::1",
            "fc00::1",
            "fd00:ec2::254",
            "fe80::1",
            "fec0::1",
            "ff02::1",
            "100::1",
            "5f00::1",
            "4000::1",
        ];
        for text in addresses {
            assert!(not_public(text.parse().unwrap()).is_some(), "{text}");
        }
    }
}
