//! Images that a person gives as files.

use std::io::Read;
use std::path::{Path, PathBuf};

use taskrun::image::ImageBytes;
use taskrun_journal::media::{MEDIA_BYTES_MAX, MEDIA_MAX, MEDIA_TOTAL_BYTES_MAX, Media};

use crate::failure::{Failure, Outcome};

/// The images in these files.
///
/// # Errors
/// If one cannot be read or is none that models are shown, and if they are too many or too large.
pub(super) fn images(files: &[PathBuf]) -> Outcome<Vec<ImageBytes>> {
    let mut images = Vec::new();
    for file in files {
        add(file, &mut images)?;
    }
    Ok(images)
}

/// Adds the image in a file to those of a task.
///
/// # Errors
/// As for [`images`]. Nothing is added then.
pub(super) fn add(file: &Path, images: &mut Vec<ImageBytes>) -> Outcome<()> {
    let image = image(file)?;
    let bytes = images.iter().chain([&image]).map(|image| image.0.len()).sum::<usize>();
    if images.len() >= MEDIA_MAX || bytes > MEDIA_TOTAL_BYTES_MAX {
        let most = MEDIA_TOTAL_BYTES_MAX >> 20;
        let text = format!("the images are more than {MEDIA_MAX}, or have more than {most} MiB");
        return Err(Failure::usage("too-many", text)
            .hint("put them into files of the workspace, and let the agent read what it needs"));
    }
    images.push(image);
    Ok(())
}

fn image(file: &Path) -> Outcome<ImageBytes> {
    let shown = file.display();
    let mut bytes = Vec::new();
    let opened = std::fs::File::open(file);
    let limit = MEDIA_BYTES_MAX as u64 + 1;
    let read = opened.and_then(|opened| opened.take(limit).read_to_end(&mut bytes));
    read.map_err(|error| {
        Failure::usage("unreadable", format!("cannot read the image {shown}"))
            .because(&error)
            .hint("name a file that you may read")
    })?;
    let bytes: std::sync::Arc<[u8]> = bytes.into();
    Media::of(std::sync::Arc::clone(&bytes)).map_err(|error| {
        Failure::usage("no-image", format!("{shown} cannot be shown to a model: {error}"))
            .hint(format!("give a PNG, JPEG, GIF or WebP of at most {} MiB", MEDIA_BYTES_MAX >> 20))
    })?;
    Ok(ImageBytes(bytes))
}
