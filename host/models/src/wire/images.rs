//! Images as models are shown them: their bytes in the request, or words instead.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use taskrun_journal::media::{MEDIA_BYTES_MAX, Media, MediaBytes, media_type};

/// The words for a model that sees no images.
const UNSEEN: &str = "[An image is left out here: this model sees none.]";
/// The words for an image in an answer of the assistant: no protocol takes one there.
pub(super) const OWN_IMAGE: &str = "[An image.]";
/// The words for an image that found no place in a question.
const NO_ROOM: &str = "[An image is left out here: the question has no room for it.]";

/// The words for an image of more bytes than a provider takes of one.
const TOO_LARGE: &str =
    "[An image is left out here: it is larger than this model's provider takes.]";
/// The words for an image of a type that a provider does not take.
const OTHER_TYPE: &str =
    "[An image is left out here: this model's provider takes none of its type.]";

/// The images of a question.
#[derive(Clone, Copy)]
pub(super) struct Images<'q> {
    bytes: &'q MediaBytes,
    /// True if the model sees images.
    sees: bool,
    /// Most bytes of one that its provider takes.
    bytes_max: usize,
    /// A type that its provider does not take.
    refused_type: Option<&'static str>,
}

/// An image as it is sent.
pub(super) enum Image {
    /// Its bytes.
    Inline {
        /// Their type.
        media_type: &'static str,
        /// They themselves in Base64.
        data: String,
    },
    /// Words instead.
    Words(&'static str),
}

impl<'q> Images<'q> {
    pub(super) fn new(bytes: &'q MediaBytes, sees: bool) -> Self {
        Self { bytes, sees, bytes_max: MEDIA_BYTES_MAX, refused_type: None }
    }

    /// The same for a provider that takes less of one.
    pub(super) fn at_most(self, bytes_max: usize) -> Self {
        Self { bytes_max, ..self }
    }

    /// The same for a provider that refuses a type.
    pub(super) fn without(self, media_type: &'static str) -> Self {
        Self { refused_type: Some(media_type), ..self }
    }

    /// One of them. Its type is what its bytes say.
    pub(super) fn of(self, media: &Media) -> Image {
        if !self.sees {
            return Image::Words(UNSEEN);
        }
        let found = self.bytes.get(&media.hash);
        match found.and_then(|bytes| Some((media_type(bytes)?, bytes))) {
            Some((media_type, _)) if self.refused_type == Some(media_type) => {
                Image::Words(OTHER_TYPE)
            }
            Some((_, bytes)) if bytes.len() > self.bytes_max => Image::Words(TOO_LARGE),
            Some((media_type, bytes)) => Image::Inline { media_type, data: STANDARD.encode(bytes) },
            None => Image::Words(NO_ROOM),
        }
    }
}

impl Image {
    /// An address that is the image itself, as three of the protocols want it.
    pub(super) fn url(media_type: &str, data: &str) -> String {
        format!("data:{media_type};base64,{data}")
    }
}
