//! `[channel.NAME]`, and `channels` and `delegation` of an agent.

use taskrun_journal::channel::{CHANNELS_MAX, Channel, ChannelAccess};

use super::error::{PolicyErrorKind, shown, suggest};
use super::parse::PolicyDraft;
use super::read::Section;
use super::settings::{DelegationSettings, REUSE_WITHIN_MAX, REUSE_WITHIN_MIN};

impl PolicyDraft<'_> {
    /// A channel of this name.
    pub(super) fn channel(&self, name: &str, section: &Section<'_, '_>) -> Option<Channel> {
        section.expect_keys(&["to", "access", "muted", "hidden"]);
        let access = read_access(section);
        let (muted, hidden) = (section.flag("muted"), section.flag("hidden"));
        let to = section.required_string("to", "transport/mail")?;
        self.is_subscriber(section, &to).then(|| Channel {
            name: name.to_owned(),
            to: to.value.to_owned(),
            access,
            muted: muted.unwrap_or(false),
            hidden: hidden.unwrap_or(false),
        })
    }

    /// The channels that an agent's runs have, each known and named once.
    pub(super) fn channels_of(&self, section: &Section<'_, '_>) -> Vec<String> {
        self.known_channels(section, "channels")
    }

    /// `delegation` of an agent.
    pub(super) fn delegation(&self, section: &Section<'_, '_>) -> DelegationSettings {
        let Some(table) = section.section("delegation") else {
            return DelegationSettings::default();
        };
        table.expect_keys(&["share_channels", "reuse_within", "serial"]);
        DelegationSettings {
            share_channels: self.known_channels(&table, "share_channels"),
            reuse_within: table.duration("reuse_within", REUSE_WITHIN_MIN..=REUSE_WITHIN_MAX),
            serial: table.flag("serial").unwrap_or(false),
        }
    }

    fn known_channels(&self, section: &Section<'_, '_>, key: &'static str) -> Vec<String> {
        section.names_once(key, CHANNELS_MAX, |text| {
            let is_known = self.channels.iter().any(|name| name == text.value);
            if !is_known {
                let kind = PolicyErrorKind::Unknown { what: "channel", name: shown(text.value) };
                let all = self.channels.iter().map(String::as_str);
                section.report(text.span.clone(), kind, suggest(text.value, "channels", all));
            }
            is_known
        })
    }
}

fn read_access(section: &Section<'_, '_>) -> ChannelAccess {
    let Some(text) = section.string("access") else { return ChannelAccess::default() };
    let known = ChannelAccess::ALL.into_iter().find(|access| access.as_str() == text.value);
    known.unwrap_or_else(|| {
        let kind = PolicyErrorKind::Unknown { what: "`access` value", name: shown(text.value) };
        let words = ChannelAccess::ALL.map(ChannelAccess::as_str);
        section.report(text.span.clone(), kind, suggest(text.value, "values", words));
        ChannelAccess::default()
    })
}
