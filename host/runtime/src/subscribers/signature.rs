//! Signatures of webhooks, as Standard Webhooks 1.0 has them: HMAC-SHA256 of id, time and body.

use base64::Engine as _;
use base64::alphabet;
use base64::engine::DecodePaddingMode;
use base64::engine::general_purpose::{GeneralPurpose, GeneralPurposeConfig, STANDARD};
use ring::hmac;
use taskrun_models::Secret;

/// The beginning of a secret, which many tools print with it.
const PREFIX: &str = "whsec_";
/// Some tools print secrets without the padding at their end.
const LENIENT: GeneralPurpose = GeneralPurpose::new(
    &alphabet::STANDARD,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);
/// Bytes of a secret: from 192 to 512 bits.
const SECRET_BYTES: std::ops::RangeInclusive<usize> = 24..=64;

/// A key for signatures. Its text is never shown.
pub(super) struct SigningKey(hmac::Key);

impl SigningKey {
    /// Reads the key in a secret; `None` if it is not of the form.
    pub(super) fn of(secret: &Secret) -> Option<Self> {
        let text = secret.reveal();
        let bytes = LENIENT.decode(text.strip_prefix(PREFIX).unwrap_or(text)).ok()?;
        let key = || Self(hmac::Key::new(hmac::HMAC_SHA256, &bytes));
        SECRET_BYTES.contains(&bytes.len()).then(key)
    }

    /// The signature of a message that is sent at a time, in seconds.
    fn sign(&self, id: &str, seconds: u64, body: &str) -> String {
        let signed = hmac::sign(&self.0, format!("{id}.{seconds}.{body}").as_bytes());
        format!("v1,{}", STANDARD.encode(signed.as_ref()))
    }
}

/// The value of `webhook-signature`: a signature with each key.
pub(super) fn signatures(keys: &[SigningKey], id: &str, seconds: u64, body: &str) -> String {
    let all: Vec<String> = keys.iter().map(|key| key.sign(id, seconds, body)).collect();
    all.join(" ")
}

#[cfg(test)]
mod tests {
    use taskrun_policy::KeySource;

    use super::*;

    fn secret(text: &str) -> Secret {
        let file = tempfile::NamedTempFile::new().expect("a file");
        std::fs::write(file.path(), text).expect("written");
        Secret::read(&KeySource::File(file.path().to_owned())).expect("a secret")
    }

    #[test]
    fn a_signature_is_that_of_the_standard() {
        // The example of the specification.
        let key = SigningKey::of(&secret("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")).expect("a key");
        let (id, body) = ("msg_p5jXN8AQM9LWM0D4loKWxJek", "{\"test\": 2432232314}");
        let signed = signatures(&[key], id, 1_614_265_330, body);
        assert_eq!(signed, "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=");
    }

    #[test]
    fn two_keys_sign_side_by_side_and_what_is_no_secret_signs_nothing() {
        let bare = SigningKey::of(&secret("MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")).expect("a key");
        let other = "whsec_AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA";
        let other = SigningKey::of(&secret(other)).expect("a key");
        let signed = signatures(&[bare, other], "id", 1, "{}");
        let words: Vec<&str> = signed.split(' ').collect();
        assert_eq!(words.len(), 2);
        assert!(words.iter().all(|word| word.starts_with("v1,")) && words[0] != words[1]);
        for wrong in ["whsec_", "whsec_AAAA", "not-base64-at-all", "hunter2"] {
            assert!(SigningKey::of(&secret(&format!("{wrong}x"))).is_none(), "{wrong}");
        }
    }
}
