//! Images that a request for a run brings.

use std::fmt;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use taskrun_journal::artifact::Artifact;
use taskrun_journal::media::{MEDIA_MAX, MEDIA_TOTAL_BYTES_MAX, Media};

use crate::error::ControllerError;

/// The bytes of an image: PNG, JPEG, GIF or WebP, of at most
/// [`MEDIA_BYTES_MAX`](taskrun_journal::media::MEDIA_BYTES_MAX). In JSON a text in Base64.
#[derive(Clone, PartialEq, Eq)]
pub struct ImageBytes(pub Arc<[u8]>);

impl fmt::Debug for ImageBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ImageBytes({})", self.0.len())
    }
}

impl Serialize for ImageBytes {
    fn serialize<S: Serializer>(&self, out: S) -> Result<S::Ok, S::Error> {
        out.serialize_str(&STANDARD.encode(&self.0))
    }
}

impl<'de> Deserialize<'de> for ImageBytes {
    fn deserialize<D: Deserializer<'de>>(input: D) -> Result<Self, D::Error> {
        let text = String::deserialize(input)?;
        STANDARD.decode(text).map(|bytes| Self(bytes.into())).map_err(de::Error::custom)
    }
}

/// The names of a request's images, and what is kept of them.
///
/// # Errors
/// [`ControllerError::Invalid`] for one that no model would be shown, and where there are too many
/// or too large ones.
pub(crate) fn named(images: &[ImageBytes]) -> Result<(Vec<Media>, Vec<Artifact>), ControllerError> {
    let invalid = |reason| ControllerError::Invalid { field: "images", reason };
    if images.len() > MEDIA_MAX {
        return Err(invalid(format!("a task has more than {MEDIA_MAX} images")));
    }
    if images.iter().map(|image| image.0.len()).sum::<usize>() > MEDIA_TOTAL_BYTES_MAX {
        let reason = format!("the images have more than {MEDIA_TOTAL_BYTES_MAX} bytes");
        return Err(invalid(reason));
    }
    let named = images.iter().enumerate().map(|(place, image)| {
        let refused = |error| invalid(format!("image {} cannot be shown: {error}", place + 1));
        Media::of(Arc::clone(&image.0)).map_err(refused)
    });
    named.collect::<Result<Vec<_>, _>>().map(|named| named.into_iter().unzip())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn images_are_checked_before_a_run_is_kept() {
        let gif = |bytes: usize| {
            let mut image = b"GIF89a".to_vec();
            image.resize(bytes, 0);
            ImageBytes(image.into())
        };
        let (media, artifacts) = named(&[gif(6), gif(7)]).expect("two images");
        let hashes: Vec<_> = artifacts.iter().map(|a| a.reference().hash.clone()).collect();
        assert_eq!(media.iter().map(|one| one.hash.clone()).collect::<Vec<_>>(), hashes);
        for (images, expected) in [
            (vec![gif(6), ImageBytes((*b"text").into())], "image 2 cannot be shown"),
            (vec![gif(6); MEDIA_MAX + 1], "more than 16 images"),
            (vec![gif((4 << 20) + 1); 5], "more than 20971520 bytes"),
            (vec![gif((5 << 20) + 1)], "image 1 cannot be shown"),
        ] {
            let error = named(&images).expect_err(expected).to_string();
            assert!(error.contains(expected), "{error}");
        }
    }

    #[test]
    fn an_image_is_a_text_in_json() {
        let image = ImageBytes((*b"GIF89a").into());
        let text = serde_json::to_string(&image).expect("JSON");
        assert_eq!(text, "\"R0lGODlh\"");
        assert_eq!(serde_json::from_str::<ImageBytes>(&text).expect("an image"), image);
    }
}
