//! `[prompt.ID]`: templates that agents may have rendered.

use std::path::Path;

use taskrun_journal::message::Labels;

use super::error::{PolicyErrorKind, Problems, shown};
use super::files::{FileUse, Files, unusable};
use super::parse::{PolicyDraft, is_path, report_bad_value};
use super::read::{Section, Text};
use crate::policy::Policy;
use crate::prompt::{PROMPT_OVERRIDES_MAX, PromptOverridePolicy, PromptPolicy, PromptTemplate};
use crate::template::{PROMPT_BYTES_MAX, Prompt, PromptOverride, Prompts, check_template};

/// The advice where a template is none.
const TEMPLATE_HELP: &str = "write text with {{ name }} where data stands";

impl Policy {
    /// The prompts, without those whose files were not read.
    #[must_use]
    pub fn prompts(&self) -> Prompts {
        let whole = |prompt: &PromptPolicy| {
            let overrides = prompt.overrides.iter().map(|one| {
                Some(PromptOverride {
                    session: one.session.clone(),
                    labels: one.labels.clone(),
                    template: one.template.text.clone()?,
                })
            });
            let template = prompt.template.text.clone()?;
            Some(Prompt { template, overrides: overrides.collect::<Option<_>>()? })
        };
        let all = self.prompts.iter().filter_map(|(id, one)| Some((id.clone(), whole(one)?)));
        Prompts::new(all.collect())
    }

    /// Reads the files of all prompts, checks that they are templates, and makes the digest name
    /// their bytes too. A prompt without a file that can be used stops the agents that may use it,
    /// which [`Policy::check_files_of`] tells, and nothing else.
    pub fn read_prompts(&mut self, files: &dyn Files) {
        let mut hasher = blake3::Hasher::new();
        hasher.update(self.digest.as_bytes());
        let mut has_files = false;
        for template in self.prompts.values_mut().flat_map(PromptPolicy::templates_mut) {
            let Some(path) = &template.file else { continue };
            has_files = true;
            match read(files, path) {
                Ok(text) => {
                    hasher.update(&(text.len() as u64).to_le_bytes());
                    hasher.update(text.as_bytes());
                    (template.text, template.fault) = (Some(text), None);
                }
                Err(reason) => {
                    // No text is as long.
                    hasher.update(&u64::MAX.to_le_bytes());
                    (template.text, template.fault) = (None, Some(reason));
                }
            }
        }
        if has_files {
            self.digest = hasher.finalize().to_hex().to_string();
        }
    }
}

impl PromptPolicy {
    /// All of its templates.
    pub(super) fn templates(&self) -> impl Iterator<Item = &PromptTemplate> {
        std::iter::once(&self.template).chain(self.overrides.iter().map(|one| &one.template))
    }

    fn templates_mut(&mut self) -> impl Iterator<Item = &mut PromptTemplate> {
        let overrides = self.overrides.iter_mut().map(|one| &mut one.template);
        std::iter::once(&mut self.template).chain(overrides)
    }

    /// Reports each of its files that was read and cannot be used.
    pub(super) fn report_faults(&self, problems: &Problems<'_>) {
        for template in self.templates() {
            let (Some(path), Some(reason)) = (&template.file, &template.fault) else { continue };
            let (path, reason) = (path.clone(), reason.clone());
            let kind = PolicyErrorKind::BadFile { what: "prompt", path, reason };
            let help = "correct the file, or write where the prompt is";
            problems.add(template.span.clone(), kind, help);
        }
    }
}

/// The text of a prompt's file.
fn read(files: &dyn Files, path: &Path) -> Result<String, String> {
    let text = files.read(path, PROMPT_BYTES_MAX).map_err(unusable)?;
    check_template(&text).map_err(|reason| format!("is no template: {}", shown(&reason)))?;
    Ok(text)
}

impl PolicyDraft<'_> {
    pub(super) fn prompt(&mut self, id: &str, section: &Section<'_, '_>) -> Option<PromptPolicy> {
        section.expect_keys(&["template", "file", "overrides"]);
        let sections = section.sections("overrides");
        if let Some(first) = sections.get(PROMPT_OVERRIDES_MAX) {
            let (key, value) = ("overrides".to_owned(), sections.len().to_string());
            let help = format!("write at most {PROMPT_OVERRIDES_MAX}");
            section.report(first.span.clone(), PolicyErrorKind::OutOfRange { key, value }, help);
            return None;
        }
        let overrides = sections.iter().filter_map(|one| self.prompt_override(one)).collect();
        Some(PromptPolicy {
            id: id.to_owned(),
            template: self.template(section)?,
            overrides,
            location: section.problems.source.locate(section.span.start),
        })
    }

    fn prompt_override(&mut self, section: &Section<'_, '_>) -> Option<PromptOverridePolicy> {
        section.expect_keys(&["session", "labels", "template", "file"]);
        let session = section.string("session").map(|text| text.value.to_owned());
        let (mut labels, stated) = (Labels::new(), section.strings("labels"));
        for text in &stated {
            match text.value.split_once('=') {
                Some((key, value)) if !key.is_empty() => {
                    labels.insert(key.to_owned(), value.to_owned());
                }
                Some(_) | None => {
                    let help = "write \"KEY=VALUE\"";
                    report_bad_value(section, text, "label", "it is not a key and a value", help);
                }
            }
        }
        if session.is_none() && stated.is_empty() {
            let kind = PolicyErrorKind::MissingKey { key: "session", table: section.label.clone() };
            let help = "add the `session` or the `labels` of the runs that it is for";
            section.report(section.span.clone(), kind, help);
            return None;
        }
        Some(PromptOverridePolicy { session, labels, template: self.template(section)? })
    }

    /// The template that a table states, or the file that it stands in: one of the two.
    fn template(&mut self, section: &Section<'_, '_>) -> Option<PromptTemplate> {
        let (inline, file) = (section.text_block("template"), section.string("file"));
        match (inline, file) {
            (Some(_), Some(file)) => {
                let help = "remove it, or `template`";
                report_bad_value(section, &file, "file", "there is a `template` beside it", help);
                None
            }
            (Some(text), None) => inline_template(section, &text),
            (None, Some(file)) => {
                if !is_path(section, &file, "file") {
                    return None;
                }
                let path = self.named(&file, FileUse::Prompt);
                Some(PromptTemplate { file: Some(path), text: None, fault: None, span: file.span })
            }
            (None, None) if section.has("template") || section.has("file") => None,
            (None, None) => {
                let kind =
                    PolicyErrorKind::MissingKey { key: "template", table: section.label.clone() };
                let help = "add: template = \"Hello {{ name }}\", or: file = \"prompts/hello.md\"";
                section.report(section.span.clone(), kind, help);
                None
            }
        }
    }
}

fn inline_template(section: &Section<'_, '_>, text: &Text<'_>) -> Option<PromptTemplate> {
    if let Err(reason) = check_template(text.value) {
        report_bad_value(section, text, "template", &shown(&reason), TEMPLATE_HELP);
        return None;
    }
    let span = text.span.clone();
    Some(PromptTemplate { file: None, text: Some(text.value.to_owned()), fault: None, span })
}
