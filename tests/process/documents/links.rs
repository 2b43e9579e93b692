//! Links lead to what is there.

use std::path::{Component, Path, PathBuf};

use super::markdown::{Document, root, without_code};

#[test]
fn every_link_in_a_document_leads_somewhere() {
    let mut dead = Vec::new();
    let mut links = 0;
    for document in Document::all() {
        for line in &document.prose {
            for link in links_in(&without_code(line)) {
                links += 1;
                if let Err(why) = follow(&document, &link) {
                    dead.push(format!("{}: {link}: {why}", document.path.display()));
                }
            }
        }
    }
    assert!(dead.is_empty(), "{dead:#?}");
    assert!(links > 50, "only {links} links were found");
}

/// The targets of the links in a line.
fn links_in(line: &str) -> Vec<String> {
    let targets = line.split("](").skip(1);
    targets.map(|rest| rest.split(')').next().unwrap_or_default().to_owned()).collect()
}

fn follow(from: &Document, link: &str) -> Result<(), &'static str> {
    if link.starts_with("https://") {
        return Ok(());
    }
    let (path, anchor) = link.split_once('#').unwrap_or((link, ""));
    let target = match path {
        "" => from.path.clone(),
        path => resolve(&from.path, path).ok_or("it leads out of the repository")?,
    };
    if !root().join(&target).exists() {
        return Err("there is no such file");
    }
    if anchor.is_empty() {
        return Ok(());
    }
    let target = Document::at(target.to_str().ok_or("its path is not UTF-8")?);
    match target.anchors().iter().any(|known| known == anchor) {
        true => Ok(()),
        false => Err("there is no such heading"),
    }
}

/// A path as seen from a document, as one from the root.
fn resolve(document: &Path, path: &str) -> Option<PathBuf> {
    let mut resolved = document.parent()?.to_owned();
    for part in Path::new(path).components() {
        match part {
            Component::Normal(name) => resolved.push(name),
            Component::CurDir => {}
            Component::ParentDir => resolved.pop().then_some(())?,
            Component::RootDir | Component::Prefix(_) => return None,
        }
    }
    Some(resolved)
}

#[test]
fn links_are_found_and_dead_ones_told() {
    assert_eq!(links_in("a [b](c.md#d), [e](f)"), ["c.md#d", "f"]);
    let readme = Document::at("README.md");
    for (link, dead) in [
        ("docs/policy.md#the-file", false),
        ("docs/policy.md#no-such-heading", true),
        ("docs/none.md", true),
        ("../README.md", true),
        ("/etc/passwd", true),
    ] {
        assert_eq!(follow(&readme, link).is_err(), dead, "{link}");
    }
}
