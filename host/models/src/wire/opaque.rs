//! Items of answers that only their provider reads: signatures, and reasoning that is encrypted.
//!
//! They are kept as the signatures of blocks of reasoning, each behind the tag of its provider,
//! and go back to no other.

/// A provider whose answers have such items.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Maker {
    OpenAi,
    Anthropic,
    Gemini,
}

impl Maker {
    const ALL: [Self; 3] = [Self::OpenAi, Self::Anthropic, Self::Gemini];

    /// The words before its items. Base64, in which signatures are, has no colon.
    pub(crate) fn tag(self) -> &'static str {
        match self {
            Self::OpenAi => "openai:",
            Self::Anthropic => "anthropic:",
            Self::Gemini => "gemini:",
        }
    }

    /// The item that a signature is, if it is one of this provider.
    pub(crate) fn item(self, signature: &str) -> Option<&str> {
        let tagged = |maker: &Self| signature.starts_with(maker.tag());
        match Self::ALL.iter().find(|maker| tagged(maker)) {
            Some(maker) if *maker == self => signature.strip_prefix(self.tag()),
            Some(_) => None,
            // Conversations may come with signatures as these providers give them. OpenAI's items
            // are no signatures by themselves.
            None => match self {
                Self::Anthropic | Self::Gemini => Some(signature),
                Self::OpenAi => None,
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_item_is_given_to_its_own_provider_only() {
        for maker in Maker::ALL {
            let signature = format!("{}c2ln", maker.tag());
            for asked in Maker::ALL {
                let item = asked.item(&signature);
                assert_eq!(item, (asked == maker).then_some("c2ln"), "{asked:?} of {maker:?}");
            }
        }
    }

    #[test]
    fn a_signature_without_a_tag_is_one_of_those_who_sign() {
        for signature in ["c2ln", "redacted:b64", ""] {
            assert_eq!(Maker::Anthropic.item(signature), Some(signature));
            assert_eq!(Maker::Gemini.item(signature), Some(signature));
            assert_eq!(Maker::OpenAi.item(signature), None);
        }
    }
}
